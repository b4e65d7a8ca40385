"""``train``: everything is checked, then there is a folder, then there is a ledger, then the run goes on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from adadp.app.compiled_passes import CompiledPasses
from adadp.app.config import TrainConfig
from adadp.app.features import Shape, Stage, WithFeatures, fixed_first, raw_bound, released_stages, whole_module
from adadp.app.losses import (
    Loss,
    check_labels,
    classes_of,
    find_loss,
    in_half_precision,
    inputs_and_labels,
    is_tokens,
    with_classes,
)
from adadp.app.model_checks import check_model
from adadp.app.optimizers.building import MakeOptimizer, make_optimizer
from adadp.app.optimizers.scheduling import MakeScheduler, schedule
from adadp.app.owndata import is_own
from adadp.app.runs import RunFolder
from adadp.app.runs.anchor import Anchor
from adadp.app.schedules import ValidationDecay
from adadp.app.sharded.runs import refuse_settings
from adadp.app.spec import RunSpec
from adadp.app.train.canaries import Canaries
from adadp.app.train.counting import Counted, reserve_run
from adadp.app.train.evaluation import (
    Asked,
    Evaluate,
    Evaluation,
    check_pair,
    named,
)
from adadp.app.train.feature_release import Preparation
from adadp.app.train.measuring import Measured
from adadp.app.train.planning import filter_of, plan_of, planned_budget
from adadp.app.train.rehearsal import refuse_broken
from adadp.app.train.result import TrainResult
from adadp.app.train.run import Run, Watch
from adadp.app.train.stopping import stop_requests
from adadp.app.train.tensorboard import Board, check_board
from adadp.app.train.validation_noise import HELD, HeldOut, hold_out
from adadp.app.units import Units, example_by_unit, loss_by_unit, records_by_unit
from adadp.errors import InputError, LedgerCorrupt
from adadp.gradients.model_checks import plain_model
from adadp.input_bound import InputBound
from adadp.ledger import BudgetRule, Ledger, read_ledger
from adadp.plan import Plan
from adadp.randomness import source_of
from adadp.ranks import Ranks, code_digest, joined, together
from adadp.records import Data, Records, Stored, in_memory
from adadp.sampling import sampler
from adadp.step import DEFAULT_MEMORY, PrivateGradients

_AT_ONCE = 1 << 20
"""Labels on disk that are looked at at once."""


@together
def train(
    model: nn.Module,
    data: Data,
    spec: RunSpec,
    *,
    loss: str | Loss = "cross-entropy",
    optimizer: MakeOptimizer | None = None,
    scheduler: LRScheduler | MakeScheduler | None = None,
    test: tuple[Tensor, Tensor] | None = None,
    validation: tuple[Tensor, Tensor] | None = None,
    evaluate: Evaluate | Evaluation | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    moved: bool = False,
    anchored: bool = True,
    record_unit: str | None = None,
    notes: Iterable[str] = (),
    input_shape: Shape | None = None,
    encoder: Mapping[str, Any] | None = None,
    example: Data | None = None,
    units: Units | None = None,
    watch: Watch | None = None,
    asked: Asked = Asked(),  # noqa: B008  # frozen
) -> TrainResult:
    """Train ``model`` as ``spec`` says, and certify it.

    ``test`` is public data for the accuracy; ``evaluate(model)`` replaces it, and is called once ahead to see that it
    works; its model takes records as that of the result does (before features are released, they are zeros).
    What it returns goes under its own name, that of the function or of an ``Evaluation``.

    With ``out`` everything is kept in that folder and a stopped run can ``resume``. The folder is made when all input
    has been checked; if something fails before the first charge, it is gone again.

    ``data`` and ``test`` have come through the stages of ``spec`` before the first one that is released.
    ``input_shape`` is the shape of a record before all of them, that of ``data`` unless given: the model of the result
    takes such records.
    ``encoder`` says, as JSON, how files become records; it is kept with the run. ``validation`` is public data for the
    looks of a validation schedule, where the configuration does not keep records of ``data`` aside for them.
    ``example`` are public records that the model is looked over with in place of probe records. With ``units`` the rows
    of ``data`` belong to these, and all of a unit's rows together are one record. ``asked`` says what the classes
    or targets are called, and by which groups the figures on ``test`` are told.

    Of several processes (``adadp.ranks``) the first has the folder, measures and shows; all return the same result.
    """
    config, ranks = spec.config, _processes(spec.config, resume)
    check_board(config, out)
    refuse_settings(model, spec)
    folder = _to_resume(out, config, encoder) if resume and ranks.first else None
    device = _device(config.device)
    check_model(model, split=True)
    passed, model = model, plain_model(model).to(device).train()
    dtype = next((value.dtype for value in model.parameters() if value.is_floating_point()), None)
    chosen = find_loss(loss)
    whole = _Whole.of(spec, input_shape, data, device)
    held = _held_out(data, config, folder, ranks, units)
    data, validation, units = (data, validation, units) if held is None else (held.train, held.looked_at, held.units)
    decay = _decay_of(spec, None if config.holdout is not None else validation)
    canaries = Canaries.of(config, data, folder, ranks)
    data, units = canaries.added_to(data, units)
    preparation, data, (test, validation, attacked) = _prepared(spec, data, (test, validation, canaries.all), units)
    whole = replace(whole, preparation=preparation)
    rows = Records(data, device, dtype, None if whole.stages else InputBound.of(config.input_bound))
    records = records_by_unit(rows, units, device)
    public = None if example is None else Records(example, device, dtype, rows.bound)
    classes = classes_of(model, chosen, rows.example(), None if public is None else public.example())
    _check_all_labels(rows, classes, chosen)
    chosen = with_classes(chosen, weights=config.weights, offsets=config.offsets, classes=classes)
    measured = Measured(model, chosen, classes, device, dtype, rows.bound, replace(asked, threshold=config.threshold))
    measure = measured.by(
        test, None if evaluate is None else _of_records(named(evaluate), whole), kept_aside=config.holdout is not None
    )
    holdout = measured.holdout(validation, held, config)
    plan = canaries.checked(plan_of(spec, len(records) - canaries.added if held is None else held.records))
    looks = None if decay is None else measured.looks(decay, validation, config.validation, held)
    refuse_broken(model, "before the first step", "Nothing was spent.")
    made = make_optimizer(model, config, spec.lr, optimizer)
    scheduled = None if scheduler is None else schedule(scheduler, made, plan.steps)
    with ExitStack() as stack:
        budget = filter_of(config, plan) if plan.adaptive else None
        place = _Place(
            folder,
            out,
            spec,
            plan,
            budget=planned_budget(spec.method, plan) if budget is None else budget,
            stack=stack,
            moved=moved,
            anchored=anchored and config.seed is None,
        )
        private = PrivateGradients(
            passed,
            records,
            loss_by_unit(in_half_precision(chosen, device) if config.precision == "bf16" else chosen, units),
            plan,
            place.open_ledger,
            method=spec.method,
            allow_nonprivate=config.allow_nonprivate,
            seed=config.seed,
            arithmetic=config.arithmetic or "fast",
            chunk_size=config.chunk_size,
            memory_limit=DEFAULT_MEMORY if config.memory_limit_mb is None else config.memory_limit_mb << 20,
            example=example_by_unit(public, units, device),
            passes=CompiledPasses if config.compile else None,
        )
        run = Run(
            private,
            made,
            spec,
            folder=place.folder,
            evaluate=measure,
            watch=watch,
            looks=looks,
            budget=budget,
            scheduled=scheduled,
            holdout=holdout,
        )
        place.check_records(rows, units, resume)
        canaries.save(place.folder)
        if resume:
            run.resume()
        else:
            run.begin()
        place.keep(encoder)
        run.show_on(place.board(model))
        _prepare(preparation, run)
        attack = canaries.attack(
            run, chosen, None if attacked is None else Records(attacked, device, dtype, rows.bound)
        )
        run.loop()
        learned = None if preparation is None else preparation.learned
        result = run.finish(
            record_unit, [*notes, *place.stated()], learned, encoder, place.budget_statement(), attack=attack
        )
        return replace(result, model=whole(result.network))


def _prepare(preparation: Preparation | None, run: Run) -> None:
    """Release features, if there are any to release."""
    if preparation is not None:
        with stop_requests() as stop:  # a release that is paid is saved before the run stops
            preparation.run(run.private, run.folder)
        if run.ranks.any("asking for stops", stop.is_set()):
            raise run.stopped()


def _processes(config: TrainConfig, resume: bool) -> Ranks:
    """The processes of the run, which must all begin it, or resume it, with the same configuration."""
    ranks = joined()
    if ranks.several:
        ranks.check_same(
            {"version of AdaDP or of torch": code_digest(), "configuration": f"{config.digest()} {resume}"}
        )
    return ranks


def refuse_finished(folder: RunFolder) -> None:
    """A run that has ended does not go on."""
    if folder.finished:
        raise InputError(
            f"The run in {folder.path} has finished.",
            why="Its budget is planned for the steps it took.",
            fix="Begin a new run in another folder, or look at this one with adadp verify.",
        )


def tensors_of_data(data: Data) -> tuple[Tensor, ...]:
    """The tensors of ``data``, the values of the records first; features cannot be made of anything else.

    What is stored is read into memory.
    """
    data = in_memory(data)
    if isinstance(data, (tuple, list)) and all(isinstance(part, Tensor) for part in data):
        return tuple(data)
    raise InputError(
        "Features need the data as tensors, the records' values first.",
        why="A stage reads all records at once.",
        fix="Pass (values, labels), or leave the features out and transform the data yourself.",
    )


class _Place:
    """Where a run keeps its ledger and everything else: its folder, or a temporary one for the ledger alone."""

    def __init__(
        self,
        folder: RunFolder | None,
        out: str | os.PathLike[str] | None,
        spec: RunSpec,
        plan: Plan,
        *,
        budget: BudgetRule,
        stack: ExitStack,
        moved: bool,
        anchored: bool,
    ) -> None:
        self.folder = folder
        self.anchor: Anchor | None = None
        self._moved, self._anchored = moved, anchored
        self._out, self._spec, self._plan, self._budget, self._stack = out, spec, plan, budget, stack
        self._counted: Counted | None = None
        self._config = spec.config
        self._made = ExitStack()
        stack.callback(self._end)  # what is entered first is left last

    def open_ledger(self) -> Ledger:
        """The ledger to charge; a new run gets its folder here."""
        if self._out is None:
            path = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="adadp-"))) / "ledger.jsonl"
            self._count()
            self._stack.callback(self._settle, path)  # nothing of the run is kept: it is over, whatever happens
            return self._begun(path)
        if self.folder is None:
            there = Path(self._out).exists()
            self._stack.enter_context(self._made)
            self._count()
            self.folder = RunFolder.create(self._out, self._config)
            self._made.callback(_remove, self.folder, whole=not there)
            return self._noted(self._begun(self.folder.ledger_path), self.folder)
        return self._noted(self._ledger_of(self.folder), self.folder)

    def check_records(self, records: Records, units: Units | None, begun: bool) -> None:
        """Refuse other records of the user's own than those the run was ``begun`` with."""
        if self.anchor is not None and (is_own(self._config.data) or self._config.data == "python"):
            self.anchor.check_records(records, None if units is None else units.codes, begun=begun)

    def budget_statement(self) -> dict[str, Any] | None:
        """What the certificate states of the budget that the run is counted in."""
        return None if self._counted is None else self._counted.statement()

    def stated(self) -> list[str]:
        """What the certificate states of where the run went on."""
        return [] if self.anchor is None or self.anchor.moved is None else [self.anchor.moved]

    def board(self, model: nn.Module) -> Board | None:
        """What the run is shown on, if it is to be shown."""
        if self.folder is None or not self._config.tensorboard:
            return None
        return self._stack.enter_context(closing(Board(self.folder, model, self._spec.lr)))

    def keep(self, encoder: Mapping[str, Any] | None) -> None:
        """The run begins: from now on its folder stays, whatever happens, with how files become its records."""
        self._made.pop_all()
        if encoder is not None and self.folder is not None:
            self.folder.write_encoder(encoder)

    def _end(self) -> None:
        """The run has finished: its budget gets back what was not released, and its files tell no times but when it
        began, which its ledger says too.
        """
        if self.folder is not None and self.folder.finished:
            self._settle(self.folder.ledger_path)
            self.folder.give_one_time(read_ledger(self.folder.ledger_path).began)

    def _begun(self, path: Path) -> Ledger:
        seeded, run = self._config.seed is not None, None if self._counted is None else self._counted.run
        return self._stack.enter_context(Ledger.create(path, budget=self._budget, run=run, seeded=seeded))

    def _count(self) -> None:
        """Reserve what the run may release in the budget of the data. A run within a search is counted with that."""
        if self._config.budget is not None and self._anchored:
            self._counted = reserve_run(self._spec, self._plan)
            self._made.callback(self._counted.give_back)

    def _settle(self, ledger: Path) -> None:
        if self._counted is None:
            return
        if ledger.exists():
            self._counted.settle(ledger)
        else:
            self._counted.give_back()

    def _noted(self, ledger: Ledger, folder: RunFolder) -> Ledger:
        """``ledger``, of which this machine takes note, and has taken no note that it lacks."""
        if self._anchored:
            self.anchor = self._stack.enter_context(closing(Anchor.of(ledger, folder.path, moved=self._moved)))
            if not ledger.charges:
                self._made.callback(self.anchor.forget)
            if self._counted is not None:
                self.anchor.note_turns(ledger.run, ledger.run)
            elif self._config.budget is not None:
                self._counted = Counted.resume(self._config, ledger.run, self.anchor, moved=self._moved)
        return ledger

    def _ledger_of(self, folder: RunFolder) -> Ledger:
        if folder.ledger_path.exists():
            ledger = Ledger.open(folder.ledger_path, budget=self._budget)
            try:
                refuse_finished(folder)  # now that nobody else can be finishing it
            except InputError:
                ledger.close()
                raise
            return self._stack.enter_context(ledger)
        if folder.checkpoint_path.exists() or folder.metrics():
            raise LedgerCorrupt(
                f"The ledger of the run in {folder.path} is missing.",
                why="What the run has released is no longer known.",
                fix="Put ledger.jsonl back. Do not go on without it.",
            )
        self._count()
        return self._begun(folder.ledger_path)


