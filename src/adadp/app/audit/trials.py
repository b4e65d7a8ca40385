"""Many runs of the real step on two data sets that differ in one record, seen as an attacker may see them.

Nothing of the step is copied or imitated here: ``PrivateGradients`` draws the batches, clips, adds noise and hands over
the gradient, and what an attack may look at is what the guarantee covers: every released value, every gradient given to
the optimizer, and the model at the end. The data is public, so is what comes out.
"""

from __future__ import annotations

import copy
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adadp import checks
from adadp.app.optimizers.adaptive_rate import AdaptiveRate
from adadp.errors import InputError
from adadp.events import Event
from adadp.ledger import Ledger, PlannedBudget
from adadp.methods import DpSgd, Method
from adadp.plan import Plan
from adadp.randomness import RandomSource, SeededSource
from adadp.release import GaussianMechanism
from adadp.step import PrivateGradients

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Floats = npt.NDArray[np.float64]
Watch = Callable[[int, int], None]
"""Told after every run how many are done, and of how many."""

_SEEDS = 2**32
"""Runs with the record, and as many without it, that one seed of an audit has room for."""

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter], float], torch.optim.Optimizer]] = {
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
    "adam": lambda parameters, lr: torch.optim.Adam(parameters, lr=lr),
    "rms": AdaptiveRate,
}
"""Optimizers by name, as ``adadp train`` calls them."""


def optimizer_by_name(name: str, lr: float) -> MakeOptimizer:
    """The optimizer called ``name`` with learning rate ``lr``."""
    if name not in OPTIMIZERS:
        raise InputError(f"Unknown optimizer {name!r}.", fix=f"Use one of: {', '.join(OPTIMIZERS)}.")
    rate = checks.positive("lr", lr, why="At 0 no parameter would move.")
    return lambda parameters: OPTIMIZERS[name](parameters, rate)


@dataclass(frozen=True)
class Subject:
    """What is attacked: the plan and method of a run, its mechanism (another one in tests) and its optimizer."""

    plan: Plan
    method: Method = field(default_factory=DpSgd)
    mechanism: GaussianMechanism = field(default_factory=GaussianMechanism)
    optimizer: MakeOptimizer = field(default_factory=lambda: optimizer_by_name("sgd", 0.05))

    def __post_init__(self) -> None:
        if self.plan.sampling != "poisson":
            raise InputError(
                f"Only Poisson sampling can be attacked this way, not {self.plan.sampling}.",
                why="One data set is a record shorter, and the plan must not tell.",
                fix="Plan with sampling='poisson'.",
            )


@dataclass(frozen=True)
class Release:
    """One release as the attacker sees it: the noisy tensors in the coordinates of the noise, and what was claimed."""

    released: Mapping[str, Tensor]
    l2_bound: float
    noise_multiplier: float
    purpose: str


@dataclass(frozen=True)
class View:
    """Everything one run lets an attacker see."""

    model: nn.Module
    """As it is at the end."""
    gradients: list[dict[str, Tensor]]
    """What the optimizer was given, step by step."""
    releases: list[Release]
    """Empty for a method that is not private: there the gradient is let out, and the noisy values behind it are not."""
    sampling_probability: float


class Experiment(ABC):
    """A record to look for, the records around it, and how to score what a run shows."""

    name: ClassVar[str]
    score_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def records(self, count: int) -> tuple[Tensor, ...]:
        """``count`` records of which the last is the one looked for."""

    @abstractmethod
    def model(self) -> nn.Module:
        """The network at its start, which the attacker knows."""

    @abstractmethod
    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """One number per record."""

    @abstractmethod
    def scores(self, view: View) -> tuple[float, ...]:
        """One number for each of ``score_names``."""


@dataclass(frozen=True)
class Trials:
    """Scores of the runs with and without the record, runs x kinds of scores, and what one run has charged."""

    scores_with: Floats
    scores_without: Floats
    charged: Event


