"""A privacy budget for one data set, spent by many runs.

A run *reserves* all it plans to release before it has a ledger, and is refused if that does not fit. When it is over it
is *settled*: from then on it counts with what its ledger says. A kill in between leaves the reservation, which counts
more than was released, never less.

    reserve      what is planned counts; its id becomes the id of the run's ledger
    start        under the rule ``planned``: a run began on its reservation, and nothing can be reserved any more
    resume       the run goes on, on the reservation it has
    settle       it is over: under the rule ``filter`` what it did not release is given back; it cannot be resumed
"""

from __future__ import annotations

import getpass
import math
import os
import re
import secrets
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from adadp import checks
from adadp.app.budgets.rules import FILTER, PLANNED
from adadp.app.budgets.snapshot import CountedRun, Snapshot, Terms, renyi_order, snapshot_of
from adadp.app.budgets.store import Entry, Store
from adadp.errors import BudgetExceeded, InputError, LedgerError, UnsupportedEvent
from adadp.events import Event, Neighbours, describe, flatten, is_noiseless, to_json


class DataBudget(Protocol):
    """What runs ask of a budget; a file answers here, and a server could."""

    @property
    def name(self) -> str:
        """What certificates and messages call it."""
        ...

    def state(self) -> Snapshot:
        """What has been spent and reserved, checked."""
        ...

    def reserve(self, event: Event, *, command: str, unit: str | None = None, timed: bool = True) -> str:
        """Count ``event`` as what a run will release, and return the id for its ledger; or ``BudgetExceeded``."""
        ...

    def resume(self, run: str, turn: str, after: Collection[str] | None) -> None:
        """The run with that id goes on, in that turn; refused if it is unknown, settled, or its last turn is not one of
        those ``after`` which its folder was left. None: whoever resumes it says so.
        """
        ...

    def settle(self, run: str, released: Event | None, head: str | None) -> None:
        """The run is over: it released that, and ``head`` is the end of its ledger."""
        ...


@dataclass(frozen=True)
class BudgetFile:
    """A budget in a file that runs share: see ``store`` for what holds it together."""

    path: Path
    _store: Store = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        object.__setattr__(self, "_store", Store(self.path))

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        epsilon: float,
        delta: float,
        unit: str,
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
        order: float | None = None,
    ) -> BudgetFile:
        """A new budget with a filter of that Renyi ``order``; without one, for runs that are all planned first."""
        kind = PLANNED if order is None else FILTER
        if not isinstance(unit, str) or not unit.strip() or not unit.isprintable():
            raise InputError(f"The unit must be printable text, got {unit!r}.", fix="Name what one record stands for.")
        terms = Terms(
            secrets.token_hex(16),
            checks.positive("epsilon", epsilon),
            checks.delta(delta),
            neighbours,
            unit,
            kind,
            None if order is None else renyi_order(order),
        )
        Store.create(path, Entry("create", {**terms.as_json(), "who": _who(), "time": _now()}))
        return cls(Path(path))

    def state(self) -> Snapshot:
        """What has been spent and reserved, every entry checked."""
        return snapshot_of(self._store.read(), self.path)

    def reserve(self, event: Event, *, command: str, unit: str | None = None, timed: bool = True) -> str:
        """Count ``event`` as what a run will release, and return the id for its ledger.

        Under the rule ``planned`` it begins on a reservation that was made for the same releases. ``unit`` is what the
        run says that a record stands for, if it says anything. One that is not ``timed`` leaves no time behind.
        """
        with self._store.adding() as (entries, new):
            state = snapshot_of(entries, self.path)
            refuse_other(state.terms, event, unit, self.path)
            if state.terms.kind == PLANNED:
                run = _waiting(state, event, self.path)
                if run.given_back:  # with another id: what is left of its folder must not go on beside the new one
                    new.append(_reservation(event, command, run.id))
                name = str(new[0].body["run"]) if new else run.id
                new.append(Entry("start", {"run": name, "who": _who(), "time": _now()}))
                return name
            refuse_beyond(state, [event], self.path)
            new.append(_reservation(event, command, timed=timed))
            return str(new[0].body["run"])

    def plan(self, runs: list[tuple[Event, str]]) -> list[str]:
        """Reserve all ``runs``, events with their commands, or none; for the rule ``planned``, before any has begun."""
        with self._store.adding() as (entries, new):
            state = snapshot_of(entries, self.path)
            if state.terms.kind != PLANNED:
                raise InputError(
                    f"{self.path} is not a budget of planned runs.",
                    why="Its runs reserve for themselves when they begin.",
                    fix="Train with `budget`; or make another one with: adadp budget create --planned.",
                )
            if any(run.started for run in state.runs):
                raise InputError(
                    f"A run of {self.path} has begun.",
                    why="What is reserved now may follow from what it released; the sum holds for what came before.",
                    fix="Use a budget without --planned for runs that are chosen one after another.",
                )
            for event, _ in runs:
                refuse_other(state.terms, event, None, self.path)
            refuse_beyond(state, [event for event, _ in runs], self.path)
            new += [_reservation(event, command) for event, command in runs]
            return [str(entry.body["run"]) for entry in new]

    def resume(self, run: str, turn: str, after: Collection[str] | None) -> None:
        """The run with that id goes on, on what it has reserved; its last turn must be one of those ``after``."""
        with self._store.adding() as (entries, new):
            found = _open(snapshot_of(entries, self.path), run, self.path)
            if after is not None and found.turn not in after:
                raise went_on_elsewhere(run, self.path.name)
            # the time would tell how long a search took
            new.append(Entry("resume", {"run": run, "turn": turn, "who": _who()}))

    def settle(self, run: str, released: Event | None, head: str | None) -> None:
        """The run is over: it released that, all in all, and ``head`` is the end of its ledger."""
        with self._store.adding() as (entries, new):
            found = _open(snapshot_of(entries, self.path), run, self.path)
            if released is not None and released.neighbours is not found.planned.neighbours:
                raise LedgerError(f"The ledger of the run {run} is for other neighbours than it reserved for.")
            actual = None if released is None else to_json(released)
            new.append(Entry("settle", {"run": run, "released": actual, "head": head, "who": _who(), "time": _now()}))


