"""How well a latency repeats: the same models measured in several separate processes.

Prints for each condition (pages of the memory; the best scheduling privilege and none; an idle
machine and a load generator on another core) the spread of the median between processes, as the
standard deviation over the mean (typical and worst model; relative: typical after dividing each
process by what is common to its models), and where the time went: seconds per architecture,
building excluded and peak memory, too, unless --memory; measurements per architecture (others are
made once more), runs that count of each, and runs that were left out because others used the
memory. With --beside-first the processes know a profile that was made before them, as by
`hwnas profile --beside`.

    python -m benchmarks.repeatability                 stacks of convolutions, 1 to 20 ms
    python -m benchmarks.repeatability nasvit.pack     models of a pack
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import product
from pathlib import Path

from hwnas.profiling import machine
from hwnas.profiling.driver import Options, Provide, grid, profile
from hwnas.profiling.measure import Plan
from hwnas.profiling.paces import paces_here, profiles_here
from hwnas.profiling.packs import PackProvider, read_pack
from hwnas.profiling.privilege import available_privilege
from hwnas.profiling.profiles import read_profile
from hwnas.profiling.records import (
    PAGES,
    ArchJson,
    Pages,
    Record,
    Settings,
    arch_digest,
    one_of_pages,
)
from hwnas.testing.onnx_models import conv_stack

# Ends with its parent, however that ends.
LOAD = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100000))"


def stacks(count: int) -> list[dict[str, object]]:
    """Return descriptions of stacks of convolutions between about 1 and 20 ms."""
    widths = [round(64 * (4.2 ** (i / max(count - 1, 1))) / 8) * 8 for i in range(count)]
    return [
        {"space": "stack", "genes": {"width": width}, "digest": f"{i:02d}{width:062d}"}
        for i, width in enumerate(widths)
    ]


def build_stack(arch: ArchJson, settings: Settings) -> bytes:
    """Return the model of a description."""
    return conv_stack(width=arch["genes"]["width"], depth=6, size=28)


def chosen(archs: Sequence[ArchJson], count: int) -> list[ArchJson]:
    """Return `count` of the architectures, evenly spread."""
    count = min(count, len(archs))
    return [archs[i * len(archs) // count] for i in range(count)]


def models(pack: Path | None, count: int) -> tuple[list[ArchJson], Provide]:
    """Return the architectures and what makes their models."""
    if pack is None:
        return list(stacks(count)), build_stack
    opened = read_pack(pack)
    return chosen(opened.archs(), count), PackProvider(opened)


@contextmanager
def load_generators(count: int) -> Iterator[None]:
    """Keep `count` cores busy, in a session of their own as another user's work would be."""
    with ExitStack() as stack:
        for _ in range(count):
            load = subprocess.Popen([sys.executable, "-c", LOAD], start_new_session=True)
            stack.callback(load.wait)
            stack.callback(load.kill)
        yield


def planned(changes: str) -> Plan:
    """Return the plan with changes such as `max_s=3,min_runs=54`."""
    usual = asdict(Plan())
    pairs = (part.split("=") for part in changes.split(",") if part)
    return Plan(**(usual | {name: type(usual[name])(value) for name, value in pairs}))


def measure_once(arguments: argparse.Namespace, output: Path) -> None:
    """Measure all models in this process; the body of each of the separate processes."""
    archs, provide = models(arguments.pack, arguments.models)
    privileges = ("fifo", "autogroup") if arguments.privileged else ()
    known = [arguments.beside] if arguments.beside else []
    options = Options(
        force=True, memory=arguments.memory, privileges=privileges, lock_folder=output.parent,
        plan=planned(arguments.plan), beside=profiles_here(known), paces=paces_here(known),
    )  # fmt: skip
    made = list[Record]()
    jobs = grid(archs, pages=[arguments.pages])
    outcome = profile(
        jobs, provide=provide, output=output, options=options,
        progress=lambda step: made.append(step.record),
    )  # fmt: skip
    spent = {
        "seconds": outcome.measure_s / len(jobs),
        "sessions": len(made) / len(jobs),
        "runs": statistics.mean(record.latency.n for record in made),
        "left_out": statistics.mean(record.latency.contended for record in made),
    }
    output.with_suffix(".json").write_text(json.dumps(spent))


