"""Training as a stage of a run: where its checkpoints and events are kept.

`training/step-N.safetensors` has all that changes during training, `supernet/step-N.safetensors`
the weights that search uses; the newest two of each are kept. `events.jsonl` is the log; events
after the checkpoint that a resumed run starts from are forgotten, because they happen again.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from hwnas.errors import FormatError, UsageError
from hwnas.io import (
    Journal,
    read_journal,
    read_tensor,
    read_tensors,
    write_atomic,
    write_tensors,
)
from hwnas.io.canonical import canonical_json, parse_json
from hwnas.pipeline.alone import alone_in
from hwnas.pipeline.config import to_toml
from hwnas.pipeline.origins import CONFIG_FILE, origin_in
from hwnas.pipeline.rundir import (
    STEP_FILE,
    SUPERNET_FOLDER,
    Run,
    check_may_hold,
    complete_run,
    create_run,
    has_weights,
    load_supernet,
    open_run,
    save_supernet,
)
from hwnas.spaces import Space
from hwnas.supernet import Supernet
from hwnas.training.data import load_data
from hwnas.training.datasets import Data
from hwnas.training.distributed import Ranks, ranks
from hwnas.training.loop import IMAGES, Checkpoint, Progress, check_images, train
from hwnas.training.prepare import prepare, space_for
from hwnas.training.recipe import Recipe
from hwnas.training.starting import Carried, start_from

EVENTS_FILE, STATE_FOLDER = "events.jsonl", "training"


class StateKeeper:
    """Keeps a training's checkpoints and events in a folder."""

    def __init__(
        self, folder: Path, *, leads: bool, mirror: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._leads, self._mirror = leads, mirror
        self._states = folder / STATE_FOLDER
        self._events = folder / EVENTS_FILE
        self._journal: Journal | None = None

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint, with the events after it forgotten; None at the start."""
        found = None
        pointer = self._states / "LATEST"
        if pointer.exists():
            path = self._states / pointer.read_text().strip()
            arrays, metadata = read_tensors(path)
            try:
                numbers = parse_json(metadata["numbers"], f"{path}, metadata")
                found = Checkpoint(step=int(metadata["step"]), arrays=arrays, numbers=numbers)
            except (KeyError, ValueError) as error:
                raise FormatError(f"{path}: not a checkpoint of hwnas") from error
        if self._leads:
            self._forget_events_after(found.step if found else 0)
            _remove_torn(self._states)
        return found

    def save(self, checkpoint: Checkpoint, supernet: Supernet) -> None:
        """Keep a checkpoint."""
        name = f"step-{checkpoint.step}.safetensors"
        metadata = {
            "schema": "hwnas/training-state",
            "version": "1",
            "step": str(checkpoint.step),
            "numbers": canonical_json(dict(checkpoint.numbers)),
        }
        write_tensors(self._states / name, checkpoint.arrays, metadata)
        write_atomic(self._states / "LATEST", name)
        _keep_last_two(self._states, checkpoint.step)

    def event(self, event: Mapping[str, Any]) -> None:
        """Keep one record of what happened."""
        if not self._leads:
            return
        if self._journal is None:
            self._journal = Journal(self._events)
        self._journal.append(dict(event))
        self._mirror(event)

    def close(self) -> None:
        """Close the log; its records are already on disk."""
        if self._journal is not None:
            self._journal.close()

    def _forget_events_after(self, step: int) -> None:
        if not self._events.exists():
            return
        records = read_journal(self._events)
        kept = [r for r in records if r["step"] < step + (r["kind"] != "step")]
        if len(kept) < len(records) or not self._events.read_bytes().endswith(b"\n"):
            write_atomic(self._events, "".join(canonical_json(r) + "\n" for r in kept))


def check_images_of(folder: Path, data: Data) -> None:
    """Refuse other images than the run in a folder was trained with, where its state says so."""
    pointer = folder / STATE_FOLDER / "LATEST"
    if pointer.exists():
        check_images(data, read_tensor(pointer.with_name(pointer.read_text().strip()), IMAGES))


class RunKeeper(StateKeeper):
    """Keeps a supernet's training in a run folder, and the weights that search will use."""

    def __init__(
        self, run: Run, *, leads: bool, mirror: Callable[[Mapping[str, Any]], None]
    ) -> None:
        super().__init__(run.folder, leads=leads, mirror=mirror)
        self._run = run

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint."""
        if self._leads:
            _remove_torn(self._run.folder / SUPERNET_FOLDER)
        return super().latest()

    def save(self, checkpoint: Checkpoint, supernet: Supernet) -> None:
        """Keep a checkpoint, and the weights that search will use."""
        # The weights first: whoever finds the checkpoint finds them, too.
        save_supernet(self._run, supernet, step=checkpoint.step)
        super().save(checkpoint, supernet)
        _keep_last_two(self._run.folder / SUPERNET_FOLDER, checkpoint.step)


def train_run(
    folder: Path | str,
    recipe: Recipe,
    *,
    start: str | None = None,
    note: Callable[[str], None] = lambda _: None,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Run | None:
    """Train the recipe's supernet in a run folder, going on where an earlier session stopped.

    Returns the run in the process that leads, None in the others of a distributed run.

    `start` is a run or a file whose weights training starts from; `note` is told what a person
    should know, `watch` how far it is; it ends after a step when `stop` says so.
    """
    folder = Path(folder)
    device = device_of(recipe)
    if recipe.process.threads is not None:
        torch.set_num_threads(recipe.process.threads)
    with ranks(device) as here:
        device = here.own(device)
        data = load_data(recipe.data)
        for remark in data.notes if here.leads else ():
            note(remark)
        of = space_for(recipe, data)
        origin = origin_in(folder, recipe, start=start) if here.leads else {}
        if here.leads:
            check_may_hold(folder, of=of, origin=origin)
        with alone_in(folder, leads=here.leads, note=note):
            # What cannot be prepared leaves nothing behind that a corrected command would meet.
            supernet, carried = _supernet(folder, recipe, of, start)
            training = prepare(recipe, data, supernet, device=device, ranks=here)
            for remark in carried.remarks if here.leads else ():
                note(remark)
            run = _open(folder, recipe, of, origin, here)
            keeper = RunKeeper(run, leads=here.leads, mirror=_mirror(run, recipe, here))
            with closing(keeper):
                train(training, keeper, watch=watch if here.leads else _unseen, stop=stop)
            return complete_run(run) if here.leads else None


def _open(folder: Path, recipe: Recipe, of: Space, origin: Mapping[str, Any], here: Ranks) -> Run:
    if here.leads:
        if not has_weights(folder):
            (folder / EVENTS_FILE).unlink(missing_ok=True)  # perhaps of another recipe
        run = create_run(folder, of=of, origin=origin)
        write_atomic(folder / CONFIG_FILE, to_toml(recipe, folder=folder))
    here.wait()
    return run if here.leads else open_run(folder)


def _supernet(
    folder: Path, recipe: Recipe, of: Space, start: str | None
) -> tuple[Supernet, Carried]:
    supernet = Supernet(of, seed=recipe.process.seed)
    if start is None or (folder / STATE_FOLDER / "LATEST").exists():
        return supernet, Carried()
    return supernet, start_from(supernet, _source(start))


def _source(start: str) -> Supernet:
    path = Path(start)
    if path.is_dir():
        return _newest(open_run(path))
    named = STEP_FILE.fullmatch(path.name)
    if named is not None and path.is_file():
        return load_supernet(open_run(path.parent.parent), step=int(named[1]))
    from hwnas.interop import nasvit

    try:
        return nasvit.read(path)
    except FormatError as error:
        raise type(error)(
            error.message,
            "accepted: a run folder, RUN/supernet/step-N.safetensors in its run, or a checkpoint "
            "of the released NASViT" + (f"; {error.hint}" if error.hint else ""),
        ) from error


def _newest(run: Run) -> Supernet:
    try:
        return load_supernet(run)
    except FormatError as error:
        before = sorted((run.folder / SUPERNET_FOLDER).glob("step-*"))
        hint = f"another step may be whole: {', '.join(map(str, before))}" if before else ""
        raise FormatError(error.message, error.hint or hint) from error


def device_of(recipe: Recipe) -> torch.device:
    """Return the device that a recipe asks for."""
    wanted = recipe.process.device
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    accepted = "accepted: auto, cpu, cuda, cuda:NUMBER"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise UsageError(f"process.device is {wanted!r}; {accepted}") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"process.device is {wanted!r}; {accepted}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"process.device is {wanted}, and torch finds no GPU", "hwnas doctor")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"process.device is {wanted}, and torch finds {torch.cuda.device_count()} GPUs",
            "hwnas doctor",
        )
    return device


def _mirror(run: Run, recipe: Recipe, here: Ranks) -> Callable[[Mapping[str, Any]], None]:
    if not (recipe.process.tensorboard and here.leads):
        return _unseen
    from hwnas.pipeline.tensorboard import scalar_writer

    return scalar_writer(run.folder / "tensorboard")


def _unseen(_: object) -> None:
    return


def _keep_last_two(folder: Path, step: int) -> None:
    """Remove all files of steps but that of `step` and the one before it.

    Later ones are of sessions that were killed before anything named them.
    """
    files = {int(file.stem[5:]): file for file in folder.glob("step-*.safetensors")}
    kept = sorted(number for number in files if number <= step)[-2:]
    for number in files.keys() - set(kept):
        files[number].unlink()


def _remove_torn(folder: Path) -> None:
    """Remove what a session that was killed while it wrote has left."""
    for pattern in (".step-*", ".LATEST.*"):
        for file in folder.glob(pattern):
            file.unlink(missing_ok=True)
