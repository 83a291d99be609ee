"""Keeping the promises of a search: its best subnets are built, measured here and evaluated.

Each is cut out of the supernet, its batch norms calibrated, written as ONNX in the precision that
was promised, timed on this machine under the guarded protocol, and evaluated on the held-out part.
Everything measured is on disk at once (`RUN/search/measured.jsonl`, `RUN/accuracies.jsonl`), so
that a verification that was killed goes on where it was.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hwnas.errors import HwnasError, UsageError
from hwnas.pipeline.accuracies import CONFIG_FILE, Work, measure_archs
from hwnas.pipeline.contenders import contenders
from hwnas.pipeline.deployments import Deployment
from hwnas.pipeline.fronts import (
    FOLDER,
    Answer,
    Choice,
    Front,
    Verified,
    add_verified,
    key_of,
    write_front,
)
from hwnas.pipeline.predictors import ACCURACY
from hwnas.pipeline.rundir import Run, latest_step, load_supernet
from hwnas.pipeline.searching import Asked, Found
from hwnas.profiling.driver import profile
from hwnas.profiling.jobs import Job, Options, Progress
from hwnas.profiling.machine import device as this_device
from hwnas.profiling.paces import paces_here, profiles_here
from hwnas.profiling.profiles import read_profile
from hwnas.profiling.records import ArchJson, Record, Settings
from hwnas.profiling.sampling import arch_document
from hwnas.search import Constraint
from hwnas.search.constraints import upper_limits
from hwnas.spaces import Arch

if TYPE_CHECKING:
    from torch import Tensor

    from hwnas.supernet import Supernet

MEASURED_FILE = "measured.jsonl"
_AT_ONCE = 16  # images that a quantised model is calibrated on at a time
ROUNDS = 3  # batches that are tried where none of the first keeps the budget


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """How many of each answer are verified, and how they are measured."""

    count: int
    options: Options = field(default_factory=Options)
    work: Work = field(default_factory=Work)
    watch: Callable[[Progress], None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The front with answers that hold as measured, and what was measured, an entry per line.

    `obstacle`: what ended it before everything was measured.
    """

    front: Front
    entries: tuple[Verified, ...]
    obstacle: HwnasError | None = None


def device_here(found: Found) -> str | None:
    """Return the device of a search that is this machine, None if none is."""
    here = this_device().fingerprint
    for name, ways in found.prepared.field.devices.items():
        if ways[0].fingerprint == here:
            return name
    return None


def verify(found: Found, effort: Effort) -> Verification:
    """Return what becomes of the answers of a search when its best subnets are measured.

    Where none of the first `count` keeps the budget, the next ones are tried; subnets on record
    as more accurate are measured, too. The front of the run then recommends what keeps its budget
    as measured. Where it cannot go on, what is measured by then counts; where that is nothing, it
    raises: UnreliableError on a busy machine.
    """
    device = device_here(found)
    if device is None:
        raise UsageError(
            f"this machine ({this_device().name}) is none that was searched for: "
            f"{', '.join(found.prepared.field.devices) or 'no device'}",
            "leave out --verify, or verify there",
        )
    session = _Session(found, device, effort)
    front, entries = found.front, list[Verified]()
    for number, asked in enumerate(found.prepared.asked):
        tries, obstacle = _Tries(), None
        try:
            session.verify(front.answers[number], asked, tries)
        except HwnasError as error:
            obstacle = error
        add_verified(found.prepared.run, tries.entries)
        front = _with_ranked(front, number, tries, obstacle)
        write_front(found.prepared.run, front)
        entries += tries.entries
        if obstacle is not None:
            if not entries:
                raise obstacle
            return Verification(front=front, entries=tuple(entries), obstacle=obstacle)
    return Verification(front=front, entries=tuple(entries))


@dataclass(kw_only=True, slots=True)
class _Tries:
    """What was measured for an answer so far. `known`: those tried for earlier accuracies."""

    entries: list[Verified] = field(default_factory=list)
    known: list[Choice] = field(default_factory=list)


