"""Scales learnt from released gradients: the public diagonal in which ADADP and DPOPT clip and add noise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, final

import torch
from torch import Tensor

from adadp import checks
from adadp.errors import InputError
from adadp.methods.base import Tensors
from adadp.ranks import joined
from adadp.sharding import is_split, own_part, own_rows

_DECADES = 6
"""Powers of ten that two scales may lie apart: squares of norms and of scales are far from the ends of a float32."""


class Following(Protocol):
    """Settings of scales that follow averages of what was released: ``check_following`` says what they must be."""

    @property
    def memory(self) -> float:
        """The share of an average that a step keeps."""

    @property
    def start(self) -> int:
        """Steps before the scales are anything but 1."""

    @property
    def lowest(self) -> float:
        """The smallest size of a column, relative to the mean over all coordinates."""

    @property
    def highest(self) -> float:
        """The largest."""


def check_following(settings: Following, power: float) -> None:
    """Check the frozen ``settings`` of scales whose ratios are at most (highest / lowest)^power."""
    set_to = object.__setattr__
    set_to(settings, "start", checks.count("start", settings.start, why="Before it there is nothing to go by."))
    for name in ("lowest", "highest"):
        set_to(settings, name, checks.positive(name, getattr(settings, name), why="It bounds a ratio of two lengths."))
    set_to(settings, "memory", checks.non_negative("memory", settings.memory))
    if not settings.memory < 1:
        raise InputError(
            f"memory must be below 1, got {settings.memory:g}.", why="Nothing would ever be learnt.", fix="Pass 0.99."
        )
    if not settings.lowest < 1 < settings.highest:
        raise InputError(
            f"The scales' bounds must lie on both sides of 1, got {settings.lowest:g} and {settings.highest:g}.",
            why="They are relative to the mean.",
            fix="Pass lowest below 1 and highest above it.",
        )
    if power * (math.log10(settings.highest) - math.log10(settings.lowest)) > _DECADES:
        raise InputError(
            f"Scales between {settings.lowest:g} and {settings.highest:g} to the power {power:g} lie too far apart.",
            why=f"Beyond a ratio of 1e{_DECADES} they leave the range of a float32, in which norms are taken.",
            fix="Pass a smaller power, or bounds that are nearer to 1.",
        )


def waiting(method: str, start: int, steps: int) -> str | None:
    """What a run is that ends before its scales begin to differ."""
    if steps > start:
        return None
    return f"{method} is DP-SGD up to step {start}, and the run has {steps}: pass {method}:start=N to begin earlier."


@dataclass(frozen=True)
class ScaleSettings:
    """How scales follow the second moments of what was released.

    A column's scale is its root mean square to the power ``power`` (relative to the mean over all coordinates, between
    ``lowest`` and ``highest``), from step ``start`` on; ``memory`` is the share of the average that a step keeps.
    """

    power: float = 0.25
    memory: float = 0.99
    start: int = 20
    lowest: float = 0.1
    highest: float = 10.0

    def __post_init__(self) -> None:
        power = checks.non_negative("power", self.power, why="0 is the same noise for every column.")
        object.__setattr__(self, "power", power)
        check_following(self, power)


class LearntScales(ABC):
    """One public scale k per input column of every layer, for a gradient g in scaled coordinates g / k.

    All scales are 1 until ``start`` steps; from then on ``next_scales`` says what they are. Whatever its size, it is
    multiplied so that the mean of 1/k^2 over all coordinates is 1: an isotropic gradient has the norm it had.
    Everything here is computed from released values and public numbers: it is post-processing.
    """

    of_parts: ClassVar[bool] = False
    """Whether what is released may be split over processes."""

    def __init__(self, settings: Following, shapes: Mapping[str, tuple[int, ...]], like: Mapping[str, Tensor]) -> None:
        """``like`` are tensors such as will be released. The scales are whole, and the same in all processes."""
        self._following = settings
        self._moments = {name: own_part(like[name]).new_zeros(shapes[name], dtype=torch.float64) for name in like}
        self._sizes = {name: like[name].numel() / max(1, self._moments[name].numel()) for name in like}
        """Coordinates that share a scale; 0 for a parameter without any."""
        self._steps = 0
        self.inverse: Tensors = {name: torch.ones_like(value).float() for name, value in self._moments.items()}
        """1 / k, of a shape that broadcasts to the parameter."""

    def apply(self, total: Mapping[str, Tensor]) -> Tensors:
        """A sum of gradients in scaled coordinates, in its place."""
        return {name: scaled_by(value, self.inverse[name]) for name, value in total.items()}

    @final
    def learn(self, released: Mapping[str, Tensor], deviation: float) -> Tensors:
        """The gradient that ``released`` amounts to, in its place; the scales of the next step follow from it."""
        factors = self.factors()
        self.see(released, deviation)
        self._steps += 1
        if self._steps >= self._following.start:
            found = self.next_scales()
            self.inverse = self._normalised(found) if found is not None else self._ones()
        return {name: scaled_by(value, factors[name]) for name, value in released.items()}

    def deviations(self, deviation: float) -> Tensors:
        """The deviation of the noise in that gradient, if it is ``deviation`` in every coordinate that was released."""
        return {name: value * deviation for name, value in self.factors().items()}

    @abstractmethod
    def factors(self) -> Tensors:
        """What a number released in scaled coordinates is multiplied by to be a gradient for the optimizer."""

    @abstractmethod
    def next_scales(self) -> Tensors | None:
        """The scales that follow from what was seen, but for a factor; None where nothing but noise was."""

    def see(self, released: Mapping[str, Tensor], deviation: float) -> None:
        """Take what was released into the averages: with s the released sum and d the deviation of its noise

        V <- memory V + (1 - memory) (mean of s^2 over the column - d^2) k^2       what the column moves without noise
        """
        memory, squares = self._following.memory, self._squares(released)
        for name, square in squares.items():
            moment = self._moments[name]
            moment.mul_(memory).add_((square - deviation**2) / self.inverse[name].double() ** 2, alpha=1 - memory)

    def _squares(self, released: Mapping[str, Tensor]) -> Tensors:
        """The mean square of every column; where processes have parts of it, they add these up: released values."""
        sums, parts = {name: torch.zeros_like(each) for name, each in self._moments.items()}, False
        for name, value in released.items():
            shape = self._moments[name].shape
            if not is_split(value):
                sums[name] = mean_over(value.square(), shape).double() if value.numel() else sums[name]
                continue
            parts, dims = True, [dim for dim, size in enumerate(shape) if size == 1]
            square = own_part(value).double().square() / (self._sizes[name] or 1)
            rows_of(sums[name], value).copy_(square.sum(dims, keepdim=True) if dims else square)
        if parts:
            flat = joined().summed("columns", torch.cat([each.view(-1) for each in sums.values()]))
            found = torch.split(flat, [each.numel() for each in sums.values()])
            sums = {name: each.view_as(sums[name]) for name, each in zip(sums, found, strict=True)}
        return {name: each for name, each in sums.items() if self._sizes[name]}

    def _ones(self) -> Tensors:
        return {name: torch.ones_like(value) for name, value in self.inverse.items()}

    def _normalised(self, scales: Tensors) -> Tensors:
        """1 / ``scales``, so that the mean of the squares is 1."""
        inverse = {name: value.reciprocal() for name, value in scales.items()}
        norm = self.mean({name: value.square() for name, value in inverse.items()}) ** 0.5
        return {name: (value / norm).float() for name, value in inverse.items()}

    def relative(self, squares: Tensors) -> Tensors | None:
        """The roots of ``squares`` over the root of their mean, within the bounds; None if that is not positive."""
        whole = self.mean(squares)
        if not whole > 0:
            return None
        lowest, highest = self._following.lowest, self._following.highest
        return {name: (value.clamp(min=0) / whole).sqrt().clamp(lowest, highest) for name, value in squares.items()}

    def mean(self, values: Mapping[str, Tensor]) -> float:
        """The mean over all coordinates of what columns share."""
        total = sum(float(value.sum()) * self._sizes[name] for name, value in values.items())
        return total / sum(value.numel() * self._sizes[name] for name, value in values.items())

    def tensors(self) -> Tensors:
        """What a checkpoint keeps, as it is now: the moments, the scales and how many steps they have seen."""
        kept = {f"moment/{name}": value.clone() for name, value in self._moments.items()}
        kept |= {f"inverse/{name}": value for name, value in self.inverse.items()}
        return kept | {"steps": torch.tensor(self._steps)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what ``tensors`` returned."""
        for name, moment in self._moments.items():
            moment.copy_(tensors[f"moment/{name}"])
            self.inverse[name] = tensors[f"inverse/{name}"].to(moment.device)
        self._steps = int(tensors["steps"])