def refuse_other(terms: Terms, event: Event, unit: str | None, path: Path) -> None:
    """Refuse a run whose guarantee is about other data sets than the budget's, or about no noise at all."""
    if is_noiseless(event):
        raise InputError(
            f"A run without noise cannot be counted in {path}.",
            why="No budget covers it.",
            fix="Give all that it releases noise.",
        )
    if event.neighbours is not terms.neighbours:
        raise InputError(
            f"{path} is for {terms.neighbours.value} neighbours, and the run for {event.neighbours.value} ones.",
            why="Guarantees about different changes of the data do not add up.",
            fix=f"Pass `neighbours` = {terms.neighbours.value}, or use another budget.",
        )
    if unit is not None and _word(unit) != _word(terms.unit):
        raise InputError(
            f"{path} counts for one {terms.unit}, and the run for one {unit}.",
            why="Guarantees about different units do not add up.",
            fix="Use a budget for that unit: one for a patient counts runs by the column patient or patient_id.",
        )


def _word(unit: str) -> str:
    """The unit by its name, or by that of a column of its ids."""
    return re.sub(r"([_ -][Ii][Dd]|(?<=[a-z])I[Dd])$", "", unit.strip()).lower()


def refuse_beyond(state: Snapshot, events: list[Event], path: Path) -> None:
    """``BudgetExceeded`` if ``events`` together would pass the budget."""
    terms = state.terms
    try:
        total = terms.rule.share([*state.counted(), *events])
        own = terms.rule.share(events)
    except UnsupportedEvent as error:
        raise InputError(
            f"The run cannot be counted in {path}: {error.what}",
            why=f"Its rule, {terms.kind}, has no theorem for this release.",
            fix="Train with Poisson batches and noise that is known ahead.",
        ) from error
    if not total <= 1:  # a NaN is no yes
        takes = f"would take {math.ceil(own * 1000) / 10:g} % of it" if own < 100 else "would take far more than all"
        raise BudgetExceeded(
            f"{path} has {math.floor(max(1 - state.used, 0) * 1000) / 10:g} % of its budget left, epsilon "
            f"{terms.epsilon:g} at delta {terms.delta:g}, and this {takes}.",
            why="All runs on the data together would no longer be within it. Nothing was released.",
            fix="Train with more noise, for fewer steps, or not at all.",
        )


def _waiting(state: Snapshot, event: Event, path: Path) -> CountedRun:
    """A reservation for just these releases on which nothing has begun, or that was given back."""
    replaced = {run.replaces for run in state.runs}
    for run in state.runs:
        begins = run.id not in replaced if run.given_back else not run.started
        if begins and flatten(run.planned) == flatten(event):
            return run
    raise BudgetExceeded(
        f"No reservation in {path} waits for a run with these releases: {describe(event)}.",
        why="All its runs were planned before the first; another one would pass what was composed.",
        fix="Train with a configuration that was reserved, or, before any run has begun, reserve this one with: adadp "
        f"budget reserve {path} --config FILE.",
    )


def _open(state: Snapshot, run: str, path: Path) -> CountedRun:
    """The run with that id, which is not settled yet."""
    found = state.run(run)
    if found is None:
        raise LedgerError(
            f"The run {run} is not counted in {path}.",
            why="What it releases must be reserved before it begins.",
            fix="Name the budget that the run was begun with.",
        )
    if found.settled is not None:
        raise LedgerError(
            f"The run {run} has been settled in {path}.",
            why="What it had not released was given back, and may have been spent by others.",
            fix="Begin a new run.",
        )
    return found


def went_on_elsewhere(run: str, budget: str) -> LedgerError:
    """The error for a folder whose copy was resumed."""
    return LedgerError(
        f"By {budget}, the run {run} was resumed elsewhere, from a copy of this folder.",
        why="Two copies would release the same steps, on one reservation.",
        fix="Go on with the latest one. If nothing was released from the other, say so: --moved, or fit(moved=True). "
        "The certificate will state it.",
    )


def _reservation(event: Event, command: str, replaces: str | None = None, *, timed: bool = True) -> Entry:
    time = _now() if timed else ""
    body = {"run": secrets.token_hex(8), "event": to_json(event), "command": command, "who": _who(), "time": time}
    return Entry("reserve", body if replaces is None else {**body, "replaces": replaces})


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # no name in the system's list, as in containers
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return "".join(each if each.isprintable() else "?" for each in f"{user}@{socket.gethostname()}")
