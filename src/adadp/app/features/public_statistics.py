"""Features brought into better shape by what public images with classes say about them, at no cost in privacy.

Noise is added to every coordinate alike, and a record's gradient is as long as its features. So features do better if
no direction is long that does not tell classes apart. Two things about public images of other classes are known: their
mean, and how the images of one class differ. ``statistics`` measures both once, ``whitened`` applies them to a record:

    f -> unit(f - mean) -> times (S + r I)^(-1/2) -> unit

S is the covariance within the public classes and r half its mean eigenvalue (measured: less makes noise of the short
directions, more leaves the long ones). Only the longest directions are kept, with the factor that each is multiplied by
relative to all others.

    case                                    what happens
    a record equal to the mean              zero, not NaN
    a non-finite record                     non-finite features, no other record's
    classes without an image                do not count
    fewer directions than are asked for     all of them
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

NAMES = ("mean", "directions", "factors")
_RIDGE = 0.5


def statistics(features: Tensor, labels: Tensor, directions: int) -> dict[str, Tensor]:
    """The mean of ``features`` of public images, the longest directions within their classes and the factors of these,
    as they are kept: directions in half precision.
    """
    mean = features.mean(0)
    rows = functional.normalize(features - mean).double()
    classes = functional.one_hot(labels).double()
    residuals = rows - (classes.T @ rows / classes.sum(0).clamp_min(1)[:, None])[labels]
    eigenvalues, vectors = torch.linalg.eigh(residuals.T @ residuals / len(rows))
    damped = eigenvalues.flip(0).clamp_min(0) + _RIDGE * eigenvalues.mean()
    kept = min(directions, len(damped))
    factors = (damped[min(kept, len(damped) - 1)] / damped[:kept]).sqrt()
    return {"mean": mean, "directions": vectors.flip(1)[:, :kept].T.half().contiguous(), "factors": factors.float()}


def whitened(features: Tensor, public: Mapping[str, Tensor]) -> Tensor:
    """``features`` centred and whitened by public statistics, of norm 1."""
    rows = functional.normalize(features - public["mean"])
    directions = public["directions"].float()
    return functional.normalize(rows + (rows @ directions.T * (public["factors"] - 1)) @ directions)
