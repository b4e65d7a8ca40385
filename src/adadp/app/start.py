"""A run started or resumed by its configuration: its data loaded, its features made, its network built."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adadp import checks
from adadp.app.config import TrainConfig
from adadp.app.features import Progress, Shape, Stage, extract, extract_both, fixed_first
from adadp.app.hub_models import PREFIX, HubModel
from adadp.app.inputs import Inputs, load_inputs
from adadp.app.language import NextToken, bits_on, next_value_loss
from adadp.app.owndata import is_own
from adadp.app.resolve import fitted, public_records, resolve, training_records
from adadp.app.runs import RunFolder
from adadp.app.spec import RunSpec
from adadp.app.train import (
    Status,
    TrainResult,
    check_board,
    refuse_finished,
    refuse_large_delta,
    refuse_training_records,
    train,
)
from adadp.app.train.counting import check_run
from adadp.app.train.evaluation import Asked
from adadp.app.train.planning import plan_of
from adadp.app.zoo.models import build_model
from adadp.errors import InputError
from adadp.ranks import joined, together
from adadp.records import Stored, in_memory
from adadp.registry import installed_only


@together
def start(
    config: TrainConfig,
    out: str | os.PathLike[str] | None = None,
    *,
    watch: Callable[[Status], None] | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train what ``config`` describes; with ``out``, in a folder of its own."""
    check_board(config, out)
    spec = resolve(config)
    if spec.config.budget is not None and public_records(config) is not None:
        check_run(spec, plan_of(spec, training_records(spec.config)))  # before any data is read
    records = _in_turn(spec, progress)
    return run_on(records, fitted(spec, config, records.inputs.size), out, watch=watch)


@together
def resume(
    out: str | os.PathLike[str],
    *,
    moved: bool = False,
    trust_code: bool = False,
    watch: Callable[[Status], None] | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Go on with the run in the folder ``out``; ``moved`` as in ``adadp.app.runs.anchor``.

    Code that the folder names, ``module:Name``, is imported only with ``trust_code``.
    """
    with installed_only(trust_code=trust_code):
        spec = resolve(joined().from_first("opening the folder", lambda: _configured(out)))
        return run_on(_in_turn(spec, progress), spec, out, resume=True, moved=moved, watch=watch)


def _configured(out: str | os.PathLike[str]) -> TrainConfig:
    """The configuration of a run that can go on."""
    folder = RunFolder.open(out)
    refuse_finished(folder)
    return folder.config


@dataclass(frozen=True, eq=False)
class Prepared:
    """The records a configuration names, with the features that are known before the data in place of their values."""

    inputs: Inputs
    train: tuple[Tensor | Stored, ...]
    test: tuple[Tensor, Tensor] | None
    validation: tuple[Tensor, Tensor] | None
    released: tuple[Stage, ...]
    """The stages that are still to come: the first of them is released from the training records."""
    shape: Shape
    """The shape of a record when all stages are done."""


def _in_turn(spec: RunSpec, progress: Progress | None) -> Prepared:
    """What ``prepared`` returns; of several processes the first is done before the others begin, who find in the caches
    what it has downloaded and computed.
    """
    ranks = joined()
    if ranks.first:
        found = prepared(spec, progress)
        ranks.meet("loading data")
        return found
    ranks.meet("loading data")
    return prepared(spec, progress)


def prepared(spec: RunSpec, progress: Progress | None = None) -> Prepared:
    """Load the records that ``spec`` names and make their features."""
    config = spec.config
    if config.threads is not None:
        torch.set_num_threads(checks.count("threads", config.threads))
    own = is_own(config.data)
    inputs = load_inputs(config, own=own)
    if own:
        refuse_large_delta(config, inputs.size)
        refuse_training_records(inputs.train, inputs.test)
        refuse_training_records(inputs.train, inputs.validation, "validation")
    return featured(spec, inputs, progress)


def featured(spec: RunSpec, inputs: Inputs, progress: Progress | None = None) -> Prepared:
    """Make the features that ``spec`` names of records that are at hand."""
    config = spec.config
    shape = inputs.shape
    for stage in spec.stages:
        shape = stage.output_shape(shape)
    fixed, released = fixed_first(spec.stages)
    shown = progress if config.records is None else None  # it tells how many records there are
    alone = config.arithmetic == "exact"
    before: Any = in_memory(inputs.train) if spec.stages else inputs.train  # a stage reads all records
    data, test = extract_both(
        fixed, before, inputs.test, key=inputs.key, device=config.device, progress=shown, alone=alone
    )
    validation = inputs.validation
    if validation is not None:
        validation = (extract(fixed, validation[0], part="validation", device=config.device), validation[1])
    return Prepared(inputs, data, test, validation, released, shape)


def run_on(
    records: Prepared,
    spec: RunSpec,
    out: str | os.PathLike[str] | None,
    *,
    resume: bool = False,
    moved: bool = False,
    anchored: bool = True,
    watch: Callable[[Status], None] | None = None,
) -> TrainResult:
    """Train ``spec`` on records that are at hand. One that is not ``anchored`` leaves nothing outside of its folder."""
    config = spec.config
    assert config.model is not None
    inputs = records.inputs
    model = build_model(
        config.model,
        input_shape=records.shape,
        classes=inputs.outputs,
        seed=_initial_seed(config),
        numbers=bool(inputs.targets),
    )
    speaks = model.unit if isinstance(model, NextToken) else None
    test = None if records.test is None or speaks is None else bits_on(records.test[0], speaks)
    return train(
        model,
        records.train if speaks is None else records.train[:1],
        spec,
        loss=_loss_of(config, inputs) if speaks is None else next_value_loss,
        test=records.test if speaks is None else None,
        evaluate=test,
        validation=records.validation,
        out=out,
        resume=resume,
        moved=moved,
        anchored=anchored,
        record_unit=inputs.record,
        notes=[*inputs.notes, *_public_weights(config.model)],
        encoder=inputs.encoder,
        units=inputs.units,
        input_shape=inputs.shape,
        watch=watch,
        asked=Asked(inputs.class_names, groups=inputs.groups, targets=inputs.targets),
    )


def _loss_of(config: TrainConfig, inputs: Inputs) -> str:
    """The loss that is asked for, if it is one for the targets of the data; or the usual one for them."""
    of_counts = any(target.count for target in inputs.targets)
    of_numbers = ("poisson",) if of_counts else ("mse", "mae", "huber")
    known: tuple[str, ...] = of_numbers if inputs.targets else ("cross-entropy",)
    if of_counts and not all(target.count for target in inputs.targets):
        raise InputError(
            "Some of the targets are numbers and some are counts.",
            why="One loss is for all of them.",
            fix='Declare counts as kind = "number", or train two models.',
        )
    if config.loss is not None and config.loss.partition(":")[0] not in known:
        what = "counts" if of_counts else "numbers" if inputs.targets else "classes"
        raise InputError(
            f"`loss` is {config.loss}, and the targets are {what}.", fix=f"Use {' or '.join(known)}, or leave it out."
        )
    return known[0] if config.loss is None else config.loss


def _public_weights(model: str) -> list[str]:
    """What the certificate says about where a public model that is trained on came from."""
    return [f"Training began from these: {HubModel.of(model).model.describe()}"] if model.startswith(PREFIX) else []


def _initial_seed(config: TrainConfig) -> int:
    """Where the weights start is public either way: from the seed, or from fresh entropy."""
    return config.seed if config.seed is not None else int.from_bytes(os.urandom(6), "little")
