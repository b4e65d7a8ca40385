"""How a run is counted in the budget that its configuration names: reserved, resumed, given back or settled.

    killed                                     the budget counts
    before the reservation is on the disk      nothing; there is no ledger
    after it, before the ledger is there       all that was planned, for good: nobody can tell that nothing began
    while it trains                            all that was planned; resumed, it goes on with that
    when it has finished, before the settling  all that was planned, until ``adadp budget settle``

Where something fails before the run is kept, the reservation is given back by the same process.
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adadp.app.accounting import ZcdpFilter
from adadp.app.budgets.budget import BudgetFile, DataBudget, refuse_beyond, refuse_other, went_on_elsewhere
from adadp.app.budgets.rules import PLANNED, least_factor
from adadp.app.budgets.snapshot import Snapshot
from adadp.app.budgets.statement import statement
from adadp.app.train.planning import filter_of
from adadp.errors import AccountingError, AdaDPError, BudgetExceeded, InputError
from adadp.events import Event, ZcdpCost
from adadp.ledger import read_ledger

if TYPE_CHECKING:
    from adadp.app.config import TrainConfig
    from adadp.app.runs.anchor import Anchor
    from adadp.app.spec import RunSpec
    from adadp.plan import Plan


@dataclass(frozen=True)
class Counted:
    """A run that is counted in ``budget`` under the id ``run``, which is that of its ledger."""

    budget: DataBudget
    run: str
    turn: str | None
    """The name of this process in the budget, if it is held to one: nobody else may have gone on when the run ends."""

    @classmethod
    def reserve(
        cls,
        config: TrainConfig,
        event: Event,
        what_fits: Callable[[Snapshot], str] | None = None,
        *,
        timed: bool = True,
    ) -> Counted:
        """Count ``event`` as what a run of ``config`` will release; a refusal says ``what_fits``."""
        budget = budget_of(config)
        try:
            made = budget.reserve(event, command=command_of(config), unit=config.unit, timed=timed)
            return cls(budget, made, made)
        except BudgetExceeded as error:
            raise _with_advice(error, budget.state(), what_fits) from None

    @classmethod
    def resume(cls, config: TrainConfig, run: str, anchor: Anchor | None, *, moved: bool = False) -> Counted:
        """The run goes on, on what it has reserved. If the budget knows a turn that its notes, the ``anchor``, do not,
        a copy of the folder went on elsewhere. A search has no notes.
        """
        budget, turn = budget_of(config), secrets.token_hex(8)
        found = budget.state().run(run)
        if anchor is None or found is None:
            budget.resume(run, turn, None)
            return cls(budget, run, None)
        if found.turn not in anchor.turns and moved:
            anchor.note_move()
            anchor.note_turns(found.turn, found.turn)
        after = anchor.turns
        if found.turn in after:
            anchor.note_turns(found.turn, turn)
        budget.resume(run, turn, after)
        anchor.note_turns(turn, turn)
        return cls(budget, run, turn)

    def give_back(self) -> None:
        """The run has released nothing and never will. If that cannot be written, it stays counted."""
        with suppress(AdaDPError):
            self.budget.settle(self.run, None, None)

    def settle(self, ledger: Path) -> None:
        """The run is over, and released what ``ledger`` says. If that cannot be written, all of it stays counted."""
        try:
            record = read_ledger(ledger)
            self.budget.settle(self.run, record.event(), record.head)
        except AdaDPError as error:
            warnings.warn(
                f"The run is over, and {self.budget.name} still counts all that it planned: {error}", stacklevel=2
            )

    def statement(self) -> dict[str, Any]:
        """What the certificate states."""
        state = self.budget.state()
        found = state.run(self.run)
        if self.turn is not None and (found is None or found.turn != self.turn):
            raise went_on_elsewhere(self.run, self.budget.name)
        return statement(state, self.budget.name, self.run)


def event_of(spec: RunSpec, plan: Plan) -> Event:
    """What a run reserves: all that it may release."""
    if spec.method.not_private is not None:
        raise InputError(
            f"The method {spec.method} is not private, and a `budget` is given.",
            why="No budget covers it.",
            fix="Use another method.",
        )
    if not plan.adaptive:
        return plan.event()
    limit = filter_of(spec.config, plan)
    if not isinstance(limit, ZcdpFilter) or plan.neighbours is None:
        raise InputError(
            "The noise is chosen during the run, from sampled batches, and a `budget` is given.",
            why="Such a run is held to a filter of its own, at another Renyi order than that of the budget.",
            fix="Use noise that is known ahead, or a target `rho` with full batches or `sampling` = reshuffle.",
        )
    return ZcdpCost(limit.rho, plan.neighbours)


def reserve_run(spec: RunSpec, plan: Plan) -> Counted:
    """Reserve what a run of ``plan`` may release."""
    return Counted.reserve(spec.config, event_of(spec, plan), lambda state: _what_fits(state, spec, plan))


def check_run(spec: RunSpec, plan: Plan) -> None:
    """Refuse early what ``reserve_run`` would refuse now: before any data is read."""
    check_events(spec.config, [event_of(spec, plan)], lambda state: _what_fits(state, spec, plan))


def check_events(
    config: TrainConfig, events: Sequence[Event], what_fits: Callable[[Snapshot], str] | None = None
) -> None:
    """Refuse ``events`` that do not all fit into the budget now. Reserves nothing."""
    if what_fits is None and len(events) > 1:
        what_fits = partial(_how_many_fit, events=events)
    state, path = budget_of(config).state(), Path(str(config.budget))
    for event in events:
        refuse_other(state.terms, event, config.unit, path)
    if state.terms.kind == PLANNED:
        return  # these are reserved already, or will be refused when they begin
    try:
        refuse_beyond(state, list(events), path)
    except BudgetExceeded as error:
        raise _with_advice(error, state, what_fits) from None


def command_of(config: TrainConfig) -> str:
    """What the budget's list says the run is."""
    found = "adadp.fit" if config.data == "python" else config.as_command()
    return "".join(each if each.isprintable() else "?" for each in found)


