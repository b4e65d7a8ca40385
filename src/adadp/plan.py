"""The coupling: how lots are drawn, clipped and noised, in one object from which every event of a run follows.

A plan is public: it is made from public numbers before a record is read. The same object draws the lots, states the
noise and says what is charged, so that the sampling that happens is the sampling that is accounted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from adadp import checks
from adadp.accounting import Answer, accountant, smallest_noise
from adadp.clipping import ClipRule, Flat, clip_rule
from adadp.errors import InputError
from adadp.events import Event, GaussianRelease, Neighbours, Repeated, compose
from adadp.sampling import PoissonSampler, Sampler
from adadp.sampling import sampler as build_sampler
from adadp.schedules import Schedule, Uniform

_BEFORE = "It is the noise multiplier of a release before the first step; without noise that would not be private."


@dataclass(frozen=True)
class Plan:
    """A run of ``steps`` private steps on about ``lot_size`` of ``records`` records each.

    ``records`` is a public number. With Poisson sampling it may differ from the true number of records, which then
    stays hidden: the sampling probability is lot_size / records and sums are divided by ``lot_size`` in any case.
    The other samplings need the true number.

    ``noise`` is the noise multiplier over the epochs, or None: without noise nothing is private. ``before`` are the
    noise multipliers of Gaussian releases of all records (not sampled) that come before the first step, such as the
    covariance of a projection.
    """

    records: int
    lot_size: int
    steps: int
    noise: Schedule | None
    clip: ClipRule
    sampling: str = "poisson"
    neighbours: Neighbours | None = None
    """None, as an argument: what the sampling is usually analysed under."""
    before: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", checks.count("records", self.records, minimum=2))
        object.__setattr__(self, "lot_size", checks.count("lot_size", self.lot_size))
        object.__setattr__(self, "steps", checks.count("steps", self.steps))
        object.__setattr__(self, "neighbours", self.sampler.neighbours)
        multipliers = (checks.positive("before", each, why=_BEFORE) for each in self.before)
        object.__setattr__(self, "before", tuple(multipliers))

    @classmethod
    def for_budget(
        cls,
        *,
        epsilon: float,
        delta: float,
        records: int,
        lot_size: int,
        steps: int | None = None,
        epochs: int | None = None,
        clip: ClipRule | str | float = 1.0,
        noise_shape: Schedule | None = None,
        sampling: str = "poisson",
        neighbours: Neighbours | str | None = None,
        accountant_name: str = "pld",
        before: tuple[float, ...] = (),
    ) -> Plan:
        """The plan with the least noise that keeps a whole run within (``epsilon``, ``delta``).

        ``noise_shape`` is scaled as a whole; without one the noise is constant.
        """
        draft = cls.of_noise(
            noise=noise_shape or Uniform(1.0),
            records=records,
            lot_size=lot_size,
            steps=steps,
            epochs=epochs,
            clip=clip,
            sampling=sampling,
            neighbours=neighbours,
            before=before,
        )
        shape = draft.noise
        assert shape is not None
        if before and accountant(accountant_name).epsilon(compose(*draft.charges_before()), delta).epsilon >= epsilon:
            raise InputError(
                f"What is released before the first step costs all of epsilon {epsilon:g} at delta {delta:g}.",
                why=f"Its noise is {', '.join(f'{each:g}' for each in before)}; nothing is left to train with.",
                fix="Give these releases more noise, or pass a larger epsilon.",
            )

        def event(scale: float) -> Event:
            return replace(draft, noise=shape.scaled(scale)).event()

        found = smallest_noise(event, epsilon=epsilon, delta=delta, accountant=accountant(accountant_name))
        return replace(draft, noise=shape.scaled(found.value))

    @classmethod
    def of_noise(
        cls,
        *,
        noise: Schedule | float,
        records: int,
        lot_size: int,
        steps: int | None = None,
        epochs: int | None = None,
        clip: ClipRule | str | float = 1.0,
        sampling: str = "poisson",
        neighbours: Neighbours | str | None = None,
        before: tuple[float, ...] = (),
    ) -> Plan:
        """The plan with a given noise multiplier, or schedule of it; 0 for a run without privacy."""
        if (steps is None) == (epochs is None):
            raise InputError("The length of the run must be given once.", fix="Pass exactly one of steps and epochs.")
        relation = None if neighbours is None else Neighbours.parse(neighbours)
        size = checks.count("lot_size", lot_size)
        plan = cls(
            records=records,
            lot_size=size,
            steps=1 if steps is None else steps,
            noise=_schedule(noise),
            clip=clip if isinstance(clip, ClipRule) else _rule(clip),
            sampling=sampling,
            neighbours=relation,
            before=before,
        )
        if epochs is None:
            return plan
        return replace(plan, steps=checks.count("epochs", epochs) * plan.sampler.steps_per_epoch)

    @cached_property
    def sampler(self) -> Sampler:
        """How lots are drawn from ``records`` records."""
        return build_sampler(self.sampling, self.records, self.lot_size, self.neighbours)

    def sampler_for(self, records: int) -> Sampler:
        """How lots are drawn from ``records`` true records."""
        planned = self.sampler
        if records == self.records:
            return planned
        if isinstance(planned, PoissonSampler):
            return replace(planned, records=records)
        raise InputError(
            f"The plan is for {self.records} records, the data has another number of them.",
            why=f"{self.sampling} sampling deals out exactly the records there are, so their number is public.",
            fix="Plan with the true number, or use Poisson sampling, which can hide it.",
        )

    def noise_multiplier_at(self, step: int) -> float:
        """The standard deviation of the noise of ``step`` over the l2 bound of one record; 0 without noise."""
        return 0.0 if self.noise is None else self.noise.value_at(self.epoch_of(step))

    def epoch_of(self, step: int) -> int:
        """The epoch ``step`` belongs to, counted from 0."""
        return step // self.sampler.steps_per_epoch

    def charges_before(self) -> tuple[Event, ...]:
        """What must be charged before the first step, one by one."""
        assert self.neighbours is not None
        return tuple(GaussianRelease(multiplier, self.neighbours) for multiplier in self.before)

    def release_at(self, step: int) -> Event:
        """What is released from the lot of ``step``: the gradient, and what the clip rule asks for beside it."""
        relation = self.neighbours
        assert relation is not None
        multipliers = (self.noise_multiplier_at(step), *self.clip.extra_multipliers())
        return compose(*(GaussianRelease(multiplier, relation) for multiplier in multipliers))

    def charge_at(self, step: int, *, resumed: bool = False) -> Event | None:
        """What must be charged before the release of ``step``; None if an earlier charge covers it.

        ``resumed``: lots of its round may be released a second time, so the rest of the round is charged again.
        """
        if self.sampler.steps_per_round > 1:
            return self.sampler.charge(step, self.release_at, resumed=resumed)
        epoch = self.epoch_of(step) if self.noise is not None and not isinstance(self.noise, Uniform) else 0
        if epoch not in self._charges:
            self._charges[epoch] = self.sampler.amplify(self.release_at(step))
        return self._charges[epoch]

    @cached_property
    def _charges(self) -> dict[int, Event]:
        """Charges by epoch, kept because building and checking an event takes longer than looking it up."""
        return {}

    def event(self) -> Event:
        """Everything the run will charge."""
        sampler = self.sampler
        if self.noise is None or isinstance(self.noise, Uniform):
            rounds = -(-self.steps // sampler.steps_per_round)
            steps: Event = Repeated(sampler.amplify(self.release_at(0)), rounds)
        else:
            steps = sampler.planned(self.steps, self.release_at)
        return compose(*self.charges_before(), steps)

    def rounds_before(self, step: int) -> int:
        """How many charges the steps before ``step`` need."""
        return -(-step // self.sampler.steps_per_round)

    def epsilon(self, delta: float, accountant_name: str = "pld") -> Answer:
        """What the whole run costs."""
        return accountant(accountant_name).epsilon(self.event(), delta)

    def describe(self) -> dict[str, Any]:
        """The plan as JSON."""
        assert self.neighbours is not None
        sampler = self.sampler
        return {
            "records": self.records,
            "lot_size": self.lot_size,
            "steps": self.steps,
            "steps_per_epoch": sampler.steps_per_epoch,
            "sampling": self.sampling,
            "sampling_probability": getattr(sampler, "sampling_probability", self.lot_size / self.records),
            "neighbours": self.neighbours.value,
            "noise": "none" if self.noise is None else str(self.noise),
            "clip": str(self.clip),
        } | ({"before": list(self.before)} if self.before else {})


def _schedule(noise: Schedule | float) -> Schedule | None:
    if isinstance(noise, Schedule):
        return noise
    sigma = checks.non_negative("sigma", noise, why="It is a standard deviation over an l2 bound.")
    return Uniform(sigma) if sigma else None


def _rule(clip: str | float) -> ClipRule:
    return clip_rule(clip) if isinstance(clip, str) else Flat(float(clip))
