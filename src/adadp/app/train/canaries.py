"""Canaries in a real run: public random records, each trained on if a fair coin says so, for ``app/one_run.py``.

Why they cost nothing. A canary is made of a fixed seed, and its coin is drawn apart from the data. For every outcome of
the coins, a run with canaries is the planned run on the data and some public records beside it. Neighbouring data sets
remain neighbours when the same public records are added to both. Every record is sampled with the planned probability,
sums are divided by the planned batch size, and the plan and all charges are those of the run without canaries: Poisson
sampling lets the true number of records differ from that of the plan. So the guarantee of the charges holds for the
data, whatever the coins are, and still does when they are published. It holds for each canary as well, which is what
the audit tests.

    the coins of a secure run       from the operating system; of a seeded run, from its seed
    on resume                       those of canaries.json; without that file ``RunError``
    features released from data     the canaries that are trained on are among the records they are released from
    a run without canaries          as many canaries as there are: none, which nothing is added for or kept of
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from adadp.app.config import TrainConfig
from adadp.app.losses import Loss
from adadp.app.one_run import FEWEST, MOST
from adadp.app.runs import RunFolder
from adadp.app.train.run import Run
from adadp.app.units import Units
from adadp.errors import InputError, RunError
from adadp.plan import Plan
from adadp.randomness import source_of
from adadp.ranks import Ranks
from adadp.records import Data, Records, in_memory

_PUBLIC = 2023
"""Seed of what is in a canary."""
_PURPOSE = "audit canaries"
_AT_ONCE = 1024
_KEPT = ("included", "start")


@dataclass(frozen=True, eq=False)
class Canaries:
    """All canaries of a run, of which those ``included`` are trained on. Public."""

    all: tuple[Tensor, Tensor] | None
    """Inputs and labels; None: there are no canaries."""
    included: Tensor
    start: tuple[float, ...] | None
    """The loss of each before the first step, once it is known."""

    @classmethod
    def of(cls, config: TrainConfig, data: Data, folder: RunFolder | None, ranks: Ranks) -> Canaries:
        """The canaries that ``config`` asks for; of a run that goes on in ``folder``, with the coins it began with."""
        count = config.audit_canaries
        if count is None:
            return cls(None, torch.zeros(0, dtype=torch.bool), None)
        if not FEWEST <= count <= MOST:
            raise InputError(
                f"`audit_canaries` is {count}, and must lie between {FEWEST} and {MOST}.",
                why="Fewer coins can be guessed by luck, and more show hardly more.",
                fix="Pass a thousand.",
            )
        values, labels = _columns(data)
        generator = torch.Generator().manual_seed(_PUBLIC)
        inputs = torch.randn((count, *values.shape[1:]), generator=generator).to(values)
        targets = torch.randint(2, (count, *labels.shape[1:]), generator=generator).to(labels)  # sense in any loss
        kept = ranks.from_first("drawing canaries", lambda: _kept(config, count, folder))
        start = None if kept["start"] is None else tuple(kept["start"])
        return cls((inputs, targets), torch.tensor(kept["included"], dtype=torch.bool), start)

    @property
    def added(self) -> int:
        """How many are trained on."""
        return int(self.included.sum())

    def added_to(self, data: Data, units: Units | None) -> tuple[Data, Units | None]:
        """``data`` with the canaries that are trained on, each of them a unit by itself."""
        if self.all is None:
            return data, units
        values, labels = _columns(data)
        inputs, targets = (part[self.included] for part in self.all)
        both = torch.cat([values, inputs]), torch.cat([labels, targets])
        if units is None:
            return both, None
        units.check_rows(len(labels))
        return both, replace(units, codes=torch.cat([units.codes, len(units) + torch.arange(self.added)]))

    def checked(self, plan: Plan) -> Plan:
        """``plan``, if there are no more canaries than it has records."""
        count = len(self.included)
        if count > plan.records:
            raise InputError(
                f"`audit_canaries` is {count}, which is more than the records of the plan.",
                why="The model would learn the canaries, which are random, and not the data.",
                fix="Pass a smaller number; what a bound can show grows with its logarithm.",
            )
        return plan

    def save(self, folder: RunFolder | None) -> None:
        """Keep the coins, and the losses as far as they are known."""
        if folder is not None and self.all is not None:
            folder.write_canaries(self._content())

    def attack(self, run: Run, loss: Loss, records: Records | None) -> Callable[[], dict[str, Any]] | None:
        """What looks at the model of ``run`` in the end, when the losses before the first step are kept.

        ``records`` are the canaries, as they come to the model.
        """
        if records is None:
            return None
        begun = self
        if run.private.step == 0:  # of a run that goes on, they are kept
            begun = replace(self, start=_losses(run.model, loss, records))
            begun.save(run.folder)
        return partial(begun._scored, run.model, loss, records)

    def _scored(self, model: nn.Module, loss: Loss, records: Records) -> dict[str, Any]:
        return {**self._content(), "end": [*_losses(model, loss, records)]}

    def _content(self) -> dict[str, Any]:
        start = None if self.start is None else [*self.start]
        return {"included": [int(each) for each in self.included], "start": start}


def _losses(model: nn.Module, loss: Loss, records: Records) -> tuple[float, ...]:
    """The loss of each of ``records``, with a bound so that it can be kept."""
    training, found = model.training, []
    model.eval()
    try:
        with torch.no_grad():
            for indices in torch.split(torch.arange(len(records)), _AT_ONCE):
                found.append(loss(model, *records.batch(indices)).double().flatten().cpu())
    finally:
        model.train(training)
    losses = torch.cat(found).nan_to_num(nan=0.0, posinf=1e30, neginf=-1e30)
    return tuple(float(f"{each:.9g}") for each in losses.tolist())


def _kept(config: TrainConfig, count: int, folder: RunFolder | None) -> Mapping[str, Any]:
    """What canaries.json holds of a run that goes on, or new coins."""
    kept = None if folder is None else folder.canaries()
    if kept is None and (folder is None or not folder.checkpoint_path.exists()):
        coins = source_of(config.seed).coins(count, 0.5, purpose=_PURPOSE, step=0)
        return {"included": [int(each) for each in coins], "start": None}
    lengths = [count if part is None else len(part) for part in ((kept or {}).get(name, ()) for name in _KEPT)]
    if kept is None or lengths != [count] * len(_KEPT):
        raise RunError(
            "canaries.json is missing, or is not that of this run.",
            why="Which canaries the run trains on is no longer known.",
            fix="Put the file back.",
        )
    return kept


def _columns(data: Data) -> tuple[Tensor, Tensor]:
    """The two tensors of ``data``, numbers and labels."""
    data = in_memory(data)
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        values, labels = data
        if values.is_floating_point():
            return values, labels
    raise InputError(
        "`audit_canaries` needs data that is two tensors, numbers and labels.",
        why="Canaries are random numbers; nothing says what random words, indices or parts of a record would be.",
        fix="Leave `audit_canaries` out, or make the numbers a tensor first.",
    )
