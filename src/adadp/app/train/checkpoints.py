"""Save a run, take it up again, and know which of its releases are paid already.

What a resumed run does with the steps after its checkpoint that the ledger has charges for:

    randomness   these steps are                why
    seeded       repeated, without a charge     same batches, same noise, same parameters: nothing new is released
    secure       left out                       new noise on the same batches would be another release, paid by nobody

A reshuffled epoch is charged once, at its first step. A secure run that was killed within one cannot know which of its
batches were released after the checkpoint, so it goes on with the next epoch; one that was stopped (a *clean*
checkpoint, nothing released since) goes on where it is. A clean checkpoint is made unclean before the next release.

    what is found                                   what happens
    no checkpoint, and nothing charged              the run begins: its first checkpoint comes before its first charge
    no checkpoint, and charges                      ``RunError``: which steps are in the model is not known
    a checkpoint and no ledger, or one without the  ``LedgerCorrupt``: what was released is not known
    charges and the head the checkpoint has seen
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadp.app.optimizers.scheduling import Scheduled
from adadp.app.runs import Checkpoint, RunFolder, flatten_optimizer, restore_optimizer
from adadp.app.train.averaging import WeightAverage
from adadp.app.train.validation_noise import HELD, Looks
from adadp.errors import InputError, LedgerCorrupt, RunError
from adadp.events import AdaptivelyChosen, Event
from adadp.ledger import Ledger
from adadp.plan import Plan
from adadp.step import PrivateGradients


class Paid:
    """Charges in the ledger, from earlier processes, for rounds this one has not come to."""

    def __init__(self, plan: Plan, charges: Mapping[Event, int], step: int, others: Iterable[Event] = ()) -> None:
        """``step`` steps are in the model, and ``others`` were charged beside them: this is taken off ``charges``."""
        self._left = Counter(charges)
        self._left.subtract(others)
        for charge in (*plan.charges_before(), *plan.charges_after()):
            if self._left[charge]:  # no step, and released if the run came so far: ``feature_release``, ``holdout``
                self._left[charge] -= 1
        begins = 0
        while begins < step:
            due = plan.charge_at(begins)
            assert due is not None  # the first step of a round
            if plan.adaptive and not self._left[due]:
                due = self._any_round() or due  # of a lost epoch, whose noise is not known
            self._left[due] -= 1
            begins = plan.timetable.next_round(begins + 1)
        if min(self._left.values(), default=0) < 0:
            raise LedgerCorrupt(
                "The ledger holds fewer charges than the checkpoint has steps.",
                why="Lines were cut off its end, or it is another ledger: what was released is no longer known.",
                fix="Restore the ledger of the run. Do not go on without it.",
            )

    def __bool__(self) -> bool:
        return any(self._left.values())

    def take(self, charge: Event | None) -> bool:
        """Whether ``charge`` is paid; if so, it is so no longer. None is no charge at all."""
        if charge is None or not self._left[charge]:
            return False
        self._left[charge] -= 1
        return True

    def taken_off(self, charges: Mapping[Event, int]) -> dict[Event, int]:
        """``charges`` without those that are left here."""
        return {event: count - self._left[event] for event, count in charges.items() if count > self._left[event]}

    def after(self, plan: Plan, step: int, *, clean: bool) -> int:
        """The first step from ``step`` on of which nothing can have been released."""
        timetable = plan.timetable
        rounds_left = self._any_round() is not None if plan.adaptive else bool(self)  # a look that is lost is no round
        if rounds_left or not clean:
            step = timetable.next_round(step)
        while step < plan.steps and self._take_round(plan, step):
            step = timetable.next_round(step + 1)
        return min(step, plan.steps)

    def _take_round(self, plan: Plan, step: int) -> bool:
        """Whether one more round is paid; where the noise is chosen on the way, any charge of a round will do."""
        if not plan.adaptive:
            return self.take(plan.charge_at(step))
        return self.take(self._any_round())

    def _any_round(self) -> Event | None:
        return next((each for each in +self._left if isinstance(each, AdaptivelyChosen)), None)


def save(
    folder: RunFolder,
    private: PrivateGradients,
    optimizer: torch.optim.Optimizer,
    *,
    clean: bool,
    elapsed: float,
    lost: int,
    processes: Sequence[int] = (1,),
    looks: Looks | None = None,
    held: Tensor | None = None,
    average: WeightAverage | None = None,
    scheduled: Scheduled | None = None,
    rows: Mapping[str, Any] | None = None,
) -> None:
    """Replace the checkpoint by the state as it is now. ``clean``: this process will release nothing after it.

    ``rows`` says where the processes have written model and optimizer (``adadp.app.sharded.runs``).
    """
    state = private.state()
    tensors, optimizer_state = dict[str, Tensor](), dict[str, Any]()
    if rows is None:
        optimizer_tensors, optimizer_state = flatten_optimizer(optimizer)
        tensors |= {f"model/{name}": value for name, value in private.model.state_dict().items()}
        tensors |= {f"optimizer/{name}": value for name, value in optimizer_tensors.items()}
    tensors |= {f"method/{name}": value for name, value in state["method"].items()}
    if state["batches"]:
        tensors["batches/arrangement"] = state["batches"]["arrangement"]
    text = {
        "optimizer": optimizer_state,
        "clip_state": state["clip_state"],
        "round": state["batches"].get("round"),
        "elapsed": elapsed,
        "lost": lost,
        "clean": clean,
        "processes": list(processes),
    }
    if rows is not None:
        text["rows"] = dict(rows)
    if scheduled is not None:
        text["scheduler"] = scheduled.state()
    if private.plan.adaptive and looks is None:
        text["noise"] = str(private.plan.noise)
    if looks is not None:
        text["looks"] = {"values": looks.values, "sigmas": looks.sigmas}
    if held is not None:
        tensors[HELD] = held.to(torch.uint8)
    if average is not None:
        text["averaged"] = average.steps
        tensors |= {f"average/{name}": value for name, value in average.tensors().items()}
    folder.save_checkpoint(private.step, tensors, text, ledger_head=private.ledger.head)


def load(folder: RunFolder, ledger: Ledger) -> Checkpoint | None:
    """The checkpoint, if it belongs to this ledger; None if the run had not begun."""
    found = folder.load_checkpoint()
    if found is None:
        if ledger.charges:
            raise RunError(
                f"There is no checkpoint in {folder.path}, and its ledger holds charges.",
                why="Which of the charged steps are in the model is not known.",
                fix="Put the checkpoint back, or begin a new run in another folder.",
            )
        return None
    if f'"chain":"{found.ledger_head}"' not in folder.ledger_path.read_text(encoding="ascii", errors="replace"):
        raise LedgerCorrupt(
            f"The ledger in {folder.path} is not the one its checkpoint was saved with, or lines of it are missing.",
            why="What was released is no longer known.",
            fix="Restore the ledger of the run. Do not go on without it.",
        )
    return found


def restore(
    found: Checkpoint,
    private: PrivateGradients,
    optimizer: torch.optim.Optimizer | None,
    average: WeightAverage | None = None,
    scheduled: Scheduled | None = None,
) -> None:
    """Put everything back to where it was when ``found`` was saved; without ``optimizer`` not that and the model."""
    if (optimizer is None) is not ("rows" in found.state):
        raise InputError(
            "The checkpoint was saved of a model that is split over processes, or the model now is, and not both.",
            why="Its parameters lie in other files then.",
            fix="Build the model as the run did.",
        )
    if optimizer is not None:
        _load_model(private.model, _under("model", found.tensors))
        restore_optimizer(optimizer, _under("optimizer", found.tensors), found.state["optimizer"])
    if average is not None:
        average.restore(_under("average", found.tensors), found.state["averaged"])
    if scheduled is not None:
        scheduled.restore(found.state.get("scheduler"))
    batches: dict[str, Any] = {}
    if found.state["round"] is not None:
        batches = {"round": found.state["round"], "arrangement": found.tensors["batches/arrangement"]}
    # What was released since is not unknown here: the ledger tells, and Paid repeats it exactly or leaves it out.
    method = _under("method", found.tensors)
    state = {"step": found.step, "clip_state": found.state["clip_state"], "method": method, "batches": batches}
    private.restore(state, nothing_since=True)


def _load_model(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(
            f"The checkpoint does not fit the model: {error}",
            why="A resumed run must train the network it began with.",
            fix="Build the model as the run did.",
        ) from error


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{prefix}/")}