def _check_all_labels(records: Records, classes: int | None, loss: Loss) -> None:
    if classes is not None:
        for labels in _labels_by_part(records):
            check_labels(labels, classes, "training", ignored=is_tokens(loss))


def _labels_by_part(records: Records) -> Iterator[Any]:
    """The labels of ``records``; none of a ``Dataset`` and of tables on disk, which would be read as a whole."""
    columns = records.columns
    if columns is None or (len(columns) == 1 and isinstance(columns[0], Stored)):
        return
    labels = inputs_and_labels(columns)[1]
    if not isinstance(labels, Stored):
        yield labels
        return
    for start in range(0, len(labels), _AT_ONCE):
        yield labels.rows(torch.arange(start, min(start + _AT_ONCE, len(labels))))


def _held_out(
    data: Data, config: TrainConfig, folder: RunFolder | None, ranks: Ranks, units: Units | None
) -> HeldOut | None:
    """The records that are kept aside, the same ones as before where the run goes on."""
    if config.validation is None and config.holdout is None:
        return None
    if units is not None and config.validation is not None:
        raise InputError(
            "Rows are kept aside for looks, and all rows of a unit are protected together.",
            why="Some rows of a unit would be trained on and others looked at, and a look at a unit with many rows "
            "would tell more than its noise hides.",
            fix="Leave `validation` out, and pass public records to look at.",
        )
    relation = sampler(config.sampling, 2, 1, config.neighbours).neighbours
    found = None if folder is None else folder.load_checkpoint()
    source = source_of(config.seed)
    before = None if found is None else found.tensors[HELD]
    parts = (
        data if isinstance(data, tuple) and any(isinstance(part, Stored) for part in data) else tensors_of_data(data)
    )
    ranks.check_same({"number of records": str(len(parts[0]))})
    if units is not None:
        units.check_rows(len(parts[0]))
    return hold_out(parts, config, relation, source, before, units=units, ranks=ranks)


