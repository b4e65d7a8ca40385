"""How runs on one data set add up: by a filter, whatever was chosen on the way, or by their plans if all came first.

``filter``   Which run comes next, with which noise, is chosen after earlier runs were seen. That is fully adaptive
             composition: the cost of what was chosen is itself an outcome, and no sum computed afterwards bounds it.
             What holds is a filter (Feldman and Zrnic 2021, Theorem 4.3): the log moments of one Renyi order, fixed
             before the first run, add up, and a run that would pass the budget is refused. A run that stopped early,
             for whatever reason, counts with what it released: each release may depend on all before.
``planned``  All runs are reserved before the first begins. Then nothing is chosen, and their privacy losses are
             composed exactly, by the accountant pld, which admits more. Nothing is given back: a run that stopped early
             may have stopped because of what it released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from adadp.accounting import accountant
from adadp.app.accounting import RdpFilter
from adadp.errors import AccountingError, InputError
from adadp.events import Disjoint, Event, GaussianRelease, Neighbours, PoissonSampled, ZcdpCost, compose, flatten

FILTER, PLANNED = "filter", "planned"
_MOST = 1e4
"""How much more noise is tried where a run does not fit."""
_PRECISION = 1e-3


class Rule(Protocol):
    """What a number of runs takes of the budget."""

    def share(self, events: Iterable[Event]) -> float:
        """The share that ``events`` take together; they are within the budget if it is at most 1."""
        ...


@dataclass(frozen=True)
class FilterRule:
    """Log moments at one order add up."""

    epsilon: float
    delta: float
    order: float

    def share(self, events: Iterable[Event]) -> float:
        """The sum of the shares; ``UnsupportedEvent`` for an event without a theorem."""
        return math.fsum(map(self._share, events))

    def _share(self, event: Event) -> float:
        """Of disjoint parts, one of which has the record, the most expensive one counts: so do their log moments."""
        found = flatten(event)
        alone = {each: count for each, count in found.items() if not isinstance(each, Disjoint)}
        parts = (
            count * max(map(self._share, each.parts)) for each, count in found.items() if isinstance(each, Disjoint)
        )
        return math.fsum([*(count * self._filter.share(each) for each, count in alone.items()), *parts])

    @cached_property
    def _filter(self) -> RdpFilter:
        return RdpFilter(epsilon=self.epsilon, delta=self.delta, orders=(self.order,))


@dataclass(frozen=True)
class PlannedRule:
    """Losses of runs that were all planned before the first are composed."""

    epsilon: float
    delta: float

    def share(self, events: Iterable[Event]) -> float:
        """Epsilon of all of them over that of the budget."""
        found = list(events)
        if not found:
            return 0.0
        return accountant("pld").epsilon(compose(*found), self.delta).epsilon / self.epsilon


def best_order(
    epsilon: float, delta: float, *, noise_multiplier: float | None, sampling: float | None, neighbours: Neighbours
) -> float:
    """The order at which most of the expected steps fit; without any, most Gaussian releases."""
    expected: Event = ZcdpCost(1e-3, neighbours)
    if noise_multiplier is not None:
        expected = GaussianRelease(noise_multiplier, neighbours)
        if sampling is not None:
            expected = PoissonSampled(sampling, expected)
    elif sampling is not None:
        raise InputError(
            "The expected sampling was given without the expected noise.",
            why="How much sampling helps depends on the noise.",
            fix="Pass --expected-noise too.",
        )
    # a short number, so that the file says it exactly
    return float(f"{RdpFilter(epsilon=epsilon, delta=delta, expected=expected).orders[0]:.6g}")


def least_factor(rule: Rule, others: Iterable[Event], scaled: Callable[[float], Event]) -> float | None:
    """The smallest factor of its noise with which a run fits beside ``others``; None if none does."""
    there = list(others)

    def fits(factor: float) -> bool:
        try:
            return rule.share([*there, scaled(factor)]) <= 1
        except AccountingError:
            return False

    low, high = 1.0, 2.0
    while not fits(high):
        if high >= _MOST:
            return None
        low, high = high, high * 4
    while high / low > 1 + _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
