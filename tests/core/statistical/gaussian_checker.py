"""A checker of Gaussian noise, to be shown good noise, which it accepts, and broken twins, which it rejects.

Each law is held against a bound that good noise fails with a probability of about 1e-6, so that a failure means
something; with 500 steps of 200 coordinates a scale wrong by 2 % is far beyond it.
"""

from __future__ import annotations

import math

import torch
from scipy.stats import kstest
from torch import Tensor

_LIMIT = 5.0
"""Standard errors allowed for one statistic."""
_LIMIT_OF_MANY = 6.5
"""Standard errors allowed for the largest of many statistics, or for one with a heavier tail."""


def broken_laws(noise: Tensor, std: float) -> set[str]:
    """Which laws of independent N(0, std^2) noise the ``noise`` (steps x coordinates) breaks; empty if none."""
    z = noise.double() / std
    steps, coordinates = z.shape
    centred = z - z.mean(0)
    correlation = torch.corrcoef(z.T.nan_to_num()).nan_to_num(1.0).fill_diagonal_(0.0)
    excess = {
        "mean": (abs(z.mean().item()) * math.sqrt(z.numel()), _LIMIT),
        "scale": (_excess_variance(z), _LIMIT),
        "mean of a coordinate": (z.mean(0).abs().max().item() * math.sqrt(steps), _LIMIT_OF_MANY),
        "scale of a coordinate": (max(_excess_variance(column) for column in centred.T), _LIMIT_OF_MANY),
        "correlation of two coordinates": (correlation.abs().max().item() * math.sqrt(steps), _LIMIT_OF_MANY),
        "correlation of all coordinates": (_excess_variance(z.sum(1) / math.sqrt(coordinates)), _LIMIT_OF_MANY),
        "correlation of two steps": (abs((z[1:] * z[:-1]).mean().item()) * math.sqrt(z[1:].numel()), _LIMIT),
        "correlation of all steps": (_excess_variance(z.sum(0) / math.sqrt(steps)), _LIMIT_OF_MANY),
    }
    broken = {law for law, (value, limit) in excess.items() if not value <= limit}
    normal = kstest(z.flatten().numpy(), "norm").pvalue >= 1e-6
    return broken if normal else {*broken, "normality"}


def _excess_variance(z: Tensor) -> float:
    """How many standard errors the mean square of standard normals is off 1."""
    return abs(z.square().mean().item() - 1) * math.sqrt(z.numel() / 2)
