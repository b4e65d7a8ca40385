"""The coupling: how batches are drawn, clipped and noised, in one object from which every event of a run follows.

A plan is public: it is made from public numbers before a record is read. The same object draws the batches, states the
noise and says what is charged, so that the sampling that happens is the sampling that is accounted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any

from adadp import checks
from adadp.accounting import Answer, accountant
from adadp.clipping import AdaptiveClipRule, ClipRule, Flat
from adadp.errors import InputError
from adadp.events import AdaptivelyChosen, Event, GaussianRelease, Neighbours, Repeated, Selection, compose
from adadp.sampling import Sampler, Timetable
from adadp.sampling import sampler as build_sampler
from adadp.schedules import Piecewise, Schedule, Uniform

_BEFORE = "It is the noise multiplier of a release before the first step; without noise that would not be private."


@dataclass(frozen=True)
class Plan:
    """A run of ``steps`` private steps on about ``batch_size`` of ``records`` records each.

    ``records`` is a public number. With Poisson sampling it may differ from the true one, which then stays hidden: the
    sampling probability is batch_size / records, and sums are divided by ``batch_size``. Other samplings need the true
    number.

    ``noise`` is the noise multiplier over the epochs, or None: without noise nothing is private. ``before`` are the
    noise multipliers of Gaussian releases of all records (not sampled) that come before the first step, such as the
    covariance of a projection; ``replaced`` is how far replacing a record moves each (``GaussianRelease.replaced``), 2
    where it is not given.

    ``held`` is the noise multiplier of a release at the end of records that are kept aside and never trained on.

    ``batch_size_schedule``, if given, is the batch size over the epochs, and ``batch_size`` what it begins with; an
    epoch is then as many steps as batches of its size need. ``clip_norm_schedule`` is what the bound of the clip rule
    is multiplied by over the epochs. The noise is in proportion to the bound, so that the multiplier stays what
    ``noise`` says; with ``keep_noise`` its standard deviation is what it is for the rule's own bound, and the
    multiplier goes up as the bound comes down.

    ``choice`` is for methods that choose something from every batch after its gradient (agd): the zCDP of the choice
    over that of the first gradient. ``adaptive``: the noise was chosen from earlier releases, so its charges are marked
    and only a filter can certify them.
    """

    records: int
    batch_size: int
    steps: int
    noise: Schedule | None
    clip_rule: ClipRule
    sampling: str = "poisson"
    neighbours: Neighbours | None = None
    """None, as an argument: what the sampling is usually analysed under."""
    before: tuple[float, ...] = ()
    replaced: tuple[float, ...] = ()
    batch_size_schedule: Schedule | None = None
    clip_norm_schedule: Schedule | None = None
    keep_noise: bool = False
    choice: float | None = None
    adaptive: bool = False
    held: float | None = None
    delta: float | None = field(default=None, compare=False)
    """That of the guarantee the plan was made for, if it was made for one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", checks.count("records", self.records, minimum=2))
        object.__setattr__(self, "batch_size", checks.count("batch_size", self.batch_size))
        object.__setattr__(self, "steps", checks.count("steps", self.steps))
        object.__setattr__(self, "neighbours", self.sampler.neighbours)
        multipliers = (checks.positive("before", each, why=_BEFORE) for each in self.before)
        object.__setattr__(self, "before", tuple(multipliers))
        object.__setattr__(self, "replaced", tuple(self.replaced) or (2.0,) * len(self.before))
        if self.held is not None:
            object.__setattr__(self, "held", checks.positive("held", self.held))
        if len(self.replaced) != len(self.before):
            raise InputError(
                f"{len(self.before)} releases come before the first step; replaced has {len(self.replaced)} numbers.",
                fix="Pass one number for each of them, or none.",
            )
        if self.batch_size_schedule is not None and round(self.batch_size_schedule.value_at(0)) != self.batch_size:
            raise InputError(
                f"`batch_size` is {self.batch_size}, and its schedule {self.batch_size_schedule} begins with another.",
                why="They settle the same thing, and would contradict each other.",
                fix="Pass as `batch_size` what the schedule begins with.",
            )
        if self.batch_size_schedule is not None and self.batch_size_schedule.tick is not None:
            raise InputError(
                f"The schedule of the batches ({self.batch_size_schedule}) counts steps (tick).",
                why="An epoch is as many steps as batches of its size need.",
                fix="Leave tick out.",
            )
        if self.keep_noise and self.clip_norm_schedule is None:
            raise InputError(
                "`keep_noise` is given, and the clip bound does not change.",
                why="It says what the noise does then.",
                fix="Pass a schedule of the clip bound, or leave `keep_noise` out.",
            )
        if self.clip_norm_schedule is not None and isinstance(self.clip_rule, AdaptiveClipRule):
            raise InputError(
                f"The clip rule {self.clip_rule.name} was given together with a schedule of the clip bound.",
                why="It finds its bound by itself and would undo the schedule.",
                fix="Use another clip rule, such as flat, or leave the schedule out.",
            )

    def with_noise(self, noise: Schedule, *, steps: int | None = None) -> Plan:
        """The plan with other noise, and with another length if one is given."""
        return replace(self, noise=noise, steps=self.steps if steps is None else steps)

    def realised(self, noise_multipliers: Sequence[float]) -> Plan:
        """The plan of a run whose noise is chosen on the way and had these multipliers in its epochs so far."""
        return replace(self, noise=Piecewise.of(noise_multipliers), adaptive=True)

    def for_choices(self, share: float) -> Plan:
        """The plan of a line search that begins with the noise of this one; ``share`` is ``Method.choice``."""
        return replace(self, choice=share).chosen_from(0, self.noise_multiplier_at(0))

    def chosen_from(self, step: int, noise_multiplier: float) -> Plan:
        """The plan of a run whose noise is chosen step by step: ``noise_multiplier`` from ``step`` on, for now."""
        if self.timetable.shares_draws:
            raise InputError(
                f"Noise cannot be chosen step by step on {self.sampling} batches.",
                why="The batches of an epoch are charged together, before the first, with the noise known then.",
                fix="Use Poisson sampling, or full batches.",
            )
        noise = self.noise
        points = noise.points if isinstance(noise, Piecewise) and noise.tick == 1 else ()
        if points and noise is not None and noise.value_at(step) == noise_multiplier:
            return self
        before = tuple(each for each in points if each[0] < step)
        return replace(self, noise=Piecewise((*before, (step, noise_multiplier)), tick=1), adaptive=True)

    @property
    def choice_epsilon(self) -> float:
        """How sharply a choice goes by its scores: candidates have probabilities exp(-choice_epsilon score / bound).

        Scores that one record moves in one direction only, by at most their bound, make this a mechanism whose privacy
        loss has a range of choice_epsilon, which is choice_epsilon^2 / 8 zCDP (Dong, Durfee, Rogers 2020; Cesar and
        Rogers 2021). Replacing a record moves scores both ways, and doubles the range.
        """
        return math.inf if self.noise is None else self._choice_epsilon(self.noise)

    def _choice_epsilon(self, noise: Schedule) -> float:
        assert self.choice is not None
        return 2 * math.sqrt(self.choice) / self._multiplier(noise, 0)

    @classmethod
    def of_noise(
        cls,
        *,
        noise: Schedule | float,
        steps: int | None = None,
        epochs: int | None = None,
        clip_norm: ClipRule | float = 1.0,
        **settings: Any,
    ) -> Plan:
        """The plan with a given noise multiplier, or schedule of it; 0 for a run without privacy.

        ``settings`` are ``records``, ``batch_size`` and the other fields.
        """
        if (steps is None) == (epochs is None):
            raise InputError(
                "The length of the run must be given once.", fix="Pass exactly one of `steps` and `epochs`."
            )
        rule = clip_norm if isinstance(clip_norm, ClipRule) else Flat(float(clip_norm))
        length = 1 if steps is None else steps
        plan = cls(noise=_schedule(noise), steps=length, clip_rule=rule, **settings)
        return plan if epochs is None else replace(plan, steps=plan.steps_of(checks.count("epochs", epochs)))

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # what is cached cannot be pickled

    @cached_property
    def sampler(self) -> Sampler:
        """How the batches of the first epoch are drawn from ``records`` records."""
        return self._sampler_of(self.batch_size)

    def _sampler_of(self, batch_size: int) -> Sampler:
        return build_sampler(self.sampling, self.records, batch_size, self.neighbours)

    @cached_property
    def timetable(self) -> Timetable:
        """Who draws the batch of which step."""
        return self._timetable(self.steps)

    def _timetable(self, steps: float, epochs: float = math.inf) -> Timetable:
        """The timetable up to so many steps or epochs, whichever comes first."""
        if self.batch_size_schedule is None:
            return Timetable.of(self.sampler)
        samplers: list[Sampler] = []
        while steps > 0 and len(samplers) < epochs:
            samplers.append(self._sampler_of(round(self.batch_size_schedule.value_at(len(samplers)))))
            steps -= samplers[-1].steps_per_epoch
        return Timetable.of(*samplers)

    def steps_of(self, epochs: int) -> int:
        """How many steps the first ``epochs`` epochs have."""
        return self._timetable(math.inf, epochs).first_step(epochs)

    @property
    def epochs(self) -> int:
        """How many epochs the run enters."""
        return self.epoch_of(self.steps - 1) + 1

    def noise_multiplier_at(self, step: int) -> float:
        """The standard deviation of the noise of ``step`` over the l2 bound of one record; 0 without noise."""
        return self._multiplier(self.noise, step)

    def _multiplier(self, noise: Schedule | None, step: int) -> float:
        if noise is None:
            return 0.0
        multiplier = noise.value_of(step, self.epoch_of(step))
        return multiplier / self.clip_factor_at(step) if self.keep_noise else multiplier

    def epoch_of(self, step: int) -> int:
        """The epoch ``step`` belongs to, counted from 0."""
        return self.timetable.epoch_of(step)

    def batch_size_at(self, step: int) -> int:
        """The number of records ``step`` has on average, and is divided by."""
        schedule = self.batch_size_schedule
        return self.batch_size if schedule is None else round(schedule.value_at(self.epoch_of(step)))

    def clip_factor_at(self, step: int) -> float:
        """What the bound of the clip rule is multiplied by in ``step``."""
        return 1.0 if self.clip_norm_schedule is None else self.clip_norm_schedule.value_of(step, self.epoch_of(step))

    def ends_epoch(self, step: int) -> bool:
        """Whether an epoch is over when ``step`` steps are done."""
        return step == self.steps or self.timetable.first_step(self.epoch_of(step)) == step

    def charges_before(self) -> tuple[Event, ...]:
        """What must be charged before the first step, one by one."""
        assert self.neighbours is not None
        relation, each = self.neighbours, zip(self.before, self.replaced, strict=True)
        return tuple(GaussianRelease(multiplier, relation, replaced) for multiplier, replaced in each)

    def charges_after(self) -> tuple[Event, ...]:
        """What must be charged after the last step: the release of records that were kept aside, if there is one."""
        assert self.neighbours is not None
        return () if self.held is None else (GaussianRelease(self.held, self.neighbours, held_out=True),)

    def release_at(self, step: int) -> Event:
        """What is released from the batch of ``step``: the gradient, and what the clip rule asks for beside it."""
        return self._release_of(step)

    @cached_property
    def _release_of(self) -> Callable[[int], Event]:
        return self._releases(self.noise)

    def _releases(self, noise: Schedule | None) -> Callable[[int], Event]:
        """``release_at`` with other noise."""
        assert self.neighbours is not None
        relation = self.neighbours

        @cache  # building and checking an event takes longer than looking it up
        def release(noise_multiplier: float) -> Event:
            multipliers = (noise_multiplier, *self.clip_rule.extra_multipliers())
            releases: list[Event] = [GaussianRelease(multiplier, relation) for multiplier in multipliers]
            if self.choice is not None and noise is not None:
                distance = 2 if relation is Neighbours.REPLACE_ONE else 1
                releases.append(Selection(distance * self._choice_epsilon(noise), neighbours=relation))
            return compose(*releases)

        return lambda step: release(self._multiplier(noise, step))

    def charge_at(self, step: int, *, resumed: bool = False) -> Event | None:
        """What must be charged before the release of ``step``; None if an earlier charge covers it.

        ``resumed``: batches of its round may be released a second time, so the rest of the round is charged again.
        """
        if self.timetable.shares_draws:
            charge = self.timetable.charge(step, self.release_at, resumed=resumed)
            return AdaptivelyChosen(charge) if self.adaptive and charge is not None else charge
        key = (self.batch_size_at(step), self.noise_multiplier_at(step))
        if key not in self._charges:
            charge = self.timetable.at(step).sampler.amplify(self.release_at(step))
            self._charges[key] = AdaptivelyChosen(charge) if self.adaptive else charge
        return self._charges[key]

    @cached_property
    def _charges(self) -> dict[tuple[int, float], Event]:
        """Charges by batch size and multiplier, where every step has one."""
        return {}

    def event(self, noise: Schedule | None = None) -> Event:
        """Everything the run will charge, or would charge with other ``noise``."""
        noise = self.noise if noise is None else noise
        release_at = self._releases(noise)
        if self.batch_size_schedule is None and not self.keep_noise and isinstance(noise, (Uniform, type(None))):
            steps: Event = Repeated(self.sampler.amplify(release_at(0)), self.rounds_before(self.steps))
        elif self._charged_by_epoch(noise):
            counts: Counter[Event] = Counter()
            for epoch in range(self.epochs):
                first, end = self.timetable.first_step(epoch), self.timetable.first_step(epoch + 1)
                counts[self.sampler.amplify(release_at(first))] += min(end, self.steps) - first
            steps = compose(*(Repeated(charge, count) for charge, count in counts.items()))
        else:
            steps = self.timetable.planned(self.steps, release_at)
        return compose(*self.charges_before(), steps, *self.charges_after())

    def _charged_by_epoch(self, noise: Schedule | None) -> bool:
        """Whether the steps of an epoch release the same from batches of one size, each charged by itself."""
        by_epoch = noise is not None and noise.tick is None
        factors = not self.keep_noise or (self.clip_norm_schedule is not None and self.clip_norm_schedule.tick is None)
        return self.batch_size_schedule is None and not self.timetable.shares_draws and by_epoch and factors

    def rounds_before(self, step: int) -> int:
        """How many charges the steps before ``step`` need."""
        return self.timetable.rounds_before(step)

    def epsilon(self, delta: float, accountant_name: str = "pld") -> Answer:
        """What the whole run costs."""
        return accountant(accountant_name).epsilon(self.event(), delta)

    def describe(self) -> dict[str, Any]:
        """The plan as JSON."""
        assert self.neighbours is not None
        sampler = self.sampler
        plan: dict[str, Any] = {
            "records": self.records,
            "batch_size": self.batch_size,
            "steps": self.steps,
            "steps_per_epoch": sampler.steps_per_epoch,
            "sampling": self.sampling,
            "sampling_probability": getattr(sampler, "sampling_probability", self.batch_size / self.records),
            "neighbours": self.neighbours.value,
            "noise": "none" if self.noise is None else str(self.noise),
            "clip_norm": str(self.clip_rule),
        }
        replacing = self.neighbours is Neighbours.REPLACE_ONE and any(each != 2 for each in self.replaced)
        unusual = {
            "before": list(self.before) or None,
            "replaced": list(self.replaced) if replacing else None,
            "batch_size_schedule": self.batch_size_schedule and str(self.batch_size_schedule),
            "clip_factors": self.clip_norm_schedule and str(self.clip_norm_schedule),
            "keep_noise": self.keep_noise or None,
            "choice": self.choice,
            "adaptive": self.adaptive or None,
            "held": self.held,
        }
        return plan | {name: value for name, value in unusual.items() if value is not None}


def _schedule(noise: Schedule | float) -> Schedule | None:
    if isinstance(noise, Schedule):
        return noise
    noise_multiplier = checks.non_negative(
        "noise_multiplier", noise, why="It is a standard deviation over an l2 bound."
    )
    return Uniform(noise_multiplier) if noise_multiplier else None
