"""The run folder of a loop that another library leads: begun, taken up after a stop, and saved."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from adadp.accounting import accountant
from adadp.app.accounting.plans import plan_for
from adadp.app.loop import PrivateGradients
from adadp.app.sources import read_data
from adadp.errors import InputError
from adadp.ledger import Ledger, PlannedBudget, read_ledger
from adadp.plan import Plan
from adadp.records import Data, Records


def planned(records: int, *, epsilon: float, delta: float, batch_size: int, **settings: Any) -> Plan:
    """The plan of a run; as ``plan_for``, with a sentence for a batch that is larger than the data."""
    if batch_size > records:
        raise InputError(
            f"The batch size is {batch_size}, and there are fewer training records.",
            why="A record is sampled with probability batch size / records, which must not pass 1.",
            fix="Choose a smaller batch.",
        )
    return plan_for(epsilon=epsilon, delta=delta, records=records, batch_size=batch_size, **settings)


def begin(
    model: nn.Module,
    data: Data | Records,
    loss: Callable[..., Tensor],
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    resumed_at: int | None = None,
    **settings: Any,
) -> PrivateGradients:
    """Private gradients with their ledger in ``folder``, which ``save`` makes the run's folder in the end.

    ``resumed_at`` is how many steps are in the model of a run that goes on. Steps that were charged after it are lost:
    they stay charged, and the run ends that many steps short of its plan.
    """
    place = Path(folder)
    path = place / "ledger.jsonl"

    def opened() -> Ledger:
        place.mkdir(parents=True, exist_ok=True)
        budget = PlannedBudget(plan.event())
        seeded = settings.get("seed") is not None
        if resumed_at is None:
            return Ledger.create(path, budget=budget, seeded=seeded)
        _check_same_run(path, plan, resumed_at, seeded=seeded)
        return Ledger.open(path, budget=budget)

    private = PrivateGradients(model, data, loss, plan, opened, **settings)
    if resumed_at is not None:
        state = private.state()
        if state["clip_state"] or state["method"]:
            private.close()
            raise InputError(
                "A run whose method or clip rule learns during the run cannot be resumed here.",
                why="What it has learnt is not in the library's checkpoint.",
                fix="Use a fixed clip norm, or train without a stop.",
            )
        private.restore(state | {"step": resumed_at})
    return private


def _check_same_run(path: Path, plan: Plan, resumed_at: int, *, seeded: bool) -> None:
    held = read_ledger(path)
    if held.seeded is not seeded:
        raise InputError(
            "The run was begun with other randomness than it is resumed with.",
            why="Its ledger says whether its noise has a seed, for all of its steps.",
            fix="Pass the same `seed` as before, or none if there was none.",
        )
    if sum(held.charges.values()) < plan.rounds_before(resumed_at):
        raise InputError(
            "The ledger holds fewer steps than the checkpoint.",
            why="The checkpoint is of another run, whose steps would not be charged.",
            fix="Resume from a checkpoint of this run.",
        )


def spent(private: PrivateGradients) -> dict[str, float]:
    """What the run has cost so far, under the name it may be logged by."""
    event, delta = private.ledger.event(), private.plan.delta
    assert delta is not None
    epsilon = 0.0 if event is None else accountant("pld").epsilon(event, delta).epsilon
    return {"epsilon_if_unseeded" if private.source.reproducible else "epsilon": epsilon}


def of_loader(loader: Any) -> tuple[Data, int]:
    """The records of a ``DataLoader``, through its ``collate_fn`` one by one, and its batch size."""
    if not isinstance(loader, DataLoader):
        raise InputError(
            f"{type(loader).__name__} was passed where a DataLoader is meant.",
            why="Its data set holds the records, and its batch size is the expected one.",
            fix="Pass a torch.utils.data.DataLoader.",
        )
    if loader.batch_size is None:
        raise InputError(
            "The DataLoader has a batch sampler of its own.",
            why="Batches are drawn here, by a coin for every record; their expected size is the loader's batch_size.",
            fix="Pass DataLoader(dataset, batch_size=...).",
        )
    return read_data(loader)[0], loader.batch_size
