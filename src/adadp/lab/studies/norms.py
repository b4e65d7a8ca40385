"""Does the gradient's norm fall while training converges? Figure 1 of Yu et al. 2018, on public data.

The paper lets the clip bound fall because "the gradient tends to zero for convergent algorithms". Here its
convolutional network and its convex model are trained without noise and without clipping, by plain SGD on batches into
which every record comes with probability q. Before training and after each epoch the same sample of training records
is looked at:

    mean, median, high   of the l2 norms of the records' own gradients, which is what a clip bound meets; high: nine in
                         ten are below it
    of_mean              the norm of their mean gradient: this one tends to zero where training converges
    loss                 their mean loss

Two questions are answered for each model, by the mean norm. ``falls``: is it smaller after the last epoch than after
the first? ``below_start``: is it smaller than before training? An untrained network can have small gradients because it
has not begun to learn, so the second may be false where the first is true. The figure has no numbers in the text, and
the text does not say which of the norms it shows.

Values are brought to mean 0 and variance 1 by channel over the data set, and so is every record, as in the experiments
on the paper's figure 2. All of this is made of raw gradients and exact statistics, which no noise protects. So only
data sets of the catalogue, which are public, are looked at.

    case                                       answer
    data of a user's own                       refused
    q = 1                                      every batch is the whole data set, and an epoch one step
    q = 0                                      refused: nothing would be trained
    one epoch                                  refused: a trend needs two
    an empty batch                               the model stays where it is
    a sample of more records than there are    all of them
    a gradient that is not finite              refused: the run has diverged
    a model asked for twice                    trained once
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.app import zoo
from adadp.app.features.standardise import Standardise
from adadp.app.losses import cross_entropy
from adadp.app.zoo.models import build_model
from adadp.errors import InputError
from adadp.gradients import GradientEngine
from adadp.lab.studies.gradients import check_public
from adadp.lab.studies.keys import keyed
from adadp.randomness import SeededSource

MODELS = {"conv": "mnist-cnn", "convex": "mnist-convex"}
"""The paper's two: what they are called here -> name of the network."""
HIGH = 0.9
"""The share of the records whose norm is below ``high``."""
_AT_ONCE = 500
"""Records whose gradients are looked at together."""
_UNSEEN_NOISE = 1e-9
"""Standardise knows statistics up to the noise on them. Here none is added to them."""


