"""Plans that meet a budget: the least noise with which a whole run stays within it."""

from __future__ import annotations

from typing import Any

from adadp.accounting import accountant
from adadp.app.accounting.targets import EpsilonTarget, Target
from adadp.errors import InputError
from adadp.events import compose
from adadp.plan import Plan
from adadp.schedules import Schedule, Uniform


def plan_for(
    *,
    epsilon: float,
    delta: float,
    records: int,
    batch_size: int,
    noise_shape: Schedule | None = None,
    accountant_name: str = "pld",
    **settings: Any,
) -> Plan:
    """The plan with the least noise that keeps a whole run within (``epsilon``, ``delta``).

    ``noise_shape`` is scaled as a whole; without one the noise is constant. ``settings`` are ``steps`` or ``epochs``
    and whatever else ``Plan.of_noise`` takes: ``clip_norm``, ``sampling``, ``neighbours``, ...
    """
    draft = Plan.of_noise(
        noise=noise_shape or Uniform(1.0), records=records, batch_size=batch_size, delta=delta, **settings
    )
    return scaled_to(draft, EpsilonTarget(epsilon, delta, accountant(accountant_name)))


def scaled_to(plan: Plan, target: Target) -> Plan:
    """``plan`` with its noise scaled, as a whole, to the least that keeps the run within ``target``."""
    shape = plan.noise
    assert shape is not None
    refuse_spent(plan, target)
    found = target.scale(lambda scale: plan.event(shape.scaled(scale)))
    return plan.with_noise(shape.scaled(found))


def refuse_spent(plan: Plan, target: Target) -> None:
    """Refuse a target that is spent before the first step."""
    if plan.held is not None and target.cost(compose(*plan.charges_after())) > target.limit:
        raise InputError(
            f"The figures of the records that are kept aside cost more than {target}.",
            why=f"Their noise multiplier is {plan.held:g}.",
            fix="Pass a larger `holdout_noise`, or leave it out: it then follows from the budget.",
        )
    if plan.before and target.cost(compose(*plan.charges_before())) >= target.limit:
        raise InputError(
            f"What is released before the first step costs all of {target}.",
            why=f"Its noise is {', '.join(f'{each:g}' for each in plan.before)}; nothing is left to train with.",
            fix="Give these releases more noise, or pass a larger budget.",
        )
