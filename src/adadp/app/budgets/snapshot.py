"""What a budget promises, and what its entries come to: the runs in it, and what each counts with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from adadp import checks
from adadp.app.budgets.rules import FILTER, PLANNED, FilterRule, PlannedRule, Rule
from adadp.app.budgets.store import Entry
from adadp.errors import AdaDPError, InputError, LedgerCorrupt
from adadp.events import Event, Neighbours, ZcdpCost, from_json

_FORMAT = 1


@dataclass(frozen=True)
class Terms:
    """What a budget promises, fixed when it is created."""

    id: str
    epsilon: float
    delta: float
    neighbours: Neighbours
    unit: str
    """What one record stands for, in words."""
    kind: str
    """``filter`` or ``planned``."""
    order: float | None = None
    """The Renyi order of a filter."""

    @cached_property
    def rule(self) -> Rule:
        """How runs add up."""
        if self.kind == PLANNED:
            return PlannedRule(self.epsilon, self.delta)
        assert self.order is not None
        return FilterRule(self.epsilon, self.delta, self.order)

    def as_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "id": self.id,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "neighbours": self.neighbours.value,
            "unit": self.unit,
            "rule": self.kind,
            **({} if self.order is None else {"order": self.order}),
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Terms:
        """The terms in a file, checked as those of a new budget are."""
        if body["format"] != _FORMAT or body["rule"] not in (FILTER, PLANNED):
            raise ValueError("it was written by another AdaDP")
        if (body["rule"] == FILTER) != ("order" in body):
            raise ValueError("its rule has another form")
        return cls(
            _text(body["id"]),
            checks.positive("epsilon", body["epsilon"]),
            checks.delta(body["delta"]),
            Neighbours.parse(body["neighbours"]),
            _text(body["unit"]),
            body["rule"],
            renyi_order(body["order"]) if "order" in body else None,
        )


@dataclass(frozen=True)
class CountedRun:
    """One run in a budget."""

    id: str
    planned: Event
    who: str
    command: str
    reserved: str
    """When; nothing for a search, whose length tells how many runs it made, and that must stay secret."""
    started: bool
    """Under the rule ``planned``: whether it began."""
    turn: str = ""
    """Which process has it or had it last: its id when it began, then the name that each resumption gives itself."""
    resumed: int = 0
    settled: str | None = None
    """When it was settled; None: it goes on, was stopped, or was killed."""
    released: Event | None = None
    """What it released, if it is settled; None: nothing."""
    head: str | None = None
    """The end of its ledger then."""
    replaces: str | None = None
    """Under the rule ``planned``: the run that gave back the same releases, in whose place it began."""

    @property
    def given_back(self) -> bool:
        """Whether it was settled before it released anything."""
        return self.settled is not None and self.released is None


@dataclass(frozen=True)
class Snapshot:
    """A budget as its entries tell it."""

    terms: Terms
    created: str
    runs: tuple[CountedRun, ...] = ()

    def counted(self) -> Iterator[Event]:
        """What counts as released by the runs, each as planned until it is settled."""
        for run in self.runs:
            event = self._counted(run)
            if event is not None:
                yield event

    def _counted(self, run: CountedRun) -> Event | None:
        """What ``run`` counts with.

        Noise that was chosen during a run is bounded twice, by its releases and by the rho that its own filter held it
        to, for which another theorem may know more. Both bounds are true, so the smaller one counts.
        """
        if run.given_back:
            return None
        if run.settled is None or self.terms.kind == PLANNED:
            return run.planned
        share = self.terms.rule.share
        if run.released is None or not isinstance(run.planned, ZcdpCost):
            return run.released
        return min(run.released, run.planned, key=lambda event: share([event]))

    @cached_property
    def used(self) -> float:
        """The share of the budget that counts as spent."""
        return self.terms.rule.share(self.counted())

    def run(self, name: str) -> CountedRun | None:
        """The run with that id."""
        return next((run for run in self.runs if run.id == name), None)

    def share_of(self, run: CountedRun) -> float:
        """The share of the budget that ``run`` takes; under the rule ``planned``, that it would take alone."""
        event = self._counted(run)
        return 0.0 if event is None else self.terms.rule.share([event])


def snapshot_of(entries: tuple[Entry, ...], path: Path) -> Snapshot:
    """What ``entries`` come to; a sequence that this package never writes is refused."""
    try:
        state = Snapshot(Terms.from_json(entries[0].body), _time(entries[0].body["time"]))
        runs: dict[str, CountedRun] = {}
        for entry in entries[1:]:
            name = _text(entry.body["run"])
            runs[name] = _after(runs.get(name), entry, state.terms)
    except (AdaDPError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise LedgerCorrupt(
            f"{path} is no budget that holds: {error}.",
            why="What has been spent is no longer known.",
            fix="Put the latest copy back that holds.",
        ) from error
    return replace(state, runs=tuple(runs.values()))


def _after(run: CountedRun | None, entry: Entry, terms: Terms) -> CountedRun:
    """``run`` after one more entry about it."""
    body = entry.body
    time = _time(body["time"]) if body.get("time") else ""
    if entry.kind == "reserve" and run is None:
        event = from_json(body["event"])
        if event.neighbours is not terms.neighbours:
            raise ValueError("a reservation is for other neighbours")
        who, command = _text(body["who"]), _text(body["command"])
        replaces = _text(body["replaces"]) if "replaces" in body else None
        begun = terms.kind == FILTER
        name = _text(body["run"])
        return CountedRun(name, event, who, command, time, started=begun, turn=name, replaces=replaces)
    if run is None or run.settled is not None or entry.kind not in ("start", "resume", "settle"):
        raise ValueError(f"an entry {entry.kind!r} has no place where it is")
    if entry.kind == "start":
        return replace(run, started=True)
    if entry.kind == "resume":
        return replace(run, resumed=run.resumed + 1, turn=_text(body["turn"]))
    released = None if body["released"] is None else from_json(body["released"])
    if released is not None and released.neighbours is not terms.neighbours:
        raise ValueError("a run was settled for other neighbours")
    if not time:
        raise ValueError("a settlement has no time")
    return replace(run, settled=time, released=released, head=None if body["head"] is None else _text(body["head"]))


def renyi_order(value: object) -> float:
    """An order greater than 1."""
    order = checks.positive("order", value)
    if order <= 1:
        raise InputError(f"The Renyi order must be greater than 1, got {order:g}.", why="RDP is defined for those.")
    return order


def _text(value: object) -> str:
    """Text that can be printed: a stranger's file must not write to the terminal what it likes."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("a field is not printable text")
    return value


def _time(value: object) -> str:
    """A time in text, with its zone, that a picture has room for."""
    text = _text(value)
    time = datetime.fromisoformat(text)
    if time.tzinfo is None or not 2000 <= time.year < 3000:
        raise ValueError("a field is not a time with its zone")
    return text
