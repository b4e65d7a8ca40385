"""From a configuration to a trained model: data and network by name, defaults filled in, the run started or resumed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from adadp import zoo
from adadp.config import TrainConfig
from adadp.errors import InputError
from adadp.runs import RunFolder
from adadp.train import Status, TrainResult, train
from adadp.zoo.models import build_model

METHODS = ("dpsgd",)

RECIPES: dict[str, dict[str, float]] = {
    "cancer": {"lot": 56, "epochs": 20, "clip": 1.0, "lr": 0.5},
    "mnist": {"lot": 1200, "epochs": 15, "clip": 1.0, "lr": 1.0},
}
"""Data set -> what is taken where a configuration says nothing."""

_FALLBACK = {"epochs": 20, "clip": 1.0, "lr": 0.5}


def resolved(config: TrainConfig) -> TrainConfig:
    """``config`` with every default filled in; unknown data, models and methods are refused."""
    entry = zoo.find(config.data)
    if config.method not in METHODS:
        raise InputError(f"Unknown method {config.method!r}.", fix=f"Use one of: {', '.join(METHODS)}.")
    recipe = RECIPES.get(config.data, {"lot": max(2, entry.train_records // 50), **_FALLBACK})
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
    whole = resolved(config)
    return _run(whole, None if out is None else RunFolder.create(out, whole), resume=False, watch=watch)


def resume(out: str | os.PathLike[str], *, watch: Callable[[Status], None] | None = None) -> TrainResult:
    """Go on with the run in the folder ``out``."""
    folder = RunFolder.open(out)
    if folder.model_path.exists() and folder.certificate_path.exists() and not folder.checkpoint_path.exists():
        raise InputError(
            f"The run in {Path(out)} has finished.",
            why="Its budget is planned for the steps it took.",
            fix="Begin a new run in another folder, or look at this one with adadp verify.",
        )
    return _run(folder.config, folder, resume=True, watch=watch)


def _run(
    config: TrainConfig, folder: RunFolder | None, *, resume: bool, watch: Callable[[Status], None] | None
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
        folder=folder,
        resume=resume,
        record_unit=data.description.record,
        watch=watch,
    )


def _initial_seed(config: TrainConfig) -> int:
    """Where the weights start is public either way: from the seed, or from fresh entropy."""
    return config.seed if config.seed is not None else int.from_bytes(os.urandom(6), "little")
