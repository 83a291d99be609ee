"""Of the subnets that a search recommends for ten budgets, how many keep them when measured.

    python benchmarks/search_budgets.py --run runs/nano [--seeds 3] [--confidence 0.95] [--force]

Budgets are spread over what can be promised on this machine, from the fastest subnet to the
slowest. Each recommendation is what the search says before anything is verified; it is built with
the supernet's weights, measured under the guarded protocol, and evaluated on the held-out part.
The run is copied first, so what it holds stays as it is.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np

from hwnas.io.units import DURATION_MS, format_value
from hwnas.pipeline.rundir import open_run
from hwnas.pipeline.searching import Request, prepare, search
from hwnas.pipeline.verifying import Effort, verify
from hwnas.profiling.jobs import Options
from hwnas.search.budgets import parse_budgets

SHARES = (0.06, 0.94)  # of the reachable range: budgets at its very ends admit one subnet


def budgets_of(run, count, device):
    """Return budgets that are spread over the reachable range, as they would be typed."""
    reach = prepare(run, Request(device=device)).ranges["latency"]
    shares = np.linspace(*SHARES, count)
    values = reach.low + shares * (reach.high - reach.low)
    return ",".join(format_value(float(f"{value:.3g}"), DURATION_MS) for value in values)


def measured(run, arguments, seed):
    """Return the first verified entry of each budget, with the budget in ms."""
    request = Request(
        budgets=parse_budgets({"latency": (budgets_of(run, arguments.count, arguments.device),)}),
        device=arguments.device,
        confidence=arguments.confidence,
        seed=seed,
    )
    found = search(prepare(run, request))
    effort = Effort(count=1, options=Options(force=arguments.force))
    entries = verify(found, effort).entries
    for answer, asked in zip(found.front.answers, found.prepared.asked, strict=True):
        digest = found.front.choices[answer.recommended].digest
        (entry,) = [e for e in entries if e.budget == answer.budget and e.digest == digest]
        yield asked.constraints[0].most, entry


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--count", type=int, default=10, help="budgets")
    parser.add_argument("--seeds", type=int, default=1, help="of the search")
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--device", help="the name of this machine in the run")
    parser.add_argument("--force", action="store_true", help="measure on a busy machine")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "run"
        shutil.copytree(arguments.run, copy, ignore=shutil.ignore_patterns("search"))
        run = open_run(copy)
        rows = []
        for seed in range(arguments.seeds):
            for most, entry in measured(run, arguments, seed):
                latency, accuracy = entry.measured["latency"], entry.measured["accuracy"]
                promise = entry.predicted["latency"]
                rows.append((latency <= most, latency / promise.mean - 1.0))
                print(
                    f"seed {seed}  budget {most:7.3f} ms  predicted {promise.mean:7.3f} "
                    f"({promise.low:.3f}..{promise.high:.3f})  measured {latency:7.3f}  "
                    f"grade {entry.grade}  {'kept' if rows[-1][0] else 'MISSED'}  accuracy "
                    f"{entry.predicted['accuracy'].mean:.2%} / {accuracy:.2%}",
                    flush=True,
                )
    kept, errors = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    print(f"{kept.sum()} of {len(kept)} keep their budget ({kept.mean():.0%})")
    print(f"latency against its prediction: {errors.mean():+.2%}, {np.abs(errors).mean():.2%} off")


if __name__ == "__main__":
    main()
