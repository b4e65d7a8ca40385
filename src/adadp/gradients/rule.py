"""What a rule for one kind of layer must offer, and what follows from it for every rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Sums = dict[str, Tensor]
"""Slot of a parameter in its layer ("weight", "bias") to a tensor."""
Scales = Mapping[str, Tensor] | None
"""Slot of a parameter to what its gradient is multiplied with, of a shape that broadcasts to it; None: nothing."""


@dataclass(frozen=True)
class Pair:
    """What one use of a layer left behind: its input and the gradient at its output, both with records first.

    ``input`` is None for a use whose parameter gradient does not depend on it. ``slots`` are the parameters of this use
    that are trained. Sensitive: lives as long as the capture that made it.
    """

    input: Tensor | None
    output_grad: Tensor
    slots: tuple[str, ...]
    kept: dict[str, tuple[Tensor, ...]] = field(default_factory=dict, kw_only=True)
    """What a rule made of it for norms and needs again for sums."""

    @property
    def records(self) -> int:
        return self.output_grad.shape[0]

    def only(self, slots: tuple[str, ...]) -> Pair:
        """The same use for some of its parameters."""
        return self if slots == self.slots else Pair(self.input, self.output_grad, slots)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Pair:
        """The same use with other rows, or fewer: ``change`` is given the input and the output gradient."""
        return Pair(None if self.input is None else change(self.input), change(self.output_grad), self.slots)

    def rows(self, start: int, stop: int) -> Pair:
        """The same use for records ``start`` to ``stop``."""
        return self.changed(lambda side: side[start:stop])


class Rule(ABC):
    """How the parameter gradients of one kind of layer follow from the pair (input, output gradient).

    A rule is made for one use and holds its settings (stride, shape of the weight, ...). ``per_example`` defines it.
    Where ``instantiates`` is False, ``square_norms`` and ``weighted_sum`` are closed forms that agree with it.
    """

    several_per_record = False
    """Whether a rule that needs the records in dimension 0 takes several rows of that for each record."""

    @abstractmethod
    def per_example(self, pair: Pair) -> Sums:
        """The gradient of every record, ``[records, *shape of the parameter]``."""

    @abstractmethod
    def working_size(self, pair: Pair) -> int:
        """How many numbers per record ``per_example`` makes, temporaries included."""

    def instantiates(self, pair: Pair) -> bool:  # noqa: ARG002
        """Whether per-example gradients are the cheaper way for these shapes."""
        return True

    def scale_shape(self, slot: str, shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        """The shape of the scales of a parameter: 1 along the dimensions that share one, its own along the others.

        A number for every input of the layer; where the layer has no such thing, one number for all.
        """
        return (1,) * len(shape)

    def square_norms(self, pair: Pair, inverse: Scales = None) -> Sums:
        """The squared norm of every record's gradient, times ``inverse`` where that is given, ``[records]``."""
        return norms_of(instances(self, pair), inverse)

    def weighted_sum(self, pair: Pair, weights: Tensor) -> Sums:
        """The sum over records of weight times gradient, of the parameter's shape."""
        return weigh_all(instances(self, pair), weights, pair.slots)

    def joined(self, uses: Sequence[tuple[Rule, Pair]]) -> tuple[Rule, Pair] | None:  # noqa: ARG002
        """One use that stands for several uses of one parameter, of which this is the first; None: they stay apart."""
        return None


_CPU_SLICE, _GPU_SLICE = 1 << 19, 1 << 26
"""Numbers instantiated at a time: on a CPU what stays in its cache (2 MB; four times faster than 32 MB for a 5x5
convolution), elsewhere what keeps the device busy."""


def slices(pair: Pair, numbers_per_record: int) -> list[tuple[int, int]]:
    """Ranges of records whose per-example numbers fit a slice."""
    numbers = _CPU_SLICE if pair.output_grad.device.type == "cpu" else _GPU_SLICE
    width = max(1, numbers // max(1, numbers_per_record))
    return [(start, min(pair.records, start + width)) for start in range(0, pair.records, width)]


def instances(rule: Rule, pair: Pair) -> list[Sums]:
    """``rule.per_example`` slice by slice of the records, so that its temporaries stay small."""
    return [rule.per_example(pair.rows(start, stop)) for start, stop in slices(pair, rule.working_size(pair))]


def norms_of(parts: Iterable[Sums], inverse: Scales = None) -> Sums:
    """Squared norms of all records, from per-example gradients slice by slice."""
    norms = [{slot: square_norm(scaled(grads, inverse, slot)) for slot, grads in part.items()} for part in parts]
    return norms[0] if len(norms) == 1 else {slot: torch.cat([each[slot] for each in norms]) for slot in norms[0]}


def scaled(grads: Tensor, inverse: Scales, slot: str) -> Tensor:
    """Per-example gradients of one parameter in scaled coordinates."""
    return grads if inverse is None else grads * inverse[slot]


def weigh_all(parts: Iterable[Sums], weights: Tensor, slots: tuple[str, ...]) -> Sums:
    """The weighted sum over all records, from per-example gradients slice by slice."""
    total: Sums = {}
    start = 0
    for part in parts:
        stop = start + len(part[slots[0]])
        for slot in slots:
            value = weigh(part[slot], weights[start:stop])
            total[slot] = total[slot].add_(value) if slot in total else value
        start = stop
    return total


_NORM_BLOCK = 1024
"""Squares added in float32 at a time. Small ones are lost behind large ones: up to 2e-6 of a norm over 1024 numbers,
2e-3 over a million (measured), and clip rules allow for 9e-6."""


def square_norm(grads: Tensor) -> Tensor:
    """``[records, ...]`` to the squared norm of every record."""
    flat = grads.reshape(grads.shape[0], -1)
    whole = flat.shape[1] // _NORM_BLOCK * _NORM_BLOCK
    norms: Tensor = torch.linalg.vector_norm(flat[:, whole:], dim=1)
    if not whole:
        return norms.square_()
    blocks: Tensor = torch.linalg.vector_norm(flat[:, :whole].view(len(flat), -1, _NORM_BLOCK), dim=2)
    squares = blocks.double().square_().sum(1).add_(norms.double().square_())
    return squares.to(norms.dtype)


def scale_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """Every record of ``rows`` times its weight."""
    return rows * weights.to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))


def weigh(grads: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum over records of ``[records, *shape]``."""
    flat = grads.reshape(grads.shape[0], -1)
    return torch.mv(flat.t(), weights.to(grads.dtype)).view(grads.shape[1:])
