"""Ranges of number columns, released privately: what scales a table whose columns have no publicly known bounds.

A record arrives as its features followed by the raw values of those columns, NaN where one is missing. One noisy
histogram of all of them (``adadp.app.owndata.BoundsQuery``, which has the argument) gives each column a range;
afterwards a value is clipped to it, mapped to [-1, 1] and put among the features, where a zero kept its place. Counts
are not negative, so the inner product of what two records add is not either (``NO_OPPOSITES``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.app.features.base import NO_OPPOSITES, ReleasedStage, Shape
from adadp.app.owndata import BoundsQuery
from adadp.errors import InputError


@dataclass(frozen=True)
class Bounds(ReleasedStage):
    """``bounds:columns=3;7,noise_multiplier=20``: the ranges of the features 3 and 7, whose raw values come last in a
    record.
    """

    columns: tuple[int, ...]
    noise_multiplier: float | None = None
    """None: not chosen yet. A run chooses it from its target epsilon."""

    name: ClassVar[str] = "bounds"
    budget_share: ClassVar[float] = 0.1
    replaced: ClassVar[float] = NO_OPPOSITES

    def __post_init__(self) -> None:
        if not self.columns:
            raise InputError(
                "bounds has no columns.", fix="Name the features, like bounds:columns=3;7,noise_multiplier=20."
            )
        columns = tuple(checks.count("columns", each, minimum=0, why="It is a position.") for each in self.columns)
        object.__setattr__(self, "columns", columns)
        if self.noise_multiplier is not None:
            why = "Without noise the histogram would be released as it is."
            object.__setattr__(
                self, "noise_multiplier", checks.positive("noise_multiplier", self.noise_multiplier, why=why)
            )

    def __str__(self) -> str:
        columns = ";".join(map(str, self.columns))
        return f"bounds:columns={columns}" + (
            "" if self.noise_multiplier is None else f",noise_multiplier={self.noise_multiplier!r}"
        )

    def with_noise(self, noise_multiplier: float) -> Bounds:
        return replace(self, noise_multiplier=noise_multiplier)

    @property
    def l2_bound(self) -> float:
        return self._query.l2_bound

    @property
    def _query(self) -> BoundsQuery:
        return BoundsQuery(len(self.columns))

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1 or shape[0] <= max(self.columns) + len(self.columns):
            raise InputError(
                f"bounds cannot read records of shape {shape}.",
                why="They must be rows of features followed by the raw values of its columns.",
                fix="Use it with a table whose schema asks for private bounds; it is then added by itself.",
            )
        return (shape[0] - len(self.columns),)

    def query(self, records: Tensor) -> dict[str, Tensor]:
        return {"histograms": self._query.query(records[:, -len(self.columns) :])}

    def learned(self, released: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
        del shape
        found = self._query.bounds(released["histograms"].cpu(), self.known_noise_multiplier * self.l2_bound)
        return {"ranges": torch.tensor(found, dtype=torch.float64)}

    def module(self, learned: Mapping[str, Tensor]) -> nn.Module:
        return Scaling(self.columns, learned["ranges"])


class Scaling(nn.Module):
    """Put the raw values at the end of a record, scaled by their ranges, into the places of their features."""

    ranges: Tensor

    def __init__(self, columns: tuple[int, ...], ranges: Tensor) -> None:
        super().__init__()
        self.columns = list(columns)
        self.register_buffer("ranges", ranges)

    def forward(self, records: Tensor) -> Tensor:
        width = records.shape[1] - len(self.columns)
        features, raw = records[:, :width].float(), records[:, width:].double()
        low, high = self.ranges.unbind(1)
        scaled = (raw.clamp(low, high) - (low + high) / 2) / ((high - low) / 2)
        features = features.clone()
        features[:, self.columns] = scaled.nan_to_num(nan=0.0).float()
        return features
