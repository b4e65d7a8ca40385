"""A bare parameter that is added, multiplied or repeated: position tables, class tokens, layer scales.

The per-example gradient is no larger than the output: it is simply computed, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adadp.gradients.readers import Reader, Reading
from adadp.gradients.rule import Pair, Rule, Sums


@dataclass(frozen=True)
class BroadcastRule(Rule):
    """``x + p``, ``x * p`` and ``p.expand(...)``: the output gradient (times x), summed to the shape of p.

    ``dims`` is how many dimensions the output has, ``factor`` the constant ``alpha`` of an addition.
    """

    shape: tuple[int, ...]
    dims: int
    multiplied: bool = False
    factor: float = 1.0

    several_per_record = True

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
        own = self.shape[1:] if len(self.shape) == self.dims and self.shape[0] == 1 else self.shape
        missing = d.dim() - 1 - len(own)
        if missing:
            d = d.flatten(1, missing).sum(1)
        for dim, size in enumerate(own, start=1):
            if size == 1 and d.shape[dim] != 1:
                d = d.sum(dim, keepdim=True)
        return {"weight": d.reshape(d.shape[0], *self.shape)}


def _add(input: Any, other: Any, *, alpha: float = 1) -> Sequence[Reading]:
    return _broadcast(input, other, multiplied=False, alpha=alpha)


def _mul(input: Any, other: Any) -> Sequence[Reading]:
    return _broadcast(input, other, multiplied=True, alpha=1)


def _broadcast(first: Any, second: Any, *, multiplied: bool, alpha: float) -> Sequence[Reading]:
    """Either side may be the parameter, of no more dimensions than the other; only one may be trained."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return ()
    return [
        Reading(
            BroadcastRule(tuple(parameter.shape), activation.dim(), multiplied, float(factor)),
            activation if multiplied else None,
            {"weight": parameter},
            batch_first_only=True,
        )
        for activation, parameter, factor in ((first, second, alpha), (second, first, 1.0))
        if activation.dim() >= parameter.dim()
    ]


def _expand(input: Tensor, *sizes: Any) -> Reading:
    return _spread(input, len(_listed(sizes)))


def _expand_as(input: Tensor, other: Tensor) -> Reading:
    return _spread(input, other.dim())


def _repeat(input: Tensor, *sizes: Any) -> Reading | None:
    """Once for every record, and no more."""
    times = _listed(sizes)
    once = len(times) == input.dim() > 0 and all(each == 1 for each in times[1:])
    return _spread(input, input.dim()) if once else None


def _spread(parameter: Tensor, dims: int) -> Reading:
    return Reading(BroadcastRule(tuple(parameter.shape), dims), None, {"weight": parameter}, batch_first_only=True)


def _listed(sizes: tuple[Any, ...]) -> Sequence[int]:
    """Sizes given one by one, or as one sequence."""
    return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes


READERS: dict[Callable[..., Any], Reader] = {
    torch.add: _add,
    Tensor.add: _add,
    Tensor.add_: _add,
    Tensor.__iadd__: _add,
    torch.mul: _mul,
    Tensor.mul: _mul,
    Tensor.expand: _expand,
    Tensor.expand_as: _expand_as,
    torch.broadcast_to: _expand,
    Tensor.broadcast_to: _expand,
    Tensor.repeat: _repeat,
}
