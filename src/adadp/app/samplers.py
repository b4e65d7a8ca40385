"""Batches that are no coins for every record: of fixed size, or dealt out anew in every epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from adadp import checks
from adadp.errors import InputError
from adadp.events import Event, FixedSizeSampled, Neighbours, ReshuffledEpoch
from adadp.randomness import RandomSource
from adadp.sampling.samplers import PURPOSE, Sampler, at_most, keep, record_count, usual


@final
@dataclass(frozen=True)
class FixedSizeSampler(Sampler):
    """A batch is a uniformly drawn subset of ``batch_size`` records, drawn anew for every step.

    The number of records is public here, so no neighbour has one more.
    """

    name = "fixed"
    records: int
    batch_size: int
    neighbours: Neighbours = Neighbours.REPLACE_ONE

    def __post_init__(self) -> None:
        keep(self, batch_size=_batch_size(self.records, self.batch_size))
        if self.neighbours is Neighbours.ADD_REMOVE:
            raise InputError(
                "Batches of fixed size were declared with add-remove neighbours.",
                why="Adding a record changes the fraction L/N and with it every other record's chance to be drawn.",
                fix="Use replace-one or zero-out neighbours, or Poisson sampling.",
            )

    @classmethod
    def of_batch_size(cls, records: int, batch_size: float, *neighbours: Neighbours) -> FixedSizeSampler:
        return cls(records, batch_size, *neighbours)  # type: ignore[arg-type]  # checked there

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.records // self.batch_size)

    @property
    def usual_size(self) -> int:
        return self.batch_size

    def arrange(self, number: int, source: RandomSource, part: range | None = None) -> Tensor:  # noqa: ARG002
        return source.subset(self.records, self.batch_size, purpose=PURPOSE, step=number)

    def _sampled(self, releases: tuple[Event, ...]) -> Event:
        (release,) = releases
        return FixedSizeSampled(self.batch_size / self.records, release)


@final
@dataclass(frozen=True)
class ReshuffledSampler(Sampler):
    """Every epoch deals the records into disjoint batches, so a record meets one batch per epoch.

    An epoch costs what its most expensive batch costs and nothing is claimed for the shuffling (Yu et al. 2019,
    Theorem 2). That needs a record's batch not to depend on the other records. For neighbours of the same size the
    batches are slices of ``batch_size`` of a shuffled order. For add-remove neighbours, where one record more would
    move the others, each record draws its batch by itself: batches then vary in size, around N over their number.
    """

    name = "reshuffle"
    records: int
    batch_size: int
    neighbours: Neighbours = Neighbours.ZERO_OUT

    def __post_init__(self) -> None:
        keep(self, batch_size=_batch_size(self.records, self.batch_size))

    @classmethod
    def of_batch_size(cls, records: int, batch_size: float, *neighbours: Neighbours) -> ReshuffledSampler:
        return cls(records, batch_size, *neighbours)  # type: ignore[arg-type]  # checked there

    @property
    def independent_assignment(self) -> bool:
        """Whether each record draws its batch by itself."""
        return self.neighbours is Neighbours.ADD_REMOVE

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.records // self.batch_size)

    @property
    def usual_size(self) -> int:
        return usual(self.records, 1 / self.steps_per_epoch) if self.independent_assignment else self.batch_size

    @property
    def steps_per_round(self) -> int:
        return self.steps_per_epoch

    def arrange(self, number: int, source: RandomSource, part: range | None = None) -> Tensor:  # noqa: ARG002
        """The batch of each record in epoch ``number``."""
        if self.independent_assignment:
            uniforms = source.uniform(self.records, purpose=PURPOSE, step=number)
            return (uniforms * self.steps_per_epoch).long()
        return source.permutation(self.records, purpose=PURPOSE, step=number) // self.batch_size

    def pick(self, arrangement: Tensor, position: int, part: range | None = None) -> Tensor:
        part = self.part_of(part)
        return part.start + (arrangement[part.start : part.stop] == position).nonzero().squeeze(1)

    def _sampled(self, releases: tuple[Event, ...]) -> Event:
        return ReshuffledEpoch(releases, self.independent_assignment)


def _batch_size(records: object, batch_size: object) -> int:
    """A whole batch size between 1 and ``records``."""
    size = checks.count("batch_size", batch_size, why="An empty batch teaches nothing.")
    return int(at_most(record_count(records), size))