def run_trials(
    experiment: Experiment, subject: Subject, trials: int, *, seed: int = 0, watch: Watch | None = None
) -> Trials:
    """``trials`` runs with the record of ``experiment`` and as many without it, each with random numbers of its own.

    The record is added to ``plan.records - 1`` others. The plan is the same on both sides, as it must be where the
    number of records is not public. The same seed gives the same scores.
    """
    trials = checks.count("trials", trials, minimum=2, why="One half of them chooses, the other half measures.")
    seed = checks.count("seed", seed, minimum=0)
    if trials >= _SEEDS or seed >= 2**62 // _SEEDS:
        raise InputError("`trials` or `seed` is too large.", fix="Pass `trials` below 2**32 and a `seed` below 2**30.")
    everybody = experiment.records(subject.plan.records)
    others = tuple(column[:-1] for column in everybody)
    scores: list[Floats] = []
    with tempfile.TemporaryDirectory() as folder:
        for side, data in enumerate((everybody, others)):
            world = _World(experiment, subject, data, Path(folder) / f"{side}.jsonl")
            rows = []
            for trial in range(trials):
                rows.append(world.run((seed * _SEEDS + trial) * 2 + side, paid=trial > 0))
                if watch is not None:
                    watch(side * trials + trial + 1, 2 * trials)
            scores.append(np.array(rows, dtype=np.float64))
            charged = world.close()
    return Trials(scores[0], scores[1], charged)


class _World:
    """One data set, and the step that is run on it again and again from the same start.

    Only the first run pays for its steps. That shows what a run charges; to write (and fsync) the same charges for
    thousands of runs on public data would take longer than the runs.
    """

    def __init__(self, experiment: Experiment, subject: Subject, data: tuple[Tensor, ...], ledger: Path) -> None:
        plan = subject.plan
        self._experiment, self._subject = experiment, subject
        self._source = _TrialSource()
        self._seen = _Seen(subject.mechanism)
        self._model = experiment.model()
        self._ledger = Ledger.create(ledger, budget=PlannedBudget(plan.event()))
        self._private = PrivateGradients(
            self._model,
            data,
            experiment.loss,
            plan,
            self._ledger,
            method=subject.method,
            seed=self._source,
            mechanism=self._seen,
            allow_nonprivate=True,  # the data is public
        )
        self._start: tuple[dict[str, Any], dict[str, Any]] = copy.deepcopy(
            (self._private.state(), self._model.state_dict())
        )

    def run(self, seed: int, *, paid: bool) -> tuple[float, ...]:
        """One run from the start, scored."""
        state, parameters = self._start
        self._source.begin(seed)
        self._seen.releases = []
        self._model.load_state_dict(parameters)
        self._private.restore(copy.deepcopy(state), nothing_since=True)
        optimizer = self._subject.optimizer([each for each in self._model.parameters() if each.requires_grad])
        gradients = []
        for _ in range(self._subject.plan.steps):
            gradients.append(self._private.release(paid=paid))
            optimizer.step()
        plan = self._subject.plan
        shown = self._seen.releases if self._subject.method.not_private is None else []
        view = View(self._model, gradients, shown, plan.batch_size / plan.records)
        return self._experiment.scores(view)

    def close(self) -> Event:
        """Everything that was charged."""
        charged = self._ledger.event()
        self._ledger.close()
        assert charged is not None
        return charged


class _TrialSource(RandomSource):
    """A seeded source that begins anew for every run, so that the step need not be built anew."""

    def __init__(self) -> None:
        self._now = SeededSource(0)

    def begin(self, seed: int) -> None:
        self._now = SeededSource(seed)

    @property
    def reproducible(self) -> bool:
        return True

    def describe(self) -> str:
        return self._now.describe()

    def _words(self, count: int, purpose: str, step: int) -> npt.NDArray[np.uint64]:
        return self._now._words(count, purpose, step)


class _Seen(GaussianMechanism):
    """Releases through ``inner`` and remembers what it released, not what it was given."""

    def __init__(self, inner: GaussianMechanism) -> None:
        self._inner = inner
        self.releases: list[Release] = []

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
        released = self._inner.release(
            total, l2_bound=l2_bound, noise_multiplier=noise_multiplier, source=source, step=step, purpose=purpose
        )
        kept = {name: value.clone() for name, value in released.items()}
        self.releases.append(Release(kept, l2_bound, noise_multiplier, purpose))
        return released
