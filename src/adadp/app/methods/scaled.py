"""The sum of clipped gradients in scaled coordinates: the private ADADP and DPOPT."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from adadp.app.methods.scales import LearntScales
from adadp.clipping import ClipRule, ClipState
from adadp.gradients import Capture, GradientEngine
from adadp.methods.base import GRADIENT, Deviations, Parts, Tensors
from adadp.methods.clipped import ClippedSum


class ScaledSum(ClippedSum):
    """sum over the batch of w_b D g_b, where D is a public diagonal and the weight w_b of the clip rule bounds
    |w_b D g_b|. ``scales`` says what D is, and which gradient follows from what was released.

    D is multiplied to the sum, not to each gradient: only the norms must be taken in scaled coordinates.
    """

    def __init__(self, engine: GradientEngine, rule: ClipRule, batch_size: int, scales: LearntScales) -> None:
        super().__init__(engine, rule, batch_size)
        self._scales = scales
        self.by_coordinate = scales.of_parts

    def _square_norms(self, capture: Capture) -> Tensor:
        return capture.square_norms(self._groups, self._scales.inverse)

    def finalize(self, total: Parts | None) -> Parts:
        parts = super().finalize(total)
        return parts | {GRADIENT: self._scales.apply(parts[GRADIENT])}

    def to_gradient(self, released: Parts, deviation: float) -> Tensors:
        gradients = self._scales.learn(released[GRADIENT], deviation)
        return super().to_gradient(released | {GRADIENT: gradients}, deviation)

    def gradient_deviations(self, deviation: float) -> Deviations | None:
        return self._scales.deviations(deviation / self.divisor)

    def tensors(self) -> Tensors:
        return self._scales.tensors()

    def restore(self, clip_state: ClipState, tensors: Mapping[str, Tensor]) -> None:
        super().restore(clip_state, tensors)
        self._scales.restore(tensors)
