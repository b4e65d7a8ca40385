"""Momentum on released gradients and a clip bound that falls while the noise stays (Yu et al. 2018, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adadp import checks
from adadp.app.schedules import TimeDecay
from adadp.clipping import ClipRule, ClipState
from adadp.errors import InputError
from adadp.gradients import GradientEngine
from adadp.lab.methods.readings import check_choice
from adadp.methods.base import Deviations, Method, MethodDefaults, Parts, Query, Tensors
from adadp.methods.clipped import ClippedSum
from adadp.schedules import Schedule

_VARIANTS = ("both", "momentum", "clip", "neither")
_KEPT, _VARIANCE = "momentum/", "noise variance"


def variance_factor(c: float, steps: int | None = None) -> float:
    """How many times the variance of one step's noise is in m_t = c m_{t-1} + g~_t after ``steps`` steps; None: ever.

    (1 - c^2t) / (1 - c^2), section 2 of Yu et al. 2018.
    """
    return signal_factor(_coefficient(c) ** 2, steps)


def signal_factor(c: float, steps: int | None = None) -> float:
    """How many times a gradient that stays the same is in m_t: (1 - c^t) / (1 - c)."""
    c = _coefficient(c)
    past = 0.0 if steps is None else c ** checks.count("steps", steps)
    return (1 - past) / (1 - c)


@dataclass(frozen=True)
class DpSgdMomentum(Method):
    """DP-SGD with momentum ``c`` on what was released, and a clip bound that falls to a half over the run.

    ``variant`` leaves out one of the two, or both (plain DP-SGD): the four curves of figure 2. Where a run has no
    ``clip_norm_schedule`` of its own the bound is the printed C / min(2, 1 + t/T), epoch by epoch, and the noise keeps
    its standard deviation, so that its multiplier rises to twice what it began with. See docs/methods/momentum.md.
    """

    name = "dpsgd-momentum"
    defaults = MethodDefaults(optimizer="sgd", lr=0.02, clip_norm=12.0)

    variant: str = "both"
    c: float = 0.6

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, _VARIANTS)
        object.__setattr__(self, "c", _coefficient(self.c))

    @property
    def keeps_noise(self) -> bool:
        return self.variant in ("both", "clip")

    def clip_shape(self, epochs: int) -> Schedule | None:
        return TimeDecay(1.0, 1 / epochs, stop=epochs) if self.keeps_noise else None

    def query(self, engine: GradientEngine, rule: ClipRule, batch_size: int) -> Query:
        if self.variant in ("both", "momentum") and self.c:
            return MomentumSum(engine, rule, batch_size, self.c)
        return ClippedSum(engine, rule, batch_size)


class MomentumSum(ClippedSum):
    """A clipped sum whose released gradients are added up, each step keeping ``c`` of what was there (equation 5)."""

    def __init__(self, engine: GradientEngine, rule: ClipRule, batch_size: int, c: float) -> None:
        super().__init__(engine, rule, batch_size)
        self._c = c
        self._variance = 0.0
        """Of the noise in every coordinate of the velocity."""
        self._velocity = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in engine.zeros().items()}

    def to_gradient(self, released: Parts, deviation: float) -> Tensors:
        self._variance = self._next_variance(deviation)
        gradients = super().to_gradient(released, deviation)
        for name, velocity in self._velocity.items():
            velocity.mul_(self._c).add_(gradients[name])
        return {name: velocity.clone() for name, velocity in self._velocity.items()}

    def gradient_deviations(self, deviation: float) -> Deviations:
        return dict.fromkeys(self._velocity, math.sqrt(self._next_variance(deviation)))

    def _next_variance(self, deviation: float) -> float:
        return self._c**2 * self._variance + (deviation / self.divisor) ** 2

    def tensors(self) -> Tensors:
        kept = {f"{_KEPT}{name}": value.clone() for name, value in self._velocity.items()}
        return super().tensors() | kept | {_VARIANCE: torch.tensor(self._variance, dtype=torch.float64)}

    def restore(self, clip_state: ClipState, tensors: Mapping[str, Tensor]) -> None:
        super().restore(clip_state, tensors)
        for name, velocity in self._velocity.items():
            velocity.copy_(tensors[f"{_KEPT}{name}"])
        self._variance = float(tensors[_VARIANCE])


def _coefficient(c: object) -> float:
    number = checks.non_negative("c", c, why="It is the share of the last step that is kept.")
    if not number < 1:
        raise InputError(
            f"c must be below 1, got {number:g}.", why="From 1 on the steps grow without end.", fix="Pass 0.6."
        )
    return number
