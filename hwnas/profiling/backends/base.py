"""What a backend is: it opens a model, and the session runs it on a fixed input."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import HwnasError, UsageError
from hwnas.profiling.records import Settings

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleModel:
    """A torch module and the shape of one sample of its input."""

    module: "nn.Module"
    input_shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildCall:
    """A call that makes a ModuleModel: "package.module:function" and its one JSON argument.

    A measuring process cannot be handed a module, so it is told how to make it.
    """

    target: str
    argument: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class FileModel:
    """An ONNX file, and the shape of one sample where its input leaves more free than the batch."""

    path: Path
    sample: tuple[int, ...] = ()


ModelSource = Path | FileModel | BuildCall | ModuleModel


class Session(Protocol):
    """A model that is ready to run."""

    def run(self) -> float | None:
        """Run once, on the same input each time; return ms if the device has its own clock."""

    def close(self) -> None:
        """Give back what the session holds."""


class Backend(Protocol):
    """A runtime. `takes` is what it opens, `hint` says how it gets installed."""

    @property
    def name(self) -> str:
        """The name under which it is registered and recorded."""

    @property
    def takes(self) -> Literal["onnx", "module"]:
        """Whether it opens ONNX files or torch modules."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions it can run; those of quantised files are a property of the file."""

    @property
    def hint(self) -> str:
        """What to type to get it."""

    def missing(self) -> str | None:
        """Return why it cannot be used here, None if it can."""

    def version(self) -> str:
        """Return the runtime's version."""

    def open(self, model: ModelSource, *, settings: Settings) -> Session:
        """Load a model; raises HwnasError if the runtime cannot run it."""


def file_model(model: ModelSource, name: str) -> FileModel:
    """Return the file of a model for a backend that opens ONNX files."""
    if isinstance(model, FileModel):
        return model
    if isinstance(model, Path):
        return FileModel(path=model)
    raise UsageError(f"backend {name!r} opens ONNX files, not {type(model).__name__}")


def module_model(model: ModelSource, name: str) -> ModuleModel:
    """Return the module of a model for a backend that runs torch modules."""
    if isinstance(model, ModuleModel):
        return model
    if isinstance(model, BuildCall):
        module, _, function = model.target.partition(":")
        built = getattr(importlib.import_module(module), function)(model.argument)
        if isinstance(built, ModuleModel):
            return built
        raise HwnasError(f"{model.target} returned {type(built).__name__}, not a ModuleModel")
    raise UsageError(f"backend {name!r} runs torch modules, not ONNX files")


def check_precision(backend: Backend, settings: Settings) -> None:
    """Raise UsageError for a precision that the backend cannot run."""
    if settings.precision not in backend.precisions:
        raise UsageError(
            f"backend {backend.name!r} has no precision {settings.precision!r}; "
            f"accepted: {', '.join(backend.precisions)}"
        )


def concrete_shape(
    shape: Sequence[int | str | None], batch: int, sample: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return an input's shape with its free first dimension replaced by the batch size.

    `sample` gives the sizes of the other dimensions, where these are free.
    """
    first, rest = (shape[0] if shape else None), list(shape[1:])
    if len(sample) == len(rest):
        rest = [own if _known(own) else size for own, size in zip(rest, sample, strict=True)]
    if not shape or not all(map(_known, rest)):
        raise HwnasError(f"the model's input has shape {list(shape)}: only the first may be free")
    if isinstance(first, int) and first > 0 and first != batch:
        raise HwnasError(
            f"the model is fixed to batch {first}, asked for {batch}",
            "export it with a free batch dimension",
        )
    return (batch, *(int(size) for size in rest if size is not None))


def _known(size: int | str | None) -> bool:
    return isinstance(size, int) and size >= 1


def fixed_input(shape: tuple[int, ...], dtype: str = "float32") -> NDArray[Any]:
    """Return the input that every measurement uses: noise, the same on every machine."""
    bits = np.random.PCG64(20240229).random_raw(int(np.prod(shape)))
    if np.issubdtype(np.dtype(dtype), np.integer):
        return (bits % 64).astype(dtype).reshape(shape)
    return ((bits >> 40) / float(1 << 24)).astype(dtype).reshape(shape)
