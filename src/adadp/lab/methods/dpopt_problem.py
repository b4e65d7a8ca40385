"""Noise of a size of its own for every coordinate, at the least cost to the loss for a given privacy.

With s_i the bound on coordinate i, w_i how strongly the loss follows it and n_i how many coordinates share these two,

    minimise    sum of n_i w_i^2 sigma_i^2
    subject to  sum of n_i s_i^2 / sigma_i^2 <= 1 / sigma^2

The constraint is Lemma 1 of Xu et al. 2020: independent noise of these deviations on a vector in the box of the s_i is
as private as noise of deviation sigma on a vector of length at most 1 (divide coordinate i by sigma_i / sigma).

===========================================  =========================================================================
s_i = 0                                      sigma_i = 0: what no record can move needs no noise
w_i = 0 and s_i > 0                          ``InputError``: noise there would cost nothing, and have no size
every s_i = 0, sigma = 0, no coordinates     all sigma_i are 0
n_i = 0, negative, infinite, NaN, shapes     ``InputError``
that differ
===========================================  =========================================================================
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from adadp import checks
from adadp.app.methods.scales import Following
from adadp.errors import InputError
from adadp.methods.base import Tensors

STEPS = 50
"""Steps of projected gradient descent in Xiang et al. 2019, as Xu et al. 2020 (section VI-A) ran it too."""


class Shaping(Following, Protocol):
    """Settings of noise that is shaped by averages: how the problem is solved."""

    def solve(self, s: Tensor, w: Tensor, counts: Tensor | None = None) -> Tensor:
        """The sigma_i for a noise multiplier of 1."""


def closed_form(s: Tensor, w: Tensor, sigma: float, counts: Tensor | None = None) -> Tensor:
    """The sigma_i of the solution, in double precision: sigma_i^2 = sigma^2 (s_i / w_i) sum over j of n_j s_j w_j.

    By Cauchy-Schwarz (sum n s w)^2 <= (sum n w^2 sigma_i^2) (sum n s^2 / sigma_i^2), with equality where both sides are
    proportional, which is sigma_i^2 ~ s_i / w_i; the constraint, being active, gives the factor.
    """
    s, w, counts, sigma = _checked(s, w, counts, sigma)
    ratio = torch.where(s > 0, s / w, 0.0)
    return sigma * (ratio * (counts * s * w).sum()).sqrt()


def projected_gradient(s: Tensor, w: Tensor, sigma: float, counts: Tensor | None = None, steps: int = STEPS) -> Tensor:
    """The sigma_i after ``steps`` steps of projected gradient descent from equal noise; the constraint always holds.

    In the variables q_i = sigma s_i sqrt(n_i) / sigma_i the constraint is the unit ball, and to project is to divide by
    the length. The objective is sigma^2 f with f = sum of c_i / q_i^2, c_i = (n_i s_i w_i)^2. At the solution
    c_i / q_i^4 = f for every i, so that on the sphere all curvatures are equal: a step of 1 / (6 f) along the negative
    gradient 2 c_i / q_i^3, followed by the projection, leaves an error of second order only. Far from it the step
    would go too far, therefore no q_i more than doubles before a projection.
    """
    s, w, counts, sigma = _checked(s, w, counts, sigma)
    used = s > 0
    lengths = s[used] * counts[used].sqrt()
    costs = (lengths * counts[used].sqrt() * w[used]).square()
    q = lengths / lengths.norm()
    for _ in range(checks.count("steps", steps, minimum=0)):
        shares = costs / q.square()
        q = q * (1 + (shares / shares.sum() / q.square() / 3).clamp(max=1.0))
        q = q / q.norm()
    deviations = torch.zeros_like(s)
    deviations[used] = sigma * lengths / q
    return deviations


def _checked(s: Tensor, w: Tensor, counts: Tensor | None, sigma: float) -> tuple[Tensor, Tensor, Tensor, float]:
    """What both solvers take, in double precision."""
    s, w = s.double(), w.double()
    counts = torch.ones_like(s) if counts is None else counts.double()
    if s.dim() != 1 or not s.shape == w.shape == counts.shape:
        raise InputError(
            f"s, w and counts must be lists of one length, got the shapes {tuple(s.shape)}, {tuple(w.shape)} and "
            f"{tuple(counts.shape)}.",
            fix="Pass one number of each for every sigma_i.",
        )
    if not all(bool((each.isfinite() & (each >= 0)).all()) for each in (s, w)) or not bool((counts > 0).all()):
        raise InputError(
            "s and w must be finite and not negative, counts positive.", why="They are lengths, and numbers of them."
        )
    if bool(((w == 0) & (s > 0)).any()):
        raise InputError(
            "The loss does not follow a coordinate that records can move (w = 0 and s > 0).",
            why="Noise there would cost nothing, so its best size is unbounded.",
            fix="Give w a lower bound.",
        )
    return s, w, counts, checks.non_negative("sigma", sigma, why="It is a noise multiplier.")


def flattened(tensors: Tensors) -> Tensor:
    """All numbers one after another."""
    return torch.cat([value.flatten() for value in tensors.values()])


def shaped_like(tensors: Tensors, numbers: Tensor) -> Tensors:
    """``numbers`` cut and shaped like ``tensors``, of the same types."""
    parts = torch.split(numbers, [value.numel() for value in tensors.values()])
    return {
        name: part.view(value.shape).to(value.dtype) for (name, value), part in zip(tensors.items(), parts, strict=True)
    }
