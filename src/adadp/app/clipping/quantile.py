"""A bound that follows a quantile of the gradient norms, learnt from a noisy count on every batch.

Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping". With the current bound C each batch
releases

    b~ = (sum over the batch of h(n) + N(0, (z / 2)^2)) / L + 1/2,       z = count_noise_multiplier,

an estimate of the fraction of records with a norm of at most C, and then C <- C exp(-eta (b~ - quantile)).

h is 1/2 for norms below C, -1/2 for those above: 1/2 is subtracted from the indicator so that a record contributes +1/2
or -1/2 instead of 0 or 1, half the sensitivity. From 0.95 C to 1.05 C it falls on a line, where Andrew et al. have a
step. The last bits of a norm follow from the place of the record in its batch: on a step, a record that is moved by
another one could change sides.

Why L is the *expected* batch size: the realised one is private. Over Poisson batches with L = q N the estimate is
unbiased. For one batch of size B it is 1/2 + (B / L)(f - 1/2), f being the fraction in the batch. Where L is not q N
the mean is off in the same way, and C settles where f = 1/2 + (L / qN)(quantile - 1/2): exactly right for the median,
and off by 0.4 (L / qN - 1) for the 0.9 quantile. (Counting 1[n <= C] - quantile would have no such bias and the larger
sensitivity max(quantile, 1 - quantile).)

What an optimizer gets is the released gradient times (C_0 / C)^(1 - follow), C_0 being where the bound began. C can
fall or rise a hundredfold within a run, and with ``follow`` = 1, as in the paper, gradient, noise and step go with it.
An optimizer that divides by averages of earlier squares (Adam) then makes steps that are too short for a thousand steps
after C has fallen. With 0 the gradient is measured in C, and the steps stay as long as the rate says.

    case                                             what happens
    the released count is huge, either sign          C goes to ceiling or floor, not further
    the released count is inf                        the same
    the released count is NaN                        C stays
    a record with a norm of 1e15 or more, inf, NaN   counts 0, as it weighs 0; from 1e12 on it counts less and less
    an empty batch                                     the query is 0; noise is released and C moves by it
    nothing but noise                                C is a random walk between floor and ceiling
    a state without a bound, or one out of range     InputError
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from adadp import checks
from adadp.clipping.base import (
    AdaptiveClipRule,
    ClipState,
    bound_in_range,
    clipped_weights,
    fading,
    norms_of,
    single_group,
    unique_names,
)
from adadp.errors import InputError

RAMP = 0.05
"""Half the width of the line on which a record goes from counting to not counting, relative to the bound."""

LONGEST_STEP = 60.0
"""Largest change of log C that is computed: exp of it leads from any bound past any floor or ceiling."""


@dataclass(frozen=True, kw_only=True)
class QuantileAdaptive(AdaptiveClipRule):
    """Flat clipping at a bound C that moves towards the ``quantile`` of the norms; C is the state.

    ``floor`` and ``ceiling`` are not optional: where most gradients shrink to nothing, or where the count is mostly
    noise, C would otherwise follow to 0 and stop the training, or grow without end. Andrew et al. recommend a standard
    deviation of L / 20 on the count, which is ``count_noise_multiplier`` = L / 10.
    """

    name = "quantile"
    example = "quantile:initial=1,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100,follow=0"
    options: ClassVar[dict[str, str]] = {
        "initial": "initial",
        "quantile": "quantile",
        "lr": "learning_rate",
        "count_noise": "count_noise_multiplier",
        "floor": "floor",
        "ceiling": "ceiling",
        "follow": "follow",
    }
    count_bound = 0.5
    count_steepness = (1 + RAMP) / RAMP

    initial: float
    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise_multiplier: float
    floor: float
    ceiling: float
    follow: float = 0.0
    """The power of the bound that is in the steps: 1 as published, 0 for steps that do not change with it."""

    def __post_init__(self) -> None:
        checked = {name: bound_in_range(name, getattr(self, name)) for name in ("initial", "floor", "ceiling")}
        checked["learning_rate"] = checks.positive("learning_rate", self.learning_rate, why="The bound has to move.")
        checked["count_noise_multiplier"] = checks.positive(
            "count_noise_multiplier",
            self.count_noise_multiplier,
            why="Without noise the count of every batch would be released as it is.",
        )
        checked["quantile"] = checks.probability("quantile", self.quantile)
        checked["follow"] = checks.probability("follow", self.follow, why="It is the share of log C in the steps.")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not 0 < self.quantile < 1:
            raise InputError(
                f"quantile must lie strictly between 0 and 1, got {self.quantile:g}.",
                why="No bound has all, or none, of the norms below it: C would run to the ceiling or the floor.",
                fix="Pass a quantile between 0.1 and 0.9; 0.5 is the median.",
            )
        if not self.floor <= self.initial <= self.ceiling or self.floor == self.ceiling:
            raise InputError(
                f"floor={self.floor:g}, initial={self.initial:g}, ceiling={self.ceiling:g} are not in this order.",
                why="The bound starts at initial and moves between floor and ceiling.",
                fix="Pass floor <= initial <= ceiling with floor < ceiling, or use the flat rule for a fixed bound.",
            )

    def groups(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        return (unique_names(names),)

    def initial_state(self) -> ClipState:
        return {"bound": self.initial}

    def l2_bound(self, groups_count: int, state: ClipState) -> float:
        single_group(groups_count)
        return self._bound(state)

    def weights(self, square_norms: Tensor, state: ClipState) -> Tensor:
        return clipped_weights(norms_of(square_norms, groups_count=1), self._bound(state))

    def count_query(self, square_norms: Tensor, state: ClipState) -> Tensor:
        """Sum over the records of h: +1/2 where the norm is well below C, -1/2 where it is well above."""
        norms = norms_of(square_norms, groups_count=1).double()
        excess = (1 - norms / self._bound(state)) / (2 * RAMP)
        halves = excess.clamp(-self.count_bound, self.count_bound)
        fade = fading(norms)
        return (halves * fade).where(fade > 0, 0.0).sum()

    def update(self, state: ClipState, released: float) -> ClipState:
        """C exp(-eta (b~ - quantile)) between floor and ceiling, with b~ = ``released`` + 1/2.

        ``released`` is the count query plus noise, divided by the expected batch size.
        """
        bound, fraction = self._bound(state), float(released) + 0.5
        if math.isnan(fraction):
            return {"bound": bound}
        step = self.learning_rate * (self.quantile - fraction)
        factor = math.exp(min(max(step, -LONGEST_STEP), LONGEST_STEP))
        return {"bound": min(max(bound * factor, self.floor), self.ceiling)}

    def step_factor(self, state: ClipState) -> float:
        return float((self.initial / self._bound(state)) ** (1 - self.follow))

    def describe(self) -> str:
        return (
            f"each record's gradient is clipped to an l2 norm that starts at {self.initial:g} and follows the "
            f"{self.quantile:g} quantile between {self.floor:g} and {self.ceiling:g}; a count with noise multiplier "
            f"{self.count_noise_multiplier:g} is released on every batch"
        )

    def _bound(self, state: ClipState) -> float:
        """The current bound, from a state of this rule."""
        bound = checks.positive("the bound in the state", state.get("bound"), why="The quantile rule clips at it.")
        if not self.floor <= bound <= self.ceiling:
            raise InputError(
                f"The bound {bound:g} in the state is not between {self.floor:g} and {self.ceiling:g}.",
                why="No update of this rule leads there: the state belongs to another rule, or was edited.",
                fix="Start from rule.initial_state().",
            )
        return bound
