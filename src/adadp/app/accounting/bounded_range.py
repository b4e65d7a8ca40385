"""Gaussian releases and one choice of bounded range on the same Poisson batch, as a log moment.

The exponential mechanism has a bounded range: between a batch without the record and the same batch with it, the log
likelihood ratio r of the choice lies in [t - epsilon, t] for some t in [0, epsilon] (Dong, Durfee, Rogers, "Optimal
differential privacy composition for exponential mechanisms", 2020). That is half of what epsilon-DP allows, and costs
a quarter.

Theorem. Let e^y be the likelihood ratio of the Gaussian releases, y ~ N(-mu^2/2, mu^2) without the record, where mu^2
is the sum of their 1/sigma^2. With X = e^(y + r) and w = 1 - q + q X the moments are

    remove  E[w^(theta + 1)]        add  E[w^(-theta)]        (both without the record, where E[e^r | y] = 1).

Both are E[f(X)] with f convex. Given y, E[f] is largest if r sits on the ends of its interval. t may depend on y, since
the choice may look at the released gradient, so the maximum over t stands inside of the expectation over y:

    E_y max_t { pi_t f(e^(y + t)) + (1 - pi_t) f(e^(y + t - epsilon)) }
    pi_t = (1 - e^(t - epsilon)) / (e^t - e^(t - epsilon)).

The bracket is convex in e^y for every t, hence so is the maximum: a record that moves a sum by less, and Gaussians
released after the choice, cost no more. The maximum is taken without assuming anything about its shape: for t in the
cell [t_k, t_(k+1)] the interval lies in [t_k - epsilon, t_(k+1)], on whose ends the law of mean 1 dominates.

Numerically w = w_0 (1 + s (e^r - 1)) with w_0 = 1 - q + q e^y and s = q e^y / w_0, so the maximum depends on s alone:
it is that of the choice on a batch of sampling rate s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from adadp.app.accounting.orders import LogMoment
from adadp.events import Event, GaussianRelease, Neighbours, PoissonSampled, Selection, SelectionMechanism, flatten

Array = NDArray[np.float64]

_CELLS = 512
"""Cells of t. They add about 2 / 512 of what the choice adds, far more than the quadrature is off."""
_GROUP = 16
"""Cells that are looked at together before they are looked at one by one."""
_LEAST_RANGE = 1e-9
"""A smaller epsilon is raised to this, which adds less than the rounding."""
_MOST_RANGE = 30.0
"""Up to here the rounding of 1 - e^(t - epsilon) is small beside a cell."""
_MOST_MU = 20.0
_MOST_NODES = 1 << 14
"""Beyond these a batch is taken as unsampled, which costs more; the moment is in the thousands there."""
_REACH = 9.5
"""Standard deviations kept on each side of a Gaussian bump: its tails beyond hold 2e-21."""
_NEGLIGIBLE = 42.0
"""Nodes below e^-42 of the largest are left out."""
_ROUNDING = 1e-14
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class RangedBatch:
    """A Poisson batch at rate ``q`` with Gaussian releases of joint ``mu`` and one choice of range ``epsilon``."""

    q: float
    mu: float
    epsilon: float


def ranged_batch(event: Event) -> RangedBatch | None:
    """``event`` as a batch this module knows, or None.

    ==================================================  ==========================================
    case                                                result
    ==================================================  ==========================================
    Gaussian releases and one exponential choice        their batch
    the choice alone                                    its batch, with mu = 0
    two choices, or a noisy max, on the batch             None: only pure DP is used of them
    a choice of epsilon > 30                            None: e^-epsilon would be lost in rounding
    no choice on the batch                                None
    replace-one neighbours, a rate of 0 or 1            None
    a zCDP cost or an adaptive choice on the batch        None
    a sigma whose square is 0                           ZeroDivisionError, as for other batches
    ==================================================  ==========================================
    """
    if not isinstance(event, PoissonSampled) or event.neighbours is Neighbours.REPLACE_ONE:
        return None
    choices, precision = [], 0.0
    for part, count in flatten(event.event).items():
        if isinstance(part, GaussianRelease):
            precision += count / part.noise_multiplier**2
        elif isinstance(part, Selection) and part.mechanism is SelectionMechanism.EXPONENTIAL and count == 1:
            choices.append(part.epsilon)
        else:
            return None
    if len(choices) != 1 or choices[0] > _MOST_RANGE or not 0 < event.sampling_probability < 1:
        return None
    return RangedBatch(event.sampling_probability, math.sqrt(precision), choices[0])


def ranged_moment(batch: RangedBatch) -> LogMoment:
    """An upper bound on the log moment of ``batch`` at every theta > 0: the larger of the two orders of the data sets.

    ==================================================  ==========================================
    case                                                result
    ==================================================  ==========================================
    epsilon = 0                                         the Gaussian releases alone
    mu = 0                                              the choice alone
    mu > 20, or theta mu in the thousands               the unsampled moment
    ==================================================  ==========================================

    The unsampled moment, at most theta (theta + 1) (mu^2 / 2 + epsilon^2 / 8), is an upper bound by convexity.
    """
    cells = _Cells.of(max(batch.epsilon, _LEAST_RANGE))

    def moment(theta: float) -> float:
        order = theta * (theta + 1)
        unsampled = order * batch.mu**2 / 2 + min(order * batch.epsilon**2 / 8, theta * batch.epsilon)
        if batch.mu > _MOST_MU or (theta + 1) * batch.mu > _MOST_NODES * _step(batch.mu):
            return unsampled
        worse = max(cells.log_mean(batch, theta + 1), cells.log_mean(batch, -theta), 0.0)
        return min(worse * (1 + _ROUNDING) + _ROUNDING, unsampled)

    return moment


def _step(mu: float) -> float:
    """Spacing of the nodes, in standard deviations.

    A Gaussian bump needs 2 pi / 8.6 for an error of e^-37, and the branch point of log w at Im y = pi adds the limit
    0.5 / mu; both with a margin of 1.3. Where the best cell changes the integrand has a kink: with other nodes the sum
    moves, by less than 1e-4 of what the choice adds wherever it was tried.
    """
    return min(2 * math.pi / 8.6, 0.5 / max(mu, 0.5)) / 1.3


@dataclass(frozen=True)
class _Cells:
    """The intervals that cover [t - epsilon, t] for all t: e^r runs from 1 - ``down`` to 1 + ``up``, mean 1."""

    epsilon: float
    up: Array
    down: Array

    @classmethod
    def of(cls, epsilon: float) -> _Cells:
        edges = epsilon * np.arange(_CELLS + 1) / _CELLS
        return cls(epsilon, np.expm1(edges[1:]), -np.expm1(edges[:-1] - epsilon))

    def log_worst(self, rate: Array, power: float) -> Array:
        """The largest log E[(1 + rate (e^r - 1))^power] over the cells, for every sampling rate in ``rate``.

        A group of neighbouring cells is one wide cell, which dominates them: groups that cannot hold the largest are
        not opened.
        """
        ceilings = _log_moments(rate, self.up[_GROUP - 1 :: _GROUP], self.down[::_GROUP], power)
        best = np.full(len(rate), _ROUNDING / 10)
        likely = np.bincount(ceilings.argmax(axis=1), minlength=ceilings.shape[1]) > 0
        for groups in (likely, ~likely):
            opened = np.repeat(groups & (ceilings > best[:, None]).any(axis=0), _GROUP)
            if opened.any():
                best = np.maximum(best, _log_moments(rate, self.up[opened], self.down[opened], power).max(axis=1))
        return best

    def log_mean(self, batch: RangedBatch, power: float) -> float:
        """The log of E[w^power] with the worst choice at every y: a trapezoidal sum over a standard normal variable."""
        # |d log w^power / dy| <= |power|: the mass is between 0 and power mu, and a Gaussian's reach beyond.
        step, pull = _step(batch.mu), power * batch.mu
        u = min(0.0, pull) - _REACH + step * np.arange(int((abs(pull) + 2 * _REACH) / step) + 2)
        absent = math.log1p(-batch.q)
        odds = batch.mu * u - batch.mu**2 / 2 + math.log(batch.q) - absent
        plain = -u * u / 2 - _LOG_SQRT_2PI + math.log(step) + power * (absent + np.logaddexp(0.0, odds))
        # The worst choice is convex in the rate s: at most 1 - s + s e^most.
        widened = self.epsilon * (1 + 1 / _CELLS)
        most = min(power * (power - 1) * widened**2 / 8, abs(power) * self.epsilon)
        ceiling = plain + np.logaddexp(-np.logaddexp(0.0, odds), most - np.logaddexp(0.0, -odds))
        # Rates whose choice adds less than e^-42 are raised to a common one: equal rates are computed once.
        rate = np.maximum(expit(odds), math.exp(-_NEGLIGIBLE - most))
        highest = [int(plain.argmax()), int(ceiling.argmax())]
        floor = (plain[highest] + self.log_worst(rate[highest], power)).max() - _NEGLIGIBLE
        kept = ceiling > floor
        distinct, where = np.unique(rate[kept], return_inverse=True)
        logs = plain[kept] + self.log_worst(distinct, power)[where]
        top = float(logs.max())
        return top + math.log(float(np.exp(logs - top).sum()))


def _log_moments(rate: Array, up: Array, down: Array, power: float) -> Array:
    """Logs of E[(1 + rate (X - 1))^power], X in {1 - down, 1 + up} with mean 1: a row per rate, a column per law."""
    on_top = down / (up + down)
    above, below = np.log1p(np.multiply.outer(rate, up)), np.log1p(-np.multiply.outer(rate, down))
    high, low, weight = (above, below, on_top) if power > 0 else (below, above, 1 - on_top)
    high *= power
    found: Array = high + np.log(weight + (1 - weight) * np.exp(power * low - high))
    return found
