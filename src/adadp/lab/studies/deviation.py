"""How far noise leads a path astray: figure 1 of Xu et al. 2020, with its distance, over many draws of the noise.

The paper prints one distance per method on Beale's function, 0.21 for ADADP and 0.90 for DP-SGD, from one draw each.
Here the distance is a mean over runs with its spread. A distance alone flatters whoever stands still, so where the
paths end is told beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adadp import checks
from adadp.errors import InputError
from adadp.lab.studies.descent import Method, Settings, distance, walk, walk_without_noise
from adadp.lab.studies.functions import Array, Landscape
from adadp.randomness import SeededSource

PRINTED = {("beale", Method.ADADP): 0.21, ("beale", Method.DPSGD): 0.90}
"""What the paper prints. Its formula is ``beale-printed``, which has no minimum; its figure marks Beale's."""


@dataclass(frozen=True)
class Deviation:
    """One method on one function: its path without noise, and ``runs`` with it. All distances are in the plane."""

    landscape: Landscape
    method: Method
    quiet: Array
    """The path without noise, (steps, 2)."""
    noisy: Array
    """The paths with noise, (steps, runs, 2)."""

    @property
    def distances(self) -> Array:
        """D(P, Q) of each run."""
        return distance(self.noisy, self.quiet[:, np.newaxis])

    @property
    def mean(self) -> float:
        return float(self.distances.mean())

    @property
    def spread(self) -> float:
        """The standard deviation of D from run to run."""
        return float(self.distances.std(ddof=1))

    @property
    def error(self) -> float:
        """The standard error of ``mean``."""
        return self.spread / float(np.sqrt(self.noisy.shape[1]))

    @property
    def quiet_end(self) -> float:
        """How far from the nearest minimum the path without noise ends."""
        return float(self.landscape.to_minimum(self.quiet[-1]))

    @property
    def noisy_end(self) -> float:
        """The same with noise, mean over the runs."""
        return float(self.landscape.to_minimum(self.noisy[-1]).mean())

    @property
    def printed(self) -> float | None:
        """What the paper prints for this method on this function, if it does."""
        return PRINTED.get((self.landscape.name, self.method))

    def to_json(self) -> dict[str, object]:
        """The numbers, without the paths."""
        return {
            "function": self.landscape.name,
            "start": list(self.landscape.start),
            "method": self.method.value,
            "distance": self.mean,
            "standard_error": self.error,
            "spread": self.spread,
            "printed": self.printed,
            "end_without_noise": self.quiet_end,
            "end_with_noise": self.noisy_end,
        }


def deviations(
    landscapes: Sequence[Landscape], settings: Settings | None = None, *, runs: int = 200, seed: int = 0
) -> list[Deviation]:
    """Every method on every function. The noise of a function depends on the seed and its name, not on the others."""
    if not landscapes:
        raise InputError("No test function was given.", fix="Name at least one.")
    settings = settings or Settings()
    runs = checks.count("runs", runs, minimum=2, why="The spread needs two.")
    source = SeededSource(seed)
    found = []
    for landscape in landscapes:
        drawn = [
            source.normal(2 * runs, purpose=f"study of {landscape.name}", step=step).numpy().reshape(runs, 2)
            for step in range(settings.steps)
        ]
        noise = np.stack(drawn)
        for method in Method:
            quiet = walk_without_noise(landscape, method, settings)[:, 0]
            found.append(Deviation(landscape, method, quiet, walk(landscape, method, settings, noise)))
    return found
