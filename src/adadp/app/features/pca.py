"""Private principal components (Abadi et al. 2016, section 4): a projection learned from one noisy covariance.

**What is released.** The second moment of the records at unit norm, with noise sigma (``covariance``). The paper adds
N(0, sigma^2) to every entry of the symmetric matrix, for the same guarantee: half of its variance is not needed.

**What follows is free.** Eigenvectors of the noisy matrix, and with ``whiten`` its eigenvalues: each component is
divided by the root of its eigenvalue over the largest, where an eigenvalue counts at least sigma sqrt(2 d), the edge of
the spectrum of pure noise in d dimensions (Wigner's semicircle): below it a component is noise, and must not be blown
up. Then a record is projected and scaled to the norm ``norm``, by itself.

==========================================  =========================================================================
dim larger than the number of values        ``InputError``
more than 8192 values in a record           ``InputError``: the covariance would not fit
a record that is zero after projection      stays zero
records of any dtype                        float32 features
==========================================  =========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from adadp import checks
from adadp.app.features.base import Shape
from adadp.app.features.covariance import LARGEST, CovarianceStage, covariance_query, directions, noise_edge, unit_rows
from adadp.errors import InputError


@dataclass(frozen=True)
class Pca(CovarianceStage):
    """``pca:dim=60,noise_multiplier=16``: projection on ``dim`` noisy principal components."""

    name = "pca"
    always_written = ("dim",)
    budget_share = 0.3
    dim: int = 60
    noise_multiplier: float | None = None
    whiten: bool = False
    norm: float | None = None
    """l2 norm of the features of every record; None: sqrt(dim), so that a feature is about 1 in size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            dim=checks.count("dim", self.dim, why="It is the number of components."),
            norm=None if self.norm is None else checks.positive("norm", self.norm),
        )

    def output_shape(self, shape: Shape) -> Shape:
        values = math.prod(shape)
        if values > LARGEST:
            raise InputError(
                f"pca cannot read records of {values} values.",
                why=f"Their covariance has {values} x {values} entries; {LARGEST} x {LARGEST} is the most.",
                fix="Put a stage before it that makes fewer values, or use another one.",
            )
        if self.dim > values:
            raise InputError(
                f"pca has dim={self.dim}, and a record has {values} values.", fix=f"Pass dim of at most {values}."
            )
        return (self.dim,)

    def query(self, records: Tensor) -> dict[str, Tensor]:
        values = math.prod(records.shape[1:])
        return covariance_query(records, values, lambda chunk: unit_rows(chunk.reshape(len(chunk), values).double()))

    def learned(self, released: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
        values = math.prod(shape)
        eigenvalues, vectors = directions(released, values)
        components = vectors[:, : self.dim]
        if self.whiten:
            sizes = eigenvalues[: self.dim].clamp(min=noise_edge(self.known_noise_multiplier, values))
            components = components * (sizes.max() / sizes).sqrt()
        return {"components": components.float().contiguous()}

    def apply(self, records: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        # In double precision, so that the place of a record in a batch does not show in single precision.
        rows = unit_rows(records.flatten(1).double())
        norm = math.sqrt(self.dim) if self.norm is None else self.norm
        return (unit_rows(rows @ learned["components"].double()) * norm).float()
