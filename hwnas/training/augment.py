"""Named augmentations for the comparison of NASViT's Tables 3 and 5, and batch mixing.

The values are those of the papers' code: NASViT's weak setting, AlphaNet's AutoAugment, DeiT's and
LeViT's strong recipes. Every field can be overridden beside the name. Policies are written as timm
writes them; `inc1` matters: without it magnitude 1 posterises to 0 bits, the opposite of weak.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from hwnas.errors import UsageError, unknown_name
from hwnas.training.draws import number, seeded_globals
from hwnas.training.settings import Settings
from hwnas.training.vision import import_timm

if TYPE_CHECKING:
    from torch import Tensor

Share = Annotated[float, Field(ge=0, le=1)]
Alpha = Annotated[float, Field(ge=0, le=100)]

# Checked here so that reading a recipe does not load timm.
_POLICY = re.compile(
    r"rand(-(m|n|p|mstd|mmax|inc)\d+(\.\d+)?|-t(weights|3a|3aw))*"
    r"|(v0|v0r|original|originalr|3a)(-mstd\d+(\.\d+)?)?"
)
_WEAK_POLICY = "rand-n1-m1-mstd0.5-inc1"
_STRONG_POLICY = "rand-m9-mstd0.5-inc1"
_STRONG: dict[str, Any] = {
    "policy": _STRONG_POLICY,
    "jitter": 0.4,
    "erasing": 0.25,
    "mixup": 0.8,
    "cutmix": 1.0,
    "repeats": 3,
}
AUGMENTATIONS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "none": {},
        "weak": {"policy": _WEAK_POLICY},
        "released": {
            "policy": _WEAK_POLICY,
            "jitter": 0.4,
            "erasing": 0.01,
            "mixup": 0.01,
            "cutmix": 0.01,
        },
        "alphanet": {"policy": "v0"},
        "deit": _STRONG,
        # LeViT trains with DeiT's augmentation; it departs in its teacher, schedule and clipping.
        "levit": _STRONG,
    }
)


class Augmentation(Settings):
    """What is done to training images; the name fills every field that is not given."""

    name: str = "weak"
    policy: str = Field(
        default="", description="timm's notation of RandAugment or AutoAugment, or empty"
    )
    jitter: Share = Field(
        default=0.0, description="colour jitter; as in timm, unused beside a policy"
    )
    flip: Share = Field(
        default=0.5, description="probability; 0 for data whose meaning flips change"
    )
    crop_scale: tuple[Share, Share] = Field(
        default=(0.08, 1.0), description="area of crops, files only"
    )
    crop_padding: int | None = Field(
        default=None,
        ge=0,
        description="pixels around images kept in memory; default: an eighth of a side",
    )
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    erasing: Share = 0.0
    erasing_mode: Literal["const", "rand", "pixel"] = "pixel"
    mixup: Alpha = 0.0
    cutmix: Alpha = 0.0
    mix_probability: Share = 1.0
    switch_probability: Share = 0.5
    repeats: int = Field(default=1, ge=1, le=16, description="times an image occurs in its batch")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:  # noqa: ANN401 - whatever the caller passed
        if not isinstance(given, dict):
            return given
        name = given.get("name", "weak")
        if name not in AUGMENTATIONS:
            raise unknown_name("augmentation", str(name), AUGMENTATIONS)
        return {**AUGMENTATIONS[name], **given}

    @field_validator("policy")
    @classmethod
    def _check_policy(cls, policy: str) -> str:
        if policy and not _POLICY.fullmatch(policy):
            raise UsageError(
                f"augmentation.policy is {policy!r}; accepted: timm's notation",
                f"for example {_WEAK_POLICY!r}, 'original' or '' for none",
            )
        return policy

    @field_validator("crop_scale")
    @classmethod
    def _check_scale(cls, scale: tuple[float, float]) -> tuple[float, float]:
        if not 0 < scale[0] <= scale[1]:
            raise UsageError(f"crop_scale is {scale}; accepted: 0 < smallest <= largest <= 1")
        return scale

    @property
    def mixes(self) -> bool:
        """Whether images of a batch are mixed, so that targets are soft."""
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_probability > 0


def make_policy(policy: str, *, mean: tuple[float, ...], side: int, interpolation: str) -> Any:  # noqa: ANN401
    """Return timm's transform of a policy for images of `side` pixels, filling with `mean`."""
    library = import_timm("data.auto_augment")
    parameters: dict[str, Any] = {
        "translate_const": int(side * 0.45),
        "img_mean": tuple(min(255, round(255 * value)) for value in mean),
    }
    if interpolation != "random":
        parameters["interpolation"] = import_timm("data.transforms").str_to_pil_interp(
            interpolation
        )
    if policy.startswith("rand"):
        made = library.rand_augment_transform(policy, parameters)
    else:
        made = library.auto_augment_transform(policy, parameters)
    _repair(made)
    return made


