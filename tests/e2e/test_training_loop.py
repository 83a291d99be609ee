"""The loop on real, tiny data in this process: with a bank, in half precision, from a teacher."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from hwnas.errors import HwnasError, UsageError
from hwnas.pipeline.config import read_recipe
from hwnas.supernet import Supernet
from hwnas.training.data import load_data
from hwnas.training.distributed import Ranks
from hwnas.training.loop import Checkpoint, Training, train
from hwnas.training.plans import Moment
from hwnas.training.prepare import prepare, space_for
from hwnas.training.step import Stepper, StepResult

TINY = [
    "data.name=digits", "data.heldout=1300", "schedule.epochs=2", "schedule.warmup_epochs=0",
    "optimiser.batch_size=32", "evaluation.every_epochs=0", "evaluation.random_subnets=0",
    "evaluation.images=32", "evaluation.calibration_images=32", "process.checkpoint_seconds=1e-9",
]  # fmt: skip


@dataclass
class Kept:
    """Keeps everything in memory."""

    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    events: list[Mapping[str, Any]] = field(default_factory=list)
    start: Checkpoint | None = None

    def latest(self) -> Checkpoint | None:
        return self.start

    def save(self, checkpoint: Checkpoint, supernet: Supernet) -> None:
        self.checkpoints[checkpoint.step] = checkpoint

    def event(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)


def trained(
    *assignments: str, start: Checkpoint | None = None, into: Kept | None = None
) -> tuple[Training, Kept]:
    recipe = read_recipe("nano-fashion", [*TINY, *assignments])
    data = load_data(recipe.data)
    supernet = Supernet(space_for(recipe, data), seed=recipe.process.seed)
    training = prepare(recipe, data, supernet, device=torch.device("cpu"), ranks=Ranks())
    keeper = into or Kept(start=start)
    train(training, keeper, watch=lambda progress: None)
    return training, keeper


def test_a_training_may_end_within_an_epoch() -> None:
    whole, kept = trained("schedule.epochs=1.5")
    per_epoch = len(whole.batches)
    steps = per_epoch + round(per_epoch / 2)
    assert max(kept.checkpoints) == whole.steps == steps > per_epoch + 1
    assert [event["step"] for event in kept.events if event["kind"] == "evaluation"] == [steps]
    resumed, _ = trained("schedule.epochs=1.5", start=kept.checkpoints[steps - 1])
    assert torch.equal(whole.flat.weights, resumed.flat.weights)
    longer, _ = trained("schedule.epochs=2")
    assert longer.learning_rate(steps) > whole.learning_rate(steps) == pytest.approx(0)

    brief, kept = trained("schedule.epochs=1e-3")
    assert max(kept.checkpoints) == brief.steps == 1


BANK = ("plan.kind=complexity", "plan.random=2", "plan.bank=2", "plan.bank_share=0.5",
        "plan.levels=[2e6, 4e6]", "plan.smallest_up_to=[4e6]")  # fmt: skip


def test_a_bank_resumes_where_it_was() -> None:
    whole, kept = trained(*BANK)
    steps = max(kept.checkpoints)
    middle = kept.checkpoints[steps // 2 + 1]
    assert len(middle.arrays["bank.codes"]) >= 3
    assert np.isfinite(middle.arrays["bank.losses"]).all()
    resumed, again = trained(*BANK, start=middle)
    assert torch.equal(whole.flat.weights, resumed.flat.weights)
    for name, array in kept.checkpoints[steps].arrays.items():
        assert np.array_equal(array, again.checkpoints[steps].arrays[name]), name


def test_options_of_the_process_train_too() -> None:
    """bf16, plain memory layout, accumulation and average: near what the defaults give."""
    plain, _ = trained("optimiser.average_decay=0.9", "schedule.epochs=1")
    other, kept = trained(
        "schedule.epochs=1", "optimiser.average_decay=0.9", "process.precision=bf16",
        "process.channels_last=false",
        "optimiser.accumulate=2", "optimiser.clip_value=0.5",
    )  # fmt: skip
    assert other.supernet.memory_format == torch.contiguous_format
    average = other.stepper.average.weights
    assert not torch.equal(average, other.flat.weights)
    assert torch.isfinite(average).all()
    cosine = torch.nn.functional.cosine_similarity(plain.flat.weights, other.flat.weights, dim=0)
    assert 0.9 < cosine < 1
    assert any(event["kind"] == "evaluation" for event in kept.events)


def test_paths_are_dropped_in_half_precision_on_a_cpu() -> None:
    training, kept = trained(
        "process.precision=bf16", "regularisation.drop_path=0.2", "schedule.epochs=1"
    )
    assert max(kept.checkpoints) == training.steps


def test_a_timm_teacher_teaches_the_largest() -> None:
    teacher = (
        'losses.teacher.models=["mobilenetv3_small_050"]', "losses.teacher.pretrained=false",
        "schedule.epochs=1",
    )  # fmt: skip
    taught, kept = trained(*teacher)
    untaught, _ = trained("schedule.epochs=1")
    assert not torch.equal(taught.flat.weights, untaught.flat.weights)
    assert kept.events[0]["losses"].keys() == {"largest", "smallest", "random"}


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (("plan.bank=4",), "plan.bank is 4 for plan.kind 'sandwich'"),
        (("process.sync_batchnorm=true", "process.compile=blocks"), "cannot be compiled"),
        (('regularisation.drop_path_stages=["t9"]',), "unknown stage .* 't9'; did you mean t"),
    ],
)
def test_what_does_not_fit_together_is_refused(assignments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trained(*assignments)


def test_conflicts_are_logged_whenever_they_are_measured() -> None:
    _, kept = trained("merge.measure_conflicts_every=3", "merge.kind=sum")
    measured = [event["step"] for event in kept.events if "conflict_ratio" in event]
    assert measured == [0, 3, 6]


@pytest.mark.parametrize("plan", ["single-path", "complexity"])
def test_plans_without_a_supernet_have_no_conflicts(plan: str) -> None:
    _, kept = trained(f"plan.kind={plan}", "merge.measure_conflicts_every=1", "schedule.epochs=1")
    assert not any("conflict_ratio" in event for event in kept.events)


def test_distillation_can_be_off_in_every_plan() -> None:
    for plan in ("sandwich", "complexity"):
        training, _ = trained(f"plan.kind={plan}", "losses.distillation=none", "schedule.epochs=1")
        assert not any(task.learns_from for task in training.plan(Moment(0, 0, 1)))


def test_a_training_goes_on_with_the_same_images_only() -> None:
    """Others would put images that were trained on among the held-out ones."""
    _, kept = trained()
    last = max(kept.checkpoints)
    with pytest.raises(UsageError, match="are not those that this training began with; now 139"):
        trained("data.heldout=1299", start=kept.checkpoints[last - 1])
    trained("data.heldout=1299", start=kept.checkpoints[last])  # nothing is left to do
    older = kept.checkpoints[last - 1]
    arrays = {name: array for name, array in older.arrays.items() if name != "images"}
    trained(start=replace(older, arrays=arrays))  # of a version that did not note them


def test_weights_that_are_not_finite_are_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient can overflow behind a finite loss; the checkpoint before stays the last."""
    from hwnas.training.optimise import Cosine

    steps = []

    def rate(self: Cosine, step: int) -> float:
        steps.append(step)
        return float("inf") if step == 2 else 1e-3

    monkeypatch.setattr(Cosine, "__call__", rate)
    kept = Kept()
    with pytest.raises(HwnasError, match=r"step 2 .*no longer finite; the last good .* step 2$"):
        trained("schedule.epochs=1", into=kept)
    assert sorted(kept.checkpoints) == [1, 2]
    assert all(np.isfinite(c.arrays["weights"]).all() for c in kept.checkpoints.values())


