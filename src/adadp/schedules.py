"""Shapes over the epochs: how a number, usually the noise multiplier, falls from one epoch to the next.

    shape     value at epoch e = 0, 1, ...                               parameters
    uniform   s0                                                         s0
    time      s0 / (1 + k n)                    n = floor(e / period)    s0, k > 0, period (1 unless given)
    exp       s0 exp(-k n)                      n = floor(e / period)    s0, k > 0, period (1 unless given)
    step      s0 k^n                            n = floor(e / period)    s0, 0 < k < 1, period
    poly      (s0 - s_end) (1 - e / period)^k + s_end while e < period,  s0, k > 0, s_end < s0, period
              s_end from then on

These are the pre-defined schedules of Yu et al. 2019, "Differentially Private Model Publishing for Deep Learning",
section IV-A. They look at no data, so following one costs nothing beyond the releases it sets the noise of.

A schedule is written as text, ``exp:s0=10,k=0.01``: ``parse_schedule`` reads it and ``str`` writes it back exactly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields, replace
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

    @abstractmethod
    def _formula(self, epoch: int) -> float:
        """The shape itself, without looking at what comes out."""

    @final
    def value_at(self, epoch: int) -> float:
        """The value in ``epoch``, counted from 0; positive and finite, or an error."""
        epoch = checks.count("epoch", epoch, minimum=0, why="Epochs are counted from 0.")
        try:
            value = self._formula(epoch)
        except OverflowError:  # an epoch beyond the range of a float: every decay has ended long before
            value = 0.0
        if not 0 < value < math.inf:
            raise InputError(
                f"The schedule {self} gives {value:g} at epoch {epoch}.",
                why="A noise multiplier of 0 would release the data without noise.",
                fix="Stop earlier, let it decay more slowly, or use a shape with an end value (poly).",
            )
        return value

    @final
    def scaled(self, factor: float) -> Schedule:
        """The same shape times ``factor`` > 0 at every epoch."""
        factor = checks.positive("factor", factor, why="A schedule stays positive.")
        return replace(self, **{name: factor * getattr(self, name) for name in self._sizes})

    @final
    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = [field.name for field in fields(self) if values[field.name] != field.default]
        return f"{self.shape}:" + ",".join(f"{name}={_number_text(values[name])}" for name in shown)


@dataclass(frozen=True)
class Uniform(Schedule):
    """``s0`` in every epoch."""

    shape = "uniform"
    s0: float

    def __post_init__(self) -> None:
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
        s0, s_end = checks.positive("s0", self.s0), checks.positive("s_end", self.s_end)
        if s_end >= s0:
            raise InputError(
                f"s_end must be below s0, got s_end={s_end:g} and s0={s0:g}.",
                why="The value falls from s0 to s_end.",
                fix="Pass a smaller s_end, or use the uniform shape.",
            )
        _keep(self, s0=s0, k=_rate(self.k), s_end=s_end, period=_period(self.period))

    def _formula(self, epoch: int) -> float:
        if epoch >= self.period:
            return self.s_end
        return float((self.s0 - self.s_end) * (1 - epoch / self.period) ** self.k + self.s_end)


SHAPES: dict[str, type[Schedule]] = {
    kind.shape: kind for kind in (Uniform, TimeDecay, ExponentialDecay, StepDecay, PolynomialDecay)
}


def parse_schedule(text: str) -> Schedule:
    """The schedule written as ``shape:name=number,name=number``, for example ``step:s0=10,k=0.6,period=10``."""
    if not isinstance(text, str):
        raise InputError(
            f"A schedule must be text, got {text!r} ({type(text).__name__}).", fix="Write it like exp:s0=10,k=0.01."
        )
    name, _, rest = (part.strip() for part in text.partition(":"))
    kind = SHAPES.get(name)
    if kind is None:
        raise InputError(
            f"Unknown schedule shape {name!r}.",
            fix=f"Use one of: {', '.join(SHAPES)}. A schedule looks like exp:s0=10,k=0.01.",
        )
    parameters = {field.name: field.default is MISSING for field in fields(kind)}
    values: dict[str, float] = {}
    for item in rest.split(",") if rest else ():
        key, equals, number = (part.strip() for part in item.partition("="))
        if not equals:
            raise InputError(f"{item!r} in the schedule {text!r} is not name=number.", fix=_usage(kind))
        if key not in parameters:
            raise InputError(f"The {name} schedule has no parameter {key!r}.", fix=_usage(kind))
        if key in values:
            raise InputError(
                f"The schedule {text!r} gives {key} twice.", why="Only one of the two could be used.", fix=_usage(kind)
            )
        values[key] = _number(key, number)
    missing = [key for key, required in parameters.items() if required and key not in values]
    if missing:
        raise InputError(f"The {name} schedule {text!r} lacks {', '.join(missing)}.", fix=_usage(kind))
    return kind(**values)


def _usage(kind: type[Schedule]) -> str:
    """Which parameters ``kind`` takes, as the last sentence of an error."""
    names = [field.name if field.default is MISSING else f"[{field.name}]" for field in fields(kind)]
    return f"It takes {', '.join(names)} (those in brackets may be left out), each once, as name=number."


def _number(name: str, text: str) -> float:
    """``text`` as an int where it is one, so that a long period keeps every digit, and as a float otherwise."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    raise InputError(f"{name} must be a number, got {text!r}.", fix=f"Write {name} like 10 or 0.01.")


def _number_text(value: float) -> str:
    """The shortest usual spelling that reads back as exactly ``value``."""
    if isinstance(value, int):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _keep(schedule: Schedule, **values: float) -> None:
    """Store checked parameters in a frozen schedule."""
    for name, value in values.items():
        object.__setattr__(schedule, name, value)


def _rate(k: object) -> float:
    return checks.positive("k", k, why="It says how fast the value falls.")


def _period(period: object) -> int:
    return checks.count("period", period, minimum=1, why="It is a number of epochs.")
