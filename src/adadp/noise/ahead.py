"""Standard normals that a thread draws while the sums that they are for are computed: noise depends on no record.

Which normals a release gets is said by purpose, step and place, as without the thread, so a seeded run releases the same
bits. Each normal is handed out once. What is not asked for until ``forget`` is dropped: a release that failed, or was
refused, leaves nothing behind that a later one, or a copy of this process, could use too.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from adadp.randomness import RandomSource

MOST = 1 << 22
"""Normals that wait at most: 32 MB. The others are drawn when they are needed."""
FEWEST = 1 << 16
"""Fewer are drawn sooner than a thread is told of them."""


class NormalsAhead:
    """The normals of one step of a run whose random numbers are those of ``source``."""

    def __init__(self, source: RandomSource) -> None:
        self._source = source
        self._thread: ThreadPoolExecutor | None = None
        self._drawn: dict[tuple[str, int, int], Future[Tensor]] = {}

    def begin(self, purpose: str, step: int, count: int) -> None:
        """Have ``count`` normals drawn, unless there are few of them or too many wait already."""
        if not FEWEST <= count <= MOST - sum(waiting for _, _, waiting in self._drawn):
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "adadp-normals")
        draw = self._thread.submit(self._source.normal, count, purpose=purpose, step=step)
        self._drawn[purpose, step, count] = draw

    def normal(self, purpose: str, step: int, count: int) -> Tensor:
        """These normals, drawn ahead or now."""
        ahead = self._drawn.pop((purpose, step, count), None)
        return self._source.normal(count, purpose=purpose, step=step) if ahead is None else ahead.result()

    def forget(self) -> None:
        """Drop what nobody has asked for."""
        for each in self._drawn.values():
            each.cancel()
        self._drawn.clear()
