"""Does E' foresee the gradient? Figures 4c and 4d of Xu et al. 2020, on public data.

ADADP as published bounds coordinate i by s_i = beta sqrt(E'_i) and gives it the noise sigma_i = sigma* sqrt(m) s_i,
where E' averages squares of earlier gradients. The paper says that sqrt(E'[g^2]_{t-1}) has the distribution of |g_t|
(figure 4c) and that sigma_i falls during training (figure 4d). Here a real run of the method is stopped before chosen
steps, and both are looked at for every coordinate:

    |g_t|         of the mean gradient of the batch that step t is about to use: its sum over the public batch size
    sqrt(E')      as step t uses it, so made of steps 1 to t - 1
    sigma_i       the noise step t adds to the sum over the batch, or C sigma* everywhere while the gate is closed

What is shown is made of raw gradients, which no noise protects. So only data sets of the catalogue, which are public,
are looked at, and the projection before the network is the exact one of their records, not a noisy release of it.

    case                                       answer
    data of a user's own                       refused
    another method than adadp-published        refused: it has no E'
    step 1                                     E' = 0: the gate is closed, and no correlation is defined
    an empty batch                               g = 0 everywhere: no correlation is defined
    sigma = 0                                  sigma_i = 0; clipping and gate stay
    a gradient that is not finite              refused: the run has diverged
    a step asked for twice                     looked at once
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn

from adadp import checks
from adadp.app import zoo
from adadp.app.clipping.fixed import layers
from adadp.app.features.pca import Pca
from adadp.app.losses import cross_entropy
from adadp.app.optimizers.adaptive_rate import AdaptiveRate
from adadp.app.owndata import is_own
from adadp.app.zoo.models import build_model
from adadp.errors import InputError
from adadp.lab.methods.published import AdadpPublished
from adadp.lab.studies.functions import Array
from adadp.methods import Method
from adadp.plan import Plan
from adadp.step import PrivateGradients

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
PRINTED_RANGES = (10.0, 20.0)
"""Figure 4d: many sigma_i lie between these at step 100, and most below the first at step 1000."""


@dataclass(frozen=True)
class GradientSettings:
    """The run that is looked at. The defaults are those of the paper's figure 2a, but for the noise of its PCA."""

    data: str = "mnist"
    looks: tuple[int, ...] = (100, 1000)
    """The steps that are looked at, counted from 1."""
    method: Method = field(default_factory=AdadpPublished)
    model: str = "mlp:1000"
    dim: int = 60
    """Principal components the network sees; 0: the values of the records as they are."""
    batch_size: int = 600
    noise_multiplier: float = 8.0
    clip_norm: float = 4.0
    rate: float = 0.002
    seed: int = 0

    def __post_init__(self) -> None:
        check_public(self.data)
        if not isinstance(self.method, AdadpPublished):
            raise InputError(
                f"The method {self.method} has no E' to look at.",
                why="Only ADADP as published sets its noise by an average of gradients that were not released.",
                fix="Use adadp-published, with options if you like: adadp-published:square=square-of-mean.",
            )
        if not self.looks:
            raise InputError("No step is to be looked at.", fix="Name at least one.")
        steps = {checks.count("step", step, why="Steps are counted from 1.") for step in self.looks}
        object.__setattr__(self, "looks", tuple(sorted(steps)))
        checks.count("dim", self.dim, minimum=0)
        checks.positive("rate", self.rate)

    def to_json(self) -> dict[str, object]:
        """The settings, the method as text."""
        return asdict(self) | {"method": str(self.method)}


