"""The sum of clipped gradients: DP-SGD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from adadp.clipping import AdaptiveClipRule, ClipRule, ClipState
from adadp.gradients import Capture, GradientEngine
from adadp.methods.base import COUNT, GRADIENT, Deviations, Method, Parts, Query, Tensors


class ClippedSum(Query):
    """sum over the batch of w_b g_b, where the weight w_b of the clip rule bounds |w_b g_b|."""

    by_coordinate = True

    def __init__(self, engine: GradientEngine, rule: ClipRule, batch_size: int) -> None:
        super().__init__(batch_size)
        self._engine, self._rule = engine, rule
        self._groups = rule.groups(engine.names)
        self._state = rule.initial_state()
        self.l2_bounds()  # a rule that does not fit these groups says so now

    @property
    def clip_state(self) -> ClipState:
        return self._state

    @property
    def divisor(self) -> float:
        """What a sum released in the step at hand is divided by for the optimizer: a public number."""
        return self.batch_size / self._rule.step_factor(self._state)

    def contribution(self, capture: Capture) -> Parts:
        rule, state = self._rule, self._state
        square_norms = self._square_norms(capture)
        weights = rule.weights_at(square_norms, self.clip_factor, state)
        parts = {GRADIENT: capture.weighted_sums(weights, self._groups)}
        if isinstance(rule, AdaptiveClipRule):
            parts[COUNT] = {COUNT: rule.count_query(square_norms, state).double()}
        return parts

    def _square_norms(self, capture: Capture) -> Tensor:
        """Those of the gradients in the coordinates the noise is added in."""
        return capture.square_norms(self._groups)

    def finalize(self, total: Parts | None) -> Parts:
        if total is None:
            total = {GRADIENT: self._engine.zeros()}
            if isinstance(self._rule, AdaptiveClipRule):
                total[COUNT] = {COUNT: next(iter(total[GRADIENT].values())).new_zeros(()).double()}
        # So that noise can be added in place.
        return total | {GRADIENT: {name: value.contiguous() for name, value in total[GRADIENT].items()}}

    def l2_bounds(self) -> dict[str, float]:
        bounds = {GRADIENT: self.clip_factor * self._rule.l2_bound(len(self._groups), self._state)}
        if isinstance(self._rule, AdaptiveClipRule):
            bounds[COUNT] = self._rule.count_bound
        return bounds

    def steepness(self, purpose: str) -> float:
        if purpose == COUNT and isinstance(self._rule, AdaptiveClipRule):
            return self._rule.count_steepness
        return super().steepness(purpose)

    def to_gradient(self, released: Parts, deviation: float) -> Tensors:  # noqa: ARG002
        divisor = self.divisor
        self._learn(released)
        return {name: value.div_(divisor) for name, value in released[GRADIENT].items()}

    def _learn(self, released: Parts) -> None:
        """What the clip rule learns from a released count."""
        if COUNT in released:
            self._state = self._rule.update(self._state, float(released[COUNT][COUNT]) / self.batch_size)

    def gradient_deviations(self, deviation: float) -> Deviations | None:
        return dict.fromkeys(self._engine.names, deviation / self.divisor)

    def tensors(self) -> Tensors:
        return {}

    def restore(self, clip_state: ClipState, tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        self._state = dict(clip_state)


@dataclass(frozen=True)
class DpSgd(Method):
    """Each record's gradient is clipped, the sum gets noise (Abadi et al. 2016)."""

    name = "dpsgd"

    def query(self, engine: GradientEngine, rule: ClipRule, batch_size: int) -> Query:
        return ClippedSum(engine, rule, batch_size)
