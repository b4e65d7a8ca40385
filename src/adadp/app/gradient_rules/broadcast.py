"""A bare parameter that is added, multiplied or repeated: position tables, class tokens, layer scales.

The per-example gradient is no larger than the output: it is simply computed, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adadp.gradients.readers import Reader, Reading
from adadp.gradients.rule import Pair, Rule, Sums


@dataclass(frozen=True)
class BroadcastRule(Rule):
    """``x + p``, ``x * p`` and ``p.expand(...)``: the output gradient (times x), summed to the shape of p.

    ``factor`` is the constant ``alpha`` of an addition.
    """

    shape: tuple[int, ...]
    multiplied: bool
    factor: float = 1.0

    def working_size(self, pair: Pair) -> int:
        return pair.output_grad[:1].numel()

    def per_example(self, pair: Pair) -> Sums:
        d = pair.output_grad
        if self.multiplied:
            assert pair.input is not None
            d = d * pair.input
        elif self.factor != 1:
            d = d * self.factor
        # Dimensions of a record, without the batch; a parameter with a leading 1 for the batch keeps it.
        own = self.shape[1:] if len(self.shape) == d.dim() else self.shape
        missing = d.dim() - 1 - len(own)
        if missing:
            d = d.flatten(1, missing).sum(1)
        for dim, size in enumerate(own, start=1):
            if size == 1 and d.shape[dim] != 1:
                d = d.sum(dim, keepdim=True)
        return {"weight": d.reshape(d.shape[0], *self.shape)}


def _add(input: Any, other: Any, *, alpha: float = 1) -> Reading | None:
    return _broadcast(input, other, multiplied=False, alpha=alpha)


def _mul(input: Any, other: Any) -> Reading | None:
    return _broadcast(input, other, multiplied=True, alpha=1)


def _broadcast(first: Any, second: Any, *, multiplied: bool, alpha: float) -> Reading | None:
    """One side must be a parameter of no more dimensions than the other; only one may be trained."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return None
    if isinstance(second, torch.nn.Parameter) and first.dim() >= second.dim():
        activation, parameter, factor = first, second, alpha
    elif isinstance(first, torch.nn.Parameter) and second.dim() >= first.dim():
        activation, parameter, factor = second, first, 1.0
    else:
        return None
    rule = BroadcastRule(tuple(parameter.shape), multiplied, float(factor))
    return Reading(rule, activation if multiplied else None, {"weight": parameter}, batch_first_only=True)


def _expand(input: Tensor, *_: Any) -> Reading:
    return Reading(BroadcastRule(tuple(input.shape), False), None, {"weight": input}, batch_first_only=True)


def _repeat(input: Tensor, *sizes: Any) -> Reading | None:
    """Once for every record, and no more: then it is an expansion."""
    times = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    once = len(times) == input.dim() > 0 and input.shape[0] == 1 and all(each == 1 for each in times[1:])
    return _expand(input) if once else None


READERS: dict[Callable[..., Any], Reader] = {
    torch.add: _add,
    Tensor.add: _add,
    Tensor.add_: _add,
    Tensor.__iadd__: _add,
    torch.mul: _mul,
    Tensor.mul: _mul,
    Tensor.expand: _expand,
    Tensor.repeat: _repeat,
}
