"""Who draws the batch of which step: one sampler for the whole run, or another from some epoch on (batches that grow).

Epochs, rounds and steps are counted over the whole run. A stretch holds whole epochs, so a reshuffled epoch is never
cut, and the random numbers of a batch belong to its round, whichever sampler draws it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from adadp import checks
from adadp.errors import InputError
from adadp.events import Event, compose
from adadp.sampling.samplers import PoissonSampler, ReleaseOf, Sampler


@dataclass(frozen=True)
class Stretch:
    """Consecutive epochs whose batches one sampler draws, and where they begin."""

    sampler: Sampler
    epoch: int
    step: int
    round: int


@dataclass(frozen=True)
class Timetable:
    """Stretches from step 0 on; the last one has no end."""

    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, *samplers: Sampler) -> Timetable:
        """The timetable with one sampler for each epoch, the last of them for all that follow."""
        stretches: list[Stretch] = []
        epoch = step = rounds = 0
        for each in samplers:
            if not stretches or stretches[-1].sampler != each:
                stretches.append(Stretch(each, epoch, step, rounds))
            epoch, step = epoch + 1, step + each.steps_per_epoch
            rounds += each.steps_per_epoch // each.steps_per_round
        return cls(tuple(stretches))

    @property
    def shares_draws(self) -> bool:
        """Whether steps share a draw and a charge, in some epochs at least: reshuffled ones of several batches."""
        return any(each.sampler.steps_per_round > 1 for each in self.stretches)

    def at(self, step: int) -> Stretch:
        """The stretch of ``step``."""
        step = checks.count("step", step, minimum=0, why="Steps are counted from 0.")
        if len(self.stretches) == 1:
            return self.stretches[0]
        return self.stretches[bisect_right([each.step for each in self.stretches], step) - 1]

    def epoch_of(self, step: int) -> int:
        """The epoch ``step`` belongs to."""
        found = self.at(step)
        return found.epoch + (step - found.step) // found.sampler.steps_per_epoch

    def round_of(self, step: int) -> tuple[int, int]:
        """The round of ``step`` and the position in it."""
        found = self.at(step)
        number, position = divmod(step - found.step, found.sampler.steps_per_round)
        return found.round + number, position

    def first_step(self, epoch: int) -> int:
        """The first step of ``epoch``."""
        found = [each for each in self.stretches if each.epoch <= epoch][-1]
        return found.step + (epoch - found.epoch) * found.sampler.steps_per_epoch

    def next_round(self, step: int) -> int:
        """The first step from ``step`` on that begins a round."""
        found = self.at(step)
        return found.step - (found.step - step) // found.sampler.steps_per_round * found.sampler.steps_per_round

    def rounds_before(self, step: int) -> int:
        """How many rounds the steps before ``step`` belong to."""
        return 0 if step == 0 else self.round_of(step - 1)[0] + 1

    def charge(self, step: int, release_of: ReleaseOf, *, resumed: bool = False) -> Event | None:
        """What must be charged before the release of ``step``; see ``Sampler.charge``."""
        found = self.at(step)
        return found.sampler.charge(step - found.step, _shifted(release_of, found.step), resumed=resumed)

    def planned(self, steps: int, release_of: ReleaseOf) -> Event:
        """Everything that ``charge`` asks for in an uninterrupted run of ``steps`` steps."""
        steps = checks.count("steps", steps)
        ends = [each.step for each in self.stretches[1:]] + [steps]
        return compose(
            *(
                each.sampler.planned(min(end, steps) - each.step, _shifted(release_of, each.step))
                for each, end in zip(self.stretches, ends, strict=True)
                if each.step < steps
            )
        )

    def for_records(self, records: int) -> Timetable:
        """The same for ``records`` true records, which Poisson sampling allows to differ from the public number."""
        return Timetable(tuple(replace(each, sampler=_for_records(each.sampler, records)) for each in self.stretches))


def _for_records(planned: Sampler, records: int) -> Sampler:
    if records == planned.records:
        return planned
    if isinstance(planned, PoissonSampler):
        return replace(planned, records=records)
    raise InputError(
        f"The plan is for {planned.records} records, the data has another number of them.",
        why=f"{planned.name} sampling deals out exactly the records there are, so their number is public.",
        fix="Plan with the true number, or use Poisson sampling, which can hide it.",
    )


def _shifted(release_of: ReleaseOf, by: int) -> ReleaseOf:
    return release_of if by == 0 else lambda step: release_of(step + by)