class _Session:
    """Builds and measures choices of a front; what is measured already is looked up."""

    def __init__(self, found: Found, device: str, effort: Effort) -> None:
        self._found, self._device, self._effort = found, device, effort
        self._run = found.prepared.run
        self._path = self._run.folder / FOLDER / MEASURED_FILE
        self._builder = _Builder(self._run, effort.work)

    def verify(self, answer: Answer, asked: Asked, tries: _Tries) -> None:
        """Measure the best of an answer, and what is on record as better; add it as it comes."""
        count, choices = self._effort.count, self._found.front.choices
        for number in range(ROUNDS):
            chosen = answer.listed[number * count : (number + 1) * count]
            tries.entries += self._entries([choices[index] for index in chosen], asked)
            if not chosen or any(entry.met for entry in tries.entries):
                break
        if answer.budget:
            self._contend(asked, tries)

    def _contend(self, asked: Asked, tries: _Tries) -> None:
        """Measure subnets on record as more accurate than those tried.

        The most accurate come first, until one keeps the budget: no other can be better.
        """
        kept = [entry.measured[ACCURACY] for entry in tries.entries if entry.met]
        if not kept:
            return
        prepared = self._found.prepared
        here = {prepared.field.label(name, self._device) for name in prepared.field.wanted}
        better = contenders(prepared, asked.constraints, above=max(kept), measured=here)
        seen = {key_of(entry) for entry in tries.entries}
        left = [choice for choice in better if key_of(choice) not in seen]
        for start in range(0, len(left), self._effort.count):
            batch = left[start : start + self._effort.count]
            entries = self._entries(batch, asked)
            tries.entries += entries
            tries.known += batch
            if any(entry.met for entry in entries):
                break

    def _entries(self, choices: Sequence[Choice], asked: Asked) -> list[Verified]:
        if not choices:
            return []
        base = self._found.prepared.field.base
        archs = [base.arch(choice.genes) for choice in choices]
        jobs = [self._job(choice, arch) for choice, arch in zip(choices, archs, strict=True)]
        records = self._measured(jobs)
        accuracies = measure_archs(self._run, archs, work=self._effort.work)
        step = latest_step(self._run)
        entries = []
        for choice, arch, job in zip(choices, archs, jobs, strict=True):
            record = records[job.key]
            values = self._values(arch, choice, record)
            values[ACCURACY] = accuracies[arch].accuracy
            entries.append(
                Verified(
                    digest=choice.digest,
                    budget=asked.label,
                    predicted=choice.predicted,
                    measured=values,
                    settings=choice.settings,
                    met=record.latency is not None and _keeps(choice, values, asked.constraints),
                    device=self._device,
                    grade=record.grade,
                    step=step,
                    limits=upper_limits(asked.constraints),
                )
            )
        return entries

    def _way(self, choice: Choice) -> Deployment:
        ways = self._found.prepared.field.devices[self._device]
        settings = choice.settings or {}
        mine = settings if len(self._found.prepared.field.devices) == 1 else settings[self._device]
        return next(way for way in ways if way.described == mine)

    def _job(self, choice: Choice, arch: Arch) -> Job:
        way = self._way(choice)
        document = arch_document(self._found.prepared.field.base, arch)
        return Job(arch=document, backend=way.backend, settings=way.settings)

    def _measured(self, jobs: list[Job]) -> Mapping[tuple[str, str, str], Record]:
        from hwnas.pipeline.measuring import plain_module

        wanted = self._found.prepared.field.wanted
        options = replace(
            self._effort.options,
            memory="memory" in wanted,
            device_name=self._device,
            retry_failures=True,
            again="D",  # of two records the better counts
            paces=paces_here(self._run.profiles),
            beside=profiles_here(self._run.profiles),
            in_proportion=False,
        )
        profile(
            jobs,
            provide=self._builder,
            provide_module=plain_module,
            output=self._path,
            options=options,
            progress=self._effort.watch,
        )
        return read_profile(self._path).records

    def _values(self, arch: Arch, choice: Choice, record: Record) -> dict[str, float]:
        """Return what was measured, named and in the units of the front."""
        several = len(self._found.prepared.field.devices) > 1
        suffix = f":{self._device}" if several else ""
        found: dict[str, float | None] = {
            "latency": record.latency.median_ms if record.latency else None,
            "throughput": record.throughput_per_s,
            "memory": record.memory.peak_mb * 2.0**20 if record.memory else None,
            "energy": record.energy_mj,
        }
        values = {
            name + suffix: value
            for name, value in found.items()
            if value is not None and name in self._found.prepared.field.wanted
        }
        if "size" in choice.costs:
            way = self._way(choice)
            values["size"] = float(self._builder.size(arch, way.settings.precision))
        return values


