"""From a recipe to a prepared run."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from hwnas.errors import UsageError, unknown_name
from hwnas.spaces import Space, space
from hwnas.supernet import Supernet
from hwnas.training.augment import Mixing, mixing
from hwnas.training.bank import Bank, share_of_bank
from hwnas.training.compiled import block_compiler
from hwnas.training.datasets import Data
from hwnas.training.distributed import Ranks
from hwnas.training.flat import FlatParameters
from hwnas.training.loader import Piece, training_batches
from hwnas.training.loop import Training
from hwnas.training.losses import distillation
from hwnas.training.merges import Merge
from hwnas.training.optimise import Average, Cosine, LossScale, Optimiser, make_optimiser
from hwnas.training.plans import (
    Plan,
    alone,
    complexity_aware,
    default_levels,
    sandwich,
    single_path,
)
from hwnas.training.recipe import Recipe
from hwnas.training.step import Stepper, StepSettings
from hwnas.training.teachers import load_teacher


def space_for(recipe: Recipe, data: Data) -> Space:
    """Return the recipe's space, with the classes and channels of the data."""
    options = {**recipe.space.options, "classes": len(data.classes), "channels": data.channels}
    return space(recipe.space.name, **options)


def prepare(
    recipe: Recipe, data: Data, supernet: Supernet, *, device: torch.device, ranks: Ranks
) -> Training:
    """Return the run that the recipe describes, ready to train `supernet` on `data`."""
    if device.type == "cpu" and recipe.process.precision == "fp16":
        raise UsageError(
            "process.precision is fp16 on a CPU; accepted: fp32, bf16 (slower on most CPUs)",
            "--set process.precision=fp32",
        )
    _check_stages(recipe, supernet)
    supernet = supernet.to(device)
    if not recipe.process.channels_last:
        supernet.memory_format = torch.contiguous_format
    flat = FlatParameters(supernet, decays=_decays)
    wanted = recipe.optimiser
    batches = training_batches(
        data,
        batch_size=wanted.batch_size,
        augmentation=recipe.augmentation,
        seed=recipe.process.seed,
        piece=Piece(rank=ranks.rank, world=ranks.world),
        pin_memory=device.type == "cuda",
    )
    bank = make_bank(recipe, supernet.space)
    stepper = Stepper(
        supernet,
        flat,
        _optimiser(recipe, flat),
        _step_settings(recipe, data, device),
        average=Average(flat.weights, wanted.average_decay) if wanted.average_decay else None,
        loss_scale=LossScale(enabled=recipe.process.precision == "fp16"),
        ranks=ranks,
    )
    return Training(
        recipe=recipe,
        data=data,
        supernet=supernet,
        flat=flat,
        stepper=stepper,
        plan=make_plan(recipe, supernet.space, bank=bank),
        bank=bank,
        batches=batches,
        mix=_mixing(recipe, len(data.classes)),
        learning_rate=schedule(recipe, len(batches)),
        device=device,
        ranks=ranks,
    )


def _mixing(recipe: Recipe, classes: int) -> Mixing | None:
    return mixing(
        recipe.augmentation,
        smoothing=recipe.losses.label_smoothing,
        classes=classes,
        seed=recipe.process.seed,
    )


def _optimiser(recipe: Recipe, flat: FlatParameters) -> Optimiser:
    wanted = recipe.optimiser
    return make_optimiser(
        wanted.name,
        flat,
        weight_decay=wanted.weight_decay,
        betas=wanted.betas,
        eps=wanted.eps,
        momentum=wanted.momentum,
    )


def make_bank(recipe: Recipe, of: Space) -> Bank | None:
    """Return the empty bank of a recipe, if it asks for one."""
    if not recipe.plan.bank:
        return None
    levels = len(recipe.plan.levels or default_levels(of)[0])
    return Bank(of, levels=levels, size=recipe.plan.bank)


