"""The strongest record: its gradient is the whole clip bound in one coordinate, everybody else's is zero.

What is released in a step is then, in that coordinate, N(b C, s^2) with s = sigma C, where b is 1 with probability q if
the record is there and 0 otherwise. That is the pair of distributions the accountant computes with, so an attack that
scores by the likelihood ratio (Neyman and Pearson 1933: no test has fewer errors) is as good as any on a run that does
what its certificate says. All other coordinates hold noise alone; they show whether the noise itself tells something.

    replace-one neighbours      the other record has the opposite gradient, so b is -1 where it is drawn
    reshuffled batches          the record is in one batch of an epoch: the ratio is that of the mean over its batches
    several layers              the gradient has the same length in each, so that bounds by layer are reached
    more released than that     counts of a clip rule and choices are not looked at
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

from adadp import checks
from adadp.app.audit.replay import Release
from adadp.app.audit.trials import Experiment, Floats, View
from adadp.events import Neighbours
from adadp.methods import GRADIENT
from adadp.plan import Plan

_FAR_BEYOND = 1e4
"""Length of the record's gradient: any clip bound and any scale a method may use are far below it."""


@dataclass(frozen=True)
class Dirac(Experiment):
    """A linear loss in ``layers`` layers of ``coordinates`` weights, of which the record uses the first of each.

    ``likelihood``: the sum over the steps of ln(1 - q + q exp((2 x C - C^2) / (2 s^2))), x the released coordinate in
    the coordinates of the noise (of several layers, their sum over the root of their number). Where that cannot be seen
    (``View.releases``) or has no noise, the sum of x.
    ``own``: the root mean square of the record's coordinate as the optimizer was given it, and ``spread`` that of all
    others, in the second half of the steps, when what a method learns during the run shows. They betray noise, scales
    or a divisor that depend on the data.
    """

    coordinates: int = 32
    layers: int = 1

    name = "dirac"
    score_names = ("likelihood", "own", "spread")

    def __post_init__(self) -> None:
        why = "The first shows the record, the others the noise."
        object.__setattr__(self, "coordinates", checks.count("coordinates", self.coordinates, minimum=2, why=why))
        object.__setattr__(self, "layers", checks.count("layers", self.layers))

    def records(self, count: int) -> tuple[Tensor, ...]:
        rows = torch.zeros(count, self.coordinates)
        rows[-1, 0] = _FAR_BEYOND
        return (rows,)

    def blank(self, record: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.zeros_like(record[0]),)

    def other(self, record: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (-record[0],)

    def model(self) -> nn.Module:
        return _Sum(self.coordinates, self.layers)

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        scores: Tensor = model(batch[0])
        return scores.squeeze(1)

    def scores(self, view: View) -> tuple[float, ...]:
        gradients = torch.stack([_rows(each) for each in view.gradients]).double()
        own = gradients[:, :, 0].sum(1) / self.layers**0.5
        steps = [each for each in view.releases if each.purpose == GRADIENT]
        likelihood = _log_likelihood_ratio(steps, view.plan) if steps else float(own.sum())
        late = gradients[len(gradients) // 2 :].square()
        return likelihood, float(own[len(own) // 2 :].square().mean().sqrt()), float(late[:, :, 1:].mean().sqrt())


class _Sum(nn.Module):
    """The sum of linear layers, all of which begin with zeros."""

    def __init__(self, coordinates: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(coordinates, 1, bias=False) for _ in range(layers))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, values: Tensor) -> Tensor:
        return torch.stack([layer(values) for layer in self.layers]).sum(0)


def _rows(tensors: Mapping[str, Tensor]) -> Tensor:
    """The weights of all layers, layers x coordinates."""
    return torch.cat([value.reshape(1, -1) for value in tensors.values()])


def _log_likelihood_ratio(releases: Sequence[Release], plan: Plan) -> float:
    """Of the released steps: with the record against without it, or against the other one."""
    rows = [_rows(each.released)[:, 0].double() for each in releases]
    x = np.array([float(each.sum()) / len(each) ** 0.5 for each in rows])
    bound = np.array([each.l2_bound for each in releases])
    deviation = bound * [each.noise_multiplier for each in releases]
    if not deviation.all():
        return float(x.sum())
    found = _by_round((2 * x - bound) * bound / (2 * deviation**2), plan)
    if plan.neighbours is Neighbours.REPLACE_ONE:
        found -= _by_round((-2 * x - bound) * bound / (2 * deviation**2), plan)
    return found


def _by_round(normal: Floats, plan: Plan) -> float:
    """The sum over the rounds of the run, from the log ratios of N(C, s^2) and N(0, s^2) in each step.

    A record is in one of the batches that are drawn together, if there are several, and else in a batch with its
    probability.
    """
    sampler = plan.sampler
    together = sampler.steps_per_round
    q = 1 / together if together > 1 else plan.batch_size / plan.records
    total = 0.0
    for start in range(0, len(normal), together):
        drawn = normal[start : start + together]
        absent = max(0.0, 1 - q * len(drawn))
        total += float(special.logsumexp([*drawn, 0.0], b=[*[q] * len(drawn), absent]))
    return total
