"""The second moment of unit records as one release: shared by the stages that learn directions from it.

Every record is scaled to unit l2 norm (a zero or non-finite record counts as zero); A is the sum of the outer products
x x^T. One record moves A by one of them, whose Frobenius norm is |x|^2 <= 1. The upper triangle of A with its
off-diagonal entries times sqrt(2) has the Frobenius norm as its l2 norm, so adding N(0, sigma^2) to each of its entries
is a Gaussian release with noise multiplier sigma, and the symmetric matrix read back from it has N(0, sigma^2) on the
diagonal and N(0, sigma^2 / 2) off it.

Replacing x by y moves A by x x^T - y y^T. The inner product of the two is (x.y)^2 >= 0, so that is at most sqrt(2) in
Frobenius norm (``NO_OPPOSITES``), not 2. Rounding of both sums, 2^-15 in all, is within what the bound allows for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from adadp.app.features.base import NO_OPPOSITES, ReleasedStage

LARGEST = 8192
"""Values of which the covariance still fits."""
_AT_ONCE = 4096
_ROUNDING = 2.0**-14
"""What rounding may add to the bound, for up to 2**24 records. A chunk of 4096 unit rows adds up with an error of at
most 4096 * 2**-53 * 4096 = 2**-29 in Frobenius norm, and N / 4096 chunks with one of N / 4096 * 2**-53 * N more:
together 2**-16 for N = 2**24, on either of two neighbouring data sets. Norms in double precision are off by 2**-43."""


class CovarianceStage(ReleasedStage):
    """A stage that releases the second moment of unit records."""

    replaced = NO_OPPOSITES
    l2_bound = 1.0 + _ROUNDING


def covariance_query(records: Tensor, values: int, rows_of: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The upper triangle of the sum of outer products. ``rows_of`` makes rows of norm at most 1 of a chunk, in double
    precision, ``values`` numbers each.
    """
    total = torch.zeros(values, values, dtype=torch.float64, device=records.device)
    for chunk in torch.split(records, _AT_ONCE):
        rows = rows_of(chunk)
        total += rows.T @ rows
    upper = torch.triu_indices(values, values, device=records.device)
    return {"covariance": total[upper[0], upper[1]] * _isometry(upper)}


def directions(released: Mapping[str, Tensor], values: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues of the released matrix, largest first, and the eigenvectors as columns.

    An eigenvector is known up to its sign: the largest entry is made positive, whichever way LAPACK found it.
    """
    upper = torch.triu_indices(values, values)
    noisy = torch.zeros(values, values, dtype=torch.float64)
    noisy[upper[0], upper[1]] = released["covariance"].cpu() / _isometry(upper)
    eigenvalues, vectors = torch.linalg.eigh(noisy + noisy.triu(1).T)
    vectors = vectors.flip(1)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return eigenvalues.flip(0), vectors * largest.sign()


def noise_edge(noise_multiplier: float, values: int) -> float:
    """The largest eigenvalue that noise alone makes (Wigner's semicircle): below it a direction is not known."""
    return noise_multiplier * math.sqrt(2 * values)


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
