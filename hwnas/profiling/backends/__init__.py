"""The runtimes that can be measured, by name. A new one adds a line to `BACKENDS`.

Heavy packages are imported when a backend is asked for its version or opened, not here.
"""

from collections.abc import Mapping

from hwnas.errors import MissingPackageError, unknown_name
from hwnas.profiling.backends.base import Backend, BuildCall, FileModel, ModuleModel, Session
from hwnas.profiling.backends.ort import CPU, CUDA, TENSORRT, OnnxRuntime
from hwnas.profiling.backends.ov import OpenVino
from hwnas.profiling.backends.pytorch import Torch

# The two packages hold the same module and exclude each other.
_WITH_GPU = "with an NVIDIA GPU: pip uninstall -y onnxruntime; pip install onnxruntime-gpu"
BACKENDS: Mapping[str, Backend] = {
    "onnxruntime": OnnxRuntime(name="onnxruntime", provider=CPU),
    "onnxruntime-cuda": OnnxRuntime(name="onnxruntime-cuda", provider=CUDA, hint=_WITH_GPU),
    "onnxruntime-tensorrt": OnnxRuntime(
        name="onnxruntime-tensorrt", provider=TENSORRT, hint=_WITH_GPU
    ),
    "openvino": OpenVino(),
    "torch": Torch(name="torch", compiled=False),
    "torch-compiled": Torch(name="torch-compiled", compiled=True),
}

__all__ = [
    "BACKENDS", "Backend", "BuildCall", "FileModel", "ModuleModel", "Session", "available",
    "backend",
]  # fmt: skip


def backend(name: str) -> Backend:
    """Return the backend called `name`; it can be used here."""
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    found = BACKENDS[name]
    missing = found.missing()
    if missing is not None:
        raise MissingPackageError(f"backend {name!r} cannot be used here: {missing}", found.hint)
    return found


def available() -> list[str]:
    """Return the names of the backends that can be used here."""
    return [name for name, found in BACKENDS.items() if found.missing() is None]
