"""Rules whose bound never changes, beside ``flat`` of the core: per layer, and automatic (normalised)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from adadp import checks
from adadp.clipping.base import (
    SLACK,
    ClipRule,
    ClipState,
    bound_in_range,
    clipped_weights,
    fading,
    norms_of,
    single_group,
    unique_names,
)
from adadp.errors import InputError


@dataclass(frozen=True)
class PerLayer(ClipRule):
    """The gradient of each layer is clipped by its own norm, at ``bounds``: one number for every layer, or one each.

    The joint bound is sqrt(C_1^2 + ... + C_K^2): a record can be at its limit in all layers at once. Noise of
    sigma * C per layer, as in Abadi et al. 2016, therefore has the multiplier sigma / sqrt(K), not sigma.

    A layer is what owns the parameter: ``fc1.weight`` and ``fc1.bias`` belong to ``fc1``. Layers, and so the numbers in
    ``bounds``, come in the order of the first parameter of each.
    """

    name = "per-layer"
    example = "per-layer:4"
    bounds: float | tuple[float, ...]

    def __post_init__(self) -> None:
        given = self.bounds if isinstance(self.bounds, (tuple, list)) else (self.bounds,)
        checked = tuple(bound_in_range("bound of a layer", bound) for bound in given)
        if not checked:
            raise InputError("There is no bound.", fix="Give one number for every layer, or one for each layer.")
        object.__setattr__(self, "bounds", checked if len(checked) > 1 else checked[0])

    def groups(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        groups = layers(names)
        self._limits(len(groups))
        return groups

    def l2_bound(self, groups_count: int, state: ClipState) -> float:  # noqa: ARG002
        return math.hypot(*self._limits(groups_count))

    def weights(self, square_norms: Tensor, state: ClipState) -> Tensor:  # noqa: ARG002
        norms = norms_of(square_norms)
        return clipped_weights(norms, norms.new_tensor(self._limits(norms.shape[1])))

    def describe(self) -> str:
        if isinstance(self.bounds, tuple):
            numbers = ", ".join(f"{bound:g}" for bound in self.bounds)
            return f"the layers of each record's gradient are clipped to l2 norms {numbers}"
        return f"each layer of each record's gradient is clipped to l2 norm {self.bounds:g}"

    def _limits(self, groups_count: int) -> tuple[float, ...]:
        """The bound of each of ``groups_count`` layers."""
        groups_count = checks.count("groups_count", groups_count)
        if not isinstance(self.bounds, tuple):
            return (self.bounds,) * groups_count
        if len(self.bounds) != groups_count:
            raise InputError(
                f"The rule {self} has {len(self.bounds)} bounds for {groups_count} layers.",
                why="Each layer is clipped at its own bound.",
                fix="Give one number for every layer, or exactly one for each layer.",
            )
        return self.bounds


@dataclass(frozen=True)
class PerLayerJoint(ClipRule):
    """Each of K layers is clipped at C / sqrt(K), so that the joint bound is C: comparable with ``Flat(C)``."""

    name = "per-layer-joint"
    example = "per-layer-joint:4"
    bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", bound_in_range("bound", self.bound))

    def groups(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        return layers(names)

    def l2_bound(self, groups_count: int, state: ClipState) -> float:  # noqa: ARG002
        checks.count("groups_count", groups_count)
        return self.bound

    def weights(self, square_norms: Tensor, state: ClipState) -> Tensor:  # noqa: ARG002
        norms = norms_of(square_norms)
        return clipped_weights(norms, self.bound / math.sqrt(norms.shape[1]))

    def describe(self) -> str:
        return f"each layer of each record's gradient is clipped to its share of the joint l2 norm {self.bound:g}"


@dataclass(frozen=True)
class Automatic(ClipRule):
    """Every gradient is normalised, short ones too: w = C / (n + gamma). Bu et al. 2022, "Automatic Clipping".

    The contribution C n / (n + gamma) grows with n and stays below C. C only scales the released gradient, noise
    included, and so can be absorbed into the learning rate; ``gamma`` keeps the weights finite and lets short gradients
    stay shorter than long ones.
    """

    name = "automatic"
    example = "automatic:1,gamma=0.01"
    options: ClassVar[dict[str, str]] = {"gamma": "gamma"}
    bound: float
    gamma: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", bound_in_range("bound", self.bound))
        object.__setattr__(self, "gamma", bound_in_range("gamma", self.gamma))

    def groups(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        return (unique_names(names),)

    def l2_bound(self, groups_count: int, state: ClipState) -> float:  # noqa: ARG002
        single_group(groups_count)
        return self.bound

    def weights(self, square_norms: Tensor, state: ClipState) -> Tensor:  # noqa: ARG002
        norms = norms_of(square_norms, groups_count=1)
        fade = fading(norms)
        return (self.bound * (1 - SLACK) / (norms + self.gamma) * fade).where(fade > 0, 0.0)

    def describe(self) -> str:
        return f"each record's gradient is normalised to an l2 norm below {self.bound:g} (gamma {self.gamma:g})"


def layers(names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Parameters by the layer that owns them, layers in the order of their first parameter."""
    owned: dict[str, list[str]] = {}
    for name in unique_names(names):
        owned.setdefault(name.rpartition(".")[0], []).append(name)
    return tuple(tuple(group) for group in owned.values())
