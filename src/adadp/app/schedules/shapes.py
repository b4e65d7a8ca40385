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
from collections.abc import Callable
from dataclasses import dataclass

from adadp import checks
from adadp.errors import InputError
from adadp.schedules import Piecewise, Schedule


@dataclass(frozen=True)
class TimeDecay(Schedule):
    """``s0 / (1 + k n)`` after ``n`` whole periods."""

    shape = "time"
    s0: float
    k: float
    period: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keep(s0=checks.positive("s0", self.s0), k=_rate(self.k), period=_period(self.period))

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
        self._keep(s0=checks.positive("s0", self.s0), k=_rate(self.k), period=_period(self.period))

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
        self._keep(s0=checks.positive("s0", self.s0), k=k, period=_period(self.period))

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
        self._keep(s0=s0, k=_rate(self.k), s_end=s_end, period=_period(self.period))

    def _formula(self, epoch: int) -> float:
        if epoch >= self.period:
            return self.s_end
        return float((self.s0 - self.s_end) * (1 - epoch / self.period) ** self.k + self.s_end)


def tabulated(function: Callable[[int], float], epochs: int) -> Piecewise:
    """Any function of the epoch, asked once for each of the first ``epochs`` epochs.

    What comes out is plain data: it can be written into a configuration and a certificate, and a resumed run follows
    the very same numbers. The function must not look at the private data.
    """
    epochs = checks.count("epochs", epochs)
    return Piecewise.of(checks.positive(f"the value at epoch {epoch}", function(epoch)) for epoch in range(epochs))


def _rate(k: object) -> float:
    return checks.positive("k", k, why="It says how fast the value falls.")


def _period(period: object) -> int:
    return checks.count("period", period, minimum=1, why="It is a number of epochs.")
