"""DPOPT (Xiang et al. 2019): the noise that hurts the loss least, from released or, as published, raw gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adadp import checks
from adadp.clipping import ClipRule, ClipState
from adadp.gradients import Capture, GradientEngine
from adadp.methods.base import GRADIENT, Method, MethodDefaults, Parts, Query, Tensors, check_choice
from adadp.methods.boxes import Box, BoxQuery, average_into
from adadp.methods.clipped import ClippedSum
from adadp.methods.scales import Scales, check_following, mean_over, waiting
from adadp.methods.shaping import STEPS, closed_form, projected_gradient

_SQUARES, _SUM = "squares", "sum"
"""The parts of a lot's contribution that the published method uses and does not release."""


@dataclass(frozen=True)
class DpOpt(Method):
    """Noise of a deviation sigma_i ~ sqrt(s_i / w_i): see ``shaping`` and docs/methods/dpopt.md.

    s_i is how much gradients move along coordinate i, w_i how much the loss follows it. Both are averages, of which a
    step keeps the share ``memory``, are bounded by ``lowest`` and ``highest`` relative to their root mean square, and
    count from step ``start`` on.
    """

    name = "dpopt"

    source: str = "released"
    """What both are made of: gradients as they were released, by column; or raw, by coordinate (not private)."""
    solver: str = "closed"
    """How the problem is solved: by its closed form, or by ``steps`` steps of projected gradient descent."""
    steps: int = STEPS
    memory: float = 0.99
    start: int = 20
    lowest: float = 0.5
    highest: float = 2.0

    def __post_init__(self) -> None:
        check_choice("source", self.source, ("released", "raw"))
        check_choice("solver", self.solver, ("closed", "projected"))
        object.__setattr__(self, "steps", checks.count("steps", self.steps, why="At 0 the noise would stay equal."))
        check_following(self, power=1.0)
        if self.source == "raw":  # only the published method brings what its paper (Xu et al. 2020, VI-C) trains with
            object.__setattr__(self, "defaults", MethodDefaults(optimizer="sgd", lr=0.1, clip=4.0))

    def note(self, steps: int) -> str | None:
        return waiting(self.name, self.start, steps)

    @property
    def not_private(self) -> str | None:
        if self.source == "released":
            return None
        return (
            "The bounds of coordinates and the noise follow from gradients that were never released: the noise itself "
            "tells about the data, so no epsilon holds."
        )

    def query(self, engine: GradientEngine, rule: ClipRule, lot_size: int) -> Query:
        if self.source == "raw":
            return ShapedBoxes(self, engine, rule, lot_size)
        return ClippedSum(engine, rule, lot_size, ShapedScales(self, engine.scale_shapes, engine.zeros()))

    def solve(self, s: Tensor, w: Tensor, counts: Tensor | None = None) -> Tensor:
        """The sigma_i for a noise multiplier of 1."""
        if self.solver == "closed":
            return closed_form(s, w, 1.0, counts)
        return projected_gradient(s, w, 1.0, counts, self.steps)


class ShapedScales(Scales):
    """Scales k_j that solve the problem of ``shaping``; the gradient is k times what was released.

    With G = k s the released sum in the coordinates of the parameters, V the second moments of ``Scales``, and d the
    deviation of the noise in s, after every step and for every column

        M   <- memory M + (1 - memory) G                        the average of the gradients, by coordinate
        u_j <- memory^2 u_j + (1 - memory)^2 d^2 k_j^2          the variance of its noise: k_j was not always the same
        W_j  = mean of M^2 over the column - u_j
        s_j  = sqrt(max(V_j, 0) / mean of V),   w_j = sqrt(max(W_j, 0) / mean of W),    within [lowest, highest]
        k_j ~ sqrt(s_j / w_j)                                   the solution, with n_j coordinates in column j

    Whenever the mean of V or of W is not positive (nothing but noise was seen), all scales are 1.
    """

    def __init__(self, settings: DpOpt, shapes: Mapping[str, tuple[int, ...]], like: Mapping[str, Tensor]) -> None:
        super().__init__(settings, shapes, like)
        self._settings = settings
        self._averages = {name: torch.zeros_like(value) for name, value in like.items()}
        self._variances = {name: torch.zeros_like(value) for name, value in self._moments.items()}

    def factors(self) -> Tensors:
        return {name: value.reciprocal() for name, value in self.inverse.items()}

    def see(self, released: Mapping[str, Tensor], deviation: float) -> None:
        super().see(released, deviation)
        memory = self._settings.memory
        for name, factor in self.factors().items():
            self._averages[name].mul_(memory).add_(released[name] * factor, alpha=1 - memory)
            variance = (deviation * factor.double()).square()
            self._variances[name].mul_(memory**2).add_(variance, alpha=(1 - memory) ** 2)

    def next_scales(self) -> Tensors | None:
        names = [name for name, size in self._sizes.items() if size]
        squares = {name: self._square_average(name) for name in names}
        s, w = self.relative({name: self._moments[name] for name in names}), self.relative(squares)
        if s is None or w is None:
            return None
        counts = torch.cat([torch.full_like(s[name], self._sizes[name]).flatten() for name in names])
        found = self._settings.solve(_flat(s), _flat(w), counts)
        return {name: torch.ones_like(value) for name, value in self._moments.items()} | _like(s, found)

    def _square_average(self, name: str) -> Tensor:
        """W of a parameter's columns."""
        average, variance = self._averages[name].double(), self._variances[name]
        return mean_over(average.square(), variance.shape) - variance

    def tensors(self) -> Tensors:
        kept = {f"average/{name}": value.clone() for name, value in self._averages.items()}
        kept |= {f"variance/{name}": value.clone() for name, value in self._variances.items()}
        return super().tensors() | kept

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        for name, average in self._averages.items():
            average.copy_(tensors[f"average/{name}"])
            self._variances[name].copy_(tensors[f"variance/{name}"])


