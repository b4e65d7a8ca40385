"""A learning-rate scheduler of torch's own: stepped once after every private step, and kept in checkpoints."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from adadp.app.runs.optimizer_state import decoded, encoded
from adadp.errors import InputError

MakeScheduler = Callable[[Optimizer, int], LRScheduler]
"""From an optimizer and the number of steps of the run to a scheduler of that optimizer."""


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A scheduler that was tried for all steps of the run, and is at its beginning again."""

    scheduler: LRScheduler
    peak: float
    """The largest rate of the run, which the settings are tried with before anything is spent."""

    @property
    def note(self) -> str:
        """What the certificate says of the rate."""
        return f"The learning rate followed a scheduler of the caller's, {type(self.scheduler).__name__}, step by step."

    def state(self) -> dict[str, Any]:
        """The state of the scheduler as JSON."""
        content = encoded(self.scheduler.state_dict(), "scheduler", {})
        return {"scheduler": type(self.scheduler).__qualname__, "content": content}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go on from what ``state`` returned."""
        kind = type(self.scheduler).__qualname__
        if state is None or state["scheduler"] != kind:
            raise InputError(
                f"The run was begun with another scheduler than {kind}, or with none.",
                why="The rates of the run would be others.",
                fix="Resume with the scheduler the run began with.",
            )
        before, content = self.scheduler.state_dict(), decoded(state["content"], {})
        kept = {key: type(before[key]) for key in content if isinstance(before.get(key), dict)}  # Counter is a dict
        self.scheduler.load_state_dict(
            {key: kept[key](value) if key in kept else value for key, value in content.items()}
        )


def schedule(made: LRScheduler | MakeScheduler, optimizer: Optimizer, steps: int) -> Scheduled:
    """The scheduler ``made``, or what ``made(optimizer, steps)`` makes, tried for ``steps`` steps.

    ================================================  ================================================================
    no scheduler of torch, or one of another          ``InputError``
    optimizer; a function that takes other arguments
    one that needs a metric (``ReduceLROnPlateau``)   ``InputError``
    one that ends before the run does                 ``InputError``
    ================================================  ================================================================
    """
    if not isinstance(made, LRScheduler):
        try:
            made = made(optimizer, steps)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"The scheduler cannot be made: {error}.",
                fix="Pass a function of the optimizer and the number of steps, such as lambda optimizer, steps: "
                "torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 1).",
            ) from error
    if not isinstance(made, LRScheduler) or isinstance(made, ReduceLROnPlateau):
        raise InputError(
            f"The scheduler is {type(made).__name__}.",
            why="The rate must follow from the number of the step; a metric would have to be public.",
            fix="Pass one of torch.optim.lr_scheduler that needs none.",
        )
    if made.optimizer is not optimizer:
        raise InputError(
            "The scheduler belongs to another optimizer than the run.",
            fix="Pass the optimizer it was made for, or a function lambda optimizer, steps: ... that makes it.",
        )
    return Scheduled(made, _peak(made, optimizer, steps))


def _peak(scheduler: LRScheduler, optimizer: Optimizer, steps: int) -> float:
    """The largest rate in ``steps`` steps; scheduler and optimizer are afterwards what they were."""
    before = copy.deepcopy(scheduler.state_dict()), copy.deepcopy(optimizer.state_dict())
    peak = 0.0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no step of the optimizer came first
            for _ in range(steps):
                peak = max(peak, *(float(group["lr"]) for group in optimizer.param_groups))
                scheduler.step()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The scheduler does not last for the {steps} steps of the run: {error}",
            fix="Make it for as many steps; a function lambda optimizer, steps: ... is told how many there are.",
        ) from error
    finally:
        optimizer.load_state_dict(before[1])
        scheduler.load_state_dict(before[0])
    return peak