def _decay_of(spec: RunSpec, validation: tuple[Tensor, Tensor] | None) -> ValidationDecay | None:
    """The schedule that follows looks, if there is one and something to look at."""
    config, decay = spec.config, spec.decay
    if decay is not None and validation is None:
        raise InputError(
            "The noise follows looks at validation records, and there are none.",
            fix="Say how many training records to keep aside (`validation`), or give public ones "
            "(`validation_data`, or fit(validation=(features, labels))).",
        )
    if decay is None and validation is not None:
        raise InputError(
            "Validation records are given, and the noise does not follow them.",
            fix="Pass `noise_schedule` like validation:s0=10,k=0.7, or leave them out.",
        )
    if decay is not None and config.validation is None:
        check_pair(validation, "validation")
    if decay is not None and decay.look is not None and config.validation is None:
        raise InputError(
            "Public validation records are given together with noise for looks at private ones.",
            why="It would be ignored: a look at public records is free.",
            fix="Leave look out of the noise schedule, or keep private records aside with `validation`.",
        )
    return decay


def _prepared(
    spec: RunSpec,
    data: Data,
    public: Sequence[tuple[Tensor, Tensor] | None],
    units: Units | None,
) -> tuple[Preparation | None, Data, list[tuple[Tensor, Tensor] | None]]:
    """What releases the features; and all records with their features, zeros until then, in place of their values.

    ``public`` are pairs of inputs and labels that the stages are not released from.
    """
    _, stages = fixed_first(spec.stages)
    if not stages:
        return None, data, [*public]
    others = [each for each in public if each is not None]
    values = torch.cat([each[0] for each in others]) if others else None
    columns = tensors_of_data(data)
    if units is not None:
        units.check_rows(len(columns[0]))
    preparation = Preparation(stages, columns[0], values, None if units is None else units.one_row_each())
    data = (preparation.train, *columns[1:])
    if preparation.test is None:
        return preparation, data, [*public]
    parts = iter(torch.split(preparation.test, [len(each[0]) for each in others]))
    return preparation, data, [None if each is None else (next(parts), each[1]) for each in public]