def budget_of(config: TrainConfig) -> DataBudget:
    """The budget that ``config`` names. Only here it is known to be a file."""
    assert config.budget is not None
    return BudgetFile(Path(config.budget))


def _with_advice(error: BudgetExceeded, state: Snapshot, what_fits: Callable[[Snapshot], str] | None) -> BudgetExceeded:
    if what_fits is None or state.terms.kind == PLANNED:
        return error
    return BudgetExceeded(error.written[0], why=error.written[1], fix=what_fits(state))


def _what_fits(state: Snapshot, spec: RunSpec, plan: Plan) -> str:
    """Which noise, and which epsilon, the same plan could have in what is left. In few digits, on the safe side."""
    nothing = "Nothing of this plan fits, with whatever noise. Train for fewer steps, or not at all."
    if plan.adaptive or plan.noise is None:
        return "Train with a smaller target, or not at all."
    noise = plan.noise
    factor = least_factor(state.terms.rule, state.counted(), lambda by: plan.event(noise.scaled(by)))
    if factor is None:
        return nothing
    first = plan.noise_multiplier_at(0)
    multiplier = _rounded(first * factor, math.ceil, 3)
    fitting = f"With the same steps and batches a noise multiplier of {multiplier:g} fits"
    delta = spec.config.delta
    assert delta is not None
    try:
        epsilon = spec.accountant.epsilon(plan.event(noise.scaled(multiplier / first)), delta).epsilon
    except AccountingError:
        return f"{fitting}."
    return f"{fitting}: pass an `epsilon` of at most {_rounded(epsilon, math.floor, 2):g} at delta {delta:g}."


def _how_many_fit(state: Snapshot, events: Sequence[Event]) -> str:
    """How many of several runs fit, in their order."""
    share, counted = state.terms.rule.share, list(state.counted())
    fitting = sum(share([*counted, *events[: number + 1]]) <= 1 for number in range(len(events)))
    which = f"The first {fitting} of these {len(events)} runs fit" if fitting else "Not even one run fits"
    return f"{which}. Train with more noise, for fewer steps, or fewer of them."


def _rounded(value: float, direction: Callable[[float], int], digits: int) -> float:
    """``value`` with so many digits, on the side that ``direction`` gives."""
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{direction(value / unit) * unit:.{digits}g}")
