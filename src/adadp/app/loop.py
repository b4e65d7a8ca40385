"""A training loop of the user's own, certified: ``adadp.PrivateGradients`` as the core has it, with ``save``.

What is certified is the plan that was fixed before the first release, in full. A loop may stop by what it sees of its
model. Then how many steps it made is itself an outcome, and what these steps cost by themselves bounds nothing (Rogers
et al. 2016). But they are a part of the planned releases, so the planned epsilon holds for them, and for all models
together that are saved during the run. The steps that were not made are therefore charged when a run is
saved, in the copy of its ledger.

    saved                                       the folder
    ==========================================  ====================================================================
    when all planned steps are made             the ledger as it is
    earlier, or several times on the way        a copy of the ledger with all further planned releases charged; the run
                                                itself can go on, and what it releases later is covered too
    into the folder that its ledger is in       that ledger is completed and closed: the run has ended
    after noise that was chosen on the way      the ledger as it is; the filter's budget is certified
    with a seed                                 a rehearsal, without an epsilon
    with a ledger that does not say what holds  ``InputError``; the ledger stays what it is
    it: no budget, another plan, no ``seeded``
    after an audit's mechanism has released     ``InputError``
    into a folder with anything else in it      ``InputError``: a run is never overwritten
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from adadp.accounting import accountant as accountant_named
from adadp.app.compiled_passes import CompiledPasses
from adadp.app.config import OWN_LOOP, TrainConfig
from adadp.app.report.certificate import make_certificate
from adadp.app.report.html import write_report
from adadp.app.runs import RunFolder
from adadp.app.sources import Collate, read_data
from adadp.app.spec import RunSpec
from adadp.app.texts.clip_rules import clip_rule_text
from adadp.app.texts.methods import method_text
from adadp.app.texts.schedules import parse_noise, parse_schedule
from adadp.app.train.planning import note_on_processes, notes_of, planned_budget
from adadp.app.units import (
    ROWS_PER_UNIT,
    UNNAMED,
    Units,
    codes_of,
    example_by_unit,
    loss_by_unit,
    record_of,
    records_by_unit,
    taken_out,
)
from adadp.certificate.make import model_metadata
from adadp.errors import InputError
from adadp.events import AdaptivelyChosen, flatten
from adadp.ledger import FixedBudget, Ledger, LedgerRecord, budget_like, read_ledger
from adadp.methods import Method
from adadp.plan import Plan
from adadp.ranks import together
from adadp.records import Data, Records
from adadp.release import GaussianMechanism
from adadp.schedules import Piecewise, Schedule, Uniform
from adadp.step import PrivateGradients as Gradients


class PrivateGradients(Gradients):
    """Private gradients of a model, one batch at a time, for a training loop that ends with a certificate.

    ``adadp.step.PrivateGradients`` says what the other arguments are, and what ``release`` does. ``collate_fn`` makes
    tensors of a list with one record. ``compile`` compiles forward and backward pass, where ``notes`` says so. With
    ``units``, ids or the column that holds them, all rows with one id are one record, of which at most
    ``rows_per_unit`` are used (docs/units.md); the plan then counts units.
    """

    @together
    def __init__(
        self,
        model: nn.Module,
        data: Data | Records,
        loss: Callable[..., Tensor],
        plan: Plan,
        ledger: str | os.PathLike[str] | Ledger | Callable[[], Ledger],
        *,
        collate_fn: Collate | None = None,
        compile: bool = False,
        units: Any = None,
        rows_per_unit: int = ROWS_PER_UNIT,
        example: Data | Records | None = None,
        **settings: Any,
    ) -> None:
        self.unit = None if units is None else units if isinstance(units, str) else UNNAMED
        self.rows_per_unit = rows_per_unit
        if units is not None:
            data, units = taken_out(data, units, "units")
            units = Units(codes_of(units, self.unit or UNNAMED)[0], rows_per_unit)
        found = data if collate_fn is None else read_data(data, collate_fn)[0]
        if units is not None:
            first = next(model.parameters())
            rows = found if isinstance(found, Records) else Records(found, first.device, first.dtype)
            found = records_by_unit(rows, units, first.device)
            if example is not None and not isinstance(example, Records):
                example = Records(example, first.device, first.dtype, rows.bound)
            example = example_by_unit(example, units, first.device)
        passes = CompiledPasses if compile else None
        super().__init__(
            model, found, loss_by_unit(loss, units), plan, ledger, passes=passes, example=example, **settings
        )

    @together
    def certificate(
        self,
        *,
        delta: float | None = None,
        accountant: str = "pld",
        record: str | None = None,
        notes: Iterable[str] = (),
    ) -> dict[str, Any]:
        """What ``save`` would certify now, as JSON; nothing is kept."""

        def made() -> dict[str, Any]:
            with tempfile.TemporaryDirectory(prefix="adadp-") as place:
                folder = Path(place) / "run"
                self._saved(folder, delta, accountant, record, notes)
                found = RunFolder.open(folder).certificate()
            assert found is not None
            return found

        return self.ranks.from_first("certifying", made)

    @together
    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        delta: float | None = None,
        accountant: str = "pld",
        record: str | None = None,
        notes: Iterable[str] = (),
    ) -> RunFolder:
        """Save the model as it is now with its certificate, in a folder that ``adadp verify`` accepts.

        ``delta`` is that of the guarantee; a plan made by ``plan_for`` knows it, and so does a filter. ``accountant``
        computes epsilon. ``record`` says what one record is ("one patient"), ``notes`` are added to the certificate.
        The table above has what is certified of a run that is cut short. Of several processes, all of which must call
        it, the first saves.
        """
        self.check_alike()
        return self.ranks.from_first("saving", lambda: self._saved(folder, delta, accountant, record, notes))

    def _saved(
        self,
        folder: str | os.PathLike[str],
        delta: float | None,
        accountant: str,
        record: str | None,
        notes: Iterable[str],
    ) -> RunFolder:
        _refuse_watched(self.crossing.mechanism)
        plan, seed = expressed(self.plan), _seed_of(self)
        held = read_ledger(self.ledger.path)
        budget = _held_by(held, plan, self.method, seeded=seed is not None)
        if plan.noise is not None:
            delta = _delta_of(delta, plan, budget)
        spec = loop_spec(
            plan,
            self.method,
            delta=delta,
            accountant=accountant,
            seed=seed,
            exact=self.exact,
            budget=budget,
            unit=self.unit,
            rows_per_unit=None if self.unit is None else self.rows_per_unit,
        )
        place = Path(folder).absolute()
        inside = Path(self.ledger.path) == Path(os.path.realpath(place / "ledger.jsonl"))
        run = RunFolder.create(place, spec.config, beside_ledger=inside)
        if inside:
            self.close()
        else:
            shutil.copyfile(self.ledger.path, run.ledger_path)
        if budget is None:
            _charge_rest(run.ledger_path, plan, self.method)
        ledger = read_ledger(run.ledger_path)
        tensors = {name: value.detach().cpu() for name, value in self.model.state_dict().items()}
        made = make_certificate(
            spec=spec,
            plan=plan,
            ledger=ledger,
            randomness=self.source.describe(),
            model=tensors,
            steps_done=self.step,
            steps_lost=_not_made(plan, ledger, self.step),
            record_unit=record or (None if self.unit is None else record_of(self.unit)),
            notes=[
                *self.notes,
                self._records.bound.describe(),
                *notes,
                *notes_of(spec, plan),
                *_cut(plan, self.step),
                *note_on_processes([self.ranks.size], plan, exact=self.exact),
            ],
            budget=budget,
        )
        run.write_certificate(made)
        run.save_model(tensors, model_metadata(made))
        write_report(run)
        run.give_one_time(ledger.began)
        return run


def loop_spec(
    plan: Plan,
    method: Method,
    *,
    delta: float | None,
    accountant: str,
    seed: int | None,
    exact: bool,
    budget: FixedBudget | None,
    unit: str | None,
    rows_per_unit: int | None,
) -> RunSpec:
    """The run of a loop as a specification. Its configuration follows from these alone: ``verify`` makes it again."""
    noise: dict[str, Any] = {"noise_multiplier": 0.0, "allow_nonprivate": True}
    if budget is not None:
        noise = {"epsilon": budget.epsilon}
    elif plan.noise is not None:
        noise = {"noise_schedule": str(plan.noise)}
    if method.not_private is not None:
        noise["allow_nonprivate"] = True
    assert plan.neighbours is not None
    config = TrainConfig(
        data=OWN_LOOP,
        model="python",
        optimizer="python",
        method=method_text(method),
        delta=delta,
        accountant=accountant,
        seed=seed,
        arithmetic="exact" if exact else None,
        steps=plan.steps,
        batch_size=plan.batch_size if plan.batch_size_schedule is None else None,
        batch_size_schedule=_text(plan.batch_size_schedule),
        clip_rule=clip_rule_text(plan.clip_rule),
        clip_norm_schedule=_text(plan.clip_norm_schedule),
        keep_noise=plan.keep_noise or None,
        sampling=plan.sampling,
        neighbours=plan.neighbours.value,
        unit=unit,
        rows_per_unit=rows_per_unit,
        **noise,
    )
    return RunSpec(
        config=config,
        method=method,
        stages=(),
        noise=parse_noise(config.noise_schedule or "uniform:"),
        clip_rule=plan.clip_rule,
        clip_norm_schedule=plan.clip_norm_schedule,
        batch_size_schedule=plan.batch_size_schedule,
        lr=None,
        accountant=accountant_named(accountant),
    )


def expressed(plan: Plan) -> Plan:
    """``plan`` with every schedule as text can say it: one of a user's own class becomes a table of its steps."""
    return replace(
        plan,
        noise=_expressed(plan.noise, plan),
        batch_size_schedule=_expressed(plan.batch_size_schedule, plan),
        clip_norm_schedule=_expressed(plan.clip_norm_schedule, plan),
    )


