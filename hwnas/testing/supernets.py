"""What the supernet of every space must satisfy. The checks raise AssertionError.

The oracle is autograd itself: the plain blocks called with cuts that autograd made.
"""

import copy
import gc
import tempfile
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from hwnas.nets.build import axes_of
from hwnas.nets.network import fitted
from hwnas.sharing.cut import axes_of_tensor, cut, where_of
from hwnas.sharing.shared import Shared
from hwnas.spaces import Arch, Space
from hwnas.supernet import Supernet, load_subnet, save_subnet

_IMAGES = 2


def randomised_supernet(space: Space, *, seed: int = 0) -> Supernet:
    """Return a supernet none of whose parameters is at a special value such as 0 or 1."""
    supernet = Supernet(space, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in supernet.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(1 + 0.1 * noise).add_(0.1 * noise)
    return supernet


def _archs(space: Space, n: int = 3) -> list[Arch]:
    drawn = space.sample(n, np.random.default_rng(0))
    return list(dict.fromkeys([space.smallest(), space.largest(), *drawn]))


def _images(supernet: Supernet, arch: Arch, *, seed: int = 0) -> Tensor:
    network = supernet.space.network(arch)
    generator = torch.Generator().manual_seed(seed)
    shape = (_IMAGES, network.channels, network.side, network.side)
    return torch.randn(shape, generator=generator)


def check_running_equals_extracting(supernet: Supernet) -> None:
    """A subnet in the supernet and the extracted one agree bit for bit, calibrated or not."""
    supernet.eval()
    with torch.no_grad():
        for arch in _archs(supernet.space):
            images = _images(supernet, arch)
            logits = supernet(images, arch)
            assert torch.equal(logits, supernet.extract(arch).eval()(images)), arch
            supernet.calibrate(arch, [_images(supernet, arch, seed=1)])
            calibrated = supernet(images, arch)
            assert torch.equal(calibrated, supernet.extract(arch).eval()(images)), arch
            # A class token that nothing is left to attend with is the same for all images.
            reads = not torch.equal(logits, supernet(_images(supernet, arch, seed=2), arch))
            matters = reads and _has_batch_norm(supernet.extract(arch))
            assert matters != torch.equal(logits, calibrated), arch
    supernet.train()


def _has_batch_norm(network: nn.Module) -> bool:
    return any(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def check_inference_mode_leaves_no_traces(supernet: Supernet) -> None:
    """A subnet first run under inference mode can be trained afterwards."""
    supernet = copy.deepcopy(supernet)
    arch = supernet.space.smallest()
    images = _images(supernet, arch)
    with torch.inference_mode():
        supernet(images, arch)
    supernet(images, arch).square().mean().backward()
    assert any(tensor.grad is not None for tensor in supernet.parameters())


def check_training_mode_equals_extracting(supernet: Supernet) -> None:
    """The same holds in training mode."""
    supernet.train()
    for arch in _archs(supernet.space, 1):
        images = _images(supernet, arch)
        assert torch.equal(supernet(images, arch), supernet.extract(arch)(images)), arch


def check_gradients_are_those_of_autograd(supernet: Supernet) -> None:
    """Gradients equal those through autograd's own cuts; outside the cut they are exactly zero."""
    supernet.train()
    for arch in _archs(supernet.space, 1):
        images = _images(supernet, arch)
        supernet.zero_grad(set_to_none=True)
        supernet(images, arch).square().mean().backward()
        ours = {name: tensor.grad for name, tensor in supernet.named_parameters()}
        supernet.zero_grad(set_to_none=True)
        loss = _through_autograd_cuts(supernet, images, arch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        for name, tensor in supernet.named_parameters():
            theirs, mine = tensor.grad, ours[name]
            if theirs is None:
                assert mine is None or not mine.any(), name
            else:
                assert mine is not None, name
                assert torch.equal(mine, theirs), name
        supernet.zero_grad(set_to_none=True)


def check_gradients_accumulate(supernet: Supernet) -> None:
    """Several subnets before one step add their gradients."""
    first, second = supernet.space.smallest(), supernet.space.largest()
    images = {arch: _images(supernet, arch) for arch in (first, second)}
    parts = []
    for archs in ((first,), (second,), (first, second)):
        supernet.zero_grad(set_to_none=True)
        for arch in archs:
            supernet(images[arch], arch).square().mean().backward()
        parts.append(
            {
                name: tensor.grad.clone() if tensor.grad is not None else torch.zeros(())
                for name, tensor in supernet.named_parameters()
            }
        )
    for name, total in parts[2].items():
        torch.testing.assert_close(total, (parts[0][name] + parts[1][name]).expand_as(total))
    supernet.zero_grad(set_to_none=True)


def check_borrowers_follow_every_change(supernet: Supernet) -> None:
    """Subnets follow optimiser steps, loads, moves and replaced memory."""
    supernet = copy.deepcopy(supernet)
    arch = supernet.space.sample(1, np.random.default_rng(5))[0]
    images = _images(supernet, arch)
    optimisers = [
        torch.optim.AdamW(supernet.parameters(), 1e-2, fused=fused) for fused in (False, True)
    ]

    def step(optimiser: torch.optim.Optimizer) -> None:
        optimiser.zero_grad()
        supernet(images, arch).square().mean().backward()
        optimiser.step()

    def replace_memory() -> None:
        for parameter in supernet.parameters():
            parameter.data = parameter.data * 1.5

    def load() -> None:
        weights = {name: value * 0.5 for name, value in supernet.state_dict().items()}
        supernet.load_state_dict(weights, assign=True)

    changes: list[Callable[[], object]] = [partial(step, optimiser) for optimiser in optimisers * 2]
    changes += [lambda: supernet.bfloat16().float(), replace_memory, load]
    for change in changes:
        before = supernet(images, arch)
        change()
        after = supernet(images, arch)
        assert not torch.equal(before, after), change
        assert torch.equal(after, supernet.extract(arch)(images)), change


def check_updates_between_passes_are_safe(supernet: Supernet) -> None:
    """Changing weights between forward and backward is an error or does not matter.

    It does not matter where all weights of the subnet are copies, which keep their values.
    """
    supernet = copy.deepcopy(supernet)
    arch = supernet.space.smallest()
    images = _images(supernet, arch)
    supernet(images, arch).square().mean().backward()
    undisturbed = {
        name: tensor.grad.clone()
        for name, tensor in supernet.named_parameters()
        if tensor.grad is not None
    }
    supernet.zero_grad(set_to_none=True)
    loss = supernet(images, arch).square().mean()
    with torch.no_grad():
        for parameter in supernet.parameters():
            parameter.mul_(1.5)
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        for name, gradient in undisturbed.items():
            mine = supernet.get_parameter(name).grad
            assert mine is not None, name
            assert torch.equal(mine, gradient), name


def check_extracted_is_independent(supernet: Supernet) -> None:
    """An extracted subnet shares no memory with the supernet and does not keep it alive."""
    supernet = copy.deepcopy(supernet)
    arch = supernet.space.smallest()
    network = supernet.extract(arch)
    lent = {tensor.untyped_storage().data_ptr() for tensor in supernet.parameters()}
    for tensor in network.parameters():
        assert tensor.untyped_storage().data_ptr() not in lent
    shared = weakref.ref(supernet)
    del supernet
    gc.collect()
    assert shared() is None, "the extracted network refers to the supernet"


def check_subnet_is_rebuilt_from_its_files(supernet: Supernet) -> None:
    """Architecture and weights on disk are enough to get the same network back."""
    arch = supernet.space.sample(1, np.random.default_rng(7))[0]
    images = _images(supernet, arch)
    for calibrated in (False, True):
        supernet.eval()
        if calibrated:
            supernet.calibrate(arch, [images])
        network = supernet.extract(arch).eval()
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            save_subnet(network, supernet.space, arch, Path(folder))
            assert torch.equal(load_subnet(Path(folder))(images), network(images))
        supernet.train()


def check_subnet_is_traced(supernet: Supernet) -> None:
    """`torch.export` traces a calibrated subnet, and the traced program computes the same."""
    arch = supernet.space.smallest()
    images = _images(supernet, arch)
    supernet.eval()
    supernet.calibrate(arch, [images])
    network = supernet.extract(arch).eval()
    program = torch.export.export(network, (images,))
    torch.testing.assert_close(program.module()(images), network(images), rtol=1e-4, atol=1e-5)
    supernet.train()


def check_costs_are_those_of_the_network(supernet: Supernet) -> None:
    """MACs equal torch's own count on the plain network, parameters the sizes of its tensors."""
    space = supernet.space
    archs = _archs(space)
    costs = space.cost(archs)
    supernet.eval()
    for index, arch in enumerate(archs):
        network = supernet.extract(arch).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(_images(supernet, arch)[:1].expand(2, -1, -1, -1))
        assert counter.get_total_flops() == 2 * 2 * costs.macs[index], arch
        params = sum(parameter.numel() for parameter in network.parameters())
        assert params == costs.params[index], arch
    supernet.train()


def _through_autograd_cuts(supernet: Supernet, images: Tensor, arch: Arch) -> Tensor:
    network = supernet.space.network(arch)
    x = fitted(images, network)
    for placed in network.blocks:
        shared = supernet.blocks[placed.slot]
        assert isinstance(shared, Shared)
        plain = shared.at(placed.block)
        tensors = {}
        for name, leaf in plain.named_parameters():
            full = shared.get_parameter(name)
            axes = axes_of_tensor(axes_of(placed.block), name, placed.slot)
            where = where_of(axes, leaf.shape, full.shape, placed.block, supernet.space.picks)
            tensors[name] = cut(full, where)
        x = functional_call(plain, tensors, (x,))
    return x


SUPERNET_CHECKS: Sequence[Callable[[Supernet], None]] = (
    check_running_equals_extracting,
    check_inference_mode_leaves_no_traces,
    check_training_mode_equals_extracting,
    check_gradients_are_those_of_autograd,
    check_gradients_accumulate,
    check_borrowers_follow_every_change,
    check_updates_between_passes_are_safe,
    check_extracted_is_independent,
    check_subnet_is_rebuilt_from_its_files,
    check_subnet_is_traced,
    check_costs_are_those_of_the_network,
)
