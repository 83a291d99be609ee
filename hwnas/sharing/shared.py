"""A block position whose weights all sizes of the block share.

`Shared.at(block)` is an ordinary plain module whose parameters are leaf tensors that share the
memory of the full tensors: values, version counters and gradients. So a subnet is run by calling
plain modules, and nothing about elasticity is in the forward pass.

Gradients need no hook where the cut is a view: the leaf's `.grad` is the same cut of the full
tensor's `.grad`, and autograd accumulates into it in place. Where the cut is a copy, the copy is
refreshed when the full tensor has changed and its gradient is added back by a hook.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from hwnas.nets.build import axes_of, build_block, starts_of
from hwnas.nets.norms import BatchNorm
from hwnas.sharing.cut import Where, add_back, axes_of_tensor, cut, full_size, is_view, where_of
from hwnas.spaces.blocks import Block

STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class Lent:
    """A parameter of a plain module, and the part of the shared tensor that it is."""

    full: nn.Parameter
    leaf: nn.Parameter
    where: Where


@dataclass(slots=True)
class _Loan:
    """One borrowed parameter: the lender, the borrower and what they were last in step with."""

    full: nn.Parameter
    leaf: nn.Parameter
    where: Where
    address: int
    trained: bool
    registered: Mapping[str, Tensor | None]
    name: str
    grad: Tensor | None = None


@dataclass(slots=True)
class _Borrower:
    module: nn.Module
    loans: list[_Loan]
    copies: list[_Loan]


class Shared(nn.Module):
    """The full tensors of one position, and the plain blocks that borrow from them."""

    def __init__(self, covering: Iterable[Block], picks: Mapping[str, str]) -> None:
        super().__init__()
        self._picks = dict(picks)
        self._borrowers: dict[Block, _Borrower] = {}
        for name, full in _full_tensors(list(covering), self._picks):
            plant(self, name, nn.Parameter(full))

    def at(self, block: Block) -> nn.Module:
        """Return the plain module of `block`, in step with the shared tensors."""
        borrower = self._borrowers.get(block)
        if borrower is None or _is_outdated(borrower):
            borrower = self._borrowers[block] = self._borrow(block)
        with torch.no_grad():
            for loan in borrower.copies:
                # By value: torch's fused optimisers do not count their updates as changes.
                present = cut(loan.full, loan.where)
                if not torch.equal(loan.leaf, present):
                    loan.leaf.copy_(present)
        if torch.is_grad_enabled():
            self._share_gradients(borrower)
        return borrower.module

    def tie(self, block: Block) -> None:
        """Let gradients of the plain module of `block` go where those of the shared tensors are.

        `at` does it; again it is needed where these were dropped since, as `zero_grad` does.
        """
        if block in self._borrowers:
            self._share_gradients(self._borrowers[block])

    def lent(self, block: Block) -> Iterator[Lent]:
        """Yield what the plain module of `block` has borrowed, as far as it is trained."""
        for loan in self._borrowers[block].loans:
            if loan.trained:
                yield Lent(loan.full, loan.leaf, loan.where)

    def take(self, block: Block) -> nn.Module:
        """Return the plain module of `block` with its own copy of the weights."""
        with torch.device("meta"):
            module = build_block(block)
        for name, full, where in self._cuts(block, module):
            plant(module, name, nn.Parameter(cut(full.detach(), where).clone()))
        for name, statistics in self._statistics(block, module):
            plant_buffer(module, name, statistics.clone())
        for norm in batch_norms(module):
            _set_tracking(norm)
        return module.train(self.training)

    def add_statistics(self, name: str, statistics: Tensor) -> None:
        """Keep running statistics of the full tensors, which subnets then take their part of."""
        plant_buffer(self, name, statistics)
        self._borrowers.clear()

    @torch.inference_mode(False)
    def _borrow(self, block: Block) -> _Borrower:
        # Not in inference mode: what is borrowed there could never be trained afterwards.
        _expect_strided_gradients()
        with torch.device("meta"):
            module = build_block(block)
        loans, copies = [], []
        for name, full, where in list(self._cuts(block, module)):
            leaf = nn.Parameter(cut(full.detach(), where), requires_grad=full.requires_grad)
            path, _, last = name.rpartition(".")
            registered = self.get_submodule(path)._parameters
            loan = _Loan(full, leaf, where, full.data_ptr(), full.requires_grad, registered, last)
            loans.append(loan)
            if not is_view(where):
                copies.append(loan)
                if full.requires_grad:
                    leaf.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        partial(_collect, loan)
                    )
            plant(module, name, leaf)
        statistics = dict(self._statistics(block, module))
        for name, norm in module.named_modules():
            if isinstance(norm, BatchNorm):
                # Batch statistics are used and never stored in training; the stored ones of the
                # full tensors, if there are any, in evaluation.
                norm.track_running_stats = False
                norm.num_batches_tracked = None
                norm.running_mean = statistics.get(f"{name}.running_mean")
                norm.running_var = statistics.get(f"{name}.running_var")
        return _Borrower(module.train(self.training), loans, copies)

    def _share_gradients(self, borrower: _Borrower) -> None:
        for loan in borrower.loans:
            if not loan.trained:
                continue
            grad = loan.full.grad
            if grad is None:
                self._drop_gradients()
                grad = loan.full.grad = torch.zeros_like(loan.full)
            if grad is not loan.grad:
                loan.grad = grad
                if is_view(loan.where):
                    loan.leaf.grad = cut(grad, loan.where)

    def _drop_gradients(self) -> None:
        """Let go of gradients that the full tensors no longer have; views keep all their memory."""
        for borrower in self._borrowers.values():
            for loan in borrower.loans:
                if loan.grad is not None and loan.full.grad is None:
                    loan.grad = loan.leaf.grad = None

    def _cuts(self, block: Block, module: nn.Module) -> Iterator[tuple[str, nn.Parameter, Where]]:
        table = axes_of(block)
        for name, parameter in list(module.named_parameters()):
            full = self.get_parameter(name)
            axes = axes_of_tensor(table, name, type(block).__name__)
            yield name, full, where_of(axes, parameter.shape, full.shape, block, self._picks)

    def _statistics(self, block: Block, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        kept = dict(self.named_buffers())
        cuts = {name: where for name, _, where in self._cuts(block, module)} if kept else {}
        for name, norm in module.named_modules():
            for statistic in STATISTICS:
                full = kept.get(f"{name}.{statistic}")
                if isinstance(norm, BatchNorm) and full is not None:
                    yield f"{name}.{statistic}", cut(full, cuts[f"{name}.weight"])

    # -- the cache follows the module --------------------------------------------------------

    def train(self, mode: bool = True) -> "Shared":
        """Set the mode, also of the borrowing blocks."""
        for borrower in self._borrowers.values():
            borrower.module.train(mode)
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> "Shared":  # noqa: ANN401 - as in nn.Module
        self._borrowers.clear()  # the memory they borrow may move
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:  # noqa: ANN401 - as in nn.Module
        self._borrowers.clear()
        super()._load_from_state_dict(*arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_borrowers": {}}


def batch_norms(module: nn.Module) -> Iterator[BatchNorm]:
    """Yield the batch norms of a module."""
    return (part for part in module.modules() if isinstance(part, BatchNorm))


def plant(root: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register `parameter` under a dotted name, with the modules on the way."""
    *path, leaf = name.split(".")
    _descend(root, path).register_parameter(leaf, parameter)