def _repair(policy: Any) -> None:  # noqa: ANN401
    """Let operations posterise to 0 bits, which timm's policies do and Pillow 13 refuses."""
    steps = getattr(policy, "policy", None) or [policy.ops]
    for operation in (operation for step in steps for operation in step):
        if operation.name.startswith("Posterize"):
            operation.aug_fn = partial(_posterize, operation.aug_fn)


def _posterize(  # both options are passed to every operation, and mean nothing to this one
    function: Any,  # noqa: ANN401
    image: Any,  # noqa: ANN401
    bits: int,
    *,
    fillcolor: object = None,
    resample: object = None,
) -> Any:  # noqa: ANN401
    if bits > 0:
        return function(image, bits)
    return image.point(lambda _value: 0)


def training_transform(
    augmentation: Augmentation, *, side: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> Any:  # noqa: ANN401 - timm is untyped
    """Return timm's transform of one image: crop, flip, policy or jitter, normalise, erase."""
    transform = import_timm("data").create_transform(
        (len(mean), side, side),
        is_training=True,
        scale=augmentation.crop_scale,
        hflip=augmentation.flip,
        color_jitter=augmentation.jitter or None,
        auto_augment=augmentation.policy or None,
        interpolation=augmentation.interpolation,
        mean=mean,
        std=std,
        re_prob=augmentation.erasing,
        re_mode=augmentation.erasing_mode,
    )
    for step in transform.transforms:
        if hasattr(step, "policy") or hasattr(step, "ops"):
            _repair(step)
    return transform


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixing:
    """Mixup and CutMix of neighbours in a batch, with soft targets."""

    augmentation: Augmentation
    smoothing: float
    classes: int
    seed: int

    def __call__(
        self, images: "Tensor", labels: "Tensor", *, epoch: int, batch: int
    ) -> tuple["Tensor", "Tensor"]:
        """Return (mixed images, soft targets); the same for these counters on every rank.

        Image 2k is mixed with 2k + 1, so that a rank needs only its own part of a batch.
        """
        if len(images) % 2:
            raise UsageError(
                f"mixing needs an even number of images per process, this batch has {len(images)}",
                "choose an even batch size, or set augmentation.mixup and .cutmix to 0",
            )
        wanted = self.augmentation
        mix = import_timm("data").Mixup(
            mixup_alpha=wanted.mixup,
            cutmix_alpha=wanted.cutmix,
            prob=wanted.mix_probability,
            switch_prob=wanted.switch_probability,
            label_smoothing=self.smoothing,
            num_classes=self.classes,
        )
        # timm mixes the first with the last and so on: neighbours are put there, then put back.
        there = np.concatenate([np.arange(0, len(images), 2), np.arange(1, len(images), 2)[::-1]])
        back = np.argsort(there)
        with seeded_globals(number(self.seed, "mixing", epoch, batch)):
            mixed, targets = mix(images[there], labels[there])
        return mixed[back], targets[back]


def mixing(
    augmentation: Augmentation, *, smoothing: float, classes: int, seed: int
) -> Mixing | None:
    """Return the mixing that `augmentation` asks for, or None; `smoothing` is that of labels."""
    if not augmentation.mixes:
        return None
    return Mixing(augmentation=augmentation, smoothing=smoothing, classes=classes, seed=seed)