def failing_at(step: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(step + 1))
    stepped = Stepper.__call__

    def call(self: Stepper, *arguments: Any, **named: Any) -> StepResult:
        if next(steps) == step:
            raise error
        return stepped(self, *arguments, **named)

    monkeypatch.setattr(Stepper, "__call__", call)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"),
        MemoryError(),
    ],
    ids=["GPU", "CPU", "Python"],
)
@pytest.mark.parametrize("step", [0, 2])
def test_short_memory_is_explained(
    error: Exception, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_at(step, error, monkeypatch)
    kept = Kept()
    with pytest.raises(HwnasError, match=rf"^step {step} \(epoch 0\): out of memory \(") as caught:
        trained("optimiser.accumulate=2", into=kept)
    expected = "the last good checkpoint is that of step 2" if step else "no checkpoint is kept"
    assert expected in caught.value.message
    assert "\n" not in caught.value.message
    assert "--set optimiser.accumulate=4" in caught.value.hint
    # A checkpoint goes with the batch and its pieces.
    assert ("hwnas train --init" in caught.value.hint) == bool(step)
    assert sorted(kept.checkpoints) == list(range(1, step + 1))


def test_readers_of_images_that_end_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = "DataLoader worker (pid 7) is killed by signal: Bus error."
    failing_at(1, RuntimeError(killed), monkeypatch)
    with pytest.raises(HwnasError, match=r"^step 1 .*reads images ended .*Bus error") as caught:
        trained()
    assert "--set data.workers=0" in caught.value.hint
    assert "/dev/shm" in caught.value.hint


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_at(1, RuntimeError("shapes do not match"), monkeypatch)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        trained()
