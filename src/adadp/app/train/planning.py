"""What a configuration means as numbers: the plan of its releases and the learning rate over its epochs.

given                                       the noise is
sigma                                       constant; with an open noise_schedule, what that begins with
epsilon or rho, and a length                constant, or the open noise_schedule, scaled to land on the budget
the same, and a noise_schedule without k    the one with the fastest decay that fits
the same, without a length                  the noise_schedule as it is, for as many epochs as fit
noise_schedule = validation:...             not known ahead: the plan is its most expensive beginning, and a filter
                                            (``filter_of``) holds the run to the budget
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from adadp.accounting import Filter, RdpFilter, ZcdpFilter, accountant
from adadp.app.accounting.calibrate import smallest_noise
from adadp.app.accounting.plans import refuse_spent, scaled_to
from adadp.app.accounting.targets import EpsilonTarget, RhoTarget, Target
from adadp.app.config import AUTO, TrainConfig, require_delta
from adadp.app.features import ReleasedStage, Stage, features_text, parse_features, released_stages
from adadp.app.schedules import StepDecay, ValidationDecay
from adadp.app.texts.clip_rules import clip_rule
from adadp.app.texts.methods import parse_method
from adadp.app.texts.schedules import OpenSchedule, parse_noise, parse_open
from adadp.clipping import ClipRule
from adadp.errors import InputError
from adadp.events import GaussianRelease, Neighbours
from adadp.lab.methods.agd import Agd
from adadp.ledger import PlannedBudget
from adadp.plan import Plan
from adadp.sampling import sampler
from adadp.schedules import Schedule, Uniform


def plan_of(config: TrainConfig, records: int) -> Plan:
    """The plan ``config`` asks for on ``records`` training records; every number it needs must be in ``config``."""
    require_delta(config)
    if AUTO in (config.batch_size, config.steps):
        raise InputError(
            "batch or steps is auto, and nothing chooses it here.",
            fix="Pass numbers; adadp.auto_batch_size and adadp.auto_steps compute them.",
        )
    if config.records is not None:
        records = config.records - (config.validation or 0)
    if config.data == "python":  # whose records these are is not known; files of a user's own are checked when read
        refuse_large_delta(config, records)
    draft, has_length = _draft(config, records)
    if config.noise_multiplier == 0:
        return draft
    _refuse_rho_of_samples(config, draft)
    noise = parse_noise(config.noise_schedule or "uniform:")
    if draft.choice is not None:
        return _first_try(config, draft, has_length)
    if isinstance(noise, ValidationDecay):
        return _first_noise(config, draft, noise, has_length)
    target = target_of(config)
    if target is None:
        schedule = noise.known() if config.noise_multiplier is None else noise.closed(config.noise_multiplier)
        if not has_length:
            raise InputError("The length of the run must be given once.", fix="Pass exactly one of steps and epochs.")
        plan = draft.with_noise(schedule)
        _check_certifiable(plan, config)
        return plan
    refuse_spent(draft, target)
    if not has_length:
        return _longest(draft, noise.known(), target)
    if noise.unknown == "k":
        return draft.with_noise(noise.closed(_fastest(draft, noise, target)))
    return scaled_to(draft.with_noise(noise.closed(1.0)), target)


def refuse_large_delta(config: TrainConfig, records: int) -> None:
    """Refuse a delta of 1/N or more on a user's own records: a release of one of them, drawn at random, has that delta.

    The papers' tables on public data sets have such deltas (1e-4 on MNIST); runs on these get a note in their place.
    """
    records = config.records or records  # the number that may be shown
    about = large_delta(config, records)
    if about is not None:
        raise InputError(
            about,
            why="Publishing a record drawn at random would be as private as that.",
            fix=f"Pass a delta well below {1 / records:.1g}, such as {0.1 / records:.1g}.",
        )


def large_delta(config: TrainConfig, records: int) -> str | None:
    """What is wrong with a delta of one over the number of records or more; None for a smaller one."""
    if config.noise_multiplier == 0 or config.delta is None or config.delta * records < 1:
        return None
    return f"delta = {config.delta:g} is not below one over the number of records, {records}."


def with_release_noise(config: TrainConfig, stages: tuple[Stage, ...]) -> TrainConfig:
    """``config`` with ``stages`` as its features, and a noise for every released one that has none.

    The noise of a stage is settled before the run is planned, so that calibration leaves room for its release.
    """
    lacking = [stage for stage in released_stages(stages) if stage.noise_multiplier is None]
    if not lacking:
        return config.replace(features=features_text(stages)) if stages or config.features else config
    require_delta(config)
    if config.epsilon is None or config.delta is None:
        raise InputError(
            f"The noise of {lacking[0].name} is not given.",
            why="Without a target epsilon nothing says how much of it is affordable.",
            fix=f"Give it sigma, as in {lacking[0].name}:noise_multiplier=16, or pass epsilon.",
        )
    noisy = tuple(stage.with_noise(_noise_for(stage, config)) if stage in lacking else stage for stage in stages)
    return config.replace(features=features_text(noisy))


def _noise_for(stage: ReleasedStage, config: TrainConfig) -> float:
    """The noise at which ``stage`` alone costs its share of epsilon: a short number, on the safe side."""
    assert config.epsilon is not None
    assert config.delta is not None
    relation = sampler(config.sampling, 2, 1, config.neighbours).neighbours
    found = smallest_noise(
        lambda noise_multiplier: GaussianRelease(noise_multiplier, relation, stage.replaced),
        epsilon=stage.budget_share * config.epsilon,
        delta=config.delta,
        accountant=accountant(config.accountant),
    )
    return float(f"{found.value * 1.0005:.4g}")


def notes_of(config: TrainConfig, plan: Plan) -> list[str]:
    """What a certificate must note about a run because of its configuration."""
    found = (parse_method(config.method).note(plan.steps), large_delta(config, plan.records))
    return [each for each in found if each is not None]


def target_of(config: TrainConfig) -> Target | None:
    """What the run may cost; None where the noise is given instead."""
    if config.rho is not None:
        return RhoTarget(config.rho)
    if config.epsilon is None:
        return None
    assert config.delta is not None
    return EpsilonTarget(config.epsilon, config.delta, accountant(config.accountant))


def decay_of(config: TrainConfig) -> ValidationDecay | None:
    """The schedule that follows looks; None where the noise is known ahead."""
    noise = None if config.noise_schedule is None else parse_noise(config.noise_schedule)
    return noise if isinstance(noise, ValidationDecay) else None


def filter_of(config: TrainConfig, plan: Plan) -> Filter:
    """The budget of a run whose noise is chosen on the way: zCDP for reshuffled epochs, RDP for sampled batches."""
    assert config.delta is not None
    if plan.timetable.shares_draws or config.rho is not None:
        return ZcdpFilter(delta=config.delta, rho=config.rho, epsilon=config.epsilon)
    assert config.epsilon is not None
    return RdpFilter(epsilon=config.epsilon, delta=config.delta, expected=plan.event())


def rate_of(config: TrainConfig) -> Schedule | None:
    """The learning rate over the epochs; None where the optimizer's own is kept."""
    return _over_epochs(config.lr_schedule, config.lr)


