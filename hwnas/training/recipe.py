"""The recipe: everything that decides how a supernet is trained, checked when it is read."""

from math import gcd
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, model_validator

from hwnas.errors import UsageError
from hwnas.training.augment import AUGMENTATIONS, Augmentation
from hwnas.training.datasets import DataSettings
from hwnas.training.settings import Settings

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
# A whole number stays one: in files, in digests and where it is shown.
Epochs = Annotated[
    float,
    Field(gt=0),
    AfterValidator(lambda value: int(value) if value == int(value) else value),
    PlainSerializer(lambda value: value),
]
# More threads than this end the process without a word.
_MOST_THREADS = 1024


class SpaceSettings(Settings):
    """Which space; classes and channels follow from the data."""

    name: str = "nano"
    options: dict[str, Any] = Field(
        default_factory=dict, description='of the space, for example scaling = "none"'
    )


class PlanSettings(Settings):
    """Which subnets a step trains."""

    kind: Literal["sandwich", "single-path", "complexity"] = "sandwich"
    random: int = Field(2, ge=0, le=64, description="random subnets of a step")
    draws: Literal["uniform", "even"] = Field(
        "uniform", description="even: those of a step share out the values of every gene"
    )
    vary: tuple[str, ...] = Field(
        (), description="genes whose values the largest and the smallest draw, too"
    )
    vary_share: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0, description="of the steps in which each of them does so"
    )
    levels: tuple[Positive, ...] = Field((), description="MACs, for complexity; default: spread")
    smallest_up_to: tuple[Positive, ...] = Field((), description="ends of the smallest's ranges")
    bank: int = Field(0, ge=0, le=10_000, description="good subnets that a level of cost keeps")
    bank_share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2, description="of subnets that come from the bank at first"
    )
    bank_growth: Annotated[float, Field(ge=0, le=1)] = Field(
        0.15, description="of that share, with every sixth of the training"
    )


class TeacherSettings(Settings):
    """External teachers of the subnets that would learn from labels; their mean prediction."""

    models: tuple[str, ...] = Field(
        (), description="timm model names, NAME@FILE with a checkpoint's file, folders of subnets"
    )
    temperature: Positive = 1.0
    pretrained: bool = Field(True, description="names without a file have timm's weights")


class LossSettings(Settings):
    """What is minimised."""

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="of the labels, also of those that mixup and cutmix mix"
    )
    distillation: Literal["alpha", "kl", "none"] = "alpha"
    label_share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="of the labels in the loss of subnets that learn from the largest"
    )
    alpha_min: float = -1.0
    alpha_max: float = 1.0
    alpha_clip: Positive = 5.0
    teacher: TeacherSettings = TeacherSettings()


class MergeSettings(Settings):
    """How gradients of supernet and subnets become one."""

    kind: Literal["sum", "project"] = "project"
    priority: Literal["subnets", "supernet"] = "subnets"
    scope: Literal["tensor", "layer", "all"] = "tensor"
    from_epoch: int = Field(0, ge=0, description="gradients are summed before this epoch")
    most: Positive | None = Field(None, description="limit of the coefficient; released code: 2")
    damping: NotNegative = Field(
        0.0, description="added to the square it is divided by; released code: 1e-6"
    )
    measure_conflicts_every: int = Field(
        20, ge=0, description="steps; 0: never; single-path and complexity have none"
    )


class RegularisationSettings(Settings):
    """What disturbs the largest subnet while it trains (AlphaNet does, NASViT does not)."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    drop_path: Annotated[float, Field(ge=0, lt=1)] = 0.0
    drop_path_stages: tuple[str, ...] = Field((), description="such as mb7; default: all")


class OptimiserSettings(Settings):
    """The optimiser; the learning rate is that of `reference_batch` images and scales with it."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: Positive = 3e-4
    reference_batch: Count | None = Field(None, description="lr is for this batch size")
    batch_size: Count = 128
    accumulate: Count = Field(1, description="pieces a batch is computed in")
    weight_decay: NotNegative = 0.0
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Positive = 1e-8
    momentum: Decay = 0.9
    clip_norm: NotNegative = Field(1.0, description="greatest norm of a gradient; 0: any")
    clip_value: NotNegative = Field(0.0, description="greatest gradient of a weight; 0: any")
    clip: Literal["subnets", "all"] = Field("all", description="which gradient is clipped")
    average_decay: Decay = Field(0.0, description="of the moving average of weights; 0: none")


class ScheduleSettings(Settings):
    """How long, and how the learning rate moves: warm-up, then cosine."""

    epochs: Epochs = Field(10, description="may end within one: 0.5 is half of the images")
    warmup_epochs: NotNegative = 0.5
    warmup_lr: NotNegative = 0.0
    min_lr: NotNegative = 0.0

    def steps(self, per_epoch: int) -> int:
        """Return how many steps that is."""
        return max(1, round(self.epochs * per_epoch))


class EvaluationSettings(Settings):
    """Accuracies on the held-out part while it trains."""

    every_epochs: int = Field(1, ge=0, description="0: only at the end")
    random_subnets: int = Field(2, ge=0)
    images: Count | None = Field(None, description="held-out images; default: all")
    batch_size: Count = 256
    calibration_images: Count = 2048


