"""Budgets that stay valid when the noise is chosen on the way.

When a multiplier depends on earlier releases, the realised sequence of events is itself an outcome and its composed
cost bounds nothing. What remains true is a filter: fix a budget in advance, add up a cost that is additive, and refuse
the release that would pass it (Rogers et al. 2016; Feldman and Zrnic, "Individual privacy accounting via a Renyi
filter", 2021). Whatever was chosen, the whole then has the budget's (epsilon, delta), and that is what is certified.

Filters are budget rules for a ledger, which finds them by the entry points ``adadp.budgets``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from adadp import checks
from adadp.accounting.answer import Answer, Status
from adadp.app.accounting.orders import ORDERS, conversion, largest_moment, minimise
from adadp.app.accounting.renyi import log_moment
from adadp.app.accounting.zcdp import largest_rho, rho_of, rho_to_epsilon, smallest_epsilon
from adadp.errors import BudgetExceeded, InputError
from adadp.events import AdaptivelyChosen, Event, Neighbours, describe, flatten, is_noiseless


class Filter(ABC):
    """A fixed (epsilon, delta) that is spent release by release, each free to depend on those before."""

    name: str

    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.neighbours: Neighbours | None = None
        self._broken = False

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the rule is, as JSON; two filters with equal descriptions admit the same releases."""

    @classmethod
    @abstractmethod
    def from_json(cls, body: dict[str, Any]) -> Filter:
        """The fresh filter that describes itself so; KeyError if a field is missing."""

    @abstractmethod
    def _would_pass(self, counts: dict[Event, int]) -> bool:
        """Whether charging ``counts`` (flattened, marks removed) would pass the budget."""

    @abstractmethod
    def _spend(self, counts: dict[Event, int]) -> None:
        """Take ``counts`` as spent."""

    @property
    @abstractmethod
    def used(self) -> float:
        """The share of the budget that is spent, between 0 and 1 (more if it was overdrawn from outside)."""

    def within(self, other: Filter) -> bool:
        """Whether this budget allows no more than ``other`` does, but for the precision of a conversion."""
        return self.epsilon <= other.epsilon * (1 + 1e-6)

    def admit(self, event: Event, count: int = 1) -> None:
        """Raise ``BudgetExceeded`` if ``count`` times ``event`` would pass the budget. Has no side effect."""
        counts = _opened(event, count)
        if self._broken or is_noiseless(event) or self._would_pass(counts):
            raise BudgetExceeded(
                f"{count} x {describe(event)} was refused: it would pass the budget of epsilon {self.epsilon:g} at "
                f"delta {self.delta:g}, of which {min(self.used, 1):.1%} is spent.",
                why="A filter is valid only if no release ever passes it.",
                fix="Stop here, or add more noise to this release.",
            )

    def commit(self, event: Event, count: int = 1) -> None:
        """Take ``count`` times ``event`` as spent."""
        self.neighbours = event.neighbours
        if is_noiseless(event):  # charged past the filter, as when a ledger is opened again: no budget covers it
            self._broken = True
        else:
            self._spend(_opened(event, count))

    def answer(self) -> Answer:
        """What can be certified at any time, however the releases were chosen: the budget, not what was used of it."""
        note = "the budget of a filter, fixed in advance; what was used of it certifies nothing smaller"
        return Answer(
            self.epsilon, self.epsilon, self.epsilon, self.delta, self.delta, self.delta, self.name, Status.PROVED,
            self.neighbours, note,
        )  # fmt: skip


def _opened(event: Event, count: int) -> dict[Event, int]:
    """The flattened event with the marks of adaptive choice removed, since a filter allows for it."""
    total: dict[Event, int] = {}
    for part, times in flatten(event).items():
        inner = {part: 1} if not isinstance(part, AdaptivelyChosen) else _opened(part.event, 1)
        for leaf, each in inner.items():
            total[leaf] = total.get(leaf, 0) + each * times * count
    return total


class ZcdpFilter(Filter):
    """Admits releases while their rho adds up to at most ``rho``. The right one for reshuffled and full-batch training.

    Theorem (Feldman and Zrnic 2021, Theorem 4.3, at every order): the whole run is ``rho``-zCDP, whatever was chosen
    on the way. Of rho-zCDP mechanisms nothing better than ``smallest_epsilon`` is true.
    """

    name = "zcdp-filter"

    def __init__(self, *, delta: float, rho: float | None = None, epsilon: float | None = None) -> None:
        """Give ``rho``, or the ``epsilon`` it is to convert to at ``delta``."""
        delta = checks.delta(delta)
        if (rho is None) == (epsilon is None):
            raise InputError("A zCDP filter needs exactly one of rho and epsilon.", fix="Pass rho=... or epsilon=...")
        if rho is None:
            epsilon = checks.positive("epsilon", epsilon)
            rho = largest_rho(epsilon, delta)
        else:
            rho = checks.positive("rho", rho)
            epsilon = smallest_epsilon(rho, delta)
        assert epsilon is not None
        super().__init__(epsilon, delta)
        self.rho = rho
        self._spent: dict[float, int] = {}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> ZcdpFilter:
        """The filter in the header of a ledger.

        Without an epsilon it was written when rho was converted by rho + 2 sqrt(rho log(1/delta)), which is larger than
        ``smallest_epsilon``: what was certified then is still true.
        """
        rho, delta = body["rho"], body["delta"]
        found = cls(rho=rho, delta=delta)
        stated: float = body.get("epsilon", rho_to_epsilon(rho, delta))
        if stated < found.epsilon * (1 - 1e-9):
            raise InputError(f"rho {rho:g} does not give epsilon {stated:g} at delta {delta:g}.")
        found.epsilon = stated
        return found

    def describe(self) -> dict[str, Any]:
        return {"rule": self.name, "rho": self.rho, "epsilon": self.epsilon, "delta": self.delta}

    def _costs(self, counts: dict[Event, int]) -> dict[float, int]:
        costs: dict[float, int] = {}
        for event, count in counts.items():
            rho = rho_of(self.name, event)
            costs[rho] = costs.get(rho, 0) + count
        return costs

    def _would_pass(self, counts: dict[Event, int]) -> bool:
        costs = self._costs(counts)
        return math.fsum([*(r * n for r, n in self._spent.items()), *(r * n for r, n in costs.items())]) > self.rho

    def _spend(self, counts: dict[Event, int]) -> None:
        for rho, count in self._costs(counts).items():
            self._spent[rho] = self._spent.get(rho, 0) + count

    def within(self, other: Filter) -> bool:
        return isinstance(other, ZcdpFilter) and self.rho <= other.rho * (1 + 1e-6)

    @property
    def used(self) -> float:
        """The share of rho that is spent."""
        return math.fsum(rho * count for rho, count in self._spent.items()) / self.rho


