"""WHAT was released: frozen records without maths.

An event says which mechanism looked at the data, how the records were sampled and between which neighbouring data sets
its guarantee holds. Accountants interpret events; nothing in this module knows what an event costs. Every event is
immutable and hashable, and goes to JSON and back without loss (``adadp.events.codec``).

    leaves     GaussianRelease, ZcdpCost, Selection
    sampling   PoissonSampled, FixedSizeSampled, ReshuffledEpoch   (hold leaves, or compositions of leaves)
    together   Composed, Repeated
    others     OtherEvent   (what another package defines, such as the search adadp.app.accounting.best_of)
    parts      Disjoint   (releases from parts of the data, every record in one part only)
    mark       AdaptivelyChosen   (the multiplier was picked after looking at earlier releases)

``noise_multiplier`` is the standard deviation of the noise divided by the l2 bound on what ONE record contributes. What
replacing a record costs more than removing it belongs to the accountant; the event says how far it moves the sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from adadp import checks
from adadp.errors import EventError


class Neighbours(str, Enum):
    """Which pairs of data sets the guarantee compares.

    ``ADD_REMOVE``: one has a record more. ``REPLACE_ONE``: same size, one record differs in any way. ``ZERO_OUT``: same
    size, one record is replaced by an empty one that contributes nothing.
    """

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"

    @classmethod
    def parse(cls, value: str | Neighbours) -> Neighbours:
        """The relation called ``value``; an unknown name is an error that lists the known ones."""
        try:
            return cls(value)
        except ValueError:
            raise EventError(
                f"Unknown neighbouring relation {value!r}.",
                why="A guarantee means nothing until it says which data sets it compares.",
                fix="Use one of: " + ", ".join(member.value for member in cls) + ".",
            ) from None


class SelectionMechanism(str, Enum):
    """How a pure-DP selection was made.

    ``EXPONENTIAL``: exponential mechanism, or equivalently Gumbel noise and the arg max. ``NOISY_MAX``: any other
    epsilon-DP report-noisy-max (Laplace or exponential noise), of which nothing but pure DP is used.
    """

    EXPONENTIAL = "exponential"
    NOISY_MAX = "noisy-max"


@dataclass(frozen=True)
class Event(ABC):  # noqa: B024  # a leaf must add nothing
    """What was released. The kinds are frozen dataclasses, whose fields are their JSON."""

    @property
    def neighbours(self) -> Neighbours:
        """The pairs of data sets it is about: those of what it holds, which are all the same."""
        return self.inner[0].neighbours

    @property
    def inner(self) -> tuple[Event, ...]:
        """The events it holds; a leaf holds none."""
        return ()

    @property
    def happens(self) -> bool:
        """Whether it can touch a record: its rate, count or stated cost is not 0."""
        return True


class _Around(Event):
    """An event that holds one."""

    event: Event

    @property
    def inner(self) -> tuple[Event, ...]:
        return (self.event,)


@dataclass(frozen=True)
class GaussianRelease(Event):
    """A vector to which one record contributes at most ``l2_bound``, plus N(0, (noise_multiplier l2_bound)^2) noise.

    A multiplier of 0 is a release without noise: it is a legal event (the non-private run takes the same path), and
    every accountant answers infinity for it.

    ``replaced`` is how far replacing one record moves the vector, over ``l2_bound``: 2, for one contribution against
    its opposite, or less where no two contributions can be opposite. For other neighbours it says nothing, and is 2.

    ``held_out``: it is of records kept aside, by a coin of each or by their places, that no release without this mark
    saw. Neighbouring data sets then differ for releases with the mark, or for those without it, and never for both.
    """

    noise_multiplier: float
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    replaced: float = 2.0
    held_out: bool = False

    def __post_init__(self) -> None:
        value = checks.non_negative(
            "noise_multiplier", self.noise_multiplier, why="It is a standard deviation over an l2 bound."
        )
        object.__setattr__(self, "noise_multiplier", value)
        object.__setattr__(self, "neighbours", Neighbours.parse(self.neighbours))
        moved = checks.positive("replaced", self.replaced, why="It is a distance over an l2 bound.")
        if moved > 2:
            raise EventError(
                f"replaced is {moved:g}, and replacing a record moves a sum by at most twice its contribution.",
                fix="Pass at most 2, or a larger noise bound.",
            )
        object.__setattr__(self, "replaced", moved if self.neighbours is Neighbours.REPLACE_ONE else 2.0)
        if not isinstance(self.held_out, bool):
            raise EventError(f"held_out must be true or false, got {self.held_out!r}.")


@dataclass(frozen=True)
class ZcdpCost(Event):
    """Any mechanism known to be ``rho``-zCDP, about which nothing else is known."""

    rho: float
    neighbours: Neighbours = Neighbours.ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", checks.non_negative("rho", self.rho, why="A privacy cost cannot be negative."))
        object.__setattr__(self, "neighbours", Neighbours.parse(self.neighbours))

    @property
    def happens(self) -> bool:
        return self.rho > 0


@dataclass(frozen=True)
class Selection(Event):
    """A pure ``epsilon``-DP choice of one candidate (probabilities proportional to exp(-epsilon score / 2))."""

    epsilon: float
    mechanism: SelectionMechanism = SelectionMechanism.EXPONENTIAL
    neighbours: Neighbours = Neighbours.ADD_REMOVE

    def __post_init__(self) -> None:
        value = checks.non_negative("epsilon", self.epsilon, why="A privacy cost cannot be negative.")
        object.__setattr__(self, "epsilon", value)
        try:
            object.__setattr__(self, "mechanism", SelectionMechanism(self.mechanism))
        except ValueError:
            raise EventError(
                f"Unknown selection mechanism {self.mechanism!r}.",
                fix="Use one of: " + ", ".join(member.value for member in SelectionMechanism) + ".",
            ) from None
        object.__setattr__(self, "neighbours", Neighbours.parse(self.neighbours))

    @property
    def happens(self) -> bool:
        return self.epsilon > 0


@dataclass(frozen=True)
class PoissonSampled(_Around):
    """``event`` ran on a batch, maybe empty, that holds each record independently with ``sampling_probability``.

    Several releases from one batch are one ``PoissonSampled`` around their ``Composed``: they share the coin flips.
    """

    sampling_probability: float
    event: Event

    def __post_init__(self) -> None:
        value = checks.probability("sampling_probability", self.sampling_probability)
        object.__setattr__(self, "sampling_probability", value)
        _check_unsampled(self.event, "PoissonSampled")

    @property
    def happens(self) -> bool:
        return self.sampling_probability > 0


@dataclass(frozen=True)
class FixedSizeSampled(_Around):
    """``event`` ran on a uniformly drawn subset of fixed size, a fraction ``sampling_fraction`` = L / N of the records.

    The size of the data is public here, so neighbours replace a record (or blank it out); none is added or removed.
    """

    sampling_fraction: float
    event: Event

    def __post_init__(self) -> None:
        value = checks.probability("sampling_fraction", self.sampling_fraction)
        object.__setattr__(self, "sampling_fraction", value)
        _check_unsampled(self.event, "FixedSizeSampled")
        if self.event.neighbours is Neighbours.ADD_REMOVE:
            raise EventError(
                "Fixed-size sampling was declared with add-remove neighbours.",
                why="Adding a record changes the fraction L/N and with it every other record's chance to be drawn.",
                fix="Use replace-one (or zero-out) neighbours, or sample by Poisson.",
            )

    @property
    def happens(self) -> bool:
        return self.sampling_fraction > 0


@dataclass(frozen=True)
class ReshuffledEpoch(Event):
    """One pass over disjoint batches, every record in exactly one; ``batches`` are the distinct releases made on them.

    A record meets one batch only, so the epoch costs what its most expensive batch costs (Yu et al. 2019, Theorem 2).
    That needs each record's batch not to depend on the other records: with equal-sized batches of a shuffled order,
    adding a record moves the others, so add-remove neighbours are allowed only with ``independent_assignment`` (every
    record draws its batch by itself). No amplification is claimed for the shuffling.
    """

    batches: tuple[Event, ...]
    independent_assignment: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", _event_tuple(self.batches, "ReshuffledEpoch.batches"))
        for batch in self.batches:
            _check_unsampled(batch, "ReshuffledEpoch")
        if not isinstance(self.independent_assignment, bool):
            raise EventError(f"independent_assignment must be true or false, got {self.independent_assignment!r}.")
        if self.neighbours is Neighbours.ADD_REMOVE and not self.independent_assignment:
            raise EventError(
                "A reshuffled epoch was declared with add-remove neighbours.",
                why="Adding one record to a shuffled order of equal-sized batches moves other records to other "
                "batches, so more than one batch changes.",
                fix="Use zero-out or replace-one neighbours, or let every record draw its batch independently "
                "(independent_assignment=True).",
            )

    @property
    def inner(self) -> tuple[Event, ...]:
        return self.batches


@dataclass(frozen=True)
class AdaptivelyChosen(_Around):
    """``event`` whose parameters (noise multiplier, sampling rate) were chosen from earlier releases.

    Ordinary composition theorems need the parameters fixed in advance; such an event can be certified only by a filter
    (a budget that an installed package offers, such as ``adadp.app.accounting.filters``).
    """

    event: Event

    def __post_init__(self) -> None:
        check_event(self.event, "AdaptivelyChosen.event")
        _refuse_disjoint((self.event,), "AdaptivelyChosen")


@dataclass(frozen=True)
class Composed(Event):
    """All of ``events``, one after another, each free to look at the results of those before."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", _event_tuple(self.events, "Composed.events"))

    @property
    def inner(self) -> tuple[Event, ...]:
        return self.events


