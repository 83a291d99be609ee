"""The supernet of a space: shared weights for every slot, run and cut at any architecture."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hwnas.errors import HwnasError, unknown_name
from hwnas.nets.build import axes_of, build_block
from hwnas.nets.network import PlainNetwork, run_blocks
from hwnas.sharing.cut import FIXED_AXIS
from hwnas.sharing.shared import Lent, Shared
from hwnas.spaces import Arch, Network, Space
from hwnas.spaces.blocks import Block
from hwnas.supernet.calibrate import calibrate, statistics_of

# A training meets millions of architectures; their descriptions are several kB each.
_KEPT_NETWORKS = 1024


class Supernet(nn.Module):
    """All networks of a space in one set of weights.

    `supernet(images, arch)` runs a subnet on the shared weights; `extract(arch)` cuts it out.
    Subnets normalise by the statistics of the batch until they are calibrated, in both ways.
    """

    def __init__(self, space: Space, *, seed: int = 0) -> None:
        super().__init__()
        self.space = space
        self.memory_format = torch.channels_last
        self._networks: dict[Arch, Network] = {}
        self._calibrated: dict[Arch, Mapping[str, Tensor]] = {}
        covering = space.covering()
        _check_picks(space.picks, covering)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.blocks = nn.ModuleDict(
                {slot: Shared(blocks, space.picks) for slot, blocks in covering.items()}
            )

    def forward(self, images: Tensor, arch: Arch) -> Tensor:
        """Return the logits of `arch` for images (batch, channels, height, width)."""
        network = self._network(arch)
        blocks = self.at(arch)
        run = partial(
            run_blocks, blocks.values(), images, network, memory_format=self.memory_format
        )
        if self.training or not self._calibrated:
            logits = run()
        else:
            before = _set_statistics(blocks, self._calibrated.get(arch, {}))
            try:
                logits = run()
            finally:
                _set_statistics(blocks, before)
        if logits.requires_grad:
            logits.register_hook(partial(self._tie, arch))  # type: ignore[no-untyped-call]
        return logits

    def _tie(self, arch: Arch, _grad: Tensor) -> None:
        """Before a backward pass: gradients may have been dropped since the forward pass."""
        for placed in self._network(arch).blocks:
            self._shared(placed.slot).tie(placed.block)

    def at(self, arch: Arch) -> dict[str, nn.Module]:
        """Return the plain blocks of `arch` by slot, borrowing the shared weights."""
        return {
            placed.slot: self._shared(placed.slot).at(placed.block)
            for placed in self._network(arch).blocks
        }

    def lent(self, arch: Arch) -> list[Lent]:
        """Return the parameters of `arch`, which share memory with those of the supernet."""
        self.at(arch)
        return [
            lent
            for placed in self._network(arch).blocks
            for lent in self._shared(placed.slot).lent(placed.block)
        ]

    def extract(self, arch: Arch) -> PlainNetwork:
        """Return the network of `arch` with its own weights; it knows nothing of the supernet."""
        description = self._network(arch)
        with torch.device("meta"):
            network = PlainNetwork(description, build_block)
        for placed in description.blocks:
            network.blocks[placed.slot] = self._shared(placed.slot).take(placed.block)
        for name, statistics in self._calibrated.get(arch, {}).items():
            owner, _, statistic = name.rpartition(".")
            norm: Any = network.get_submodule(owner)
            setattr(norm, statistic, statistics.clone())
            norm.num_batches_tracked = torch.zeros((), dtype=torch.long)
            norm.track_running_stats = True
        return network.train(self.training)

    def calibrate(self, arch: Arch, batches: Iterable[Tensor]) -> None:
        """Measure the batch-norm statistics of `arch`; evaluation and `extract` then use them.

        They are forgotten when training goes on, because they describe the present weights.
        """
        network = self.extract(arch)
        calibrate(network, batches)
        self._calibrated[arch] = statistics_of(network)

    def train(self, mode: bool = True) -> "Supernet":
        """Set the mode; training forgets calibrated statistics."""
        if mode:
            self._forget_calibration()
        return super().train(mode)

    def _network(self, arch: Arch) -> Network:
        network = self._networks.get(arch)
        if network is None:
            if len(self._networks) >= _KEPT_NETWORKS:
                self._networks.clear()
            network = self._networks[arch] = self.space.network(arch)
        return network

    def _shared(self, slot: str) -> Shared:
        shared = self.blocks[slot]
        assert isinstance(shared, Shared)
        return shared

    def _forget_calibration(self) -> None:
        self._calibrated.clear()

    def _apply(self, fn: Any, recurse: bool = True) -> "Supernet":  # noqa: ANN401 - as in nn.Module
        self._forget_calibration()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:  # noqa: ANN401 - as in nn.Module
        """Load weights, as in torch; borrowed and calibrated state is dropped."""
        self._forget_calibration()
        return super().load_state_dict(state_dict, strict, assign)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_networks": {}, "_calibrated": {}}

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """Refuse DistributedDataParallel, which asks for this first."""
        raise HwnasError(
            "a supernet cannot be wrapped in DistributedDataParallel: "
            "the gradients of borrowed weights would silently not be reduced",
            "torchrun --nproc-per-node N -m hwnas train ...",
        )


def _check_picks(picks: Mapping[str, str], covering: Mapping[str, Iterable[Block]]) -> None:
    """Raise UsageError for a pick of an axis that no block has: it would pick nothing."""
    blocks = {type(block): block for slot in covering.values() for block in slot}
    axes = {
        axis for block in blocks.values() for names in axes_of(block).values() for axis in names
    }
    for axis in picks:
        if axis not in axes:
            raise unknown_name("axis with a pick", axis, sorted(axes - {FIXED_AXIS}))


def _set_statistics(
    blocks: Mapping[str, nn.Module], statistics: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Set the norms' statistics where given and return what they had."""
    before = {}
    for slot, block in blocks.items():
        for name, module in block.named_modules():
            for statistic in ("running_mean", "running_var"):
                key = f"blocks.{slot}.{name}.{statistic}"
                if key in statistics:
                    before[key] = getattr(module, statistic)
                    setattr(module, statistic, statistics[key])
    return before
