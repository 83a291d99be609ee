"""`validate(path, ...)`: everything that can be found out about a model file without torch."""

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hwnas.errors import HwnasError, UnreliableError, UsageError
from hwnas.export.artifact import Manifest, ModelEntry
from hwnas.export.metadata import ModelMetadata
from hwnas.export.reference import Reference, read_reference
from hwnas.export.validate_accuracy import (
    Progress,
    accuracy_figures,
    accuracy_gate,
    check_classes,
    count_right,
    images_gate,
    matching,
    open_examples,
)
from hwnas.export.validate_file import (
    FileFacts,
    Located,
    external_gate,
    hashes_gate,
    locate,
    operators_gate,
    read_facts,
)
from hwnas.export.validate_metadata import chosen_feeding, metadata_gate, precision_of
from hwnas.export.validate_parity import (
    SIZES,
    answered,
    answers,
    batch_gate,
    feeding_of_manifest,
    noise,
    parity_gate,
    tolerance_for,
)
from hwnas.export.validate_promises import exported_pace, promised_accuracy, promised_latency
from hwnas.export.validate_run import Feeding, Flags, Runner, open_runner, problem_of_ports
from hwnas.export.validate_speed import (
    SPEED_GATES,
    measure_file,
    missed,
    shortfall,
    size_gate,
    speed_figures,
    speed_gates,
    unsure_gates,
)
from hwnas.export.validate_types import (
    Examples,
    Gate,
    Limits,
    Running,
    Verdict,
    failed,
    passed,
    skipped,
)
from hwnas.profiling.backends import BACKENDS, available, backend
from hwnas.profiling.paces import Pace
from hwnas.profiling.records import Record

# Noise only ever adds time: who misses a limit is measured again, and the best counts.
_MORE_TRIES = 2


@dataclass(kw_only=True, slots=True)
class _Findings:
    """Gates and figures as they come; each gate gets the time since the one before."""

    gates: list[Gate] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    since: float = field(default_factory=time.perf_counter)

    def add(self, *gates: Gate) -> None:
        now = time.perf_counter()
        spent, self.since = (now - self.since) / max(len(gates), 1), now
        self.gates += [replace(gate, seconds=round(spent, 4)) for gate in gates]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sound:
    """A file that can be opened, with what is known about it."""

    located: Located
    facts: FileFacts
    runner: Runner
    manifest: Manifest | None
    metadata: ModelMetadata | None

    @property
    def entry(self) -> ModelEntry | None:
        """What the manifest says of this file."""
        models = self.manifest.models if self.manifest is not None else ()
        return next((entry for entry in models if entry.file == self.located.model.name), None)

    @property
    def precision(self) -> str:
        """The precision that the file says it has, or that its operators show."""
        stated = self.metadata
        return stated.precision if stated is not None else precision_of(self.facts)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """What the caller wants to know."""

    data: Examples | Path | str | None
    limits: Limits
    running: Running
    flags: Flags
    classes: tuple[str, ...] | None
    images: int | None
    allow_missing_classes: bool
    progress: Progress | None


def validate(
    path: Path | str,
    *,
    data: Examples | Path | str | None = None,
    limits: Limits = Limits(),  # noqa: B008 - a frozen value
    running: Running = Running(),  # noqa: B008 - a frozen value
    flags: Flags = Flags(),  # noqa: B008 - a frozen value
    classes: Sequence[str] | None = None,
    images: int | None = None,
    allow_missing_classes: bool = False,
    progress: Progress | None = None,
) -> Verdict:
    """Return what is found about the ONNX file at `path`, or about the model in that folder.

    `data` are images to count right answers on: a folder of class folders, or a data set by name;
    `images` bounds how many. `flags` and `classes` describe a file that carries no metadata of
    ours. A file that is damaged or wrong gives failed gates; UsageError is raised for requests
    that make no sense, such as a folder that is not there.
    """
    asked = _Asked(
        data=data,
        limits=limits,
        running=running,
        flags=flags,
        classes=None if classes is None else tuple(classes),
        images=images,
        allow_missing_classes=allow_missing_classes,
        progress=progress,
    )
    _check(asked)
    located = locate(path)
    findings = _Findings()
    sound = _open(findings, located, asked)
    if sound is not None:
        _examine(findings, sound, asked)
    _skip_the_rest(findings, asked)
    return Verdict(
        file=str(located.model),
        sha256=findings.figures.get("file", {}).get("sha256"),
        gates=tuple(findings.gates),
        figures=findings.figures,
        versions=_versions(),
        created=time.time(),
    )


