"""Shapes over the epochs: how a number (noise multiplier, clip bound, rate, batch) goes from one epoch to the next.

    shape      value at epoch e = 0, 1, ...                               parameters
    uniform    s0                                                         s0
    time       s0 / (1 + k n)                    n = floor(e / period)    s0, k > 0, period (1 unless given)
    exp        s0 exp(-k n)                      n = floor(e / period)    s0, k > 0, period (1 unless given)
    step       s0 k^n                            n = floor(e / period)    s0, 0 < k < 1, period
    poly       (s0 - s_end) (1 - e / period)^k + s_end while e < period,  s0, k > 0, s_end, period
               s_end from then on
    piecewise  the value given for the last epoch that is not after e     epoch=value, from 0=value on

uniform to poly are the pre-defined schedules of Yu et al. 2019, "Differentially Private Model Publishing for Deep
Learning", section IV-A. They look at no data, so following one costs nothing beyond the releases it sets the noise of.

Every shape but piecewise can be used in a window: with ``start`` and ``stop`` its epoch 0 is ``start``, and before
``start`` and from ``stop`` on the value stays what it is there.

With ``tick`` a schedule counts stretches of so many steps in place of epochs, 1 being every step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, final

from adadp import checks
from adadp.errors import InputError


@dataclass(frozen=True)
class Schedule(ABC):
    """A number for every epoch. Immutable, hashable, and equal to any schedule with the same shape and parameters."""

    shape: ClassVar[str]
    """Name of the shape in text."""

    _sizes: ClassVar[tuple[str, ...]] = ("s0",)
    """Parameters in the unit of the value: those that ``scaled`` multiplies."""

    start: int = field(default=0, kw_only=True)
    stop: int | None = field(default=None, kw_only=True)
    tick: int | None = field(default=None, kw_only=True)
    """Steps that count as one epoch does otherwise."""

    def __post_init__(self) -> None:
        if self.tick is not None:
            why = "It is the number of steps for which the value stays."
            object.__setattr__(self, "tick", checks.count("tick", self.tick, why=why))
        start = checks.count("start", self.start, minimum=0, why="Epochs are counted from 0.")
        object.__setattr__(self, "start", start)
        if self.stop is not None:
            why = "Between start and stop the value changes."
            object.__setattr__(self, "stop", checks.count("stop", self.stop, minimum=start + 1, why=why))

    @abstractmethod
    def _formula(self, epoch: int) -> float:
        """The shape itself, without looking at what comes out."""

    @final
    def value_at(self, epoch: int) -> float:
        """The value in ``epoch``, counted from 0; positive and finite, or an error."""
        epoch = checks.count("epoch", epoch, minimum=0, why="Epochs are counted from 0.")
        try:
            value = self._formula(max(min(epoch, epoch if self.stop is None else self.stop) - self.start, 0))
        except OverflowError:  # an epoch beyond the range of a float: every decay has ended long before
            value = 0.0
        if not 0 < value < math.inf:
            raise InputError(
                f"The schedule {self} gives {value:g} at epoch {epoch}.",
                why="A noise multiplier of 0 would release the data without noise; a learning rate or clip bound of 0 "
                "would end the training.",
                fix="Stop earlier, let it decay more slowly, or use a shape with an end value (poly).",
            )
        return value

    @final
    def value_of(self, step: int, epoch: int) -> float:
        """The value in ``step``, which belongs to ``epoch``."""
        return self.value_at(epoch if self.tick is None else step // self.tick)

    def scaled(self, factor: float) -> Schedule:
        """The same shape times ``factor`` > 0 at every epoch."""
        factor = checks.positive("factor", factor, why="A schedule stays positive.")
        return replace(self, **{name: factor * getattr(self, name) for name in self._sizes})

    @property
    def highest(self) -> float:
        """No value of the schedule is larger."""
        return max(float(getattr(self, name)) for name in self._sizes)

    @final
    def values(self, epochs: int) -> list[float]:
        """The values of the first ``epochs`` epochs."""
        return [self.value_at(epoch) for epoch in range(epochs)]

    def __str__(self) -> str:
        ordered = sorted(fields(self), key=lambda each: each.kw_only is True)  # the window last
        values = {each.name: getattr(self, each.name) for each in ordered}
        shown = [each.name for each in ordered if values[each.name] != each.default]
        return f"{self.shape}:" + ",".join(f"{name}={number_text(values[name])}" for name in shown)


@dataclass(frozen=True)
class Uniform(Schedule):
    """``s0`` in every epoch."""

    shape = "uniform"
    s0: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _keep(self, s0=checks.positive("s0", self.s0))

    def _formula(self, epoch: int) -> float:  # noqa: ARG002
        return self.s0


@dataclass(frozen=True)
class TimeDecay(Schedule):
    """``s0 / (1 + k n)`` after ``n`` whole periods."""

    shape = "time"
    s0: float
    k: float
    period: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _keep(self, s0=checks.positive("s0", self.s0), k=_rate(self.k), period=_period(self.period))

    def _formula(self, epoch: int) -> float:
        return self.s0 / (1 + self.k * (epoch // self.period))


@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """``s0 exp(-k n)`` after ``n`` whole periods."""

    shape = "exp"
    s0: float
    k: float
    period: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _keep(self, s0=checks.positive("s0", self.s0), k=_rate(self.k), period=_period(self.period))

    def _formula(self, epoch: int) -> float:
        return self.s0 * math.exp(-self.k * (epoch // self.period))


@dataclass(frozen=True)
class StepDecay(Schedule):
    """``s0 k^n`` after ``n`` whole periods."""

    shape = "step"
    s0: float
    k: float
    period: int

    def __post_init__(self) -> None:
        super().__post_init__()
        k = _rate(self.k)
        if k >= 1:
            raise InputError(
                f"k of a step schedule must be below 1, got {k:g}.",
                why="It is the factor applied after every period: at 1 nothing changes, above 1 the value grows.",
                fix="Pass 0 < k < 1, for example k=0.6.",
            )
        _keep(self, s0=checks.positive("s0", self.s0), k=k, period=_period(self.period))

    def _formula(self, epoch: int) -> float:
        return float(self.s0 * self.k ** (epoch // self.period))


@dataclass(frozen=True)
class PolynomialDecay(Schedule):
    """``(s0 - s_end) (1 - e / period)^k + s_end`` until epoch ``period``, and ``s_end`` from then on."""

    shape = "poly"
    _sizes = ("s0", "s_end")
    s0: float
    k: float
    s_end: float
    period: int

    def __post_init__(self) -> None:
        super().__post_init__()
        s0, s_end = checks.positive("s0", self.s0), checks.positive("s_end", self.s_end)
        if s_end == s0:
            raise InputError(
                f"s_end must differ from s0, got {s_end:g} for both.",
                why="The value goes from s0 to s_end.",
                fix="Pass another s_end, or use the uniform shape.",
            )
        _keep(self, s0=s0, k=_rate(self.k), s_end=s_end, period=_period(self.period))

    def _formula(self, epoch: int) -> float:
        if epoch >= self.period:
            return self.s_end
        return float((self.s0 - self.s_end) * (1 - epoch / self.period) ** self.k + self.s_end)


@dataclass(frozen=True)
class Piecewise(Schedule):
    """Constant pieces: ``points`` are pairs of the epoch from which on a value holds, and the value."""

    shape = "piecewise"
    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        points = tuple((_epoch(epoch), checks.positive("value", value)) for epoch, value in self.points)
        epochs = [epoch for epoch, _ in points]
        if not epochs or epochs[0] != 0 or sorted(set(epochs)) != epochs:
            raise InputError(
                f"The epochs of a piecewise schedule must begin with 0 and rise, got {epochs}.",
                why="Every epoch needs exactly one value.",
                fix="Write it like piecewise:0=10,20=5.",
            )
        if self.start or self.stop is not None:
            raise InputError("A piecewise schedule has no start and stop.", fix="Move its epochs instead.")
        _keep(self, points=points)

    @classmethod
    def of(cls, values: Iterable[float], tick: int | None = None) -> Piecewise:
        """The schedule with these values in epochs (or stretches of ``tick`` steps) 0, 1, ..., the last for ever."""
        points: list[tuple[int, float]] = []
        for epoch, value in enumerate(values):
            if not points or points[-1][1] != value:
                points.append((epoch, value))
        return cls(tuple(points), tick=tick)

    def scaled(self, factor: float) -> Piecewise:
        """The same shape times ``factor`` > 0 at every epoch."""
        factor = checks.positive("factor", factor, why="A schedule stays positive.")
        return replace(self, points=tuple((epoch, factor * value) for epoch, value in self.points))

    @property
    def highest(self) -> float:
        """No value of the schedule is larger."""
        return max(value for _, value in self.points)

    def __str__(self) -> str:
        pieces = [f"{epoch}={number_text(value)}" for epoch, value in self.points]
        return f"{self.shape}:" + ",".join(pieces + ([] if self.tick is None else [f"tick={self.tick}"]))

    def _formula(self, epoch: int) -> float:
        return next(value for begins, value in reversed(self.points) if begins <= epoch)


def tabulated(function: Callable[[int], float], epochs: int) -> Piecewise:
    """Any function of the epoch, asked once for each of the first ``epochs`` epochs.

    What comes out is plain data: it can be written into a configuration and a certificate, and a resumed run follows
    the very same numbers. The function must not look at the private data.
    """
    epochs = checks.count("epochs", epochs)
    return Piecewise.of(checks.positive(f"the value at epoch {epoch}", function(epoch)) for epoch in range(epochs))


def _keep(schedule: Schedule, **values: object) -> None:
    """Store checked parameters in a frozen schedule."""
    for name, value in values.items():
        object.__setattr__(schedule, name, value)


def _rate(k: object) -> float:
    return checks.positive("k", k, why="It says how fast the value falls.")


def _period(period: object) -> int:
    return checks.count("period", period, minimum=1, why="It is a number of epochs.")


def _epoch(epoch: object) -> int:
    return checks.count("epoch", epoch, minimum=0, why="Epochs are counted from 0.")


def number_text(value: float) -> str:
    """The shortest usual spelling that reads back as exactly ``value``."""
    if isinstance(value, int):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
