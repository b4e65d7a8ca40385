"""A canary in real data: one record alone has a feature, and the attacker looks at what became of its weights.

The network is small, its start is known, the other records are public ones. Their value of the feature (a flag) is 0,
so they have no gradient in the flag's weights at any time: whatever moves these weights is the canary or noise.

    replace-one neighbours      the other record has the flag with the opposite sign
    zero-out neighbours         each record has a weight in the loss, which is 0 for the one without a gradient
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adadp import checks
from adadp.app import zoo
from adadp.app.audit.trials import Experiment, View
from adadp.app.losses import cross_entropy
from adadp.errors import InputError

_HIDDEN = 8
_START = 20
"""Seed of the known start."""
_FLAG = 10.0
"""Value of the canary's flag: with it nearly all of the canary's gradient lies in the flag's weights."""
_WEIGHT = "0.weight"


@dataclass(frozen=True)
class Canary(Experiment):
    """A network of 8 hidden units on the data set ``data`` (cancer, or mnist pooled to 7 x 7) and a flag.

    ``moved``: how far the flag's weights are from where they started. ``along``: how far in the direction in which the
    canary's gradient at the start drives them. ``silent``: in how many steps their gradient was exactly zero, which
    noise never is; a method whose noise follows unreleased gradients betrays itself there.
    """

    data: str = "cancer"
    source_dir: str | None = None
    _table: tuple[Tensor, Tensor] = field(init=False, repr=False, compare=False)
    _direction: Tensor = field(init=False, repr=False, compare=False)

    name = "canary"
    score_names: ClassVar[tuple[str, ...]] = ("moved", "along", "silent")

    def __post_init__(self) -> None:
        object.__setattr__(self, "_table", _public_records(self.data, self.source_dir))
        model = self.model()
        parameter = dict(model.named_parameters())[_WEIGHT]
        (gradient,) = torch.autograd.grad(cross_entropy(model, *_canary(self._table[0].shape[1])).sum(), parameter)
        object.__setattr__(self, "_direction", -F.normalize(gradient[:, -1], dim=0))

    def records(self, count: int) -> tuple[Tensor, ...]:
        features, labels = self._table
        others = checks.count("records", count, minimum=3) - 1
        if others > len(features):
            raise InputError(
                f"The data set {self.data} has {len(features)} records to put beside the canary, not {others}.",
                fix=f"Pass `records` <= {len(features) + 1}.",
            )
        canary, label = _canary(features.shape[1])
        flagged = torch.cat([features[:others], torch.zeros(others, 1)], dim=1)
        return torch.cat([flagged, canary]), torch.cat([labels[:others], label]), torch.ones(count)

    def blank(self, record: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return record[0], record[1], torch.zeros_like(record[2])

    def other(self, record: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return -record[0], record[1], record[2]

    def model(self) -> nn.Module:
        """The flag's weights start at zero, so that the hidden units are not saturated by its size."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_START)
            classes = int(self._table[1].max()) + 1
            first = nn.Linear(self._table[0].shape[1] + 1, _HIDDEN)
            model = nn.Sequential(first, nn.Tanh(), nn.Linear(_HIDDEN, classes))
        with torch.no_grad():
            first.weight[:, -1] = 0
        return model

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        features, labels, weights = batch
        return cross_entropy(model, features, labels) * weights

    def scores(self, view: View) -> tuple[float, ...]:
        weights = dict(view.model.named_parameters())[_WEIGHT].detach()[:, -1]
        silent = sum(not each[_WEIGHT][:, -1].any() for each in view.gradients)
        return float(weights.norm()), float(weights @ self._direction), float(silent)


@dataclass(frozen=True)
class FinalLoss(Canary):
    """The same record, of which the attacker sees the ``loss`` of the final model alone: black-box."""

    name = "loss"
    score_names = ("loss",)

    def scores(self, view: View) -> tuple[float, ...]:
        with torch.no_grad():
            return (float(cross_entropy(view.model, *_canary(self._table[0].shape[1]))),)


def _canary(features: int) -> tuple[Tensor, Tensor]:
    """The record: nothing but a flag, labelled 1."""
    row = torch.zeros(1, features + 1)
    row[0, -1] = _FLAG
    return row, torch.ones(1, dtype=torch.int64)


def _public_records(name: str, source_dir: str | None) -> tuple[Tensor, Tensor]:
    if name not in ("cancer", "mnist"):
        raise InputError(f"The canary experiment has no data {name!r}.", fix="Use cancer or mnist.")
    features, labels = zoo.load(name, source_dir=source_dir).train
    if name == "mnist":
        features = F.avg_pool2d(features, 4).flatten(1)
    return features.float(), labels.long()
