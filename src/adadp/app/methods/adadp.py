"""The private ADADP: noise that follows the gradient, learnt from released gradients alone."""

from __future__ import annotations

from dataclasses import dataclass

from adadp.app.methods.scaled import ScaledSum
from adadp.app.methods.scales import ColumnScales, ScaleSettings, waiting
from adadp.clipping import ClipRule
from adadp.gradients import GradientEngine
from adadp.methods.base import Method, Query


@dataclass(frozen=True)
class AdaDp(ScaleSettings, Method):
    """Gradients are clipped and noised in coordinates scaled column by column; see docs/methods/adadp.md."""

    name = "adadp"

    def note(self, steps: int) -> str | None:
        return waiting(self.name, self.start, steps)

    def query(self, engine: GradientEngine, rule: ClipRule, batch_size: int) -> Query:
        scales = ColumnScales(self, engine.scale_shapes, engine.zeros())
        return ScaledSum(engine, rule, batch_size, scales)
