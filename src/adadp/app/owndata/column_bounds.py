"""The range of number columns, released privately: a histogram over public bins, and what its noisy counts tell.

A bin is a signed power of two: [2^e, 2^(e+1)) for e = -20..39, its mirror image below zero, and one bin for what is
smaller than 2^-20 in size; beyond 2^40 everything counts in the outermost bin. The bins are fixed before any data is
seen. A record adds 1 to one bin of each of the k columns and 0 elsewhere, so adding or removing it moves the k
histograms together by at most sqrt(k) in L2 norm: that is ``l2_bound``, and noise of standard deviation
``noise_multiplier * l2_bound`` on every count is one Gaussian release, which the caller charges and adds.

What follows is post-processing. A count that is noise alone passes noise_std * t with probability at most
exp(-t^2 / 2) / 2; with t = sqrt(2 ln(k bins / 0.01)) none of the k * bins empty bins passes it, but for a chance of at
most 0.005. So bins at or below it are dropped as noise, and a column's range runs from its first kept bin to its last.
Values outside are clipped later: at most about 2 t noise_std records in each dropped bin.

    case                                    answer
    ======================================  ===========================================================================
    every count is explained by noise       the public default [-1, 1]
    no noise (noise_std = 0)                the exact range of the bins that are not empty
    only zeros                              [-2^-20, 2^-20]
    NaN (a missing value)                   counted nowhere
    infinite, or beyond 2^40                counted in the outermost bin, clipped to 2^40
    no records                              counts of zero
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from adadp import checks
from adadp.errors import InputError

SMALLEST_EXPONENT, LARGEST_EXPONENT = -20, 40
DEFAULT = (-1.0, 1.0)
"""The range of a column whose counts are all explained by noise."""

CHANCE = 0.01
"""Twice the largest probability that a bin nobody is in is kept."""

_POWERS = [2.0**exponent for exponent in range(SMALLEST_EXPONENT, LARGEST_EXPONENT + 1)]
EDGES = (*(-power for power in reversed(_POWERS)), *_POWERS)
"""Bin b covers [EDGES[b], EDGES[b + 1])."""


@dataclass(frozen=True)
class BoundsQuery:
    """The question where the values of ``columns`` number columns lie."""

    columns: int

    def __post_init__(self) -> None:
        checks.count("columns", self.columns, why="Without a column there is nothing to release.")

    @property
    def bins(self) -> int:
        """How many bins a column has."""
        return len(EDGES) - 1

    @property
    def l2_bound(self) -> float:
        """The L2 norm of what one record adds to the counts of all columns, at most. Rounded up."""
        root = math.sqrt(self.columns)
        return root if Fraction(root) ** 2 >= self.columns else math.nextafter(root, math.inf)

    def query(self, columns: Tensor) -> Tensor:
        """The exact counts (columns, bins) of the values (records, columns). They are sensitive."""
        if columns.dim() != 2 or columns.shape[1] != self.columns:
            raise InputError(
                f"The values must be of shape (records, {self.columns}), got {tuple(columns.shape)}.",
                fix="Pass one column of values for each column of the query.",
            )
        values = columns.to(torch.float64)
        inner = torch.tensor(EDGES[1:-1], dtype=torch.float64, device=values.device)
        counts = torch.zeros(self.columns, self.bins, dtype=torch.float64, device=values.device)
        for number, column in enumerate(values.unbind(dim=1)):
            present = column[~column.isnan()]
            counts[number] = torch.bucketize(present, inner, right=True).bincount(minlength=self.bins)
        return counts

    def bounds(self, noisy_counts: Tensor, noise_std: float) -> list[tuple[float, float]]:
        """For each column the smallest range of bins outside of which noise explains every count."""
        checks.non_negative("noise_std", noise_std)
        if noisy_counts.shape != (self.columns, self.bins):
            raise InputError(
                f"The counts must be of shape {(self.columns, self.bins)}, got {tuple(noisy_counts.shape)}.",
                fix="Pass the counts of query, with noise added.",
            )
        threshold = noise_std * math.sqrt(2 * math.log(self.columns * self.bins / CHANCE))
        found: list[tuple[float, float]] = []
        for kept in noisy_counts > threshold:
            bins = torch.nonzero(kept).flatten().tolist()
            found.append((EDGES[bins[0]], EDGES[bins[-1] + 1]) if bins else DEFAULT)
        return found
