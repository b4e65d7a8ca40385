"""Numbers over the epochs of a run (noise multiplier, clip bound, rate, batch size): the interface, and tables of them.

    uniform    s0 in every epoch                                          s0
    piecewise  the value given for the last epoch that is not after e     epoch=value, from 0=value on

Any other shape is a subclass of ``Schedule``, and ``table`` states it as a piecewise one. With ``tick`` a schedule
counts stretches of so many steps in place of epochs, 1 being every step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, final

from adadp import checks
from adadp.errors import InputError


@dataclass(frozen=True)
class Schedule(ABC):
    """A number for every epoch. Immutable, hashable, and equal to any schedule with the same shape and parameters.

    In a window its epoch 0 is ``start``; before ``start`` and from ``stop`` on the value stays what it is there.
    """

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
            self._keep(tick=checks.count("tick", self.tick, why="It is the number of steps for which the value stays."))
        self._keep(start=checks.count("start", self.start, minimum=0, why="Epochs are counted from 0."))
        if self.stop is not None:
            why = "Between start and stop the value changes."
            self._keep(stop=checks.count("stop", self.stop, minimum=self.start + 1, why=why))

    @final
    def _keep(self, **values: object) -> None:
        """Store checked parameters."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

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
        self._keep(s0=checks.positive("s0", self.s0))

    def _formula(self, epoch: int) -> float:  # noqa: ARG002
        return self.s0


@dataclass(frozen=True)
class Piecewise(Schedule):
    """Constant pieces: ``points`` are pairs of the epoch from which on a value holds, and the value."""

    shape = "piecewise"
    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        why = "Epochs are counted from 0."
        points = tuple(
            (checks.count("epoch", epoch, minimum=0, why=why), checks.positive("value", value))
            for epoch, value in self.points
        )
        epochs = [epoch for epoch, _ in points]
        if not epochs or epochs[0] != 0 or sorted(set(epochs)) != epochs:
            raise InputError(
                f"The epochs of a piecewise schedule must begin with 0 and rise, got {epochs}.",
                why="Every epoch needs exactly one value.",
                fix="Write it like piecewise:0=10,20=5.",
            )
        if self.start or self.stop is not None:
            raise InputError("A piecewise schedule has no start and stop.", fix="Move its epochs instead.")
        self._keep(points=points)

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


def number_text(value: float) -> str:
    """The shortest usual spelling that reads back as exactly ``value``."""
    if isinstance(value, int):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