@dataclass(frozen=True)
class NormSettings:
    """The runs that are looked at. Rate and q are printed, the number of epochs is not."""

    data: str = "mnist"
    models: tuple[str, ...] = tuple(MODELS)
    """Names of networks, or ``conv`` and ``convex``."""
    epochs: int = 10
    lr: float = 0.02
    q: float = 0.01
    sample: int = 2000
    """Training records whose gradients are looked at."""
    raw: bool = False
    """Values as they are, not standardised."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_public(self.data)
        if not self.models:
            raise InputError("No model is to be trained.", fix="Name at least one.")
        checks.count("epochs", self.epochs, minimum=2, why="A trend needs two.")
        checks.positive("lr", self.lr)
        checks.positive("q", checks.probability("q", self.q), why="Nothing would be trained.")
        checks.count("sample", self.sample)

    @property
    def steps_per_epoch(self) -> int:
        """How many batches it takes to meet every record, once on average."""
        return max(1, round(1 / self.q))

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class NormLook:
    """The sample at one moment. Raw gradients: of public data only."""

    epoch: int
    mean: float
    median: float
    high: float
    of_mean: float
    loss: float


@dataclass(frozen=True)
class ModelNorms:
    """One model, before training and after every epoch."""

    model: str
    looks: tuple[NormLook, ...]
    accuracy: float
    """On the test records, in the end."""

    @property
    def falls(self) -> bool:
        """Whether the mean norm is smaller after the last epoch than after the first."""
        return self.looks[-1].mean < self.looks[1].mean

    @property
    def below_start(self) -> bool:
        """Whether it is smaller than before training."""
        return self.looks[-1].mean < self.looks[0].mean

    @property
    def highest(self) -> int:
        """The epoch after which the mean norm is largest."""
        return max(self.looks, key=lambda look: look.mean).epoch

    def to_json(self) -> dict[str, object]:
        """Every figure as a list over the epochs."""
        names = ("mean", "median", "high", "of_mean", "loss")
        return {
            "model": self.model,
            "epochs": [look.epoch for look in self.looks],
            **{name: [getattr(look, name) for look in self.looks] for name in names},
            "highest": self.highest,
            "test_accuracy": self.accuracy,
        }


@dataclass(frozen=True)
class NormStudy:
    """What the models have shown, by short name."""

    settings: NormSettings
    models: dict[str, ModelNorms]

    def to_json(self) -> dict[str, object]:
        return {
            "settings": self.settings.to_json(),
            "models": {name: each.to_json() for name, each in self.models.items()},
            "falls": {name: each.falls for name, each in self.models.items()},
            "below_start": {name: each.below_start for name, each in self.models.items()},
        }


def study_norms(
    settings: NormSettings | None = None, *, watch: Callable[[str, int, int], None] | None = None
) -> NormStudy:
    """Train every model. ``watch`` is told after each epoch the model, how many are done, and of how many."""
    settings = settings or NormSettings()
    names = keyed(settings.models, MODELS)
    loaded = zoo.load(settings.data)
    values, test_values = loaded.train[0], loaded.test[0]
    if not settings.raw:
        values, test_values = _standardised(values, test_values)
    train, test = (values, loaded.train[1]), (test_values, loaded.test[1])
    shape = tuple(values.shape[1:])
    models = {
        name: build_model(text, input_shape=shape, classes=loaded.classes, seed=settings.seed).train()
        for name, text in names.items()
    }
    found = {}
    for name, model in models.items():
        told = None if watch is None else (lambda done, epochs, name=name: watch(name, done, epochs))
        looks = _trained(model, train, settings, told)
        found[name] = ModelNorms(names[name], looks, _accuracy(model, *test))
    return NormStudy(settings, found)


def _standardised(values: Tensor, test_values: Tensor) -> tuple[Tensor, Tensor]:
    """Both by the exact statistics of ``values``: for public records only."""
    shape = tuple(values.shape[1:])
    stage = Standardise(noise_multiplier=_UNSEEN_NOISE, norm=math.sqrt(math.prod(shape)))
    module = stage.module(stage.learned(stage.query(values), stage.output_shape(shape)))
    return module(values), module(test_values)


def _trained(
    model: nn.Module, data: tuple[Tensor, Tensor], settings: NormSettings, watch: Callable[[int, int], None] | None
) -> tuple[NormLook, ...]:
    """Plain SGD on ``data``, with a look before it and after every epoch."""
    values, labels = data
    records = len(labels)
    source = SeededSource(settings.seed)
    shown = source.subset(records, min(settings.sample, records), purpose="sample of gradient norms", step=0)
    sample = values[shown], labels[shown]
    engine = GradientEngine(model, cross_entropy, (values[:1], labels[:1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    looks = [_look(engine, sample, 0)]
    for epoch in range(settings.epochs):
        for step in range(epoch * settings.steps_per_epoch, (epoch + 1) * settings.steps_per_epoch):
            batch = source.coins(records, settings.q, purpose="sampling", step=step)
            optimizer.zero_grad()
            loss = cross_entropy(model, values[batch], labels[batch]).sum() / (settings.q * records)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        looks.append(_look(engine, sample, epoch + 1))
        if watch is not None:
            watch(epoch + 1, settings.epochs)
    return tuple(looks)


def _look(engine: GradientEngine, sample: tuple[Tensor, Tensor], epoch: int) -> NormLook:
    """The gradients of ``sample`` where the model is now, which stays there."""
    groups, records = (engine.names,), len(sample[1])
    total, squares, loss = engine.zeros(), [], 0.0
    for values, labels in zip(*(torch.split(part, _AT_ONCE) for part in sample), strict=True):
        capture = engine.capture((values, labels))
        squares.append(capture.square_norms(groups)[:, 0])
        sums = capture.weighted_sums(torch.ones(len(labels), 1), groups)
        total = {name: value + sums[name] for name, value in total.items()}
        with torch.no_grad():
            loss += float(cross_entropy(engine.model, values, labels).sum())
    norms = torch.cat(squares).double().sqrt()
    if not norms.isfinite().all() or not math.isfinite(loss):
        raise InputError(
            f"A gradient is not finite after {epoch} epochs.",
            why="The run has diverged, and its norms say nothing.",
            fix="Use a smaller rate.",
        )
    mean = torch.cat([value.double().flatten() for value in total.values()]) / records
    median, high = torch.quantile(norms, torch.tensor([0.5, HIGH], dtype=torch.float64)).tolist()
    return NormLook(epoch, float(norms.mean()), median, high, float(mean.norm()), loss / records)


@torch.no_grad()
def _accuracy(model: nn.Module, values: Tensor, labels: Tensor) -> float:
    parts = zip(torch.split(values, _AT_ONCE), torch.split(labels, _AT_ONCE), strict=True)
    right = torch.cat([model(part).argmax(1) == truth for part, truth in parts])
    return float(right.double().mean())
