"""A run as objects: what the text of a configuration names, read in this one place and once.

Whoever trains, plans, reports, searches or compares takes a ``RunSpec``. Its parts may be anybody's: ``fit`` passes the
objects it was given, and nothing reads them back from text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from adadp.accounting import Accountant, accountant
from adadp.app.config import TrainConfig
from adadp.app.features import Stage, parse_features
from adadp.app.schedules import ValidationDecay
from adadp.app.texts.clip_rules import clip_rule, is_name
from adadp.app.texts.methods import parse_method
from adadp.app.texts.schedules import OpenSchedule, parse_noise, parse_open
from adadp.clipping import ClipRule
from adadp.errors import InputError
from adadp.methods import Method
from adadp.schedules import Schedule, Uniform


@dataclass(frozen=True, eq=False)
class RunSpec:
    """What a run is made of. ``config`` is the same as text, with every default filled in: what a folder keeps."""

    config: TrainConfig
    method: Method
    stages: tuple[Stage, ...]
    """The features before the network."""
    noise: OpenSchedule | ValidationDecay
    """The noise as it was asked for: what it leaves open is solved for the budget by ``plan_of``."""
    clip_rule: ClipRule
    clip_norm_schedule: Schedule | None
    """What the bound of the clip rule is multiplied by over the epochs."""
    batch_size_schedule: Schedule | None
    lr: Schedule | None
    """None where the optimizer keeps its own."""
    accountant: Accountant
    """Which certifies the run."""

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        *,
        method: Method | None = None,
        stages: tuple[Stage, ...] | None = None,
        rule: ClipRule | None = None,
    ) -> RunSpec:
        """The parts that ``config`` names; those that are given are taken as they are."""
        batches = over_epochs(config.batch_size_schedule, config.batch_size)
        first = config.batch_size if batches is None else round(batches.value_at(0))
        bounds = _bounds(config, rule)
        if rule is None:
            named = is_name(config.clip_rule)
            bound = config.clip_norm if bounds is None else bounds.value_at(0)
            size = first if isinstance(first, int) else None
            rule = clip_rule(config.clip_rule, bound if named else None, batch_size=size)
        return cls(
            config=config,
            method=parse_method(config.method) if method is None else method,
            stages=parse_features(config.features) if stages is None else stages,
            noise=parse_noise(config.noise_schedule or "uniform:"),
            clip_rule=rule,
            clip_norm_schedule=None if bounds is None else bounds.scaled(1 / bounds.value_at(0)),
            batch_size_schedule=batches if config.batch_size_schedule is not None else None,
            lr=over_epochs(config.lr_schedule, config.lr),
            accountant=accountant(config.accountant),
        )

    @property
    def decay(self) -> ValidationDecay | None:
        """The noise that follows validation records; None where it is known ahead."""
        return self.noise if isinstance(self.noise, ValidationDecay) else None

    @property
    def starting_bound(self) -> float:
        """What the clip bound begins with; 1 where a clip rule in full text has its own."""
        if not is_name(self.config.clip_rule):
            return 1.0
        bounds = over_epochs(self.config.clip_norm_schedule, self.config.clip_norm)
        assert bounds is not None
        return bounds.value_at(0)


def over_epochs(text: str | None, number: float | str | None) -> Schedule | None:
    """A plain number, or the schedule in ``text``, which begins with it where it leaves that open."""
    if text is None:
        return None if not isinstance(number, (int, float)) else Uniform(number)
    found = parse_open(text)
    return found.closed(number) if isinstance(number, (int, float)) else found.known()


def _bounds(config: TrainConfig, rule: ClipRule | None) -> Schedule | None:
    """The clip bound over the epochs; beside a rule that has its own bound it is a factor, and begins with 1."""
    if config.clip_norm_schedule is None:
        return None
    named = rule is None and is_name(config.clip_rule)
    bounds = over_epochs(config.clip_norm_schedule, config.clip_norm if named else 1.0)
    assert bounds is not None
    first = bounds.value_at(0)
    if not named and not math.isclose(first, 1.0):
        raise InputError(
            f"The clip rule {config.clip_rule} has a bound, and `clip_norm_schedule` begins with another, {first:g}.",
            why="With a rule in full text the schedule is a factor.",
            fix="Leave s0 out of `clip_norm_schedule`, or name the rule without its bound.",
        )
    return bounds
