"""What every accountant is: events in, an answer with a bracket and a status out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from adadp import checks
from adadp.accounting.answer import Answer, Status
from adadp.errors import AccountingError, AdaDPError
from adadp.events import Event, describe, flatten, is_noiseless, is_silent


class Bracket(NamedTuple):
    """Where the accountant's figure lies, and what the reader must know about it."""

    low: float
    high: float
    note: str = ""


class Accountant(ABC):
    """Interprets events. It answers with the safe end of a bracket, or says which event it cannot handle and why.

    ==========================  =====================================================
    event                       answer
    ==========================  =====================================================
    nothing (count 0, q = 0)    epsilon 0, delta 0
    a release without noise     epsilon inf, delta 1
    unknown to this accountant  UnsupportedEvent
    adaptively chosen           AdaptiveEvent
    ==========================  =====================================================
    """

    name: ClassVar[str]
    status: ClassVar[Status]

    def epsilon(self, event: Event | None, delta: float) -> Answer:
        """The smallest epsilon for which ``event`` is (epsilon, delta)-DP. ``None`` is a run that released nothing."""
        delta = checks.delta(delta)
        bracket = self._ask(event, lambda counts: self._epsilon(counts, delta), math.inf)
        return Answer(
            bracket.high, bracket.low, bracket.high, delta, delta, delta, self.name, self.status,
            event.neighbours if event else None, bracket.note,
        )  # fmt: skip

    def delta(self, event: Event | None, epsilon: float) -> Answer:
        """The smallest delta for which ``event`` is (epsilon, delta)-DP."""
        epsilon = checks.non_negative("epsilon", epsilon)
        bracket = self._ask(event, lambda counts: self._delta(counts, epsilon), 1.0)
        return Answer(
            epsilon, epsilon, epsilon, bracket.high, bracket.low, bracket.high, self.name, self.status,
            event.neighbours if event else None, bracket.note,
        )  # fmt: skip

    def _ask(
        self, event: Event | None, question: Callable[[dict[Event, int]], Bracket], without_noise: float
    ) -> Bracket:
        """Answer what needs no theorem, and ask the accountant the rest."""
        if event is None or is_silent(event):
            return Bracket(0.0, 0.0, "nothing was released")
        if is_noiseless(event):
            return Bracket(without_noise, without_noise, "a release without noise has no finite epsilon")
        try:
            return question({part: count for part, count in flatten(event).items() if not is_silent(part)})
        except AdaDPError:
            raise
        except (ArithmeticError, ValueError) as error:
            raise AccountingError(
                f"{self.name} cannot compute with {describe(event)}: {error}.",
                why="Its numbers leave the range of floating point.",
                fix="Use noise multipliers between 1e-6 and 1e6 and selections with epsilon below 500.",
            ) from error

    @abstractmethod
    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        """Bracket of epsilon at ``delta`` for the flattened, non-empty, noisy events in ``counts``."""

    @abstractmethod
    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        """Bracket of delta at ``epsilon``."""