class ProcessSettings(Settings):
    """Where and how it runs."""

    seed: int = Field(0, ge=0, lt=2**63)
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1")
    threads: int | None = Field(None, ge=1, le=_MOST_THREADS)
    streams: int = Field(
        1, ge=1, le=_MOST_THREADS, description="subnets of a step side by side, on a CPU"
    )
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    channels_last: bool = Field(True, description="memory layout of maps; false is slower")
    compile: Literal["off", "blocks"] = Field("off", description="torch.compile, for long runs")
    sync_batchnorm: bool = Field(
        False, description="batch statistics of all processes together, not of each"
    )
    checkpoint_seconds: Positive = 60.0
    tensorboard: bool = False


class Recipe(Settings):
    """A whole recipe."""

    space: SpaceSettings = SpaceSettings()
    data: DataSettings
    plan: PlanSettings = PlanSettings()
    losses: LossSettings = LossSettings()
    merge: MergeSettings = MergeSettings()
    augmentation: Augmentation = Augmentation()
    regularisation: RegularisationSettings = RegularisationSettings()
    optimiser: OptimiserSettings = OptimiserSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    process: ProcessSettings = ProcessSettings()

    @model_validator(mode="before")
    @classmethod
    def _one_smoothing(cls, given: Any) -> Any:  # noqa: ANN401 - whatever the caller passed
        return _without_second_smoothing(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        if self.schedule.warmup_epochs >= self.schedule.epochs:
            raise UsageError(
                f"schedule.warmup_epochs is {self.schedule.warmup_epochs:g} of "
                f"{self.schedule.epochs:g} epochs; accepted: fewer than schedule.epochs",
                f"--set schedule.warmup_epochs={self.schedule.epochs / 10:g}",
            )
        parts = (self.optimiser.batch_size, self.optimiser.accumulate)
        if self.optimiser.batch_size % self.optimiser.accumulate:
            raise UsageError(
                f"optimiser.accumulate is {self.optimiser.accumulate}; accepted: a divisor of "
                f"batch_size {self.optimiser.batch_size}",
                f"--set optimiser.accumulate={gcd(*parts)}",
            )
        if self.losses.alpha_min >= self.losses.alpha_max:
            raise UsageError(
                f"losses.alpha_min is {self.losses.alpha_min:g} and losses.alpha_max "
                f"{self.losses.alpha_max:g}; accepted: a smaller alpha_min",
                "--set losses.alpha_min=-1 --set losses.alpha_max=1, as in the papers",
            )
        if self.plan.bank and self.plan.kind != "complexity":
            raise UsageError(
                f"plan.bank is {self.plan.bank} for plan.kind {self.plan.kind!r}; accepted: 0, or "
                "plan.kind complexity"
            )
        if self.process.sync_batchnorm and self.process.compile != "off":
            raise UsageError(
                "process.sync_batchnorm cannot be compiled; accepted: one of both",
                "--set process.compile=off",
            )
        _check_levels(self.plan)
        for option in ("classes", "channels"):
            if option in self.space.options:
                raise UsageError(
                    f"space.options.{option} is {self.space.options[option]!r}; it follows from "
                    "the data, so leave it out",
                    "data.channels says how images are read" if option == "channels" else "",
                )
        return self


def _without_second_smoothing(given: dict[str, Any]) -> dict[str, Any]:
    """Return a document without the smoothing that mixing had of its own in earlier versions.

    Resolved recipes of runs all have it; it is refused only where leaving it out would change them.
    """
    augmentation, losses = given.get("augmentation"), given.get("losses", {})
    if not isinstance(augmentation, dict) or "label_smoothing" not in augmentation:
        return given
    kept = {key: value for key, value in augmentation.items() if key != "label_smoothing"}
    its = augmentation["label_smoothing"]
    usual = LossSettings.model_fields["label_smoothing"].default
    ours = losses.get("label_smoothing", usual) if isinstance(losses, dict) else its
    filled = {"mix_probability": 1, **AUGMENTATIONS.get(str(kept.get("name")), {}), **kept}
    mixes = (filled.get("mixup") or filled.get("cutmix")) and filled["mix_probability"]
    if mixes and its != ours:
        raise UsageError(
            f"augmentation.label_smoothing is {its} and losses.label_smoothing {ours}; accepted: "
            "the latter alone, which mixed labels go by, too",
            f"write label_smoothing = {its} in [losses], and none in [augmentation]",
        )
    return {**given, "augmentation": kept}


def _check_levels(plan: PlanSettings) -> None:
    levels, ends = plan.levels, plan.smallest_up_to
    if bool(levels) != bool(ends):
        raise UsageError("plan.levels and plan.smallest_up_to are given together or not at all")
    for name, values in (("levels", levels), ("smallest_up_to", ends)):
        if list(values) != sorted(set(values)):
            raise UsageError(f"plan.{name} is {list(values)}; accepted: MACs in rising order")
    if levels and levels[-1] > ends[-1]:
        raise UsageError(
            f"plan.smallest_up_to ends at {ends[-1]:g} MACs, plan.levels at {levels[-1]:g}; "
            "accepted: ranges that reach the last level"
        )
