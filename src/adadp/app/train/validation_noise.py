"""Looks at validation records, and the noise that follows them (Yu et al. 2019, section IV-A1).

The noise of an epoch is set when the one before it is over, from looks at a model that is public by then. So it is
chosen from released values, and the run is held to its budget by a filter.

    the validation records are       a look is
    public (declared, or a file)     free: the accuracy as it is
    kept aside from private data     the number of right answers with noise, charged before it is used

One record moves the number of right answers by at most 1, and is either trained on or looked at; that the two are
charged one after the other all the same is on the safe side.

    which records are kept aside             because
    add-remove neighbours: each by a coin    one record more moves no other; how many there are stays hidden
    others: as many as asked, at random      their number is public
    public: the last ones                    they are no part of the private data
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from adadp.app.config import TrainConfig
from adadp.app.schedules import ValidationDecay
from adadp.app.stored import Without
from adadp.app.train.evaluation import Evaluate
from adadp.app.units import Units
from adadp.errors import InputError
from adadp.events import Event, GaussianRelease, Neighbours
from adadp.randomness import RandomSource
from adadp.ranks import ONE, Ranks
from adadp.records import Stored
from adadp.step import PrivateGradients

HELD = "validation/held"
"""Where a checkpoint keeps which records are kept aside."""

_PURPOSE, _COUNT = "validation", "right"


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Training data in two parts: what is trained on and what is looked at."""

    train: tuple[Tensor | Stored, ...]
    validation: tuple[Tensor, ...]
    held: Tensor
    """Which records are looked at."""
    records: int
    """The public number of records that are trained on; the true one may differ where each record had its coin."""
    units: Units | None = None
    """Those of the rows that are trained on."""
    weights: Tensor | None = None
    """What each row weighs that is looked at, where units are kept aside: those of one unit weigh 1 together."""

    @property
    def looked_at(self) -> tuple[Tensor, Tensor]:
        """What is looked at, as features and labels."""
        return self.validation[0], self.validation[-1]


def hold_out(
    data: tuple[Tensor | Stored, ...],
    config: TrainConfig,
    neighbours: Neighbours,
    source: RandomSource,
    before: Tensor | None = None,
    *,
    units: Units | None = None,
    ranks: Ranks = ONE,
) -> HeldOut:
    """Keep the ``validation`` or ``holdout`` records aside; ``before`` says which, for a run that goes on. Of several
    processes the first says it for all. With ``units`` all rows of one are kept aside, or none.
    """
    total = len(data[0]) if units is None else len(units)
    public = config.records or total
    size = config.kept_aside(public)
    if not size < public:
        raise InputError(
            f"{size} validation records are to be kept aside, and there are {public}.",
            fix="Keep fewer aside: the others are trained on.",
        )
    declared, purpose = bool(config.validation_public), _PURPOSE if config.holdout is None else "holdout"

    def drawn() -> Tensor:
        if before is not None:
            return before.bool()
        return set_aside(total, size, of=public, public=declared, neighbours=neighbours, source=source, purpose=purpose)

    held = ranks.from_first("keeping records aside", drawn)
    rows, aside, weights = held, held.nonzero().squeeze(1), None
    if units is not None:
        rows = held[units.codes]
        units, aside, weights = units.parted(held)
    gone = rows.nonzero().squeeze(1)
    train = tuple(Without(part, gone) if isinstance(part, Stored) else part[~rows] for part in data)
    looked_at = tuple(part.rows(aside) if isinstance(part, Stored) else part[aside] for part in data)
    return HeldOut(train, looked_at, held, public - size, units, weights)


def set_aside(
    total: int, size: int, *, of: int, public: bool, neighbours: Neighbours, source: RandomSource, purpose: str
) -> Tensor:
    """Which of ``total`` records are kept aside: ``size`` of them, or where each has its coin, ``size`` in ``of``."""
    if public:
        return torch.arange(total) >= total - size
    if neighbours is Neighbours.ADD_REMOVE:
        return source.coins(total, size / of, purpose=purpose, step=0)
    held = torch.zeros(total, dtype=torch.bool)
    held[source.permutation(total, purpose=purpose, step=0)[:size]] = True
    return held


class Looks:
    """The looks of one run, and the noise of its epochs that followed from them."""

    def __init__(
        self, decay: ValidationDecay, measure: Evaluate, *, true_size: int, size: int, held: Tensor | None
    ) -> None:
        """``measure`` gives the share of right answers among ``true_size`` records; ``size`` is their public number."""
        self.decay, self._measure = decay, measure
        self._true_size, self._size = true_size, size
        self.held = held
        self.values: list[float] = []
        self.sigmas = [decay.s0]
        """The noise multiplier of every epoch so far, the one at hand included."""

    def charge(self, private: PrivateGradients) -> Event | None:
        """What a look costs; None where the records are public."""
        relation = private.plan.neighbours
        assert relation is not None
        return None if self.decay.look is None else GaussianRelease(self.decay.look, relation)

    def is_due(self, private: PrivateGradients) -> bool:
        """Whether the noise of the epoch at hand is still to be chosen."""
        return len(self.sigmas) <= private.plan.epoch_of(private.step)

    def epoch_is_over(self, private: PrivateGradients, paid: Callable[[Event | None], bool]) -> float | None:
        """Look if it is time to, and set the noise of the next epoch. The look, if there was one.

        ``paid`` says whether a charge was made by an earlier process: then a seeded run repeats the look.
        """
        value = None
        if len(self.sigmas) % self.decay.every == 0:
            value = self._look(private, paid)
            self.values.append(value)
        self.sigmas.append(self.decay.sigma_after(self.values))
        private.plan = private.plan.realised(self.sigmas)
        return value

    def restore(self, values: list[float], sigmas: list[float], private: PrivateGradients) -> None:
        """Go on from a checkpoint."""
        self.values, self.sigmas = list(values), list(sigmas)
        private.plan = private.plan.realised(self.sigmas)

    def skip_to(self, private: PrivateGradients) -> None:
        """Epochs were lost: the one at hand has the noise that was last known."""
        self.sigmas += [self.sigmas[-1]] * (private.plan.epoch_of(private.step) + 1 - len(self.sigmas))
        private.plan = private.plan.realised(self.sigmas)

    def _look(self, private: PrivateGradients, paid: Callable[[Event | None], bool]) -> float:
        share = private.ranks.from_first("looking", lambda: self._measure(private.model))
        charge = self.charge(private)
        if charge is None:
            return share
        count = float(round(share * self._true_size)) if private.ranks.first else 0.0  # all looked at the same records
        right = {_COUNT: torch.tensor(count, dtype=torch.float64)}
        # ======================== trust line: above sensitive, below public ========================
        permit = private.crossing.pay(charge, charge, paid=paid(charge) and private.source.reproducible)
        released = permit.gaussian(right, 1.0, step=len(self.values), purpose=_PURPOSE)
        return float(released[_COUNT]) / self._size
