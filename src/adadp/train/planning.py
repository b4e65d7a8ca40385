"""What a configuration means as numbers: the plan of its releases and the learning rate over its epochs."""

from __future__ import annotations

import math
from typing import Any

from adadp.clipping import clip_rule
from adadp.config import AUTO, TrainConfig, require_delta
from adadp.errors import InputError
from adadp.features import parse_features, released_stages
from adadp.plan import Plan
from adadp.schedules import Schedule, Uniform, parse_schedule


def plan_of(config: TrainConfig, records: int) -> Plan:
    """The plan ``config`` asks for on ``records`` records; every number it needs must be in ``config``."""
    require_delta(config)
    if AUTO in (config.lot, config.steps):
        raise InputError(
            "lot or steps is auto, and nothing chooses it here.",
            fix="Pass numbers; adadp.auto_lot and adadp.auto_steps compute them.",
        )
    rule = config.clip_rule
    shape: dict[str, Any] = {
        "records": config.records or records,
        "lot_size": config.lot,
        "steps": config.steps,
        "epochs": config.epochs,
        "clip": clip_rule(rule, None if ":" in rule else config.clip),
        "sampling": config.sampling,
        "neighbours": config.neighbours,
        "before": tuple(stage.noise_multiplier for stage in released_stages(parse_features(config.features))),
    }
    if config.epsilon is not None:
        assert config.delta is not None
        return Plan.for_budget(epsilon=config.epsilon, delta=config.delta, accountant_name=config.accountant, **shape)
    assert config.sigma is not None
    plan = Plan.of_noise(noise=config.sigma, **shape)
    if plan.noise is not None:
        _check_certifiable(plan, config)
    return plan


def rate_of(config: TrainConfig) -> Schedule | None:
    """The learning rate over the epochs; None where the optimizer's own is kept."""
    if config.lr_schedule is not None:
        return parse_schedule(config.lr_schedule)
    return None if config.lr is None else Uniform(config.lr)


def _check_certifiable(plan: Plan, config: TrainConfig) -> None:
    """Find out before the run, not after it, that its accountant has no figure for it."""
    assert config.delta is not None
    if not math.isfinite(plan.epsilon(config.delta, config.accountant).epsilon):
        raise InputError(
            f"No finite epsilon covers this run at delta {config.delta:g}, by {config.accountant}.",
            why="The noise is too small for a guarantee.",
            fix="Pass a larger sigma, or a target epsilon.",
        )
