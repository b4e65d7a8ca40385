"""DPOPT as published: NOT PRIVATE. Bounds and noise of the coordinates follow from raw gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adadp.clipping import ClipRule, ClipState
from adadp.gradients import Capture, GradientEngine
from adadp.lab.methods.boxes import Box, BoxQuery, average_into
from adadp.lab.methods.clamped import square_sums
from adadp.lab.methods.dpopt_problem import Shaping, flattened, shaped_like
from adadp.methods.base import GRADIENT, Parts, Tensors

_SQUARES, _SUM = "squares", "sum"
"""The parts of a batch's contribution that the published method uses and does not release."""


class ShapedBoxes(BoxQuery):
    """As published. NOT PRIVATE: what ``_squares`` and ``_means`` are made of was not released.

        E <- memory E + (1 - memory) (sum over the batch of g^2) / L
        M <- memory M + (1 - memory) (sum over the batch of g) / L
        s_i = C sqrt(E_i / sum of E)                                     a box whose corner has the length C
        w_i = |M_i| / root mean square of M,  within [lowest, highest]
        g~  = (sum over the batch of clamp(g, -s, s) + N(0, sigma_i^2)) / L

    with the sigma_i of ``shaping``. Until ``start`` steps, and while E or M is 0, the clip rule clips as in DP-SGD.

    ==========================================  ======================================================================
    a coordinate in which no record moves       s_i = sigma_i = 0: exactly 0 is released
    an empty batch                                noise alone is released; E and M fall by the factor ``memory``
    a record that is not finite                 contributes nothing, neither to the sum nor to E and M
    a clip rule that learns its bound           ``InputError``
    ==========================================  ======================================================================
    """

    additive = False  # what it keeps of the raw sums is of all records

    def __init__(self, name: str, settings: Shaping, engine: GradientEngine, rule: ClipRule, batch_size: int) -> None:
        super().__init__(name, engine, rule, batch_size)
        self._settings = settings
        self._squares, self._means = engine.zeros(), engine.zeros()
        self._steps = 0
        self._raw: Parts = {}
        """What ``finalize`` has seen of the batch, for ``to_gradient``: never released, and all the same used."""

    @property
    def size(self) -> float:
        return self.clip_bound

    def contribution(self, capture: Capture) -> Parts:
        sums = self.clipped_sums(capture)
        return {GRADIENT: sums, _SQUARES: square_sums(capture), _SUM: self.plain_sums(capture)}

    def finalize(self, total: Parts | None) -> Parts:
        if total is None:
            total = dict.fromkeys((GRADIENT, _SQUARES, _SUM), self._engine.zeros())
        self._raw = total
        return self.in_units(total[GRADIENT])

    def to_gradient(self, released: Parts, deviation: float) -> Tensors:  # noqa: ARG002
        gradients = self.gradients(released)
        for averages, part in ((self._squares, _SQUARES), (self._means, _SUM)):
            for name, average in averages.items():
                average_into(average, self._raw[part][name] / self.batch_size, self._settings.memory)
        self._raw = {}
        self._steps += 1
        self._box = self._next_box()
        return gradients

    def _next_box(self) -> Box | None:
        """The box of corner 1 that follows from what was seen, or None where that is too little."""
        if self._steps < self._settings.start:
            return None
        bounds, weights = flattened(self._squares).double().sqrt(), flattened(self._means).double().abs()
        corner, whole = bounds.norm(), weights.square().mean().sqrt()
        if not (corner > 0 and whole > 0):
            return None
        bounds = bounds / corner
        deviations = self._settings.solve(
            bounds, (weights / whole).clamp(self._settings.lowest, self._settings.highest)
        )
        return Box(shaped_like(self._squares, bounds), shaped_like(self._squares, deviations))

    def tensors(self) -> Tensors:
        kept = {f"squares/{name}": value.clone() for name, value in self._squares.items()}
        kept |= {f"mean/{name}": value.clone() for name, value in self._means.items()}
        return kept | {"steps": torch.tensor(self._steps)}

    def restore(self, clip_state: ClipState, tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        for name in self._squares:
            self._squares[name].copy_(tensors[f"squares/{name}"])
            self._means[name].copy_(tensors[f"mean/{name}"])
        self._steps = int(tensors["steps"])
        self._box = self._next_box()
