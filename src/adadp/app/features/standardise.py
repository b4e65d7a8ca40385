"""Channels brought to mean 0 and variance 1 over the data set, by statistics that are released privately.

After Tramer and Boneh 2021, who normalise scattering features this way, with a bound that needs no clipping threshold.

**What is released.** A record (channels, ...) with P values in each channel is scaled to l2 norm 1 (a zero or
non-finite record counts as zero). With m its means by channel and s its sums of squares by channel, |sqrt(P) m|^2 <= 1
by Cauchy-Schwarz, and |s| <= sum s = 1 because s is not negative. So (sqrt(P) m, s, 1), whose last entry counts the
record, has norm at most sqrt(3), and its sum over the records with noise sigma sqrt(3) on every entry is a Gaussian
release with noise multiplier sigma. Of two records the inner product is P m.m' + s.s' + 1 >= -1 + 0 + 1 = 0
(``NO_OPPOSITES``).

**What follows is free.** Means and variances by channel, over the noisy count. A variance counts at least as much as
the noise on it: below that it is not known. Then a record is scaled to norm 1, standardised, and scaled to ``norm``.

==========================================  =========================================================================
a channel that is always the same           its variance is noise, and is not blown up
so few records that noise drowns the count  every channel gets mean 0 and variance 1: nothing is changed
a record that is zero                       stands at minus the means, like any other
==========================================  =========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adadp import checks
from adadp.app.features.base import NO_OPPOSITES, ReleasedStage, Shape
from adadp.app.features.covariance import unit_rows
from adadp.errors import InputError

_AT_ONCE = 4096
_ROUNDING = 2.0**-20
"""What rounding in double precision may add to the bound: as for pca, with sums of numbers instead of matrices."""
_LEAST = 4.0
"""Standard deviations of the noise below which a count or a variance is not known."""


@dataclass(frozen=True)
class Standardise(ReleasedStage):
    """``standardise:noise_multiplier=20``: every channel to mean 0 and variance 1, by a release with noise."""

    name = "standardise"
    budget_share = 0.1
    replaced = NO_OPPOSITES
    l2_bound = math.sqrt(3.0) * (1 + _ROUNDING)
    noise_multiplier: float | None = None
    norm: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(norm=checks.positive("norm", self.norm))

    def output_shape(self, shape: Shape) -> Shape:
        if not shape:
            raise InputError("standardise cannot read records that are single numbers.", fix="Give them a dimension.")
        return shape

    def query(self, records: Tensor) -> dict[str, Tensor]:
        channels, values = records.shape[1], math.prod(records.shape[2:])
        total = torch.zeros(2 * channels + 1, dtype=torch.float64, device=records.device)
        for chunk in torch.split(records, _AT_ONCE):
            rows = unit_rows(chunk.reshape(len(chunk), -1).double()).reshape(len(chunk), channels, values)
            total[:channels] += rows.sum((0, 2)) / math.sqrt(values)  # sqrt(P) times the mean
            total[channels:-1] += rows.square().sum((0, 2))
            total[-1] += len(chunk)
        return {"statistics": total}

    def learned(self, released: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
        statistics = released["statistics"].cpu()
        channels, values = shape[0], math.prod(shape[1:])
        noise = self.known_noise_multiplier * self.l2_bound
        count = float(statistics[-1])
        if count < _LEAST * noise:
            return {"mean": torch.zeros(channels), "scale": torch.ones(channels)}
        mean = statistics[:channels] / (count * math.sqrt(values))
        variance = statistics[channels:-1] / (count * values) - mean.square()
        known = variance.clamp(min=_LEAST * noise / (count * values))
        return {"mean": mean.float(), "scale": known.rsqrt().float()}

    def apply(self, records: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        mean, scale = learned["mean"], learned["scale"]
        rows = unit_rows(records.flatten(1).double()).reshape(records.shape[0], len(mean), -1)
        channels = (rows - mean[:, None]) * scale[:, None]
        return (unit_rows(channels.flatten(1)) * self.norm).reshape(records.shape).float()
