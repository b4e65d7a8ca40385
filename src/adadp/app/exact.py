"""Exact arithmetic: what a record contributes is a function of that record and of public numbers alone.

Every record of a batch is computed by itself: a batch of one, in tensors of its own, by one thread, with a random
stream of its own for dropout. Its gradient is clipped in double precision and rounded to whole multiples of the grid
that the noise is on; that their l2 norm is at most the bound is checked in whole numbers, and so they are added. So
neither the order nor the company of the records can change a bit of what one of them contributes, and one record more
moves the sum by at most the bound: a theorem about the program that runs (docs/arithmetic.md).

It rests on one assumption: that the processor's kernels compute the same bits from the same bits, in the same shape, by
the same thread. In every batch the first record is computed a second time, after all others; if that comes out
differently, or if the model has changed its buffers on the way, nothing is charged or released.

=======================================================  ==============================================================
a gradient or loss that is not finite                    the record contributes nothing
a contribution longer than the bound after rounding      rounded towards zero instead; if still longer, nothing
an empty batch                                             zeros: noise alone is released
another device than the processor, a method that is not  ``InputError`` before anything is charged
private, a run without noise, private looks, a search
=======================================================  ==============================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from typing import Any, ClassVar

import torch
from torch import Tensor

from adadp.errors import InputError
from adadp.gradients import Capture, GradientEngine
from adadp.methods import Contribution, Method, Parts, Query
from adadp.randomness import RandomSource
from adadp.records import Records
from adadp.release import grid_of

_MOST_COORDINATES = 2**32
"""Below it the squares of a contribution add up to less than 2**63: see ``WholeSum``."""
_LARGEST = 2.0**52
"""Sums stay below this, in units of the grid: what the release adds exactly."""
_MOST_RECORDS = 2**28
"""Scores of so many records, in units of ``SCORE_UNITS``, are whole numbers below 2**52."""
SCORE_UNITS = 2**24
"""The bound of a score in exact arithmetic: scores are whole numbers."""


class WholeSum:
    """The sum of contributions of at most ``l2_bound`` in l2, each rounded to whole multiples of the noise's grid g.

    Let m be the number of coordinates and B = ``l2_bound`` / g, which is exact because g is a power of two. By the
    choice of g, B is about 2**15 sqrt(m) at most. A contribution is accepted as the whole numbers n only if the sum of
    n_k^2 is at most B^2, both computed in whole numbers. That sum cannot overflow: before it is taken the vector has a
    length of at most B (1 + 2**-20), rounding moves it by at most sqrt(m) / 2, and (2**15 + 1)^2 m < 2**63 for
    m < 2**32.
    """

    def __init__(self, l2_bound: float, like: Mapping[str, Tensor]) -> None:
        self._like = like
        coordinates = sum(value.numel() for value in like.values())
        if coordinates >= _MOST_COORDINATES:
            raise InputError("The model has too many parameters for exact arithmetic.", fix="Use fast arithmetic.")
        self._grid = grid_of(l2_bound, max(1, coordinates))
        self._bound = l2_bound / self._grid
        self._most = math.floor(Fraction(self._bound) ** 2)
        self._total = torch.zeros(coordinates, dtype=torch.int64)

    def whole(self, part: Mapping[str, Tensor]) -> Tensor:
        """One record's contribution in units of the grid. Sensitive."""
        vector = torch.cat([value.reshape(-1) for value in part.values()]).double().mul_(1 / self._grid)
        length = float(torch.linalg.vector_norm(vector))
        if not math.isfinite(length):
            return torch.zeros_like(self._total)
        if length > self._bound:
            vector.mul_(self._bound / length)
        for rounded in (torch.round, torch.trunc):
            numbers = rounded(vector).long()
            if int(torch.dot(numbers, numbers)) <= self._most:
                return numbers
        return torch.zeros_like(self._total)

    def add(self, numbers: Tensor) -> None:
        """One record more, as ``whole`` made it."""
        self._total += numbers

    def tensors(self) -> dict[str, Tensor]:
        """The sum as doubles, which is exact, in the shapes of ``like``. Sensitive."""
        values = torch.split(self._total.double().mul_(self._grid), [value.numel() for value in self._like.values()])
        return {name: part.view(value.shape) for (name, value), part in zip(self._like.items(), values, strict=True)}


