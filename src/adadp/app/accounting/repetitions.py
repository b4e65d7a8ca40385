"""How many runs a search makes: the laws of a random count for which choosing the best run has a known price.

With a fixed count k the best run can cost almost what all k cost together; drawn from one of these laws, it costs a
small multiple of one run (Liu and Talwar 2019; Papernot and Steinke 2022). The count itself is never published.

==============================  ==========================================
case                            result
==============================  ==========================================
eta <= -1                       InputError: the law does not exist
eta = 0                         the logarithmic law (a limit, not a gap)
eta = 1                         the geometric law, mean 1/gamma
gamma <= 0 or gamma >= 1        InputError; gamma = 1 would be a single run
gamma so small that the mean    InputError
is not a number
Poisson mean < 1                InputError: the theorem needs at least 1
==============================  ==========================================
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from scipy.optimize import brentq

from adadp import checks
from adadp.errors import EventError, InputError

_LEAST_GAMMA = 1e-5
_NO_MORE = 1e-18
"""A count whose probability is below this, past the mean, ends a draw."""


@dataclass(frozen=True)
class TruncatedNegativeBinomial:
    """P[K = k] is proportional to (1 - gamma)^k prod_{l < k} (l + eta) / (l + 1), for k = 1, 2, ...

    ``gamma`` sets how many runs there are, ``eta`` how heavy the tail is: the lower eta, the more often K is 1 and the
    longer it can get.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "eta", _above_minus_one(self.eta))
        gamma = checks.positive("gamma", self.gamma, why="It is the chance that the search stops.")
        if gamma >= 1:
            raise InputError(
                f"gamma must be less than 1, got {gamma:g}.",
                why="At 1 there is exactly one run, which is no search.",
                fix="Pass gamma below 1, or charge the run as itself.",
            )
        object.__setattr__(self, "gamma", gamma)
        if not math.isfinite(self.mean):
            raise InputError(f"gamma = {gamma:g} makes the mean number of runs infinite.", fix="Pass a larger gamma.")

    @property
    def mean(self) -> float:
        """E[K] = eta (1 - gamma) / (gamma (1 - gamma^eta)), and (1/gamma - 1) / log(1/gamma) for eta = 0."""
        log = math.log(self.gamma)
        power = self.eta * log
        # eta / (1 - gamma^eta), written so that it has its limit at eta = 0 without cancellation.
        ratio = -1 / log if power == 0 else self.eta / -math.expm1(power)
        return ratio * (1 - self.gamma) / self.gamma


def _above_minus_one(value: float) -> float:
    """``value`` as an eta: positive, or if not, of a size below 1."""
    why = "The law exists for finite eta > -1 only."
    if isinstance(value, (int, float)) and not isinstance(value, bool) and -1 < value <= 0:
        return float(value)
    return checks.positive("eta", value, why=why)


@dataclass(frozen=True)
class PoissonRepetitions:
    """P[K = k] = e^-mean mean^k / k!, for k = 0, 1, ...; with K = 0 nothing is trained and nothing is published."""

    mean: float

    def __post_init__(self) -> None:
        mean = checks.positive("mean", self.mean, why="It is the mean number of runs.")
        if mean < 1:
            raise InputError(
                f"The mean of a Poisson number of runs must be at least 1, got {mean:g}.",
                why="The price of the search is proved for means of at least 1.",
                fix="Pass mean >= 1.",
            )
        object.__setattr__(self, "mean", mean)


Repetitions: TypeAlias = TruncatedNegativeBinomial | PoissonRepetitions


def law_to_json(law: Repetitions) -> dict[str, Any]:
    """The law of a number of runs as JSON."""
    if isinstance(law, PoissonRepetitions):
        return {"law": "poisson", "mean": law.mean}
    return {"law": "truncated-negative-binomial", "eta": law.eta, "gamma": law.gamma}


def law_from_json(data: object) -> Repetitions:
    """The law written by :func:`law_to_json`."""
    body = dict(data) if isinstance(data, Mapping) else {}
    law = body.pop("law", None)
    if law == "poisson" and body.keys() == {"mean"}:
        return PoissonRepetitions(**body)
    if law == "truncated-negative-binomial" and body.keys() == {"eta", "gamma"}:
        return TruncatedNegativeBinomial(**body)
    raise EventError(
        f"The number of runs of a search has no law this AdaDP reads: {data!r}.",
        fix="Known: {law: poisson, mean} and {law: truncated-negative-binomial, eta, gamma}.",
    )


def describe_law(law: Repetitions) -> str:
    """The law of a number of runs for people, for example ``Poisson(mean=10)``."""
    if isinstance(law, PoissonRepetitions):
        return f"Poisson(mean={law.mean:g})"
    return f"TNB(eta={law.eta:g}, gamma={law.gamma:g}, mean={law.mean:.4g})"


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
