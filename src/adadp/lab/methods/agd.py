"""DP-AGD (Lee and Kifer 2018): the length of every step is chosen privately, and so is when to pay for less noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adadp import checks
from adadp.clipping import ClipRule, ClipState
from adadp.gradients import GradientEngine
from adadp.lab.methods.readings import check_choice
from adadp.methods.base import GRADIENT, Choose, Deviations, Method, MethodDefaults, Parts, Tensors
from adadp.methods.clipped import ClippedSum

_AVERAGE, _NUMBERS = "average/", "numbers"
_FARTHEST = 100.0
"""Losses beyond so many times ``c_obj`` count as that before their difference is taken: rounding grows with a loss, and
the difference of two has the rounding of both."""
_ROUNDING = 0.25
"""Rounding of a loss, 4 * 2**-24 of it, in units of the 16 * 2**-24 that are allowed for (``PrivateGradients``)."""


@dataclass(frozen=True)
class Agd(Method):
    """One try per batch: a noisy direction, then one of ``grid`` + 1 lengths along it, 0 among them, by how the clipped
    loss of the batch would be. When 0 wins the direction was too noisy: the next try spends (1 + ``gamma``) times the
    zCDP, of which the last one counts. See docs/methods/agd.md.

    ``share`` is the zCDP of a choice over that of the first gradient. The first noise is ``start`` times what would
    last for the whole run: at 1 every raise shortens it, above there is something left for them. ``c_obj`` bounds what
    one record contributes to a score, its loss or with ``score`` gain how much its loss changes. The grid reaches from
    0 to ``longest``; every ``tau`` steps taken to (1 + ``eta``) times the longest of them.
    """

    name = "agd"
    defaults = MethodDefaults(optimizer="sgd", lr=1.0)

    score: str = "gain"
    c_obj: float = 0.1
    share: float = 0.1
    start: float = 1.0
    gamma: float = 0.1
    grid: int = 10
    longest: float = 1.0
    tau: int = 10
    eta: float = 0.1

    def __post_init__(self) -> None:
        check_choice("score", self.score, ("gain", "loss"))
        for name in ("c_obj", "share", "start", "gamma", "longest"):
            object.__setattr__(self, name, checks.positive(name, getattr(self, name)))
        for name in ("grid", "tau"):
            object.__setattr__(self, name, checks.count(name, getattr(self, name)))
        object.__setattr__(self, "eta", checks.non_negative("eta", self.eta))

    @property
    def choice(self) -> float:
        return self.share

    @property
    def first_noise(self) -> float:
        return self.start

    def noise_factor(self, raises: int, *, fresh: bool) -> float:
        """The noise of a try over the first noise, when the budget was raised so often; ``fresh``: not after a 0.

        A fresh try has (1 + gamma)^raises times the precision of the first. One after a 0 adds what is missing to that,
        gamma / (1 + gamma) of it, to the average of the tries before.
        """
        precision = (1 + self.gamma) ** raises * (1 if fresh else self.gamma / (1 + self.gamma))
        return 1 / math.sqrt(precision)

    def query(self, engine: GradientEngine, rule: ClipRule, batch_size: int) -> AgdQuery:
        return AgdQuery(self, engine, rule, batch_size)


class AgdQuery(ClippedSum):
    """Algorithm 2 of Lee and Kifer 2018, one try at a time. All that it keeps was released.

    ==============================================  ================================================================
    0 wins                                          no parameter moves; the average of the noisy gradients is kept
    the average is exactly 0 (no noise, no record)  the direction is 0, and every length the same
    a record whose loss is NaN                      counts as one whose loss is infinite, which it is just before
    a loss beyond 100 c_obj, score = gain           counts as that: its rounding would pass for a change
    ==============================================  ================================================================
    """

    def __init__(self, settings: Agd, engine: GradientEngine, rule: ClipRule, batch_size: int) -> None:
        super().__init__(engine, rule, batch_size)
        self._settings = settings
        self._average = {name: value.double() for name, value in engine.zeros().items()}
        self._weight = 0.0
        """Precision of the average; 0: there is none yet."""
        self._raises, self._taken, self._reached, self._longest = 0, 0, 0.0, settings.longest

    @property
    def noise_factor(self) -> float:
        return self._settings.noise_factor(self._raises, fresh=self._weight == 0)

    @property
    def score_bound(self) -> float:
        """What one record more adds to a score, at most; it takes nothing off."""
        return self._settings.c_obj * (2 if self._settings.score == "gain" else 1)

    @property
    def score_steepness(self) -> float:
        """What rounding of losses does to a score, in units of what is allowed for in a gradient."""
        return _ROUNDING * _FARTHEST if self._settings.score == "gain" else 1.0  # a gain has the rounding of two losses

    def lengths(self) -> list[float]:
        """How far along the direction one may go; the first is 0."""
        grid = self._settings.grid
        return [self._longest * number / grid for number in range(grid + 1)]

    def to_gradient(self, released: Parts, deviation: float) -> Tensors:
        self._learn(released)
        weight = deviation**-2 if deviation else 1.0
        self._weight += weight
        for name, value in released[GRADIENT].items():
            self._average[name].lerp_(value.double(), weight / self._weight)
        norm = torch.stack([value.square().sum() for value in self._average.values()]).sum().sqrt()
        return {name: value / norm if norm > 0 else value.clone() for name, value in self._average.items()}

    def gradient_deviations(self, deviation: float) -> Deviations | None:  # noqa: ARG002
        return None  # a direction of length 1 is not what was released times public numbers

    def search(self, gradients: Tensors, choose: Choose) -> Tensors:
        bound, steepness = self.score_bound, self.score_steepness
        number = choose(gradients, self.lengths(), self.scores, bound=bound, steepness=steepness)
        return self.chose(number, gradients)

    def scores(self, losses: Tensor) -> Tensor:
        """What the records of a chunk contribute to the score of each length, each within [0, ``score_bound``]."""
        bound = self._settings.c_obj
        losses = losses.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
        if self._settings.score == "gain":
            losses = losses.clamp(-_FARTHEST * bound, _FARTHEST * bound)  # its rounding is in proportion to a loss
            losses = losses - losses[:1] + bound
        return losses.clamp(0, self.score_bound).sum(1)

    def chose(self, number: int, direction: Tensors) -> Tensors:
        """The gradient for the optimizer, now that the length with this number was drawn."""
        settings, length = self._settings, self.lengths()[number]
        if number == 0:
            self._raises += 1
        else:
            self._weight, self._taken, self._reached = 0.0, self._taken + 1, max(self._reached, length)
            if self._taken % settings.tau == 0:
                self._longest, self._reached = (1 + settings.eta) * self._reached, 0.0
        return {name: value * length for name, value in direction.items()}

    def tensors(self) -> Tensors:
        kept = {f"{_AVERAGE}{name}": value.clone() for name, value in self._average.items()}
        numbers = [self._weight, self._raises, self._taken, self._reached, self._longest]
        return super().tensors() | kept | {_NUMBERS: torch.tensor(numbers, dtype=torch.float64)}

    def restore(self, clip_state: ClipState, tensors: Mapping[str, Tensor]) -> None:
        super().restore(clip_state, tensors)
        for name, value in self._average.items():
            value.copy_(tensors[f"{_AVERAGE}{name}"])
        self._weight, raises, taken, self._reached, self._longest = tensors[_NUMBERS].tolist()
        self._raises, self._taken = int(raises), int(taken)
