"""Sums over records of gradients that are clamped to a box, or squared, coordinate by coordinate.

For linear layers the clamped products are fused by the compiler, so that no per-example gradient is written to memory.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from adadp.app.gradient_rules.linear import LinearRule
from adadp.errors import InputError
from adadp.gradients import Capture
from adadp.gradients.capture import Piece
from adadp.gradients.rule import Pair, Sums

_VECTOR = 16
"""Each half of the records is padded to a multiple of this with zeros, whose clamped products are zero: whole vectors,
aligned with cache lines."""
_EAGER_ELEMENTS = 1 << 19
"""Numbers at a time without a compiler: what stays in a cache (twice as fast as eight times as many)."""


def clamped_sums(capture: Capture, bounds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sum over records of the gradient clamped to the box [-bound, bound], coordinate by coordinate.

    ``bounds`` has a tensor of the parameter's shape, nowhere negative, for every trained parameter.
    """
    for name, parameter in capture.parameters.items():
        if name not in bounds or bounds[name].shape != parameter.shape:
            raise InputError(
                f"The box has no bounds of shape {tuple(parameter.shape)} for {name}.",
                why="A coordinate without a bound would be released without one.",
                fix="Give a tensor of bounds, of the parameter's shape, for every trained parameter.",
            )

    def clamped(piece: Piece) -> Sums:
        box = {slot: target.of(bounds[target.name]) for slot, target in piece.targets.items()}
        product = _one_product(piece)
        if product is None:
            return _sum(piece, lambda slot, grads: torch.clamp(grads, -box[slot], box[slot]))
        rule, a, pair = product
        sums = {}
        if "weight" in pair.slots:
            left, right = (a, pair.output_grad) if rule.transposed else (pair.output_grad, a)
            sums["weight"] = clamped_products(left, right, box["weight"])
        if "bias" in pair.slots:
            sums["bias"] = torch.clamp(pair.output_grad, -box["bias"], box["bias"]).sum(0)
        return sums

    return capture.sums(clamped)


def square_sums(capture: Capture) -> dict[str, Tensor]:
    """Sum over records of the squared gradient, coordinate by coordinate."""

    def squared(piece: Piece) -> Sums:
        product = _one_product(piece)
        if product is None:
            return _sum(piece, lambda _, grads: grads.square())
        rule, a, pair = product  # the square of a product is the product of the squares
        squares = Pair(a.square(), pair.output_grad.square(), pair.slots)
        return rule.weighted_sum(squares, pair.output_grad.new_ones(pair.records))

    return capture.sums(squared)


def _one_product(piece: Piece) -> tuple[LinearRule, Tensor, Pair] | None:
    """Rule, input and pair of a linear layer used once, on one vector per record: its gradient is one product."""
    if piece.closed_form is not None:
        rule, pair = piece.closed_form
        if isinstance(rule, LinearRule) and pair.input is not None and pair.output_grad.dim() == 2:
            return rule, pair.input, pair
    return None


def _sum(piece: Piece, change: Callable[[str, Tensor], Tensor]) -> Sums:
    """The sum over records of ``change`` of each record's gradient."""
    total: Sums = {}
    for part in piece.per_example():
        for slot, grads in part.items():
            value = change(slot, grads).sum(0)
            total[slot] = total[slot] + value if slot in total else value
    return total


@torch.no_grad()  # always: code compiled with a graph is other code
def clamped_products(left: Tensor, right: Tensor, bound: Tensor) -> Tensor:
    """sum_b clamp(left_b right_b^T, -bound, bound) for ``[records, rows]`` and ``[records, columns]``.

    ==================================  =======================================
    a bound that is negative or NaN     counts as 0: nothing of it is summed
    an infinite bound                   nothing is clamped
    a product that overflows            counts as its bound
    no records, no rows or no columns   zeros, or nothing
    ==================================  =======================================
    """
    box = bound.to(left.dtype).contiguous().nan_to_num(0.0, posinf=torch.inf).clamp_(min=0)  # a where is slower
    kernel = _compiled_kernel()
    if kernel is not None and left.shape[0] and min(box.shape) > 1:  # of one row or column is no work to speak of
        return kernel(_halves(left), _halves(right), box)
    total = torch.zeros_like(box)
    width = max(1, _EAGER_ELEMENTS // max(1, box.numel()))
    limits = box.unsqueeze(2)
    for rows, columns in zip(torch.split(left.t(), width, 1), torch.split(right.t(), width, 1), strict=True):
        total += torch.clamp(rows.unsqueeze(1) * columns.unsqueeze(0), -limits, limits).sum(2)
    return total


def _clamp_and_sum(rows: Tensor, columns: Tensor, box: Tensor) -> Tensor:
    """The same, of ``[2, rows, records / 2]`` and ``[2, columns, records / 2]``, to be compiled.

    The reduction runs over the last, contiguous dimension, where it becomes vectors. Two records are added before they
    are added to the total, so that an addition need not wait for the one before.
    """
    first, second = (_clamp(rows[half].unsqueeze(1) * columns[half].unsqueeze(0), box.unsqueeze(2)) for half in (0, 1))
    return (first + second).sum(2)


def _clamp(values: Tensor, box: Tensor) -> Tensor:
    """``torch.clamp(values, -box, box)`` where neither is NaN.

    Positive floats are ordered as the integers with the same bits are, and the least of two integers is one instruction
    where ``torch.clamp`` takes six to let NaN through.
    """
    if values.dtype != torch.float32:
        return torch.clamp(values, -box, box)
    bits, signs = values.view(torch.int32), torch.iinfo(torch.int32).min
    return (bits & signs | torch.minimum(bits & ~signs, box.view(torch.int32))).view(torch.float32)


def _halves(side: Tensor) -> Tensor:
    """``[records, width]`` as ``[2, width, records / 2]``, padded."""
    records, width = side.shape
    half = -(-records // (2 * _VECTOR)) * _VECTOR
    laid = side.new_zeros(width, 2 * half)  # zeros first: memory that is new costs far more when touched across
    laid[:, :records] = side.t()
    return laid.view(width, 2, half).transpose(0, 1)


@functools.cache
def _compiled_kernel() -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The fused kernel for all sizes, or None where no compiler works: tried once.

    Sizes that are equal in the first call would be taken for equal in all, and a first call too small to be worth
    several threads would leave all to one.
    """
    kernel = torch.compile(_clamp_and_sum, dynamic=True)
    try:
        kernel(_halves(torch.ones(64, 256)), _halves(torch.ones(64, 96)), torch.ones(256, 96))
    except Exception as error:
        warnings.warn(f"Clamped sums run without a compiler, more slowly: {error}".splitlines()[0], stacklevel=2)
        return None
    return kernel
