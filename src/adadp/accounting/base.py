"""What every accountant is: events in, an answer with a bracket and a status out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from adadp import checks
from adadp.accounting.answer import Answer, Status
from adadp.events import Event, flatten, is_noiseless


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
        if event is None or not (counts := flatten(event)):
            bracket = Bracket(0.0, 0.0, "nothing was released")
        elif is_noiseless(event):
            bracket = Bracket(math.inf, math.inf, "a release without noise has no finite epsilon")
        else:
            bracket = self._epsilon(counts, delta)
        return Answer(
            bracket.high, bracket.low, bracket.high, delta, delta, delta, self.name, self.status,
            event.neighbours if event else None, bracket.note,
        )  # fmt: skip

    def delta(self, event: Event | None, epsilon: float) -> Answer:
        """The smallest delta for which ``event`` is (epsilon, delta)-DP."""
        epsilon = checks.non_negative("epsilon", epsilon)
        if event is None or not (counts := flatten(event)):
            bracket = Bracket(0.0, 0.0, "nothing was released")
        elif is_noiseless(event):
            bracket = Bracket(1.0, 1.0, "a release without noise has no finite epsilon")
        else:
            bracket = self._delta(counts, epsilon)
        return Answer(
            epsilon, epsilon, epsilon, bracket.high, bracket.low, bracket.high, self.name, self.status,
            event.neighbours if event else None, bracket.note,
        )  # fmt: skip

    @abstractmethod
    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        """Bracket of epsilon at ``delta`` for the flattened, non-empty, noisy events in ``counts``."""

    @abstractmethod
    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        """Bracket of delta at ``epsilon``."""