class ExactSums:
    """The sums of a batch, record by record."""

    score_units: ClassVar[int] = SCORE_UNITS

    def __init__(self, engine: GradientEngine, records: Records, source: RandomSource) -> None:
        self._engine, self._records, self._source = engine, records, source
        self._device = torch.device("cpu")

    def check(self, method: Method, device: torch.device, *, noisy: bool) -> None:
        """Refuse what exact arithmetic cannot be proved for, before anything is charged."""
        coordinates = sum(value.numel() for value in self._engine.zeros().values())
        records = len(self._records)
        reasons = {
            f"The method {method} is not private.": method.not_private is not None,
            "The run adds no noise, so there is no guarantee to prove.": not noisy,
            f"The device is {device.type}; only the processor's kernels are taken to be reproducible.": device.type
            != "cpu",
            "So many records of so many parameters leave the range of exact sums.": (
                records > _MOST_RECORDS or records * 2.0**15 * math.sqrt(coordinates) > _LARGEST
            ),
        }
        for reason, holds in reasons.items():
            if holds:
                raise InputError(f"Exact arithmetic cannot be used. {reason}", fix="Use fast arithmetic.")

    def parts(self, query: Query, batch: Sequence[Tensor], bounds: Mapping[str, float], step: int) -> Parts:
        """What ``query`` asks of the batch, in the coordinates the noise is added in, on its grid. Sensitive."""
        sums = {purpose: WholeSum(bounds[purpose], like) for purpose, like in query.finalize(None).items()}

        def contribution(capture: Capture) -> list[Tensor]:
            parts = query.finalize(query.contribution(capture))
            return [total.whole(parts[purpose]) for purpose, total in sums.items()]

        buffers = [value.clone() for value in self._engine.model.buffers()]
        first, state = None, torch.empty(0)
        with one_thread():
            for record in batch:
                with self._alone(record, step):
                    if first is None:
                        state = torch.get_rng_state()
                    found = contribution(self._engine.alone(self._tensors(record)))
                    first = found if first is None else first
                for total, numbers in zip(sums.values(), found, strict=True):
                    total.add(numbers)
            if first is not None:
                with self._alone(batch[0], step):
                    torch.set_rng_state(state)
                    again = contribution(self._engine.alone(self._tensors(batch[0])))
                self._check_same([*first, *buffers], [*again, *self._engine.model.buffers()])
        return {purpose: total.tensors() for purpose, total in sums.items()}

    def scores(  # noqa: PLR0917
        self,
        contribution: Contribution,
        batch: Sequence[Tensor],
        direction: Mapping[str, Tensor],
        lengths: Sequence[float],
        bound: float,
        step: int,
    ) -> Tensor:
        """The scores of ``lengths`` along ``direction``, in units of which every record adds between none and
        ``SCORE_UNITS``, as whole numbers. Sensitive.
        """
        total = torch.zeros(len(lengths), dtype=torch.int64)
        with one_thread():
            for record in batch:
                with self._alone(record, step):
                    losses = self._engine.losses_along(self._tensors(record), direction, lengths).double()
                shares = contribution(losses) / bound
                total += shares.mul(SCORE_UNITS).round().clamp(0, SCORE_UNITS).long()
        return total.double()

    def _tensors(self, record: Tensor) -> tuple[Any, ...]:
        return self._records.batch(record.reshape(1))

    def _alone(self, record: Tensor, step: int) -> AbstractContextManager[None]:
        return self._source.random_layers(self._device, step=step, purpose=f"random layers of {int(record)}")

    @staticmethod
    def _check_same(before: list[Tensor], after: list[Tensor]) -> None:
        if all(torch.equal(one, other) for one, other in zip(before, after, strict=True)):
            return
        raise InputError(
            "A record's contribution came out differently when it was computed again, or the model changed a buffer. "
            "Nothing was charged or released.",
            why="In exact arithmetic a contribution must be a function of the record alone. The model keeps something "
            "from one call to the next, or draws random numbers elsewhere than from torch.",
            fix="Make forward passes independent of one another, or use fast arithmetic.",
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Several threads may share out a sum in one way or another; one cannot."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
