"""What the tests of pld share."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtr

from adadp.accounting import accountant
from adadp.events import (
    Event,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
)

ADD, REPLACE, ZERO = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT


PLD = accountant("pld")


def poisson(q: float, sigma: float, steps: int = 1, near: Neighbours = ADD) -> Event:
    return Repeated(PoissonSampled(q, GaussianRelease(sigma, near)), steps)


def fixed(q: float, sigma: float, steps: int = 1, near: Neighbours = REPLACE) -> Event:
    return Repeated(FixedSizeSampled(q, GaussianRelease(sigma, near)), steps)


def assert_delta(event: Event, epsilon: float, exact: float, width: float = 1e-2) -> None:
    """The exact value lies in the bracket, and the bracket is narrow."""
    found = PLD.delta(event, epsilon)
    room = 1e-10 * exact
    assert found.delta_low - room <= exact <= found.delta_high + room
    assert found.delta_high - found.delta_low <= width * exact


def assert_epsilon_inverts(event: Event, delta: float, exact_delta: Callable[[float], float]) -> None:
    found = PLD.epsilon(event, delta)
    assert exact_delta(found.epsilon_high) <= delta * (1 + 1e-7)
    if found.epsilon_low > 0:
        assert exact_delta(found.epsilon_low) >= delta * (1 - 1e-7)


# --- Two and three releases: E[delta_1(epsilon - L)], with delta_1 in closed form and the rest by Gauss-Legendre ---


def _thresholded(kind: str, q: float, mu: float, epsilon: np.ndarray) -> np.ndarray:
    """delta_1 for any epsilon, negative ones too, in double precision."""
    with np.errstate(all="ignore"):
        if kind == "remove":
            y = np.log((np.expm1(epsilon) + q) / q)
            cut = np.where(np.expm1(epsilon) + q > 0, (y + mu * mu / 2) / mu, -np.inf)
            return q * ndtr(mu - cut) + (1 - q) * ndtr(-cut) - np.exp(epsilon) * ndtr(-cut)
        y = np.log((np.expm1(-epsilon) + q) / q)
        cut = np.where(np.expm1(-epsilon) + q > 0, (y + mu * mu / 2) / mu, -np.inf)
        return ndtr(cut) - np.exp(epsilon) * ((1 - q) * ndtr(cut) + q * ndtr(cut - mu))


def _loss_nodes(kind: str, q: float, mu: float, points: int = 800) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.polynomial.legendre.leggauss(points)
    left, right = -11.0, 11.0 + mu
    u, w = (left + right) / 2 + (right - left) / 2 * x, (right - left) / 2 * w
    density = np.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    mix = 1 - q + q * np.exp(mu * u - mu * mu / 2)
    return (w * density * mix, np.log(mix)) if kind == "remove" else (w * density, -np.log(mix))


def two_fold(kind: str, q: float, mu: float, epsilon: float) -> float:
    mass, loss = _loss_nodes(kind, q, mu)
    return float(mass @ _thresholded(kind, q, mu, epsilon - loss))
