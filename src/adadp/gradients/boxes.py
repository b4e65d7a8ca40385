"""Sums of clamped outer products, fused by the compiler so that no per-example gradient is written to memory."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

_VECTOR = 16
"""Each half of the records is padded to a multiple of this with zeros, whose clamped products are zero: whole vectors,
aligned with cache lines."""
_EAGER_ELEMENTS = 1 << 19
"""Numbers at a time without a compiler: what stays in a cache (twice as fast as eight times as many)."""


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