def _expressed(schedule: Schedule | None, plan: Plan) -> Schedule | None:
    if schedule is None:
        return None
    with suppress(InputError):
        if parse_schedule(str(schedule)) == schedule:
            return schedule
    if schedule is plan.batch_size_schedule:  # which changes with the epochs alone
        return Piecewise.of([schedule.value_at(epoch) for epoch in range(plan.epochs)])
    values = [schedule.value_of(step, plan.epoch_of(step)) for step in range(plan.steps)]
    changes = [at for at, value in enumerate(values) if at == 0 or value != values[at - 1]]
    if len(changes) == 1:
        return Uniform(values[0])
    return Piecewise(tuple((at, values[at]) for at in changes), tick=1)


def _text(schedule: Schedule | None) -> str | None:
    return None if schedule is None else str(schedule)


def _refuse_watched(mechanism: GaussianMechanism) -> None:
    if type(mechanism) is not GaussianMechanism:
        raise InputError(
            "The releases of this run went through a mechanism that was passed for an audit.",
            why="Whether it adds the noise that was charged is not known.",
            fix="Train without `mechanism` to get a certificate.",
        )


def _seed_of(private: Gradients) -> int | None:
    if not private.source.reproducible:
        return None
    seed = getattr(private.source, "seed", None)
    if not isinstance(seed, int):
        raise InputError(
            "The random numbers of this run can be made again, and not from a seed that a configuration could name.",
            fix="Pass a number as `seed`, or none.",
        )
    return seed


