"""The schedule that follows looks at validation records (Yu et al. 2019, section IV-A1): sigma falls when they say so.

    every ``every`` epochs   a look: the accuracy S_n on the validation records, n = 1, 2, ...
    every ``period`` looks   a check: the mean of the last ``m`` looks against that of the check before (0 at first);
                             if it rose by at most ``delta``, sigma <- k sigma

What sigma will be is not known ahead, so no plan can be calibrated to it: the run has a filter for a budget
(``adadp.app.accounting.filters``) and stops before the release that would pass it.

``look`` is for validation records that are private: the standard deviation of the noise on the number of right answers.
One record moves that number by at most 1, so ``look`` is a noise multiplier, and each look is a charge of its own.
Without it the records must be public.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from adadp import checks
from adadp.errors import InputError
from adadp.schedules import number_text


@dataclass(frozen=True)
class ValidationDecay:
    """``s0`` times ``k`` for every check that found no progress."""

    shape = "validation"
    s0: float
    k: float
    m: int = 5
    delta: float = 0.01
    period: int = 10
    every: int = 1
    look: float | None = None

    def __post_init__(self) -> None:
        values: dict[str, float] = {
            "s0": checks.positive("s0", self.s0),
            "k": checks.positive("k", self.k),
            "delta": checks.non_negative("delta", self.delta, why="It is the progress in accuracy that is enough."),
            "every": checks.count("every", self.every, why="It is a number of epochs."),
            "m": checks.count("m", self.m, why="So many looks are averaged."),
        }
        values["period"] = checks.count(
            "period", self.period, minimum=int(values["m"]), why="Two checks average over different looks."
        )
        if self.look is not None:
            values["look"] = checks.positive("look", self.look, why="Without noise a look at private records is free.")
        if values["k"] >= 1:
            raise InputError(
                f"k of a validation schedule must be below 1, got {self.k:g}.",
                why="It is the factor applied when there is no progress.",
                fix="Pass 0 < k < 1, for example k=0.7.",
            )
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def sigma_after(self, looks: Sequence[float]) -> float:
        """The noise multiplier after these looks, the oldest first."""
        falls, before = 0, 0.0
        for number in range(self.period, len(looks) + 1, self.period):
            mean = sum(looks[number - self.m : number]) / self.m
            if mean - before <= self.delta:
                falls += 1
            before = mean
        return float(f"{self.s0 * self.k**falls:.12g}")

    def __str__(self) -> str:
        shown = [each.name for each in fields(self) if getattr(self, each.name) != each.default]
        return f"{self.shape}:" + ",".join(f"{name}={number_text(getattr(self, name))}" for name in shown)
