"""Made-up records: what a model is looked over with before it sees a real one.

Only the shapes and dtypes of an example batch are read, never its values, so nothing decided here depends on data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from adadp.errors import InputError

Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class MadeUp:
    """How records are made up. ``integers`` None: random zeros and ones, so that no two records are alike."""

    integers: int | None = None
    booleans: bool = False
    uniform: bool = False
    """Floats between 0 and 1 instead of Gaussian ones."""
    perturbed: bool = True
    """Whether parameters are moved a little too: what a model multiplies by zero at first would go unseen."""

    def batch(self, example: Sequence[Any], records: int, *, seed: int = 2016) -> tuple[Any, ...]:
        """``records`` random records of the shapes and dtypes of ``example``."""
        generator = torch.Generator().manual_seed(seed)

        def make(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            shape = (records, *leaf.shape[1:])
            if leaf.dtype == torch.bool:
                value = torch.full(shape, self.booleans)
            elif leaf.is_floating_point() or leaf.is_complex():
                value = (torch.rand if self.uniform else torch.randn)(shape, generator=generator)
            elif self.integers is None:
                value = torch.randint(0, 2, shape, generator=generator)
            else:
                value = torch.full(shape, self.integers)
            return value.to(device=leaf.device, dtype=leaf.dtype)

        return tuple(tree_map(make, tuple(example)))

    @contextlib.contextmanager
    def parameters(self, model: nn.Module) -> Iterator[None]:
        """Inside, parameters of ``model`` are copies, a little off if ``perturbed``; afterwards the old ones again."""
        generator = torch.Generator().manual_seed(1916)
        before = [(value, value.data) for value in model.parameters()]
        try:
            for value, old in before:
                value.data = old.clone()
                if self.perturbed and old.is_floating_point() and old.numel():
                    size = max(0.1 * float(old.float().square().mean().sqrt()), 0.02)
                    value.data += size * torch.randn(old.shape, generator=generator).to(old)
            yield
        finally:
            for value, old in before:
                value.data = old


_WAYS = tuple(
    MadeUp(integers, booleans, uniform)
    for integers, booleans, uniform in (
        (None, False, False),
        (None, True, False),
        (None, False, True),
        (0, False, False),
        (1, False, False),
        (1, True, True),
    )
)
"""In the order they are tried: indices may be bounded, a mask may hide everything, a probability must lie in [0, 1]."""


def way_for(model: nn.Module, loss: Loss, example: Sequence[Any]) -> MadeUp:
    """The first way of making up records for which the loss runs and is finite; nothing is left behind."""
    check_leading(example)
    first: Exception | None = None
    runs: MadeUp | None = None
    for way in (*_WAYS, *(replace(way, perturbed=False) for way in _WAYS)):
        try:
            with undisturbed(model), way.parameters(model), torch.no_grad():
                losses = loss(model, *way.batch(example, 3))
        except InputError:
            raise
        except (RuntimeError, ValueError, IndexError, ArithmeticError) as error:
            first = first or error
            continue
        if not isinstance(losses, Tensor) or bool(torch.isfinite(losses).all()):
            return way
        runs = runs or way
    if runs is not None:
        return runs
    raise InputError(
        f"The loss fails on made-up records: {first}",
        why="Before it sees a real record the model is run on two and on three random records of the example's shapes.",
        fix="Check that loss(model, *batch) runs for batches of two and three records with small integers in them.",
    ) from first


def check_leading(batch: Sequence[Any]) -> int:
    """How many records ``batch`` holds: dimension 0 of every tensor in it."""
    sizes = {
        leaf.shape[0] if leaf.dim() else None for leaf in tree_flatten(tuple(batch))[0] if isinstance(leaf, Tensor)
    }
    if len(sizes) == 1 and (records := sizes.pop()) is not None:
        return records
    raise InputError(
        "The tensors of a batch must all hold the records in dimension 0.",
        why="Each record's gradient is clipped on its own, so it must be known which numbers belong to which record.",
        fix="Put what all records share into the model or the loss.",
    )


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside leaves the random state, the buffers and the modes of ``model`` as they were."""
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    values = {name: value.clone() for name, value in model.named_buffers()}
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.random.fork_rng(devices=_cuda_devices(model)):
            yield
    finally:
        for module, held in buffers:
            module._buffers.clear()
            module._buffers.update(held)
        with torch.no_grad():
            for name, value in model.named_buffers():
                if not same(value, values[name]):
                    value.copy_(values[name])
        for module, mode in modes.items():
            module.training = mode


def same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors hold the same values, NaN being one."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    equal = first == second
    if first.is_floating_point() or first.is_complex():
        equal |= first.isnan() & second.isnan()
    return bool(equal.all())


def random_states(model: nn.Module) -> list[Tensor]:
    """The states of the generators ``model`` may draw from."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in _cuda_devices(model))]


def _cuda_devices(model: nn.Module) -> list[int]:
    return sorted({value.device.index or 0 for value in model.parameters() if value.is_cuda})