def _check(asked: _Asked) -> None:
    """Raise UsageError for requests that contradict themselves, before anything is run."""
    if asked.limits.min_accuracy is not None and asked.data is None:
        raise UsageError("an accuracy is asked for, and no images to count it on", "add --data DIR")
    if asked.limits.of_speed and not asked.running.measured:
        raise UsageError(
            "a latency or memory is asked for, and nothing may be measured", "leave --no-speed out"
        )
    if asked.classes is not None:
        check_classes(asked.classes)
    if backend(asked.running.backend).takes != "onnx":
        accepted = ", ".join(name for name in available() if BACKENDS[name].takes == "onnx")
        raise UsageError(f"backend {asked.running.backend!r} runs no files; accepted: {accepted}")


def _open(findings: _Findings, located: Located, asked: _Asked) -> _Sound | None:
    """Look at the bytes, then open the file; None if there is nothing to examine further."""
    try:
        facts = read_facts(located.model)
    except HwnasError as error:
        findings.add(failed("file", error.message, hint=error.hint))
        return None
    external, elsewhere = external_gate(located.model)
    operators = operators_gate(facts)
    hashes, manifest = hashes_gate(located, foreign=facts.foreign)
    size = facts.size_bytes + elsewhere
    findings.figures["file"] = {
        "sha256": facts.sha256,
        "size_bytes": size,
        "opset": facts.opset,
        "nodes": sum(facts.operators.values()),
    }
    # Whoever opens a model opens the files that it names: not before they are known.
    runner = None
    if "failed" not in (external.state, operators.state):
        runner = _load(findings, located.model, asked.running)
    findings.add(external, operators, hashes, size_gate("size", size, asked.limits.max_size_bytes))
    if runner is None:
        return None
    about, metadata = metadata_gate(facts, runner, manifest, origin=located.model.name)
    findings.add(about)
    return _Sound(located=located, facts=facts, runner=runner, manifest=manifest, metadata=metadata)


def _load(findings: _Findings, model: Path, running: Running) -> Runner | None:
    try:
        runner = open_runner(model, backend=running.backend, threads=running.threads)
    except HwnasError as error:
        findings.add(failed("file", error.message, hint="export it anew"))
        return None
    problem = problem_of_ports(runner)
    if problem is not None:
        findings.add(failed("file", problem, hint="export it with one input and one output"))
        return None
    findings.add(passed("file", f"{runner.input} to {runner.outputs[0]}"))
    return runner


def _examine(findings: _Findings, sound: _Sound, asked: _Asked) -> None:
    wanted, fixed = asked.running.batch, sound.runner.batch
    if wanted is not None and fixed is not None and wanted != fixed:
        raise UsageError(
            f"--batch is {wanted}, and {sound.located.model} is fixed to batches of {fixed}",
            "leave --batch out, or export it with a free batch dimension",
        )
    counted, feeding = asked.data is not None, None
    if sound.metadata is not None or sound.facts.foreign:  # else nobody can read what it says
        needed = counted or (asked.limits.of_speed and sound.runner.input.free)
        feeding = chosen_feeding(sound.metadata, sound.runner, asked.flags, needed=needed)
    logits = None if feeding is None else _outputs(findings, sound, feeding)
    if counted and feeding is not None and logits is not None:
        _accuracy(findings, sound, feeding, asked, logits=logits)
    if asked.running.measured:
        _speed(findings, sound, feeding, asked)


def _outputs(findings: _Findings, sound: _Sound, feeding: Feeding) -> int | None:
    """Add what the file answers at several batch sizes; return how many logits an image gets.

    None if it does not answer at all.
    """
    runner, reference = sound.runner, _reference(findings, sound, feeding)
    squares = noise(feeding, 2) if reference is None else answered(reference)
    sizes = SIZES if runner.batch is None else (runner.batch,)
    recorded = sound.entry.difference if sound.entry is not None else None
    tolerance = tolerance_for(sound.precision, recorded)
    outputs = answers(runner, feeding, squares, sizes)
    said = "" if sound.metadata is None else str(sound.metadata.batch or "any")
    findings.add(batch_gate(runner, outputs, said=said, tolerance=tolerance))
    if reference is not None:
        others = _other_feedings(sound, feeding)
        gate, apart = parity_gate(runner, outputs, reference, tolerance=tolerance, others=others)
        findings.add(gate)
        findings.figures["parity"] = {"tolerance": tolerance, "difference": apart}
    return next((found.shape[1] for found in outputs.logits.values()), None)


def _reference(findings: _Findings, sound: _Sound, feeding: Feeding) -> Reference | None:
    """Return the stored outputs; a gate says why if there are none that fit."""
    path = sound.located.reference
    if path is None:
        findings.add(skipped("parity", f"no stored outputs of torch beside {sound.located.model}"))
        return None
    try:
        reference = read_reference(path)
    except HwnasError as error:
        findings.add(failed("parity", error.message, hint="export it anew"))
        return None
    expected = (feeding.preprocessing.crop,) * 2 + (len(feeding.preprocessing.mean),)
    if reference.images.shape[1:] != expected:
        found = reference.images.shape[1:]
        reason = f"the file cuts squares of shape {expected}, the stored images have {found}"
        findings.add(failed("parity", reason, hint="export it anew"))
        return None
    return reference


