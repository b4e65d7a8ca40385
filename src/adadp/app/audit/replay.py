"""Neighbour replay: the same run on two data sets that differ in one record, compared before the noise is added.

The second run is fed what the first one released, so that both have the same parameters and clip bounds at every step
and any difference between their sums comes from the one record. The guarantee rests on that difference never being
longer than the l2 bound the noise was scaled to; here it is measured, of several processes on the sum of theirs.
Sensitive: for tests on public data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from adadp.release import GaussianMechanism


@dataclass(frozen=True)
class Distance:
    """How far one release lies apart on the two data sets, before noise, and how far it was allowed to."""

    step: int
    purpose: str
    distance: float
    l2_bound: float
    noise_multiplier: float

    @property
    def share(self) -> float:
        """The part of the bound that was used; above 1 the guarantee is broken."""
        return self.distance / self.l2_bound


class Runner(Protocol):
    """A run that releases one step at a time, such as ``PrivateGradients`` and an optimizer after it."""

    def __call__(self, steps: int, mechanism: GaussianMechanism) -> None:
        """Run so many steps, releasing through ``mechanism``."""
        ...


@dataclass(frozen=True)
class Release:
    """One release as an attacker sees it: the noisy tensors in the coordinates of the noise, and what was claimed."""

    released: dict[str, Tensor]
    l2_bound: float
    noise_multiplier: float
    step: int
    purpose: str


class Recorder(GaussianMechanism):
    """Releases through ``inner`` and remembers what it released, not what it was given."""

    def __init__(self, inner: GaussianMechanism | None = None) -> None:
        self._inner = inner or GaussianMechanism()
        self.releases: list[Release] = []

    def release(self, total: Mapping[str, Tensor], **claimed: Any) -> dict[str, Tensor]:
        released = self._inner.release(total, **claimed)
        del claimed["source"], claimed["ranks"], claimed["dtype"]
        self.releases.append(Release({name: value.clone() for name, value in released.items()}, **claimed))
        return released


class _Replay(Recorder):
    """Remembers what it was given too; with a ``script``, it releases what that says."""

    def __init__(self, script: list[Release] | None = None) -> None:
        super().__init__()
        self.totals: list[dict[str, Tensor]] = []
        self._script = script

    def release(self, total: Mapping[str, Tensor], **claimed: Any) -> dict[str, Tensor]:
        kept = {name: value.detach().to("cpu", torch.float64, copy=True) for name, value in total.items()}
        kept = {name: claimed["ranks"].summed("replaying", value) for name, value in kept.items()}
        self.totals.append(kept)
        released = super().release(total, **claimed)
        if self._script is None:
            return released
        return {name: value.clone() for name, value in self._script[len(self.totals) - 1].released.items()}


def neighbour_replay(first: Runner, second: Runner, steps: int) -> list[Distance]:
    """The distance of every release between two runs on neighbouring data that are otherwise the same."""
    recorded = _Replay()
    first(steps, recorded)
    replayed = _Replay(recorded.releases)
    second(steps, replayed)
    distances = []
    for a, b, total, other in zip(recorded.releases, replayed.releases, recorded.totals, replayed.totals, strict=True):
        if replace(a, released={}) != replace(b, released={}):
            raise AssertionError(f"The two runs planned different releases at step {a.step}.")
        square = sum(float((total[name] - other[name]).square().sum()) for name in total)
        distances.append(Distance(a.step, a.purpose, square**0.5, a.l2_bound, a.noise_multiplier))
    return distances
