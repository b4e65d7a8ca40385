"""``fit``: train a model of your own, on data of your own, from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from inspect import signature
from numbers import Real
from typing import Any

from torch import Tensor, nn

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
from adadp.app.losses import Loss
from adadp.app.optimizers.building import MakeOptimizer
from adadp.app.schedules import tabulated
from adadp.app.settings import refuse_unknown, settings_of
from adadp.app.spec import RunSpec
from adadp.app.texts.clip_rules import clip_rule_text
from adadp.app.texts.methods import method_text, parse_method
from adadp.app.train.evaluation import Evaluate, Evaluation, check_pair, refuse_training_records
from adadp.app.train.planning import with_release_noise
from adadp.app.train.result import TrainResult
from adadp.app.train.run import Watch
from adadp.app.train.session import tensors_of_data, train
from adadp.clipping import ClipRule, Flat
from adadp.errors import InputError
from adadp.input_bound import InputBound
from adadp.methods import Method
from adadp.records import Data
from adadp.schedules import Schedule

DEFAULT_RATE = 0.1

OverEpochs = str | Schedule | Callable[[int], float]
"""A number over the epochs: a schedule, its text, or a function of the epoch, counted from 0."""


_COMMAND_LINE_ONLY = {
    *("data", "model", "clip_rule", "batch_size_schedule", "lr_schedule"),  # other arguments take these, as objects
    *("target", "schema", "test_data", "validation_data"),  # about files
    "threads",  # of the process, which is the caller's
}


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
    loss: str | Loss = "cross-entropy",
    example: Data | None = None,
    test: tuple[Tensor, Tensor] | None = None,
    evaluate: Evaluate | Evaluation | None = None,
    validation: tuple[Tensor, Tensor] | int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    **settings: Any,
) -> TrainResult:
    """Train ``model`` privately on ``data``, within (``epsilon``, ``delta``) or ``rho``, or with ``noise_multiplier``.

    ``settings`` are those of ``adadp train`` by their names: ``epsilon=2, delta=1e-5, epochs=5``. docs/training.md has
    the table. An argument that would be ignored is refused.

    ``data``        a tuple of tensors such as (features, labels), or a map-style Dataset
    ``batch_size``  expected records per step, without a default: it matters more than any other number
    ``method``      how a batch becomes a gradient: its text, such as ``adadp:power=0.5``, or a ``Method``
    ``features``    what happens to the first tensor of ``data`` (and of ``test``) before the model sees it: the text of
                    stages, or stages. Where noise is needed and none is given, it is a share of ``epsilon``
    ``clip_norm``   the l2 bound of one record's gradient, or a clip rule
    ``optimizer``   a name, or a function that makes one from the list of trained parameters; it keeps its own learning
                    rate unless ``lr`` is given
    ``loss``        a name, or a function ``loss(model, *batch)`` that returns one number per record
    ``example``     two or more public records in the form of ``data`` to look the model over with, where it does not
                    take probe records
    ``test``        public (features, labels) for an accuracy; refused if many of them are training records
    ``evaluate``    a function of the model that returns a number from public data, or an ``Evaluation`` with a name
    ``validation``  for a noise schedule that follows looks: public (features, labels), or how many of ``data`` to keep
                    aside, which are private unless ``validation_public``
    ``out``         folder to keep the run in; ``resume=True`` goes on with the run that is there, given the same data,
                    model and arguments
    ``watch``       a function that is called with the status of the run

    ``noise_schedule``, ``clip_norm_schedule``, ``lr`` and ``batch_size`` may change over the epochs: a schedule, its
    text like ``exp:k=0.1``, or any function of the epoch, which is asked once for each of ``epochs`` epochs.

    Every floating-point number of a record is brought into ``input_bound``, B for [-B, B] or (low, high), before the
    model sees it, and NaN becomes the middle of it: in training, on ``test``, and in the ``model`` of the result, which
    takes records as they are in ``data``; its ``network`` is ``model``.
    """
    refuse_unknown(settings, [*signature(fit).parameters, *SETTINGS])
    make = None if isinstance(optimizer, str) else optimizer
    _check_objects(make=make, evaluate=evaluate, watch=watch, out=out, resume=resume)
    given, epochs = settings.get, settings.get("epochs")
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
    kept = validation if isinstance(validation, int) else None
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
        **settings,
    )
    if any(stage.noise_multiplier is None for stage in released_stages(stages)):
        stages = with_release_noise(stages, config)
        config = config.replace(features=features_text(stages))
    spec = RunSpec.of(config, method=asked, stages=stages, rule=clip_norm if isinstance(clip_norm, ClipRule) else None)
    fixed, _ = fixed_first(stages)
    bound = raw_bound(stages, config.input_bound)
    looked_at = None if isinstance(validation, int) else validation
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
        test=test,
        validation=looked_at,
        evaluate=evaluate,
        out=out,
        resume=resume,
        notes=[bound.describe()] if isinstance(bound, InputBound) else [],
        example=example,
        input_shape=shape,
        watch=watch,
    )


SETTINGS = [name for name in settings_of(TrainConfig) if name not in {*_COMMAND_LINE_ONLY, *signature(fit).parameters}]
"""The settings that ``fit`` takes as they are."""


def _stages(features: str | Stage | Sequence[Stage] | None) -> tuple[Stage, ...]:
    if isinstance(features, (str, type(None))):
        return parse_features(features)
    stages = (features,) if isinstance(features, Stage) else features
    if not isinstance(stages, (list, tuple)) or not all(isinstance(each, Stage) for each in stages):
        raise InputError(f"features is {features!r}.", fix="Pass stages, or their text like pca:dim=60.")
    return tuple(stages)


def _check_objects(*, make: object, evaluate: object, watch: object, out: object, resume: object) -> None:
    """What is no setting but an object: found now, not when it is used."""
    functions = {
        "optimizer": (
            make,
            "a name, or a function that makes one: lambda parameters: torch.optim.SGD(parameters, 0.1)",
        ),
        "evaluate": (evaluate, "a function of the model that returns a number"),
        "watch": (watch, "a function of the status of the run"),
    }
    for name, (value, wanted) in functions.items():
        if value is not None and not callable(value):
            raise InputError(f"{name} is {value!r}, which cannot be called.", fix=f"Pass {wanted}.")
    if out is not None and not isinstance(out, (str, os.PathLike)):
        raise InputError(f"out is {out!r}, which is no path.", fix="Pass the folder for the run, or leave it out.")
    if not isinstance(resume, bool):
        raise InputError(f"resume must be true or false, got {resume!r}.", fix="Pass it as a bool; the folder is out.")


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
