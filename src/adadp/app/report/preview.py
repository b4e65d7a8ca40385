"""What a run will do and cost, epoch by epoch, before a single record is read.

Everything follows from a configuration and its plan, which are public.

    a run                                  what is shown
    with a seed                            that it is a rehearsal, and what the same run would cost without the seed
    with noise that is known ahead         a row for each epoch (or about 20 of them), with what is spent by then
    whose noise follows looks              how it begins, what its filter allows, how long it can be: no rows
    without noise, or by a method that     rows without privacy, and the reason: there is no epsilon
    is not private
    by an accountant that proves nothing   its figures, marked as an estimate
    of reshuffled or whole batches         rho beside epsilon; sampled batches have none, zCDP knows no amplification
    of a length that ends inside an epoch  that epoch is the last row, with the steps it has
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from adadp import checks
from adadp.accounting import Accountant, Status, rounded_up
from adadp.app.accounting import Filter, ZcdpFilter
from adadp.app.accounting.zcdp import ZcdpAccountant
from adadp.app.config import AUTO, TrainConfig
from adadp.app.features import released_stages
from adadp.app.schedules import ExponentialDecay, PolynomialDecay, StepDecay, TimeDecay, ValidationDecay
from adadp.app.spec import RunSpec
from adadp.app.texts.schedules import OpenSchedule, parse_noise
from adadp.events import Event, compose, flatten
from adadp.plan import Plan

_REHEARSAL = "a rehearsal, as it has a seed: nothing will be protected, and what follows is without the seed"

FEW = 20
"""So many rows are shown where not all are asked for."""


@dataclass(frozen=True)
class OutlookRow:
    """One epoch, counted from 1, and what is spent when it is over. None: there is no such number."""

    epoch: int
    steps: int
    """Since the beginning."""
    batch_size: int
    noise_multiplier: float
    clip_norm: float
    """The clip bound; for a clip rule in full text, what its own bound is multiplied by."""
    lr: float | None
    epsilon: float | None
    rho: float | None


@dataclass(frozen=True)
class Solved:
    """The number that the budget settled: ``sigma_0``, ``k`` or ``epochs``."""

    name: str
    value: float


@dataclass(frozen=True)
class Outlook:
    """A run ahead. ``epsilon`` and ``rho`` are those of the whole of it."""

    spec: RunSpec
    plan: Plan
    rows: tuple[OutlookRow, ...]
    epsilon: float | None
    rho: float | None
    solved: Solved | None
    before: tuple[str, ...]
    """The features that are released before the first step."""
    epsilon_before: float | None
    """What they cost alone; None where a filter certifies the whole."""
    status: Status
    budget: Filter | None
    """What holds a run whose noise is chosen during the run; its budget is then ``epsilon``."""
    not_private: str | None
    """Why there is no epsilon."""

    @property
    def config(self) -> TrainConfig:
        return self.spec.config

    @property
    def schedule(self) -> str:
        """The noise over the epochs, with every number it has."""
        if self.budget is not None and self.config.noise_schedule is not None:
            return self.config.noise_schedule
        return "none" if self.plan.noise is None else str(self.plan.noise)

    @property
    def short(self) -> str:
        """The same with four digits, for reading."""
        return re.sub(r"\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]):.4g}", self.schedule)

    def head(self) -> list[str]:
        """The run in a few lines for people."""
        plan, config = self.plan, self.config
        assert plan.neighbours is not None
        share = plan.batch_size / plan.records
        batches = (
            f"batches of {plan.batch_size} (q = {share:.4g})"
            if plan.batch_size_schedule is None
            else f"batches {plan.batch_size_schedule}"
        )
        return [
            *self._noise(),
            f"{plan.records} records, {batches}, {plan.sampling} sampling, {plan.neighbours.value} neighbours, "
            f"method {config.method}",
            *self._released(),
            *([] if self.config.seed is None else [_REHEARSAL]),
            self._total(),
            *filter(None, [self.spec.method.note(plan.steps)]),
        ]

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        plan = self.plan
        return {
            "schedule": self.schedule,
            "solved": None if self.solved is None else asdict(self.solved),
            "epochs": plan.epochs,
            "steps": plan.steps,
            "epsilon": self.epsilon,
            "delta": self.config.delta,
            "rho": self.rho,
            "accountant": self.config.accountant if self.budget is None else self.budget.name,
            "status": self.status.value,
            "neighbours": plan.describe()["neighbours"],
            "private": self.not_private is None and self.status is Status.PROVED and self.config.seed is None,
            "rehearsal": self.config.seed is not None,
            "reason": self.not_private,
            "released_before": list(self.before),
            "epsilon_before": self.epsilon_before,
            "chosen_on_the_way": self.budget is not None,
            "plan": plan.describe(),
            "config": self.config.as_dict(),
            "rows": [asdict(row) for row in self.rows],
        }

    def _noise(self) -> list[str]:
        plan = self.plan
        length = f"{plan.epochs} epochs, {plan.steps} steps"
        if self.budget is not None:
            first = f"{plan.noise_multiplier_at(0):.4g}"
            private = self.spec.decay is not None and self.spec.decay.look is not None
            shape = "noise" if self.config.noise_schedule is None else f"noise {self.short}"
            return [
                f"{shape}: the noise multiplier begins with {first} and will be chosen during the run",
                f"at most {length}: the run ends when the budget is spent" + (", also by looks" if private else ""),
            ]
        if self.solved is None:
            return [f"noise {self.short}, {length}"]
        if self.solved.name == "epochs":
            return [f"noise {self.short}", f"{length} (as long as the budget lasts)"]
        how = "solved" if self.solved.name != "k" else f"solved for {plan.epochs} epochs"
        return [f"noise {self.short}, {length}", f"{self.solved.name} = {self.solved.value:.4g} ({how})"]

    def _released(self) -> list[str]:
        if not self.before:
            return []
        cost = "" if self.epsilon_before is None else f", epsilon {rounded_up(self.epsilon_before)} of the whole"
        return [f"released before the first step: {' + '.join(self.before)}{cost}"]

    def _total(self) -> str:
        if self.not_private is not None:
            return f"NOT private, there is no epsilon. {self.not_private}"
        delta, rho = self.config.delta, "" if self.rho is None else f", rho {self.rho:.4g}"
        assert self.epsilon is not None
        cost = f"epsilon {rounded_up(self.epsilon)} at delta {delta:g}"
        if self.budget is not None:
            return f"at most {cost}{rho}: the budget of the {self.budget.name}"
        doubt = "" if self.status is Status.PROVED else f" ({self.status.value}: NOT a guarantee)"
        return f"in all {cost} by {self.config.accountant}{doubt}{rho}"


def outlook(spec: RunSpec, plan: Plan, *, budget: Filter | None = None, every: bool = False) -> Outlook:
    """What the run of ``spec`` by ``plan`` will do.

    ``budget`` is the filter of a run that chooses its noise as it goes.
    ``every`` asks for every epoch; otherwise at most ``FEW`` are computed, the first and the last among them.
    """
    stages = released_stages(spec.stages)
    leak = "No noise is added." if plan.noise is None else spec.method.not_private
    asked = spec.accountant
    paid_before = stages and leak is None and budget is None
    found = Outlook(
        spec=spec,
        plan=plan,
        rows=(),
        epsilon=None if budget is None or leak is not None else budget.epsilon,
        rho=budget.rho if isinstance(budget, ZcdpFilter) and leak is None else None,
        solved=_solved(spec, plan),
        before=tuple(str(stage) for stage in stages),
        epsilon_before=_epsilon(spec, asked, compose(*plan.charges_before())) if paid_before else None,
        status=Status.PROVED if budget is not None else asked.status,
        budget=budget,
        not_private=leak,
    )
    if budget is not None:
        return found
    judge = asked if leak is None else None
    rhos = rho_by_epoch(plan) if leak is None and has_rho(plan) else [None] * (plan.epochs + 1)
    rows = tuple(
        _row(spec, plan, epoch, judge, rhos[epoch]) for epoch in spread(plan.epochs, plan.epochs if every else FEW)
    )
    return replace(found, rows=rows, epsilon=rows[-1].epsilon, rho=rows[-1].rho)


def with_schedule(config: TrainConfig, noise_schedule: str) -> TrainConfig:
    """``config`` with other noise; records kept aside for looks are trained on where it does not look."""
    looks = isinstance(parse_noise(noise_schedule), ValidationDecay)
    unused = {} if looks else dict.fromkeys(("validation", "validation_public", "validation_data"))
    return config.replace(noise_schedule=noise_schedule, **unused)


def spread(epochs: int, most: int) -> list[int]:
    """At most ``most`` of the epochs 1 to ``epochs``, evenly spaced, the first and the last among them."""
    most = checks.count("most", most, minimum=2) if epochs > 1 else 2
    if epochs <= most:
        return list(range(1, epochs + 1))
    return [1 + round((epochs - 1) * k / (most - 1)) for k in range(most)]


def until(plan: Plan, epoch: int) -> Plan:
    """The part of ``plan`` that is over when ``epoch``, counted from 1, is."""
    assert plan.noise is not None
    return plan.with_noise(plan.noise, steps=_steps(plan, epoch))


def has_rho(plan: Plan) -> bool:
    """Whether rho says what the run costs: every record is in one batch of an epoch, or in all."""
    whole = plan.batch_size_schedule is None and plan.batch_size == plan.records
    return plan.noise is not None and (plan.sampling == "reshuffle" or whole)


def rho_by_epoch(plan: Plan) -> list[float]:
    """What is spent before the first step, and when each epoch is over: rho adds up charge by charge."""
    zcdp = ZcdpAccountant()
    costs = [math.fsum(zcdp.rho(flatten(charge)) for charge in plan.charges_before())]
    for epoch in range(1, plan.epochs + 1):
        charges = (plan.charge_at(step) for step in range(_steps(plan, epoch - 1), _steps(plan, epoch)))
        costs.append(math.fsum(zcdp.rho(flatten(charge)) for charge in charges if charge is not None))
    return [math.fsum(costs[:length]) for length in range(1, len(costs) + 1)]


def _row(spec: RunSpec, plan: Plan, epoch: int, asked: Accountant | None, rho: float | None) -> OutlookRow:
    first = plan.timetable.first_step(epoch - 1)
    return OutlookRow(
        epoch=epoch,
        steps=_steps(plan, epoch),
        batch_size=plan.batch_size_at(first),
        noise_multiplier=plan.noise_multiplier_at(first),
        clip_norm=spec.starting_bound * plan.clip_factor_at(first),
        lr=None if spec.lr is None else spec.lr.value_of(first, epoch - 1),
        epsilon=None if asked is None else _epsilon(spec, asked, until(plan, epoch).event()),
        rho=rho,
    )


def _epsilon(spec: RunSpec, asked: Accountant, event: Event) -> float:
    assert spec.config.delta is not None
    return asked.epsilon(event, spec.config.delta).epsilon


def _steps(plan: Plan, epoch: int) -> int:
    return min(plan.timetable.first_step(epoch), plan.steps)


def _solved(spec: RunSpec, plan: Plan) -> Solved | None:
    """What followed from the budget. A schedule without an open number, and with a length, is scaled as a whole."""
    config, noise = spec.config, spec.noise
    if plan.noise is None or (config.epsilon is None and config.rho is None) or not isinstance(noise, OpenSchedule):
        return None
    if config.steps is None and config.epochs in (None, AUTO):
        return Solved("epochs", plan.epochs)
    if noise.unknown == "k":
        assert isinstance(plan.noise, (TimeDecay, ExponentialDecay, StepDecay, PolynomialDecay))
        return Solved("k", plan.noise.k)
    return Solved("sigma_0", plan.noise_multiplier_at(0))
