"""Private principal components (Abadi et al. 2016, section 4): a projection learned from one noisy covariance.

**What is released.** Every record is flattened and scaled to unit l2 norm (a zero or non-finite record counts as zero);
A is the sum of their outer products x x^T. One record moves A by one x x^T, whose Frobenius norm is |x|^2 <= 1. The
upper triangle of A with its off-diagonal entries times sqrt(2) has the Frobenius norm as its l2 norm, so adding
N(0, sigma^2) to each of its entries is a Gaussian release with noise multiplier sigma, and the symmetric matrix read
back from it carries N(0, sigma^2) on the diagonal and N(0, sigma^2 / 2) off it. The paper adds N(0, sigma^2)
everywhere, for the same guarantee: half of its variance is not needed.

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
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.errors import InputError
from adadp.features.base import ReleasedStage, Shape

_LARGEST = 8192
_AT_ONCE = 4096
_ROUNDING = 2.0**-14
"""What rounding may add to the bound, for up to 2**24 records. A chunk of 4096 unit rows adds up with an error of at
most 4096 * 2**-53 * 4096 = 2**-29 in Frobenius norm, and N / 4096 chunks with one of N / 4096 * 2**-53 * N more:
together 2**-16 for N = 2**24, on either of two neighbouring data sets. Norms in double precision are off by 2**-43."""


@dataclass(frozen=True)
class Pca(ReleasedStage):
    """``pca:dim=60,sigma=16``: projection on ``dim`` noisy principal components, released with noise ``sigma``."""

    dim: int = 60
    sigma: float | None = None
    """None: not chosen yet. A run chooses it from its target epsilon."""
    whiten: bool = False
    norm: float | None = None
    """l2 norm of the features of every record; None: sqrt(dim), so that a feature is about 1 in size."""

    name: ClassVar[str] = "pca"
    budget_share: ClassVar[float] = 0.3

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", checks.count("dim", self.dim, why="It is the number of components."))
        if self.sigma is not None:
            why = "Without noise the covariance would be released as it is."
            object.__setattr__(self, "sigma", checks.positive("sigma", self.sigma, why=why))
        if self.norm is not None:
            object.__setattr__(self, "norm", checks.positive("norm", self.norm))

    def __str__(self) -> str:
        given = {"sigma": self.sigma, "whiten": int(self.whiten) or None, "norm": self.norm}
        options = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return ",".join([f"pca:dim={self.dim}", *options])

    def with_noise(self, sigma: float) -> Pca:
        return replace(self, sigma=sigma)

    @property
    def l2_bound(self) -> float:
        return 1.0 + _ROUNDING

    def output_shape(self, shape: Shape) -> Shape:
        values = math.prod(shape)
        if values > _LARGEST:
            raise InputError(
                f"pca cannot read records of {values} values.",
                why=f"Their covariance has {values} x {values} entries; {_LARGEST} x {_LARGEST} is the most.",
                fix="Put a stage before it that makes fewer values, or use another one.",
            )
        if self.dim > values:
            raise InputError(
                f"pca has dim={self.dim}, and a record has {values} values.", fix=f"Pass dim of at most {values}."
            )
        return (self.dim,)

    def query(self, records: Tensor) -> dict[str, Tensor]:
        values = math.prod(records.shape[1:])
        total = torch.zeros(values, values, dtype=torch.float64, device=records.device)
        for chunk in torch.split(records, _AT_ONCE):
            rows = unit_rows(chunk.reshape(len(chunk), values).double())
            total += rows.T @ rows
        upper = torch.triu_indices(values, values, device=records.device)
        return {"covariance": total[upper[0], upper[1]] * _isometry(upper)}

    def learned(self, released: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
        values = math.prod(shape)
        upper = torch.triu_indices(values, values)
        noisy = torch.zeros(values, values, dtype=torch.float64)
        noisy[upper[0], upper[1]] = released["covariance"].cpu() / _isometry(upper)
        eigenvalues, vectors = torch.linalg.eigh(noisy + noisy.triu(1).T)
        order = torch.arange(values - 1, values - 1 - self.dim, -1)
        # An eigenvector is known up to its sign: the largest entry is made positive, whichever way LAPACK found it.
        components = vectors[:, order]
        largest = components.gather(0, components.abs().argmax(0, keepdim=True))
        components = components * largest.sign()
        if self.whiten:
            edge = self.noise_multiplier * math.sqrt(2 * values)
            sizes = eigenvalues[order].clamp(min=edge)
            components = components * (sizes.max() / sizes).sqrt()
        return {"components": components.float().contiguous()}

    def module(self, learned: Mapping[str, Tensor]) -> nn.Module:
        return Projection(learned["components"], math.sqrt(self.dim) if self.norm is None else self.norm)


class Projection(nn.Module):
    """Flatten, scale to unit norm, project, scale to ``norm``: record by record."""

    components: Tensor

    def __init__(self, components: Tensor, norm: float) -> None:
        super().__init__()
        self.register_buffer("components", components)
        self.norm = norm

    def forward(self, records: Tensor) -> Tensor:
        # In double precision, so that the place of a record in a batch does not show in single precision.
        rows = unit_rows(records.flatten(1).double())
        return (unit_rows(rows @ self.components.double()) * self.norm).float()


def unit_rows(rows: Tensor) -> Tensor:
    """``rows`` scaled to norm 1; zero where the norm is not finite, or so small that its square is not exact.

    Squares of values near the smallest number there is lose their digits, or vanish: scaled by such a norm a record
    would be longer than 1 (up to 1.3, tried), and what one record can move a sum by would be no bound any more.
    """
    norms = rows.norm(dim=1, keepdim=True)
    smallest = 2.0**20 * math.sqrt(torch.finfo(rows.dtype).tiny)
    usable = norms.isfinite() & (norms > smallest)
    return torch.where(usable, rows / norms, torch.zeros((), dtype=rows.dtype, device=rows.device))


def _isometry(upper: Tensor) -> Tensor:
    """1 on the diagonal and sqrt(2) off it: what makes the upper triangle as long as the whole matrix."""
    off = (upper[0] != upper[1]).double()
    return 1.0 + off * (math.sqrt(2.0) - 1.0)
