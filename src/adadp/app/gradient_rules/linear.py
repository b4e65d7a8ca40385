"""Products of an input with a weight matrix: linear layers, attention projections, ``x @ W``."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adadp.gradients.readers import Part, Reader, Reading, WrittenOut
from adadp.gradients.rule import (
    Pair,
    Rule,
    Scales,
    Sums,
    instances,
    norms_of,
    scale_rows,
    scaled,
    square_norm,
    weigh,
)

ROUNDING = 2.0**-20
"""Allowance for float32 rounding in a norm from Gram matrices, relative to (sum_t |a_t||d_t|)^2, its condition.
Measured errors, cancelling sums and widths up to 4096 included, stay below 2^-22 of that."""
UNDERFLOW = 2.0**-106
"""Allowance for squares that float32 rounds to zero: its smallest normal number, over ``ROUNDING``."""
HUGE = 2.0**100
"""The square of a side from which on its record counts for nothing, whatever the other side is: clip rules give norms
above 1e15, the root of this, no weight. The square itself overflows at 2^128."""


@dataclass(frozen=True)
class LinearRule(Rule):
    """``y = x W^T + b``; with ``transposed`` the parameter is ``W^T`` and ``y = x W``.

    The gradient of one record is the sum over its positions t of d_t a_t^T. With one position its norm is |a| |d|. With
    several it is either computed and squared, or read off two Gram matrices (the ghost norm; Li et al. 2022,
    arXiv:2110.05679), whichever needs fewer multiplications.
    """

    transposed: bool = False

    def working_size(self, pair: Pair) -> int:
        inputs = _input(pair).shape[-1] if "weight" in pair.slots else 0
        return (inputs + 1) * pair.output_grad.shape[-1]

    def per_example(self, pair: Pair) -> Sums:
        grads = {}
        d = positions_of(pair.output_grad)
        if "weight" in pair.slots:
            a = positions_of(_input(pair))
            grads["weight"] = torch.bmm(a.mT, d) if self.transposed else torch.bmm(d.mT, a)
        if "bias" in pair.slots:
            grads["bias"] = d.sum(1)
        return grads

    def instantiates(self, pair: Pair) -> bool:
        """By multiplications per record: positions^2 (inputs + outputs) for Gram matrices, or the product itself.

        The product must be kept in memory too, so Gram matrices may take twice as many (measured on a transformer: with
        a product that is cheaper by itself, writing and reading those of all layers takes longer).
        """
        positions = math.prod(pair.output_grad.shape[1:-1])
        if "weight" not in pair.slots:
            return positions > 1
        inputs, outputs = _input(pair).shape[-1], pair.output_grad.shape[-1]
        return positions > 1 and positions * (inputs + outputs) >= 2 * inputs * outputs

    def scale_shape(self, slot: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        if slot == "bias":
            return (1,)
        return (shape[0], 1) if self.transposed else (1, shape[1])

    def square_norms(self, pair: Pair, inverse: Scales = None) -> Sums:
        norms = {}
        d = pair.output_grad
        single = math.prod(d.shape[1:-1]) == 1
        size_d = square_norm(_summed(d)) if single or "bias" in pair.slots else None
        if "weight" in pair.slots:
            norms["weight"] = self._weight_norms(pair, inverse, size_d if single else None)
        if "bias" in pair.slots:
            assert size_d is not None
            norms["bias"] = _scaled_bias(size_d, d, inverse)
        return norms

    def _weight_norms(self, pair: Pair, inverse: Scales, size_d: Tensor | None) -> Tensor:
        """A scale per input, per output or for all goes with its side of the product, so that nothing is made of it.

        ``size_d`` is the squared norm of the output gradient where there is one position per record.
        """
        a, d = _input(pair), pair.output_grad
        if inverse is not None:
            scale = inverse["weight"].t() if self.transposed else inverse["weight"]
            if 1 not in scale.shape:
                return norms_of(instances(self, pair.only(("weight",))), inverse)["weight"]
            if scale.shape[0] == 1:
                a = a * scale.reshape(-1)
            else:
                d = d * scale.reshape(-1)
                size_d = None if size_d is None else square_norm(_summed(d))
        if size_d is not None:
            return _product_norm(a, size_d, d.shape[-1])
        return gram_square_norm(positions_of(a), positions_of(d))

    def weighted_sum(self, pair: Pair, weights: Tensor) -> Sums:
        sums = {}
        d = pair.output_grad
        if "weight" in pair.slots:
            a = _input(pair)
            if a.shape[-1] <= d.shape[-1]:  # the smaller side carries the weights
                a = scale_rows(a, weights)
            else:
                d = scale_rows(d, weights)
            a, d = _matrices(a, d)
            sums["weight"] = a.t() @ d if self.transposed else d.t() @ a  # as noise is added: contiguous
        if "bias" in pair.slots:
            sums["bias"] = weigh(_summed(pair.output_grad), weights)
        return sums

    def joined(self, uses: Sequence[tuple[Rule, Pair]]) -> tuple[Rule, Pair] | None:
        """A linear layer called several times is one linear layer over all positions: its closed forms hold again."""
        if any(rule != self for rule, _ in uses):
            return None
        pairs = [pair for _, pair in uses]
        grads = _side_by_side([pair.output_grad for pair in pairs])
        inputs = [pair.input for pair in pairs if pair.input is not None]
        return self, Pair(_side_by_side(inputs) if inputs else None, grads, pairs[0].slots)


def _side_by_side(sides: Sequence[Tensor]) -> Tensor:
    """The positions of several uses as those of one, ``[records, positions, width]``."""
    if all(side.dim() == 2 for side in sides):
        return torch.stack(list(sides)).transpose(0, 1)  # one after the other in memory: a third of the time
    return torch.cat([positions_of(side) for side in sides], dim=1)


def gram_square_norm(a: Tensor, d: Tensor) -> Tensor:
    """|sum_t d_t a_t^T|^2 = sum_{t,s} (a_t . a_s)(d_t . d_s) for ``[records, positions, width]``, never too small."""
    return norm_from_grams(torch.bmm(a, a.mT), torch.bmm(d, d.mT), a.shape[2], d.shape[2])


def norm_from_grams(gram_a: Tensor, gram_d: Tensor, inputs: int, outputs: int) -> Tensor:
    """The same from the two Gram matrices ``[records, positions, positions]``, which are used up.

    Where the terms cancel, rounding could make the result smaller than the truth and a record's weight larger than its
    bound allows: ``ROUNDING`` times the condition of the sum is added. So is what ``_beyond`` says of huge sides.
    """
    sides = _diagonal(gram_a, inputs), _diagonal(gram_d, outputs)
    size = (sides[0] * sides[1]).sqrt_().sum(1)
    huge = _beyond(sides[0].sum(1)) + _beyond(sides[1].sum(1))
    return (gram_a.mul_(gram_d)).sum((1, 2)).clamp_(min=0).add_(size.square_(), alpha=ROUNDING).add_(huge)


def _beyond(square: Tensor) -> Tensor:
    """What a side with the squared norm ``square`` adds to that of the product: HUGE min(1, (square / HUGE)^4).

    A side whose square overflows makes the record infinite though the product may be small, and the last bit of the
    side would decide whether the record contributes. This takes its weight away before, smoothly. For sides up to 1e9
    it is below 1e-17.
    """
    return (square / HUGE).square_().square_().clamp_(max=1.0).mul_(HUGE)


def _scaled_bias(size_d: Tensor, d: Tensor, inverse: Scales) -> Tensor:
    """The squared norm of the bias's gradient, from that of the output gradient where one scale is for all."""
    if inverse is None:
        return size_d
    if inverse["bias"].numel() == 1:
        return size_d * inverse["bias"].square()
    return square_norm(scaled(_summed(d), inverse, "bias"))


