"""Options of a step: clipped values, half precision, memory layout, compiled blocks."""

import os
import shutil
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.nn import functional as F

import hwnas
from hwnas.errors import HwnasError
from hwnas.nets.build import build_block
from hwnas.nets.regularise import DropPath
from hwnas.pipeline.config import read_recipe
from hwnas.supernet import Supernet
from hwnas.training.compiled import block_compiler
from hwnas.training.distributed import Ranks
from hwnas.training.flat import FlatParameters, Segment
from hwnas.training.losses import adaptive_alpha, kl
from hwnas.training.merges import Merge
from hwnas.training.optimise import Average, LossScale, make_optimiser
from hwnas.training.plans import Moment, Task, sandwich
from hwnas.training.step import NonFiniteLossError, Stepper, StepSettings


def make_stepper(
    space, settings: StepSettings, *, lr_name: str = "sgd", scales: bool = False
) -> Stepper:
    supernet = Supernet(space).train()
    flat = FlatParameters(supernet, decays=lambda name, tensor: tensor.dim() > 1)
    optimiser = make_optimiser(
        lr_name, flat, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8, momentum=0.0
    )
    return Stepper(
        supernet, flat, optimiser, settings,
        average=Average(flat.weights, 0.5), loss_scale=LossScale(enabled=scales), ranks=Ranks(),
    )  # fmt: skip


