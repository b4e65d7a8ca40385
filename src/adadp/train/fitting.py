"""``fit``: train a model of your own, on data of your own, from Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from numbers import Real
from typing import Any

from torch import Tensor, nn

from adadp.clipping import ClipRule, Flat
from adadp.config import TrainConfig, leaves_start_open
from adadp.errors import InputError
from adadp.features import extract, extract_both, fixed_first, parse_features
from adadp.losses import Loss
from adadp.methods import Method, parse_method
from adadp.records import Data
from adadp.schedules import Schedule, tabulated
from adadp.train.evaluation import Evaluate, Evaluation, refuse_training_records
from adadp.train.optimizers import MakeOptimizer
from adadp.train.result import TrainResult
from adadp.train.run import Watch
from adadp.train.session import tensors_of_data, train

DEFAULT_RATE = 0.1

OverEpochs = str | Schedule | Callable[[int], float]
"""A number over the epochs: a schedule, its text, or a function of the epoch, counted from 0."""


def fit(
    model: nn.Module,
    data: Data,
    *,
    epsilon: float | None = None,
    rho: float | None = None,
    sigma: float | None = None,
    noise_schedule: OverEpochs | None = None,
    delta: float | None = None,
    method: str | Method = "adadp",
    epochs: int | str | None = None,
    steps: int | None = None,
    lot_size: int | OverEpochs,
    features: str | None = None,
    clip: float | str | ClipRule = 1.0,
    clip_schedule: OverEpochs | None = None,
    keep_noise: bool | None = None,
    lr: float | OverEpochs | None = None,
    optimizer: str | MakeOptimizer = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    ema: float | None = None,
    loss: str | Loss = "cross-entropy",
    test: tuple[Tensor, Tensor] | None = None,
    evaluate: Evaluate | Evaluation | None = None,
    validation: tuple[Tensor, Tensor] | int | None = None,
    validation_public: bool | None = None,
    sampling: str = "poisson",
    neighbours: str | None = None,
    accountant: str = "pld",
    public_records: int | None = None,
    seed: int | None = None,
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
    """Train ``model`` privately on ``data``, within (``epsilon``, ``delta``) or ``rho``, or with given noise ``sigma``.

    ``data`` is a tuple of tensors such as (features, labels), or a map-style Dataset. ``loss`` is a name or a function
    ``loss(model, *batch)`` that returns one number per record. ``lot_size`` has no default: with ``sigma``, and for how
    well a model learns, it matters more than any other number. ``clip`` is the l2 bound of one record's gradient or a
    clip rule. ``features`` is what happens to the first tensor of
    ``data`` (and of ``test``) before the model sees it, such as ``scatter`` or ``pca:dim=60,sigma=16``.

    ``noise_schedule``, ``clip_schedule``, ``lr`` and ``lot_size`` may change over the epochs: a schedule, its text like
    ``exp:k=0.1``, or any function of the epoch, which is asked once for each of ``epochs`` epochs. The noise is scaled
    so that the run lands on its budget; docs/schedules.md has all that can be left open. ``clip_schedule`` is relative
    to ``clip``; with ``keep_noise`` the noise does not follow the bound. For a noise schedule ``validation:...`` there
    is ``validation``: public records to look at, or how many of ``data`` to keep aside, which are private unless
    ``validation_public``.

    ``method`` is how a lot becomes a gradient: ``adadp`` (with options, ``adadp:power=0.5``), ``dpsgd``, or another one
    of ``adadp.methods``. One that is not private runs only with ``allow_nonprivate``, and its certificate says so.

    ``optimizer`` is sgd, adam, adamw, adambc, rms, or a function that makes any other from the list of trained
    parameters; such an optimizer keeps its own learning rate unless ``lr`` is given. With ``ema``, such as 0.99, the
    model that is judged, certified and returned has an exponential average of the weights. ``seed`` None is secure
    randomness.
    ``public_records`` is used in place of ``len(data)`` where the exact number must stay hidden. ``evaluate(model)``
    returns a number from public data, which is shown under the name of the function; with ``Evaluation(function,
    "AUC", 0, 1)`` in its place under a name and with a range of its own. Only what ``test`` gives is an accuracy; it is
    refused if many of its records are training records.

    With ``out`` the run is kept in a folder, and ``resume=True`` goes on with the one that is there, given the same
    data, model and arguments; with ``tensorboard`` too, what is logged in the folder is also written for TensorBoard.
    """
    make = None if isinstance(optimizer, str) else optimizer
    if make is not None and weight_decay:
        raise InputError(
            "weight_decay is given together with an optimizer of your own.",
            why="It would be ignored.",
            fix="Give it to the optimizer you make.",
        )
    rule = None if isinstance(clip, Real) else str(clip)
    clips = _over_epochs("clip_schedule", clip_schedule, epochs)[1]
    if isinstance(clip, Real) and clips is not None and not leaves_start_open("clip_schedule", clips):
        rule = str(Flat(float(clip)))  # a schedule with numbers of its own is a factor beside a rule
    own = parse_method(str(method)).defaults
    usual = own.lr if own.lr is not None and own.optimizer == optimizer else DEFAULT_RATE
    rate, rate_schedule = _over_epochs("lr", usual if lr is None and make is None else lr, epochs)
    lot, lot_schedule = _over_epochs("lot_size", lot_size, epochs)
    kept = validation if isinstance(validation, int) else None
    config = TrainConfig(
        data="python",
        features=features,
        model="python",
        method=str(method),
        epsilon=epsilon,
        rho=rho,
        sigma=sigma,
        noise_schedule=_over_epochs("noise_schedule", noise_schedule, epochs)[1],
        delta=delta,
        epochs=epochs,
        steps=steps,
        lot=lot,
        lot_schedule=lot_schedule,
        clip=None if rule else clip,  # type: ignore[arg-type]  # a number: a rule is text here
        clip_schedule=clips,
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
        chunk_size=chunk_size,
        device=device,
        validation=kept,
        validation_public=validation_public,
        records=public_records,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        tensorboard=tensorboard,
        searched=searched,
        allow_nonprivate=allow_nonprivate,
    )
    fixed, released = fixed_first(parse_features(features))
    looked_at = None if isinstance(validation, int) else validation
    refuse_training_records(data, test)
    refuse_training_records(data, looked_at, "validation")
    if fixed:
        data, test = extract_both(fixed, tensors_of_data(data), test, device=device)
        if looked_at is not None:
            looked_at = (extract(fixed, looked_at[0], part="validation", device=device), looked_at[1])
    return train(
        model,
        data,
        config,
        loss=loss,
        optimizer=make,
        test=test,
        validation=looked_at,
        evaluate=evaluate,
        out=out,
        resume=resume,
        stages=released,
        watch=watch,
    )


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
