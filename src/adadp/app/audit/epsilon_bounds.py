"""A lower bound on epsilon from what an attacker can tell apart, with a confidence.

**The theorem.** If a mechanism is (epsilon, delta)-private, then for every set R of outcomes and both orders of two
neighbouring data sets P(R) <= e^epsilon Q(R) + delta (Kairouz, Oh and Viswanath 2015 state it as errors of a test). So
epsilon >= ln((P(R) - delta) / Q(R)) for *every* R, and an attack is a way to find an R for which that is large.

**What is done.** Runs with and without the record give scores. R is "the score is above t" or "is not above t", P the
runs with or those without the record: four cases for each threshold t, and several kinds of scores may be offered. The
first half of the runs chooses among all of them. The second half, which took no part in the choice, estimates the two
rates, and each is replaced by the unfavourable end of its one-sided interval by Clopper and Pearson 1934, at half of
the error 1 - confidence. Both ends hold together with probability ``confidence``, so epsilon >= ``epsilon_low`` does.

**How much can be shown.** n runs on a side are half of it to measure with, and a rate of 0 among n/2 is below
1 - a^(2/n), about 2 ln(1/a)/n, with confidence 1 - a. However well the attack works, no more than ``largest_possible``
can come out, about ln(n / (2 ln(2 / (1 - confidence)))): 4.9 for 1,000 runs on a side, 7.2 for 10,000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from adadp import checks
from adadp.errors import InputError

Guess = Literal["with", "without"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LowerBound:
    """``epsilon_low`` is at most epsilon(delta), with probability ``confidence`` over the runs it was made from."""

    epsilon_low: float
    largest_possible: float
    """What the same number of runs would show if the attack never erred. Below a claim, the claim cannot be refuted."""
    delta: float
    confidence: float
    score: int
    """Which kind of score was chosen, counted from 0."""
    threshold: float
    above: bool
    """Whether the attacker guesses when the score is above the threshold, or when it is not."""
    guess: Guess
    """What it then says: the run was with, or without the record."""
    true_rate: float
    """How often it says so of runs of that kind, and the lower end of its interval."""
    true_rate_low: float
    false_rate: float
    """How often it says so of runs of the other kind, and the upper end of its interval."""
    false_rate_high: float
    trials_with: int
    """Runs the rates were measured on: the second half."""
    trials_without: int

    def describe(self) -> str:
        """The attack's errors in a sentence."""
        side = "above" if self.above else "at most"
        return (
            f"Saying '{self.guess}' when the score is {side} {self.threshold:.4g} was right for "
            f"{self.true_rate:.1%} (at least {self.true_rate_low:.1%}) of the runs {self.guess} the record and wrong "
            f"for {self.false_rate:.2%} (at most {self.false_rate_high:.2%}) of the others."
        )


def lower_bound(scores_with: Any, scores_without: Any, delta: float, confidence: float = 0.95) -> LowerBound:
    """A lower bound on epsilon at ``delta`` from the scores of independent runs with and without one record.

    Scores are n numbers, or n x k numbers if k kinds of scores are offered. The two sides may differ in n.

    =============================================  ===================================================================
    the same scores on both sides, or all equal    0
    sides that never overlap                       ``largest_possible``
    delta at or above the rate of right guesses    0
    fewer than 2 runs on a side, NaN or infinity,  ``InputError``
    different numbers of kinds
    =============================================  ===================================================================
    """
    delta = checks.delta(delta)
    error = 1 - _confidence(confidence)
    inside, outside = _scores("scores_with", scores_with), _scores("scores_without", scores_without)
    if inside.shape[1] != outside.shape[1]:
        raise InputError(
            f"There are {inside.shape[1]} kinds of scores with the record and {outside.shape[1]} without it.",
            fix="Score both sides alike.",
        )
    half_in, half_out = len(inside) // 2, len(outside) // 2
    score, threshold, case = _chosen(inside[:half_in], outside[:half_out], delta, error)
    rates = _rates(inside[half_in:, score], outside[half_out:, score], np.array([threshold]), case, error)
    true, true_low, false, false_high = (float(rate[0]) for rate in rates)
    m, n = len(inside) - half_in, len(outside) - half_out
    return LowerBound(
        epsilon_low=max(0.0, float(_epsilon(np.array([true_low]), np.array([false_high]), delta)[0])),
        largest_possible=max(_perfect(m, n, delta, error), _perfect(n, m, delta, error)),
        delta=delta,
        confidence=confidence,
        score=score,
        threshold=threshold,
        above=case.above,
        guess=case.guess,
        true_rate=true,
        true_rate_low=true_low,
        false_rate=false,
        false_rate_high=false_high,
        trials_with=m,
        trials_without=n,
    )