def _other_feedings(sound: _Sound, feeding: Feeding) -> list[tuple[str, Feeding]]:
    if sound.manifest is None or sound.manifest.preprocessing == feeding.preprocessing:
        return []
    text = "with the preprocessing of the manifest they agree: that of the file is wrong"
    return [(text, feeding_of_manifest(feeding, sound.manifest))]


def _accuracy(
    findings: _Findings, sound: _Sound, feeding: Feeding, asked: _Asked, *, logits: int
) -> None:
    assert asked.data is not None
    if sound.metadata is not None and asked.classes is not None:
        raise UsageError("the file carries its classes", "leave --classes out")
    classes = sound.metadata.classes if sound.metadata is not None else asked.classes
    examples = asked.data
    if not isinstance(examples, Examples):
        channels = feeding.preprocessing.channels
        examples = open_examples(examples, channels=channels, in_order=classes is None)
    gate, numbers = matching(
        examples,
        examples.classes if classes is None else classes,
        logits=logits,
        allow_missing=asked.allow_missing_classes,
    )
    findings.add(gate)
    if numbers is None:
        return
    counted = count_right(
        sound.runner, feeding, examples, numbers, limit=asked.images, progress=asked.progress
    )
    unreadable = images_gate(counted)
    if unreadable is not None:
        findings.add(unreadable)
    findings.add(accuracy_gate(counted, asked.limits.min_accuracy))
    findings.figures["accuracy"] = accuracy_figures(counted, examples.name)
    if sound.entry is not None and sound.manifest is not None and counted.seen:
        findings.add(*promised_accuracy(sound.manifest.promised, sound.entry, counted))


def _speed(findings: _Findings, sound: _Sound, feeding: Feeding | None, asked: _Asked) -> None:
    from hwnas.profiling.machine import device

    if feeding is None and sound.runner.input.free:
        reason = f"input {sound.runner.input} does not say its size, nor do --size, --mean, --std"
        findings.add(*(skipped(name, reason) for name in SPEED_GATES))
        return
    here = device()
    then = exported_pace(sound.entry, here.fingerprint) if sound.entry is not None else None
    try:
        record, gates = _measured(sound, feeding, asked, then)
    except UnreliableError as error:
        findings.add(*unsure_gates(error.message, asked.limits))
        return
    for _ in range(_MORE_TRIES):
        if record.failure is not None or not missed(gates):
            break
        try:
            again = _measured(sound, feeding, asked, then)
        except UnreliableError:  # what was measured before counts
            break
        record, gates = min((record, gates), again, key=shortfall)
    findings.add(*gates)
    findings.figures["speed"] = {"device": here.name, **speed_figures(record)}


def _measured(
    sound: _Sound, feeding: Feeding | None, asked: _Asked, then: Pace | None
) -> tuple[Record, list[Gate]]:
    from hwnas.profiling.machine import device

    record = measure_file(
        sound.located.model,
        running=asked.running,
        precision=sound.precision,
        batch=sound.runner.batch or asked.running.batch or 1,
        sample=() if feeding is None else feeding.shape,
        paces=() if then is None else (then,),
    )
    gates = speed_gates(record, asked.limits)
    if sound.entry is not None and sound.manifest is not None:
        promised = sound.manifest.promised
        gates += promised_latency(promised, sound.entry, record, device=device(), then=then)
    return record, gates


def _skip_the_rest(findings: _Findings, asked: _Asked) -> None:
    """Add a gate for everything that was asked for and could not be looked at."""
    limits = asked.limits
    wanted = {
        "accuracy": asked.data is not None or limits.min_accuracy is not None,
        "p50": limits.max_latency_ms is not None,
        "p99": limits.max_p99_ms is not None,
        "memory": limits.max_memory_bytes is not None,
        "size": limits.max_size_bytes is not None,
    }
    there = {gate.name for gate in findings.gates}
    because = [gate.name for gate in findings.gates if gate.state == "failed"]
    for name, asked_for in wanted.items():
        if asked_for and name not in there:
            assert because, f"{name} was asked for and not looked at"
            findings.add(skipped(name, f"not looked at: {', '.join(because)} failed"))


def _versions() -> dict[str, str]:
    import onnxruntime

    import hwnas

    return {
        "hwnas": hwnas.__version__,
        "onnxruntime": str(onnxruntime.__version__),
        "python": platform.python_version(),
    }
