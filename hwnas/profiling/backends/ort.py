"""ONNX Runtime: on the CPU, and with the CUDA and TensorRT providers where they are present."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
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

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
}
CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
# What serves the nodes that a provider cannot, the fastest first.
_BEHIND: dict[str, tuple[str, ...]] = {CPU: (), CUDA: (CPU,), TENSORRT: (CUDA, CPU)}


@dataclass(frozen=True, kw_only=True, slots=True)
class OnnxRuntime:
    """ONNX Runtime with one execution provider; the CPU serves what the provider cannot."""

    name: str
    provider: str
    takes: Literal["onnx", "module"] = "onnx"
    precisions: tuple[str, ...] = ("fp32", "fp16", "int8_dynamic", "int8_static")
    hint: str = "pip install onnxruntime"

    def missing(self) -> str | None:
        """Return why it cannot be used here, None if it can."""
        try:
            import onnxruntime
        except ImportError as error:
            return f"onnxruntime cannot be imported ({error})"
        if self.provider not in onnxruntime.get_available_providers():
            return f"this onnxruntime has no {self.provider}"
        return None

    def version(self) -> str:
        """Return the runtime's version."""
        import onnxruntime

        return str(onnxruntime.__version__)

    def open(self, model: ModelSource, *, settings: Settings) -> Session:
        """Load an ONNX file with all graph optimisations."""
        check_precision(self, settings)
        file = file_model(model, self.name)
        session = open_session(file.path, provider=self.provider, threads=settings.threads)
        feeds = feeds_for(session, settings.batch, file.sample)
        opened: Session
        try:
            if self.provider == CPU:
                opened = CpuSession(call=lambda: session.run(None, feeds))
            else:
                opened = DeviceSession(session=session, feeds=feeds)
            opened.run()
        except refusals() as error:
            reason = first_line(error)
            raise HwnasError(f"onnxruntime cannot run {file.path.name}: {reason}") from error
        return opened


@dataclass(slots=True)
class CpuSession:
    """A session whose work is done when the call returns."""

    call: Callable[[], object]

    def run(self) -> float | None:
        """Run once."""
        self.call()
        return None

    def close(self) -> None:
        """Drop the model."""
        self.call = lambda: None


class DeviceSession:
    """A session on an accelerator, with its input and outputs kept there."""

    def __init__(self, *, session: Any, feeds: dict[str, Any]) -> None:  # noqa: ANN401 - untyped
        import onnxruntime

        self._session = session
        self._binding = session.io_binding()
        for name, value in feeds.items():
            on_device = onnxruntime.OrtValue.ortvalue_from_numpy(value, "cuda", 0)
            self._binding.bind_ortvalue_input(name, on_device)
        for output in session.get_outputs():
            self._binding.bind_output(output.name, "cuda")

    def run(self) -> float | None:
        """Run once and return the ms until the device had finished."""
        start = time.perf_counter()
        self._session.run_with_iobinding(self._binding)
        self._binding.synchronize_outputs()
        return (time.perf_counter() - start) * 1e3

    def close(self) -> None:
        """Drop the model."""
        self._session = self._binding = None


def open_session(
    path: Path, *, provider: str = CPU, threads: int = 1, profile_prefix: str = ""
) -> Any:  # noqa: ANN401 - onnxruntime is untyped
    """Return an onnxruntime.InferenceSession as it is measured everywhere here."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4  # what it refuses, it also raises
    if profile_prefix:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    try:
        # Its fallback prints to standard output and would run elsewhere than what is measured.
        session = onnxruntime.InferenceSession(
            str(path), options, providers=[provider, *_BEHIND[provider]], enable_fallback=0
        )
    except refusals() as error:
        raise HwnasError(f"onnxruntime cannot load {path.name}: {first_line(error)}") from error
    if provider not in session.get_providers():
        # With its log off, it says nothing of libraries that it does not find.
        raise HwnasError(
            f"onnxruntime left {provider} out: its libraries cannot be loaded "
            f"(there are {', '.join(session.get_providers())})",
            "hwnas doctor; see docs/devices.md for what it needs",
        )
    return session


def feeds_for(
    session: Any,  # noqa: ANN401 - onnxruntime is untyped
    batch: int,
    sample: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the fixed input of a session; `sample` is the shape of what it leaves free."""
    feeds = {}
    for spec in session.get_inputs():
        if spec.type not in _DTYPES:
            raise HwnasError(f"input {spec.name!r} is a {spec.type}: not supported")
        shape = concrete_shape(spec.shape, batch, sample)
        feeds[spec.name] = fixed_input(shape, _DTYPES[spec.type])
    return feeds


def refusals() -> tuple[type[Exception], ...]:
    """Return what onnxruntime raises for a model or an input that it cannot use."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.NoSuchFile,
        state.NotImplemented,
        state.RuntimeException,
        UnicodeDecodeError,  # its own messages quote names of a damaged file
        RuntimeError,  # a provider whose libraries do not load
    )


def first_line(error: Exception) -> str:
    """Return an error of the runtime in one line."""
    return (str(error).strip().splitlines() or ["no reason given"])[0][:300]