class _Case(NamedTuple):
    """On which side of the threshold the attacker guesses, and what."""

    above: bool
    guess: Guess


_CASES = (_Case(True, "with"), _Case(True, "without"), _Case(False, "with"), _Case(False, "without"))


def _chosen(inside: Floats, outside: Floats, delta: float, error: float) -> tuple[int, float, _Case]:
    """The kind of score, threshold and case with the largest bound on these runs."""
    best = 0, float(inside[0, 0]), _CASES[0]
    largest = -math.inf
    for score in range(inside.shape[1]):
        values = np.unique(np.concatenate([inside[:, score], outside[:, score]]))
        thresholds = values[:-1] + np.diff(values) / 2
        if not len(thresholds):
            continue
        for case in _CASES:
            rates = _rates(inside[:, score], outside[:, score], thresholds, case, error)
            bounds = _epsilon(rates[1], rates[3], delta)
            place = int(bounds.argmax())
            if bounds[place] > largest:
                largest = float(bounds[place])
                best = score, float(thresholds[place]), case
    return best


def _rates(
    inside: Floats, outside: Floats, thresholds: Floats, case: _Case, error: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """At each threshold: how often the guess is right, at least; how often it is wrong, at most."""
    right, wrong = (inside, outside) if case.guess == "with" else (outside, inside)
    hits, misses = (_count(side, thresholds, case.above) for side in (right, wrong))
    true, false = hits / len(right), misses / len(wrong)
    return true, _at_least(hits, len(right), error / 2), false, _at_most(misses, len(wrong), error / 2)


def _count(scores: Floats, thresholds: Floats, above: bool) -> Floats:
    below = np.searchsorted(np.sort(scores), thresholds, side="right")
    return (len(scores) - below if above else below).astype(np.float64)


def _at_least(hits: Floats, trials: int, error: float) -> Floats:
    """Clopper and Pearson's lower end: the rate at which as many hits or more have probability ``error``."""
    low = special.betaincinv(np.maximum(hits, 1), trials - hits + 1, error)
    return np.where(hits == 0, 0.0, low)


def _at_most(hits: Floats, trials: int, error: float) -> Floats:
    """Clopper and Pearson's upper end."""
    return 1 - _at_least(trials - hits, trials, error)


def _epsilon(true_low: Floats, false_high: Floats, delta: float) -> Floats:
    """ln((true - delta) / false), minus infinity where delta explains it all. A ``false_high`` is never 0."""
    return np.log(
        np.maximum(true_low - delta, 0) / false_high, out=np.full(true_low.shape, -np.inf), where=true_low > delta
    )


def _perfect(right: int, wrong: int, delta: float, error: float) -> float:
    """The bound of an attack that never errs."""
    every, none = np.array([float(right)]), np.zeros(1)
    low, high = _at_least(every, right, error / 2), _at_most(none, wrong, error / 2)
    return max(0.0, float(_epsilon(low, high, delta)[0]))


def _confidence(value: object) -> float:
    number = checks.probability("confidence", value, why="It is the probability with which the bound holds.")
    if not 0 < number < 1:
        raise InputError(
            f"`confidence` must lie strictly between 0 and 1, got {number:g}.", fix="Pass 0.95, for example."
        )
    return number


def _scores(name: str, values: Any) -> Floats:
    """The scores as runs x kinds."""
    array = np.asarray(values, dtype=np.float64)
    table = array[:, None] if array.ndim == 1 else array
    if table.ndim != 2 or len(table) < 2 or not table.shape[1] or not np.isfinite(table).all():
        raise InputError(
            f"{name} must be finite numbers of two runs at least, got an array of shape {array.shape}.",
            why="One half of the runs chooses a threshold, the other half measures with it.",
            fix="Pass one number, or one row of numbers, for each run.",
        )
    return table