def batch(n: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(n, 1, 24, 24, generator=generator)
    return images, torch.randint(0, 10, (n,), generator=generator)


def test_branches_are_left_out_only_in_the_stages_named() -> None:
    space = hwnas.space("nano", channels=1)
    settings = StepSettings(distillation=kl, drop_path=0.5, drop_path_stages=("t4",))
    stepper = make_stepper(space, settings)
    task = Task(arch=space.largest(), role="largest", is_supernet=True)
    with stepper._regularised(task):
        rates = {slot: block.drop.rate for slot, block in stepper.supernet.at(task.arch).items()
                 if hasattr(block, "drop") and isinstance(block.drop, DropPath)}  # fmt: skip
    assert {slot.partition("_")[0] for slot, rate in rates.items() if rate} == {"t4"}
    assert len({slot.partition("_")[0] for slot in rates}) == 4


@pytest.mark.parametrize("scope", ["all", "subnets"])
def test_gradient_values_are_clipped(scope: str) -> None:
    space = hwnas.space("nano", channels=1)
    images, labels = batch()
    tasks = sandwich(space, random=0, distils=True)(Moment(0, 0, 0))
    limit = 1e-3
    merged = {}
    for clip_value in (None, limit):
        settings = StepSettings(distillation=kl, clip_value=clip_value, clip_scope=scope)
        stepper = make_stepper(space, settings)
        stepper(images, labels, tasks, learning_rate=1.0)
        merged[clip_value] = [gradient.clone() for gradient in stepper.flat.gradients]
    (total, subnets), (clipped_total, clipped_subnets) = merged[None], merged[limit]
    assert total.abs().max() > 2 * limit
    if scope == "all":
        torch.testing.assert_close(clipped_total, total.clamp(-limit, limit))
    else:
        torch.testing.assert_close(clipped_subnets, subnets.clamp(-limit, limit))
        torch.testing.assert_close(clipped_total, total - subnets + clipped_subnets)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_steps_are_near_those_of_full_precision(dtype: torch.dtype) -> None:
    """The path of GPUs, on a CPU: autocast, loss scaling, accumulation, average."""
    space = hwnas.space("nano", channels=1)
    images, labels = batch(16)
    tasks = sandwich(space, random=1, distils=True)(Moment(0, 0, 0))
    gradients, losses = {}, {}
    for kind in (None, dtype):
        autocast = partial(torch.autocast, "cpu", dtype=kind) if kind else nullcontext
        settings = StepSettings(
            distillation=kl, autocast=autocast, accumulate=2, merge=Merge(priority="subnets")
        )
        stepper = make_stepper(space, settings, scales=kind == torch.float16)
        if stepper.loss_scale.enabled:
            stepper.loss_scale.value = 2.0**8  # where it would be after some overflows
        result = stepper(images, labels, tasks, learning_rate=0.1)
        assert result.updated
        assert stepper.loss_scale.good_steps == (kind == torch.float16)
        gradients[kind], losses[kind] = stepper.flat.gradients[0], dict(result.losses)
    cosine = F.cosine_similarity(gradients[None], gradients[dtype], dim=0)
    assert cosine > 0.98
    assert not torch.equal(gradients[None], gradients[dtype])
    assert losses[dtype] == pytest.approx(losses[None], rel=0.02)


def test_an_overflow_skips_the_update_and_halves_the_scale() -> None:
    space = hwnas.space("nano", channels=1)
    autocast = partial(torch.autocast, "cpu", dtype=torch.float16)
    stepper = make_stepper(space, StepSettings(distillation=kl, autocast=autocast), scales=True)
    stepper.loss_scale.value = 2.0**40
    before = stepper.flat.weights.clone()
    images, labels = batch()
    tasks = sandwich(space, random=0, distils=True)(Moment(0, 0, 0))
    assert not stepper(images, labels, tasks, learning_rate=0.1).updated
    assert torch.equal(before, stepper.flat.weights)
    assert stepper.loss_scale.value == 2.0**39


def test_gradients_that_no_scale_makes_finite_end_the_training() -> None:
    """A loss that is finite while its gradient is not: every step would be skipped for ever."""
    space = hwnas.space("nano", channels=1)

    def broken(logits: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return (logits - logits).abs().sqrt().mean()

    stepper = make_stepper(space, StepSettings(distillation=broken), scales=True)
    before = stepper.flat.weights.clone()
    images, labels = batch()
    tasks = sandwich(space, random=0, distils=True)(Moment(0, 0, 0))
    while stepper.loss_scale.value > 2.0**-16:
        assert not stepper(images, labels, tasks, learning_rate=0.1).updated
    with pytest.raises(NonFiniteLossError, match="whatever the loss is scaled by") as caught:
        stepper(images, labels, tasks, learning_rate=0.1)
    assert "process.precision=bf16" in caught.value.hint
    assert stepper.loss_scale.value > 0
    assert torch.equal(before, stepper.flat.weights)


@pytest.mark.parametrize("scales", [False, True])
def test_a_loss_that_is_not_finite_in_half_precision_may_be_due_to_that(scales: bool) -> None:
    space = hwnas.space("nano", channels=1)
    stepper = make_stepper(space, StepSettings(distillation=kl), scales=scales)
    images, labels = batch()
    tasks = sandwich(space, random=0, distils=True)(Moment(0, 0, 0))
    with pytest.raises(NonFiniteLossError) as caught:
        stepper(images / 0, labels, tasks, learning_rate=0.1)
    assert ("process.precision=bf16" in caught.value.hint) == scales
    assert "optimiser.lr" in caught.value.hint


def test_the_memory_layout_changes_no_result() -> None:
    space = hwnas.space("nano", channels=1)
    images, labels = batch()
    tasks = sandwich(space, random=0, distils=True)(Moment(0, 0, 0))
    weights = []
    for memory_format in (torch.channels_last, torch.contiguous_format):
        stepper = make_stepper(space, StepSettings(distillation=kl))
        stepper.supernet.memory_format = memory_format
        stepper(images, labels, tasks, learning_rate=0.1)
        weights.append(stepper.flat.weights.clone())
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)


def test_compiled_blocks_train_as_plain_ones_do() -> None:
    """The wiring, with a compiler that only records: every block is compiled, and once."""
    space = hwnas.space("nano", channels=1)
    images, labels = batch()
    tasks = (
        Task(arch=space.smallest(), role="smallest", is_supernet=True),
        Task(arch=space.arch({**space.smallest(), "t4.width": 72}), role="random"),
    )
    prepare = block_compiler(torch.device("cpu"), backend="eager")
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    weights = []
    for prepare_blocks in (None, prepare):
        settings = StepSettings(distillation=kl, prepare_blocks=prepare_blocks)
        stepper = make_stepper(space, settings)
        for _ in range(2):
            stepper(images, labels, tasks, learning_rate=0.1)
        weights.append(stepper.flat.weights.clone())
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)
    blocks = {id(block) for task in tasks for block in stepper.supernet.at(task.arch).values()}
    assert graphs["unique_graphs"] - before == len(blocks)


