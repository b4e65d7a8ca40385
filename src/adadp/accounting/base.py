"""What every accountant is: events in, an answer with a bracket and a status out."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

from adadp import checks
from adadp.accounting.answer import Answer, Status
from adadp.errors import AccountingError, AdaDPError, UnsupportedEvent
from adadp.events import Disjoint, Event, describe, flatten, is_noiseless, is_silent

_MOST_CASES = 10_000
"""In how many ways a record may be placed in the parts of the data before an answer is refused."""


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
    disjoint parts of the data  the worst part, with all that is composed with it
    ==========================  =====================================================
    """

    name: ClassVar[str]
    status: ClassVar[Status]

    def epsilon(self, event: Event | None, delta: float) -> Answer:
        """The smallest epsilon for which ``event`` is (epsilon, delta)-DP. ``None`` is a run that released nothing."""
        delta = checks.delta(delta)
        bracket = self.ask(event, lambda counts: self._epsilon(counts, delta), math.inf)
        return Answer(
            bracket.high, bracket.low, bracket.high, delta, delta, delta, self.name, self.status,
            event.neighbours if event else None, bracket.note,
        )  # fmt: skip

    def delta(self, event: Event | None, epsilon: float) -> Answer:
        """The smallest delta for which ``event`` is (epsilon, delta)-DP."""
        epsilon = checks.non_negative("epsilon", epsilon)
        bracket = self.ask(event, lambda counts: self._delta(counts, epsilon), 1.0)
        return Answer(
            epsilon, epsilon, epsilon, bracket.high, bracket.low, bracket.high, self.name, self.status,
            event.neighbours if event else None, bracket.note,
        )  # fmt: skip

    def ask(
        self, event: Event | None, question: Callable[[dict[Event, int]], Bracket], without_noise: float
    ) -> Bracket:
        """Answer what needs no theorem, and put ``question`` to each case of where a record can be."""
        if event is None or is_silent(event):
            return Bracket(0.0, 0.0, "nothing was released")
        if is_noiseless(event):
            return Bracket(without_noise, without_noise, "a release without noise has no finite epsilon")
        try:
            return _worst([question(counts) for counts in placements(event)])
        except AdaDPError:
            raise
        except (ArithmeticError, ValueError) as error:
            raise AccountingError(
                f"{self.name} cannot compute with {describe(event)}: {error}.",
                why="Its numbers leave the range of floating point.",
                fix="Use noise multipliers between 1e-6 and 1e6, at most 1e12 releases, "
                "and selections with epsilon below 500.",
            ) from error

    def sharper(self, counts: dict[Event, int]) -> bool:  # noqa: ARG002
        """Whether it knows more of an event in ``counts`` than its dominating pair, so that it may be below ``pld``."""
        return False

    @abstractmethod
    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        """Bracket of epsilon at ``delta`` for the flattened, non-empty, noisy events in ``counts``."""

    @abstractmethod
    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        """Bracket of delta at ``epsilon``."""


def placements(event: Event) -> Iterator[dict[Event, int]]:
    """What one record can have been in, one case after the other: the flattened ``event``, parts replaced by one each.

    Neighbouring data sets differ in one record, which is in one part of each ``Disjoint``; what was released from the
    other parts is the same function of the same records. So the event is DP for the pair at hand as the composition of
    that part with everything else, and the worst case bounds all pairs. Charges of one ``Disjoint`` may have told the
    parts apart anew each time: every combination is a case. Records that are ``held_out`` are such a part: a record is
    in what was released of them alone, or in all else.
    """
    counts = {part: count for part, count in flatten(event).items() if not is_silent(part)}
    parted = [(part, count) for part, count in counts.items() if isinstance(part, Disjoint)]
    cases = math.prod(math.comb(len(set(part.parts)) + count - 1, count) for part, count in parted)
    if cases > _MOST_CASES:
        raise UnsupportedEvent(
            f"{describe(event)} has {cases} cases of where a record can be.",
            fix=f"Compose at most {_MOST_CASES} of them: fewer parts, or fewer releases in parts.",
        )
    fixed: dict[Event, int] = {part: count for part, count in counts.items() if not isinstance(part, Disjoint)}
    choices = (itertools.combinations_with_replacement(dict.fromkeys(part.parts), count) for part, count in parted)
    for chosen in itertools.product(*choices):
        case = dict(fixed)
        for part, count in (item for each in itertools.chain(*chosen) for item in flatten(each).items()):
            if not is_silent(part):
                case[part] = case.get(part, 0) + count
        held = {part: count for part, count in case.items() if getattr(part, "held_out", False)}
        for found in (held, {part: count for part, count in case.items() if part not in held}):
            if found:  # a record in a part that tells nothing has nothing to lose
                yield found


def _worst(brackets: list[Bracket]) -> Bracket:
    worst = max(brackets, key=lambda bracket: bracket.high)
    return Bracket(max(bracket.low for bracket in brackets), worst.high, worst.note)
