"""A model file in ONNX Runtime, as a function from squares of pixels to logits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import FormatError, HwnasError, UsageError
from hwnas.export.metadata import PIXELS, PLANES
from hwnas.io.preprocessing import CHANNELS, Preprocessing

PLANES_LAST = "float32 NHWC"
FORMATS = (PLANES, PIXELS, PLANES_LAST)
_CPU = "CPUExecutionProvider"
_DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(uint8)": "uint8"}

Squares = NDArray[np.uint8]
Logits = NDArray[np.float32]
Size = int | str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Feeding:
    """How images become a model's input. `format`: type and order of the input's dimensions."""

    preprocessing: Preprocessing
    format: str

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise UsageError(
                f"input format {self.format!r}; accepted: " + ", ".join(map(repr, FORMATS))
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """The dimensions of one image of the input."""
        channels = CHANNELS[self.preprocessing.channels]
        side = self.preprocessing.crop if self.format == PIXELS else self.preprocessing.size
        return (channels, side, side) if self.format == PLANES else (side, side, channels)

    def feed(self, squares: Squares) -> NDArray[Any]:
        """Return the input for cropped squares (N, crop, crop, channels)."""
        if self.format == PIXELS:
            return squares
        planes = self.preprocessing.normalise(squares)
        return planes if self.format == PLANES else planes.transpose(0, 2, 3, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """An input or output of a model; free dimensions have a name or None."""

    name: str
    dtype: str
    shape: tuple[Size, ...]

    @property
    def free(self) -> bool:
        """Whether more than the batch has no size."""
        return any(not isinstance(size, int) for size in self.shape[1:])

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.name!r} [{sizes}]"


class Runner:
    """A model with one input of images and one output of logits, ready to run."""

    def __init__(
        self,
        session: Any,  # noqa: ANN401 - onnxruntime is untyped
        inputs: Sequence[Port],
        outputs: Sequence[Port],
    ) -> None:
        self._session = session
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    @property
    def input(self) -> Port:
        """The first input, which is the only one of a model that was found sound."""
        return self.inputs[0]

    @property
    def batch(self) -> int | None:
        """The batch size that the file is fixed to, None if it takes any."""
        first = self.input.shape[0] if self.input.shape else None
        return first if isinstance(first, int) else None

    @property
    def classes(self) -> int | None:
        """How many logits an image gets, None if the file does not say."""
        last = self.outputs[0].shape[-1] if self.outputs[0].shape else None
        return last if isinstance(last, int) else None

    def run(self, images: NDArray[Any]) -> Logits:
        """Return the logits of a batch of inputs; raises HwnasError if it cannot be run."""
        from hwnas.profiling.backends.ort import first_line, refusals

        dtype = _DTYPES.get(self.input.dtype, "float32")
        feeds = {self.input.name: np.ascontiguousarray(images, dtype)}
        try:
            (found,) = self._session.run([self.outputs[0].name], feeds)
        except refusals() as error:
            raise HwnasError(f"a batch of {len(images)} cannot be run: {first_line(error)}") from (
                error
            )
        return np.asarray(found, np.float32)


def open_runner(model: Path, *, backend: str = "onnxruntime", threads: int = 1) -> Runner:
    """Return a model, opened in ONNX Runtime with the provider of `backend` if that is one.

    Raises HwnasError if the runtime refuses it.
    """
    from hwnas.profiling.backends import backend as find_backend
    from hwnas.profiling.backends.ort import OnnxRuntime, open_session

    chosen = find_backend(backend)
    provider = chosen.provider if isinstance(chosen, OnnxRuntime) else _CPU
    session = open_session(model, provider=provider, threads=threads)
    try:
        inputs, outputs = _ports(session.get_inputs()), _ports(session.get_outputs())
    except UnicodeDecodeError as error:
        raise FormatError(f"{model.name}: names of its inputs or outputs are no text") from error
    return Runner(session, inputs, outputs)


def _ports(found: Sequence[Any]) -> list[Port]:
    return [
        Port(name=port.name, dtype=port.type, shape=tuple(map(_size, port.shape or ())))
        for port in found
    ]


def _size(written: Size) -> Size:
    """Return a dimension; 0 and -1 name no size."""
    return None if isinstance(written, int) and written < 1 else written


def problem_of_ports(runner: Runner) -> str | None:
    """Return why this is no model from images to logits, None if it is one."""
    for what, ports in (("inputs", runner.inputs), ("outputs", runner.outputs)):
        if len(ports) != 1:
            named = ", ".join(map(str, ports)) or "none"
            return f"it has {len(ports)} {what} ({named}); accepted: one"
    taken, given = runner.input, runner.outputs[0]
    if taken.dtype not in _DTYPES:
        return f"input {taken.name!r} is a {taken.dtype}; accepted: {', '.join(_DTYPES)}"
    if len(taken.shape) != 4:
        return f"input {taken} has {len(taken.shape)} dimensions; accepted: 4, a batch of images"
    if given.shape and len(given.shape) != 2:  # no shape: it does not say, running it does
        return f"output {given} has {len(given.shape)} dimensions; accepted: 2, (batch, classes)"
    return None


def problem_of_feeding(runner: Runner, feeding: Feeding) -> str | None:
    """Return why images do not fit the model's input, None if they do."""
    taken = runner.input
    wants_bytes = taken.dtype == "tensor(uint8)"
    if wants_bytes != (feeding.format == PIXELS):
        return f"input {taken} is a {taken.dtype}, the preprocessing makes {feeding.format}"
    for found, expected in zip(taken.shape[1:], feeding.shape, strict=True):
        if isinstance(found, int) and found != expected:
            wanted = ", ".join(map(str, feeding.shape))
            return f"input {taken} does not take images of ({wanted}), which is {feeding.format}"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """What a person says of the preprocessing of a file that does not say it itself."""

    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    interpolation: str | None = None
    crop: float | None = None
    channels: str | None = None
    format: str | None = None

    @property
    def given(self) -> Mapping[str, Any]:
        """The ones that were said."""
        names = ("size", "mean", "std", "interpolation", "crop", "channels", "format")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def feeding_from(flags: Flags, taken: Port) -> Feeding:
    """Return the feeding that flags and the input's shape describe; raises UsageError.

    `flags.crop` is the share of the shorter side that the square has.
    """
    chosen = flags.format or _guessed_format(taken)
    side, depth = _side_and_depth(taken, chosen)
    side = flags.size or side
    if side is None:
        raise UsageError(f"input {taken} does not say its size", "add --size PIXELS")
    channels = flags.channels or ("L" if depth == 1 else "RGB")
    missing = [name for name in ("mean", "std") if getattr(flags, name) is None]
    if chosen == PIXELS and len(missing) < 2:
        raise UsageError(
            f"input {taken} takes pixels as they are: --mean and --std would have no effect",
            "leave them out",
        )
    if missing and chosen != PIXELS:
        raise UsageError(
            "the file does not say how its images are normalised, and --"
            + " and --".join(missing)
            + f" {'is' if len(missing) == 1 else 'are'} not given",
            "add --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225, or what it was trained with",
        )
    if flags.crop is not None and not 0 < flags.crop <= 1:
        raise UsageError(f"crop is {flags.crop:g}; accepted: a share above 0, at most 1")
    for name, values in (("mean", flags.mean or ()), ("std", flags.std or ())):
        if any(value > 1 for value in values):
            raise UsageError(
                f"{name} is {', '.join(format(value, 'g') for value in values)}; accepted: that of "
                "values from 0 to 1",
                f"divide --{name} by 255 if it is that of pixels from 0 to 255",
            )
    count = CHANNELS.get(channels, 3)
    made = Preprocessing(
        size=side,
        crop=side,
        resize=int(side / (1.0 if flags.crop is None else flags.crop)),
        interpolation=flags.interpolation or "bicubic",
        mean=flags.mean or (0.0,) * count,
        std=flags.std or (1.0,) * count,
        channels=channels,
    )
    return Feeding(preprocessing=made, format=chosen)