@dataclass(frozen=True, eq=False)
class Look:
    """One step, all coordinates of the model one after another. Raw gradients: of public data only."""

    step: int
    gate_open: bool
    parameters: dict[str, int]
    """Name of each parameter -> how many of the coordinates are its."""
    gradient: Array
    """|g_t|."""
    estimate: Array
    """sqrt(E'_{t-1})."""
    noise: Array
    """sigma_i."""

    @property
    def shown(self) -> NDArray[np.bool_]:
        """Where gradient and estimate are both above 0, so that their ratio is something."""
        both: NDArray[np.bool_] = (self.gradient > 0) & (self.estimate > 0)
        return both

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation of |g_t| and sqrt(E'_{t-1}); None where one of them is constant."""
        return _rank_correlation(self.gradient, self.estimate)

    @property
    def correlations(self) -> dict[str, float | None]:
        """The same within each parameter: without what telling layers apart adds to it."""
        ends = np.cumsum(list(self.parameters.values()))[:-1]
        parts = zip(np.split(self.gradient, ends), np.split(self.estimate, ends), strict=True)
        return {name: _rank_correlation(*part) for name, part in zip(self.parameters, parts, strict=True)}

    @property
    def ratio(self) -> float | None:
        """The median of |g_t| / sqrt(E'_{t-1}) over the coordinates where neither is 0."""
        both = self.shown
        return float(np.median(self.gradient[both] / self.estimate[both])) if both.any() else None

    def to_json(self) -> dict[str, object]:
        """Quantiles and correlations; no single coordinate."""
        low, high = PRINTED_RANGES
        below, above = float(np.mean(self.noise < low)), float(np.mean(self.noise > high))
        return {
            "step": self.step,
            "gate_open": self.gate_open,
            "rank_correlation": self.correlation,
            "rank_correlation_within": self.correlations,
            "median_ratio": self.ratio,
            "zero": {"gradient": float(np.mean(self.gradient == 0)), "estimate": float(np.mean(self.estimate == 0))},
            "gradient": quantiles(self.gradient),
            "estimate": quantiles(self.estimate),
            "noise": quantiles(self.noise),
            "noise_shares": {f"<{low:g}": below, f"{low:g}-{high:g}": 1 - below - above, f">{high:g}": above},
        }


@dataclass(frozen=True, eq=False)
class GradientStudy:
    """What the looks of one run have shown."""

    settings: GradientSettings
    looks: tuple[Look, ...]
    accuracy: float
    """On the test records, before the last look."""

    @property
    def coordinates(self) -> int:
        """How many the model has: m of the paper."""
        return len(self.looks[0].gradient)

    def to_json(self) -> dict[str, object]:
        return {
            "settings": self.settings.to_json(),
            "coordinates": self.coordinates,
            "test_accuracy": self.accuracy,
            "looks": [look.to_json() for look in self.looks],
        }


def check_public(data: str) -> None:
    """Refuse what is no data set of the catalogue, before any of its gradients are shown."""
    if is_own(data):
        raise InputError(
            f"{data} is data of your own.",
            why="The study shows gradients as they are, which tell about the records they are made of.",
            fix=f"Use a public data set: {', '.join(zoo.DATA_SETS)}.",
        )
    zoo.find(data)


def study_gradients(
    settings: GradientSettings | None = None, *, watch: Callable[[int, int], None] | None = None
) -> GradientStudy:
    """Train up to the last look. ``watch`` is told after each step how many are done, and of how many."""
    settings = settings or GradientSettings()
    loaded = zoo.load(settings.data)
    (values, labels), (test_values, test_labels) = loaded.train, loaded.test
    values, test_values = _projected(settings.dim, values, test_values)
    model = build_model(
        settings.model, input_shape=tuple(values.shape[1:]), classes=loaded.classes, seed=settings.seed
    ).train()
    last = settings.looks[-1]
    plan = Plan.of_noise(
        noise=settings.noise_multiplier,
        records=len(labels),
        batch_size=settings.batch_size,
        steps=last,
        clip_norm=settings.clip_norm,
    )
    looks = []
    with (
        tempfile.TemporaryDirectory(prefix="adadp-") as place,
        PrivateGradients(
            model,
            (values, labels),
            cross_entropy,
            plan,
            Path(place) / "ledger.jsonl",
            method=settings.method,
            seed=settings.seed,
            allow_nonprivate=True,  # the data is public
        ) as private,
    ):
        optimizer = AdaptiveRate(model.parameters(), settings.rate)
        for step in range(1, last + 1):
            if step in settings.looks:
                looks.append(_look(private, values, labels, settings))
            if step < last:
                private.release()
                optimizer.step()
                if watch is not None:
                    watch(step, last - 1)
    return GradientStudy(settings, tuple(looks), _accuracy(model, test_values, test_labels))


def _projected(dim: int, values: Tensor, test_values: Tensor) -> tuple[Tensor, Tensor]:
    """Both on the first ``dim`` principal components of ``values``, exactly: for public records only."""
    if not dim:
        return values, test_values
    stage = Pca(dim=dim)
    shape = tuple(values.shape[1:])
    stage.output_shape(shape)
    projection = stage.module(stage.learned(stage.query(values), shape))
    return projection(values), projection(test_values)


def _look(private: PrivateGradients, values: Tensor, labels: Tensor, settings: GradientSettings) -> Look:
    """The coming step of ``private``, without making it: a seeded run draws the same batch again when it does."""
    batch = private.batches.batch(private.step)
    trained = dict(private.model.named_parameters())
    loss = cross_entropy(private.model, values[batch], labels[batch]).sum() / settings.batch_size
    gradients = torch.autograd.grad(loss, list(trained.values()))
    gradient = _flat(gradients).abs()
    if not gradient.isfinite().all():
        raise InputError(
            f"The gradient of step {private.step + 1} is not finite.",
            why="The run has diverged, and there is nothing to compare.",
            fix="Use a smaller rate, or less noise.",
        )
    moments = {name: private.query.tensors()[name] for name in trained}
    noise = published_noise(moments, settings)
    return Look(
        step=private.step + 1,
        gate_open=noise is not None,
        parameters={name: value.numel() for name, value in trained.items()},
        gradient=gradient.numpy(),
        estimate=_flat(tuple(moments.values())).sqrt().numpy(),
        noise=np.full(len(gradient), settings.clip_norm * settings.noise_multiplier)
        if noise is None
        else noise.numpy(),
    )


def published_noise(moments: dict[str, Tensor], settings: GradientSettings) -> Tensor | None:
    """Lines 7 to 12 of Algorithm 1: sigma_i of all coordinates, from E'; None while the gate is closed."""
    method = settings.method
    assert isinstance(method, AdadpPublished)
    judged = _flat(tuple(moments.values()))
    judged = judged.sqrt() if method.gate == "sqrt" else judged
    if not judged.var(correction=0).item() > method.threshold:
        return None
    names = tuple(moments)
    blocks = layers(names) if method.size == "layer" else (names,)
    sizes = {name: sum(moments[each].numel() for each in block) for block in blocks for name in block}
    return (
        settings.noise_multiplier
        * method.beta
        * _flat(tuple(sizes[name] * moments[name].double() for name in names)).sqrt()
    )


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([each.detach().double().flatten() for each in tensors])


@torch.no_grad()
def _accuracy(model: nn.Module, values: Tensor, labels: Tensor) -> float:
    return float((model(values).argmax(1) == labels).double().mean())


def _rank_correlation(one: Array, other: Array) -> float | None:
    if min(np.ptp(one), np.ptp(other)) == 0:
        return None
    found = float(spearmanr(one, other).statistic)
    return found if math.isfinite(found) else None


def quantiles(values: Array) -> dict[str, float]:
    """Level -> the value below which that share of the coordinates lies."""
    return {f"{level:g}": float(value) for level, value in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)}
