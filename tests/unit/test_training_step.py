"""Losses, merges and the step, against formulas written out."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import hwnas
from hwnas.supernet import Supernet
from hwnas.training.distributed import Ranks
from hwnas.training.flat import FlatParameters, Segment, scopes
from hwnas.training.losses import adaptive_alpha, kl, label_loss
from hwnas.training.merges import Merge, conflict_ratio
from hwnas.training.optimise import Average, Cosine, LossScale, clip_factor, make_optimiser
from hwnas.training.plans import Moment, Task, sandwich
from hwnas.training.step import NonFiniteLossError, Stepper, StepSettings


def gradients(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, list[Segment]]:
    generator = torch.Generator().manual_seed(seed)
    segments, start = [], 0
    for index, size in enumerate((3, 7, 1, 20, 64)):
        segments.append(Segment(f"layer{index // 2}.w{index}", start, size))
        start += size
    sup, sub = torch.randn(2, start, generator=generator).unbind()
    sub[:3] = -2 * sup[:3]  # one tensor in full conflict
    sub[3:10] = 0.5 * sup[3:10]  # one in agreement
    sub[10:11] = 0  # one that no subnet touched
    return sup.clone(), sub.clone(), segments


def by_equation_1(sup, sub, parts, *, priority="subnets"):
    """g = sub + proj(sup), written as in the paper, in double precision."""
    total = torch.empty_like(sup, dtype=torch.double)
    for index in parts:
        s, u = sup[index].double(), sub[index].double()
        dot = s @ u
        if dot < 0 and priority == "subnets":
            s = s - dot / (u @ u) * u
        elif dot < 0:
            u = u - dot / (s @ s) * s
        total[index] = s + u
    return total


@pytest.mark.parametrize("scope", ["tensor", "layer", "all"])
@pytest.mark.parametrize("priority", ["subnets", "supernet"])
@pytest.mark.parametrize("seed", range(5))
def test_projection_is_equation_1(scope: str, priority: str, seed: int) -> None:
    sup, sub, segments = gradients(seed)
    grouped = scopes(segments, scope)
    parts = [torch.cat([torch.arange(s.start, s.start + s.size) for s in g]) for g in grouped]
    wanted = by_equation_1(sup, sub, parts, priority=priority)
    merged = sup.clone()
    Merge(priority=priority)(merged, sub, grouped, sub_factor=1.0)
    torch.testing.assert_close(merged.double(), wanted, rtol=1e-5, atol=1e-6)
    # The projected part no longer conflicts with the one that has priority.
    kept, projected = (sub, merged - sub) if priority == "subnets" else (sup, merged - sup)
    for part in parts:
        before = (sup if priority == "subnets" else sub)[part]
        assert kept[part] @ projected[part] >= -1e-5 * kept[part].norm() * before.norm()


def test_sum_adds() -> None:
    sup, sub, segments = gradients()
    merged = sup.clone()
    Merge()(merged, sub, scopes(segments, "tensor"), sub_factor=0.5)
    torch.testing.assert_close(merged, sup + 0.5 * sub)


def test_clipping_before_projection_is_folded_in() -> None:
    sup, sub, segments = gradients()
    grouped = scopes(segments, "tensor")
    for priority in ("subnets", "supernet"):
        folded, explicit = sup.clone(), sup.clone()
        Merge(priority=priority)(folded, sub, grouped, sub_factor=0.1)
        Merge(priority=priority)(explicit, 0.1 * sub, grouped, sub_factor=1.0)
        torch.testing.assert_close(folded, explicit)


def test_the_released_limit_leaves_a_conflict() -> None:
    """Supernet 10, subnets -1: Eq. 1 gives -1, the released coefficient of at most 2 gives 7."""
    scope = [[Segment("w", 0, 1)]]
    for most, wanted in ((float("inf"), -1.0), (2.0, 7.0)):
        sup = torch.tensor([10.0])
        Merge(priority="subnets", most=most)(sup, torch.tensor([-1.0]), scope, sub_factor=1.0)
        assert sup.item() == pytest.approx(wanted)


def test_conflict_ratio_counts_layers_that_both_touch() -> None:
    segments = [Segment(f"l{i}.w", i, 1) for i in range(4)]
    sup, sub = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([-1.0, 2.0, 0.0, 3.0])
    assert conflict_ratio(sup, sub, scopes(segments, "layer")) == 0.5
    assert conflict_ratio(torch.zeros_like(sup), sub, scopes(segments, "layer")) is None


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_projection_is_finite_at_any_scale(scale: float) -> None:
    sup, sub, segments = gradients()
    merged = sup * 1e3
    Merge(priority="subnets")(merged, sub * scale, scopes(segments, "tensor"), sub_factor=1.0)
    assert torch.isfinite(merged).all()


def test_kl_has_the_gradient_of_the_divergence() -> None:
    logits = torch.randn(4, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    teacher = torch.rand(4, 7, generator=torch.Generator().manual_seed(1)).softmax(-1)
    (ours,) = torch.autograd.grad(kl(logits, teacher), logits)
    (theirs,) = torch.autograd.grad(
        F.kl_div(logits.log_softmax(-1), teacher, reduction="batchmean"), logits
    )
    torch.testing.assert_close(ours, theirs)


def test_alpha_loss_picks_the_larger_divergence_per_sample() -> None:
    """With alpha in {-1, 1}: an over-confident student is judged by alpha -1, else by KL."""
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(16, 5, generator=generator)).requires_grad_()
    p = (3 * torch.randn(16, 5, generator=generator)).softmax(-1)
    loss = adaptive_alpha(alpha_min=-1.0, alpha_max=1.0, clip=5.0)(logits, p)
    (got,) = torch.autograd.grad(loss, logits)
    wanted = torch.zeros_like(logits)
    chosen = set()
    for row in range(16):
        x = logits[row].detach().requires_grad_()
        q, log_q = x.softmax(-1).detach(), x.log_softmax(-1)
        w = (q / p[row]).clamp(0, 5)
        low_value, low = (q * (w / 2 - 0.5)).sum(), -(q * (0.5 - w) * log_q).sum()
        high_value, high = (p[row] * (p[row] / q).log()).sum(), -(p[row] * log_q).sum()
        chosen.add(bool(low_value > high_value))
        (wanted[row],) = torch.autograd.grad(low if low_value > high_value else high, x)
    assert chosen == {True, False}
    torch.testing.assert_close(got, wanted / 16, rtol=1e-4, atol=1e-6)


def test_label_loss_takes_soft_targets_as_they_are() -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 3, 1])
    soft = F.one_hot(labels, 4) * 0.9 + 0.1 / 4
    torch.testing.assert_close(
        label_loss(logits, soft, smoothing=0.5), label_loss(logits, labels, smoothing=0.1)
    )


def test_schedule() -> None:
    rate = Cosine(peak=1.0, floor=0.1, start=0.01, warmup_steps=10, steps=110)
    assert rate(0) == pytest.approx(0.01)
    assert rate(10) == pytest.approx(1.0)
    assert rate(60) == pytest.approx(0.55)
    assert rate(110) == pytest.approx(0.1)


def test_loss_scale_halves_on_overflow_and_grows_with_patience() -> None:
    scale = LossScale(enabled=True, start=8.0, patience=2)
    gradient = torch.tensor([8.0])
    assert scale.unscale(gradient)
    assert gradient.item() == 1.0
    assert not scale.unscale(torch.tensor([float("inf")]))
    assert scale.value == 4.0
    assert scale.unscale(torch.ones(1))
    assert scale.unscale(torch.ones(1))
    assert scale.value == 8.0


def make_stepper(space, settings: StepSettings, *, lr_name: str = "sgd") -> Stepper:
    supernet = Supernet(space).train()
    flat = FlatParameters(supernet, decays=lambda name, tensor: tensor.dim() > 1)
    optimiser = make_optimiser(
        lr_name, flat, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8, momentum=0.0
    )
    return Stepper(
        supernet, flat, optimiser, settings,
        average=Average(flat.weights, 0.5), loss_scale=LossScale(enabled=False), ranks=Ranks(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "momentum"), [("adamw", 0.0), ("sgd", 0.0), ("sgd", 0.9)], ids=str
)
def test_optimisers_step_as_those_of_torch(name: str, momentum: float) -> None:
    network = torch.nn.Linear(3, 4)
    flat = FlatParameters(network, decays=lambda name, tensor: tensor.dim() > 1)
    ours = make_optimiser(
        name, flat, weight_decay=0.3, betas=(0.8, 0.95), eps=1e-6, momentum=momentum
    )
    theirs = [part.clone().requires_grad_() for part in flat.weights.split([12, 4])]
    groups = [{"params": [theirs[0]], "weight_decay": 0.3}, {"params": [theirs[1]]}]
    torchs = (
        torch.optim.AdamW(groups, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.0, fused=True)
        if name == "adamw"
        else torch.optim.SGD(groups, momentum=momentum, nesterov=momentum > 0, fused=True)
    )
    generator = torch.Generator().manual_seed(0)
    for rate in (0.1, 0.03, 0.01):
        flat.gradients[0].copy_(torch.randn(16, generator=generator))
        for part, entries in zip(theirs, (slice(0, 12), slice(12, 16)), strict=True):
            part.grad = flat.gradients[0][entries].clone()
        for group in torchs.param_groups:
            group["lr"] = rate
        ours.step(learning_rate=rate)
        torchs.step()
        assert torch.equal(flat.weights, torch.cat(theirs))


def batch(n: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(n, 1, 24, 24, generator=generator)
    return images, torch.randint(0, 10, (n,), generator=generator)


def test_a_step_is_the_sum_of_its_losses_by_ordinary_autograd() -> None:
    space = hwnas.space("nano", channels=1)
    stepper = make_stepper(space, StepSettings(distillation=kl, label_smoothing=0.1))
    tasks = sandwich(space, random=1, distils=True)(Moment(0, 0, 0))
    images, labels = batch()
    plain = Supernet(space).train()
    teacher_logits = plain(images, tasks[0].arch)
    total = F.cross_entropy(teacher_logits, labels, label_smoothing=0.1)
    teacher = teacher_logits.detach().softmax(-1)
    for task in tasks[1:]:
        total = total + kl(plain(images, task.arch), teacher)
    total.backward()
    before = {name: tensor.detach().clone() for name, tensor in plain.named_parameters()}
    result = stepper(images, labels, tasks, learning_rate=0.1, measures_conflicts=True)
    assert 0 <= result.conflict_ratio <= 1
    for name, tensor in stepper.supernet.named_parameters():
        gradient = plain.get_parameter(name).grad
        wanted = before[name] if gradient is None else before[name] - 0.1 * gradient
        torch.testing.assert_close(tensor, wanted, rtol=1e-4, atol=1e-5)
    average = dict(stepper.flat.named(stepper.average.weights))
    name = "blocks.head.classify.weight"
    moved = stepper.supernet.get_parameter(name)
    torch.testing.assert_close(average[name], (before[name] + moved) / 2)


def test_accumulated_pieces_equal_the_whole_batch_without_batch_norm() -> None:
    """Label loss of one subnet: gradients of two half batches average to that of the batch.

    Batch statistics differ between halves, so images are repeated: both halves are the same.
    """
    space = hwnas.space("nano", channels=1)
    images, labels = batch(4)
    images, labels = images.repeat(2, 1, 1, 1), labels.repeat(2)
    tasks = (Task(arch=space.largest(), role="largest", is_supernet=True),)
    weights = []
    for pieces in (1, 2):
        settings = StepSettings(distillation=kl, accumulate=pieces)
        stepper = make_stepper(space, settings)
        stepper(images, labels, tasks, learning_rate=0.1)
        weights.append(stepper.flat.weights.clone())
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)


def test_accumulated_pieces_count_by_their_images() -> None:
    """Three images in two pieces are two and one, as where ranks share a batch."""
    space = hwnas.space("nano", channels=1)
    images, labels = batch(1)
    images, labels = images.repeat(3, 1, 1, 1), labels.repeat(3)
    tasks = (Task(arch=space.largest(), role="largest", is_supernet=True),)
    losses = []
    for pieces in (1, 2):
        stepper = make_stepper(space, StepSettings(distillation=kl, accumulate=pieces))
        taken = images.clone()
        taken[2] += 1  # so that the pieces differ
        shares = []
        stepper.settings = replace(
            stepper.settings, distillation=kl, teacher=lambda x: shares.append(len(x)) or None
        )
        result = stepper(taken, labels, tasks, learning_rate=0.0)
        losses.append(result.losses[0][1])
        assert shares == [[3], [2, 1]][pieces - 1]
    alone = [
        make_stepper(space, StepSettings(distillation=kl))(
            part, labels[: len(part)], tasks, learning_rate=0.0
        ).losses[0][1]
        for part in (images[:2], images[2:] + 1)
    ]
    assert losses[1] == pytest.approx((2 * alone[0] + alone[1]) / 3, rel=1e-4)
    assert abs(alone[0] - alone[1]) > 1e-4


def test_index_picks_follow_flat_updates() -> None:
    space = hwnas.space("nano", channels=1)
    space = replace(space, picks={**space.picks, "dim": "bilateral", "value": "cyclic"})
    stepper = make_stepper(space, StepSettings(distillation=kl))
    images, labels = batch()
    arch = space.smallest()
    tasks = (Task(arch=arch, role="random"),)
    for _ in range(2):
        before = stepper.supernet(images, arch)
        stepper(images, labels, tasks, learning_rate=0.1)
        after = stepper.supernet(images, arch)
        assert not torch.equal(before, after)
        assert torch.equal(after, stepper.supernet.extract(arch)(images))


def test_a_non_finite_loss_changes_nothing_and_names_the_subnet() -> None:
    space = hwnas.space("nano", channels=1)
    stepper = make_stepper(space, StepSettings(distillation=kl))
    images, labels = batch()
    images[0, 0, 0, 0] = float("nan")
    before = stepper.flat.weights.clone()
    tasks = sandwich(space, random=1, distils=True)(Moment(0, 0, 0))
    with pytest.raises(
        NonFiniteLossError, match=f"largest subnet {tasks[0].arch.digest[:12]} is nan"
    ):
        stepper(images, labels, tasks, learning_rate=0.1)
    assert torch.equal(before, stepper.flat.weights)


def test_disturbance_ends_with_the_pass() -> None:
    space = hwnas.space("nano", channels=1)
    settings = StepSettings(distillation=kl, dropout=0.5, drop_path=0.5)
    stepper = make_stepper(space, settings)
    images, labels = batch()
    tasks = (Task(arch=space.largest(), role="largest", is_supernet=True),)
    with torch.random.fork_rng(devices=[]):
        first = [stepper(images, labels, tasks, learning_rate=0.0).losses for _ in range(2)]
    assert first[0] != first[1]
    logits = [stepper.supernet(images, space.largest()) for _ in range(2)]
    assert torch.equal(*logits)


def test_clip_factor() -> None:
    assert clip_factor(torch.tensor([3.0, 4.0]), 10.0) == 1.0
    assert clip_factor(torch.tensor([3.0, 4.0]), 1.0) == pytest.approx(0.2, rel=1e-5)
    assert clip_factor(torch.tensor([3.0, 4.0]), None) == 1.0


def test_an_update_between_passes_is_noticed_although_the_optimiser_is_fused() -> None:
    space = hwnas.space("nano", channels=1)
    stepper = make_stepper(space, StepSettings(distillation=kl), lr_name="adamw")
    images, labels = batch()
    loss = stepper.supernet(images, space.smallest()).sum()
    tasks = (Task(arch=space.smallest(), role="random"),)
    stepper(images, labels, tasks, learning_rate=0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_label_share_mixes_labels_into_what_subnets_learn() -> None:
    space = hwnas.space("nano", channels=1)
    images, labels = batch()
    tasks = sandwich(space, random=0, distils=True)(Moment(0, 0, 0))
    losses = {}
    for share in (0.0, 0.25, 1.0):
        stepper = make_stepper(space, StepSettings(distillation=kl, label_share=share))
        losses[share] = dict(stepper(images, labels, tasks, learning_rate=0.0).losses)["smallest"]
    assert losses[0.25] == pytest.approx(0.75 * losses[0.0] + 0.25 * losses[1.0], rel=1e-5)
    plain = Supernet(space).train()
    wanted = label_loss(plain(images, tasks[1].arch), labels, smoothing=0.1)
    assert losses[1.0] == pytest.approx(wanted.item(), rel=1e-5)