def _guessed_format(taken: Port) -> str:
    depths = tuple(CHANNELS.values())
    first, last = taken.shape[1] in depths, taken.shape[-1] in depths
    if taken.dtype != "tensor(uint8)":
        return PLANES_LAST if last and not first else PLANES
    if first and not last:
        raise UsageError(
            f"input {taken} takes pixels by channel; accepted: {PIXELS}",
            "export it with the channels last, or for float32",
        )
    return PIXELS


def _side_and_depth(taken: Port, chosen: str) -> tuple[int | None, int | None]:
    depth, side = (taken.shape[1], taken.shape[2]) if chosen == PLANES else (
        taken.shape[3], taken.shape[1]
    )  # fmt: skip
    return (
        side if isinstance(side, int) else None,
        depth if isinstance(depth, int) else None,
    )


def batched(squares: Squares, runner: Runner, feeding: Feeding) -> Logits:
    """Return the logits of squares, in as many runs as a fixed batch size needs."""
    size = runner.batch
    if size is None or size == len(squares):
        return runner.run(feeding.feed(squares))
    parts = []
    for start in range(0, len(squares), size):
        part = squares[start : start + size]
        full = np.resize(part, (size, *part.shape[1:]))  # repeats images to fill the batch
        parts.append(runner.run(feeding.feed(full))[: len(part)])
    return np.concatenate(parts)
