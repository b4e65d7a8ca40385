"""Gradients clamped to a box, with a noise for every coordinate: what the published ADADP and DPOPT share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adadp.clipping import AdaptiveClipRule, ClipRule, ClipState
from adadp.errors import InputError
from adadp.gradients import Capture, GradientEngine
from adadp.lab.methods.clamped import clamped_sums
from adadp.methods.base import GRADIENT, Parts, Query, Tensors


@dataclass(frozen=True)
class Box:
    """Bounds s_i of the coordinates, and the deviations sigma_i of their noise for a noise multiplier of 1."""

    bounds: Tensors
    deviations: Tensors


class BoxQuery(Query):
    """The sum of gradients clamped to a box, once there is one; until then they are clipped by the rule.

    NOT PRIVATE by itself: whoever makes the box must say what it is made of.

    Noise is the same in every coordinate of what ``finalize`` returns, so these are x_i / sigma_i, of a record x in the
    box, to which noise of deviation sigma\\* is added: times sigma_i that is sigma\\* sigma_i. With the sum of
    s_i^2 / sigma_i^2 at most 1 a clamped gradient has at most the length 1 there (Lemma 1 of Xu et al. 2020). Where
    s_i = sigma_i = 0 there is no noise, and nothing but 0 comes out. Both may be multiplied by ``size``, and then so is
    the length.
    """

    def __init__(self, name: str, engine: GradientEngine, rule: ClipRule, batch_size: int) -> None:
        if isinstance(rule, AdaptiveClipRule):
            raise InputError(
                f"{name} does not go with a clip bound that is learnt ({rule.name}).",
                why="The paper has a fixed bound C, and learns the bounds of coordinates instead.",
                fix="Use another clip rule, such as flat.",
            )
        super().__init__(batch_size)
        self._engine, self._rule = engine, rule
        self._groups = rule.groups(engine.names)
        self._rule_bound = rule.l2_bound(len(self._groups), {})
        self._box: Box | None = None

    @property
    @abstractmethod
    def size(self) -> float:
        """What the box of the step at hand is multiplied by."""

    @property
    def clip_state(self) -> ClipState:
        return {}

    @property
    def clip_bound(self) -> float:
        """What the clip rule allows a record in the step at hand."""
        return self.clip_factor * self._rule_bound

    def l2_bounds(self) -> dict[str, float]:
        return {GRADIENT: self.clip_bound if self._box is None else self.size}

    def clipped_sums(self, capture: Capture) -> Tensors:
        """The sum of the gradients, each of them clamped to the box, or clipped by the rule."""
        if self._box is not None:
            return clamped_sums(capture, {name: value * self.size for name, value in self._box.bounds.items()})
        return capture.weighted_sums(self.weights(capture.square_norms(self._groups)), self._groups)

    def plain_sums(self, capture: Capture) -> Tensors:
        """The sum of the gradients as they are."""
        ones = next(iter(self._engine.zeros().values())).new_ones(capture.records, 1)
        return capture.weighted_sums(ones, [self._engine.names])

    def weights(self, square_norms: Tensor) -> Tensor:
        """The weights of the clip rule, its bound being multiplied by the factor of the step."""
        return self._rule.weights_at(square_norms, self.clip_factor, {})

    def in_units(self, sums: Tensors) -> Parts:
        """``sums`` in the coordinates in which the noise is the same for all."""
        if self._box is not None:
            sums = {name: _quotient(value, self._box.deviations[name]) for name, value in sums.items()}
        return {GRADIENT: sums}

    def gradients(self, released: Parts) -> Tensors:
        """What was released, back in the coordinates of the parameters and divided by the batch size."""
        factors: Mapping[str, Tensor | float] = dict.fromkeys(released[GRADIENT], 1 / self.batch_size)
        if self._box is not None:
            factors = {name: value / self.batch_size for name, value in self._box.deviations.items()}
        return {name: value * factors[name] for name, value in released[GRADIENT].items()}


def average_into(average: Tensor, value: Tensor, keep: float) -> None:
    """Let ``average`` keep its share and take ``value`` for the rest; beyond the largest number it stays there."""
    largest = torch.finfo(average.dtype).max
    average.mul_(keep).add_(value.to(average.dtype), alpha=1 - keep).clamp_(-largest, largest)


def _quotient(values: Tensor, divisors: Tensor) -> Tensor:
    """``values`` / ``divisors``, and 0 where both are 0: a sum that was clamped to nothing is nothing."""
    return (values / divisors).nan_to_num_(0.0)