def test_a_block_compiled_for_real_equals_the_plain_one() -> None:
    block = build_block(hwnas.space("nano").network(hwnas.space("nano").smallest()).blocks[1].block)
    x = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0))
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        with pytest.raises(HwnasError, match="torch cannot compile here") as caught:
            block_compiler(torch.device("cpu"))
        assert "\n" not in caught.value.message
        return
    wanted = block(x)
    (wanted_grad,) = torch.autograd.grad(wanted.square().sum(), block.project.weight)
    block_compiler(torch.device("cpu"))([block])
    got = block(x)
    (got_grad,) = torch.autograd.grad(got.square().sum(), block.project.weight)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got_grad, wanted_grad, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_compiled_is_explained() -> None:
    with pytest.raises(HwnasError, match=r"torch cannot compile here: .*no-such-backend") as caught:
        block_compiler(torch.device("cpu"), backend="no-such-backend")
    assert "process.compile=off" in caught.value.hint


def test_alpha_of_zero_clips_the_ratio_as_the_released_code_does() -> None:
    logits = torch.tensor([[4.0, 0.0, -4.0]]).requires_grad_()
    p = torch.tensor([[0.01, 0.04, 0.95]])
    loss = adaptive_alpha(alpha_min=0.0, alpha_max=0.5, clip=5.0)(logits, p)
    (got,) = torch.autograd.grad(loss, logits)
    q, log_q = logits.detach().softmax(-1), logits.log_softmax(-1)
    ratio = (p / q).clamp(max=5.0)
    value = -(q * ratio.log()).sum()
    other = (p / q).sqrt().clamp(max=5.0)
    assert value > (q * (-4 * other + 4)).sum()  # so that alpha 0 is what is learned from
    (wanted,) = torch.autograd.grad(-(q * (ratio.log() - 1) * log_q).sum(), logits)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("factor", [1.0, 0.01])
def test_the_released_damping_counts_beside_the_clipped_gradient(factor: float) -> None:
    """Written as in the released code, whose gradient of the subnets is clipped before."""
    generator = torch.Generator().manual_seed(0)
    sup, other = 1e-3 * torch.randn(2, 6, generator=generator, dtype=torch.double)
    sub = (0.5 * other - sup) / factor
    scope = [[Segment("w", 0, 6)]]
    clipped = factor * sub
    coefficient = (-(clipped @ sup) / (clipped @ clipped + 1e-6)).clamp(0, 2)
    assert 0.1 < coefficient < 1.5  # neither without effect nor limited
    assert (clipped @ clipped) < 1e-4
    merged = sup.clone()
    Merge(priority="subnets", most=2.0, damping=1e-6)(merged, sub, scope, sub_factor=factor)
    torch.testing.assert_close(merged, clipped + sup + coefficient * clipped)
    merged = sup.clone()
    Merge(priority="supernet", damping=1e-6)(merged, sub, scope, sub_factor=factor)
    coefficient = -(clipped @ sup) / (sup @ sup + 1e-6)
    torch.testing.assert_close(merged, clipped + sup + coefficient * sup)


def test_the_recipe_of_the_released_code_damps_as_it_does() -> None:
    assert read_recipe("nasvit-released").merge.damping == 1e-6
    assert read_recipe("nasvit").merge.damping == 0.0
