"""The rule of the core: the whole gradient is clipped at a bound that never changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adadp.clipping.base import (
    ClipRule,
    ClipState,
    bound_in_range,
    clipped_weights,
    norms_of,
    single_group,
    unique_names,
)


@dataclass(frozen=True)
class Flat(ClipRule):
    """The whole gradient is scaled down to norm C where it is longer: w = min(1, C / n). Abadi et al. 2016.

    ``Flat(inf)`` is the non-private run on the same path: every weight is 1 whatever the norms are, so that nobody has
    to compute them and a non-finite gradient is *not* dropped. Its bound is inf: a release without noise follows.
    """

    name = "flat"
    example = "flat:1"
    bound: float

    def __post_init__(self) -> None:
        endless = isinstance(self.bound, float) and self.bound == math.inf
        object.__setattr__(self, "bound", math.inf if endless else bound_in_range("bound", self.bound))

    @property
    def needs_norms(self) -> bool:
        return self.bound < math.inf

    def groups(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        return (unique_names(names),)

    def l2_bound(self, groups_count: int, state: ClipState) -> float:  # noqa: ARG002
        single_group(groups_count)
        return self.bound

    def weights(self, square_norms: Tensor, state: ClipState) -> Tensor:  # noqa: ARG002
        norms = norms_of(square_norms, groups_count=1)
        return clipped_weights(norms, self.bound) if self.needs_norms else torch.ones_like(norms)

    def describe(self) -> str:
        if not self.needs_norms:
            return "no clipping: not private"
        return f"each record's gradient is clipped to l2 norm {self.bound:g}"
