"""Whether a file computes what the torch module computed, at any batch size.

The stored images are pixels, so a wrong mean or std in the file shows as wrong logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hwnas.errors import HwnasError
from hwnas.export.artifact import Manifest
from hwnas.export.checks import parity_limit
from hwnas.export.reference import Reference, relative_difference
from hwnas.export.validate_run import Feeding, Logits, Runner, Squares
from hwnas.export.validate_types import Gate, failed, passed
from hwnas.profiling.backends.base import fixed_input

# The exporter tries 1, 2 and 5; the others were never run by it.
SIZES = (1, 2, 3, 5, 7, 16)
_TIMES_RECORDED = 2.0
_LEAST_SHARE = 0.2
_ANEW = "export it anew: hwnas export"

# Other ways to feed a model, each with what it means if they give the right logits.
Others = Sequence[tuple[str, Feeding]]


def tolerance_for(precision: str, recorded: float | None) -> float:
    """Return how far logits may be from torch's, as a share of the largest.

    `recorded` is what the exporter found. It binds files of reduced precision, whose own limit is
    wide; other machines round in other ways, so it is no limit itself.
    """
    try:
        limit = parity_limit(precision)
    except HwnasError:  # the metadata's gate names it
        limit = parity_limit("int8_static")
    if recorded is None or precision == "fp32":
        return limit
    return min(limit, max(_TIMES_RECORDED * recorded, _LEAST_SHARE * limit))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """What a file answered to each batch size: logits, or why it could not."""

    squares: Squares
    logits: dict[int, Logits]
    faults: dict[int, str]


def answers(runner: Runner, feeding: Feeding, squares: Squares, sizes: Sequence[int]) -> Outputs:
    """Run batches of `sizes` made of the given squares, repeated as needed."""
    logits: dict[int, Logits] = {}
    faults: dict[int, str] = {}
    for size in sizes:
        try:
            found = runner.run(feeding.feed(np.resize(squares, (size, *squares.shape[1:]))))
        except HwnasError as error:
            faults[size] = error.message
            continue
        if found.ndim != 2 or len(found) != size or found.size == 0:
            faults[size] = f"a batch of {size} gives an output of shape {list(found.shape)}"
        else:
            logits[size] = found
    return Outputs(squares=squares, logits=logits, faults=faults)


def noise(feeding: Feeding, count: int) -> Squares:
    """Return squares of noise for a file that has no stored images."""
    side = feeding.preprocessing.crop
    depth = len(feeding.preprocessing.mean)
    return (fixed_input((count, side, side, depth)) * 255).astype(np.uint8)


def batch_gate(runner: Runner, outputs: Outputs, *, said: str, tolerance: float) -> Gate:
    """Return whether every batch size works and gives each image the same answer.

    `said` is what the file says of it: "any", a number, or "" if it says nothing.
    """
    name = "batch"
    baked = "any" if runner.batch is None else str(runner.batch)
    if said and said != baked:
        return failed(
            name,
            f"a batch size of {baked} is baked in: the file says {said} and has {runner.input}",
            wanted=said,
            found=baked,
            hint="export it with a free batch dimension",
        )
    wanted = said or baked
    if outputs.faults:
        return _refused(outputs, wanted)
    if broken := _not_numbers(outputs):
        return failed(name, broken, wanted=wanted, found="no numbers", hint=_ANEW)
    first = min(outputs.logits)
    apart = {size: _apart(found, outputs.logits[first]) for size, found in outputs.logits.items()}
    worst = max(apart, key=lambda size: apart[size])
    if not apart[worst] <= tolerance:
        return failed(
            name,
            f"an image's logits depend on the batch it is in: with {worst} images they differ by "
            f"{apart[worst]:.2g} of the largest from those with {first}",
            wanted=wanted,
            found=f"{apart[worst]:.2g} apart",
        )
    unsaid = "" if said or runner.batch is None else (
        f"a batch size of {baked} is baked in; the file does not say whether that is meant"
    )  # fmt: skip
    return passed(name, " ".join(map(str, outputs.logits)), wanted=wanted, reason=unsaid)


def _not_numbers(outputs: Outputs) -> str:
    """Return what is said of logits that are NaN or infinite, "" if none are."""
    for size, found in outputs.logits.items():
        bad = int(np.count_nonzero(~np.isfinite(found).all(axis=1)))
        if bad:
            return f"at batch {size} the logits of {bad} of {size} images are NaN or infinite"
    return ""


def _refused(outputs: Outputs, wanted: str) -> Gate:
    size, reason = next(iter(outputs.faults.items()))
    works = ", ".join(map(str, outputs.logits)) or "none"
    only = next(iter(outputs.logits)) if len(outputs.logits) == 1 else None
    baked = f"a batch size of {only} is baked in; " if only is not None else ""
    return failed(
        "batch",
        f"{baked}a batch of {size} fails ({reason}); sizes that work: {works}",
        wanted=wanted,
        found=works,
        hint="export it with a free batch dimension",
    )


def _apart(found: Logits, one: Logits) -> float:
    """Return how far the first rows are from those of the smallest batch."""
    return relative_difference(found[: len(one)], one)


def parity_gate(
    runner: Runner,
    outputs: Outputs,
    reference: Reference,
    *,
    tolerance: float,
    others: Others = (),
) -> tuple[Gate, dict[str, float]]:
    """Return whether the logits are torch's, and by batch size how far they are from them.

    `others` are preprocessings to try if they are not, each with what to say if that helps.
    """
    apart = {
        size: relative_difference(found, expected_logits(reference, size))
        for size, found in outputs.logits.items()
    }
    figures = {str(size): value for size, value in apart.items()}
    if not apart:
        return failed("parity", "no batch size could be run"), figures
    if broken := _not_numbers(outputs):
        return failed("parity", broken, found="no numbers", hint=_ANEW), figures
    worst = max(apart, key=lambda size: apart[size])
    wanted, found = f"<= {tolerance:.2g}", f"{apart[worst]:.2g}"
    if apart[worst] <= tolerance:
        return passed("parity", found, wanted=wanted), figures
    reason = (
        f"at batch {worst} the logits differ from torch's by {found} of the largest "
        f"(accepted: {tolerance:.2g}); {_cause(runner, reference, tolerance, others)}"
    )
    return failed("parity", reason, wanted=wanted, found=found, hint=_ANEW), figures


def expected_logits(reference: Reference, size: int) -> Logits:
    """Return torch's logits for a batch of `size`, made of the `answered` images, repeated."""
    if size in reference.logits:
        return reference.logits[size]
    most = reference.logits[max(reference.logits)]
    return np.resize(most, (size, most.shape[1]))


def answered(reference: Reference) -> Squares:
    """Return the stored images that torch's logits belong to."""
    return reference.images[: max(reference.logits)]


def _cause(runner: Runner, reference: Reference, tolerance: float, others: Others) -> str:
    size = runner.batch or 1
    for text, feeding in others:
        found = answers(runner, feeding, answered(reference), [size]).logits.get(size)
        if found is None:
            continue
        if relative_difference(found, expected_logits(reference, size)) <= tolerance:
            return text
    return "weights or operators of the file are not those of the module"


def feeding_of_manifest(feeding: Feeding, manifest: Manifest) -> Feeding:
    """Return the feeding with the preprocessing that the manifest states."""
    return replace(feeding, preprocessing=manifest.preprocessing)
