"""The batches of a run, one after the other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adadp.errors import InputError
from adadp.randomness import RandomSource
from adadp.ranks import ONE, Ranks
from adadp.sampling.samplers import PoissonSampler, Sampler
from adadp.sampling.timetable import Timetable


class Batches:
    """The batches of one run: who draws which, a source, and the draw of the round at hand where steps share one.

    Reshuffled batches from a secure source exist only here, so rounds go forward and are entered at their first step or
    by ``restore``; otherwise a record could meet two batches of an epoch that was paid for once. What ``state`` then
    holds may be saved with the model: it was drawn without a look at the data, and reshuffling claims no amplification
    from keeping it secret. A Poisson or fixed-size batch is secret: it is neither remembered nor saved.

    Each of several processes gets the records of a batch that are in its own part of all records. Where every record
    has a coin, each process tosses those of its own records; other batches are drawn by the first for all.
    """

    def __init__(self, draws: Sampler | Timetable, source: RandomSource, ranks: Ranks = ONE) -> None:
        self.timetable = draws if isinstance(draws, Timetable) else Timetable.of(draws)
        self.source, self.ranks = source, ranks
        self._round: tuple[int, Tensor] | None = None

    def batch(self, step: int, part: range | None = None) -> Tensor:
        """The sorted indices of the batch of ``step`` that are in ``part``, or in the part of this process: sensitive,
        and possibly none.
        """
        sampler = self.timetable.at(step).sampler
        number, position = self.timetable.round_of(step)
        part = self.ranks.part(sampler.records) if part is None else part
        if isinstance(sampler, PoissonSampler):
            return sampler.draw(number, self.source, part)
        if sampler.steps_per_round == 1:
            return sampler.pick(self._arranged(sampler, number), position, part)
        if self._round is None or self._round[0] != number:
            self._check_entry(number, position)
            self._round = number, self._arranged(sampler, number)
        return sampler.pick(self._round[1], position, part)

    def _arranged(self, sampler: Sampler, number: int) -> Tensor:
        """Round ``number``, as the first process has drawn it."""
        return self.ranks.from_first("drawing a batch", lambda: sampler.arrange(number, self.source))

    def at_hand(self, step: int) -> bool:
        """Whether the batch of ``step`` can be drawn without entering another round."""
        shared = self.timetable.at(step).sampler.steps_per_round > 1
        return not shared or (self._round is not None and self._round[0] == self.timetable.round_of(step)[0])

    def state(self) -> dict[str, int | Tensor]:
        """What a checkpoint must hold to go on within a round; empty where the source can be asked again."""
        if self._round is None or self.source.reproducible:
            return {}
        number, arrangement = self._round
        return {"round": number, "arrangement": arrangement.clone()}

    def restore(self, state: Mapping[str, int | Tensor]) -> None:
        """Go on from what ``state`` returned, in this process or another."""
        if not state:
            self._round = None
            return
        number, arrangement = state.get("round"), state.get("arrangement")
        if (
            set(state) != {"round", "arrangement"}
            or not isinstance(number, int)
            or not isinstance(arrangement, Tensor)
            or arrangement.shape != (self.timetable.at(0).sampler.records,)
            or not self.timetable.shares_draws
        ):
            raise InputError(
                "The saved state of the batches does not fit this sampler.",
                why="Batches dealt otherwise could meet a record twice in one epoch.",
                fix="Resume with the data and the sampling the checkpoint was written with.",
            )
        self._round = number, arrangement.to("cpu", torch.int64, copy=True)

    def _check_entry(self, number: int, position: int) -> None:
        """Refuse to deal a round that may have been dealt before, in another way."""
        if self.source.reproducible or (position == 0 and (self._round is None or number > self._round[0])):
            return
        raise InputError(
            f"The batches of epoch {number} are not at hand, and a secure source cannot deal them again.",
            why="Dealt anew, a record could meet two batches of an epoch that was paid for once.",
            fix="Restore the state saved with the checkpoint, or go on with the first step of the next epoch.",
        )
