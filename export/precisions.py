"""One network in several precisions: building each, and which of them to deploy."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hwnas.errors import unknown_name
from hwnas.export.artifact import ModelEntry
from hwnas.export.onnx import Exportable, module_bytes
from hwnas.io.preprocessing import Preprocessing

FP32 = "fp32"
PRECISIONS = (FP32, "fp16", "int8_dynamic", "int8_static")
ACCEPTED_LOSS = 0.005
WORTHWHILE = 0.97  # of the time of fp32; less is within what two sessions differ by
_TRUSTED = ("A", "B", "C")


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How a model is written. `pixels`: the preprocessing to put inside, None for none."""

    opset: int
    batch: int | None
    pixels: Preprocessing | None


def check_precisions(names: Sequence[str]) -> tuple[str, ...]:
    """Return the precisions once each, fp32 first, which the others are compared with."""
    for name in names:
        if name not in PRECISIONS:
            raise unknown_name(
                "precision", name, PRECISIONS, hint=f"--precision {','.join(PRECISIONS)}"
            )
    return tuple(name for name in PRECISIONS if name in {FP32, *names})


def file_name(precision: str) -> str:
    """Return the name of a model file."""
    return "model.onnx" if precision == FP32 else f"model.{precision}.onnx"


def build(
    module: Exportable,
    precision: str,
    *,
    form: Form,
    metadata: dict[str, str],
    calibration: Callable[[], Iterable[NDArray[Any]]],
) -> bytes:
    """Return the model of a network in a precision.

    `calibration` makes batches of the graph's input, and is only called where they are needed.
    """
    from hwnas.export.quantise import quantise_dynamic, quantise_static, to_half

    eight_bits = precision.startswith("int8")
    model = module_bytes(
        module,
        batch=form.batch,
        opset=form.opset,
        linears="product" if eight_bits else "convolution",
        pixels=form.pixels,
        metadata=metadata,
    )
    if precision == "int8_dynamic":
        return quantise_dynamic(model)
    if precision == "int8_static":
        return quantise_static(model, calibration())
    return to_half(model) if precision == "fp16" else model


def recommend(
    entries: Sequence[ModelEntry], most_lost: Mapping[str, float]
) -> tuple[ModelEntry, str]:
    """Return the model to deploy on this device, and why.

    The fastest that is worthwhile and surely loses at most half a point of accuracy, else fp32.
    `most_lost`: the accuracy that each precision may lose, by the images that were judged.
    """
    base = next(entry for entry in entries if entry.precision == FP32)
    if base.latency is None:
        return base, "fp32: speed was not measured"
    others = [entry for entry in entries if entry is not base]
    if others and not _is_told(base):
        return base, "fp32: its own speed could not be told"
    good = [entry for entry in others if _is_good(entry, most_lost)]
    if not good:
        lossy = [entry for entry in others if _ratio(entry) < WORTHWHILE]
        told = (_against(entry, base, most_lost[entry.precision]) for entry in lossy)
        why = "; ".join(told) or "nothing faster was written"
        return base, f"fp32: {why}"
    best = min(good, key=_ratio)
    gain = 1 / _ratio(best)
    return best, (
        f"{best.precision}: {gain:.2f} times as fast as fp32 here, "
        f"accuracy {best.accuracy:.2%} instead of {base.accuracy:.2%}"
    )


def compared(entry: ModelEntry) -> str:
    """Return in words whether a precision is faster than fp32 on this device."""
    ratio = _ratio(entry)
    if ratio < WORTHWHILE:
        return f"{1 / ratio:.2f} times as fast as fp32 here"
    if ratio > 1 / WORTHWHILE:
        return f"slower than fp32 here ({ratio:.2f} times its time)"
    return "as fast as fp32 here"


def _is_good(entry: ModelEntry, most_lost: Mapping[str, float]) -> bool:
    return (
        _is_told(entry)
        and _ratio(entry) < WORTHWHILE
        and most_lost[entry.precision] <= ACCEPTED_LOSS
    )


def _is_told(entry: ModelEntry) -> bool:
    return entry.latency is not None and entry.latency["grade"] in _TRUSTED


def _against(entry: ModelEntry, base: ModelEntry, most: float) -> str:
    if not _is_told(entry):
        return f"the speed of {entry.precision} could not be told"
    if _ratio(entry) >= WORTHWHILE:
        return f"{entry.precision} is {compared(entry)}"
    loss = base.accuracy - entry.accuracy
    if loss > ACCEPTED_LOSS:
        return f"{entry.precision} loses {loss:.2%} of accuracy"
    return (
        f"{entry.precision} may lose {most:.2%} of accuracy, {entry.images} images tell no better: "
        "--images N judges by more"
    )


def _ratio(entry: ModelEntry) -> float:
    return 1.0 if entry.latency is None else float(entry.latency["ratio"])
