"""Recipes cut to a time: no longer than allowed, never longer than they were."""

from hypothesis import given
from hypothesis import strategies as st

from hwnas.pipeline.config import read_recipe
from hwnas.pipeline.estimates import Units, estimate
from hwnas.pipeline.lengths import LEAST_SHARE, assignments_of, cut_to, lengths_of

SECONDS = st.floats(1e-3, 100)
UNITS = st.builds(
    Units, start=st.floats(0.1, 10), step=SECONDS, image=st.floats(1e-6, 0.01), measurement=SECONDS,
    batches=st.integers(1, 2000), heldout=st.integers(1, 20000), tested=st.integers(1, 20000),
    parameters=st.just(10**6),
)  # fmt: skip
RECIPE = read_recipe("nano-fashion")


@given(units=UNITS, seconds=st.floats(1, 1e6))
def test_a_recipe_is_cut_no_more_than_is_needed(units: Units, seconds: float) -> None:
    cut = cut_to(RECIPE, units, seconds)
    whole = lengths_of(RECIPE)
    assert all(0 < cut.lengths[key] <= value for key, value in whole.items())
    assert cut.seconds <= seconds or round(cut.share, 9) == LEAST_SHARE
    assert (cut.share == 1) == (estimate(RECIPE, units).total() <= seconds)
    # What is typed is what was estimated.
    typed = read_recipe("nano-fashion", assignments_of(cut.lengths))
    assert estimate(typed, units).total() == cut.seconds
    assert lengths_of(typed) == cut.lengths


@given(units=UNITS, seconds=st.floats(1, 1e6))
def test_more_time_is_used(units: Units, seconds: float) -> None:
    assert cut_to(RECIPE, units, seconds).share <= cut_to(RECIPE, units, 1.5 * seconds).share


def test_subnets_are_judged_by_fewer_images_but_not_too_few() -> None:
    units = Units(
        start=1, tested=1, step=1, batches=100, image=1, heldout=9000, measurement=1, parameters=1
    )
    assert cut_to(RECIPE, units, 1.0).lengths["evaluation.images"] == 4000
    few = Units(
        start=1, tested=1, step=1, batches=100, image=1, heldout=900, measurement=1, parameters=1
    )
    assert cut_to(RECIPE, few, 1.0).lengths["evaluation.images"] == 900
    assert "evaluation.images" not in lengths_of(RECIPE)


def test_a_recipe_that_fits_keeps_its_own_words() -> None:
    assert assignments_of(lengths_of(RECIPE)) == (
        "schedule.epochs=2",
        "schedule.warmup_epochs=0.2",
        "deploy.models=30",
        "deploy.accuracies=40",
        "deploy.verify=3",
    )