def _keeps(choice: Choice, values: Mapping[str, float], constraints: Sequence[Constraint]) -> bool:
    """Return whether a choice keeps a budget; what was not measured is taken as predicted."""
    predicted = {name: estimate.mean for name, estimate in choice.predicted.items()}
    known = {**predicted, **choice.costs, **values}
    return all(c.least <= known[c.quantity] <= c.most for c in constraints)


def _with_ranked(front: Front, number: int, tries: _Tries, obstacle: HwnasError | None) -> Front:
    """Return the front with one answer ranked by what was measured for it."""
    answer = front.answers[number]
    if not tries.entries or not answer.budget:
        return front
    held = {key_of(choice) for choice in front.choices}
    choices = (*front.choices, *(choice for choice in tries.known if key_of(choice) not in held))
    places = {key_of(choice): place for place, choice in enumerate(choices)}
    answers = list(front.answers)
    answers[number] = _ranked(answer, tries, places, obstacle)
    return replace(front, choices=choices, answers=tuple(answers))


def _ranked(
    answer: Answer,
    tries: _Tries,
    places: Mapping[tuple[str, str], int],
    obstacle: HwnasError | None,
) -> Answer:
    """Return the answer that recommends the most accurate, as measured, that keeps its budget.

    `places`: of choices in the front. `obstacle`: what kept others from being measured.
    """
    tried, known = tries.entries, len(tries.known)
    kept = [entry for entry in tried if entry.met]
    if not kept:
        more = "more measurements for `hwnas fit` would help"
        return replace(
            answer,
            recommended=None,
            reason=f"none of the {len(tried)} best was within the budget when measured; "
            + (more if obstacle is None else f"no other was: {obstacle.message}"),
        )
    best = max(kept, key=lambda entry: entry.measured[ACCURACY])
    whole = len(kept) == len(tried)
    those = f"{len(tried)} verified" if whole else f"the {len(kept)} that keep the budget"
    rest = "all within the budget" if whole else f"of {len(tried)} verified"
    from_record = f"; {known} of these for accuracies measured earlier" if known else ""
    return replace(
        answer,
        recommended=places[key_of(best)],
        reason=f"the most accurate as measured of {those}, {rest}{from_record}",
    )


class _Builder:
    """Makes the ONNX files of subnets with the supernet's weights, for the profiler."""

    def __init__(self, run: Run, work: Work) -> None:
        self._run, self._work = run, work
        self._last: tuple[tuple[str, str], bytes] | None = None
        self._sizes: dict[tuple[str, str], int] = {}

    def __call__(self, document: ArchJson, settings: Settings) -> bytes | Path:
        """Return the file of an architecture."""
        arch = self._supernet.space.arch(document["genes"])
        return self._model(arch, settings.precision)

    def size(self, arch: Arch, precision: str) -> int:
        """Return the size of the file in bytes."""
        key = (arch.digest, precision)
        if key not in self._sizes:
            self._model(arch, precision)
        return self._sizes[key]

    @cached_property
    def _supernet(self) -> "Supernet":
        return load_supernet(self._run)

    @cached_property
    def _calibration(self) -> "list[Tensor]":
        from hwnas.pipeline.config import read_recipe
        from hwnas.training.data import load_data
        from hwnas.training.measure import calibration_images

        recipe = self._work.recipe or str(self._run.folder / CONFIG_FILE)
        if self._work.recipe is None and not (self._run.folder / CONFIG_FILE).is_file():
            raise HwnasError(
                f"{self._run.folder}: has no {CONFIG_FILE}, which says what data to verify on",
                "name a recipe with the data: --recipe my.toml",
            )
        settings = read_recipe(recipe)
        return calibration_images(load_data(settings.data), settings)

    def _model(self, arch: Arch, precision: str) -> bytes:
        key = (arch.digest, precision)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        from hwnas.export.graph import OPSET
        from hwnas.export.precisions import Form, build
        from hwnas.nets.network import fitted
        from hwnas.supernet import calibrate

        network = self._supernet.extract(arch).eval()
        calibrate(network, self._calibration)
        model = build(
            network,
            "fp32" if precision == "bf16" else precision,
            form=Form(opset=OPSET, batch=None, pixels=None),
            metadata={},
            calibration=lambda: (
                fitted(images[:_AT_ONCE], network.description).contiguous().numpy()
                for images in self._calibration
            ),
        )
        self._last, self._sizes[key] = (key, model), len(model)
        return model