def _held_by(held: LedgerRecord, plan: Plan, method: Method, *, seeded: bool) -> FixedBudget | None:
    """The filter that holds a run whose noise is chosen on the way; None where the plan does, which is checked."""
    if held.seeded is not seeded:
        raise InputError(
            "The ledger of this run does not say whether its noise has a seed, or says otherwise than it has.",
            why="A certificate that claims an epsilon rests on that.",
            fix="Pass a path as the ledger, or Ledger.create(path, budget=..., seeded=False) for a run without a seed.",
        )
    if plan.adaptive:
        return budget_like(held.budget)
    if held.budget != planned_budget(method, plan).describe():
        raise InputError(
            "The ledger of this run was not begun with the plan of these steps.",
            why="Only what was fixed before the first release can be certified: other releases may be in it.",
            fix="Pass a path as the ledger, or Ledger.create(path, budget=PlannedBudget(plan.event()), seeded=False).",
        )
    return None


def _delta_of(delta: float | None, plan: Plan, budget: FixedBudget | None) -> float:
    known = plan.delta if budget is None else budget.delta
    if budget is not None and delta not in (None, budget.delta):
        raise InputError(
            f"`delta` is {delta:g}, and the filter in the ledger is for {budget.delta:g}.",
            fix="Leave `delta` out.",
        )
    delta = known if delta is None else delta
    if delta is None:
        raise InputError(
            "`delta` must be given.",
            why="The guarantee is a pair (epsilon, delta), and this plan was made from its noise alone.",
            fix="Pass a `delta` well below 1/N, for example 1e-5, or make the plan with plan_for.",
        )
    return delta


def _charge_rest(path: Path, plan: Plan, method: Method) -> None:
    """Charge what was planned and not released: the guarantee is that of the whole plan."""
    charged: Mapping[Any, int] = read_ledger(path).charges
    left = {event: count - charged.get(event, 0) for event, count in flatten(plan.event()).items()}
    with Ledger.open(path, budget=planned_budget(method, plan)) as ledger:
        for event, count in left.items():
            if count > 0:
                ledger.charge(event, count)


def _not_made(plan: Plan, ledger: LedgerRecord, done: int) -> int:
    """How many steps were charged and are not in the model."""
    if not plan.adaptive:
        return plan.steps - done
    if plan.timetable.shares_draws:
        return 0
    return max(0, sum(count for event, count in ledger.charges.items() if isinstance(event, AdaptivelyChosen)) - done)


def _cut(plan: Plan, done: int) -> list[str]:
    if plan.adaptive or done == plan.steps:
        return []
    return [
        f"The training loop was saved after {done} of {plan.steps} steps. All of them are charged: when to stop may "
        "have been chosen by what earlier steps released."
    ]
