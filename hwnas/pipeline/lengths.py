"""A recipe cut to the time that somebody has: `hwnas run --within 5min`.

Training, what is measured for predictors and the images that subnets are judged by shrink alike, as
little as is needed. What was chosen at first is in the run's recipe, so a run that goes on keeps
it, whatever the machine does by then.
"""

from dataclasses import dataclass
from pathlib import Path

from hwnas.pipeline.config import Recipe, read_recipe
from hwnas.pipeline.estimates import Units, estimate
from hwnas.pipeline.origins import CONFIG_FILE

# Less training says nothing about subnets, and fewer rows nothing about predictors.
LEAST_SHARE = 0.15
_LEAST_MODELS, _LEAST_ACCURACIES, _LEAST_IMAGES = 12, 16, 4000
_SHARES = 86

Lengths = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A recipe's lengths at a share of what they were, and about how long all of it takes."""

    share: float
    lengths: Lengths
    seconds: float


def lengths_of(recipe: Recipe, *, share: float = 1.0, heldout: int | None = None) -> Lengths:
    """Return a share of the recipe's lengths, by the keys that set them.

    `heldout`: the images that a recipe means which does not say how many to judge by.
    """
    deploy, schedule = recipe.deploy, recipe.schedule
    images = recipe.evaluation.images or (None if share == 1 else heldout)
    judged = {} if not images else {"evaluation.images": _cut(images, share, _LEAST_IMAGES)}
    return {
        **judged,
        "schedule.epochs": _shortened(schedule.epochs, share),
        "schedule.warmup_epochs": _shortened(schedule.warmup_epochs, share),
        "deploy.models": _cut(deploy.models, share, _LEAST_MODELS),
        "deploy.accuracies": _cut(deploy.accuracies, share, _LEAST_ACCURACIES),
        "deploy.verify": _cut(deploy.verify, share, 1),
    }


def _shortened(epochs: float, share: float) -> float:
    return epochs if share == 1 else float(f"{epochs * share:.3g}")


def _cut(count: int, share: float, least: int) -> int:
    return min(count, max(least, round(count * share)))


def assignments_of(lengths: Lengths) -> tuple[str, ...]:
    """Return what sets lengths, as `--set` takes it."""
    return tuple(
        f"{key}={int(value) if value == int(value) else value!r}" for key, value in lengths.items()
    )


def cut_to(recipe: Recipe, units: Units, seconds: float) -> Cut:
    """Return the longest lengths with which a recipe takes at most so long.

    Where even the least takes longer, that is returned.
    """
    for step in range(_SHARES):
        share = 1.0 - step * (1.0 - LEAST_SHARE) / (_SHARES - 1)
        lengths = lengths_of(recipe, share=share, heldout=units.heldout)
        takes = estimate(_with(recipe, lengths), units).total()
        cut = Cut(share=share, lengths=lengths, seconds=takes)
        if cut.seconds <= seconds:
            break
    return cut


def lengths_in(folder: Path) -> Lengths | None:
    """Return the lengths that a run was begun with, None before it has begun."""
    config = folder / CONFIG_FILE
    return lengths_of(read_recipe(str(config))) if config.exists() else None


def _with(recipe: Recipe, lengths: Lengths) -> Recipe:
    sections: dict[str, dict[str, float]] = {}
    for key, value in lengths.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    changed = {
        section: getattr(recipe, section).model_copy(update=values)
        for section, values in sections.items()
    }
    return recipe.model_copy(update=changed)
