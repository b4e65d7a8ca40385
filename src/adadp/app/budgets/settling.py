"""A run that was stopped, or killed at its very end, is settled: what it did not release is given back.

the folder, or its ledger, is gone           refused: the run stays counted with all it planned
the ledger does not hold, or was cut back    refused, see ``runs.anchor``
this machine has no note of the run          refused: the folder may be an older copy
a copy was resumed on another machine        refused
the run, or a copy of it, is going on        ``LedgerBusy``
the ledger holds more than was reserved      refused
a search                                     it stays counted with all it planned, and is closed
settled once                                 refused; and the run cannot be resumed
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

from adadp.app.accounting import ZcdpFilter
from adadp.app.budgets.budget import BudgetFile, went_on_elsewhere
from adadp.app.budgets.snapshot import CountedRun
from adadp.app.runs import RunFolder
from adadp.app.runs.anchor import Anchor, note_of
from adadp.certificate.verify import verify
from adadp.errors import BudgetExceeded, InputError, LedgerError
from adadp.events import Event, ZcdpCost, flatten
from adadp.ledger import Ledger, read_ledger


def settle_folder(budget: BudgetFile, folder: str | os.PathLike[str]) -> CountedRun:
    """Settle the run in ``folder``, and return how it is counted now."""
    place = RunFolder.open(folder)
    if not place.ledger_path.is_file():
        raise InputError(
            f"There is no ledger in {place.path}.",
            why="That the run has released nothing is then not known: it stays counted with all it planned.",
        )
    if place.finished:
        failed = [check for check in verify(place.path) if not check.passed]
        if failed:
            raise InputError(
                f"The run in {place.path} does not verify: {failed[0].name}: {failed[0].detail}",
                why="What it has released is not known.",
                fix=f"See adadp verify {place.path}.",
            )
    with Ledger.open(place.ledger_path, budget=_AsWritten(read_ledger(place.ledger_path).budget)) as ledger:
        found = budget.state().run(ledger.run)
        if found is not None and place.search() is not None:
            budget.settle(ledger.run, found.planned, ledger.head)
        else:
            if not note_of(ledger.run).exists():
                raise LedgerError(
                    f"This machine has no note of the run in {place.path}.",
                    why="The folder may be an older copy of a run that went on elsewhere: less would be counted than "
                    "was released.",
                    fix="Settle it on the machine where it ran. Until then it counts with all it planned.",
                )
            with closing(Anchor.of(ledger, place.path, moved=False)) as anchor:
                if found is not None:
                    if found.turn not in anchor.turns:
                        raise went_on_elsewhere(ledger.run, budget.name)
                    _check_within(ledger, found.planned)
                budget.settle(ledger.run, ledger.event(), ledger.head)
        settled = budget.state().run(ledger.run)
    assert settled is not None
    return settled


def _check_within(ledger: Ledger, planned: Event) -> None:
    """Refuse a ledger that is not that of the run that was reserved: by its charges, or the filter it was held to."""
    if isinstance(planned, ZcdpCost):
        rule = read_ledger(ledger.path).budget or {}
        within = rule.get("rule") == ZcdpFilter.name and rule.get("rho") == planned.rho
    else:
        allowed = flatten(planned)
        within = all(count <= allowed.get(event, 0) for event, count in ledger.charges.items())
    if not within:
        raise LedgerError(
            f"The ledger {Path(ledger.path)} has charged other releases than were reserved.",
            why="It is not the ledger of that run.",
            fix="Name the folder of the run that was reserved.",
        )


class _AsWritten:
    """The rule a ledger was begun with, for a reader that charges nothing."""

    def __init__(self, description: dict[str, Any] | None) -> None:
        self._description = description or {}

    def describe(self) -> dict[str, Any]:
        return self._description

    def admit(self, event: Event, count: int) -> None:
        raise BudgetExceeded(f"{count} x {event} was refused: the run is being settled.")

    def commit(self, event: Event, count: int) -> None:
        """What the ledger holds has been spent."""