class ColumnScales(LearntScales):
    """Scales of ADADP: k = b, a power of what the column moves, and the gradient is s / k (the matched preconditioner).

        r = sqrt(max(V, 0) / mean of V over all coordinates), within [lowest, highest];   b = r^power

    Whenever the mean of V is not positive (nothing but noise was seen), all scales are 1.
    """

    of_parts = True

    def __init__(
        self, settings: ScaleSettings, shapes: Mapping[str, tuple[int, ...]], like: Mapping[str, Tensor]
    ) -> None:
        super().__init__(settings, shapes, like)
        self._power = settings.power

    def factors(self) -> Tensors:
        return self.inverse

    def next_scales(self) -> Tensors | None:
        ratios = self.relative(self._moments)
        return None if ratios is None else {name: value.pow(self._power) for name, value in ratios.items()}


def rows_of(scales: Tensor, value: Tensor) -> Tensor:
    """Those of ``scales`` that belong to the rows of ``value`` that are here."""
    if not is_split(value) or scales.shape[0] == 1:
        return scales
    return scales[own_rows(value).start : own_rows(value).stop]


def scaled_by(value: Tensor, scales: Tensor) -> Tensor:
    """``value`` times ``scales``, which are whole, whether ``value`` is or not; in its place."""
    own_part(value).mul_(rows_of(scales, value) if is_split(value) else scales)
    return value


def mean_over(values: Tensor, shape: torch.Size) -> Tensor:
    """``values`` averaged over the dimensions in which ``shape`` is 1."""
    dims = [dim for dim, size in enumerate(shape) if size == 1]
    return values.mean(dims, keepdim=True) if dims else values
