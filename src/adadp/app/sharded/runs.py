"""Runs of a model that is split over processes: what they cannot do, and where their checkpoints lie.

A checkpoint has two parts. Every process writes the rows that it has, of parameters and of the optimizer's state, to a
folder of its own (``rows.py``). The small file that every run has is written last and names that folder: until then the
earlier checkpoint counts.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import nn

from adadp.app.schedules import ValidationDecay
from adadp.app.spec import RunSpec
from adadp.errors import InputError
from adadp.sharding import divide

_FOLDER = "shards-"
"""What the names of such folders begin with."""
_REFUSED = ("features", "ema", "validation", "holdout", "compile", "tensorboard")
"""Settings that were not made to work with a split model."""


def refuse_settings(model: nn.Module, spec: RunSpec) -> None:
    """Refuse what a run of a split model cannot do, before there is a folder."""
    if not divide(model):
        return
    looks = ("noise_schedule",) if isinstance(spec.noise, ValidationDecay) else ()
    for name in (*_REFUSED, *looks):
        if getattr(spec.config, name) not in (None, False):
            raise InputError(
                f"`{name}` is given, and the model is split over processes.",
                why="It takes the model in one place, or passes of one process alone.",
                fix=f"Leave `{name}` out (of a noise schedule: that it follows validation), or pass the plain module.",
            )


def next_folder(run: Path) -> Path:
    """A new folder for the rows of a checkpoint of ``run``."""
    used = [int(each.name[len(_FOLDER) :]) for each in _folders(run)]
    return run / f"{_FOLDER}{max(used, default=0) + 1}"


def remove_folders(run: Path, but: str | None = None) -> None:
    """Remove all of these folders, or all but one."""
    for each in _folders(run):
        if each.name != but:
            shutil.rmtree(each)


def _folders(run: Path) -> list[Path]:
    return [each for each in run.glob(f"{_FOLDER}*") if each.name[len(_FOLDER) :].isdecimal()]
