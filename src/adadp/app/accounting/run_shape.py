"""The events of a training run from its public numbers, for planning before anything is trained."""

from __future__ import annotations

import math
from enum import Enum

from adadp import checks
from adadp.errors import InputError
from adadp.events import (
    Composed,
    Event,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
)
from adadp.schedules import Schedule, Uniform


class Sampling(str, Enum):
    """How batches are drawn: independent coin flips, subsets of fixed size, or disjoint batches of a shuffled epoch."""

    POISSON = "poisson"
    FIXED = "fixed"
    RESHUFFLE = "reshuffle"

    @property
    def usual_neighbours(self) -> Neighbours:
        """The neighbouring relation the sampling is usually analysed under."""
        return {
            Sampling.POISSON: Neighbours.ADD_REMOVE,
            Sampling.FIXED: Neighbours.REPLACE_ONE,
            Sampling.RESHUFFLE: Neighbours.ZERO_OUT,
        }[self]


def steps_per_epoch(q: float) -> int:
    """How many batches of rate ``q`` make an epoch: 1/q, rounded up."""
    return math.ceil(1 / q - 1e-9)


MOST_EPOCHS = 10**6
_LEAST_RATE = 1e-15
"""Of fewer records than that, whole numbers of batches cannot be told apart by a float."""


class RunShape:
    """Everything about a run but its noise and its length: how it samples, and between which neighbours it protects."""

    def __init__(
        self,
        sampling: Sampling | str = Sampling.POISSON,
        *,
        q: float | None = None,
        neighbours: Neighbours | str | None = None,
    ) -> None:
        try:
            self.sampling = Sampling(sampling)
        except ValueError:
            known = ", ".join(each.value for each in Sampling)
            raise InputError(f"Unknown sampling {sampling!r}.", fix=f"Use one of: {known}.") from None
        usual = self.sampling.usual_neighbours
        self.neighbours = usual if neighbours is None else Neighbours.parse(neighbours)
        if self.sampling is Sampling.RESHUFFLE:
            self.q = 1.0
        elif q is None:
            raise InputError(
                f"{self.sampling.value} sampling needs `q`.",
                why="The sampling rate L/N decides how much sampling amplifies privacy.",
                fix="Pass `q`, the expected batch size over the number of records.",
            )
        else:
            self.q = checks.positive("q", checks.probability("q", q), why="With q = 0 no record is ever used.")
            if self.q < _LEAST_RATE:
                raise InputError(f"`q` must be at least {_LEAST_RATE:g}, got {q:g}.", fix="Pass a larger `q`.")

    def step(self, noise_multiplier: float) -> Event:
        """One batch (for reshuffling: one epoch) at ``noise_multiplier``."""
        noise_multiplier = checks.positive(
            "noise_multiplier", noise_multiplier, why="Without noise there is no differential privacy."
        )
        release = GaussianRelease(noise_multiplier, self.neighbours)
        if self.sampling is Sampling.POISSON:
            return PoissonSampled(self.q, release)
        if self.sampling is Sampling.FIXED:
            return FixedSizeSampled(self.q, release)
        return ReshuffledEpoch((release,))

    def epoch(self, noise_multiplier: float) -> Event:
        """One epoch at ``noise_multiplier``."""
        if self.sampling is Sampling.RESHUFFLE:
            return self.step(noise_multiplier)
        return Repeated(self.step(noise_multiplier), steps_per_epoch(self.q))

    def run(self, noise: Schedule | float, *, steps: int | None = None, epochs: int | None = None) -> Event:
        """A whole run of so many steps or epochs, with one multiplier or a schedule of them over the epochs."""
        if (steps is None) == (epochs is None):
            raise InputError(
                "The length of the run must be given once.", fix="Pass exactly one of `steps` and `epochs`."
            )
        schedule = noise if isinstance(noise, Schedule) else Uniform(checks.positive("noise_multiplier", noise))
        if schedule.tick is not None:
            raise InputError(
                f"The schedule {schedule} counts steps (tick).",
                why="A run is known here by its epochs.",
                fix="Leave tick out, or plan the run with adadp plan.",
            )
        if epochs is not None:
            return self.first_epochs(schedule, checks.count("epochs", epochs))
        if self.sampling is Sampling.RESHUFFLE:
            raise InputError(
                "A reshuffled run is counted in epochs, not steps.",
                why="Every record meets one batch per epoch, so privacy is spent per epoch.",
                fix="Pass `epochs`.",
            )
        steps = checks.count("steps", steps)
        if isinstance(schedule, Uniform):
            return Repeated(self.step(schedule.value_at(0)), steps)
        whole, rest = divmod(steps, steps_per_epoch(self.q))
        last = [Repeated(self.step(schedule.value_at(whole)), rest)] if rest else []
        return Composed((*([self.first_epochs(schedule, whole)] if whole else []), *last))

    def first_epochs(self, schedule: Schedule, epochs: int) -> Event:
        """The first ``epochs`` epochs of a schedule."""
        if isinstance(schedule, Uniform):
            return Repeated(self.epoch(schedule.value_at(0)), epochs)
        if epochs > MOST_EPOCHS:
            raise InputError(
                f"The noise changes over {epochs} epochs.",
                why=f"Each is a release of its own, and {MOST_EPOCHS:,} of them are composed at most.",
                fix="Pass fewer `epochs`.",
            )
        return Composed(tuple(self.epoch(schedule.value_at(epoch)) for epoch in range(epochs)))
