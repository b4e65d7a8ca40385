"""Many runs of the real step on two data sets that differ in one record, seen as an attacker may see them.

Nothing of the step is copied or imitated here: ``PrivateGradients`` draws the batches, clips, adds noise and hands over
the gradient, and what an attack may look at is what the guarantee covers: every released value, every gradient given to
the optimizer, and the model at the end. The data is public, so is what comes out.

    the guarantee is for                 the second data set
    add-remove neighbours                lacks the record
    zero-out neighbours                  has one without a gradient in its place
    replace-one neighbours               has another in its place
    people of several rows (``rows``)    as above, with all rows of the person
    the best of several runs (``law``)   as above; of as many runs as the law draws, that with the highest first score
                                         is seen, and nothing if there is none

In a group of processes (``torch.distributed``) each makes the same runs together with the others, and gets all scores.
"""

from __future__ import annotations

import copy
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adadp import checks
from adadp.app.accounting import Filter
from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import PoissonRepetitions, draw_count
from adadp.app.audit.replay import Recorder, Release
from adadp.app.features import Stage
from adadp.app.optimizers.adaptive_rate import AdaptiveRate
from adadp.app.train.feature_release import Preparation
from adadp.app.units import Units, loss_by_unit, records_by_unit
from adadp.errors import BudgetExceeded, InputError
from adadp.events import Event, Neighbours
from adadp.ledger import Ledger, PlannedBudget
from adadp.methods import DpSgd, Method
from adadp.plan import Plan
from adadp.randomness import RandomSource, SeededSource
from adadp.records import Records
from adadp.release import GaussianMechanism
from adadp.step import PrivateGradients

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Floats = npt.NDArray[np.float64]
Watch = Callable[[int, int], None]
"""Told after every run how many are done, and of how many."""

_RUNS = 2**10
"""Runs that one trial has room for, where the best of several is released."""
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
    """What is attacked: the plan and method of a run, its mechanism (another one in tests) and its optimizer.

    ``rows``: how many rows the person has whose record is looked for; all others have one. ``law``: what is released is
    the best of so many runs. ``budget`` makes the budget of a run whose noise is chosen on the way.
    ``stages`` are released before the first step.
    """

    plan: Plan
    method: Method = field(default_factory=DpSgd)
    mechanism: GaussianMechanism = field(default_factory=GaussianMechanism)
    optimizer: MakeOptimizer = field(default_factory=lambda: optimizer_by_name("sgd", 0.05))
    rows: int = 1
    law: PoissonRepetitions | None = None
    budget: Callable[[], Filter] | None = None
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", checks.count("rows", self.rows))
        if self.plan.neighbours is Neighbours.ADD_REMOVE and self.plan.sampling != "poisson":
            raise InputError(
                f"{self.plan.sampling} batches cannot be attacked for add-remove neighbours.",
                why="One data set is a record shorter, and the plan must not tell.",
                fix="Plan with Poisson sampling, or for zero-out neighbours.",
            )
        if self.plan.adaptive and self.budget is None:
            raise InputError(
                "The noise of the run is chosen on the way, and nothing says what it may spend.",
                fix="Pass budget=lambda: RdpFilter(epsilon=..., delta=...).",
            )


@dataclass(frozen=True)
class View:
    """Everything one run lets an attacker see."""

    model: nn.Module
    """As it is at the end."""
    gradients: list[dict[str, Tensor]]
    """What the optimizer was given, step by step."""
    releases: list[Release]
    """Empty for a method that is not private: there the gradient is let out, and the noisy values behind it are not."""
    plan: Plan