def make_plan(recipe: Recipe, of: Space, *, bank: Bank | None = None) -> Plan:
    """Return the plan of a recipe."""
    wanted = recipe.plan
    distils = recipe.losses.distillation != "none"
    if of.count() == 1:
        return alone(of)
    if wanted.kind == "single-path":
        return single_path(of)
    if wanted.kind == "sandwich":
        unknown = next((gene for gene in wanted.vary if gene not in of.genes), None)
        if unknown is not None:
            raise unknown_name("gene in plan.vary", unknown, of.genes)
        return sandwich(
            of,
            random=wanted.random,
            distils=distils,
            evenly=wanted.draws == "even",
            vary=wanted.vary,
            vary_share=wanted.vary_share,
        )
    levels, ends = wanted.levels, wanted.smallest_up_to
    if not levels:
        levels, ends = default_levels(of)
    share = partial(
        share_of_bank,
        epochs=recipe.schedule.epochs,
        start=wanted.bank_share,
        growth=wanted.bank_growth,
    )
    return complexity_aware(
        of,
        levels=levels,
        smallest_up_to=ends,
        subnets=max(1, wanted.random),
        distils=distils,
        bank=bank,
        bank_share=share,
    )


def _check_stages(recipe: Recipe, supernet: Supernet) -> None:
    wanted = recipe.regularisation.drop_path_stages
    stages = {slot.partition("_")[0] for slot in supernet.blocks} if wanted else set()
    for stage in wanted:
        if stage not in stages:
            raise unknown_name("stage in regularisation.drop_path_stages", stage, sorted(stages))


def _decays(name: str, tensor: Tensor) -> bool:
    """Weights of layers decay; biases, norms, tables and scaling vectors do not."""
    return name.endswith(".weight") and tensor.dim() > 1


def _step_settings(recipe: Recipe, data: Data, device: torch.device) -> StepSettings:
    losses, merge, teacher = recipe.losses, recipe.merge, recipe.losses.teacher
    kind = "kl" if losses.distillation == "none" else losses.distillation
    return StepSettings(
        distillation=distillation(
            kind, alpha_min=losses.alpha_min, alpha_max=losses.alpha_max, clip=losses.alpha_clip
        ),
        label_smoothing=losses.label_smoothing,
        label_share=losses.label_share,
        merge=Merge(
            priority="none" if merge.kind == "sum" else merge.priority,
            most=float("inf") if merge.most is None else merge.most,
            damping=merge.damping,
        ),
        merge_scope=merge.scope,
        clip=recipe.optimiser.clip_norm or None,
        clip_value=recipe.optimiser.clip_value or None,
        clip_scope=recipe.optimiser.clip,
        accumulate=recipe.optimiser.accumulate,
        teacher=load_teacher(
            teacher.models,
            pretrained=teacher.pretrained,
            temperature=teacher.temperature,
            data=data,
            device=device,
        ),
        autocast=_autocast(recipe.process.precision, device),
        dropout=recipe.regularisation.dropout,
        drop_path=recipe.regularisation.drop_path,
        drop_path_stages=recipe.regularisation.drop_path_stages,
        synchronises_norms=recipe.process.sync_batchnorm,
        prepare_blocks=block_compiler(device) if recipe.process.compile == "blocks" else None,
        streams=recipe.process.streams if device.type == "cpu" else 1,
    )


def _autocast(precision: str, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    if precision == "fp32":
        return nullcontext
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    return partial(torch.autocast, device.type, dtype=dtype)


def schedule(recipe: Recipe, steps_per_epoch: int) -> Cosine:
    """Return the learning rate of a recipe's steps."""
    wanted, optimiser = recipe.schedule, recipe.optimiser
    reference = optimiser.reference_batch or optimiser.batch_size
    factor = optimiser.batch_size / reference
    return Cosine(
        peak=optimiser.lr * factor,
        floor=wanted.min_lr * factor,
        start=wanted.warmup_lr * factor,
        warmup_steps=round(wanted.warmup_epochs * steps_per_epoch),
        steps=wanted.steps(steps_per_epoch),
    )
