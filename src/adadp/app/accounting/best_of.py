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

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from adadp.accounting.composition import Composition
from adadp.accounting.contour import Curve, contour_curve, direct_curve, saddle_point
from adadp.accounting.dominating import Counts, compositions
from adadp.app.accounting.orders import ORDERS, LogMoment, conversion, minimise
from adadp.app.accounting.renyi import log_moment
from adadp.app.accounting.repetitions import (
    PoissonRepetitions,
    Repetitions,
    TruncatedNegativeBinomial,
    describe_law,
    law_from_json,
    law_to_json,
)
from adadp.errors import EventError, UnsupportedEvent
from adadp.events import Event, OtherEvent, describe, flatten, is_silent

_NOTHING = 1e-12
"""What mean x delta^ may add without being looked at more closely, and the mass of outcomes that may be cut off."""
_ANCHOR = math.log1p(1 / 8)
"""The epsilon^ (theta = 8) at which delta^ is computed tightest; at the other orders of a search it hardly loses."""


@dataclass(frozen=True)
class BestOf(OtherEvent):
    """A random number of runs, each of a candidate drawn uniformly and independently; only the best run is published.

    Published are the candidate, its output and its score; the other runs and their number are not. What the score looks
    at must be public, or be charged inside the candidate.
    """

    kind = "best-of"
    renyi_only = "The price of publishing the best of a random number of runs is proved for Renyi divergences only."

    candidates: tuple[Event, ...]
    repetitions: Repetitions

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "candidates", tuple(self.candidates))
        if not isinstance(self.repetitions, (TruncatedNegativeBinomial, PoissonRepetitions)):
            raise EventError(
                f"BestOf.repetitions must be the law of the number of runs, got {self.repetitions!r}.",
                why="The price of choosing the best is known for certain random numbers of runs only.",
                fix="Use TruncatedNegativeBinomial or PoissonRepetitions from adadp.app.accounting.repetitions.",
            )

    @property
    def inner(self) -> tuple[Event, ...]:
        return self.candidates

    def log_moment(self, accountant: str) -> LogMoment:
        runs = [
            {part: count for part, count in flatten(candidate).items() if not is_silent(part)}
            for candidate in self.candidates
        ]
        return best_of_moment(accountant, self.repetitions, runs, [log_moment(accountant, run) for run in runs])

    def fields(self, encode: Callable[[Event], dict[str, Any]]) -> dict[str, Any]:
        candidates = [encode(candidate) for candidate in self.candidates]
        return {"candidates": candidates, "repetitions": law_to_json(self.repetitions)}

    @classmethod
    def of(cls, body: dict[str, Any], decode: Callable[[object], Event]) -> BestOf:
        candidates = body.pop("candidates")
        if not isinstance(candidates, list):
            raise EventError(f"A list of events was expected, got {type(candidates).__name__}.")
        return cls(tuple(decode(item) for item in candidates), law_from_json(body.pop("repetitions")))

    def describe(self) -> str:
        runs = " | ".join(describe(candidate) for candidate in self.candidates)
        return f"Best of {describe_law(self.repetitions)} runs of [{runs}]"


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
