"""``fit``: train a model of your own, on data of your own, from Python."""

from __future__ import annotations

import os
from numbers import Real
from typing import Any

from torch import Tensor, nn

from adadp.clipping import ClipRule
from adadp.config import TrainConfig
from adadp.errors import InputError
from adadp.features import extract_both, fixed_first, parse_features
from adadp.losses import Loss
from adadp.methods import Method
from adadp.records import Data
from adadp.schedules import Schedule
from adadp.train.evaluation import Evaluate
from adadp.train.optimizers import MakeOptimizer
from adadp.train.result import TrainResult
from adadp.train.run import Watch
from adadp.train.session import tensors_of_data, train

DEFAULT_RATE = 0.1


def fit(
    model: nn.Module,
    data: Data,
    *,
    epsilon: float | None = None,
    sigma: float | None = None,
    delta: float | None = None,
    method: str | Method = "adadp",
    epochs: int | None = None,
    steps: int | None = None,
    lot_size: int,
    features: str | None = None,
    clip: float | str | ClipRule = 1.0,
    lr: float | str | Schedule | None = None,
    optimizer: str | MakeOptimizer = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    loss: str | Loss = "cross-entropy",
    test: tuple[Tensor, Tensor] | None = None,
    evaluate: Evaluate | None = None,
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
    searched: int = 0,
    allow_nonprivate: bool = False,
    watch: Watch | None = None,
) -> TrainResult:
    """Train ``model`` privately on ``data``, within (``epsilon``, ``delta``) or with a given noise ``sigma``.

    ``data`` is a tuple of tensors such as (features, labels), or a map-style Dataset. ``loss`` is a name or a function
    ``loss(model, *batch)`` that returns one number per record. ``lot_size`` has no default: with ``sigma``, and for how
    well a model learns, it matters more than any other number. ``clip`` is the l2 bound of one record's gradient or a
    clip rule; ``lr`` a number or a schedule over the epochs. ``features`` is what happens to the first tensor of
    ``data`` (and of ``test``) before the model sees it, such as ``scatter`` or ``pca:dim=60,sigma=16``.

    ``method`` is how a lot becomes a gradient: ``adadp`` (with options, ``adadp:power=0.5``), ``dpsgd``, or another one
    of ``adadp.methods``. One that is not private runs only with ``allow_nonprivate``, and its certificate says so.

    ``optimizer`` is sgd, adam, adamw, rms, or a function that makes any other from the list of trained parameters; such
    an optimizer keeps its own learning rate unless ``lr`` is given. ``seed`` None is secure randomness.
    ``public_records`` is used in place of ``len(data)`` where the exact number must stay hidden. ``evaluate(model)``
    returns a number from public data. With ``out`` the run is kept in a folder, and ``resume=True`` goes on with the
    one that is there, given the same data, model and arguments.
    """
    make = None if isinstance(optimizer, str) else optimizer
    if make is not None and weight_decay:
        raise InputError(
            "weight_decay is given together with an optimizer of your own.",
            why="It would be ignored.",
            fix="Give it to the optimizer you make.",
        )
    bound, rule = _number_or_text(clip)
    rate, schedule = _number_or_text(DEFAULT_RATE if lr is None and make is None else lr)
    config = TrainConfig(
        data="python",
        features=features,
        model="python",
        method=str(method),
        epsilon=epsilon,
        sigma=sigma,
        delta=delta,
        epochs=epochs,
        steps=steps,
        lot=lot_size,
        clip=bound,
        clip_rule=rule or "flat",
        lr=rate,
        lr_schedule=schedule,
        optimizer=optimizer if isinstance(optimizer, str) else "python",
        momentum=momentum,
        weight_decay=weight_decay,
        sampling=sampling,
        neighbours=neighbours,
        accountant=accountant,
        seed=seed,
        chunk_size=chunk_size,
        device=device,
        records=public_records,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        searched=searched,
        allow_nonprivate=allow_nonprivate,
    )
    fixed, released = fixed_first(parse_features(features))
    if fixed:
        data, test = extract_both(fixed, tensors_of_data(data), test, device=device)
    return train(
        model,
        data,
        config,
        loss=loss,
        optimizer=make,
        test=test,
        evaluate=evaluate,
        out=out,
        resume=resume,
        stages=released,
        watch=watch,
    )


def _number_or_text(value: float | str | ClipRule | Schedule | None) -> tuple[Any, str | None]:
    """A number as it is, anything else as the text that says it."""
    if value is None or isinstance(value, Real):
        return value, None
    return None, str(value)
