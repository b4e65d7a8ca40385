"""What a run may spend, (epsilon, delta) or rho, and what a schedule must be to land on it.

    wanted                                       solved by
    the scale of a schedule (its s0)             ``scale``: the least noise that fits
    its k, for a given length                    ``rate``: the k of the fastest decay that fits
    its length, everything else being given      ``length``: the most epochs that fit

Nothing here looks at data, and every answer is on the safe side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import brentq

from adadp import checks
from adadp.accounting.base import Accountant
from adadp.app.accounting.calibrate import (
    checked_budget,
    longest,
    longest_within_rho,
    smallest_noise,
    smallest_noise_within_rho,
)
from adadp.app.accounting.zcdp import ZcdpAccountant
from adadp.errors import InputError, UnreachableTarget
from adadp.events import Event, flatten

_DIGITS = 8
"""Decimals of a solved k: at most 1e-8 from the exact one, on the side of more noise."""


class Target(ABC):
    """What the whole of a run may cost."""

    @property
    @abstractmethod
    def limit(self) -> float:
        """The figure that is not passed."""

    @abstractmethod
    def cost(self, event: Event) -> float:
        """What ``event`` costs, in the unit of ``limit``."""

    @abstractmethod
    def scale(self, make_event: Callable[[float], Event]) -> float:
        """The smallest x for which ``make_event(x)`` fits; more of x must mean more noise."""

    @abstractmethod
    def length(self, first: Callable[[int], Event]) -> int:
        """The largest n for which ``first(n)``, the first n epochs of a run, fit."""

    def rate(self, make_event: Callable[[float], Event], *, below_one: bool) -> float:
        """The k of the fastest decay for which ``make_event(k)`` fits.

        ``below_one``: k is a factor in (0, 1), and the smaller it is the faster the decay; otherwise k > 0 is a speed.
        """

        def cost(speed: float) -> float:
            try:
                return self.cost(make_event(math.exp(-speed) if below_one else speed))
            except (OverflowError, ArithmeticError):
                return math.inf
            except InputError:  # the noise has decayed to nothing
                return math.inf

        slow, fast = 1e-9, 1e-3
        if cost(slow) > self.limit:
            raise UnreachableTarget(
                f"Even without any decay the schedule costs {cost(slow):.6g}, and {self.limit:g} is what may be spent.",
                reachable=cost(slow),
                fix="Start with more noise (s0), or take fewer epochs.",
            )
        while cost(fast) <= self.limit:
            slow, fast = fast, fast * 2
            if fast > _FASTEST:
                raise UnreachableTarget(
                    f"However fast the schedule decays it costs at most {cost(slow):.6g}, less than {self.limit:g}.",
                    reachable=cost(slow),
                    fix="Start with less noise (s0), end with less (s_end), or take more epochs.",
                )

        def gap(speed: float) -> float:
            return math.log(min(max(cost(speed), 1e-6 * self.limit), 1e9 * self.limit)) - math.log(self.limit)

        speed = brentq(gap, slow, fast, xtol=10.0**-_DIGITS / 4)
        k = math.exp(-speed) if below_one else speed
        unit = 10.0**-_DIGITS
        k = math.ceil(k / unit) * unit if below_one else math.floor(k / unit) * unit
        while self.cost(make_event(round(k, _DIGITS))) > self.limit:
            k += unit if below_one else -unit
        return round(k, _DIGITS)


_FASTEST = 1e3


@dataclass(frozen=True)
class EpsilonTarget(Target):
    """At most ``epsilon`` at ``delta``, by ``accountant``."""

    epsilon: float
    delta: float
    accountant: Accountant

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checked_budget("epsilon", self.epsilon))
        object.__setattr__(self, "delta", checks.delta(self.delta))

    @property
    def limit(self) -> float:
        return self.epsilon

    def cost(self, event: Event) -> float:
        return self.accountant.epsilon(event, self.delta).epsilon

    def scale(self, make_event: Callable[[float], Event]) -> float:
        found = smallest_noise(make_event, epsilon=self.epsilon, delta=self.delta, accountant=self.accountant)
        return found.value

    def length(self, first: Callable[[int], Event]) -> int:
        found = longest(first, epsilon=self.epsilon, delta=self.delta, accountant=self.accountant)
        return int(found.value)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g}"


@dataclass(frozen=True)
class RhoTarget(Target):
    """At most ``rho`` of zero-concentrated differential privacy."""

    rho: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", checked_budget("rho", self.rho))

    @property
    def limit(self) -> float:
        return self.rho

    def cost(self, event: Event) -> float:
        return ZcdpAccountant().rho(flatten(event))

    def scale(self, make_event: Callable[[float], Event]) -> float:
        return smallest_noise_within_rho(make_event, rho=self.rho)

    def length(self, first: Callable[[int], Event]) -> int:
        return longest_within_rho(first, rho=self.rho)[0]

    def __str__(self) -> str:
        return f"rho {self.rho:g}"