def _over_epochs(text: str | None, number: float | None) -> Schedule | None:
    """A plain number, or the schedule in ``text``, which begins with it where it leaves that open."""
    if text is None:
        return None if number is None else Uniform(number)
    found = parse_open(text)
    return found.known() if number is None else found.closed(number)


def _draft(config: TrainConfig, records: int) -> tuple[Plan, bool]:
    """The plan with noise 1 (or none), and whether its length is given; if not, it is one epoch."""
    batches = None
    batch_size: Any = config.batch_size
    if config.batch_size_schedule is not None:
        batches = _over_epochs(config.batch_size_schedule, batch_size)
        assert batches is not None
        batch_size = round(batches.value_at(0))
    epochs = None if config.epochs == AUTO else config.epochs
    has_length = config.steps is not None or epochs is not None
    rule, clips = _clip(config, batch_size if isinstance(batch_size, int) else None)
    method = parse_method(config.method)
    released = released_stages(parse_features(config.features))
    plan = Plan.of_noise(
        noise=0.0 if config.noise_multiplier == 0 else 1.0,
        records=records,
        batch_size=batch_size,
        steps=config.steps,  # type: ignore[arg-type]  # auto was refused, and text is refused by the plan
        epochs=epochs if has_length else 1,  # type: ignore[arg-type]
        clip_norm=rule,
        sampling=config.sampling,
        neighbours=config.neighbours,
        before=tuple(stage.known_noise_multiplier for stage in released),
        replaced=tuple(stage.replaced for stage in released),
        batch_size_schedule=batches,
        clip_schedule=clips,
    )
    if clips is None:
        clips = method.clip_shape(plan.epochs)
        if clips is not None and not has_length:
            raise InputError(
                f"The clip bound of {method} falls over the run, whose length is not known ahead.",
                fix="Pass epochs or steps, or a clip_norm_schedule of your own.",
            )
    keeps = config.keep_noise
    if keeps is None:
        keeps = clips is not None and method.keeps_noise
    return replace(plan, clip_schedule=clips, keep_noise=keeps, choice=method.choice), has_length


