"""What accuracies over seeds say: means, paired gains with their intervals, and the smallest epsilon at an accuracy.

The runs of two cases with one seed are a pair: they begin with the same weights (where the networks agree) and draw the
same batches (where the sampling agrees). On records of a user's own runs have no seed; those with one number are a
pair, but independent, so the differences vary more, and what follows holds as well. The gain is the mean of the
differences d_1 .. d_n; with s their sample standard deviation, (mean - true gain) / (s / sqrt n) has Student's t
distribution with n - 1 degrees of freedom if the differences are normal, which gives the interval and the two-sided p.
Holm 1979 adjusts all p of a comparison: the chance that any difference is called significant at level a though there is
none is at most a, however they depend on one another.

    one pair                       the gain alone: no interval, no p
    all differences are equal      the same: with a variance of 0 there is no test
    no pair                        no entry
    no epsilon reaches a mark      ``epsilon`` None, text "> largest"
    every epsilon reaches it       the smallest one, text "<= smallest"; the true one may be far below
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

CONFIDENCE = 0.95
LEVEL = 0.05
"""A Holm-adjusted p below this is called a difference."""
_SAME = 1e-9
"""Differences of shares of a test set closer than this are equal but for rounding."""


@dataclass(frozen=True)
class Gain:
    """How much better one case is than another over the seeds (or numbers of runs) they share."""

    seeds: int
    gain: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Smallest:
    """The smallest measured epsilon from which on a mark is reached, the one before it, and both as text."""

    epsilon: float | None
    above: float | None
    text: str


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return statistics.fmean(values) if values else None


def spread_of(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None of fewer than two."""
    return statistics.stdev(values) if len(values) > 1 else None


def paired_gain(one: Mapping[int, float], other: Mapping[int, float]) -> Gain | None:
    """How much better ``one`` is than ``other``, both by seed; None if they share no seed."""
    gains = [value - other[seed] for seed, value in sorted(one.items()) if seed in other]
    if not gains:
        return None
    mean = statistics.fmean(gains)
    if len(gains) < 2 or max(gains) - min(gains) <= _SAME:
        return Gain(len(gains), mean)
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    freedom = len(gains) - 1
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom)) * error
    return Gain(len(gains), mean, mean - reach, mean + reach, float(2 * stats.t.sf(abs(mean) / error, freedom)))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm-adjusted p-values in the order given; what was not tested (None) stays None and does not count."""
    tested = sorted((p, place) for place, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    so_far = 0.0
    for rank, (p, place) in enumerate(tested):
        so_far = max(so_far, min(1.0, (len(tested) - rank) * p))
        adjusted[place] = so_far
    return adjusted


def smallest_epsilon(means: Mapping[float, float], mark: float) -> Smallest:
    """The smallest epsilon of ``means`` from which on no mean is below ``mark``."""
    reached, above = None, None
    for epsilon in sorted(means, reverse=True):
        if means[epsilon] < mark:
            above = epsilon
            break
        reached = epsilon
    if reached is None:
        return Smallest(None, above, f"> {above:g}" if above is not None else "not measured")
    return Smallest(reached, above, f"{reached:g}" if above is not None else f"<= {reached:g}")


def between(found: Smallest) -> float | None:
    """The epsilon that halves the gap before ``found`` (geometrically), to four digits; None if there is none."""
    if found.epsilon is None or found.above is None:
        return None
    middle = float(f"{math.sqrt(found.epsilon * found.above):.4g}")
    return middle if found.above < middle < found.epsilon else None
