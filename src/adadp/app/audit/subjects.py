"""What an audit attacks, from text and numbers: the plan of its runs, and what a run claims by what it has charged.

the run                              its noise follows from epsilon by     its claim is
a method whose noise is planned      pld                                   pld, of what was charged
the best of a random number of runs  rdp, of the whole                     rdp, of the whole
a method that chooses its noise      rdp, as its filter has it             the budget of the filter
a released feature stage             pld, of the release and the steps     pld, of what was charged
"""

from __future__ import annotations

from functools import partial
from typing import Any

from adadp import checks
from adadp.accounting import Answer, Status, accountant
from adadp.app.accounting import RdpFilter
from adadp.app.accounting.calibrate import smallest_noise
from adadp.app.accounting.plans import plan_for, scaled_to
from adadp.app.accounting.repetitions import PoissonRepetitions
from adadp.app.accounting.search_noise import noise_for_search
from adadp.app.accounting.targets import EpsilonTarget
from adadp.app.audit.trials import MakeOptimizer, Subject, optimizer_by_name
from adadp.app.features import ReleasedStage
from adadp.app.texts.clip_rules import clip_rule, is_name
from adadp.errors import InputError
from adadp.events import Event, GaussianRelease
from adadp.methods import DpSgd, Method
from adadp.plan import Plan
from adadp.schedules import Uniform

_RATE = 0.05
_STEPS_NOISE = 1e4
"""Noise multiplier of the training behind a feature stage that is attacked: it is to tell nothing."""


def subject_of(
    method: Method | ReleasedStage,
    *,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    clip_norm: float | None,
    clip_rule_name: str,
    optimizer: str | None,
    lr: float | None,
    best_of: float | None,
    rows: int,
    **shape: Any,
) -> Subject:
    """What is attacked; ``shape`` are the numbers of the plan."""
    checks.delta(delta)
    if epsilon is not None and noise_multiplier is not None:
        raise InputError(
            "Both `epsilon` and `noise_multiplier` were given.", why="One follows from the other.", fix="Give one."
        )
    if noise_multiplier is not None:
        noise_multiplier = checks.positive(
            "noise_multiplier", noise_multiplier, why="Without noise nothing is claimed."
        )
    epsilon = 1.0 if epsilon is None else checks.positive("epsilon", epsilon)
    if isinstance(method, ReleasedStage):
        return _of_stage(method, epsilon, noise_multiplier, delta, **shape)
    bound = 1.0 if clip_norm is None and is_name(clip_rule_name) else clip_norm
    shape |= {"clip_norm": clip_rule(clip_rule_name, bound, batch_size=shape["batch_size"])}
    make = _optimizer(method, optimizer, lr)
    if method.choice is not None:
        if noise_multiplier is not None or best_of is not None:
            raise InputError(
                f"`noise_multiplier` or the best of several runs is given, and {method.name} chooses its noise.",
                why="Only a budget that is fixed in advance can be certified then, and of one run.",
                fix="Pass `epsilon`, and leave the other out.",
            )
        return _choosing(method, epsilon, delta, make, rows, **shape)
    law = None if best_of is None else PoissonRepetitions(best_of)
    if noise_multiplier is not None:
        plan = Plan.of_noise(noise=noise_multiplier, **shape)
    elif law is None:
        plan = plan_for(epsilon=epsilon, delta=delta, **shape)
    else:
        draft = Plan.of_noise(noise=1.0, **shape)
        (scale,) = noise_for_search([lambda x: draft.event(Uniform(x))], law, epsilon=epsilon, delta=delta)
        plan = draft.with_noise(Uniform(scale))
    return Subject(plan, method, optimizer=make, rows=rows, law=law)


def claim_of(subject: Subject, charged: Event, delta: float) -> Answer:
    """What a run claims that has ``charged`` this."""
    if subject.budget is None:
        return accountant("pld" if subject.law is None else "rdp").epsilon(charged, delta)
    held = subject.budget()
    top = held.epsilon
    return Answer(top, top, top, delta, delta, delta, held.name, Status.PROVED, subject.plan.neighbours)


def _choosing(method: Method, epsilon: float, delta: float, make: MakeOptimizer, rows: int, **shape: Any) -> Subject:
    """A run that finds its noise on the way, as ``adadp train`` begins it."""
    assert method.choice is not None
    planned = scaled_to(Plan.of_noise(noise=1.0, **shape), EpsilonTarget(epsilon, delta, accountant("rdp")))
    first = planned.with_noise(Uniform(planned.noise_multiplier_at(0) * method.first_noise))
    plan = first.for_choices(method.choice)
    budget = partial(RdpFilter, epsilon=epsilon, delta=delta, expected=plan.event())
    return Subject(plan, method, optimizer=make, rows=rows, budget=budget)


def _of_stage(
    stage: ReleasedStage, epsilon: float, noise_multiplier: float | None, delta: float, **shape: Any
) -> Subject:
    """One step, on batches of all records, behind the release of ``stage``."""
    shape |= {"steps": 1, "batch_size": shape["records"]}
    relation = Plan.of_noise(noise=_STEPS_NOISE, **shape).sampler.neighbours
    noise = stage.noise_multiplier if noise_multiplier is None else noise_multiplier
    if noise is None:
        found = smallest_noise(
            lambda x: GaussianRelease(x, relation, stage.replaced),
            epsilon=epsilon,
            delta=delta,
            accountant=accountant("pld"),
        )
        noise = found.value
    plan = Plan.of_noise(noise=_STEPS_NOISE, before=(noise,), replaced=(stage.replaced,), **shape)
    return Subject(plan, DpSgd(), stages=(stage.with_noise(noise),))


def _optimizer(method: Method, name: str | None, lr: float | None) -> MakeOptimizer:
    """The optimizer as given; what is not given as the method's paper has it."""
    usual = method.defaults
    if lr is None:
        lr = usual.lr if usual.lr is not None and name in (None, usual.optimizer) else _RATE
    return optimizer_by_name(name or usual.optimizer or "sgd", lr)
