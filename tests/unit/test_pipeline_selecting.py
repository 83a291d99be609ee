"""Which subnet is meant, and what may be said of it."""

from dataclasses import replace

import pytest

from hwnas.errors import UsageError
from hwnas.pipeline.fronts import (
    Answer,
    Choice,
    Estimate,
    Front,
    Verified,
    add_verified,
    write_front,
)
from hwnas.pipeline.rundir import Run, space_of
from hwnas.pipeline.selecting import select, select_choice
from hwnas.testing.runs import imported_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return imported_run(tmp_path_factory.mktemp("runs") / "run", statistics=False)


@pytest.fixture
def front(run: Run) -> Front:
    """Return a front of one subnet in two ways to run it, of which the second is recommended."""
    (run.folder / "search" / "verified.jsonl").unlink(missing_ok=True)
    arch = space_of(run).smallest()
    said = {name: Estimate(mean=1.0, low=0.5, high=2.0) for name in ("accuracy", "latency")}
    choices = tuple(
        Choice(digest=arch.digest, genes=dict(arch), costs={}, predicted=said,
               settings={"batch": batch})
        for batch in (1, 8)
    )  # fmt: skip
    answer = Answer(
        budget="latency 1ms", recommended=1, knee=None, reason="", feasible=1, listed=(1,)
    )
    found = Front(
        space=run.space, options=run.options, choices=choices, answers=(answer,), created="now",
        provenance={"devices": {"My board": []}, "supernet": {"step": 0}},
    )  # fmt: skip
    write_front(run, found)
    return found


@pytest.mark.parametrize("budget", ["latency 1ms", "latency:My board 1ms"])
@pytest.mark.parametrize("typed", ["1ms", "My board=1ms", "my-board=1ms"])
def test_an_answer_is_found_as_its_search_was_asked(
    run: Run, front: Front, typed: str, budget: str
) -> None:
    """A search for one device leaves it out of what its answers are called."""
    write_front(run, replace(front, answers=(replace(front.answers[0], budget=budget),)))
    promised = select(run, latency=typed).promised
    assert promised is not None
    assert promised["budget"] == budget
    with pytest.raises(UsageError, match="no answer for latency other=1ms"):
        select(run, latency="other=1ms")


def test_a_subnet_has_the_promise_of_the_way_that_is_recommended(run: Run, front: Front) -> None:
    for found in (
        select(run),
        select(run, arch=front.choices[0].digest),
        select_choice(run, front, 1),
    ):
        assert found.promised is not None
        assert found.promised["settings"] == {"batch": 8}
        assert found.promised["budget"] == "latency 1ms"


def verified(front: Front, *, step: int, device: str = "My board", accuracy: float) -> Verified:
    choice = front.choices[1]
    return Verified(
        digest=choice.digest, budget="latency 1ms", predicted=choice.predicted,
        measured={"latency": 7.5, "accuracy": accuracy}, settings=choice.settings, met=True,
        device=device, grade="A", step=step,
    )  # fmt: skip


def test_what_was_measured_elsewhere_is_not_told(run: Run, front: Front) -> None:
    add_verified(run, [verified(front, step=0, accuracy=0.8)])
    add_verified(run, [verified(front, step=0, device="other", accuracy=0.9)])
    promised = select(run).promised
    assert promised is not None
    assert promised["verified"] == {"latency": 7.5, "accuracy": 0.8}


def test_what_was_said_of_earlier_weights_is_not_said_of_later_ones(run: Run, front: Front) -> None:
    add_verified(run, [verified(front, step=500, accuracy=0.9)])
    write_front(run, replace(front, provenance={"supernet": {"step": 500}}))
    with pytest.raises(UsageError, match=r"the weights of step 500; .* step 0 since") as raised:
        select(run)
    digest = front.choices[0].digest
    assert f"--arch {digest[:12]}" in raised.value.hint
    promised = select(run, arch=digest).promised
    assert promised is not None
    assert promised["verified"] == {"latency": 7.5}
    assert set(promised["predicted"]) == {"latency"}
