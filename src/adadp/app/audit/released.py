"""Attack what a feature stage releases before the training: how far it lies in the direction of a record.

The record is one of the axes, the others are zero; the other record that may replace it is another axis. All is public,
so the attacker knows the difference that the record makes. Of what is released, a sum with Gaussian noise, its share
along this difference is a sufficient statistic, and so no attack on this pair of data sets is stronger. Another record
may move more: a bound that is too large for this pair is not noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from adadp.app.audit.trials import Experiment, View
from adadp.app.features import ReleasedStage
from adadp.events import Neighbours

WIDTH = 8
"""Numbers of a record."""


@dataclass(frozen=True)
class Released(Experiment):
    """What ``stage`` releases. ``toward``: the share of it in the direction of the record."""

    stage: ReleasedStage
    neighbours: Neighbours
    _direction: Tensor = field(init=False, repr=False, compare=False)

    name = "features"
    score_names = ("toward",)

    def __post_init__(self) -> None:
        records = self.records(3)
        (inside,), (outside,) = records, self.without(records, self.neighbours)
        moved = _flat(self.stage.query(inside)) - _flat(self.stage.query(outside))
        object.__setattr__(self, "_direction", moved / moved.norm())

    def records(self, count: int) -> tuple[Tensor, ...]:
        rows = torch.zeros(count, WIDTH)
        rows[-1, 0] = 1
        return (rows,)

    def blank(self, record: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.zeros_like(record[0]),)

    def other(self, record: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (record[0].roll(1, 1),)

    def model(self) -> nn.Module:
        (width,) = self.stage.output_shape((WIDTH,))
        layer = nn.Linear(width, 1)
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
        return layer

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        scores: Tensor = model(batch[0])
        return scores.squeeze(1)

    def scores(self, view: View) -> tuple[float, ...]:
        (release,) = [each for each in view.releases if each.purpose.startswith("features/")]
        return (float(_flat(release.released) @ self._direction),)


def _flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.double().flatten() for value in tensors.values()])
