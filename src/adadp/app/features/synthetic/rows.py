"""Rows of norm 1, centred by the mean of those of synthetic images."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import normalize


def mean_row(rows: Tensor) -> Tensor:
    """The mean of ``rows`` scaled to norm 1."""
    return normalize(rows).double().mean(0).float()


def centred(rows: Tensor, mean: Tensor) -> Tensor:
    """``rows`` scaled to norm 1, without ``mean``, scaled to norm 1 again; a zero row stands at minus the mean."""
    return normalize(normalize(rows) - mean)
