"""The loop: one private step after the other, looks, checkpoints, and what is written in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adadp.accounting import Status as Proof
from adadp.app.accounting import Filter
from adadp.app.optimizers.building import check_noise, tell_noise
from adadp.app.optimizers.scheduling import Scheduled
from adadp.app.report.certificate import make_certificate
from adadp.app.report.html import write_report
from adadp.app.runs import Checkpoint, Evaluated, RunFolder, coarse_seconds
from adadp.app.sharded.runs import next_folder, remove_folders
from adadp.app.spec import RunSpec
from adadp.app.texts.schedules import parse_schedule
from adadp.app.train import checkpoints
from adadp.app.train.averaging import WeightAverage
from adadp.app.train.checkpoints import Paid
from adadp.app.train.evaluation import (
    Confusion,
    Evaluation,
    LabelledRecords,
    NumberRecords,
    share_right,
)
from adadp.app.train.holdout import Holdout, note_on
from adadp.app.train.planning import measured_notes, note_on_processes, notes_of
from adadp.app.train.rehearsal import refuse_broken, rehearse
from adadp.app.train.result import Status, TrainResult
from adadp.app.train.stopping import stop_requests
from adadp.app.train.tensorboard import Board
from adadp.app.train.validation_noise import Looks
from adadp.certificate.make import model_metadata
from adadp.errors import AdaDPError, BudgetExceeded, Interrupted
from adadp.events import Event
from adadp.ledger import read_ledger
from adadp.ledger.reader import whole
from adadp.plan import Plan
from adadp.step import PrivateGradients

Watch = Callable[[Status], None]
Measure = LabelledRecords | NumberRecords | Evaluation
"""How a run looks at its model."""


class Run:
    """One run in this process: everything that changes while it goes on."""

    def __init__(
        self,
        private: PrivateGradients,
        optimizer: torch.optim.Optimizer,
        spec: RunSpec,
        *,
        folder: RunFolder | None,
        evaluate: Measure | None,
        watch: Watch | None,
        looks: Looks | None = None,
        budget: Filter | None = None,
        scheduled: Scheduled | None = None,
        holdout: Holdout | None = None,
    ) -> None:
        """``looks`` and ``budget`` belong to noise that is chosen on the way: who chooses it, and what it may spend."""
        check_noise(optimizer, private)
        rehearse(private, optimizer, spec.lr, None if scheduled is None else scheduled.peak)
        self.scheduled = scheduled
        self.private, self.optimizer, self.spec = private, optimizer, spec
        self.config = config = spec.config
        self.model = private.model
        self.average = None if config.ema is None else WeightAverage(self.model, config.ema)
        self.looks, self.budget, self.holdout = looks, budget, holdout
        self.held_out: dict[str, Any] | None = None
        """What was released of records that were kept aside."""
        self.board: Board | None = None
        self.folder, self.evaluate, self.watch = folder, evaluate, watch
        self.rate = spec.lr
        self.private_method = spec.method.not_private is None
        self.paid = Paid(self.plan, {}, 0)
        self.lost = 0
        """Steps that were paid and are not in the model."""
        self.accuracy: float | None = None
        self.evaluation: Evaluated | None = None
        self.figures: dict[str, Any] | None = None
        self.validation_accuracy: float | None = None
        self.every = config.checkpoint_every or max(1, self.plan.steps // 10)
        self._before, self._started = 0.0, time.perf_counter()
        self._clean, self._whole = False, True
        self.ranks = private.ranks
        self.split = private.split
        """Whether every process has a part of the model."""
        self.processes = [self.ranks.size]
        """How many processes computed the run, one number after another where it was resumed with others."""

    @property
    def plan(self) -> Plan:
        """The plan; of noise that is chosen on the way, as far as it is known."""
        return self.private.plan

    @property
    def held(self) -> Tensor | None:
        """Which records are kept aside. Sensitive."""
        if self.holdout is not None:
            return self.holdout.held
        return None if self.looks is None else self.looks.held

    @property
    def elapsed(self) -> float:
        """Seconds spent on the run, in this process and in earlier ones up to the checkpoint."""
        return self._before + time.perf_counter() - self._started

    def begin(self) -> None:
        """Save the run before anything is charged, so that whatever happens later there is something to go on from."""
        self.checkpoint(clean=False)

    def resume(self) -> None:
        """Take up the last checkpoint; see ``checkpoints`` for what happens to the steps after it."""
        folder, private = self.folder, self.private
        found = self.ranks.from_first("loading the checkpoint", self._checkpoint_found)
        if found is None:
            self.begin()
            return
        looks, others = self.looks, list[Event]()
        if looks is not None:
            looks.restore(**found.state["looks"], private=private)
            charge = looks.charge(private)
            others = [] if charge is None else [charge] * len(looks.values)
        elif self.plan.adaptive:
            private.plan = self.plan.with_noise(parse_schedule(found.state["noise"]))
        paid = Paid(self.plan, private.ledger.charges, found.step, others)
        checkpoints.restore(found, private, None if self.split else self.optimizer, self.average, self.scheduled)
        if self.split:
            run = self.ranks.from_first("finding the run", lambda: None if folder is None else folder.path)
            rows = found.state["rows"]
            from adadp.app.sharded.rows import load_rows  # noqa: PLC0415 - here and below: most runs do without

            load_rows(run / rows["folder"], self.model, self.optimizer, rows["optimizer"], self.ranks)
        if folder is not None:
            folder.rewind_metrics(found.step)
        earlier = found.state.get("processes", [1])
        self.processes = [*earlier, *(self.processes if earlier[-1] != self.ranks.size else [])]
        self._before, self.lost, self._clean = (found.state[name] for name in ("elapsed", "lost", "clean"))
        if private.source.reproducible:
            self.paid = paid
            return
        next_step = paid.after(self.plan, found.step, clean=found.state["clean"])
        if next_step > found.step:
            self.lost += next_step - found.step
            private.restore(private.state() | {"step": next_step, "batches": {}}, nothing_since=True)
            if looks is not None and next_step < self.plan.steps:
                looks.skip_to(private)

    def _checkpoint_found(self) -> Checkpoint | None:
        assert self.folder is not None
        return checkpoints.load(self.folder, self.private.ledger)

    def loop(self) -> None:
        """Go on to the end of the plan, or until somebody asks to stop (``Interrupted``)."""
        self._started = time.perf_counter()
        private, steps = self.private, self.plan.steps
        with stop_requests() as stop:
            if self._clean and private.step < steps:
                self.checkpoint(clean=False)
            spent = not self.look()  # one that failed is made up for
            stopping = self.ranks.any("asking for stops", stop.is_set())
            while private.step < steps and not stopping and not spent:
                try:
                    spent = not self.step()
                    if spent:
                        break
                    spent = not self.look()
                    self.tell()
                    if spent:
                        break
                except Exception:
                    if self._whole and not self.split:  # nothing came out that is not in the model: worth keeping
                        with suppress(AdaDPError):
                            self._save(clean=True)  # without asking the other processes, which may have ended
                    raise
                if private.step % self.every == 0 and private.step < steps:
                    self.checkpoint(clean=False)
                stopping = self.ranks.any("asking for stops", stop.is_set())
            self.checkpoint(clean=True)
            if stopping and private.step < steps and not spent:
                raise self.stopped()

    def step(self) -> bool:
        """One release, and one step of the optimizer. False: the budget is spent, as a filter may find on the way."""
        private, plan, step = self.private, self.plan, self.private.step
        self.refuse_broken()
        if self.rate is not None and self.scheduled is None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate.value_of(step, plan.epoch_of(step))
        try:
            private.release(paid=self.paid.take(plan.charge_at(step)))
        except BudgetExceeded:
            return False
        finally:
            self._whole = private.step == step  # else something came out, though it be half of what was to
        tell_noise(self.optimizer, private)
        self.optimizer.step()
        if self.scheduled is not None:
            self.scheduled.scheduler.step()
        if self.average is not None:
            self.average.update()
        self._whole = True
        return True

    def refuse_broken(self) -> None:
        """Stop a run whose parameters are no longer finite: it could only spend."""
        done = self.private.step
        ledger = "The ledger of the run" if self.folder is None else str(self.folder.ledger_path)
        refuse_broken(
            self.model,
            f"after {done} of {self.plan.steps} steps",
            f"{ledger} holds what was spent, and it stays spent."
            if self.private.ledger.charges
            else "Nothing was spent.",
        )

    def look(self) -> bool:
        """The end of an epoch, where the noise of the next one is chosen. False: the budget is spent by the look."""
        plan, step = self.plan, self.private.step
        if self.looks is None or step == plan.steps or not self.looks.is_due(self.private):
            return True
        try:
            with self.judged():
                self.validation_accuracy = self.looks.epoch_is_over(self.private, self.paid.take)
        except BudgetExceeded:
            return False
        return True

    def judged(self) -> AbstractContextManager[None]:
        """Meanwhile the model has the weights it is judged by: their average, if there is one."""
        return nullcontext() if self.average is None else self.average.looked_at()

    def tell(self) -> None:
        """What is logged and shown after a step."""
        private, plan = self.private, self.plan
        ends = plan.ends_epoch(private.step)
        measured = self.measured() if ends and (self.ranks.first or self.split) else {}
        if not self.ranks.first:
            return
        if ends:
            self.log(measured)
        if self.watch is not None:
            shown = self.epsilon_so_far if self.private_method else _no_epsilon
            rehearsal = self.config.seed is not None
            self.watch(Status(private.step, plan.steps, self.accuracy, self.evaluation, shown, rehearsal))

    def stopped(self) -> Interrupted:
        """What is said to who asked to stop."""
        what = f"Stopped after {self.private.step} of {self.plan.steps} steps."
        if self.folder is None:
            why = "The run has no folder, so it cannot be resumed."
            return Interrupted(what, why=why, fix="Give it a folder to keep its work (`out`).")
        again = "Call fit again with resume=True."
        if self.config.data != "python":
            again = f"Go on with: adadp train --resume {self.folder.path}"
        return Interrupted(f"{what} Everything is saved in {self.folder.path}.", fix=again)

    def measured(self) -> dict[str, Any]:
        """What the test data shows at the end of an epoch, if a look is due. A split model needs all processes."""
        step, every = self.private.step, self.config.evaluate_every
        due = every is not None and (self.plan.epoch_of(step - 1) + 1) % every == 0
        if self.evaluate is None or not due or step >= self.plan.steps:
            return {}
        with self.judged():
            return self.looked()[0]

    def log(self, measured: Mapping[str, Any]) -> None:
        """The public figures at the end of an epoch."""
        if self.folder is None and self.board is None and self.config.evaluate_every is None:
            return  # nobody would see them, and epsilon takes a while to compute
        step = self.private.step
        epoch = self.plan.epoch_of(step - 1) + 1
        record: dict[str, Any] = {"step": step, "epoch": epoch}
        proved = self.private_method and self.spec.accountant.status is Proof.PROVED
        stated = "epsilon" if self.config.seed is None else "epsilon_if_unseeded"
        record[stated if proved else "claimed_epsilon"] = self.epsilon_so_far()
        if self.budget is not None:
            record |= {"budget_used": self.budget.used, "noise_multiplier": self.plan.noise_multiplier_at(step - 1)}
            if self.validation_accuracy is not None:
                record["validation_accuracy"] = self.validation_accuracy
        self.keep({**record, **measured})

    def keep(self, record: dict[str, Any]) -> None:
        """Log ``record``, and show it where the run is shown; without a folder nothing."""
        if self.folder is not None:
            self.folder.log(record)
        if self.board is not None:
            self.board.show(record, self.plan)

    def show_on(self, board: Board | None) -> None:
        """Show on ``board``, if there is one, what has been logged, and from now on what is logged."""
        self.board = board
        if board is not None and self.folder is not None:
            for record in self.folder.metrics():
                board.show(record, self.plan)

    def epsilon_so_far(self) -> float | None:
        """What the ledger amounts to now, or the whole budget of a filter; None without noise.

        Charges for steps that a resumed run has yet to repeat are left out: it logs what it would have logged at once.
        """
        if self.budget is not None:
            return self.budget.epsilon
        if self.plan.noise is None or self.config.delta is None:
            return None
        done = whole(self.paid.taken_off(self.private.ledger.charges))
        return None if done is None else self.spec.accountant.epsilon(done, self.config.delta).epsilon

    def checkpoint(self, *, clean: bool) -> None:
        """Save everything; without a folder nothing. It is that of all processes, which must have the same then."""
        self.private.check_alike()
        rows = self._save_rows() if self.split else None
        self.ranks.from_first("saving a checkpoint", lambda: self._save(clean=clean, rows=rows))

    def _save_rows(self) -> dict[str, Any] | None:
        """Save the parts of a split model that each process has; None without a folder."""
        folder = self.ranks.from_first(
            "naming a checkpoint", lambda: None if self.folder is None else next_folder(self.folder.path)
        )
        if folder is None:
            return None
        from adadp.app.sharded.rows import save_rows  # noqa: PLC0415

        return {"folder": folder.name, "optimizer": save_rows(folder, self.model, self.optimizer, self.ranks)}

    def _save(self, *, clean: bool, rows: dict[str, Any] | None = None) -> None:
        if self.folder is not None:
            checkpoints.save(
                self.folder,
                self.private,
                self.optimizer,
                clean=clean,
                elapsed=self.elapsed,
                lost=self.lost,
                processes=self.processes,
                looks=self.looks,
                held=self.held,
                average=self.average,
                scheduled=self.scheduled,
                rows=rows,
            )
            if rows is not None:
                remove_folders(self.folder.path, but=rows["folder"])

    def finish(
        self,
        record_unit: str | None,
        notes: Iterable[str] = (),
        learned: Mapping[str, Tensor] | None = None,
        encoder: Mapping[str, Any] | None = None,
        data_budget: Mapping[str, Any] | None = None,
        *,
        attack: Callable[[], dict[str, Any]] | None = None,
    ) -> TrainResult:
        """Measure, certify and save. A kill on the way leaves a checkpoint from which all of it is done again.

        ``attack`` returns what is kept of canaries.
        """
        seconds = coarse_seconds(self.elapsed)
        self.refuse_broken()
        if self.average is not None:
            self.average.put_in()
            notes = [*notes, self.average.note]
        if self.scheduled is not None:
            notes = [*notes, self.scheduled.note]
        if self.holdout is not None:
            self.held_out = self.holdout.release(self.private, self.folder)
        canaries = None if attack is None else attack()
        about = note_on_processes(self.processes, self.plan, exact=self.private.exact, split=self.split)
        notes = [*notes, *about, *notes_of(self.spec, self.plan)]
        measured = self.looked() if self.split else None  # which takes all processes
        tensors = self._whole_tensors() if self.split else None
        certificate, confusion, out, self.accuracy, self.evaluation, self.figures = self.ranks.from_first(
            "certifying",
            lambda: self._certified(
                seconds,
                record_unit,
                notes,
                learned,
                encoder,
                data_budget,
                canaries=canaries,
                measured=measured,
                tensors=tensors,
            ),
        )
        self.model.eval()
        return TrainResult(
            self.model,
            self.model,
            certificate,
            self.accuracy,
            seconds,
            self.plan,
            out,
            confusion,
            evaluation=self.evaluation,
            figures=self.figures,
            holdout=None if self.held_out is None else self.held_out["figures"],
        )

    def _whole_tensors(self) -> dict[str, Tensor]:
        from adadp.app.sharded.rows import whole_tensors  # noqa: PLC0415

        return whole_tensors(self.model, self.ranks)

    def _certified(  # noqa: PLR0917
        self,
        seconds: int,
        record_unit: str | None,
        notes: Iterable[str],
        learned: Mapping[str, Tensor] | None,
        encoder: Mapping[str, Any] | None,
        data_budget: Mapping[str, Any] | None,
        *,
        canaries: dict[str, Any] | None,
        measured: tuple[dict[str, Any], Confusion | None] | None,
        tensors: Mapping[str, Tensor] | None,
    ) -> tuple[dict[str, Any], Confusion | None, Path | None, float | None, Evaluated | None, dict[str, Any] | None]:
        """The last measurements and the certificate, when the folder of the run is complete."""
        found, confusion = self.looked() if measured is None else measured
        folder = self.folder
        if folder is not None and not any("final" in record for record in folder.metrics()):
            if confusion is not None:
                folder.write_confusion(_class_names(encoder, len(confusion)), confusion)
            if self.figures is not None:
                folder.write_figures(self.figures)
            self.keep({"step": self.private.step, "final": True, **found, "seconds": seconds})
        if folder is not None and canaries is not None:
            folder.write_canaries(canaries)
        kept = {
            name.replace("_orig_mod.", ""): value.detach().cpu()  # compiled parts go under their own names
            for name, value in (self.model.state_dict() if tensors is None else tensors).items()
        }
        certificate = make_certificate(
            spec=self.spec,
            plan=self.plan,
            ledger=read_ledger(self.private.ledger.path),
            randomness=self.private.source.describe(),
            model=kept,
            steps_done=self.private.step - self.lost,
            steps_lost=self.lost,
            record_unit=record_unit,
            notes=[*self.private.notes, *notes, *measured_notes(self.figures), *note_on(self.held_out)],
            learned=learned,
            encoder=encoder,
            budget=self.budget,
            data_budget=data_budget,
            canaries=canaries,
            measured=None if folder is None else folder.measured_digests(),
        )
        if folder is not None:
            folder.write_certificate(certificate)
            folder.save_model(kept, model_metadata(certificate))
            try:
                write_report(folder)
            finally:  # the run has finished, whatever becomes of its page; one that is killed before goes on from here
                folder.checkpoint_path.unlink(missing_ok=True)
                remove_folders(folder.path)
        out = None if folder is None else folder.path
        return certificate, confusion, out, self.accuracy, self.evaluation, self.figures

    def looked(self) -> tuple[dict[str, Any], Confusion | None]:
        """One look at the test data: what is logged of it, and the confusion matrix if there is one."""
        if self.evaluate is None:
            return {}, None
        if isinstance(self.evaluate, Evaluation):
            self.evaluation = self.evaluate(self.model)
            return {"evaluation": asdict(self.evaluation)}, None
        if isinstance(self.evaluate, NumberRecords):
            self.evaluation, self.figures = self.evaluate.look(self.model)
            return {"evaluation": asdict(self.evaluation)}, None
        confusion, self.figures = self.evaluate.look(self.model)
        self.accuracy = self.evaluate(self.model) if confusion is None else share_right(confusion)
        return {"test_accuracy": self.accuracy}, confusion


def _class_names(encoder: Mapping[str, Any] | None, classes: int) -> list[str]:
    """As the schema of the user's own data calls the classes, or their numbers."""
    known = [] if encoder is None else list(encoder.get("classes", ()))
    return known if len(known) == classes else [str(number) for number in range(classes)]


def _no_epsilon() -> None:
    """What is shown for a method that has none."""
