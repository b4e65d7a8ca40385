"""Sums of clamped outer products, fused by the compiler so that no per-example gradient is written to memory."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

_COMPILED_RECORDS = 128
"""Records per compiled call: shorter batches are padded with zeros, whose clamped products are zero."""
_EAGER_ELEMENTS = 1 << 19
"""Numbers at a time without a compiler: what stays in a cache (twice as fast as eight times as many)."""


def clamped_products(left: Tensor, right: Tensor, bound: Tensor) -> Tensor:
    """sum_b clamp(left_b right_b^T, -bound, bound) for ``[records, rows]`` and ``[records, columns]``."""
    records = left.shape[0]
    total = torch.zeros_like(bound, dtype=left.dtype)
    kernel = _compiled_kernel()
    if kernel is None:
        width = max(1, _EAGER_ELEMENTS // max(1, bound.numel()))
        for start in range(0, records, width):
            total += _clamp_and_sum(left[start : start + width].t(), right[start : start + width].t(), bound)
        return total
    for start in range(0, records, _COMPILED_RECORDS):
        rows, columns = (_padded(side[start : start + _COMPILED_RECORDS]).t().contiguous() for side in (left, right))
        total += kernel(rows, columns, bound)
    return total


def _clamp_and_sum(rows: Tensor, columns: Tensor, bound: Tensor) -> Tensor:
    """The reduction runs over the last, contiguous dimension, which is where the compiler vectorises it best."""
    box = bound.unsqueeze(2)
    return torch.clamp(rows.unsqueeze(1) * columns.unsqueeze(0), -box, box).sum(2)


def _padded(side: Tensor) -> Tensor:
    missing = _COMPILED_RECORDS - side.shape[0]
    return torch.nn.functional.pad(side, (0, 0, 0, missing)) if missing else side


@functools.cache
def _compiled_kernel() -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The fused kernel, or None where no compiler works: tried once on a tiny product."""
    kernel = torch.compile(_clamp_and_sum, dynamic=True)
    try:
        tiny = torch.ones(2, _COMPILED_RECORDS)
        kernel(tiny, tiny, torch.ones(2, 2))
    except Exception as error:
        warnings.warn(f"Clamped sums run without a compiler, more slowly: {error}".splitlines()[0], stacklevel=2)
        return None
    return kernel
