"""What it costs to publish only the best of a random number of runs (Papernot and Steinke 2022).

One run Q draws a candidate j uniformly, runs it and outputs (j, model, score); A draws K, runs Q K times and publishes
the best. M(theta) is the log moment of Q at order lambda = theta + 1. For any theta^ >= 0, and with Q being
(epsilon^, delta^)-DP at epsilon^ = log(1 + 1/theta), the log moment of A is at most

    truncated negative binomial   M(theta) + theta (1 + eta) (M(theta^) + log(1/gamma)) / (1 + theta^) + log E[K]
    Poisson, mean >= 1            M(theta) + theta mean delta^ + log mean

(their Theorems 2 and 6, multiplied by theta). j is drawn without looking at the data and is part of the output, so
e^M(theta) and delta^ are the means of the candidates'. docs/selection.md shows that the second also covers K = 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache

from scipy.optimize import brentq

from adadp import checks
from adadp.accounting.contour import Curve, contour_curve, direct_curve, saddle_point
from adadp.accounting.dominating import Counts, compositions
from adadp.accounting.orders import ORDERS, LogMoment, conversion, minimise
from adadp.accounting.privacy_losses import Composition
from adadp.errors import InputError, UnsupportedEvent
from adadp.events import PoissonRepetitions, Repetitions, TruncatedNegativeBinomial

_NOTHING = 1e-12
"""What mean x delta^ may add without being looked at more closely, and the mass of outcomes that may be cut off."""
_ANCHOR = math.log1p(1 / 8)
"""The epsilon^ (theta = 8) at which delta^ is computed tightest; at the other orders of a search it hardly loses."""
_LEAST_GAMMA = 1e-5
_NO_MORE = 1e-18
"""A count whose probability is below this, past the mean, ends a draw."""


def best_of_moment(
    accountant: str, repetitions: Repetitions, runs: list[Counts], moments: list[LogMoment]
) -> LogMoment:
    """The log moment of the best of ``repetitions`` runs, each of one of ``runs``; ``moments`` are theirs."""

    @cache
    def one_run(theta: float) -> float:
        return _log_mean_exp([moment(theta) for moment in moments])

    log_mean = math.log(repetitions.mean)
    if isinstance(repetitions, TruncatedNegativeBinomial):
        chosen = _choosing(repetitions, one_run)
        return lambda theta: one_run(theta) + theta * chosen + log_mean
    mean = repetitions.mean
    delta = _delta_of_one_run(accountant, runs, one_run, _NOTHING / mean)
    return lambda theta: one_run(theta) + theta * mean * delta(math.log1p(1 / theta)) + log_mean


def _choosing(law: TruncatedNegativeBinomial, one_run: LogMoment) -> float:
    """(1 + eta) min over theta^ of (M(theta^) + log(1/gamma)) / (1 + theta^); theta^ = 0, where M is 0, is allowed."""
    stop = -math.log(law.gamma)
    least, _ = minimise(lambda theta: (one_run(theta) + stop) / (1 + theta), ORDERS)
    return (1 + law.eta) * min(least, stop)


def _log_mean_exp(values: list[float]) -> float:
    top = max(values)
    if not math.isfinite(top):
        return top
    return top + math.log(math.fsum(math.exp(value - top) for value in values) / len(values))


def _delta_of_one_run(
    accountant: str, runs: list[Counts], one_run: LogMoment, nothing: float
) -> Callable[[float], float]:
    """An upper bound on the delta of one run at any epsilon: tight, unless its moments give at most ``nothing``.

    Where a candidate has no known loss distribution (a zCDP cost, a search in a search) the moments must do.
    """
    try:
        found = [compositions(accountant, run, _NOTHING) if run else [] for run in runs]
    except UnsupportedEvent:
        return lambda epsilon: _chernoff(one_run, epsilon, ORDERS)

    @cache
    def curves() -> list[list[Curve]]:
        return [[_curve(part) for part in parts if part.releases > 0] for parts in found]

    def delta(epsilon: float) -> float:
        by_moments = _chernoff(one_run, epsilon, ORDERS[::3])  # those that are asked for in any case
        if by_moments <= nothing:
            return by_moments
        worst = [max((curve.upper(epsilon) for curve in orders), default=0.0) for orders in curves()]
        return min(by_moments, math.fsum(worst) / len(worst))

    return delta


def _curve(composition: Composition) -> Curve:
    """Bounds on the privacy curve of ``composition``, valid everywhere."""
    direct = direct_curve(composition)
    return direct or contour_curve(composition, saddle_point(composition, epsilon=_ANCHOR), _ANCHOR, 1e-4)


def _chernoff(moment: LogMoment, epsilon: float, orders: list[float]) -> float:
    """The bound delta <= e^(M(theta) - theta epsilon + conversion(theta)), at the best of ``orders``."""
    least = 0.0
    for theta in orders:
        value = moment(theta) + conversion(theta) - theta * epsilon
        if value > least + 50:
            break  # convex, and past its minimum
        least = min(least, value)
    return math.exp(least)


def repetitions_for(mean: float, eta: float = math.inf) -> Repetitions:
    """The law with ``mean`` runs: Poisson for ``eta`` = inf, else the truncated negative binomial of that ``eta``.

    ==========================  =============================================
    case                        result
    ==========================  =============================================
    eta = inf, mean >= 1        Poisson
    eta > -1, mean > 1          truncated negative binomial
    mean <= 1 (Poisson: < 1)    InputError: that is no search
    no gamma above 1e-300       InputError (eta close to -1 with a large mean)
    ==========================  =============================================
    """
    mean = checks.positive("mean", mean, why="It is the mean number of runs.")
    if eta == math.inf:
        return PoissonRepetitions(mean)

    def gap(log_gamma: float) -> float:
        return math.log(TruncatedNegativeBinomial(eta, math.exp(log_gamma)).mean) - math.log(mean)

    low, high = math.log(1e-300), -1e-9
    if gap(high) > 0 or gap(low) < 0:
        raise InputError(
            f"No truncated negative binomial with eta = {eta:g} has a mean of {mean:g} runs.",
            why="It makes at least one run, and with eta close to -1 hardly more.",
            fix="Pass a mean above 1, or a larger eta.",
        )
    return TruncatedNegativeBinomial(eta, math.exp(brentq(gap, low, high, xtol=1e-14, rtol=1e-14)))


def probabilities(repetitions: Repetitions) -> Iterator[tuple[int, float]]:
    """(k, P[K = k]) for k = 0 or 1, 2, ...: without end. By recurrence of the logarithms, so that nothing overflows."""
    if isinstance(repetitions, PoissonRepetitions):
        log_mean, value = math.log(repetitions.mean), -repetitions.mean
        for k in itertools.count(0):
            yield k, math.exp(value)
            value += log_mean - math.log(k + 1)
        return
    eta, going_on = repetitions.eta, math.log1p(-repetitions.gamma)
    value = going_on + _log_first(repetitions)
    for k in itertools.count(1):
        yield k, math.exp(value)
        value += going_on + math.log((k + eta) / (k + 1))


def _log_first(law: TruncatedNegativeBinomial) -> float:
    """log(eta / (gamma^-eta - 1)), or log(1 / log(1/gamma)) at eta = 0."""
    power = -law.eta * math.log(law.gamma)
    if power == 0:
        return -math.log(-math.log(law.gamma))
    if power > 1:
        return math.log(law.eta) - power - math.log(-math.expm1(-power))
    return math.log(law.eta / math.expm1(power))


def draw_count(repetitions: Repetitions, uniform: float) -> int:
    """How many runs to make, from one ``uniform`` number in [0, 1): the first k whose distribution function exceeds it.

    The law is met to the precision of a float: a uniform number beyond the sum of all probabilities that are not
    negligible gets the last of those counts.
    """
    if not isinstance(uniform, float) or not 0 <= uniform < 1:
        raise InputError(
            f"uniform must be a float in [0, 1), got {uniform!r}.", fix="Draw it from the run's generator."
        )
    if isinstance(repetitions, TruncatedNegativeBinomial) and repetitions.gamma < _LEAST_GAMMA:
        raise InputError(
            f"gamma = {repetitions.gamma:g} is too small to draw from.",
            why="The number of runs could be in the millions, and cutting it off would be another law.",
            fix=f"Use gamma >= {_LEAST_GAMMA:g}: a smaller mean, or a larger eta.",
        )
    below = 0.0
    for k, probability in probabilities(repetitions):
        below += probability
        if below > uniform or (probability < _NO_MORE and k > repetitions.mean):
            return k
    raise AssertionError("unreachable: the probabilities have no end")
