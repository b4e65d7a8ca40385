"""What a configuration means as numbers: the plan of its releases and the learning rate over its epochs.

given                                       the noise is
noise_multiplier                            constant; with an open noise_schedule, what that begins with
epsilon or rho, and a length                constant, or the open noise_schedule, scaled to land on the budget
the same, and a noise_schedule without k    the one with the fastest decay that fits
the same, without a length                  the noise_schedule as it is, for as many epochs as fit
noise_schedule = validation:...             not known ahead: the plan is its most expensive beginning, and a filter
                                            (``filter_of``) holds the run to the budget
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from adadp.accounting import accountant
from adadp.app.accounting import Filter, RdpFilter, ZcdpFilter
from adadp.app.accounting.calibrate import smallest_noise
from adadp.app.accounting.plans import refuse_spent, scaled_to
from adadp.app.accounting.run_shape import MOST_EPOCHS
from adadp.app.accounting.targets import EpsilonTarget, RhoTarget, Target
from adadp.app.config import AUTO, TrainConfig, require_delta
from adadp.app.features import ReleasedStage, Stage, released_stages
from adadp.app.figures import headline
from adadp.app.schedules import StepDecay, ValidationDecay
from adadp.app.spec import RunSpec
from adadp.app.texts.schedules import OpenSchedule
from adadp.errors import InputError
from adadp.events import GaussianRelease, Neighbours
from adadp.ledger import PlannedBudget
from adadp.methods import Method
from adadp.plan import Plan
from adadp.sampling import sampler
from adadp.schedules import Schedule, Uniform

_MOST_STEPS = 10**9


def plan_of(spec: RunSpec, records: int) -> Plan:
    """The plan ``spec`` asks for on ``records`` training records; its configuration must have every number."""
    config, noise = spec.config, spec.noise
    require_delta(config)
    if AUTO in (config.batch_size, config.steps):
        raise InputError(
            "`batch_size` or `steps` is auto, and nothing chooses it here.",
            fix="Pass numbers; auto_batch_size and auto_steps of adadp.app.auto_size compute them.",
        )
    if config.records is not None:
        records = config.records - config.kept_aside(config.records)
    if config.data == "python":  # whose records these are is not known; files of a user's own are checked when read
        refuse_large_delta(config, records)
    draft, has_length = _draft(spec, records)
    if draft.steps > _MOST_STEPS or draft.epochs > MOST_EPOCHS:
        raise InputError(
            f"The run has {draft.steps} steps, in {draft.epochs} epochs.",
            why=f"It would not end: a run has at most {_MOST_STEPS:,} steps and {MOST_EPOCHS:,} epochs.",
            fix="Pass fewer `epochs` or `steps`, or a larger `batch_size`.",
        )
    if config.noise_multiplier == 0:
        return draft
    _refuse_rho_of_samples(config, draft)
    if draft.choice is not None:
        return _first_try(spec, draft, has_length)
    if isinstance(noise, ValidationDecay):
        return _first_noise(config, draft, noise, has_length)
    target = target_of(config)
    if target is None:
        if not has_length:
            raise InputError(
                "The length of the run must be given once.", fix="Pass exactly one of `steps` and `epochs`."
            )
        _check_certifiable(draft, config)
        return draft
    refuse_spent(draft, target)
    if draft.held is not None:  # what is released of records kept aside is within the target by itself
        return replace(_within(replace(draft, held=None), noise, target, has_length), held=draft.held)
    return _within(draft, noise, target, has_length)


def _within(draft: Plan, noise: OpenSchedule, target: Target, has_length: bool) -> Plan:
    """``draft`` with what its noise or its length leave open, so that it lands on ``target``."""
    if not has_length:
        return _longest(draft, noise.known(), target)
    if noise.unknown == "k":
        return draft.with_noise(noise.closed(_fastest(draft, noise, target)))
    return scaled_to(draft, target)


def refuse_large_delta(config: TrainConfig | SimpleNamespace, records: int) -> None:
    """Refuse a delta of 1/N or more on a user's own records: a release of one of them, drawn at random, has that delta.

    The papers' tables on public data sets have such deltas (1e-4 on MNIST); runs on these get a note in their place.
    """
    records = config.records or records  # the number that may be shown
    about = large_delta(config, records)
    if about is not None:
        raise InputError(
            about,
            why="Publishing a record drawn at random would be as private as that.",
            fix=f"Pass a `delta` well below {1 / records:.1g}, such as {0.1 / records:.1g}.",
        )


def large_delta(config: TrainConfig | SimpleNamespace, records: int) -> str | None:
    """What is wrong with a delta of one over the number of records or more; None for a smaller one."""
    if config.noise_multiplier == 0 or config.delta is None or config.delta * records < 1:
        return None
    return f"delta = {config.delta:g} is not below one over the number of records, {records}."


def with_release_noise(stages: tuple[Stage, ...], config: TrainConfig | SimpleNamespace) -> tuple[Stage, ...]:
    """``stages`` with a noise for every released one that has none.

    The noise of a stage is settled before the run is planned, so that calibration leaves room for its release.
    """
    lacking = [stage for stage in released_stages(stages) if stage.noise_multiplier is None]
    if not lacking:
        return stages
    require_delta(config)
    if config.epsilon is None or config.delta is None:
        raise InputError(
            f"The noise of {lacking[0].name} is not given.",
            why="Without a target epsilon nothing says how much of it is affordable.",
            fix=f"Give it noise_multiplier, as in {lacking[0].name}:noise_multiplier=16, or pass `epsilon`.",
        )
    return tuple(stage.with_noise(_noise_for(stage, config)) if stage in lacking else stage for stage in stages)


def holdout_noise(config: TrainConfig | SimpleNamespace) -> float | None:
    """The noise of the figures of records that are kept aside, which cost what the whole run may cost.

    Nobody trains on these records, so what their figures cost and what the training costs are not added.
    """
    if config.holdout is None or config.holdout_noise is not None:
        return config.holdout_noise
    relation = sampler(config.sampling, 2, 1, config.neighbours).neighbours
    if config.rho is not None:
        least = (2 if relation is Neighbours.REPLACE_ONE else 1) / math.sqrt(2 * config.rho)
    elif config.epsilon is not None and config.delta is not None:
        found = smallest_noise(
            lambda noise_multiplier: GaussianRelease(noise_multiplier, relation, held_out=True),
            epsilon=config.epsilon,
            delta=config.delta,
            accountant=accountant(config.accountant),
        )
        least = found.value
    else:
        raise InputError(
            "The noise of the figures of records that are kept aside is not given.",
            why="Without a target epsilon or rho nothing says how much of it is affordable.",
            fix="Pass `holdout_noise`, or `epsilon` with `delta`.",
        )
    return float(f"{least * 1.001:.4g}")


def _held_noise(spec: RunSpec) -> float | None:
    if spec.config.holdout is not None and (spec.decay is not None or spec.method.choice is not None):
        raise InputError(
            f"Records are kept aside for figures, and {spec.method.name} chooses its noise during the run.",
            why="The budget of such a run has no place for the figures.",
            fix="Use another method, or leave `holdout` out.",
        )
    return holdout_noise(spec.config)


def _noise_for(stage: ReleasedStage, config: TrainConfig | SimpleNamespace) -> float:
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


def note_on_processes(processes: Sequence[int], plan: Plan, *, exact: bool, split: bool = False) -> list[str]:
    """What a certificate says of a run in several processes; ``processes`` are their numbers, one after another."""
    if max(processes) == 1:
        return []
    note = f"The run was computed by {', then '.join(map(str, processes))} processes."
    if not exact and plan.neighbours is Neighbours.ADD_REMOVE:
        note += (
            " One record more or less moves others from one process to the next, so the limit of three times in the "
            "caveat on rounding does not hold; the allowance for ordinary gradients does."
        )
    if split:
        note += " Each had a part of the model; adadp.app.sharded computed the gradients."
    return [note]


def notes_of(spec: RunSpec, plan: Plan) -> list[str]:
    """What a certificate must note about a run because of its configuration."""
    found = (spec.method.note(plan.steps), large_delta(spec.config, plan.records))
    return [each for each in found if each is not None]


def measured_notes(figures: Mapping[str, Any] | None) -> list[str]:
    """What a certificate says of the figures on public test records, which are no part of the guarantee."""
    if figures is None:
        return []
    said = headline(figures)
    return [f"Measured on {figures['records']:,} public test records, outside of the guarantee: {said}."]


def target_of(config: TrainConfig) -> Target | None:
    """What the run may cost; None where the noise is given instead."""
    if config.rho is not None:
        return RhoTarget(config.rho)
    if config.epsilon is None:
        return None
    assert config.delta is not None
    return EpsilonTarget(config.epsilon, config.delta, accountant(config.accountant))


def filter_of(config: TrainConfig, plan: Plan) -> Filter:
    """The budget of a run whose noise is chosen on the way: zCDP for reshuffled epochs, RDP for sampled batches."""
    assert config.delta is not None
    if plan.timetable.shares_draws or config.rho is not None:
        return ZcdpFilter(delta=config.delta, rho=config.rho, epsilon=config.epsilon)
    assert config.epsilon is not None
    return RdpFilter(epsilon=config.epsilon, delta=config.delta, expected=plan.event())


def _first_shape(spec: RunSpec, has_length: bool) -> Schedule | float:
    """The noise that is given, or the shape that is scaled to the budget; 1 where it is solved otherwise."""
    config, noise = spec.config, spec.noise
    if config.noise_multiplier == 0 or isinstance(noise, ValidationDecay) or spec.method.choice is not None:
        return 0.0 if config.noise_multiplier == 0 else 1.0
    if target_of(config) is None:
        return noise.known() if config.noise_multiplier is None else noise.closed(config.noise_multiplier)
    return noise.closed(1.0) if has_length and noise.unknown != "k" else 1.0


def _draft(spec: RunSpec, records: int) -> tuple[Plan, bool]:
    """The plan with its noise as far as that is known, and whether its length is given; if not, it is one epoch."""
    config, method, batches = spec.config, spec.method, spec.batch_size_schedule
    batch_size: Any = config.batch_size if batches is None else round(batches.value_at(0))
    epochs = None if config.epochs == AUTO else config.epochs
    has_length = config.steps is not None or epochs is not None
    released = released_stages(spec.stages)
    plan = Plan.of_noise(
        noise=_first_shape(spec, has_length),
        records=records,
        batch_size=batch_size,
        steps=config.steps,  # type: ignore[arg-type]  # auto was refused, and text is refused by the plan
        epochs=epochs if has_length else 1,  # type: ignore[arg-type]
        clip_norm=spec.clip_rule,
        sampling=config.sampling,
        neighbours=config.neighbours,
        before=tuple(stage.known_noise_multiplier for stage in released),
        replaced=tuple(stage.replaced for stage in released),
        batch_size_schedule=batches,
        clip_norm_schedule=spec.clip_norm_schedule,
        held=_held_noise(spec),
    )
    clips = spec.clip_norm_schedule
    if clips is None:
        clips = method.clip_shape(plan.epochs)
        if clips is not None and not has_length:
            raise InputError(
                f"The clip bound of {method} falls over the run, whose length is not known ahead.",
                fix="Pass `epochs` or `steps`, or a `clip_norm_schedule` of your own.",
            )
    keeps = config.keep_noise
    if keeps is None:
        keeps = clips is not None and method.keeps_noise
    if clips is spec.clip_norm_schedule and not keeps and method.choice is None:
        return plan, has_length
    return replace(plan, clip_norm_schedule=clips, keep_noise=keeps, choice=method.choice), has_length


def _longest(draft: Plan, schedule: Schedule, target: Target) -> Plan:
    def first(epochs: int) -> Plan:
        return draft.with_noise(schedule, steps=draft.steps_of(epochs))

    return first(target.length(lambda epochs: first(epochs).event()))


def _fastest(draft: Plan, noise: OpenSchedule, target: Target) -> float:
    return target.rate(lambda k: draft.event(noise.closed(k)), below_one=noise.kind is StepDecay)


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


def _first_try(spec: RunSpec, draft: Plan, has_length: bool) -> Plan:
    """The plan of a line search, as it begins: so much noise that a part of the budget is left for less of it later."""
    config, method = spec.config, spec.method
    assert method.choice is not None
    if config.noise_schedule is not None or config.noise_multiplier is not None:
        given = "noise_multiplier" if config.noise_schedule is None else "noise_schedule"
        raise InputError(
            f"`{given}` is given, and {method.name} finds its noise on the way.",
            why="Only a budget fixed in advance can be certified then.",
            fix="Pass `epsilon` (with `delta`) or `rho` instead; its option start says how much noise it begins with.",
        )
    sampled = draft.batch_size < draft.records or draft.sampling != "poisson"
    if sampled and (draft.sampling != "poisson" or draft.neighbours is Neighbours.REPLACE_ONE):
        raise InputError(
            f"{method.name} on {draft.sampling} batches was asked for {draft.sampler.neighbours.value} neighbours.",
            why="What a gradient and a choice from one sampled batch cost together is known for Poisson batches, "
            "and where one record is added, removed or blanked out.",
            fix="Use Poisson sampling with add-remove or zero-out neighbours, or a `batch_size` of all records.",
        )
    if not has_length:
        raise InputError(
            f"The length of a run of {method.name} is not given.",
            why="Its first noise follows from the budget and the most steps it may take.",
            fix="Pass `steps` or `epochs`.",
        )
    planned = scaled_to(draft, _limit(config, draft))
    return planned.with_noise(Uniform(planned.noise_multiplier_at(0) * method.first_noise)).for_choices(method.choice)


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
            f"`rho` is given, and batches are sampled ({draft.sampling}).",
            why="zCDP knows no amplification by sampling: every step would count in full.",
            fix="Pass `epsilon` and `delta`, or `sampling` = reshuffle.",
        )


def planned_budget(method: Method, plan: Plan) -> PlannedBudget:
    """What holds a run to a plan whose noise is known ahead."""
    return PlannedBudget(plan.event(), not_private=method.not_private)


def _check_certifiable(plan: Plan, config: TrainConfig) -> None:
    """Find out before the run, not after it, that its accountant has no figure for it."""
    assert config.delta is not None
    if not math.isfinite(plan.epsilon(config.delta, config.accountant).epsilon):
        raise InputError(
            f"No finite epsilon covers this run at delta {config.delta:g}, by {config.accountant}.",
            why="The noise is too small for a guarantee.",
            fix="Pass a larger `noise_multiplier`, or a target `epsilon`.",
        )
