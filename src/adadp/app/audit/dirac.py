"""The strongest record: its gradient is the whole clip bound in one coordinate, everybody else's is zero.

What is released in a step is then, in that coordinate, N(b C, s^2) with s = sigma C, where b is 1 with probability q if
the record is there and 0 otherwise. That is the pair of distributions the accountant computes with, so an attack that
scores by the likelihood ratio (Neyman and Pearson 1933: no test has fewer errors) is as good as any on a run that does
what its certificate says. All other coordinates hold noise alone; they show whether the noise itself tells something.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from adadp import checks
from adadp.app.audit.replay import Release
from adadp.app.audit.trials import Experiment, View
from adadp.methods import GRADIENT

_FAR_BEYOND = 1e4
"""Length of the record's gradient: any clip bound and any scale a method may use are far below it."""


@dataclass(frozen=True)
class Dirac(Experiment):
    """A linear loss in ``coordinates`` weights, of which the record uses the first.

    ``likelihood``: the sum over the steps of ln(1 - q + q exp((2 x C - C^2) / (2 s^2))), x the released coordinate in
    the coordinates of the noise. Where that cannot be seen (``View.releases``) or has no noise, the sum of x.
    ``own``: the root mean square of the record's coordinate as the optimizer was given it, and ``spread`` that of all
    others, in the second half of the steps, when what a method learns during the run shows. They betray noise, scales
    or a divisor that depend on the data.
    """

    coordinates: int = 32

    name = "dirac"
    score_names = ("likelihood", "own", "spread")

    def __post_init__(self) -> None:
        why = "The first shows the record, the others the noise."
        object.__setattr__(self, "coordinates", checks.count("coordinates", self.coordinates, minimum=2, why=why))

    def records(self, count: int) -> tuple[Tensor, ...]:
        rows = torch.zeros(count, self.coordinates)
        rows[-1, 0] = _FAR_BEYOND
        return (rows,)

    def model(self) -> nn.Module:
        layer = nn.Linear(self.coordinates, 1, bias=False)
        nn.init.zeros_(layer.weight)
        return layer

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        scores: Tensor = model(batch[0])
        return scores.squeeze(1)

    def scores(self, view: View) -> tuple[float, ...]:
        gradients = torch.stack([each["weight"][0] for each in view.gradients]).double()
        likelihood = float(gradients[:, 0].sum())
        if view.releases:
            q = view.sampling_probability
            likelihood = sum(_log_likelihood_ratio(each, q) for each in view.releases if each.purpose == GRADIENT)
        squares = gradients[len(gradients) // 2 :].square()
        return likelihood, float(squares[:, 0].mean().sqrt()), float(squares[:, 1:].mean().sqrt())


def _log_likelihood_ratio(release: Release, q: float) -> float:
    """Of one step: with the record against without it."""
    x, bound = float(release.released["weight"][0, 0]), release.l2_bound
    deviation = release.noise_multiplier * bound
    if not deviation:
        return x
    normal = (2 * x * bound - bound**2) / (2 * deviation**2)
    return normal if q == 1 else float(np.logaddexp(np.log1p(-q), np.log(q) + normal))
