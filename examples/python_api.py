# %% [markdown]
# # From a recipe to a validated model, in Python
#
# What `hwnas run` does, step by step, with typed results. Each cell goes on from what is on disk,
# so that it can be run again. It takes the digits of scikit-learn and so short a training that the
# whole is half a minute of work for one core.
#
#     python examples/python_api.py [RUN]

# %%
import sys
from pathlib import Path

from hwnas.training.process import tune_process

tune_process()  # as every verb that needs torch does, before it is imported
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/python-api")

# %% [markdown]
# ## Train a supernet
# The recipe is what `hwnas init` writes; the second argument is what `--set` takes.

# %%
from hwnas.pipeline.config import read_recipe
from hwnas.pipeline.rundir import open_run, space_of
from hwnas.pipeline.training_run import train_run

recipe = read_recipe(
    "nano-digits",
    ["schedule.epochs=7", "schedule.warmup_epochs=1", "evaluation.every_epochs=7",
     "evaluation.random_subnets=0", "evaluation.calibration_images=256"],
)  # fmt: skip
train_run(folder, recipe, note=print)
run = open_run(folder)
space = space_of(run)
print(f"{run.folder}: {run.status}, {space.count():,} subnets of {space.name}")

# %% [markdown]
# ## Measure: milliseconds here, accuracies on held-out images
# `force` measures on a busy machine, too; the grades tell. A real profile leaves `plan` out.

# %%
from hwnas.pipeline.accuracies import Work, measure_accuracies
from hwnas.pipeline.measuring import from_space
from hwnas.profiling.driver import profile
from hwnas.profiling.jobs import Options, grid
from hwnas.profiling.measure import Plan

source = from_space(space, 10)
here = folder / "profiles" / "here.jsonl"
options = Options(force=True, memory=False, plan=Plan(min_runs=20, max_runs=60, max_s=0.5))
outcome = profile(grid(source.archs), provide=source.provide, output=here, options=options)
print(f"{outcome.measured} measured, {outcome.skipped} were there already")
accuracies = measure_accuracies(run, 12, work=Work(workers=1))
print(f"accuracies: {min(a.accuracy for a in accuracies):.1%} and more")

# %% [markdown]
# ## Fit predictors, with intervals

# %%
from hwnas.pipeline.fit import accuracy_rows, fit_rows, profile_rows

for rows in [accuracy_rows(run), *profile_rows([here], space)]:
    fitted = fit_rows(rows, space, folder=folder / "predictors" / rows.name, quick=True)
    print(f"{fitted.name}: fitted on {fitted.predictor.rows} rows")

# %% [markdown]
# ## Search
# Each budget has an answer; one that cannot be met has a reason instead of a recommendation. Where
# none can be met, `hwnas.errors.InfeasibleError` says what can be.

# %%
from hwnas.pipeline.searching import Request, search_run
from hwnas.search.budgets import parse_budgets

found = search_run(run, Request(budgets=parse_budgets({"latency": "70%,100%"})))
recommended = []
for answer in found.front.answers:
    if answer.recommended is None:
        print(f"{answer.budget}: {answer.reason}")
        continue
    best = found.front.choices[answer.recommended]
    accuracy, latency = best.predicted["accuracy"], best.predicted["latency"]
    print(f"{answer.budget}: {best.digest[:12]} {accuracy.mean:.1%} {latency.mean:.3f} ms")
    recommended.append(best)

# %% [markdown]
# ## Extract and export
# `extract` proves that the module gives the supernet's logits; `export` compares ONNX with torch.
# The module itself: `hwnas.supernet.load_subnet(subnet.folder)`.

# %%
from hwnas.pipeline.exporting import Wish, export
from hwnas.pipeline.extracting import extract, select

subnet = extract(run, select(run, arch=recommended[0].digest))
exported = export(subnet.folder, wish=Wish(images=100, measured=False))
print(exported.folder / exported.manifest.recommended)

# %% [markdown]
# ## Validate, as before a deployment; needs no torch

# %%
from hwnas.export import Limits, Running, validate

verdict = validate(
    exported.folder,
    data="digits",
    limits=Limits(min_accuracy=0.5, max_size_bytes=4e6),
    running=Running(measured=False),
)
for gate in verdict.gates:
    print(f"{gate.name:18} {gate.state:8} {gate.found}")

# %% [markdown]
# ## One page about all of it

# %%
from hwnas.report import report

print(report(folder))
sys.exit(verdict.exit_code)