@dataclass(frozen=True)
class Repeated(_Around):
    """``event``, ``count`` times over. A count of 0 releases nothing."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        check_event(self.event, "Repeated.event")
        object.__setattr__(self, "count", checks.count("count", self.count, minimum=0))

    @property
    def happens(self) -> bool:
        return self.count > 0


@dataclass(frozen=True)
class OtherEvent(Event):
    """An event that another package defines, found by the entry point ``kind`` of the group ``adadp.events``.

    It holds events of one neighbouring relation, planned in advance and outside of parts, and stays whole: no sampler
    holds it, and only accountants of Renyi divergences know what it costs.
    """

    kind: ClassVar[str]
    """Its name in JSON."""
    renyi_only: ClassVar[str]
    """Why other accountants refuse it, as a sentence."""

    def __post_init__(self) -> None:
        _event_tuple(self.inner, f"{type(self).__name__}.inner")
        if _holds_adaptive(self):
            raise EventError(
                f"{type(self).__name__} holds a run whose noise is chosen from its own releases.",
                why="Its price is proved for runs whose cost is fixed in advance.",
                fix="Put runs with planned noise into it.",
            )
        _refuse_disjoint(self.inner, type(self).__name__)

    @property
    @abstractmethod
    def inner(self) -> tuple[Event, ...]:
        """The events it is made of: it is silent if all of them are, and noiseless if one is."""

    @abstractmethod
    def log_moment(self, accountant: str) -> Callable[[float], float]:
        """An upper bound on theta -> log E_P[e^(theta L)] for both orders of the data sets and every theta > 0."""

    @abstractmethod
    def fields(self, encode: Callable[[Event], dict[str, Any]]) -> dict[str, Any]:
        """What it is beside its kind and its neighbours, as JSON; ``encode`` is for the events it holds."""

    @classmethod
    @abstractmethod
    def of(cls, body: dict[str, Any], decode: Callable[[object], Event]) -> OtherEvent:
        """The event with these ``fields``, which are taken out of ``body``; KeyError if one is missing."""

    @abstractmethod
    def describe(self) -> str:
        """One line for people."""


@dataclass(frozen=True)
class Disjoint(Event):
    """``parts[i]`` is all that is ever released from part i of the data; a record is in one part only.

    Neighbouring data sets then differ in one part, so the whole costs what the most expensive part costs. That needs
    each record's part not to depend on the other records: drawn by the record itself, or by its place in a data set
    whose size is public. A later part may look at what the earlier ones released.

    ==============================================  ======================================================
    case                                            result
    ==============================================  ======================================================
    no parts, or parts of different neighbours      EventError
    a part whose noise is chosen on the way         EventError: no filter knows which part a record is in
    inside a sampler, a search, or other parts      EventError: nobody has a theorem, or needs one
    one part                                        that part
    ==============================================  ======================================================
    """

    parts: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _event_tuple(self.parts, "Disjoint.parts"))
        if _holds_adaptive(self):
            raise EventError(
                "Disjoint holds a release whose noise is chosen from earlier ones.",
                why="Such releases are held to a budget as a whole, and a budget does not know parts.",
                fix="Plan the noise of every part in advance.",
            )
        _refuse_disjoint(self.parts, "Disjoint")

    @property
    def inner(self) -> tuple[Event, ...]:
        return self.parts


_SAMPLED_TYPES = (PoissonSampled, FixedSizeSampled, ReshuffledEpoch)


def compose(*events: Event) -> Event:
    """The composition of ``events``; a single event is returned as it is."""
    return events[0] if len(events) == 1 else Composed(tuple(events))


def flatten(event: Event) -> dict[Event, int]:
    """How often each indivisible event occurs: compositions and repetitions opened, equal events counted together.

    All others stay whole, as what a sampler holds shares one batch. Keys keep the order of their first appearance.
    """
    if not isinstance(event, (Repeated, Composed)):
        return {event: 1}
    times = event.count if isinstance(event, Repeated) else 1
    counts: dict[Event, int] = {}
    for part in event.inner if times else ():
        for each, count in flatten(part).items():
            counts[each] = counts.get(each, 0) + times * count
    return counts


def check_event(value: object, where: str) -> None:
    """Refuse anything that is not an event, naming ``where`` it was found."""
    if not isinstance(value, Event):
        raise EventError(
            f"{where} must be an event, got {value!r} ({type(value).__name__}).",
            fix="Build it from the classes in adadp.events.",
        )


def _event_tuple(values: object, where: str) -> tuple[Event, ...]:
    """``values`` as a non-empty tuple of events that all name the same neighbouring relation."""
    if not isinstance(values, (tuple, list)) or not values:
        raise EventError(f"{where} must be a non-empty sequence of events, got {values!r}.")
    for value in values:
        check_event(value, where)
    relations = sorted({value.neighbours.value for value in values})
    if len(relations) > 1:
        raise EventError(
            f"{where} mixes neighbouring relations: {', '.join(relations)}.",
            why="Guarantees about different pairs of data sets do not compose.",
            fix="Declare every event of one run with the same relation.",
        )
    return tuple(values)


def _check_unsampled(value: object, where: str) -> None:
    """What a sampler holds must itself be unsampled: no accountant here has a theorem for sampling a sample."""
    check_event(value, f"{where}.event")
    for part in flatten(value):  # type: ignore[arg-type]  # check_event has narrowed it
        if isinstance(part, AdaptivelyChosen):
            _check_unsampled(part.event, where)
        elif isinstance(part, _SAMPLED_TYPES):
            raise EventError(
                f"{where} holds {type(part).__name__}: a sample of a sample.",
                fix="Give the outer sampler the combined probability, or charge the two releases separately.",
            )
        elif isinstance(part, OtherEvent):
            raise EventError(
                f"{where} holds {type(part).__name__}, which is not sampled as a whole.",
                why="No theorem here says what sampling saves there.",
                fix="Sample inside of what it holds.",
            )
    _refuse_disjoint((value,), where)  # type: ignore[arg-type]


def _refuse_disjoint(events: tuple[Event, ...], where: str) -> None:
    """Parts are told apart once, outside of everything but compositions."""
    if any(isinstance(part, Disjoint) for event in events for part in flatten(event)):
        raise EventError(
            f"{where} holds Disjoint.",
            why="Which part a record is in is asked once for everything that is released.",
            fix=f"Put {where} inside the parts.",
        )


def _holds_adaptive(event: Event) -> bool:
    """Whether anything in ``event``, however deep, was chosen from earlier releases."""
    return isinstance(event, AdaptivelyChosen) or any(_holds_adaptive(each) for each in event.inner)


def is_silent(event: Event) -> bool:
    """Whether ``event`` tells nothing about the data: no record can be in its batch, or its stated cost is 0."""
    return not event.happens or (bool(event.inner) and all(is_silent(each) for each in event.inner))


def is_noiseless(event: Event) -> bool:
    """Whether any part of ``event`` looks at the data and releases it without noise, so that no epsilon is finite."""
    if isinstance(event, GaussianRelease):
        return event.noise_multiplier == 0
    return event.happens and any(is_noiseless(each) for each in event.inner)
