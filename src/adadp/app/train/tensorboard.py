"""A run on TensorBoard: what it logs, and the settings its plan has at the step it logs them at.

Only lines of ``metrics.jsonl``, the configuration and the plan come here. All of them are public: nothing that is
computed from a batch without noise (a loss, a norm, the size of a batch) could get onto a board. An epoch takes longer
the larger its batches are, so all that one process shows is dated to when it began.

    a run without a folder, or the package missing     ``InputError`` before anything is read or charged
    a run that goes on                                 what was shown is shown again from metrics.jsonl, each step once
    a number that is None, NaN or infinite             is not shown
    a rate that is the optimizer's own                 is not shown
    a clip bound that follows released counts          is not shown: neither metrics nor plan have it
    a disk that is full                                ``RunError``
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from numbers import Real
from typing import Any

from torch import nn

from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.app.runs.atomic import cannot_write
from adadp.clipping import AdaptiveClipRule
from adadp.errors import InputError
from adadp.plan import Plan
from adadp.schedules import Schedule

FOLDER = "tensorboard"
"""Where the event files are, in the folder of a run."""

_EVENTS = "events.out.tfevents.*"
_NOT_SHOWN = ("step", "final")


def check_board(config: TrainConfig, out: str | os.PathLike[str] | None) -> None:
    """Refuse a run that cannot be shown although it should be."""
    if config.tensorboard and out is None:
        raise InputError(
            "`tensorboard` is asked for, and the run has no folder.",
            why="Its event files lie in the folder of the run.",
            fix="Give the run a folder (`out`), or leave `tensorboard` out.",
        )
    if config.tensorboard:
        _writer_class()


class Board:
    """The event files of one run; to be closed in the end."""

    def __init__(self, folder: RunFolder, model: nn.Module, rate: Schedule | None) -> None:
        """Begin anew: the numbers in earlier event files are void (``purge_step``), which text never is.

        The metrics come back through :meth:`show`; what a kill left in the files after the last checkpoint does not.
        """
        self._path = folder.path / FOLDER
        self._rate = rate
        self._names = [name for name, value in model.named_parameters() if value.requires_grad]
        with self._written():
            goes_on = any(self._path.glob(_EVENTS))
            if goes_on:
                _wait_for_the_next_second()
            self._began = time.time()
            self._writer = _writer_class()(log_dir=str(self._path), purge_step=0)
            if not goes_on:
                self._writer.add_text("config", f"```toml\n{folder.config.to_toml()}```", walltime=self._began)
            self._writer.flush()

    def show(self, record: Mapping[str, Any], plan: Plan) -> None:
        """Show a line of the metrics, and at the end of an epoch the settings of the step before it."""
        step = record["step"]
        settings = self._settings(plan, step - 1) if "epoch" in record else {}
        shown = {name: value for name, value in {**settings, **record}.items() if name not in _NOT_SHOWN}
        evaluation = shown.pop("evaluation", None)
        if evaluation is not None:
            shown[f"evaluation/{evaluation['name']}"] = evaluation["value"]
        with self._written():
            for name, value in shown.items():
                if isinstance(value, Real) and math.isfinite(value):
                    self._writer.add_scalar(name, float(value), step, walltime=self._began)
            self._writer.flush()

    def close(self) -> None:
        """Everything that was shown is in the file already."""
        with suppress(OSError):
            self._writer.close()

    def _settings(self, plan: Plan, step: int) -> dict[str, float]:
        found = {"noise_multiplier": plan.noise_multiplier_at(step), "batch_size": float(plan.batch_size_at(step))}
        if self._rate is not None:
            found["lr"] = self._rate.value_of(step, plan.epoch_of(step))
        rule = plan.clip_rule
        if not isinstance(rule, AdaptiveClipRule):
            bound = rule.l2_bound(len(rule.groups(self._names)), rule.initial_state())
            found["clip_norm"] = bound * plan.clip_factor_at(step)
        return found

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(self._path, error) from error


def _wait_for_the_next_second() -> None:
    """Event files are read in the order of their names, which begin with the second they were made in."""
    time.sleep(1.01 - time.time() % 1)


def _writer_class() -> Any:
    """``SummaryWriter``, which PyTorch has and which needs the package tensorboard."""
    try:
        return import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError as error:
        raise InputError(
            f"`tensorboard` is asked for, and cannot be imported: {error}.",
            why="The package is not among those that AdaDP always needs.",
            fix='Install it with: pip install "adadp[tensorboard]". Or leave `tensorboard` out.',
        ) from error
