"""Picks by hand, and the guards around borrowed weights."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hwnas
from hwnas.errors import HwnasError, UsageError
from hwnas.nets.transformer import _kept_offset_index
from hwnas.sharing.cut import add_back, axes_of_tensor, cut, pick_of, where_of
from hwnas.sharing.picks import PICKS, bilateral, centre, cyclic, ordinal
from hwnas.spaces.blocks import Stem
from hwnas.supernet import Supernet, accuracy
from hwnas.training.flat import FlatParameters


def entries(pick, want: int, size: int) -> list[int]:
    chosen = pick(want, size)
    return list(range(size))[chosen] if isinstance(chosen, slice) else list(chosen)


def test_picks_by_hand() -> None:
    assert entries(ordinal, 2, 5) == [0, 1]
    assert entries(centre, 3, 5) == [1, 2, 3]
    assert entries(bilateral, 3, 5) == [0, 3, 4]
    assert entries(cyclic, 3, 10) == [3, 4, 5]
    assert entries(cyclic, 4, 10) == [6, 7, 8, 9]
    assert entries(cyclic, 5, 10) == [0, 1, 2, 3, 4]


def test_cyclic_uses_every_channel_about_equally() -> None:
    def uses(pick) -> torch.Tensor:
        counts = torch.zeros(40)
        for want in range(4, 41, 4):
            counts[list(entries(pick, want, 40))] += 1
        return counts

    assert (uses(cyclic).max() - uses(cyclic).min()) <= 2
    assert (uses(ordinal).max() - uses(ordinal).min()) == 9


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("size", [1, 2, 8, 9, 40])
def test_picks_take_distinct_entries_of_the_axis(pick: str, size: int) -> None:
    for want in range(1, size + 1):
        chosen = entries(PICKS[pick], want, size)
        assert len(chosen) == len(set(chosen)) == want
        assert set(chosen) <= set(range(size))


def test_adding_back_is_the_transpose_of_the_cut() -> None:
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(6, 5, 4, generator=generator)
    for where in (
        (slice(1, 3), None, slice(0, 2)),
        (torch.tensor([0, 4, 5]), None, slice(1, 3)),
        (torch.tensor([0, 4]), torch.tensor([1, 3, 4]), slice(1, 4)),
    ):
        part = torch.randn(cut(full, where).shape, generator=generator)
        into = torch.zeros_like(full)
        add_back(into, where, part)
        torch.testing.assert_close((into * full).sum(), (part * cut(full, where)).sum())
        assert torch.equal(cut(into, where), part)


def test_unnamed_tensors_and_unknown_picks_are_errors() -> None:
    with pytest.raises(LookupError, match="'new.weight' is not named in AXES"):
        axes_of_tensor({"old.*": ("dim",)}, "new.weight", "Block")
    with pytest.raises(UsageError, match="unknown pick 'ordinl'; did you mean ordinal"):
        pick_of("dim", {"dim": "ordinl"})


def test_picks_are_of_axes_that_there_are() -> None:
    space = hwnas.space("nano")
    with pytest.raises(UsageError, match="unknown axis with a pick 'hiden'; did you mean hidden"):
        Supernet(replace(space, picks={**space.picks, "hiden": "cyclic"}))


def test_a_cut_of_another_shape_than_wanted_is_an_error() -> None:
    block = Stem(cin=1, cout=8)
    assert where_of(("cout", "-"), (4, 3), (8, 3), block, {}) == (slice(0, 4), None)
    with pytest.raises(LookupError, match="Stem: axis '-' has 5 entries and 3 are wanted"):
        where_of(("cout", "-"), (4, 3), (8, 5), block, {})
    with pytest.raises(LookupError, match="axis 'cout' has 8 entries and 9 are wanted"):
        where_of(("cout",), (9,), (8,), block, {})


def test_descriptions_of_networks_are_not_kept_without_end(monkeypatch) -> None:
    monkeypatch.setattr("hwnas.supernet.supernet._KEPT_NETWORKS", 4)
    supernet = Supernet(hwnas.space("nano", channels=1)).eval()
    archs = [supernet.space.smallest(), *supernet.space.sample(9, np.random.default_rng(0))]
    images = torch.randn(2, 1, 24, 24)
    with torch.no_grad():
        first = supernet(images, archs[0])
        for arch in archs:
            supernet.at(arch)
        assert len(supernet._networks) <= 4
        assert torch.equal(supernet(images, archs[0]), first)


def test_accuracy_without_images_is_an_error() -> None:
    supernet = Supernet(hwnas.space("nano", channels=1))
    with pytest.raises(UsageError, match="got no images"):
        accuracy(supernet.extract(supernet.space.smallest()), [])


def test_data_parallel_wrapping_is_refused(tmp_path: Path) -> None:
    supernet = Supernet(hwnas.space("nano"))
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(HwnasError, match="DistributedDataParallel") as caught:
            nn.parallel.DistributedDataParallel(supernet)
    finally:
        torch.distributed.destroy_process_group()
    assert "torchrun" in caught.value.hint


def test_full_tensors_are_not_part_of_the_graph() -> None:
    supernet = Supernet(hwnas.space("nano"))
    arch = supernet.space.smallest()
    logits = supernet(torch.randn(2, 3, 24, 24), arch)
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(logits.sum(), next(supernet.parameters()))


def test_the_first_pass_may_be_in_inference_mode() -> None:
    _kept_offset_index.cache_clear()
    supernet = Supernet(hwnas.space("nano"))
    arch, images = supernet.space.largest(), torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        supernet(images, arch)
    supernet(images, arch).sum().backward()


def test_frozen_tensors_get_no_gradient() -> None:
    supernet = Supernet(hwnas.space("nano"))
    frozen = supernet.blocks["stem"]
    frozen.requires_grad_(False)
    arch = supernet.space.smallest()
    supernet(torch.randn(2, 3, 24, 24), arch).sum().backward()
    assert all(tensor.grad is None for tensor in frozen.parameters())
    frozen.requires_grad_(True)
    supernet(torch.randn(2, 3, 24, 24), arch).sum().backward()
    assert all(tensor.grad is not None for tensor in frozen.parameters())


def test_tensors_may_be_frozen_and_thawed_at_any_time() -> None:
    supernet = Supernet(hwnas.space("nano"))
    arch, images = supernet.space.smallest(), torch.randn(2, 3, 24, 24)

    def gradients() -> list[torch.Tensor | None]:
        supernet(images, arch).sum().backward()
        stem = supernet.blocks["stem"].parameters()
        return [None if tensor.grad is None else tensor.grad.clone() for tensor in stem]

    supernet.blocks["stem"].requires_grad_(False)
    assert gradients()[0] is None
    supernet.requires_grad_(True)
    first = gradients()
    assert all(gradient.abs().sum() > 0 for gradient in first)
    supernet.blocks["stem"].requires_grad_(False)
    assert all(map(torch.equal, gradients(), first))


def test_tensors_may_be_replaced_at_any_time() -> None:
    supernet = Supernet(hwnas.space("nano"))
    arch, images = supernet.space.smallest(), torch.randn(2, 3, 24, 24)
    supernet(images, arch)
    flat = FlatParameters(supernet, decays=lambda name, tensor: tensor.dim() > 1)
    flat.attach(0)
    supernet(images, arch).sum().backward()
    assert flat.gradients[0].abs().sum() > 0
    with torch.no_grad():
        flat.weights.mul_(1.5)
    assert torch.equal(supernet(images, arch), supernet.extract(arch)(images))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_may_be_dropped_between_the_passes(set_to_none: bool) -> None:
    """As in `loss = ...; optimiser.zero_grad(); loss.backward()`."""
    supernet, images = Supernet(hwnas.space("nano")), torch.randn(4, 3, 24, 24)
    for arch in (supernet.space.smallest(), supernet.space.largest()):  # views, and copies
        supernet.zero_grad()
        supernet(images, arch).square().sum().backward()
        expected = {name: full.grad.clone() for name, full in supernet.named_parameters()
                    if full.grad is not None}  # fmt: skip
        loss = supernet(images, arch).square().sum()
        supernet.zero_grad(set_to_none=set_to_none)
        loss.backward()
        found = dict(supernet.named_parameters())
        assert any(grad.any() for grad in expected.values())
        for name, grad in expected.items():
            torch.testing.assert_close(found[name].grad, grad)


def test_gradients_that_were_set_to_none_are_not_kept() -> None:
    supernet = Supernet(hwnas.space("nano"))
    archs = supernet.space.sample(6, np.random.default_rng(0))
    stem = next(supernet.blocks["stem"].parameters())
    old = []
    for arch in archs:
        supernet.at(arch)
        old.append(weakref.ref(stem.grad))
        supernet.zero_grad()
    supernet.at(supernet.space.largest())
    gc.collect()
    assert [reference() for reference in old] == [None] * len(old)


def test_wrong_images_are_explained() -> None:
    supernet = Supernet(hwnas.space("nano", channels=1))
    arch = supernet.space.smallest()
    with pytest.raises(UsageError, match=r"\(2, 3, 28, 28\); accepted: \(batch, 1"):
        supernet(torch.randn(2, 3, 28, 28), arch)
    assert supernet(torch.randn(2, 1, 28, 28), arch).shape == (2, 10)  # resized to 24


def test_a_state_of_the_supernet_does_not_carry_borrowers() -> None:
    supernet = Supernet(hwnas.space("nano"))
    names = set(supernet.state_dict())
    supernet(torch.randn(2, 3, 24, 24), supernet.space.smallest())
    assert set(supernet.state_dict()) == names


def test_calibration_without_images_is_an_error() -> None:
    supernet = Supernet(hwnas.space("nano"))
    with pytest.raises(UsageError, match="no batches"):
        supernet.calibrate(supernet.space.smallest(), [])


def test_calibration_is_the_mean_over_batches_and_forgotten_by_training() -> None:
    supernet = Supernet(hwnas.space("nano", channels=1)).eval()
    arch = supernet.space.smallest()
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(4, 1, 24, 24, generator=generator) for _ in range(3)]
    supernet.calibrate(arch, batches)
    norm = supernet.extract(arch).blocks["stem"].norm
    means = []
    with torch.no_grad():
        for images in batches:
            maps = supernet.extract(arch).blocks["stem"].conv(images)
            means.append(maps.mean((0, 2, 3)))
    torch.testing.assert_close(norm.running_mean, torch.stack(means).mean(0))
    supernet.train()
    assert supernet.extract(arch).blocks["stem"].norm.running_mean is None
