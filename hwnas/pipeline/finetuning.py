"""Training one subnet further, or from scratch, by the machinery that trains supernets.

A subnet is trained as the supernet of a space that has one architecture: recipe, loop, loaders,
checkpoints and resuming are those of `hwnas train`. Until it is done the folder holds `training/`
with the checkpoints and no card; `events.jsonl` stays.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hwnas.errors import FormatError, UsageError
from hwnas.io import Schema, read_json, write_atomic, write_json
from hwnas.pipeline.alone import alone_in, holds_only
from hwnas.pipeline.config import Recipe, read_recipe, to_toml
from hwnas.pipeline.origins import digest_in
from hwnas.pipeline.rundir import RUN_FILE
from hwnas.pipeline.sealing import CONFIG_FILE, Evidence, Origin, Subnet, check_fits, seal
from hwnas.pipeline.training_run import EVENTS_FILE, STATE_FOLDER, StateKeeper, device_of
from hwnas.spaces import Arch, Space
from hwnas.spaces.restrict import restricted
from hwnas.supernet import Supernet, load_subnet, read_arch, read_card
from hwnas.supernet.card import CARD_FILE, Card
from hwnas.training.data import load_data
from hwnas.training.distributed import Ranks, ranks
from hwnas.training.loop import Progress, Training, averaged_weights, train
from hwnas.training.prepare import prepare

TRAINING_SCHEMA = Schema(name="hwnas/subnet-training", version=1)
TRAINING_FILE = "training.json"
_BEGINNINGS = (TRAINING_FILE, CONFIG_FILE, EVENTS_FILE)
FINETUNED, SCRATCH = "fine-tuned", "from scratch"
# Of the learning rate and the epochs of the recipe that trained the supernet.
_RATE_SHARE, _EPOCHS_SHARE = 0.2, 0.25
# With one subnet there is nothing to merge.
_ONE_SUBNET = (
    'merge.kind="sum"',
    "merge.measure_conflicts_every=0",
    'optimiser.clip="all"',
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Watching:
    """Who is told what goes on, and who may stop it."""

    note: Callable[[str], None] = lambda _: None
    watch: Callable[[Progress], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False


SILENT = Watching()  # nobody


def finetuning_recipe(
    subnet: Path | str,
    *,
    recipe: str | None = None,
    from_scratch: bool = False,
    teacher: str | None = None,
    assignments: Sequence[str] = (),
) -> Recipe:
    """Return the recipe to train the subnet in a folder by.

    It is the supernet's, or `recipe`. Fine-tuning takes a fifth of its learning rate, a quarter
    of its epochs and no warm-up; `assignments` such as `schedule.epochs=3` override everything.
    """
    subnet = Path(subnet)
    if not (subnet / CARD_FILE).is_file():
        raise UsageError(
            f"{subnet}: is no subnet (it has no {CARD_FILE})", "hwnas extract --run RUN makes one"
        )
    own = subnet / CONFIG_FILE
    if recipe is None and not own.is_file():
        raise UsageError(
            f"{subnet}: has no {CONFIG_FILE}, which says what data to train on",
            "name a recipe with the data: --recipe my.toml",
        )
    source = recipe or str(own)
    changes = list(_ONE_SUBNET)
    if not from_scratch:
        base = read_recipe(source)
        epochs = max(1, round(base.schedule.epochs * _EPOCHS_SHARE))
        changes += [
            f"optimiser.lr={base.optimiser.lr * _RATE_SHARE!r}",
            f"schedule.epochs={epochs}",
            "schedule.warmup_epochs=0.0",
        ]
    if teacher is not None:
        changes.append(f"losses.teacher.models=[{json.dumps(teacher)}]")
    return read_recipe(source, [*changes, *assignments])


def default_folder(subnet: Path, *, from_scratch: bool) -> Path:
    """Return where the trained subnet goes unless somebody says otherwise: beside it."""
    place = subnet.resolve() if subnet.name in ("", "..") else subnet  # as it was typed, if named
    return place.with_name(f"{place.name}-{'scratch' if from_scratch else 'finetuned'}")


def run_of(subnet: Path) -> Path | None:
    """Return the run folder that a subnet lies in, if it does."""
    run = subnet.resolve().parent.parent
    return run if (run / RUN_FILE).is_file() else None


def finetune(
    subnet: Path | str,
    recipe: Recipe,
    *,
    out: Path | str,
    from_scratch: bool = False,
    watching: Watching = SILENT,
) -> Subnet | None:
    """Train the subnet in a folder by a recipe and write the result to `out`, like extracting does.

    Goes on where an earlier session stopped; a finished one is returned as it is. Returns None in
    the processes of a distributed training that do not lead.
    """
    subnet, out = Path(subnet), Path(out)
    base = read_card(subnet)
    space, arch = read_arch(subnet)
    binds = {
        "how": SCRATCH if from_scratch else FINETUNED,
        "base": base.weights,
        "recipe": digest_in(out, recipe),
    }
    device = device_of(recipe)
    if recipe.process.threads is not None:
        torch.set_num_threads(recipe.process.threads)
    with ranks(device) as here:
        device = here.own(device)
        if (done := _finished(out, binds)) is not None:
            return Subnet(folder=out, card=done, is_new=False) if here.leads else None
        data = load_data(recipe.data)
        for remark in data.notes if here.leads else ():
            watching.note(remark)
        single = _supernet_of_one(space, arch, recipe, None if from_scratch else subnet)
        check_fits(single, data)
        if here.leads:
            _check_free(out, binds)
        with alone_in(out, leads=here.leads, note=watching.note):
            training = prepare(recipe, data, single, device=device, ranks=here)
            _begin(out, recipe, binds, here)
            with closing(StateKeeper(out, leads=here.leads, mirror=_unseen)) as keeper:
                watch = watching.watch if here.leads else _unseen
                train(training, keeper, watch=watch, stop=watching.stop)
            if not here.leads:
                return None
            return Subnet(folder=out, card=_finish(out, training, recipe, base, binds))


def _supernet_of_one(space: Space, arch: Arch, recipe: Recipe, source: Path | None) -> Supernet:
    single = Supernet(restricted(space, arch), seed=recipe.process.seed)
    if source is None:
        return single
    network = load_subnet(source)
    with torch.no_grad():
        for slot, block in single.at(arch).items():
            weights = dict(network.blocks[slot].named_parameters())
            for name, borrowed in block.named_parameters():
                borrowed.copy_(weights[name])
    return single


def _begin(out: Path, recipe: Recipe, binds: Mapping[str, Any], here: Ranks) -> None:
    if here.leads:
        _check_free(out, binds)
        if not (out / STATE_FOLDER).exists():
            (out / EVENTS_FILE).unlink(missing_ok=True)  # perhaps of another recipe
        write_json(out / TRAINING_FILE, TRAINING_SCHEMA, dict(binds))
        write_atomic(out / CONFIG_FILE, to_toml(recipe, folder=out))
    here.wait()


def _check_free(out: Path, binds: Mapping[str, Any]) -> None:
    """Raise UsageError where a folder holds anything else than this training.

    Another one that came to nothing yet is begun anew.
    """
    path = out / TRAINING_FILE
    if path.is_file():
        there = read_json(path, TRAINING_SCHEMA)
        differing = [name for name, value in binds.items() if there.get(name) != value]
        if differing and not holds_only(out, _BEGINNINGS):
            raise UsageError(
                f"{out}: holds a training that differs in {', '.join(differing)}",
                "choose another folder with --out",
            )
    elif out.exists() and not (out.is_dir() and holds_only(out, [TRAINING_FILE])):
        raise UsageError(
            f"{out}: is neither empty nor a training that was interrupted",
            "choose another folder with --out",
        )


def _finished(out: Path, binds: Mapping[str, Any]) -> Card | None:
    if not (out / CARD_FILE).is_file():
        return None
    card = read_card(out)
    trained = card.training or {}
    if any(trained.get(name) != value for name, value in binds.items()):
        raise UsageError(
            f"{out}: holds a subnet that was trained otherwise, or not at all",
            "choose another folder with --out",
        )
    return card


def _finish(
    out: Path, training: Training, recipe: Recipe, base: Card, binds: Mapping[str, Any]
) -> Card:
    arch = training.supernet.space.largest()
    told = {
        **binds,
        "epochs": recipe.schedule.epochs,
        "steps": training.steps,
        "teacher": list(recipe.losses.teacher.models),
        "accuracy_before": None if base.accuracy is None else base.accuracy.value,
    }
    evidence = Evidence(data=training.data, recipe=recipe, device=training.device)
    origin = Origin(supernet=base.supernet, promised=base.promised, training=told)
    with averaged_weights(training):
        card = seal(out, training.supernet, arch, evidence=evidence, origin=origin)
    shutil.rmtree(out / STATE_FOLDER, ignore_errors=True)
    return card


def _unseen(_: object) -> None:
    return


def teacher_in(run: Path | None, subnet: Path) -> Path:
    """Return the run whose supernet's largest subnet is to teach; raises if there is none."""
    found = run or run_of(subnet)
    if found is None:
        raise FormatError(
            f"{subnet}: is in no run, so there is no supernet whose largest subnet could teach",
            "--teacher NAME takes a timm model or the folder of a subnet",
        )
    return found
