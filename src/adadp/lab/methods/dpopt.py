"""DPOPT (Xiang et al. 2019): the noise that hurts the loss least, from released or, as published, raw gradients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from adadp import checks
from adadp.app.methods.scaled import ScaledSum
from adadp.app.methods.scales import check_following, waiting
from adadp.clipping import ClipRule
from adadp.gradients import GradientEngine
from adadp.lab.methods.dpopt_problem import STEPS, closed_form, projected_gradient
from adadp.lab.methods.dpopt_raw import ShapedBoxes
from adadp.lab.methods.dpopt_scales import ShapedScales
from adadp.lab.methods.readings import check_choice
from adadp.methods.base import Method, MethodDefaults, Query


@dataclass(frozen=True)
class DpOpt(Method):
    """Noise of a deviation sigma_i ~ sqrt(s_i / w_i): see ``shaping`` and docs/methods/dpopt.md.

    s_i is how much gradients move along coordinate i, w_i how much the loss follows it. Both are averages, of which a
    step keeps the share ``memory``, are bounded by ``lowest`` and ``highest`` relative to their root mean square, and
    count from step ``start`` on.
    """

    name = "dpopt"
    paper = "Xiang et al. 2019"

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
            object.__setattr__(self, "defaults", MethodDefaults(optimizer="sgd", lr=0.1, clip_norm=4.0))

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

    def query(self, engine: GradientEngine, rule: ClipRule, batch_size: int) -> Query:
        if self.source == "raw":
            return ShapedBoxes(str(self), self, engine, rule, batch_size)
        return ScaledSum(engine, rule, batch_size, ShapedScales(self, engine.scale_shapes, engine.zeros()))

    def solve(self, s: Tensor, w: Tensor, counts: Tensor | None = None) -> Tensor:
        """The sigma_i for a noise multiplier of 1."""
        if self.solver == "closed":
            return closed_form(s, w, 1.0, counts)
        return projected_gradient(s, w, 1.0, counts, self.steps)
