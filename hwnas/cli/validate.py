"""`hwnas validate`: the gate that an exported file passes before it is deployed."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hwnas.cli.output import Output, table, verb_options
from hwnas.cli.progress import ProgressLine
from hwnas.cli.values import SECONDS, Parsed, options
from hwnas.errors import GateError, HwnasError, UnreliableError, UsageError
from hwnas.io import units

if TYPE_CHECKING:
    from hwnas.export.validate_types import Gate, Verdict
    from hwnas.profiling.records import Pages

_FORMATS = ("float32-nchw", "uint8-nhwc", "float32-nhwc")


def _valued(kind: units.Kind) -> Parsed:
    return Parsed(lambda text: units.parse(text, kind))


def _share(text: str) -> float:
    value = units.parse(text, units.SHARE)
    if value > 1:
        raise UsageError(f"{text!r} is more than all; accepted: a share such as 0.9 or 90%")
    return value


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{text!r}; accepted: numbers such as 0.485,0.456,0.406") from error


_DATA = options(
    click.option("--data", metavar="DIR|NAME",
                 help="Images to count right answers on: a folder of class folders, or "
                 "the test part of fashion-mnist, cifar10, digits, or of a run."),
    click.option("--images", type=click.IntRange(min=1), metavar="N",
                 help="As many of them, spread over all."),
    click.option("--allow-missing-classes", is_flag=True,
                 help="Accept data that lacks some of the model's classes."),
)  # fmt: skip
_LIMITS = options(
    click.option("--max-latency", type=_valued(units.DURATION_MS), metavar="25ms",
                 help="Limit of the median latency."),
    click.option("--max-p99", type=_valued(units.DURATION_MS), metavar="30ms",
                 help="Limit of the 99th percentile."),
    click.option("--min-accuracy", type=Parsed(_share), metavar="0.9",
                 help="Least share of right answers."),
    click.option("--max-size", type=_valued(units.SIZE_BYTES), metavar="40MB",
                 help="Limit of the file's size."),
    click.option("--max-memory", type=_valued(units.SIZE_BYTES), metavar="300MB",
                 help="Limit of the peak memory of a fresh process."),
)  # fmt: skip
_RUNNING = options(
    click.option("--backend", default="onnxruntime", show_default=True, metavar="NAME",
                 help="Runtime to measure with."),
    click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
                 help="Threads of the runtime."),
    click.option("--batch", type=click.IntRange(min=1), metavar="N",
                 help="Images at once where latency is measured. [default: what the file is fixed "
                 "to, else 1]"),
    click.option("--pages", type=click.Choice(["default", "huge"]), default="default",
                 show_default=True, help="Pages of the memory where speed is measured."),
    click.option("--max-seconds", type=SECONDS, default="6", metavar="SECONDS",
                 show_default=True, help="Longest time to measure latency."),
    click.option("--no-speed", is_flag=True, help="Do not measure latency and memory."),
)  # fmt: skip
_FOREIGN = options(
    click.option("--size", type=click.IntRange(min=1), metavar="PIXELS",
                 help="Side of the input, for files that carry no metadata of hwnas."),
    click.option("--mean", type=Parsed(_numbers), metavar="M,..",
                 help="Likewise: mean per channel."),
    click.option("--std", type=Parsed(_numbers), metavar="S,..",
                 help="Likewise: standard deviation per channel."),
    click.option("--interpolation", type=click.Choice(["bicubic", "bilinear", "nearest"]),
                 help="Likewise: how images are scaled. [default: bicubic]"),
    click.option("--crop", type=Parsed(_share), metavar="0.875",
                 help="Likewise: share of the shorter side that is kept. [default: 1]"),
    click.option("--channels", type=click.Choice(["RGB", "L"]),
                 help="Likewise: colours. [default: by the input]"),
    click.option("--input-format", type=click.Choice(_FORMATS),
                 help="Likewise: type and order of the input. [default: by the input]"),
    click.option("--classes", "classes_file", metavar="FILE",
                 type=click.Path(exists=True, dir_okay=False, path_type=Path),
                 help="Likewise: names of the classes, one a line. "
                 "[default: names of the data's folders, where only one order of them is usual]"),
)  # fmt: skip
_REPORTS = options(
    click.option("--report", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.json",
                 help="Write what was found there."),
    click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.xml",
                 help="Write it there as JUnit XML, a test case per gate."),
)  # fmt: skip


@click.command()
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL.onnx|FOLDER")
@_DATA
@_LIMITS
@_RUNNING
@_FOREIGN
@_REPORTS
@verb_options
def validate(
    output: Output, *, model: Path, data: str | None, images: int | None,
    allow_missing_classes: bool, max_latency: float | None, max_p99: float | None,
    min_accuracy: float | None, max_size: float | None, max_memory: float | None, backend: str,
    threads: int, batch: int | None, pages: "Pages", max_seconds: float, no_speed: bool,
    size: int | None, mean: tuple[float, ...] | None, std: tuple[float, ...] | None,
    interpolation: str | None, crop: float | None, channels: str | None, input_format: str | None,
    classes_file: Path | None, report: Path | None, junit: Path | None,
) -> None:  # fmt: skip
    """Check an exported model: outputs, accuracy, latency, memory, size."""
    from hwnas.export.validate_model import validate as examine
    from hwnas.export.validate_run import Flags
    from hwnas.export.validate_types import Limits, Running

    verdict = examine(
        model,
        data=data,
        images=images,
        allow_missing_classes=allow_missing_classes,
        classes=None if classes_file is None else _lines(classes_file),
        limits=Limits(
            max_latency_ms=max_latency, max_p99_ms=max_p99, min_accuracy=min_accuracy,
            max_size_bytes=max_size, max_memory_bytes=max_memory,
        ),
        running=Running(
            backend=backend, threads=threads, batch=batch, pages=pages, seconds=max_seconds,
            measured=not no_speed,
        ),
        flags=Flags(
            size=size, mean=mean, std=std, interpolation=interpolation, crop=crop,
            channels=channels, format=_format(input_format),
        ),
        progress=_Counting(output),
    )  # fmt: skip
    _write(verdict, report=report, junit_path=junit)
    output.result(verdict.to_json(), _text(verdict))
    _conclude(verdict)


def _format(option: str | None) -> str | None:
    """Return a format as metadata spells it: `float32-nchw` is "float32 NCHW"."""
    if option is None:
        return None
    dtype, _, order = option.partition("-")
    return f"{dtype} {order.upper()}"


def _lines(path: Path) -> list[str]:
    try:
        return [
            line.strip()
            for line in path.read_text(encoding="utf-8-sig").splitlines()
            if line.strip()
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a text file of class names ({error})") from error


class _Counting:
    """Tells how many images have been counted."""

    def __init__(self, output: Output) -> None:
        self._line = ProgressLine(output)

    def __call__(self, done: int, total: int) -> None:
        self._line.show(f"accuracy: {done}/{total} images", last=done == total)


def _write(verdict: "Verdict", *, report: Path | None, junit_path: Path | None) -> None:
    from hwnas.export.validate_junit import junit
    from hwnas.export.validate_types import VERDICT_SCHEMA
    from hwnas.io import write_atomic, write_json

    if report is not None:
        write_json(report, VERDICT_SCHEMA, verdict.to_json())
    if junit_path is not None:
        write_atomic(junit_path, junit(verdict))


def _text(verdict: "Verdict") -> str:
    said = {"passed": "passed", "failed": "FAILED", "unsure": "too noisy to tell"}
    rows = [
        [gate.name, gate.state, gate.wanted or "-", gate.found or "-"] for gate in verdict.gates
    ]
    notes = [
        f"{gate.name}: {gate.reason}"
        for gate in verdict.gates
        if gate.reason and gate.state not in ("failed", "unsure")
    ]
    lines = [
        f"{verdict.file}: {said[verdict.state]}",
        "",
        table(["gate", "state", "wanted", "found"], rows, right=()),
    ]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _conclude(verdict: "Verdict") -> None:
    kinds: dict[str, type[HwnasError]] = {"failed": GateError, "unsure": UnreliableError}
    if verdict.state not in kinds:
        return
    at_fault = verdict.of(verdict.state)
    raise kinds[verdict.state](
        f"{verdict.file}: {'; '.join(map(_sentence, at_fault))}", at_fault[0].hint
    )


def _sentence(gate: "Gate") -> str:
    return f"{gate.name}: {gate.reason or gate.found}"
