"""The one crossing of the trust line: what is sensitive goes in, what was paid for comes out.

Nobody else imports ``noise``. A release is charged as an event, the ledger has it on disk, and only then is the noise
drawn, with the multiplier that stands in the charged event. So what is charged and what is added cannot differ, for
gradients and counts, features, scores of held-out records and private choices alike.

    the event that is released                       what happens
    is charged now                                   ledger first (fsync), then noise
    was charged before, with others                  released if the ledger holds it: a batch of an epoch that was
                                                     charged as a whole, a score of a search
    is nowhere in the ledger                         ``InputError``, nothing is released
    is repeated by a seeded run (``paid``)           the same random numbers: the same release, paid once
    is repeated by a secure run                      ``InputError``: new noise would be paid by nobody
    asked for more often than it says                ``InputError``, nothing is released

Of several processes (``adadp.ranks``) the first charges its ledger while the others wait; they go on when the charge is
on its disk, or all fail. Each of them has a part of the sums, and all get the same release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeVar

import torch
from torch import Tensor

from adadp.errors import InputError
from adadp.events import Composed, Event, GaussianRelease, Selection, describe
from adadp.ledger import Ledger
from adadp.noise import GaussianMechanism, choose_least, grid_of
from adadp.randomness import RandomSource
from adadp.ranks import ONE, Ranks

_Kind = TypeVar("_Kind", GaussianRelease, Selection)

__all__ = ["Crossing", "GaussianMechanism", "Permit", "grid_of"]


class Crossing:
    """Charges events and hands out the permits to release them. ``mechanism`` is for audits that watch the releases."""

    def __init__(
        self, ledger: Ledger, source: RandomSource, mechanism: GaussianMechanism | None = None, ranks: Ranks = ONE
    ) -> None:
        self.ledger, self.source, self.ranks = ledger, source, ranks
        self.mechanism = GaussianMechanism(overwrites=True) if mechanism is None else mechanism

    def pay(self, release: Event, charge: Event | None, *, paid: bool = False) -> Permit:
        """The permit for ``release``, now that ``charge``, which it is a part of, is on disk.

        ``charge`` None: an earlier charge covers it. ``paid``: a seeded run repeats a release, or an audit a run on
        public data, and nobody is charged.
        """
        if paid and not self.source.reproducible:
            raise InputError(
                "A step of a secure run cannot be released without a charge.",
                why="Its noise is new, so it is another release than the one that was paid for.",
                fix="Release it without paid.",
            )
        if charge is not None and not paid:
            self._charge(charge)
        covered = self.ledger.charges if charge is None else (charge,)
        if not paid and not any(release == part for each in covered for part in _parts(each)):
            raise InputError(
                f"{describe(release)} was not charged. Nothing was released.",
                why="Noise is drawn for what the ledger holds, and for nothing else.",
                fix="Charge an event that holds it.",
            )
        return Permit(self, release)

    def _charge(self, charge: Event) -> None:
        """Charge the ledger; of several processes, that of the first, and then the copies of the others."""
        self.ranks.meet("charging")
        if self.ranks.first:
            self.ledger.charge(charge)
        self.ranks.meet("charged")
        if not self.ranks.first:
            self.ledger.charge(charge)


class Permit:
    """The right to make the releases of one charged event, each once and in their order."""

    def __init__(self, crossing: Crossing, release: Event) -> None:
        self._crossing = crossing
        self._left = list(release.events) if isinstance(release, Composed) else [release]
        self._noiseless = self.noise_multiplier == 0

    @property
    def noise_multiplier(self) -> float:
        """That of the next Gaussian release; 0 where there is none."""
        return next((each.noise_multiplier for each in self._left if isinstance(each, GaussianRelease)), 0.0)

    def gaussian(
        self, total: Mapping[str, Tensor], l2_bound: float, *, step: int, purpose: str, dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        """``total`` with noise, as ``dtype``: one record may move it by ``l2_bound`` in l2."""
        event = self._next(GaussianRelease)
        return self._crossing.mechanism.release(
            total,
            l2_bound=l2_bound,
            noise_multiplier=event.noise_multiplier,
            source=self._crossing.source,
            step=step,
            purpose=purpose,
            dtype=dtype,
            ranks=self._crossing.ranks,
        )

    def choice(self, losses: Tensor, bound: float, *, step: int, purpose: str) -> int:
        """A number i with probability proportional to exp(-epsilon losses[i] / bound), epsilon that of the event.

        ``bound`` is the range of what a neighbouring data set does to a loss. Without noise: the least loss. Each of
        several processes has its part of the losses.
        """
        epsilon = float("inf") if self._noiseless and not self._left else self._next(Selection).epsilon
        crossing = self._crossing
        losses = crossing.ranks.summed("scoring", losses)
        return crossing.ranks.from_first(
            "choosing",
            lambda: choose_least(
                losses, bound=bound, epsilon=epsilon, source=crossing.source, step=step, purpose=purpose
            ),
        )

    def _next(self, kind: type[_Kind]) -> _Kind:
        if self._left and isinstance(self._left[0], kind):
            return self._left.pop(0)  # type: ignore[return-value]  # which isinstance has just said
        raise InputError(
            f"No {kind.__name__} is left to release of what was charged. Nothing was released.",
            fix="Charge every release that is made.",
        )


def _parts(event: object) -> Iterator[object]:
    """``event`` and all events inside it."""
    if isinstance(event, tuple):
        for each in event:
            yield from _parts(each)
    elif is_dataclass(event):
        yield event
        for field in fields(event):
            yield from _parts(getattr(event, field.name))
