"""The sum of clipped gradients: DP-SGD, and with scales the private ADADP and DPOPT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from adadp.clipping import AdaptiveClipRule, ClipRule, ClipState
from adadp.gradients import Capture, GradientEngine
from adadp.methods.base import COUNT, GRADIENT, Deviations, Method, Parts, Query, Tensors


class Scales(Protocol):
    """A public diagonal D, made of released values and public numbers alone."""

    inverse: Tensors
    """D, of shapes that broadcast to the parameters."""

    def apply(self, total: Mapping[str, Tensor]) -> Tensors:
        """D times a sum of gradients."""
        ...

    def learn(self, released: Mapping[str, Tensor], deviation: float) -> Tensors:
        """The gradient that ``released`` amounts to; D may change for the next step."""
        ...

    def deviations(self, deviation: float) -> Tensors:
        """The deviation of the noise in that gradient."""
        ...

    def tensors(self) -> Tensors:
        """What a checkpoint keeps."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``tensors`` returned."""
        ...


class ClippedSum(Query):
    """sum over the batch of w_b D g_b, where D is a public diagonal (``scales``; the identity without) and the weight
    w_b of the clip rule bounds |w_b D g_b|.

    D is multiplied to the sum, not to each gradient: only the norms must be taken in scaled coordinates. How the
    gradient for the optimizer follows from what was released in them is said by ``scales``.
    """

    def __init__(self, engine: GradientEngine, rule: ClipRule, batch_size: int, scales: Scales | None = None) -> None:
        super().__init__(batch_size)
        self._engine, self._rule, self._scales = engine, rule, scales
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
        square_norms = capture.square_norms(self._groups, None if self._scales is None else self._scales.inverse)
        weights = rule.weights_at(square_norms, self.clip_factor, state)
        parts = {GRADIENT: capture.weighted_sums(weights, self._groups)}
        if isinstance(rule, AdaptiveClipRule):
            parts[COUNT] = {COUNT: rule.count_query(square_norms, state).double().cpu()}
        return parts

    def finalize(self, total: Parts | None) -> Parts:
        if total is None:
            total = {GRADIENT: self._engine.zeros()}
            if isinstance(self._rule, AdaptiveClipRule):
                total[COUNT] = {COUNT: next(iter(total[GRADIENT].values())).new_zeros((), device="cpu").double()}
        # In double precision always: else how finely a release is rounded would tell how many chunks its batch had.
        gradients = {name: value.double() for name, value in total[GRADIENT].items()}
        return total | {GRADIENT: gradients if self._scales is None else self._scales.apply(gradients)}

    def l2_bounds(self) -> dict[str, float]:
        bounds = {GRADIENT: self.clip_factor * self._rule.l2_bound(len(self._groups), self._state)}
        if isinstance(self._rule, AdaptiveClipRule):
            bounds[COUNT] = self._rule.count_bound
        return bounds

    def steepness(self, purpose: str) -> float:
        if purpose == COUNT and isinstance(self._rule, AdaptiveClipRule):
            return self._rule.count_steepness
        return super().steepness(purpose)

    def to_gradient(self, released: Parts, deviation: float) -> Tensors:
        divisor = self.divisor
        if COUNT in released:
            self._state = self._rule.update(self._state, float(released[COUNT][COUNT]) / self.batch_size)
        gradients = released[GRADIENT]
        if self._scales is not None:
            gradients = self._scales.learn(gradients, deviation)
        return {name: value.div(divisor) for name, value in gradients.items()}

    def gradient_deviations(self, deviation: float) -> Deviations | None:
        share = deviation / self.divisor
        return dict.fromkeys(self._engine.names, share) if self._scales is None else self._scales.deviations(share)

    def tensors(self) -> Tensors:
        return {} if self._scales is None else self._scales.tensors()

    def restore(self, clip_state: ClipState, tensors: Mapping[str, Tensor]) -> None:
        self._state = dict(clip_state)
        if self._scales is not None:
            self._scales.restore(tensors)


@dataclass(frozen=True)
class DpSgd(Method):
    """Each record's gradient is clipped, the sum gets noise (Abadi et al. 2016)."""

    name = "dpsgd"

    def query(self, engine: GradientEngine, rule: ClipRule, batch_size: int) -> Query:
        return ClippedSum(engine, rule, batch_size)