class Experiment(ABC):
    """A record to look for, the records around it, and how to score what a run shows."""

    name: ClassVar[str]
    score_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def records(self, count: int) -> tuple[Tensor, ...]:
        """``count`` records of which the last is the one looked for."""

    @abstractmethod
    def blank(self, record: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A record like ``record``, which it replaces, that has no gradient."""

    @abstractmethod
    def other(self, record: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Another record to replace ``record``, which is looked for, as far from it as may be."""

    @final
    def without(self, records: tuple[Tensor, ...], neighbours: Neighbours) -> tuple[Tensor, ...]:
        """The neighbour of the data set ``records`` in which the last one is not."""
        others, last = tuple(part[:-1] for part in records), tuple(part[-1:] for part in records)
        if neighbours is Neighbours.ADD_REMOVE:
            return others
        replaced = self.blank(last) if neighbours is Neighbours.ZERO_OUT else self.other(last)
        return tuple(torch.cat(parts) for parts in zip(others, replaced, strict=True))

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

    The record is one of ``plan.records``. The plan is the same on both sides, as it must be where the number of records
    is not public. The same seed gives the same scores.
    """
    trials = checks.count("trials", trials, minimum=2, why="One half of them chooses, the other half measures.")
    seed = checks.count("seed", seed, minimum=0)
    if trials >= _SEEDS // (1 if subject.law is None else _RUNS) or seed >= 2**62 // _SEEDS:
        raise InputError("`trials` or `seed` is too large.", fix="Pass `trials` below 2**22 and a `seed` below 2**30.")
    everybody = experiment.records(subject.plan.records)
    assert subject.plan.neighbours is not None
    others = experiment.without(everybody, subject.plan.neighbours)
    scores: list[Floats] = []
    with tempfile.TemporaryDirectory() as folder:
        for side, data in enumerate((everybody, others)):
            world = _World(experiment, subject, data, Path(folder) / f"{side}")
            rows = []
            for trial in range(trials):
                rows.append(world.trial(seed * _SEEDS, trial, side))
                if watch is not None:
                    watch(side * trials + trial + 1, 2 * trials)
            scores.append(np.array(rows, dtype=np.float64))
            charged = world.close()
    return Trials(scores[0], scores[1], charged if subject.law is None else BestOf((charged,), subject.law))


class _World:
    """One data set, and the step that is run on it again and again from the same start.

    Only the first run pays for its steps. That shows what a run charges; to write (and fsync) the same charges for
    thousands of runs on public data would take longer than the runs.
    """

    def __init__(self, experiment: Experiment, subject: Subject, data: tuple[Tensor, ...], ledger: Path) -> None:
        plan = subject.plan
        self._experiment, self._subject, self._path = experiment, subject, ledger
        self._source = _TrialSource()
        self._seen = Recorder(subject.mechanism)
        self._model = experiment.model()
        self._opened = 0
        rows, units = _by_person(data, subject.rows, plan.records)
        self._raw = rows[0]
        self._features = Preparation(subject.stages, rows[0], None).train if subject.stages else rows[0]
        rows = (self._features, *rows[1:])
        self._private = PrivateGradients(
            self._model,
            records_by_unit(Records(rows), units, "cpu"),
            loss_by_unit(experiment.loss, units),
            plan,
            self._new_ledger,
            method=subject.method,
            seed=self._source,
            mechanism=self._seen,
            allow_nonprivate=True,  # the data is public
        )
        self._start: tuple[Any, Any] = copy.deepcopy((self._private.state(), self._model.state_dict()))

    def _new_ledger(self) -> Ledger:
        budget = None if self._subject.budget is None else self._subject.budget()
        self._opened += 1
        path = self._path.with_suffix(f".{self._opened}.jsonl")
        return Ledger.create(path, budget=PlannedBudget(self._subject.plan.event()) if budget is None else budget)

    def trial(self, seed: int, number: int, side: int) -> tuple[float, ...]:
        """What one trial shows: of one run, or of the best of several."""
        law = self._subject.law
        if law is None:
            return self.run((seed + number) * 2 + side, paid=number > 0)
        self._source.begin((seed + number * _RUNS) * 2 + side)
        count = draw_count(law, float(self._source.uniform(1, purpose="audit/runs", step=0)))
        runs = range(number * _RUNS, number * _RUNS + min(count, _RUNS))
        found = [self.run((seed + each) * 2 + side, paid=each > 0) for each in runs]
        return max(found, default=(0.0,) * len(self._experiment.score_names))

    def run(self, seed: int, *, paid: bool) -> tuple[float, ...]:
        """One run from the start, scored."""
        plan, (state, parameters) = self._subject.plan, self._start
        if self._subject.budget is not None and paid:  # it asks before every step what is left to spend
            self._private.close()
            self._private.ledger = self._private.crossing.ledger = self._new_ledger()
            paid = False
        self._private.plan = plan
        self._source.begin(seed)
        self._seen.releases = []
        self._model.load_state_dict(parameters)
        self._private.restore(copy.deepcopy(state), nothing_since=True)
        optimizer = self._subject.optimizer([each for each in self._model.parameters() if each.requires_grad])
        if self._subject.stages:
            made = Preparation(self._subject.stages, self._raw, None)
            made.run(self._private, None)
            self._features.copy_(made.train)
        gradients = []
        with suppress(BudgetExceeded):
            for _ in range(plan.steps):
                gradients.append(self._private.release(paid=paid))
                optimizer.step()
        shown = self._seen.releases if self._subject.method.not_private is None else []
        return self._experiment.scores(View(self._model, gradients, shown, plan))

    def close(self) -> Event:
        """Everything that was charged."""
        charged = self._private.ledger.event()
        self._private.close()
        assert charged is not None
        return charged


def _by_person(data: tuple[Tensor, ...], rows: int, people: int) -> tuple[tuple[Tensor, ...], Units | None]:
    """``data`` with ``rows`` rows of the last of ``people``, if that one is there, and whose each row is.

    None: a row is a record.
    """
    if rows == 1:
        return data, None
    codes = torch.arange(len(data[0]))
    if len(codes) == people:
        codes = torch.cat([codes, codes[-1:].expand(rows - 1)])
    return tuple(part[codes] for part in data), Units(codes, rows)


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
