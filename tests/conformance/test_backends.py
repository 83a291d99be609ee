"""Every backend that can be used here passes the suite; the others say why they cannot."""

from pathlib import Path

import pytest

from hwnas.errors import MissingPackageError, UsageError
from hwnas.profiling.backends import BACKENDS, BuildCall, available, backend
from hwnas.testing.backends import CHECKS
from hwnas.testing.onnx_models import write_conv_stack

# One line for each backend: what kind of model the suite gives it.
MODELS = {
    "onnxruntime": "onnx",
    "onnxruntime-cuda": "onnx",
    "onnxruntime-tensorrt": "onnx",
    "openvino": "onnx",
    "torch": "module",
    "torch-compiled": "module",
}
USABLE = [name for name in available() if name != "torch-compiled"]  # compiles for half a minute


def model_for(name: str, folder: Path):
    if MODELS[name] == "onnx":
        return write_conv_stack(folder / "model.onnx")
    return BuildCall(target="hwnas.testing.modules:small_convnet", argument={"width": 8})


def test_the_table_is_complete():
    assert set(MODELS) == set(BACKENDS)
    assert all(BACKENDS[name].takes == kind for name, kind in MODELS.items())


@pytest.mark.parametrize("name", USABLE)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_backend(name, check, tmp_path):
    check(backend(name), model_for(name, tmp_path))


def test_unusable_backends_say_why():
    for name in set(BACKENDS) - set(available()):
        with pytest.raises(MissingPackageError, match=name) as raised:
            backend(name)
        assert "pip install" in raised.value.hint


def test_unknown_backend_names_the_nearest():
    with pytest.raises(UsageError, match="onnxruntime"):
        backend("onnxrutime")