def _remove(folder: RunFolder, *, whole: bool) -> None:
    """Take back a folder in which nothing has been charged."""
    files = (
        *(folder.checkpoint_path, folder.ledger_path, Path(f"{folder.ledger_path}.lock")),
        *(folder.canaries_path, folder.config_path),
    )
    with suppress(OSError):
        for path in files:
            path.unlink(missing_ok=True)
        if whole:
            folder.path.rmdir()


def _to_resume(out: str | os.PathLike[str] | None, config: TrainConfig, encoder: Mapping[str, Any] | None) -> RunFolder:
    if out is None:
        raise InputError("resume=True needs out.", fix="Pass the folder of the run as out.")
    folder = RunFolder.open(out)
    refuse_finished(folder)
    if folder.config != config:
        raise InputError(
            f"The run in {folder.path} has another configuration.",
            why="A resumed run must be the one that was planned and charged.",
            fix="Call fit with the arguments the run was begun with.",
        )
    _check_encoder(folder, encoder)
    return folder


def _check_encoder(folder: RunFolder, encoder: Mapping[str, Any] | None) -> None:
    """The schema lies outside of the folder: it must still say what it said."""
    known = folder.encoder()
    if known is not None and encoder is not None and known != dict(encoder):
        raise InputError(
            f"The schema of the run in {folder.path} has changed since it began.",
            why="The same rows would now be other records.",
            fix="Put the schema back as it was.",
        )


