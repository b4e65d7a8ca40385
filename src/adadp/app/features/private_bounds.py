"""The range of number columns, released privately: what scales a table whose columns have no publicly known bounds.

A record arrives as its features followed by the raw values of those columns, NaN where one is missing. One noisy
histogram over public bins gives each column a range; afterwards a value is clipped to it, mapped to [-1, 1] and put
among the features, where zeros kept its place: its position, then a slot of each of ``bins``. With ``unit`` every
record is then divided by its l2 norm, as a table does whose ranges are declared.

A bin is a signed power of two: [2^e, 2^(e+1)) for e = -20..39, its mirror image below zero, and one bin for what is
smaller than 2^-20 in size; beyond 2^40 everything counts in the outermost bin. The bins are fixed before any data is
seen. A record adds 1 to one bin of each of the k columns and 0 elsewhere, so adding or removing it moves the k
histograms together by at most sqrt(k) in L2 norm: that is ``l2_bound``. Counts are not negative, so the inner product
of what two records add is not either (``NO_OPPOSITES``).

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
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from adadp import checks
from adadp.app.features.base import NO_OPPOSITES, ReleasedStage, Shape
from adadp.errors import InputError

DEFAULT = (-1.0, 1.0)
"""The range of a column whose counts are all explained by noise."""

CHANCE = 0.01
"""Twice the largest probability that a bin nobody is in is kept."""

_POWERS = [2.0**exponent for exponent in range(-20, 41)]
EDGES = (*(-power for power in reversed(_POWERS)), *_POWERS)
"""Bin b covers [EDGES[b], EDGES[b + 1])."""
BINS = len(EDGES) - 1


@dataclass(frozen=True)
class Bounds(ReleasedStage):
    """``bounds:columns=3;7,noise_multiplier=20``: the ranges of the features 3 and 7, whose raw values come last in a
    record.
    """

    name = "bounds"
    budget_share = 0.1
    replaced = NO_OPPOSITES
    columns: tuple[int, ...]
    noise_multiplier: float | None = None
    bins: tuple[int, ...] = ()
    unit: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.columns:
            raise InputError(
                "bounds has no columns.", fix="Name the features, like bounds:columns=3;7,noise_multiplier=20."
            )
        self._set(
            columns=tuple(checks.count("columns", each, minimum=0, why="It is a position.") for each in self.columns),
            bins=tuple(checks.count("bins", each, minimum=2) for each in self.bins),
        )

    @property
    def l2_bound(self) -> float:
        """The L2 norm of what one record adds to the counts of all columns, at most. Rounded up."""
        root = math.sqrt(len(self.columns))
        return root if Fraction(root) ** 2 >= len(self.columns) else math.nextafter(root, math.inf)

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1 or shape[0] <= max(self.columns) + sum(self.bins) + len(self.columns):
            raise InputError(
                f"bounds cannot read records of shape {shape}.",
                why="They must be rows of features followed by the raw values of its columns.",
                fix="Use it with a table whose schema asks for private bounds; it is then added by itself.",
            )
        return (shape[0] - len(self.columns),)

    def query(self, records: Tensor) -> dict[str, Tensor]:
        (width,) = self.output_shape(tuple(records.shape[1:]))
        inner = torch.tensor(EDGES[1:-1], dtype=torch.float64, device=records.device)
        counts = torch.zeros(len(self.columns), BINS, dtype=torch.float64, device=records.device)
        for number, column in enumerate(records[:, width:].double().unbind(dim=1)):
            present = column[~column.isnan()]
            counts[number] = torch.bucketize(present, inner, right=True).bincount(minlength=BINS)
        return {"histograms": counts}

    def learned(self, released: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
        del shape
        found = ranges(released["histograms"].cpu(), self.known_noise_multiplier * self.l2_bound)
        return {"ranges": torch.tensor(found, dtype=torch.float64)}

    def apply(self, records: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        width = records.shape[1] - len(self.columns)
        features, raw = records[:, :width].float().clone(), records[:, width:].double()
        for start, values, (low, high) in zip(self.columns, raw.unbind(1), learned["ranges"], strict=True):
            rows = torch.nonzero(~values.isnan())[:, 0]
            there = ((values[rows].clamp(low, high) / 2 - low / 2) / (high / 2 - low / 2)).clamp(0, 1).float()
            features[rows, start] = 2 * there - 1
            slot = start + 1
            for count in self.bins:
                features[rows, slot + (there * count).long().clamp(max=count - 1)] = 1
                slot += count
        return features / features.double().norm(dim=1, keepdim=True).float() if self.unit else features


def ranges(noisy_counts: Tensor, noise_std: float) -> list[tuple[float, float]]:
    """For each column of counts the smallest range of bins outside of which noise explains every count."""
    checks.non_negative("noise_std", noise_std)
    threshold = noise_std * math.sqrt(2 * math.log(noisy_counts.numel() / CHANCE))
    found: list[tuple[float, float]] = []
    for kept in noisy_counts > threshold:
        bins = torch.nonzero(kept).flatten().tolist()
        found.append((EDGES[bins[0]], EDGES[bins[-1] + 1]) if bins else DEFAULT)
    return found
