"""Neighbour replay: the same run on two data sets that differ in one record, compared before the noise is added.

The second run is fed what the first one released, so that both have the same parameters and clip bounds at every step
and any difference between their sums comes from the one record. The guarantee rests on that difference never being
longer than the l2 bound the noise was scaled to; here it is measured. Sensitive: for tests on public data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from adadp.randomness import RandomSource
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
class _Release:
    total: dict[str, Tensor]
    released: dict[str, Tensor]
    l2_bound: float
    noise_multiplier: float
    step: int
    purpose: str


class _Recorder(GaussianMechanism):
    """Releases as usual and remembers what it was given; with a ``script``, it releases what that says."""

    def __init__(self, script: list[_Release] | None = None) -> None:
        self.releases: list[_Release] = []
        self._script = script

    def release(
        self,
        total: Mapping[str, Tensor],
        *,
        l2_bound: float,
        noise_multiplier: float,
        source: RandomSource,
        step: int,
        purpose: str = "noise",
    ) -> dict[str, Tensor]:
        kept = {name: value.detach().to("cpu", torch.float64, copy=True) for name, value in total.items()}
        if self._script is None:
            released = super().release(
                total, l2_bound=l2_bound, noise_multiplier=noise_multiplier, source=source, step=step, purpose=purpose
            )
        else:
            released = self._script[len(self.releases)].released
        copy = {name: value.clone() for name, value in released.items()}
        self.releases.append(_Release(kept, copy, l2_bound, noise_multiplier, step, purpose))
        return {name: value.clone() for name, value in released.items()}


def neighbour_replay(first: Runner, second: Runner, steps: int) -> list[Distance]:
    """The distance of every release between two runs on neighbouring data that are otherwise the same."""
    recorder = _Recorder()
    first(steps, recorder)
    replayed = _Recorder(recorder.releases)
    second(steps, replayed)
    distances = []
    for a, b in zip(recorder.releases, replayed.releases, strict=True):
        if (a.l2_bound, a.noise_multiplier, a.step, a.purpose) != (b.l2_bound, b.noise_multiplier, b.step, b.purpose):
            raise AssertionError(f"The two runs planned different releases at step {a.step}.")
        square = sum(float((a.total[name] - b.total[name]).square().sum()) for name in a.total)
        distances.append(Distance(a.step, a.purpose, square**0.5, a.l2_bound, a.noise_multiplier))
    return distances
