"""WHETHER a release may be charged: the rule a ledger asks, the simplest one, and those that packages offer."""

from __future__ import annotations

from typing import Any, Protocol

from adadp.errors import BudgetExceeded, InputError
from adadp.events import Event, describe, flatten, to_json
from adadp.registry import Registry


class BudgetRule(Protocol):
    """Decides which charges a ledger accepts.

    The ledger calls ``admit``, writes the charge to the disk, then calls ``commit`` with the same arguments. When a
    ledger is opened again, everything it holds is committed without being admitted: it has been spent, wanted or not.
    """

    def describe(self) -> dict[str, Any]:
        """What the rule is, as JSON: written into the ledger's header and compared when it is opened again."""
        ...

    def admit(self, event: Event, count: int) -> None:
        """Raise ``BudgetExceeded`` if ``count`` times ``event`` would pass the budget. Has no side effect."""
        ...

    def commit(self, event: Event, count: int) -> None:
        """Take ``count`` times ``event`` as spent."""
        ...


class PlannedBudget:
    """Admits the releases of ``planned``, in any order, and nothing else.

    It holds a run to the plan for which epsilon was computed ahead, by whichever accountant. A charge that a crash tore
    is spent although it released nothing, so a run that resumes after such a crash ends that many releases short of its
    plan: it stops with ``BudgetExceeded`` and its certificate still holds.

    ``not_private`` says why no epsilon holds for a run whose charges are only what its paper would count. It stands in
    the ledger, so that whoever reads that alone is told.
    """

    def __init__(self, planned: Event, *, not_private: str | None = None) -> None:
        self._planned = flatten(planned)
        self._not_private = not_private
        self._spent: dict[Event, int] = {}

    def describe(self) -> dict[str, Any]:
        events = [{"count": count, "event": to_json(event)} for event, count in self._planned.items()]
        about = {} if self._not_private is None else {"not_private": self._not_private}
        return {"rule": "planned", "events": events} | about

    def admit(self, event: Event, count: int) -> None:
        for part, times in flatten(event).items():
            planned, spent = self._planned.get(part, 0), self._spent.get(part, 0)
            if spent + times * count > planned:
                raise BudgetExceeded(
                    f"{times * count} x {describe(part)} was refused: {planned} planned, {spent} already charged.",
                    why="The guarantee was computed for the planned releases and holds for no others.",
                    fix="Stop here, or plan (and pay for) a longer run before it starts.",
                )

    def commit(self, event: Event, count: int) -> None:
        for part, times in flatten(event).items():
            self._spent[part] = self._spent.get(part, 0) + times * count


class FixedBudget(BudgetRule, Protocol):
    """A rule that certifies by itself: whatever it admits, each free to depend on those before, is (epsilon, delta)-DP.

    A package offers one by an entry point of the group ``adadp.budgets``, named as the rule in ``describe()``.
    """

    epsilon: float
    delta: float

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> FixedBudget:
        """The fresh rule that ``describe`` describes so; KeyError if a field is missing."""
        ...


BUDGETS: Registry[type[FixedBudget]] = Registry(
    "budget", {}, lambda found: found if isinstance(found, type) and hasattr(found, "from_json") else None
)


def budget_like(description: object) -> FixedBudget:
    """The fixed budget that describes itself so, as in the header of a ledger.

    The rule is found by name among those installed: a header is not trusted to name a place to import from.
    """
    body = description if isinstance(description, dict) else {}
    rule = body.get("rule")
    if not isinstance(rule, str) or rule not in BUDGETS:
        raise InputError(f"{description!r} is no budget that certifies.", fix="Known: " + ", ".join(BUDGETS) + ".")
    try:
        return BUDGETS[rule].from_json(body)
    except (KeyError, TypeError) as error:
        raise InputError(f"{description!r} is no complete description of a budget: {error}.") from None
