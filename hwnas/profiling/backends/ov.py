"""OpenVINO on the CPU, in float32 or with the bf16 hint."""

from dataclasses import dataclass
from typing import Any, Literal

from hwnas.errors import HwnasError
from hwnas.profiling.backends.base import (
    ModelSource,
    Session,
    check_precision,
    concrete_shape,
    file_model,
    fixed_input,
)
from hwnas.profiling.records import Settings

_HINTS = {"fp32": "f32", "bf16": "bf16", "int8_static": "f32", "int8_dynamic": "f32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenVino:
    """OpenVINO's CPU plugin with one stream."""

    name: str = "openvino"
    takes: Literal["onnx", "module"] = "onnx"
    precisions: tuple[str, ...] = tuple(_HINTS)
    hint: str = "pip install 'hwnas[openvino]'"

    def missing(self) -> str | None:
        """Return why it cannot be used here, None if it can."""
        try:
            import openvino  # noqa: F401 - whether it works
        except ImportError as error:
            return f"openvino cannot be imported ({error})"
        return None

    def version(self) -> str:
        """Return the runtime's version."""
        import openvino

        return str(openvino.__version__).split("-")[0]

    def open(self, model: ModelSource, *, settings: Settings) -> Session:
        """Load an ONNX file and fix its batch size: free shapes run slower."""
        import openvino

        check_precision(self, settings)
        file = file_model(model, self.name)
        core = openvino.Core()
        try:
            network = core.read_model(str(file.path))
            shapes = {
                port.any_name: _shape(port, settings.batch, file.sample) for port in network.inputs
            }
            network.reshape({name: list(shape) for name, shape in shapes.items()})
            compiled = core.compile_model(network, "CPU", _properties(settings))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1][:300]
            raise HwnasError(f"openvino cannot load {file.path.name}: {reason}") from error
        request = compiled.create_infer_request()
        for port in compiled.inputs:
            dtype = port.get_element_type().to_dtype().name
            value = fixed_input(shapes[port.any_name], dtype)
            request.set_tensor(port, openvino.Tensor(value))
        return OpenVinoSession(request=request)


@dataclass(slots=True)
class OpenVinoSession:
    """An inference request with its input in place."""

    request: Any

    def run(self) -> float | None:
        """Run once."""
        self.request.infer()
        return None

    def close(self) -> None:
        """Drop the model."""
        self.request = None


def _properties(settings: Settings) -> dict[str, Any]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": settings.threads,
        "INFERENCE_PRECISION_HINT": _HINTS[settings.precision],
        "ENABLE_CPU_PINNING": False,  # the measurement chooses the cores
    }


def _shape(
    port: Any,  # noqa: ANN401 - openvino is untyped
    batch: int,
    sample: tuple[int, ...],
) -> tuple[int, ...]:
    sizes = [size.get_length() if size.is_static else None for size in port.get_partial_shape()]
    return concrete_shape(sizes, batch, sample)