class ShapedBoxes(BoxQuery):
    """As published. NOT PRIVATE: what ``_squares`` and ``_means`` are made of was not released.

        E <- memory E + (1 - memory) (sum over the lot of g^2) / L
        M <- memory M + (1 - memory) (sum over the lot of g) / L
        s_i = C sqrt(E_i / sum of E)                                     a box whose corner has the length C
        w_i = |M_i| / root mean square of M,  within [lowest, highest]
        g~  = (sum over the lot of clamp(g, -s, s) + N(0, sigma_i^2)) / L

    with the sigma_i of ``shaping``. Until ``start`` steps, and while E or M is 0, the clip rule clips as in DP-SGD.

    ==========================================  ======================================================================
    a coordinate in which no record moves       s_i = sigma_i = 0: exactly 0 is released
    an empty lot                                noise alone is released; E and M fall by the factor ``memory``
    a record that is not finite                 contributes nothing, neither to the sum nor to E and M
    a clip rule that learns its bound           ``InputError``
    ==========================================  ======================================================================
    """

    def __init__(self, settings: DpOpt, engine: GradientEngine, rule: ClipRule, lot_size: int) -> None:
        super().__init__(str(settings), engine, rule, lot_size)
        self._settings = settings
        self._squares, self._means = engine.zeros(), engine.zeros()
        self._steps = 0
        self._raw: Parts = {}
        """What ``settle`` has seen of the lot, for ``learn``: never released, and all the same used."""

    @property
    def size(self) -> float:
        return self.clip_bound

    def ask(self, capture: Capture) -> Parts:
        sums = self.clipped_sums(capture)
        return {GRADIENT: sums, _SQUARES: capture.square_sums(), _SUM: self.plain_sums(capture)}

    def settle(self, total: Parts | None) -> Parts:
        if total is None:
            total = dict.fromkeys((GRADIENT, _SQUARES, _SUM), self._engine.zeros())
        self._raw = total
        return self.in_units(total[GRADIENT])

    def learn(self, released: Parts, deviation: float) -> Tensors:  # noqa: ARG002
        gradients = self.gradients(released)
        for averages, part in ((self._squares, _SQUARES), (self._means, _SUM)):
            for name, average in averages.items():
                average_into(average, self._raw[part][name] / self.lot_size, self._settings.memory)
        self._raw = {}
        self._steps += 1
        self._box = self._next_box()
        return gradients

    def _next_box(self) -> Box | None:
        """The box of corner 1 that follows from what was seen, or None where that is too little."""
        if self._steps < self._settings.start:
            return None
        bounds, weights = _flat(self._squares).double().sqrt(), _flat(self._means).double().abs()
        corner, whole = bounds.norm(), weights.square().mean().sqrt()
        if not (corner > 0 and whole > 0):
            return None
        bounds = bounds / corner
        deviations = self._settings.solve(
            bounds, (weights / whole).clamp(self._settings.lowest, self._settings.highest)
        )
        return Box(_like(self._squares, bounds), _like(self._squares, deviations))

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


def _flat(tensors: Tensors) -> Tensor:
    """All numbers one after another."""
    return torch.cat([value.flatten() for value in tensors.values()])


def _like(tensors: Tensors, numbers: Tensor) -> Tensors:
    """``numbers`` cut and shaped like ``tensors``, of the same types."""
    parts = torch.split(numbers, [value.numel() for value in tensors.values()])
    return {
        name: part.view(value.shape).to(value.dtype) for (name, value), part in zip(tensors.items(), parts, strict=True)
    }