def plant_buffer(root: nn.Module, name: str, buffer: Tensor) -> None:
    """Register `buffer` under a dotted name, with the modules on the way."""
    *path, leaf = name.split(".")
    _descend(root, path).register_buffer(leaf, buffer)


def _descend(root: nn.Module, path: list[str]) -> nn.Module:
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root


def _set_tracking(norm: BatchNorm) -> None:
    """Make the norm keep statistics if it has some, else use those of each batch."""
    if norm.running_mean is not None and not norm.running_mean.is_meta:
        norm.num_batches_tracked = torch.zeros((), dtype=torch.long)
    else:
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        norm.track_running_stats = False


@cache
def _expect_strided_gradients() -> None:
    """Let torch give, unseen, its warning of once per process that gradients have strides.

    It means that autograd accumulates into a part of a larger tensor: just what is wanted.
    """
    with warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
        warnings.simplefilter("ignore")
        leaf = nn.Parameter(torch.zeros(2, 2)[:, :1])
        leaf.grad = torch.zeros(2, 2)[:, :1]
        leaf.sum().backward()  # type: ignore[no-untyped-call]


def _is_outdated(borrower: _Borrower) -> bool:
    """Return whether a shared tensor was replaced, moved, frozen or thawed since."""
    return any(
        loan.registered[loan.name] is not loan.full
        or loan.full.data_ptr() != loan.address
        or loan.full.requires_grad != loan.trained
        for loan in borrower.loans
    )


def _collect(loan: _Loan, leaf: Tensor) -> None:
    if leaf.grad is not None and loan.full.grad is not None:
        add_back(loan.full.grad, loan.where, leaf.grad)
        leaf.grad = None


def _full_tensors(covering: list[Block], picks: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the union of the tensors of all blocks, each axis at its largest, initialised."""
    sizes: dict[str, list[int]] = {}
    largest: dict[str, tuple[int, Block]] = {}
    for block in covering:
        with torch.device("meta"):
            module = build_block(block)
        for name, parameter in module.named_parameters():
            axes = axes_of_tensor(axes_of(block), name, type(block).__name__)
            needed = [
                full_size(axis, size, block, picks)
                for axis, size in zip(axes, parameter.shape, strict=True)
            ]
            known = sizes.setdefault(name, needed)
            sizes[name] = [max(pair) for pair in zip(known, needed, strict=True)]
            if parameter.numel() > largest.get(name, (0, block))[0]:
                largest[name] = (parameter.numel(), block)
    built: dict[Block, dict[str, Tensor]] = {}
    for name, size in sizes.items():
        block = largest[name][1]
        if block not in built:
            built[block] = dict(build_block(block).named_parameters())
        start = starts_of(block).get(name)
        yield name, _initial(built[block][name].detach(), size, start)


def _initial(
    example: Tensor, size: list[int], start: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return a tensor of `size` that starts as the plain module's tensor does."""
    if list(example.shape) == size:
        return example.clone()
    if start is not None:
        return start(torch.empty(size))
    spread = example.std(unbiased=False) if example.numel() > 1 else torch.zeros(())
    return example.mean() + spread * torch.randn(size)