def _device(name: str) -> torch.device:
    try:
        return torch.empty(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"The device {name} cannot be used: {str(error).splitlines()[0]}",
            fix="Use cpu, or install a PyTorch that knows the device.",
        ) from error


@dataclass(frozen=True)
class _Whole:
    """What makes of a network a model that takes records as they come: not in their range, and without features."""

    stages: tuple[Stage, ...]
    shape: Shape
    declared: str | None
    """The range of the numbers of a record."""
    device: torch.device
    preparation: Preparation | None = None

    @classmethod
    def of(cls, spec: RunSpec, shape: Shape | None, data: Data, device: torch.device) -> _Whole:
        """As ``spec`` says it; ``shape`` is that of a record, or that of ``data``."""
        stages = spec.stages
        if stages and shape is None:
            shape = tuple(tensors_of_data(data)[0].shape[1:])
        return cls(stages, shape or (), spec.config.input_bound, device)

    def __call__(self, network: nn.Module) -> nn.Module:
        if not self.stages and self.declared is None:
            return network
        learned = {} if self.preparation is None else self.preparation.learned
        if released_stages(self.stages) and not learned:
            return WithFeatures(nn.Identity(), _Zeros(self.stages, self.shape), network).eval()
        features, _ = whole_module(self.stages, self.shape, learned)
        return WithFeatures(raw_bound(self.stages, self.declared), features.to(self.device), network).eval()


def _of_records(evaluation: Evaluation, whole: _Whole) -> Evaluation:
    """``evaluation`` for the network: what it measures is the model that takes records as they come."""
    measure = evaluation.measure
    return replace(evaluation, measure=lambda network: measure(whole(network)))


class _Zeros(nn.Module):
    """Stands for features that are not released yet."""

    def __init__(self, stages: tuple[Stage, ...], shape: Shape) -> None:
        super().__init__()
        self._shape = shape
        for stage in stages:
            self._shape = stage.output_shape(self._shape)

    def forward(self, values: Tensor) -> Tensor:
        return torch.zeros(len(values), *self._shape, device=values.device)