def _product_norm(a: Tensor, size_d: Tensor, outputs: int) -> Tensor:
    """|d a^T|^2 = |a|^2 |d|^2, never too small: a square that rounds to zero must not hide behind a huge factor.

    A huge factor does not hide behind a tiny one either: see ``_beyond``.
    """
    size_a = square_norm(a)
    huge = _beyond(size_a).add_(_beyond(size_d))
    return size_a.add_(UNDERFLOW * a.shape[-1]).mul_(size_d + UNDERFLOW * outputs).add_(huge)


def _diagonal(gram: Tensor, width: int) -> Tensor:
    return gram.diagonal(dim1=1, dim2=2) + UNDERFLOW * width


def positions_of(rows: Tensor) -> Tensor:
    """``[records, ..., width]`` as ``[records, positions, width]``."""
    if rows.dim() == 2:
        return rows.unsqueeze(1)
    return rows if rows.dim() == 3 else rows.flatten(1, -2)


def _matrices(a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Both as matrices with a row for every position of every record, in the same order: that of ``d`` in memory."""
    if a.dim() == d.dim() == 3 and d.stride(0) < d.stride(1):
        a, d = a.transpose(0, 1), d.transpose(0, 1)
    return a.flatten(0, -2), d.flatten(0, -2)


def _summed(rows: Tensor) -> Tensor:
    """``[records, ..., width]`` summed over the positions."""
    return rows if rows.dim() == 2 else positions_of(rows).sum(1)


def _input(pair: Pair) -> Tensor:
    assert pair.input is not None
    return pair.input


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Reading | None:
    if weight.dim() != 2 or input.dim() < 2:
        return None
    return Reading(LinearRule(), input, {"weight": weight, "bias": bias})


def _matmul(input: Tensor, other: Tensor) -> Reading | None:
    if other.dim() != 2 or input.dim() < 2:
        return None
    return Reading(LinearRule(transposed=True), input, {"weight": other})


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Reading | None:
    """``input + mat1 @ mat2``, in which ``input`` may be a bias."""
    if beta != 1 or alpha != 1:
        return None
    bias = input if input.dim() == 1 and input.shape == mat2.shape[1:] else None
    return Reading(LinearRule(transposed=True), mat1, {"weight": mat2, "bias": bias})


def _einsum(equation: str, *operands: Any) -> WrittenOut | None:
    """A sum over indices that is a matrix product: ``bld,dhk->blhk`` is x W with W as a matrix of d rows.

    The records are taken to be the first index of the result, so that the other operand is the weight. None where an
    index is repeated, or is in both operands and in the result.
    """
    tensors = tuple(operands[0]) if len(operands) == 1 else operands
    left, _, result = equation.replace(" ", "").partition("->")
    if len(tensors) != 2 or not result or left.count(",") != 1:
        return None
    sides = [(side, tensor) for side, tensor in zip(left.split(","), tensors, strict=True)]
    (indices, x), (of_weight, weight) = sides if result[0] in sides[0][0] else sides[::-1]
    if "..." in indices and "..." not in of_weight:
        more = string.ascii_uppercase[: x.dim() - len(indices) + 3]
        indices, result = indices.replace("...", more), result.replace("...", more)
    summed = [index for index in of_weight if index in indices]
    kept, made = ([index for index in side if index not in summed] for side in (indices, of_weight))
    if not summed or not kept or "." in indices + of_weight or sorted(kept + made) != sorted(result):
        return None
    if len(set(indices)) < len(indices) or len(set(of_weight)) < len(of_weight):
        return None

    def run(part: Part) -> Tensor:  # noqa: ARG001
        rows = x.permute([indices.index(each) for each in kept + summed]).flatten(len(kept))
        matrix = weight.permute([of_weight.index(each) for each in summed + made]).reshape(rows.shape[-1], -1)
        product: Tensor = (rows @ matrix).reshape(
            *rows.shape[:-1], *(weight.shape[of_weight.index(each)] for each in made)
        )
        return product.permute([(kept + made).index(each) for each in result])

    return WrittenOut(run)


READERS: dict[Callable[..., Any], Reader] = {
    torch.einsum: _einsum,
    F.linear: _linear,
    torch.addmm: _addmm,
    Tensor.addmm: _addmm,
    Tensor.mm: _matmul,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    Tensor.matmul: _matmul,
}