def _clip(config: TrainConfig, batch_size: int | None) -> tuple[ClipRule, Schedule | None]:
    """The clip rule, and what its bound is multiplied by over the epochs."""
    named = ":" not in config.clip_rule
    if config.clip_norm_schedule is None:
        return clip_rule(config.clip_rule, config.clip_norm if named else None, batch_size=batch_size), None
    bounds = _over_epochs(config.clip_norm_schedule, config.clip_norm if named else 1.0)
    assert bounds is not None
    first = bounds.value_at(0)
    if not named and not math.isclose(first, 1.0):
        raise InputError(
            f"The clip rule {config.clip_rule} has a bound, and clip_norm_schedule begins with another, {first:g}.",
            why="With a rule in full text the schedule is a factor.",
            fix="Leave s0 out of clip_norm_schedule, or name the rule without its bound.",
        )
    return clip_rule(config.clip_rule, first if named else None, batch_size=batch_size), bounds.scaled(1 / first)


def _longest(draft: Plan, schedule: Schedule, target: Target) -> Plan:
    def first(epochs: int) -> Plan:
        return draft.with_noise(schedule, steps=draft.steps_of(epochs))

    return first(target.length(lambda epochs: first(epochs).event()))


def _fastest(draft: Plan, noise: OpenSchedule, target: Target) -> float:
    return target.rate(lambda k: draft.with_noise(noise.closed(k)).event(), below_one=noise.kind is StepDecay)


def _first_noise(config: TrainConfig, draft: Plan, noise: ValidationDecay, has_length: bool) -> Plan:
    """The plan of a run that follows looks, as it begins: constant noise, and a length it cannot pass."""
    plan = draft.with_noise(Uniform(noise.s0))
    if not has_length:
        # The noise only falls, so no run is longer than that with the noise it begins with.
        limit = _limit(config, plan)
        refuse_spent(plan, limit)
        plan = _longest(draft, Uniform(noise.s0), limit)
    filter_of(config, plan).admit(plan.charge_at(0) or plan.event())
    return plan.realised([noise.s0])


def _first_try(config: TrainConfig, draft: Plan, has_length: bool) -> Plan:
    """The plan of a line search, as it begins: so much noise that a part of the budget is left for less of it later."""
    method = parse_method(config.method)
    assert isinstance(method, Agd)
    if config.noise_schedule is not None or config.noise_multiplier is not None:
        given = "noise_multiplier" if config.noise_schedule is None else "noise_schedule"
        raise InputError(
            f"{given} is given, and {method.name} finds its noise on the way.",
            why="Only a budget fixed in advance can be certified then.",
            fix="Pass epsilon (with delta) or rho instead; how much noise it begins with is the method's option start.",
        )
    sampled = draft.batch_size < draft.records or draft.sampling != "poisson"
    if sampled and (draft.sampling != "poisson" or draft.neighbours is Neighbours.REPLACE_ONE):
        raise InputError(
            f"{method.name} on {draft.sampling} batches was asked for {draft.sampler.neighbours.value} neighbours.",
            why="What a gradient and a choice from one sampled batch cost together is known for Poisson batches, "
            "and where "
            "one record is added, removed or blanked out.",
            fix="Use Poisson sampling with add-remove or zero-out neighbours, or full batches (batch = all records).",
        )
    if not has_length:
        raise InputError(
            f"The length of a run of {method.name} is not given.",
            why="Its first noise follows from the budget and the most steps it may take.",
            fix="Pass steps or epochs.",
        )
    planned = scaled_to(draft, _limit(config, draft))
    return planned.with_noise(Uniform(planned.noise_multiplier_at(0) * method.start)).for_choices(method.choice)


def _limit(config: TrainConfig, plan: Plan) -> Target:
    """The budget of ``filter_of`` as a target: its rho, or epsilon by the accountant that is nearest to it."""
    assert config.delta is not None
    if config.rho is not None or plan.timetable.shares_draws:
        return RhoTarget(ZcdpFilter(delta=config.delta, rho=config.rho, epsilon=config.epsilon).rho)
    return EpsilonTarget(config.epsilon or 0.0, config.delta, accountant("rdp"))


def _refuse_rho_of_samples(config: TrainConfig, draft: Plan) -> None:
    timetable = draft.timetable
    sampled = any(each.sampler.steps_per_epoch > 1 for each in timetable.stretches) and not timetable.shares_draws
    if config.rho is not None and sampled:
        raise InputError(
            f"rho is given, and batches are sampled ({draft.sampling}).",
            why="zCDP knows no amplification by sampling: every step would count in full.",
            fix="Pass epsilon and delta, or sampling = reshuffle.",
        )


def planned_budget(config: TrainConfig, plan: Plan) -> PlannedBudget:
    """What holds a run to a plan whose noise is known ahead."""
    return PlannedBudget(plan.event(), not_private=parse_method(config.method).not_private)


def _check_certifiable(plan: Plan, config: TrainConfig) -> None:
    """Find out before the run, not after it, that its accountant has no figure for it."""
    assert config.delta is not None
    if not math.isfinite(plan.epsilon(config.delta, config.accountant).epsilon):
        raise InputError(
            f"No finite epsilon covers this run at delta {config.delta:g}, by {config.accountant}.",
            why="The noise is too small for a guarantee.",
            fix="Pass a larger sigma, or a target epsilon.",
        )
