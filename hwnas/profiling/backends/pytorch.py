"""PyTorch: eager and compiled, on the CPU, or on a GPU if there is one."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from hwnas.errors import HwnasError
from hwnas.profiling.backends.base import (
    ModelSource,
    Session,
    check_precision,
    fixed_input,
    module_model,
)
from hwnas.profiling.records import Settings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Torch:
    """PyTorch modules as they are, or through torch.compile (which needs a C++ compiler)."""

    name: str
    compiled: bool
    takes: Literal["onnx", "module"] = "module"
    precisions: tuple[str, ...] = ("fp32", "bf16")
    hint: str = "pip install 'hwnas[all]'"

    def missing(self) -> str | None:
        """Return why it cannot be used here, None if it can."""
        return None if find_spec("torch") else "torch is not installed"

    def version(self) -> str:
        """Return the runtime's version."""
        return version("torch")

    def open(self, model: ModelSource, *, settings: Settings) -> Session:
        """Prepare a module for inference; the first runs of a compiled one take minutes."""
        check_precision(self, settings)
        source = module_model(model, self.name)
        import torch

        on_gpu = torch.cuda.is_available()
        if not on_gpu:
            torch.set_num_threads(settings.threads)
        device = torch.device("cuda" if on_gpu else "cpu")
        dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32
        module = source.module.eval().to(device=device, dtype=dtype)
        images = torch.from_numpy(fixed_input((settings.batch, *source.input_shape)))
        images = images.to(device=device, dtype=dtype)
        if images.dim() == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        call = _compiled(module) if self.compiled else module
        session = TorchSession(call=call, images=images, on_gpu=on_gpu)
        try:
            session.run()
        except RuntimeError as error:
            reason = (str(error).strip().splitlines() or ["no reason given"])[0]
            raise HwnasError(f"torch cannot run the model: {reason[:300]}") from error
        return session


def _compiled(module: "torch.nn.Module") -> "Callable[[torch.Tensor], object]":
    """Return a module compiled for its input alone, however many others this process has had.

    All networks share the code of one class, of which torch compiles eight forms by default; it
    runs the ninth as it is, and only logs that.
    """
    import torch
    from torch._dynamo import config

    config.recompile_limit = config.accumulated_recompile_limit = sys.maxsize
    config.fail_on_recompile_limit_hit = True
    compiled: Callable[[torch.Tensor], object] = torch.compile(module, dynamic=False)
    return compiled


@dataclass(slots=True)
class TorchSession:
    """A module and its input."""

    call: "Callable[[torch.Tensor], object]"
    images: "torch.Tensor"
    on_gpu: bool

    def run(self) -> float | None:
        """Run once; on a GPU return the ms between two events."""
        import torch

        with torch.inference_mode():
            if not self.on_gpu:
                self.call(self.images)
                return None
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            start.record()
            self.call(self.images)
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end))

    def close(self) -> None:
        """Drop the model."""
        self.call = lambda images: images
