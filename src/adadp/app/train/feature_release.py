"""Feature stages that are released from the training records: charged, released, saved, applied, in this order.

The features get their shape, filled with zeros, before anything is charged, so that model and plan can be checked
against them; the values follow when the run has begun.

    on resume                                          what happens
    the stage is in features.safetensors               it is used as it is; nothing is charged
    its charge is in the ledger, and the stage is not  seeded: released again, bit for bit, without a charge;
    saved (the process was killed in between)          secure: ``RunError``, for new noise would be paid by nobody
    neither                                            charged and released

Each of several processes adds its own records to what is released, and makes the features of these alone. Where rows
belong to units, one row of each unit is in what is released, and each process makes the features of all rows.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from adadp.app.features import ReleasedStage, Shape, Stage, computed, stage_module, tensors_of
from adadp.app.runs import RunFolder
from adadp.errors import RunError
from adadp.events import Event
from adadp.step import PrivateGradients


class Preparation:
    """The stages of a run from its first released one on, and the features they make of its records.

    ``train`` and ``test`` are the features: zeros until ``run`` has filled them in.
    """

    def __init__(
        self, stages: tuple[Stage, ...], train: Tensor, test: Tensor | None, released: Tensor | None = None
    ) -> None:
        """``released`` marks the rows of ``train`` that stages are released from; None: each is a record."""
        self._stages, self._raw, self._released = stages, (train, test), released
        self._shapes: list[Shape] = [tuple(train.shape[1:])]
        for stage in stages:
            self._shapes.append(stage.output_shape(self._shapes[-1]))
        self.learned: dict[str, Tensor] = {}
        """The tensors of all released stages; ``0.components`` is ``components`` of the first."""
        self.train = torch.zeros(len(train), *self._shapes[-1])
        self.test = None if test is None else torch.zeros(len(test), *self._shapes[-1])

    def run(self, private: PrivateGradients, folder: RunFolder | None) -> None:
        """Release what is not released yet, and fill in the features."""
        known = private.ranks.from_first("loading features", lambda: {} if folder is None else folder.load_features())
        self.learned = known
        train, test = self._raw
        own = private.ranks.part(len(train))
        if self._released is None:
            counted: slice | Tensor = slice(None)
        else:
            counted = own.start + self._released[own.start : own.stop].nonzero().squeeze(1)
            own = range(len(train))
        train = train[own.start : own.stop]
        charges = list(private.plan.charges_before())
        spent = Counter(private.ledger.charges)
        number = 0
        for stage, before, after in zip(self._stages, self._shapes[:-1], self._shapes[1:], strict=True):
            if isinstance(stage, ReleasedStage):
                paid = spent[charges[number]] > 0
                spent[charges[number]] -= 1
                if not tensors_of(self.learned, number):
                    released = _released(stage, train[counted], private, charges[number], paid, number)
                    learned = stage.learned(released, before)
                    self.learned |= {f"{number}.{name}": value for name, value in learned.items()}
                    if folder is not None:
                        folder.save_features(self.learned)
                module = stage_module(stage, before, tensors_of(self.learned, number))
                number += 1
            else:
                module = stage_module(stage, before, {})
            train = computed(module, train, after, alone=private.exact)
            test = None if test is None else computed(module, test, after, alone=private.exact)
        self.train[own.start : own.stop].copy_(train)
        if self.test is not None and test is not None:
            self.test.copy_(test)
        self._raw = (self.train, self.test)


def _released(  # noqa: PLR0917
    stage: ReleasedStage, records: Tensor, private: PrivateGradients, charge: Event, paid: bool, number: int
) -> dict[str, Tensor]:
    """One release of all records, charged unless a seeded run repeats one that is ``paid``."""
    if paid and not private.source.reproducible:
        raise RunError(
            f"The release of {stage.name} was paid, and the process was killed before it was saved.",
            why="Releasing it again, with new noise, would cost the same once more, which the plan does not hold.",
            fix="Begin a new run in another folder. Nothing of this one was seen by anybody.",
        )
    total = stage.query(records)
    # ======================== trust line: above sensitive, below public ========================
    permit = private.crossing.pay(charge, charge, paid=paid)
    return permit.gaussian(total, stage.l2_bound, step=0, purpose=f"features/{number}")
