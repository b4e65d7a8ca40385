"""How batches are drawn. A sampler also wraps the releases made on them into events: what ran is what is accounted.

    sampler     a batch is                                    charged                        neighbours
    poisson     each record by its own coin                 every step, PoissonSampled     any (add-remove)
    fixed       a uniform subset of batch_size records        every step, FixedSizeSampled   replace-one, zero-out
    reshuffle   a batch of an epoch; batches are disjoint   every epoch, ReshuffledEpoch   any (zero-out)

Edge cases:

    q = 1, or batch_size = N        every record in every batch
    no coin shows heads           an empty batch: a normal step, released and charged like any other
    N not a multiple of batch_size  the last batch of a reshuffled epoch is shorter; the divisor stays batch_size
    a run ends within an epoch    the whole epoch is paid, at its first step
    N < 2, batch_size > N, q = 0    refused

A batch is sensitive, and so is its size: it must not be logged or saved, and the plan owns the number to divide by. The
number of records is taken as public wherever a rate or a number of batches is computed from it (L/N, N/L);
``PoissonSampler`` with a given probability computes neither from it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, final

import torch
from torch import Tensor

from adadp import checks
from adadp.errors import InputError
from adadp.events import Event, Neighbours, PoissonSampled, Repeated, compose
from adadp.randomness import RandomSource
from adadp.registry import Registry
from adadp.sampling.heads import heads

ReleaseOf = Callable[[int], Event]
"""The release, without its sampling, made on the batch of a step."""

PURPOSE = "sampling"


class Sampler(ABC):
    """How the batches of a data set are drawn, and the event that says so. Samplers are frozen.

    ``neighbours`` are the data sets that the charged events compare. A *round* is the steps whose batches come from one
    draw and which are charged together: one step, or for reshuffling one epoch. Its draw is an *arrangement*, from
    which the batch of each of its steps can be read.
    """

    name: ClassVar[str]
    records: int
    neighbours: Neighbours

    @classmethod
    @abstractmethod
    def of_batch_size(cls, records: int, batch_size: float, *neighbours: Neighbours) -> Sampler:
        """The sampler whose batches hold so many records, with the neighbours usual for it unless others are given."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """How many batches it takes to have met every record, once on average."""

    @property
    @abstractmethod
    def usual_size(self) -> int:
        """How many records a batch usually has at most, a public number: one standard deviation above the expected."""

    @final
    def usual_share(self, parts: int) -> int:
        """The same for the records of a batch that are in one of ``parts`` equal parts of all records."""
        probability = self.usual_size / self.records
        return self.usual_size if parts == 1 else usual(-(-self.records // parts), probability)

    @property
    def steps_per_round(self) -> int:
        """How many consecutive steps share one draw and one charge."""
        return 1

    @abstractmethod
    def arrange(self, number: int, source: RandomSource, part: range | None = None) -> Tensor:
        """Draw round ``number``, counted from 0: of all records, or of those in ``part`` at least. Sensitive."""

    def pick(self, arrangement: Tensor, position: int, part: range | None = None) -> Tensor:  # noqa: ARG002
        """The sorted indices of the batch at ``position`` of what ``arrange`` drew, with ``part`` those in it."""
        part = self.part_of(part)
        first, end = torch.searchsorted(arrangement, torch.tensor([part.start, part.stop])).tolist()
        return arrangement[first:end]

    @abstractmethod
    def _sampled(self, releases: tuple[Event, ...]) -> Event:
        """One round in which each of the distinct ``releases`` was made on one batch or more, as an event."""

    @final
    def draw(self, step: int, source: RandomSource, part: range | None = None) -> Tensor:
        """The sorted indices of the batch of ``step``: sensitive, and possibly none.

        With ``part``, only those in this range of records. From a reproducible source, the batches of all parts are
        together the batch of the whole; from another they are if coins are independent, which Poisson sampling's are.
        Where several steps share a draw the source must be reproducible; ``Batches`` remembers that of another.
        """
        number, position = self._place(step)
        if self.steps_per_round > 1 and not source.reproducible:
            raise InputError(
                f"A {self.name} batch cannot be drawn by itself from a source that cannot be replayed.",
                why="The batches of an epoch are disjoint only if they come from one draw.",
                fix="Ask Batches(sampler, source).batch(step), which remembers the draw.",
            )
        return self.pick(self.arrange(number, source, part), position, part)

    @final
    def amplify(self, release: Event) -> Event:
        """One round in which ``release`` was made on every batch."""
        return self._round((release,))

    @final
    def charge(self, step: int, release_of: ReleaseOf, *, resumed: bool = False) -> Event | None:
        """What must be charged before the release of ``step``; None if its round has been paid for.

        A round is paid for at its first step and covers one release per batch. A run that starts again within a round
        (``resumed``) may release batches a second time, with new noise: it pays for the rest of the round once more.
        """
        number, position = self._place(step)
        if position and not resumed:
            return None
        return self._round(self._distinct(number, position, release_of))

    @final
    def planned(self, steps: int, release_of: ReleaseOf) -> Event:
        """Everything that ``charge`` asks for in an uninterrupted run of ``steps`` steps.

        Equal charges are counted together, in the order of their first appearance. ``release_of`` is asked for every
        step of the last round, also for those the run does not reach.
        """
        steps = checks.count("steps", steps)
        rounds = range(-(-steps // self.steps_per_round))
        counts: dict[tuple[Event, ...], int] = {}
        for releases, group in groupby(self._distinct(number, 0, release_of) for number in rounds):
            counts[releases] = counts.get(releases, 0) + sum(1 for _ in group)
        return compose(*(Repeated(self._round(releases), count) for releases, count in counts.items()))

    @final
    def part_of(self, part: range | None) -> range:
        """``part``, or all records."""
        part = range(self.records) if part is None else part
        if part.step != 1 or not 0 <= part.start <= part.stop <= self.records:
            raise InputError(
                "The part of the records to draw from is not a range of records.",
                why="A part holds consecutive records, counted from 0.",
                fix="Pass part=range(first, end) with 0 <= first <= end <= the number of records.",
            )
        return part

    def _place(self, step: int) -> tuple[int, int]:
        """The round of ``step`` and the position in it."""
        return divmod(checks.count("step", step, minimum=0, why="Steps are counted from 0."), self.steps_per_round)

    def _distinct(self, number: int, position: int, release_of: ReleaseOf) -> tuple[Event, ...]:
        """The distinct releases of round ``number`` from ``position`` on."""
        first, end = number * self.steps_per_round + position, (number + 1) * self.steps_per_round
        return tuple(dict.fromkeys(release_of(step) for step in range(first, end)))

    def _round(self, releases: tuple[Event, ...]) -> Event:
        for release in releases:
            if release.neighbours is not self.neighbours:
                raise InputError(
                    f"A release for {release.neighbours.value} neighbours was made on batches sampled for "
                    f"{self.neighbours.value} neighbours.",
                    why="The guarantee of one says nothing about the other.",
                    fix="Give the sampler and its releases the same neighbours.",
                )
        return self._sampled(releases)


@final
@dataclass(frozen=True)
class PoissonSampler(Sampler):
    """Each record is in a batch with ``sampling_probability``, by a coin of its own. Batches vary in size.

    The coins are never more likely to show heads than is accounted, and independent of each other and of how many there
    are (``heads``). Drawing takes a time that follows the size of the batch, not the number of records.
    """

    name = "poisson"
    records: int
    sampling_probability: float
    neighbours: Neighbours = Neighbours.ADD_REMOVE

    def __post_init__(self) -> None:
        why = "It is each record's chance to be in a batch; with 0 no record is ever used."
        q = checks.probability("sampling_probability", self.sampling_probability, why=why)
        keep(self, sampling_probability=checks.positive("sampling_probability", q, why=why))

    @classmethod
    def of_batch_size(cls, records: int, batch_size: float, *neighbours: Neighbours) -> PoissonSampler:
        """The sampler whose batches hold ``batch_size`` records on average. Its probability discloses ``records``."""
        records = record_count(records)
        size = checks.positive("batch_size", batch_size, why="It is the expected size of a batch.")
        return cls(records, at_most(records, size) / records, *neighbours)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(1 / self.sampling_probability - 1e-9)

    @property
    def usual_size(self) -> int:
        return usual(self.records, self.sampling_probability)

    def arrange(self, number: int, source: RandomSource, part: range | None = None) -> Tensor:
        return heads(source, self.part_of(part), self.sampling_probability, purpose=PURPOSE, step=number)

    def _sampled(self, releases: tuple[Event, ...]) -> Event:
        (release,) = releases
        return PoissonSampled(self.sampling_probability, release)


def _offered(found: object) -> type[Sampler] | None:
    return found if isinstance(found, type) and issubclass(found, Sampler) else None


SAMPLERS: Registry[type[Sampler]] = Registry("sampler", {PoissonSampler.name: PoissonSampler}, _offered)
"""Ways of drawing batches, by name."""


def sampler(sampling: str, records: int, batch_size: float, neighbours: Neighbours | str | None = None) -> Sampler:
    """The sampler called ``sampling``, with the neighbours usual for it unless others are given."""
    if sampling not in SAMPLERS:
        raise InputError(
            f"Unknown sampling {sampling!r}.",
            why="How batches are drawn decides what a step costs.",
            fix=f"Use one of: {', '.join(SAMPLERS)}.",
        )
    given = () if neighbours is None else (Neighbours.parse(neighbours),)
    return SAMPLERS[sampling].of_batch_size(records, batch_size, *given)


def keep(sampler: Sampler, **values: float) -> None:
    """Store checked values in a frozen sampler."""
    values["records"] = record_count(sampler.records)
    for name, value in values.items():
        object.__setattr__(sampler, name, value)
    object.__setattr__(sampler, "neighbours", Neighbours.parse(sampler.neighbours))


def usual(records: int, probability: float) -> int:
    """A standard deviation above what a binomial batch holds on average; all records at most."""
    mean = records * probability
    return min(records, math.ceil(mean + math.sqrt(mean * (1 - probability)) - 1e-9))


def record_count(records: object) -> int:
    """A checked number of records."""
    return checks.count("records", records, minimum=2, why="A single record has no others to hide among.")


def at_most(records: int, batch_size: float) -> float:
    """``batch_size``, unless it is more than there are records."""
    if batch_size > records:
        raise InputError(
            f"`batch_size` must not exceed the number of records, got {batch_size:g} of {records}.",
            why="A record is in a batch at most once.",
            fix=f"Pass `batch_size` <= {records}.",
        )
    return batch_size
