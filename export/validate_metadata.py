"""Whether what a file says about itself is true of its graph, and how it is to be fed."""

from collections.abc import Iterator, Sequence
from dataclasses import fields

from hwnas.errors import HwnasError, UsageError
from hwnas.export.artifact import Manifest
from hwnas.export.checks import parity_limit
from hwnas.export.metadata import ModelMetadata, metadata_from
from hwnas.export.validate_file import FileFacts
from hwnas.export.validate_run import Feeding, Flags, Runner, feeding_from, problem_of_feeding
from hwnas.export.validate_types import Gate, failed, listed, passed, skipped
from hwnas.io.preprocessing import Preprocessing

_SCALED_BY_INPUT = {"MatMulInteger", "ConvInteger", "DynamicQuantizeLinear"}
_OF_8_BITS = _SCALED_BY_INPUT | {
    "QLinearMatMul", "QLinearConv", "QuantizeLinear", "DequantizeLinear"
}  # fmt: skip


def metadata_gate(
    facts: FileFacts, runner: Runner, manifest: Manifest | None, *, origin: str
) -> tuple[Gate, ModelMetadata | None]:
    """Return whether the metadata fits the graph and the manifest, and the metadata."""
    name = "metadata"
    try:
        found = metadata_from(facts.texts, origin)
    except HwnasError as error:
        return failed(name, error.message, hint="export it anew"), None
    if found is None:
        return skipped(name, "the file carries none of hwnas"), None
    problems = [
        *_against_graph(found, facts, runner),
        *(_against_manifest(found, manifest) if manifest is not None else ()),
    ]
    if problems:
        return failed(name, "; ".join(problems), hint="export it anew"), found
    size = found.preprocessing.size
    told = f"{found.precision}, {size} px, {len(found.classes)} classes, {found.input}"
    return passed(name, told), found


def precision_of(facts: FileFacts) -> str:
    """Return the precision that a file's operators show, for one that does not say it."""
    kinds = {kind for _, kind in facts.operators}
    if kinds & _SCALED_BY_INPUT:
        return "int8_dynamic"
    return "int8_static" if kinds & _OF_8_BITS else "fp32"


def _against_graph(found: ModelMetadata, facts: FileFacts, runner: Runner) -> Iterator[str]:
    if runner.classes is not None and runner.classes != len(found.classes):
        yield (
            f"it names {len(found.classes)} classes, the graph answers with {runner.classes} logits"
        )
    repeated = sorted({name for name in found.classes if found.classes.count(name) > 1})
    if repeated:
        yield f"classes are named twice: {listed(repeated)}"
    if found.opset != facts.opset:
        yield f"it says opset {found.opset}, the file has {facts.opset}"
    problem = problem_of_feeding(
        runner, Feeding(preprocessing=found.preprocessing, format=found.input)
    )
    if problem is not None:
        yield problem
    try:
        parity_limit(found.precision)
    except HwnasError as error:
        yield error.message
    eight_bits = precision_of(facts) != "fp32"
    if eight_bits != found.precision.startswith("int8"):
        kinds = "has" if eight_bits else "has no"
        yield f"it says {found.precision}, and the graph {kinds} operators of 8 bits"


def _against_manifest(found: ModelMetadata, manifest: Manifest) -> Iterator[str]:
    yield from differing(found.preprocessing, manifest.preprocessing)
    if found.classes != manifest.classes:
        yield _other_classes(found.classes, manifest.classes)
    if found.digest != manifest.digest:
        yield (f"it is architecture {found.digest[:12]}, the manifest's is {manifest.digest[:12]}")


def differing(found: Preprocessing, expected: Preprocessing) -> Iterator[str]:
    """Yield in what a preprocessing is not that of the manifest."""
    for field in fields(Preprocessing):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if ours != theirs:
            yield f"{field.name} is {ours}, the manifest says {theirs}"


def _other_classes(found: Sequence[str], expected: Sequence[str]) -> str:
    if sorted(found) == sorted(expected):
        moved = [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]
        return (
            "its classes are in another order than the manifest's: "
            f"{moved[0][0]!r} where {moved[0][1]!r} belongs"
        )
    wrong = [name for name in found if name not in set(expected)]
    lost = [name for name in expected if name not in set(found)]
    return (
        f"its classes are not the manifest's: it has {listed(wrong) or 'no others'}, "
        f"lacks {listed(lost) or 'none'}"
    )


def chosen_feeding(
    found: ModelMetadata | None, runner: Runner, flags: Flags, *, needed: bool
) -> Feeding | None:
    """Return how to feed the model: as it says, else as the flags say.

    None if nobody says and it is not `needed`, or if the file says what does not fit its graph, as
    the gate of its metadata tells. Raises UsageError if both say, or if the images of the flags do
    not fit.
    """
    if found is not None:
        if flags.given:
            raise UsageError(
                "the file carries its preprocessing; "
                f"{', '.join(_option(name) for name in flags.given)} would contradict it",
                "leave these options out",
            )
        stated = Feeding(preprocessing=found.preprocessing, format=found.input)
        return None if problem_of_feeding(runner, stated) is not None else stated
    if not (needed or flags.given):
        return None
    feeding = feeding_from(flags, runner.input)
    problem = problem_of_feeding(runner, feeding)
    if problem is not None:
        raise UsageError(problem, "see --size, --channels and --input-format")
    return feeding


def _option(name: str) -> str:
    return "--input-format" if name == "format" else f"--{name}"
