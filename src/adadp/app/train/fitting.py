"""``fit``: train a model of your own, on data of your own, from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from numbers import Real
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from adadp import checks
from adadp.app.config import TrainConfig, leaves_start_open
from adadp.app.features import (
    Stage,
    extract,
    features_text,
    fixed_first,
    parse_features,
    raw_bound,
    released_stages,
)
from adadp.app.figures import Groups
from adadp.app.losses import Loss
from adadp.app.optimizers.building import MakeOptimizer
from adadp.app.optimizers.scheduling import MakeScheduler
from adadp.app.schedules import tabulated
from adadp.app.settings import refuse_unknown, settings_of
from adadp.app.sources import Collate, read_data
from adadp.app.spec import RunSpec
from adadp.app.texts.clip_rules import clip_rule_text
from adadp.app.texts.methods import method_text, parse_method
from adadp.app.train.evaluation import Asked, Evaluate, Evaluation, check_pair, labelled, refuse_training_records
from adadp.app.train.planning import holdout_noise, with_release_noise
from adadp.app.train.result import TrainResult
from adadp.app.train.run import Watch
from adadp.app.train.session import tensors_of_data, train
from adadp.app.units import (
    NOT_COMPARED,
    ROWS_PER_UNIT,
    UNNAMED,
    Units,
    codes_of,
    has_column,
    record_of,
    refuse_shared,
    taken_out,
)
from adadp.clipping import ClipRule, Flat
from adadp.errors import InputError
from adadp.input_bound import InputBound
from adadp.methods import Method
from adadp.ranks import together
from adadp.records import Data, in_memory
from adadp.schedules import Schedule

DEFAULT_RATE = 0.1

OverEpochs = str | Schedule | Callable[[int], float]
"""A number over the epochs: a schedule, its text, or a function of the epoch, counted from 0."""


_COMMAND_LINE_ONLY = {
    *("data", "model", "clip_rule", "batch_size_schedule", "lr_schedule"),  # other arguments take these, as objects
    *("target", "schema", "test_data", "validation_data", "unit"),  # about files; `units` is the last one here
    "threads",  # of the process, which is the caller's
}


@together
def fit(
    model: nn.Module,
    data: Data,
    *,
    batch_size: int | OverEpochs,
    method: str | Method = "adadp",
    features: str | Stage | Sequence[Stage] | None = None,
    clip_norm: float | str | ClipRule = 1.0,
    clip_norm_schedule: OverEpochs | None = None,
    noise_schedule: OverEpochs | None = None,
    lr: float | OverEpochs | None = None,
    optimizer: str | MakeOptimizer = "sgd",
    scheduler: LRScheduler | MakeScheduler | None = None,
    loss: str | Loss = "cross-entropy",
    collate_fn: Collate | None = None,
    example: Data | None = None,
    units: Any = None,
    test: Data | None = None,
    test_units: Any = None,
    groups: Sequence[object] | None = None,
    evaluate: Evaluate | Evaluation | None = None,
    validation: tuple[Tensor, Tensor] | int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    moved: bool = False,
    watch: Watch | None = None,
    **settings: Any,
) -> TrainResult:
    """Train ``model`` privately on ``data``, within (``epsilon``, ``delta``) or ``rho``, or with ``noise_multiplier``.

    ``settings`` are those of ``adadp train`` by their names: ``epsilon=2, delta=1e-5, epochs=5``. docs/training.md has
    the table. An argument that would be ignored is refused.

    ``data``        (features, labels) as tensors, arrays or frames, a map-style Dataset, a Hugging Face or Arrow
                    data set, a DataLoader (for its data set), or ``Padded`` for records of unequal length
    ``batch_size``  expected records per step, without a default: it matters more than any other number
    ``method``      how a batch becomes a gradient: its text, such as ``adadp:power=0.5``, or a ``Method``
    ``features``    what happens to the first tensor of ``data`` (and of ``test``) before the model sees it: the text of
                    stages, or stages. Where noise is needed and none is given, it is a share of ``epsilon``
    ``clip_norm``   the l2 bound of one record's gradient, or a clip rule
    ``optimizer``   a name, an optimizer of the model's trained parameters, or a function that makes one from their
                    list; it keeps its own learning rate unless ``lr`` is given
    ``scheduler``   a function of the optimizer and the number of steps that makes a scheduler of torch, or one made
                    for ``optimizer``; it is stepped after every private step, not after every epoch
    ``loss``        a name, or a function ``loss(model, *batch)`` that returns one number per record
    ``collate_fn``  makes tensors of a list with one record: it sees each record alone
    ``example``     two or more public records in the form of ``data`` to look the model over with, where it does not
                    take probe records
    ``units``       ids, one for each row, or the column of ``data`` that holds them: all rows with one id are
                    protected together, as one record (docs/units.md)
    ``test``        public (features, labels), or what ``data`` may be, for the figures of the result (docs/figures.md);
                    refused if many of them are training records
    ``test_units``  the ids of the rows of ``test``, to refuse units that are trained on; those in the column ``units``
                    of ``test`` are found
    ``groups``      a value for each record of ``test``, such as a hospital: the figures are told for each of them too
    ``evaluate``    a function of the model that returns a number from public data, or an ``Evaluation`` with a name
    ``validation``  for a noise schedule that follows looks: public (features, labels), or how many of ``data`` to keep
                    aside, which are private unless ``validation_public``
    ``holdout``     (a setting) a share of ``data``, such as "10%", that is never trained on: the figures of the result
                    on it are released once, in the end, with noise; of numbers within ``target_range``
    ``out``         folder to keep the run in; ``resume=True`` goes on with the run that is there, given the same data,
                    model and arguments; ``moved=True`` if it ran on another machine, and no other copy of it went on
    ``watch``       a function that is called with the status of the run

    ``noise_schedule``, ``clip_norm_schedule``, ``lr`` and ``batch_size`` may change over the epochs: a schedule, its
    text like ``exp:k=0.1``, or any function of the epoch, which is asked once for each of ``epochs`` epochs.

    Every floating-point number of a record is brought into ``input_bound``, B for [-B, B] or (low, high), before the
    model sees it, and NaN becomes the middle of it: in training, on ``test``, and in the ``model`` of the result, which
    takes records as they are in ``data``; its ``network`` is ``model``.
    """
    refuse_unknown(settings, [*signature(fit).parameters, *SETTINGS])
    make = None if isinstance(optimizer, str) else optimizer
    _check_objects(
        make=make, collate_fn=collate_fn, evaluate=evaluate, watch=watch, out=out, resume=resume, moved=moved
    )
    given, epochs = settings.get, settings.get("epochs")
    _check_scheduler(scheduler, lr, make, given("lr_schedule"))
    data, found_units, test, unit_notes = _with_units(data, units, test, test_units, given("rows_per_unit"))
    data, data_notes = read_data(data, collate_fn)
    example = None if example is None else read_data(example, collate_fn)[0]
    test = _public_pair(test, collate_fn)
    kept, looked_at = _validation(validation, collate_fn)
    _refuse_ignored(
        "evaluate_every", given("evaluate_every"), "nothing is evaluated", "test or evaluate", test, evaluate
    )
    if example is not None and features is not None:
        raise InputError(
            "example is given together with features.",
            why="The model sees features, and any number is a sensible one.",
            fix="Leave example out.",
        )
    _refuse_ignored("checkpoint_every", given("checkpoint_every"), "nothing is saved", "out", out)
    if make is not None and given("weight_decay"):
        raise InputError(
            "weight_decay is given together with an optimizer of your own.",
            why="It would be ignored.",
            fix="Give it to the optimizer you make.",
        )
    rule = clip_rule_text(clip_norm) if isinstance(clip_norm, ClipRule) else None
    if rule is None and not isinstance(clip_norm, Real):
        rule = str(clip_norm)
    if not isinstance(method, (str, Method)):
        raise InputError(f"method is {method!r}, which is no method.", fix="Pass its name, or an adadp.Method.")
    asked = parse_method(method) if isinstance(method, str) else method
    stages = _stages(features)
    clips = _schedule("clip_norm_schedule", clip_norm_schedule, epochs, plain="clip_norm")
    if isinstance(clip_norm, Real) and clips is not None and not leaves_start_open("clip_norm_schedule", clips):
        rule = str(Flat(float(clip_norm)))  # a schedule with numbers of its own is a factor beside a rule
    own = asked.defaults
    usual = own.lr if own.lr is not None and own.optimizer == optimizer else DEFAULT_RATE
    rate, rate_schedule = _over_epochs("lr", usual if lr is None and make is None else lr, epochs)
    batch_size, batch_size_schedule = _over_epochs("batch_size", batch_size, epochs)
    config = TrainConfig(
        data="python",
        features=features if features is None or isinstance(features, str) else features_text(stages),
        model="python",
        method=method_text(asked),
        noise_schedule=_schedule("noise_schedule", noise_schedule, epochs, plain="noise_multiplier"),
        batch_size=batch_size if batch_size is None else checks.count("batch_size", batch_size),
        batch_size_schedule=batch_size_schedule,
        clip_norm=None if rule else clip_norm,  # type: ignore[arg-type]  # a number: a rule is text here
        clip_norm_schedule=clips,
        clip_rule=rule or "flat",
        lr=rate,
        lr_schedule=rate_schedule,
        optimizer=optimizer if isinstance(optimizer, str) else "python",
        validation=kept,
        unit=None if units is None else units if isinstance(units, str) else UNNAMED,
        **(settings if found_units is None else {**settings, "rows_per_unit": found_units.rows_per_unit}),
    )
    config = config.replace(holdout_noise=holdout_noise(config)) if config.holdout is not None else config
    if any(stage.noise_multiplier is None for stage in released_stages(stages)):
        stages = with_release_noise(stages, config)
        config = config.replace(features=features_text(stages))
    spec = RunSpec.of(config, method=asked, stages=stages, rule=clip_norm if isinstance(clip_norm, ClipRule) else None)
    fixed, _ = fixed_first(stages)
    bound = raw_bound(stages, config.input_bound)
    refuse_training_records(data, test)
    refuse_training_records(data, looked_at, "validation")
    shape = None
    if stages:
        values, *others = tensors_of_data(data)
        shape = tuple(values.shape[1:])
        alone = config.arithmetic == "exact"
        data = (extract(fixed, bound(values), part="train", device=config.device, alone=alone), *others)
        for name, each in (("test", test), ("validation", looked_at)):
            if each is not None:
                check_pair(each, name)
        test, looked_at = (
            None if each is None else (extract(fixed, bound(each[0]), part="test", device=config.device), each[1])
            for each in (test, looked_at)
        )
    return train(
        model,
        data,
        spec,
        loss=loss,
        optimizer=make,
        scheduler=scheduler,
        test=test,
        validation=looked_at,
        evaluate=evaluate,
        out=out,
        resume=resume,
        moved=moved,
        notes=[*data_notes, *unit_notes, *([bound.describe()] if isinstance(bound, InputBound) else [])],
        example=example,
        units=found_units,
        record_unit=None if config.unit is None else record_of(config.unit),
        input_shape=shape,
        watch=watch,
        asked=Asked(groups=_groups(groups)),
    )


SETTINGS = [name for name in settings_of(TrainConfig) if name not in {*_COMMAND_LINE_ONLY, *signature(fit).parameters}]
"""The settings that ``fit`` takes as they are."""


def _with_units(
    data: Any, units: Any, test: Any, test_units: Any, rows_per_unit: int | None
) -> tuple[Any, Units | None, Any, tuple[str, ...]]:
    """``data`` and ``test`` without their column of ids, the unit of each row, and notes."""
    _refuse_ignored("test_units", test_units, "no unit is protected", "units", units)
    _refuse_ignored("test_units", test_units, "there is no test data", "test", test)
    if units is None:
        return data, None, test, ()
    name = units if isinstance(units, str) else UNNAMED
    data, ids = taken_out(data, units, "units")
    codes, known = codes_of(ids, name)
    if test is not None and test_units is None and isinstance(units, str) and has_column(test, units):
        test_units = units
    if test_units is not None:
        test, test_units = taken_out(test, test_units, "test_units")
        test_codes, test_ids = codes_of(test_units, name)
        column = test[-1] if isinstance(test, tuple) else test
        if len(test_codes) != len(next(iter(column.values())) if isinstance(column, Mapping) else column):
            raise InputError(
                "`test_units` does not hold one id for each row of `test`.",
                why="Units that are trained on and measured could not be found.",
                fix="Pass as many ids as there are rows, in their order.",
            )
        refuse_shared(known, test_ids, name)
    notes = (NOT_COMPARED,) if test is not None and test_units is None else ()
    return data, Units(codes, ROWS_PER_UNIT if rows_per_unit is None else rows_per_unit), test, notes


def _groups(groups: Sequence[object] | None) -> Groups | None:
    if groups is not None and (isinstance(groups, str) or not hasattr(groups, "__len__") or not len(groups)):
        raise InputError(f"groups is {groups!r}.", fix="Pass a value for each record of test.")
    return None if groups is None else Groups.of("group", list(groups))


def _stages(features: str | Stage | Sequence[Stage] | None) -> tuple[Stage, ...]:
    if isinstance(features, (str, type(None))):
        return parse_features(features)
    stages = (features,) if isinstance(features, Stage) else features
    if not isinstance(stages, (list, tuple)) or not all(isinstance(each, Stage) for each in stages):
        raise InputError(f"features is {features!r}.", fix="Pass stages, or their text like pca:dim=60.")
    return tuple(stages)


def _public_pair(data: Data | None, collate_fn: Collate | None) -> Any:
    """Public records as inputs and labels; what is no pair of them is refused later, by its name."""
    if data is None:
        return None
    data = in_memory(read_data(data, collate_fn)[0])
    return data if isinstance(data, (Tensor, tuple, list)) else labelled(data)


def _validation(validation: Any, collate_fn: Collate | None) -> tuple[int | None, Any]:
    """How many records to keep aside, or public ones."""
    return (validation, None) if isinstance(validation, int) else (None, _public_pair(validation, collate_fn))


def _check_scheduler(scheduler: object, lr: object, make: object, schedule: object) -> None:
    if scheduler is None:
        return
    if not callable(scheduler) and not isinstance(scheduler, LRScheduler):
        raise InputError(
            f"scheduler is {scheduler!r}, which cannot be called.",
            fix="Pass a function lambda optimizer, steps: ... that makes one of torch.optim.lr_scheduler.",
        )
    if schedule is not None or (lr is not None and (make is not None or not isinstance(lr, Real))):
        raise InputError(
            "A scheduler is given together with a rate that it would overwrite.",
            why="One of them would be ignored.",
            fix="Leave lr out, or give the scheduler's first rate to the optimizer; a named optimizer takes a number.",
        )


def _check_objects(
    *, make: object, collate_fn: object, evaluate: object, watch: object, out: object, resume: object, moved: object
) -> None:
    """What is no setting but an object: found now, not when it is used."""
    functions = {
        "optimizer": (
            make,
            "a name, an optimizer, or a function that makes one: lambda parameters: torch.optim.SGD(parameters, 0.1)",
        ),
        "collate_fn": (collate_fn, "a function from a list with one record to tensors"),
        "evaluate": (evaluate, "a function of the model that returns a number"),
        "watch": (watch, "a function of the status of the run"),
    }
    for name, (value, wanted) in functions.items():
        if value is not None and not callable(value) and not isinstance(value, Optimizer):
            raise InputError(f"{name} is {value!r}, which cannot be called.", fix=f"Pass {wanted}.")
    if out is not None and not isinstance(out, (str, os.PathLike)):
        raise InputError(f"out is {out!r}, which is no path.", fix="Pass the folder for the run, or leave it out.")
    if not isinstance(resume, bool):
        raise InputError(f"resume must be true or false, got {resume!r}.", fix="Pass it as a bool; the folder is out.")
    if not isinstance(moved, bool) or (moved and not resume):
        raise InputError(
            f"moved is {moved!r}, and resume is {resume!r}.",
            why="It says of a run that goes on that it ran on another machine.",
            fix="Leave moved out, or pass resume=True and moved=True.",
        )


def _refuse_ignored(name: str, value: object, lacking: str, needed: str, *given: object) -> None:
    if value is not None and all(each is None for each in given):
        raise InputError(
            f"{name} is given, and {lacking}.",
            why="It would be ignored.",
            fix=f"Pass {needed}, or leave it out.",
        )


def _schedule(name: str, value: OverEpochs | None, epochs: int | str | None, *, plain: str) -> str | None:
    """A schedule as its text; a number is the setting ``plain``, and no schedule."""
    if isinstance(value, Real):
        raise InputError(
            f"{name} is {value!r}, a number.",
            why=f"It says how {plain} changes over the epochs.",
            fix=f"Pass {plain}={value!r} for a constant, or a schedule: its text like exp:k=0.1, or a function of the "
            "epoch.",
        )
    return _over_epochs(name, value, epochs)[1]


def _over_epochs(name: str, value: float | OverEpochs | None, epochs: int | str | None) -> tuple[Any, str | None]:
    """A number as it is; a schedule, or a function of the epoch, as the text that says it."""
    if value is None or isinstance(value, Real):
        return value, None
    if isinstance(value, (str, Schedule)):
        return None, str(value)
    if not callable(value):
        raise InputError(f"{name} is {value!r}.", fix="Pass a schedule, its text, or a function of the epoch.")
    if not isinstance(epochs, int):
        raise InputError(
            f"{name} is a function of the epoch, and the number of epochs is not given.",
            why="It is asked for every epoch ahead, so that what was planned is what happens.",
            fix="Pass epochs.",
        )
    return None, str(tabulated(value, epochs))
