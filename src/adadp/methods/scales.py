"""Scales learnt from released gradients: the public diagonal in which the private ADADP clips and adds noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adadp import checks
from adadp.errors import InputError
from adadp.methods.base import Tensors

_DECADES = 6
"""Powers of ten that two scales may lie apart: squares of norms and of scales are far from the ends of a float32."""


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
        set_to = object.__setattr__
        set_to(self, "power", checks.non_negative("power", self.power, why="0 is the same noise for every column."))
        set_to(self, "start", checks.count("start", self.start, why="Before it there is nothing to go by."))
        for name in ("lowest", "highest"):
            set_to(self, name, checks.positive(name, getattr(self, name), why="It bounds a ratio of two lengths."))
        set_to(self, "memory", checks.non_negative("memory", self.memory))
        if not self.memory < 1:
            raise InputError(
                f"memory must be below 1, got {self.memory:g}.", why="Nothing would ever be learnt.", fix="Pass 0.99."
            )
        if not self.lowest < 1 < self.highest:
            raise InputError(
                f"The scales' bounds must lie on both sides of 1, got {self.lowest:g} and {self.highest:g}.",
                why="They are relative to the mean.",
                fix="Pass lowest below 1 and highest above it.",
            )
        if self.power * (math.log10(self.highest) - math.log10(self.lowest)) > _DECADES:
            raise InputError(
                f"Scales between {self.lowest:g} and {self.highest:g} to the power {self.power:g} lie too far apart.",
                why=f"Beyond a ratio of 1e{_DECADES} they leave the range of a float32, in which norms are taken.",
                fix="Pass a smaller power, or bounds that are nearer to 1.",
            )


class ColumnScales:
    """One scale k per input column of every layer, for a gradient g in scaled coordinates g / k.

    With s the released sum in scaled coordinates and d the standard deviation of its noise, after every step

        V <- memory V + (1 - memory) (mean of s^2 over the column - d^2) k^2       what the column moves without noise
        r  = sqrt(max(V, 0) / mean of V over all coordinates), within [lowest, highest]
        k  = b sqrt(mean over all coordinates of b^-2),   b = r^power

    so that the mean of 1/k^2 is 1: an isotropic gradient has the norm it had. Until ``start`` steps, and whenever the
    mean of V is not positive (nothing but noise was seen), all scales are 1. Everything here is computed from released
    values and public numbers: it is post-processing.
    """

    def __init__(
        self, settings: ScaleSettings, shapes: Mapping[str, tuple[int, ...]], like: Mapping[str, Tensor]
    ) -> None:
        self._settings = settings
        self._moments = {name: like[name].new_zeros(shapes[name], dtype=torch.float64) for name in like}
        self._sizes = {name: like[name].numel() / max(1, self._moments[name].numel()) for name in like}
        """Coordinates that share a scale; 0 for a parameter without any."""
        self._steps = 0
        self.inverse: Tensors = {name: torch.ones_like(value).float() for name, value in self._moments.items()}
        """1 / k, of a shape that broadcasts to the parameter."""

    def apply(self, total: Mapping[str, Tensor]) -> Tensors:
        """A sum of gradients in scaled coordinates, or what was released in them as a gradient."""
        return {name: value * self.inverse[name] for name, value in total.items()}

    def learn(self, released: Mapping[str, Tensor], deviation: float) -> Tensors:
        """The gradient that ``released`` amounts to; the scales of the next step follow from it."""
        gradients = self.apply(released)
        memory = self._settings.memory
        for name, value in released.items():
            if not value.numel():
                continue
            moment = self._moments[name]
            square = _mean_over(value.square(), moment.shape).double()
            moment.mul_(memory).add_((square - deviation**2) / self.inverse[name].double() ** 2, alpha=1 - memory)
        self._steps += 1
        if self._steps >= self._settings.start:
            self.inverse = self._inverse()
        return gradients

    def _inverse(self) -> Tensors:
        settings = self._settings
        whole = self._mean(self._moments)
        if not whole > 0:
            return {name: torch.ones_like(value) for name, value in self.inverse.items()}
        ratios = {name: (value.clamp(min=0) / whole).sqrt() for name, value in self._moments.items()}
        inverse = {
            name: value.clamp(settings.lowest, settings.highest).pow(-settings.power) for name, value in ratios.items()
        }
        norm = self._mean({name: value.square() for name, value in inverse.items()}) ** 0.5
        return {name: (value / norm).float() for name, value in inverse.items()}

    def _mean(self, values: Mapping[str, Tensor]) -> float:
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


def _mean_over(values: Tensor, shape: torch.Size) -> Tensor:
    """``values`` averaged over the dimensions in which ``shape`` is 1."""
    dims = [dim for dim, size in enumerate(shape) if size == 1]
    return values.mean(dims, keepdim=True) if dims else values
