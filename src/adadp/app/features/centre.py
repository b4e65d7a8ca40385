"""The mean of the records subtracted, as one release.

Every record is scaled to norm 1 (a zero or non-finite record counts as zero). What is released is the sum of these rows
and, as one number more, how many there are: (x, 1) has norm at most sqrt(2), so the sum with noise sigma sqrt(2) on
every number is a Gaussian release with noise multiplier sigma. Of two records the inner product is x.y + 1 >= 0
(``NO_OPPOSITES``). The mean is the noisy sum over the noisy count; a record is scaled to norm 1, the mean is
subtracted, and the rest is scaled to norm 1.

==========================================  =========================================================================
so few records that noise drowns the count  the mean counts as 0: records are scaled to norm 1 and nothing else
a zero or non-finite record                 stands at minus the mean
a record that is the mean                   is scaled to norm 1 as it is: what is left of it is rounding
==========================================  =========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adadp.app.features.base import NO_OPPOSITES, ReleasedStage, Shape
from adadp.app.features.covariance import unit_rows

_AT_ONCE = 4096
_ROUNDING = 2.0**-20
"""What rounding in double precision may add to the bound: as for standardise, with sums of single numbers."""
_LEAST = 4.0
"""Standard deviations of the noise below which a count is not known."""


@dataclass(frozen=True)
class Centre(ReleasedStage):
    """``centre:noise_multiplier=30``: records of norm 1 without their mean, by a release with noise."""

    name = "centre"
    budget_share = 0.1
    replaced = NO_OPPOSITES
    l2_bound = math.sqrt(2.0) * (1 + _ROUNDING)
    noise_multiplier: float | None = None

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def query(self, records: Tensor) -> dict[str, Tensor]:
        total = torch.zeros(math.prod(records.shape[1:]) + 1, dtype=torch.float64, device=records.device)
        for chunk in torch.split(records, _AT_ONCE):
            total[:-1] += unit_rows(chunk.flatten(1).double()).sum(0)
            total[-1] += len(chunk)
        return {"sum": total}

    def learned(self, released: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
        del shape
        total = released["sum"].cpu()
        known = float(total[-1]) >= _LEAST * self.known_noise_multiplier * self.l2_bound
        return {"mean": (total[:-1] / total[-1] if known else torch.zeros_like(total[:-1])).float()}

    def apply(self, records: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        rows = unit_rows(records.flatten(1).double()) - learned["mean"]
        return unit_rows(rows).reshape(records.shape).float()
