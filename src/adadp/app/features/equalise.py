"""Directions in which all records are alike are shortened, so that they do not use up the clip bound.

Features of real data have a few directions (their mean above all) with most of their length. A record's gradient is as
long as its features, so what is clipped and what sets the noise is spent on these few; the many directions that tell
classes apart get noise made for the long ones. This stage multiplies the component of a record in each direction that
stands out by sqrt(edge / eigenvalue): the length it would have if the direction were as long as the longest that cannot
be told from noise.

**What is released.** The second moment of the records at unit norm (``covariance``), in at most ``size`` coordinates:
the whole record if it has no more numbers, else, for feature maps, the lowest frequencies of the cosine transform over
the map, the same for every channel, as many as fit. The transform is orthonormal and known before the data, so that a
record's norm only falls and the bound of 1 stays. Directions and eigenvalues above the edge of noise follow for free.

==========================================  =========================================================================
a flat record longer than ``size``          ``InputError``
no direction stands out of the noise        records pass unchanged
a zero record                               stays zero; a non-finite one becomes zero
records of any dtype                        float32 features, of norm at most 1
==========================================  =========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adadp import checks
from adadp.app.features.base import Shape
from adadp.app.features.covariance import LARGEST, CovarianceStage, covariance_query, directions, noise_edge, unit_rows
from adadp.errors import InputError

_MOST = 256
"""Directions kept at most: what a run has to store."""


@dataclass(frozen=True)
class Equalise(CovarianceStage):
    """``equalise:noise_multiplier=20``: the directions that stand out are shortened, by a release with noise."""

    name = "equalise"
    budget_share = 0.2
    noise_multiplier: float | None = None
    size: int = 2048
    """Coordinates in which directions are looked for, at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size = checks.count("size", self.size, minimum=2, why="A covariance needs two coordinates.")
        if size > LARGEST:
            raise InputError(f"size must be at most {LARGEST}, got {size}.", why="The covariance would not fit.")
        self._set(size=size)

    def output_shape(self, shape: Shape) -> Shape:
        self._frequencies(shape)
        return shape

    def query(self, records: Tensor) -> dict[str, Tensor]:
        shape = tuple(records.shape[1:])
        basis = self._basis(shape).to(records.device)

        def rows_of(chunk: Tensor) -> Tensor:
            rows = unit_rows(chunk.reshape(len(chunk), -1).double())
            return (rows.view(len(chunk), -1, basis.shape[1]) @ basis.T).flatten(1)

        return covariance_query(records, math.prod(shape) // basis.shape[1] * basis.shape[0], rows_of)

    def learned(self, released: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
        basis = self._basis(shape)
        values = math.prod(shape) // basis.shape[1] * basis.shape[0]
        eigenvalues, vectors = directions(released, values)
        edge = noise_edge(self.known_noise_multiplier * self.l2_bound, values)
        found = min(int((eigenvalues > edge).sum()), _MOST)
        rows = vectors[:, :found].T.reshape(found, values // basis.shape[0], basis.shape[0]) @ basis
        factors = (edge / eigenvalues[:found]).sqrt()
        return {"directions": rows.flatten(1).float().contiguous(), "factors": factors.float()}

    def apply(self, records: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        # In double precision, so that the place of a record in a batch does not show in single precision.
        rows = unit_rows(records.flatten(1).double())
        found = learned["directions"].double()
        shorter = rows + (rows @ found.T * (learned["factors"].double() - 1)) @ found
        return shorter.reshape(records.shape).float()

    def _frequencies(self, shape: Shape) -> int:
        """How many of the map's frequencies are looked at; 1 for a flat record, whose map is a point."""
        values = math.prod(shape)
        if values <= self.size:
            return math.prod(shape[1:])
        if len(shape) <= 1:
            raise InputError(
                f"equalise cannot read flat records of {values} values.",
                why=f"It looks for directions in {self.size} coordinates.",
                fix=f"Pass size of at least {values}, up to {LARGEST}, or put a stage before it that makes fewer.",
            )
        if shape[0] > self.size:
            raise InputError(
                f"equalise cannot read records of {shape[0]} channels.",
                why=f"It looks for directions in {self.size} coordinates, at least one per channel.",
                fix=f"Pass size of at least {shape[0]}.",
            )
        return self.size // shape[0]

    def _basis(self, shape: Shape) -> Tensor:
        """The lowest frequencies over the map as orthonormal rows, of as many numbers as a channel has."""
        sides = shape[1:] if len(shape) > 1 else (1,)
        waves = [_cosines(side) for side in sides]
        places = sorted(torch.cartesian_prod(*map(torch.arange, sides)).reshape(-1, len(sides)).tolist(), key=sum)
        rows = []
        for place in places[: self._frequencies(shape)]:
            row = torch.ones(1, dtype=torch.float64)
            for wave, frequency in zip(waves, place, strict=True):
                row = torch.outer(row, wave[frequency]).flatten()
            rows.append(row)
        return torch.stack(rows)


def _cosines(side: int) -> Tensor:
    """The orthonormal cosine transform (DCT-II) of ``side`` numbers; a row per frequency, lowest first."""
    places = torch.arange(side, dtype=torch.float64)
    waves = torch.cos(math.pi / side * torch.outer(places, places + 0.5)) * math.sqrt(2 / side)
    waves[0] /= math.sqrt(2)
    return waves
