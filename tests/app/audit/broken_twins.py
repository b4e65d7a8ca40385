"""Private training with one thing wrong each. An attack that does not notice them proves nothing by its silence."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch

from adadp import Plan
from adadp.app.audit import Canary, Dirac, Experiment, FinalLoss, Subject, Trials, lower_bound, run_trials
from adadp.app.clipping.fixed import PerLayer
from adadp.app.methods.adadp import AdaDp
from adadp.app.methods.scaled import ScaledSum
from adadp.app.methods.scales import ColumnScales
from adadp.app.texts.schedules import parse_schedule
from adadp.events import Neighbours
from adadp.ledger import Ledger
from adadp.methods import GRADIENT, ClippedSum, DpSgd
from adadp.noise import GaussianMechanism
from adadp.sampling import PoissonSampler


class HalfTheNoise(GaussianMechanism):
    def release(self, total, *, noise_multiplier, **given):
        return super().release(total, noise_multiplier=noise_multiplier / 2, **given)


class NoNoise(GaussianMechanism):
    def release(self, total, *, noise_multiplier, **given):
        return super().release(total, noise_multiplier=0.0, **given)


class TwiceReleased(GaussianMechanism):
    """What was charged once is released twice; the mean of both is what an attacker makes of them."""

    def release(self, total, *, step, **given):
        again = {name: value.clone() for name, value in total.items()}
        first = super().release(total, step=step, **given)
        second = super().release(again, step=step + 10**6, **given)
        return {name: (value + second[name]) / 2 for name, value in first.items()}


class RealisedBatch(DpSgd):
    """Divides by the number of records that were drawn, as Yu et al. 2018 and 2019 do."""

    def query(self, engine, rule, batch_size):
        return _RealisedBatch(engine, rule, batch_size)


class _RealisedBatch(ClippedSum):
    def contribution(self, capture):
        return super().contribution(capture) | {"records": int((~capture.padding).sum())}

    def finalize(self, total):
        self.batch_size = max(1, total.pop("records"))
        return super().finalize(total)


class RawScales(AdaDp):
    """Its scales follow the clipped sums as they are before the noise, as line 23 of Xu et al. 2020 has it."""

    def query(self, engine, rule, batch_size):
        return _RawScales(engine, rule, batch_size, ColumnScales(self, engine.scale_shapes, engine.zeros()))


class _RawScales(ScaledSum):
    def finalize(self, total):
        self._raw = super().finalize(total)[GRADIENT]
        return {GRADIENT: self._raw}

    def to_gradient(self, released, deviation):
        gradients = self._scales.apply(released[GRADIENT])
        self._scales.learn(self._raw, 0.0)
        return {name: value / self.batch_size for name, value in gradients.items()}


class StaleBound(DpSgd):
    """Its noise belongs to the clip bound of the step before."""

    def query(self, engine, rule, batch_size):
        return _StaleBound(engine, rule, batch_size)


class _StaleBound(ClippedSum):
    _before = None

    def l2_bounds(self):
        now, self.clip_factor = self.clip_factor, self._before or self.clip_factor
        bounds = super().l2_bounds()
        self.clip_factor = self._before = now
        return bounds

    def restore(self, clip_state, tensors):
        self._before = None
        super().restore(clip_state, tensors)


class BoundOfOneLayer(PerLayer):
    """Clips every layer, and takes the bound of one for that of all."""

    def l2_bound(self, groups_count, state):
        return super().l2_bound(groups_count, state) / math.sqrt(groups_count)


class RowsForPeople(Dirac):
    """Three rows of one person, each taken for a record of its own."""

    def records(self, count):
        (rows,) = super().records(count)
        return (torch.cat([rows, rows[-1:], rows[-1:]]),)

    def without(self, records, neighbours):
        assert neighbours is Neighbours.ADD_REMOVE
        return tuple(part[:-3] for part in records)


def unwritten(charge=Ledger.charge):
    """The ledger lacks every charge but its first one."""

    def once(self, event):
        if not self.charges:
            charge(self, event)

    return patch.object(Ledger, "charge", once)


def shuffled():
    """Records are dealt into the batches of an epoch, and charged as if each had been drawn by coins."""

    def arrange(self, number, source, part=None):
        epoch, place = divmod(number, self.steps_per_epoch)
        size = math.ceil(self.records / self.steps_per_epoch)
        dealt = source.permutation(self.records, purpose="dealing", step=epoch)
        return dealt[place * size : (place + 1) * size].sort().values

    return patch.object(PoissonSampler, "arrange", arrange)


@dataclass(frozen=True)
class Twin:
    """One thing that is wrong, and runs in which it shows: their plan, the delta, the record that is looked for."""

    name: str
    plan: Plan
    delta: float
    trials: int
    """Runs with the record, and as many without, that are enough."""
    parts: dict[str, Any] = field(default_factory=dict)
    """What is wrong of the subject."""
    patched: Callable[[], AbstractContextManager[Any]] = nullcontext
    """What is wrong elsewhere."""
    broken_plan: Plan | None = None
    dirac: Dirac = field(default_factory=Dirac)
    broken_dirac: Dirac | None = None

    def experiment(self, attack: str, *, broken: bool) -> Experiment:
        if attack == "dirac":
            return self.broken_dirac or self.dirac if broken else self.dirac
        return Canary() if attack == "canary" else FinalLoss()

    def run(self, attack: str = "dirac", *, broken: bool = True, trials: int | None = None) -> Trials:
        """Runs of the twin, or of what it is a twin of."""
        plan = self.broken_plan or self.plan if broken else self.plan
        subject = Subject(plan, **(self.parts if broken else {}))
        with self.patched() if broken else nullcontext():
            return run_trials(self.experiment(attack, broken=broken), subject, trials or self.trials)

    def bound(self, found: Trials, trials: int | None = None) -> float:
        """What the first runs prove."""
        return lower_bound(found.scores_with[:trials], found.scores_without[:trials], self.delta).epsilon_low


def _plan(noise=1.0, records=20, batch_size=20, steps=1, clip_norm=1.0, **more) -> Plan:
    if isinstance(noise, str):
        noise = parse_schedule(noise)
    return Plan.of_noise(noise=noise, records=records, batch_size=batch_size, steps=steps, clip_norm=clip_norm, **more)


_RISING = {"clip_norm_schedule": parse_schedule("piecewise:0=1,1=16,tick=1")}

TWINS = (
    Twin("no noise", _plan(4.0), 0.1, 20, {"mechanism": NoNoise()}),
    Twin("half the noise", _plan(0.77), 0.45, 180, {"mechanism": HalfTheNoise()}),
    Twin("double release", _plan(0.55), 0.6, 500, {"mechanism": TwiceReleased()}),
    Twin("realised batch as divisor", _plan(8.0, 9, 9), 1e-5, 40, {"method": RealisedBatch()}, dirac=Dirac(3000)),
    Twin(
        "bound of one layer",
        _plan(1.0, clip_norm=PerLayer((1.0,))),
        0.38,
        60,
        broken_plan=_plan(1.0, clip_norm=BoundOfOneLayer((1.0,))),
        dirac=Dirac(layers=16),
    ),
    Twin("stale scale", _plan(4.0, steps=2, **_RISING), 0.3, 80, {"method": StaleBound()}),
    Twin("missing charge", _plan("piecewise:0=8,1=0.25,tick=1", steps=2), 0.38, 60, patched=unwritten),
    Twin("shuffle called Poisson", _plan(0.15, 20, 5, 4), 0.7, 80, patched=shuffled),
    Twin("rows taken for people", _plan(0.77), 0.45, 100, broken_dirac=RowsForPeople()),
    Twin("scales from raw sums", _plan(16.0, 40, 20, 6), 1e-5, 40, {"method": RawScales(start=2, lowest=1e-3)}),
)
"""Every twin that at least one attack has to notice."""
