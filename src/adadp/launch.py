"""From a configuration to a trained model: data and network by name, defaults filled in, the run started or resumed."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from adadp import zoo
from adadp.config import TrainConfig
from adadp.errors import InputError
from adadp.runs import RunFolder
from adadp.train import Status, TrainResult, refuse_finished, train
from adadp.zoo.models import build_model

METHODS = ("dpsgd",)

RECIPES: dict[str, dict[str, float]] = {
    "cancer": {"lot": 56, "epochs": 20, "clip": 1.0, "lr": 0.5},
    "mnist": {"lot": 2400, "epochs": 40, "clip": 1.0, "lr": 4.0},
}
"""Data set -> what is taken where a configuration says nothing. Every data set of the catalogue has one."""


def resolved(config: TrainConfig) -> TrainConfig:
    """``config`` with every default filled in; unknown data and methods are refused."""
    if "python" in (config.data, config.model, config.optimizer):
        raise InputError(
            "The configuration belongs to a run from Python.",
            why="Its data, model or optimizer are objects, which have no name on the command line.",
            fix="Call adadp.fit with them; resume=True goes on with a run that was stopped.",
        )
    entry = zoo.find(config.data)
    if config.method not in METHODS:
        raise InputError(f"Unknown method {config.method!r}.", fix=f"Use one of: {', '.join(METHODS)}.")
    recipe = RECIPES[config.data]
    filled: dict[str, object] = {}
    if config.model is None:
        filled["model"] = entry.default_model
    if config.epochs is None and config.steps is None:
        filled["epochs"] = int(recipe["epochs"])
    if config.lot is None:
        filled["lot"] = int(recipe["lot"])
    if config.lr is None and config.lr_schedule is None:
        filled["lr"] = recipe["lr"]
    if config.clip is None and ":" not in config.clip_rule:
        filled["clip"] = recipe["clip"]
    return config.replace(**filled)


def start(
    config: TrainConfig, out: str | os.PathLike[str] | None = None, *, watch: Callable[[Status], None] | None = None
) -> TrainResult:
    """Train what ``config`` describes; with ``out``, in a folder of its own."""
    return _run(resolved(config), out, resume=False, watch=watch)


def resume(out: str | os.PathLike[str], *, watch: Callable[[Status], None] | None = None) -> TrainResult:
    """Go on with the run in the folder ``out``."""
    folder = RunFolder.open(out)
    refuse_finished(folder)
    return _run(resolved(folder.config), out, resume=True, watch=watch)


def _run(
    config: TrainConfig,
    out: str | os.PathLike[str] | None,
    *,
    resume: bool,
    watch: Callable[[Status], None] | None,
) -> TrainResult:
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    data = zoo.load(config.data)
    assert config.model is not None
    model = build_model(
        config.model,
        input_shape=tuple(data.train[0].shape[1:]),
        classes=data.classes,
        seed=_initial_seed(config),
    )
    return train(
        model,
        data.train,
        config,
        test=data.test,
        out=out,
        resume=resume,
        record_unit=data.description.record,
        watch=watch,
    )


def _initial_seed(config: TrainConfig) -> int:
    """Where the weights start is public either way: from the seed, or from fresh entropy."""
    return config.seed if config.seed is not None else int.from_bytes(os.urandom(6), "little")