def run_condition(
    arguments: argparse.Namespace, *, pages: Pages, privileged: bool, loads: int
) -> None:
    """Measure under one condition and print its line."""
    with tempfile.TemporaryDirectory() as folder, load_generators(loads):
        first = Path(folder) / "first.jsonl"
        outputs = [Path(folder) / f"{i}.jsonl" for i in range(arguments.processes)]
        for output in [first, *outputs] if arguments.beside_first else outputs:
            command = [sys.executable, "-m", "benchmarks.repeatability"]
            command += [str(arguments.pack)] if arguments.pack else []
            command += ["--models", str(arguments.models), "--output", str(output)]
            command += ["--pages", pages, "--plan", arguments.plan]
            command += ["--memory"] if arguments.memory else []
            if arguments.beside_first and output != first:
                command += ["--beside", str(first)]
            subprocess.run([*command, *(["--privileged"] if privileged else [])], check=True)
        runs = [read_profile(output).measured() for output in outputs]
        spent = [json.loads(output.with_suffix(".json").read_text()) for output in outputs]
    mean = {name: statistics.mean(one[name] for one in spent) for name in spent[0]}
    print(line_of(privileged, loads, runs, mean), flush=True)
    if arguments.verbose:
        for records in zip(*runs, strict=True):
            medians = ", ".join(f"{record.latency.median_ms:.3f}" for record in records)
            print(f"    {arch_digest(records[0].arch)[:8]}  {spread(records):6.2%}  {medians}")


def line_of(
    privileged: bool, loads: int, runs: Sequence[Sequence[Record]], mean: Mapping[str, float]
) -> str:
    """Return the printed line of a condition; `mean`: per architecture or measurement."""
    spreads = [spread(records) for records in zip(*runs, strict=True)]
    medians = [record.latency.median_ms for run in runs for record in run]
    relative = statistics.median(relative_spreads(runs))
    grades = "".join(sorted(record.grade for run in runs for record in run))
    first = runs[0][0].latency
    return (
        f"{runs[0][0].settings.pages:8} {'privilege' if privileged else 'none':9} "
        f"{first.privilege:9} {first.clock:10} "
        f"{loads:5} {statistics.median(spreads):8.2%} {max(spreads):8.2%} {relative:8.2%} "
        f"{min(medians):7.2f}..{max(medians):<7.2f} {mean['seconds']:6.2f} "
        f"{mean['sessions']:8.2f} {mean['runs']:5.0f} {mean['left_out']:8.0f}  "
        + " ".join(f"{grades.count(letter)}{letter}" for letter in "ABCD")
    )


def spread(records: Sequence[Record]) -> float:
    """Return the relative standard deviation of the medians."""
    medians = [record.latency.median_ms for record in records]
    return statistics.stdev(medians) / statistics.mean(medians)


def relative_spreads(runs: Sequence[Sequence[Record]]) -> list[float]:
    """Return the spreads once each process is divided by the mean of its models' deviations."""
    times = [[record.latency.median_ms for record in run] for run in runs]
    means = [statistics.mean(column) for column in zip(*times, strict=True)]
    shares = [[time / mean for time, mean in zip(run, means, strict=True)] for run in times]
    scaled = [[share / statistics.mean(run) for share in run] for run in shares]
    return [statistics.stdev(column) for column in zip(*scaled, strict=True)]


def main() -> None:
    """Run the conditions, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", nargs="?", type=Path)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--pages", choices=PAGES, help="only with these")
    parser.add_argument("--plan", default="", help="of measuring, such as max_s=3,target=0.005")
    parser.add_argument(
        "--beside-first",
        action="store_true",
        help="one profile is made before, and the others at its level",
    )
    parser.add_argument("--beside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help="measure peak memory, too")
    parser.add_argument("--condition", type=int, choices=range(4), help="only this one, from 0")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--privileged", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.output is not None:
        measure_once(arguments, arguments.output)
        return
    state = machine.judge(machine.read_machine(window_s=1.0), privilege=available_privilege())
    device = machine.device()
    print(f"{device.name}, {device.cores} cores, {device.os}; best privilege {state.privilege}")
    print(f"before: {state.verdict} {'; '.join(state.reasons)}")
    print(f"{arguments.models} models, {arguments.processes} processes")
    print(
        "pages    condition privilege clock      loads  typical    worst relative      ms"
        "             s/arch sessions  runs left out  grades"
    )
    chosen_pages = [one_of_pages(arguments.pages)] if arguments.pages else PAGES
    conditions = list(product((True, False), (0, 1)))
    if arguments.condition is not None:
        conditions = [conditions[arguments.condition]]
    for pages, (privileged, loads) in product(chosen_pages, conditions):
        run_condition(arguments, pages=pages, privileged=privileged, loads=loads)


if __name__ == "__main__":
    main()