class RdpFilter(Filter):
    """Admits releases while, at one of its fixed orders at least, the log moments stay within the budget.

    For order theta = alpha - 1 with share delta_theta of delta, e^(theta L - sum of log moments) is a supermartingale
    whatever is chosen on the way, so on the runs whose sum at this order ends within
    theta epsilon + log delta_theta - conversion(theta), the expected (1 - e^(epsilon - L))+ is at most delta_theta.
    Every run ends within the budget of some order, and the shares add up to delta: the whole is (epsilon, delta)-DP.

    One order loses nothing to the split: the whole run then has this moment (Feldman and Zrnic 2021, Theorem 4.3), and
    ``largest_moment`` is its budget. Give the releases to be ``expected`` and the order that admits most of them is
    used; without, six orders share delta.
    """

    name = "rdp-filter"

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        expected: Event | None = None,
        orders: tuple[float, ...] | None = None,
    ) -> None:
        """``orders`` are alpha > 1; by default they follow from ``expected``, or are 2.5, 4, 7, 13, 25 and 49."""
        super().__init__(checks.positive("epsilon", epsilon), checks.delta(delta))
        if orders is None:
            orders = (2.5, 4.0, 7.0, 13.0, 25.0, 49.0) if expected is None else (self._best_order(expected),)
        if not orders or any(checks.positive("order", order) <= 1 for order in orders):
            raise InputError(f"Orders must be greater than 1, got {orders}.", why="RDP is defined for alpha > 1.")
        self.orders = tuple(float(order) for order in orders)
        if len(self.orders) == 1:
            self._budget = [largest_moment(self.orders[0] - 1, self.epsilon, self.delta)]
        else:
            share = math.log(self.delta / len(self.orders))
            self._budget = [(a - 1) * self.epsilon + share - conversion(a - 1) for a in self.orders]
        if all(budget <= 0 for budget in self._budget):
            raise InputError(
                f"None of the orders {self.orders} leaves a budget at epsilon {epsilon:g} and delta {delta:g}.",
                why="Low orders pay log(1/delta)/(alpha - 1) before the first release.",
                fix="Add higher orders, or pass expected=... to have one chosen.",
            )
        self._spent = [0.0] * len(self.orders)
        self._known: dict[Event, list[float]] = {}

    def _best_order(self, expected: Event) -> float:
        """The order with the most room for ``expected``, in repetitions of it."""
        moment = log_moment(self.name, _opened(expected, 1))
        return minimise(lambda t: -largest_moment(t, self.epsilon, self.delta) / moment(t), ORDERS)[1] + 1

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> RdpFilter:
        return cls(epsilon=body["epsilon"], delta=body["delta"], orders=tuple(body["orders"]))

    def describe(self) -> dict[str, Any]:
        return {"rule": self.name, "epsilon": self.epsilon, "delta": self.delta, "orders": list(self.orders)}

    def _costs(self, counts: dict[Event, int]) -> list[float]:
        total = [0.0] * len(self.orders)
        for event, count in counts.items():
            if event not in self._known:
                moment = log_moment(self.name, {event: 1})
                self._known[event] = [moment(order - 1) for order in self.orders]
            total = [sum_ + count * one for sum_, one in zip(total, self._known[event], strict=True)]
        return total

    def _would_pass(self, counts: dict[Event, int]) -> bool:
        costs = self._costs(counts)
        return all(spent + cost > budget for spent, cost, budget in zip(self._spent, costs, self._budget, strict=True))

    def _spend(self, counts: dict[Event, int]) -> None:
        self._spent = [spent + cost for spent, cost in zip(self._spent, self._costs(counts), strict=True)]

    def share(self, event: Event) -> float:
        """The share of the budget that ``event`` takes where it takes least. With one order, shares add up."""
        costs = self._costs(_opened(event, 1))
        return min(cost / budget for cost, budget in zip(costs, self._budget, strict=True) if budget > 0)

    @property
    def used(self) -> float:
        """The share that is spent at the order with the most room."""
        return min(spent / budget for spent, budget in zip(self._spent, self._budget, strict=True) if budget > 0)
