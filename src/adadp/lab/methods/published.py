"""The methods of Xu et al. 2020: ADADP as published (Algorithm 1), and its two halves ADAL and ADAN.

Algorithm 1 leaves four things open, and each has an option. ADADP as published is private in none of its readings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adadp import checks
from adadp.app.clipping.fixed import layers
from adadp.app.methods.adadp import AdaDp
from adadp.clipping import ClipRule, ClipState
from adadp.errors import InputError
from adadp.gradients import Capture, GradientEngine
from adadp.lab.methods.boxes import Box, BoxQuery, average_into
from adadp.lab.methods.clamped import square_sums
from adadp.lab.methods.readings import check_choice
from adadp.methods.base import GRADIENT, Method, MethodDefaults, Parts, Query, Tensors
from adadp.methods.clipped import ClippedSum

_READINGS = {
    "clip": ("example", "batch"),
    "square": ("mean-of-squares", "square-of-mean"),
    "size": ("model", "layer"),
    "gate": ("sqrt", "moment"),
}

_RAW = "raw"
"""The part of a batch's contribution that is not released: what E' is made of."""


@dataclass(frozen=True)
class AdadpPublished(Method):
    """Algorithm 1 of Xu et al. 2020, for comparison; see ``PublishedQuery`` and docs/methods/published.md."""

    name = "adadp-published"
    paper = "Xu et al. 2020"
    defaults = MethodDefaults(optimizer="rms", lr=0.002, clip_norm=4.0)

    clip: str = "example"
    """Lines 10 and 16: whose gradient is clipped, each example's or the batch's mean."""
    square: str = "mean-of-squares"
    """Line 23: what the square of g_t is, over the batch."""
    size: str = "model"
    """Line 12: m counts the coordinates of the whole model, or of the layer at hand."""
    gate: str = "sqrt"
    """Line 7: the variance is that of sqrt(E'), or (in the text of the paper) of E'."""
    beta: float = 1.2
    threshold: float = 1e-6
    """G."""
    keep: float = 0.9
    """gamma'."""

    def __post_init__(self) -> None:
        for name, readings in _READINGS.items():
            check_choice(name, getattr(self, name), readings)
        set_to = object.__setattr__
        set_to(self, "beta", checks.positive("beta", self.beta, why="At 0 every gradient would be clipped to 0."))
        set_to(self, "threshold", checks.non_negative("threshold", self.threshold, why="It is a variance."))
        set_to(self, "keep", checks.non_negative("keep", self.keep, why="It is a share of an average."))
        if not self.keep < 1:
            raise InputError(
                f"keep must be below 1, got {self.keep:g}.", why="E' would stay 0 for ever.", fix="Pass 0.9."
            )

    @property
    def not_private(self) -> str:
        reasons = [
            "Line 23 of Algorithm 1 averages gradients that were never released into E', and the clip bounds, the "
            "noise and the branch of line 7 follow from it: the noise itself tells about the data, so no epsilon holds."
        ]
        if self.clip == "batch":
            reasons.append(
                "Besides, the mean of the batch is clipped and not each record's gradient: one record can move it by "
                "twice its bound, and the noise is too small by a factor of the batch size."
            )
        if self.size == "layer":
            reasons.append("Besides, each of K layers gets noise as if it were alone: too little by a factor sqrt(K).")
        return " ".join(reasons)

    def query(self, engine: GradientEngine, rule: ClipRule, batch_size: int) -> Query:
        return PublishedQuery(self, engine, rule, batch_size)


class PublishedQuery(BoxQuery):
    """Lines 6 to 20 and 23 of Algorithm 1. NOT PRIVATE: ``_moments`` is made of values that were not released.

        s_i  = beta sqrt(E'_i),  sigma_i = sigma* r s_i,  r = sqrt(m)         while Var > threshold: the gate is open
        g~   = (sum over the batch of clamp(g, -s, s) + N(0, sigma_i^2)) / L    clip = example
        g~   = (clamp(sum over the batch of g, -L s, L s) + N(0, sigma_i^2)) / L     clip = batch
        E'  <- keep E' + (1 - keep) (sum over the batch of g^2) / L             square = mean-of-squares
        E'  <- keep E' + (1 - keep) ((sum over the batch of g) / L)^2           square = square-of-mean

    L is the public batch size, also where a mean over the batch is meant. While the gate is closed, the clip rule clips
    each gradient, or the batch's mean, as in DP-SGD. The variance is that over all coordinates of the model.

    With r = sqrt(m) of the whole model one clamped gradient has at most the length 1 in the coordinates x_i / (r s_i)
    (this is Lemma 1); with r of each layer it has up to sqrt(K), and the bound of 1 is only the paper's.

    ==========================================  ======================================================================
    an empty batch                                noise alone is released; E' falls by the factor ``keep``
    a record that is not finite                 contributes nothing, neither to the sum nor to E'
    E' beyond the largest number                stays there
    a clip rule that learns its bound           ``InputError``
    ==========================================  ======================================================================
    """

    additive = False  # what it keeps of the raw sums is of all records

    def __init__(self, settings: AdadpPublished, engine: GradientEngine, rule: ClipRule, batch_size: int) -> None:
        super().__init__(settings.name, engine, rule, batch_size)
        self._settings = settings
        self._moments = engine.zeros()
        """E'."""
        self._raw: Tensors = {}
        """What ``finalize`` has seen of the batch, for ``to_gradient``: never released, and all the same used."""
        blocks = layers(engine.names) if settings.size == "layer" else (engine.names,)
        sizes = {block: math.sqrt(sum(self._moments[name].numel() for name in block)) for block in blocks}
        self._roots = {name: root for block, root in sizes.items() for name in block}
        """r of every parameter."""

    @property
    def size(self) -> float:
        return 1.0

    def contribution(self, capture: Capture) -> Parts:
        settings = self._settings
        sums = self.plain_sums(capture) if settings.clip == "batch" else self.clipped_sums(capture)
        parts: Parts = {GRADIENT: sums}
        if settings.square == "mean-of-squares":
            parts[_RAW] = square_sums(capture)
        else:
            parts[_RAW] = sums if settings.clip == "batch" else self.plain_sums(capture)
        return parts

    def finalize(self, total: Parts | None) -> Parts:
        if total is None:
            self._raw = self._engine.zeros()
            return {GRADIENT: self._engine.zeros()}
        self._raw = total[_RAW]
        sums = total[GRADIENT]
        return self.in_units(self._clipped_batch(sums) if self._settings.clip == "batch" else sums)

    def to_gradient(self, released: Parts, deviation: float) -> Tensors:  # noqa: ARG002
        gradients = self.gradients(released)
        settings = self._settings
        for name, raw in self._raw.items():
            mean = raw / self.batch_size
            squares = mean if settings.square == "mean-of-squares" else mean.square_()
            average_into(self._moments[name], squares, settings.keep)
        self._raw = {}
        self._box = self._next_box()
        return gradients

    def tensors(self) -> Tensors:
        return {name: moment.clone() for name, moment in self._moments.items()}

    def restore(self, clip_state: ClipState, tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        for name, moment in self._moments.items():
            moment.copy_(tensors[name])
        self._box = self._next_box()

    def _next_box(self) -> Box | None:
        """Lines 7 and 9: the bounds of all coordinates, or None where the gate is closed."""
        settings = self._settings
        roots = {name: moment.sqrt() for name, moment in self._moments.items()}
        judged = roots if settings.gate == "sqrt" else self._moments
        variance = torch.cat([each.flatten() for each in judged.values()]).double().var(correction=0)
        if not variance.item() > settings.threshold:
            return None
        bounds = {name: root.mul_(settings.beta) for name, root in roots.items()}
        return Box(bounds, {name: value * self._roots[name] for name, value in bounds.items()})

    def _clipped_batch(self, sums: Tensors) -> Tensors:
        """The batch size times the clipped mean of the batch."""
        if self._box is not None:
            bounds = {name: value * self.batch_size for name, value in self._box.bounds.items()}
            return {name: torch.clamp(value, -bounds[name], bounds[name]) for name, value in sums.items()}
        squares = [
            sum((sums[name] / self.batch_size).double().square().sum() for name in group) for group in self._groups
        ]
        square_norms = torch.stack([torch.as_tensor(each) for each in squares]).unsqueeze(0)
        weights = self.weights(square_norms)[0]
        weight_of = {name: weight for group, weight in zip(self._groups, weights, strict=True) for name in group}
        return {name: value * weight_of[name] for name, value in sums.items()}


@dataclass(frozen=True)
class Adal(Method):
    """DP-SGD's clipping and noise; what it adds is the adaptive rate, the optimizer ``rms``. Private."""

    name = "adal"
    defaults = MethodDefaults(optimizer="rms", lr=0.001, clip_norm=4.0)

    def query(self, engine: GradientEngine, rule: ClipRule, batch_size: int) -> Query:
        return ClippedSum(engine, rule, batch_size)


@dataclass(frozen=True)
class Adan(Method):
    """Adaptive noise with a plain step: the noise of ADADP as published, or with ``source`` released the private one.

    For another reading of the published noise use ``adadp-published`` with the optimizer sgd.
    """

    name = "adan"
    paper = "Xu et al. 2020"
    defaults = MethodDefaults(optimizer="sgd", lr=0.1, clip_norm=4.0)

    source: str = "raw"
    """What the noise follows: gradients as they are (not private), or as they were released (as the method adadp)."""

    def __post_init__(self) -> None:
        check_choice("source", self.source, ("raw", "released"))

    @property
    def not_private(self) -> str | None:
        return AdadpPublished().not_private if self.source == "raw" else None

    def query(self, engine: GradientEngine, rule: ClipRule, batch_size: int) -> Query:
        if self.source == "raw":
            return AdadpPublished().query(engine, rule, batch_size)
        return AdaDp().query(engine, rule, batch_size)
