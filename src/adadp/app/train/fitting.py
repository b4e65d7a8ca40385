"""``fit``: train a model of your own, on data of your own, from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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


def fit(
    model: nn.Module,
    data: Data,
    *,
    epsilon: float | None = None,
    rho: float | None = None,
    noise_multiplier: float | None = None,
    noise_schedule: OverEpochs | None = None,
    delta: float | None = None,
    method: str | Method = "adadp",
    epochs: int | str | None = None,
    steps: int | None = None,
    batch_size: int | OverEpochs,
    input_bound: float | tuple[float, float] | None = None,
    features: str | Stage | Sequence[Stage] | None = None,
    clip_norm: float | str | ClipRule = 1.0,
    clip_norm_schedule: OverEpochs | None = None,
    keep_noise: bool | None = None,
    lr: float | OverEpochs | None = None,
    optimizer: str | MakeOptimizer = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    ema: float | None = None,
    loss: str | Loss = "cross-entropy",
    example: Data | None = None,
    test: tuple[Tensor, Tensor] | None = None,
    evaluate: Evaluate | Evaluation | None = None,
    validation: tuple[Tensor, Tensor] | int | None = None,
    validation_public: bool | None = None,
    sampling: str = "poisson",
    neighbours: str | None = None,
    accountant: str = "pld",
    public_records: int | None = None,
    seed: int | None = None,
    arithmetic: str = "fast",
    chunk_size: int | str = "auto",
    device: str = "cpu",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
    tensorboard: bool | None = None,
    searched: int = 0,
    allow_nonprivate: bool = False,
    watch: Watch | None = None,
) -> TrainResult:
    """Train ``model`` privately on ``data``, within (``epsilon``, ``delta``) or ``rho``, or with ``noise_multiplier``.

    ``data`` is a tuple of tensors such as (features, labels), or a map-style Dataset. ``loss`` is a name or a function
    ``loss(model, *batch)`` that returns one number per record. ``batch_size`` has no default: with
    ``noise_multiplier``, and for how well a model learns, it matters more than any other number. ``clip_norm`` is the
    l2 bound of one record's gradient or a clip rule. ``features`` is what happens to the first tensor of ``data`` (and
    of ``test``) before the model sees it, such as ``scatter`` or ``pca:dim=60,noise_multiplier=16``; where its
    noise_multiplier is left out, its noise is a share of ``epsilon``. The ``model`` of the result takes records as they
    are in ``data``, and its ``network`` is ``model``.

    Every floating-point number of a record is brought into ``input_bound``, B for [-B, B] or (low, high), before the
    model sees it, and NaN becomes the middle of it: in training, on ``test``, and in the ``model`` of the result. It is
    public: choose it from what the numbers mean. Without one it is [-1e6, 1e6]. Labels, the last part of ``data``, are
    brought into [-1e6, 1e6] in any case.

    Before it sees a record of ``data``, the model is looked over with probe records. ``example`` are two or more
    public records to take instead, in the form of ``data``, for models that only take sensible ones.

    ``noise_schedule``, ``clip_norm_schedule``, ``lr`` and ``batch_size`` may change over the epochs: a schedule, its
    text like ``exp:k=0.1``, or any function of the epoch, which is asked once for each of ``epochs`` epochs. The noise
    is scaled so that the run lands on its budget; docs/schedules.md has all that can be left open.
    ``clip_norm_schedule`` is relative to ``clip_norm``; with ``keep_noise`` the noise does not follow the bound. For a
    noise schedule ``validation:...`` there is ``validation``: public records to look at, or how many of ``data`` to
    keep aside, which are private unless ``validation_public``.

    ``method`` is how a batch becomes a gradient: ``adadp`` (with options, ``adadp:power=0.5``), ``dpsgd``, or another
    one of ``adadp.methods``. One that is not private runs only with ``allow_nonprivate``, and its certificate says so.

    ``optimizer`` is sgd, adam, adamw, adambc, rms, or a function that makes any other from the list of trained
    parameters; such an optimizer keeps its own learning rate unless ``lr`` is given. With ``ema``, such as 0.99, the
    model that is judged, certified and returned has an exponential average of the weights. ``seed`` None is secure
    randomness.
    ``arithmetic`` exact computes every record by itself and adds whole numbers: what one record can change is then
    proved, rounding included, and a step takes many times as long (docs/arithmetic.md).
    ``public_records`` is used in place of ``len(data)`` where the exact number must stay hidden. ``evaluate(model)``
    returns a number from public data, which is shown under the name of the function; with ``Evaluation(function,
    "AUC", 0, 1)`` in its place under a name and with a range of its own. Only what ``test`` gives is an accuracy; it is
    refused if many of its records are training records.

    With ``out`` the run is kept in a folder, and ``resume=True`` goes on with the one that is there, given the same
    data, model and arguments; with ``tensorboard`` too, what is logged in the folder is also written for TensorBoard.
    """
    make = None if isinstance(optimizer, str) else optimizer
    _check_objects(make=make, evaluate=evaluate, watch=watch, out=out, resume=resume)
    _refuse_ignored("evaluate_every", evaluate_every, "nothing is evaluated", "test or evaluate", test, evaluate)
    if example is not None and features is not None:
        raise InputError(
            "example is given together with features.",
            why="The model sees features, and any number is a sensible one.",
            fix="Leave example out.",
        )
    _refuse_ignored("checkpoint_every", checkpoint_every, "nothing is saved", "out", out)
    if make is not None and weight_decay:
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
        input_bound=input_bound,  # type: ignore[arg-type]  # kept as text
        features=features if features is None or isinstance(features, str) else features_text(stages),
        model="python",
        method=method_text(asked),
        epsilon=epsilon,
        rho=rho,
        noise_multiplier=noise_multiplier,
        noise_schedule=_schedule("noise_schedule", noise_schedule, epochs, plain="noise_multiplier"),
        delta=delta,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size if batch_size is None else checks.count("batch_size", batch_size),
        batch_size_schedule=batch_size_schedule,
        clip_norm=None if rule else clip_norm,  # type: ignore[arg-type]  # a number: a rule is text here
        clip_norm_schedule=clips,
        keep_noise=keep_noise,
        clip_rule=rule or "flat",
        lr=rate,
        lr_schedule=rate_schedule,
        optimizer=optimizer if isinstance(optimizer, str) else "python",
        momentum=momentum,
        weight_decay=weight_decay,
        ema=ema,
        sampling=sampling,
        neighbours=neighbours,
        accountant=accountant,
        seed=seed,
        arithmetic=arithmetic,
        chunk_size=chunk_size,
        device=device,
        validation=kept,
        validation_public=validation_public,
        records=public_records if public_records is None else checks.count("public_records", public_records),
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        tensorboard=tensorboard,
        searched=searched,
        allow_nonprivate=allow_nonprivate,
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
        data = (extract(fixed, bound(values), part="train", device=device, alone=alone), *others)
        for name, each in (("test", test), ("validation", looked_at)):
            if each is not None:
                check_pair(each, name)
        test, looked_at = (
            None if each is None else (extract(fixed, bound(each[0]), part="test", device=device), each[1])
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
