"""Records to inspect a model with before it sees a real one: random, or public ones of the user's own.

Of the data only shapes and dtypes are read, never values, so nothing decided here depends on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from adadp.errors import InputError
from adadp.gradients.model_checks import explain_single_value
from adadp.sharding import moved

Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class ProbeRecords:
    """How probe records are drawn: everything in them varies, as far as the model can take it."""

    like: tuple[Any, ...]
    """A batch of which shapes and dtypes are read."""
    integers: tuple[tuple[int, int], ...]
    """For every integer tensor of a batch, the least value and one more than the largest."""
    booleans: bool | None = None
    """What all truth values are; None: random ones."""
    uniform: bool = False
    """Floats between 0 and 1 instead of Gaussian ones."""
    perturbed: bool = True
    """Whether parameters are moved a little too: what a model multiplies by zero at first would go unseen."""
    own: tuple[Any, ...] | None = None
    """Public records to take instead."""

    def batch(
        self, records: int, *, seed: int = 2016, extremes: bool = False, repeated: bool = False
    ) -> tuple[Any, ...]:
        """``records`` random records, or one ``repeated``; with ``extremes`` the end points of integers too."""
        generator = torch.Generator().manual_seed(seed)
        if repeated:
            return _some_of(self.batch(1, seed=seed), records, generator)
        if self.own is not None:
            return _some_of(self.own, records, generator)
        leaves, spec = tree_flatten(self.like)
        ranges = iter(self.integers)
        made = []
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                made.append(leaf)
                continue
            shape = (records, *leaf.shape[1:])
            if leaf.dtype == torch.bool:
                value = torch.rand(shape, generator=generator) < 0.5
                value = value if self.booleans is None else torch.full(shape, self.booleans)
            elif leaf.is_floating_point() or leaf.is_complex():
                value = (torch.rand if self.uniform else torch.randn)(shape, generator=generator)
            else:
                low, high = next(ranges)
                value = torch.randint(low, high, shape, generator=generator)
                if extremes and value.numel():
                    value.view(-1)[[0, -1]] = torch.tensor([low, high - 1])
            made.append(value.to(device=leaf.device, dtype=leaf.dtype))
        return tuple(tree_unflatten(made, spec))

    def plainer(self) -> tuple[ProbeRecords, ...]:
        """Other ways, for which a model may take another path: a mask that hides everything, or nothing."""
        if self.own is not None:
            return ()
        ones = tuple((low, low + 1) if low else (min(1, high - 1), min(2, high)) for low, high in self.integers)
        lows = tuple((low, low + 1) for low, _ in self.integers)
        return replace(self, integers=ones, booleans=True), replace(self, integers=lows, booleans=False)

    @contextlib.contextmanager
    def parameters(self, model: nn.Module) -> Iterator[None]:
        """Inside, parameters of ``model`` are copies, a little off if ``perturbed``; afterwards the old ones again."""
        generator = torch.Generator().manual_seed(1916)

        def other(old: Tensor) -> Tensor:
            if not (self.perturbed and old.is_floating_point() and old.numel()):
                return old.clone()
            size = max(0.1 * float(old.float().square().mean().sqrt()), 0.02)
            return old + size * torch.randn(old.shape, generator=generator).to(old)

        with moved(model.parameters(), other):
            yield


def _some_of(own: tuple[Any, ...], records: int, generator: torch.Generator) -> tuple[Any, ...]:
    """Records of ``own``, different ones as long as there are any."""
    held = check_leading(own)
    order = torch.cat([torch.randperm(held, generator=generator) for _ in range(-(-records // held))])[:records]
    return tuple(tree_map(lambda leaf: leaf[order.to(leaf.device)] if isinstance(leaf, Tensor) else leaf, own))


_BASES = (((0, 2), None, False), ((0, 2), True, False), ((0, 2), None, True), ((0, 1), None, False),
          ((1, 2), None, False), ((1, 2), True, False), ((1, 2), True, True), ((0, 1), False, False))  # fmt: skip
"""In the order they are tried: indices may be bounded, a mask may hide everything, a probability must lie in [0, 1]."""
_WIDER = ((0, 64), (0, 17), (0, 5), (0, 3), (1, 64), (1, 17), (1, 5), (1, 3))
"""Ranges of integers, tried for every integer tensor on its own: words, classes, and lengths that may not be 0."""


def probe_records_for(
    model: nn.Module, loss: Loss, like: Sequence[Any], example: Sequence[Any] | None = None
) -> ProbeRecords:
    """The first way of drawing records for which the loss runs and is finite; nothing is left behind.

    Integers get the widest range the model takes. On a GPU they stay below 2: an index out of range ends the process.
    """
    check_leading(like)
    integers = [
        leaf
        for leaf in tree_leaves(tuple(like))
        if isinstance(leaf, Tensor) and not (leaf.is_floating_point() or leaf.is_complex() or leaf.dtype == torch.bool)
    ]
    bases = [ProbeRecords(tuple(like), (each,) * len(integers), truth, uniform) for each, truth, uniform in _BASES]
    if example is not None:
        bases = [ProbeRecords(tuple(like), (), own=_checked(example, like))]
    runs: ProbeRecords | None = None
    first: Exception | None = None
    for probes in (*bases, *(replace(probes, perturbed=False) for probes in bases)):
        losses = _tried(model, loss, probes)
        if isinstance(losses, Exception):
            first = first or losses
        elif not isinstance(losses, Tensor) or bool(torch.isfinite(losses).all()):
            return probes if probes.own is not None else _widened(model, loss, probes, integers)
        else:
            runs = runs or probes
    if runs is not None:
        return runs
    assert first is not None
    explain_single_value(first)
    raise InputError(
        f"The loss fails on {'probe records' if example is None else 'the example records'}: {first}",
        why="Before it sees a real record the model is run on two and on three public records of the data's shapes.",
        fix="Pass example= with a few public records of your own that the model can take, and check that "
        "loss(model, *batch) runs for batches of two and three records.",
    ) from first


def _widened(model: nn.Module, loss: Loss, probes: ProbeRecords, integers: Sequence[Tensor]) -> ProbeRecords:
    for place, leaf in enumerate(integers):
        if leaf.device.type != "cpu":
            continue
        for wider in _WIDER:
            trial = replace(probes, integers=(*probes.integers[:place], wider, *probes.integers[place + 1 :]))
            losses = _tried(model, loss, trial)
            if isinstance(losses, Tensor) and bool(torch.isfinite(losses).all()):
                probes = trial
                break
    return probes


def _tried(model: nn.Module, loss: Loss, probes: ProbeRecords) -> object:
    """What the loss gives for three records, or why it does not."""
    try:
        with undisturbed(model), probes.parameters(model), torch.no_grad():
            return loss(model, *probes.batch(3, extremes=True))
    except InputError:
        raise
    except (RuntimeError, ValueError, IndexError, ArithmeticError) as error:
        return error


def _checked(example: Sequence[Any], like: Sequence[Any]) -> tuple[Any, ...]:
    """The user's own records, if there are two at least and they have the shapes and dtypes of the data."""
    mine, theirs = (tree_leaves(tuple(each)) for each in (example, like))

    def kind(leaf: Any) -> Any:
        return (leaf.shape[1:], leaf.dtype) if isinstance(leaf, Tensor) else type(leaf)

    if [kind(leaf) for leaf in mine] != [kind(leaf) for leaf in theirs] or check_leading(example) < 2:
        raise InputError(
            "The example records are not two or more records such as the data has.",
            why="The model is looked over with them: every tensor must have the shape and dtype that the data has.",
            fix="Pass example= a batch of public records: the same tensors as the data, with two rows at least.",
        )
    return tuple(example)


def check_leading(batch: Sequence[Any]) -> int:
    """How many records ``batch`` holds: dimension 0 of every tensor in it."""
    sizes = {leaf.shape[0] if leaf.dim() else None for leaf in tree_leaves(tuple(batch)) if isinstance(leaf, Tensor)}
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
    scripted = torch.jit.ScriptModule  # their buffers are always the same tensors
    buffers = [(module, dict(module._buffers)) for module in model.modules() if not isinstance(module, scripted)]
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
