"""Norms and sums of per-example gradients of a model that no process has as a whole.

Records are split over the processes, so that the norm of each is computed in one of them. The weighted sum of a layer
is made as soon as its weights are known, and divided at once: every process adds up the rows that it has of each
parameter, in double precision, and none keeps the gradient of more than one parameter.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from adadp.app.sharded.gathering import Gathering
from adadp.app.sharded.proof import Gap, ShardedProof, derived, gaps, nudged_gaps
from adadp.errors import InputError, MixedRecords
from adadp.gradients.capture import Capture, accumulation_dtype
from adadp.gradients.engine import GradientEngine
from adadp.gradients.oracle import picked
from adadp.gradients.passes import MakePasses, run_batch
from adadp.gradients.probe_records import Loss
from adadp.gradients.regions import UnseenPath
from adadp.gradients.spotcheck import ROUNDINGS
from adadp.ranks import joined
from adadp.sharding import own_rows

_CHECKED, _TOGETHER = 2, 8
"""How many records of a batch are computed alone and compared, in each process, and with how many others anew."""


class ShardedEngine(GradientEngine):
    """The engine of a model that was given to ``torch.distributed.fsdp.fully_shard``, layer by layer.

    All processes build it together, and call each method at the same time, with batches of their own.

    ===========================================  =====================================================================
    a parameter that needs the generic way       refused when the engine is built
    a path that was not seen then, in any batch  ``InputError`` in all processes: nothing is charged
    compiled passes                              refused
    ===========================================  =====================================================================
    """

    split = True

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        like: Sequence[Any],
        *,
        example: Sequence[Any] | None = None,
        passes: MakePasses | None = None,
    ) -> None:
        if passes is not None:
            raise InputError(
                "Compiled passes are asked for with a model that is split over processes.",
                why="Its layers have no parameters until they are gathered.",
                fix="Leave `compile` out.",
            )
        self._ranks = joined()
        self._gathering = gathering = Gathering(model, self._ranks)
        self.make_proof = functools.partial(ShardedProof, gathering)
        with gathering.running():
            super().__init__(model, loss, like, example=example)
        self._parts: dict[str, Any] = {name: value for name, value in model.named_parameters() if value.requires_grad}

    def zeros(self) -> dict[str, Tensor]:
        """A sum of nothing, split like the parameters."""
        return {
            name: torch.zeros_like(value, dtype=accumulation_dtype(value.dtype), requires_grad=False)
            for name, value in self._parts.items()
        }

    def capture(self, batch: Sequence[Any]) -> Capture:
        """Run ``batch`` forward and back, in all processes at the same time."""
        self._check_unchanged()
        with self._gathering.running():
            return self._pass(batch)

    def captures(self, batch: Sequence[Any], padding: Tensor, *, checked: bool = False) -> Iterator[Capture]:
        """The same for a chunk whose rows marked in ``padding`` are no records."""
        self._check_unchanged()
        with self._gathering.running():
            captured = self._pass(batch)
            if checked:
                order = torch.argsort(
                    padding.long(), stable=True
                )  # records first, and probe records where there are few
                self._check(batch, captured, order)
            captured.padding = padding.to(next(iter(self._parameters.values())).device)
            captured.share = self._share
            with self._gathering.available(derived(self._blueprint)):
                yield captured

    def _pass(self, batch: Sequence[Any]) -> Capture:
        try:
            captured = run_batch(self._parameters, self.model, self.loss, batch, self._blueprint)
            self._gathering.agree()
        except UnseenPath:
            with contextlib.suppress(UnseenPath):
                self._gathering.agree(unseen=True)
            raise _unseen() from None
        return captured

    def _share(self, name: str, whole: Tensor) -> Tensor:
        """The sum of ``whole`` over all processes, split like the parameter. Sensitive."""
        part, size = self._parts[name], self._ranks.size
        even = -(-whole.shape[0] // size)
        padded = whole.new_zeros(size * even, *whole.shape[1:])
        padded[: len(whole)] = whole
        self._ranks.meet(f"adding up {name}")
        mine = self._ranks.scattered_sum(padded.view(-1)) if size > 1 else padded.double()
        rows = mine.view(even, *whole.shape[1:])[: len(own_rows(part))]
        return DTensor.from_local(
            rows, part.device_mesh, part.placements, run_check=False, shape=part.shape, stride=part.stride()
        )

    def _check(self, batch: Sequence[Any], capture: Capture, rows: Tensor) -> None:
        """Compare what ``capture`` says of a few records of ``batch`` with what they are alone, in all processes."""
        with self._without_chance():
            if self._blueprint.random:
                batch, rows = picked(batch, rows[:_TOGETHER]), torch.arange(len(rows[:_TOGETHER]))
                capture = self._pass(batch)
            for number in range(_CHECKED):
                row = rows[min(number, len(rows) - 1)][None]
                alone, single = picked(batch, row), capture.picked(row)
                self._compare(alone, single)

    def _compare(self, alone: Sequence[Any], single: Capture) -> None:
        names = list(self.names)
        with self._gathering.available(derived(self._blueprint)):
            finite = bool(single.square_norms([names]).isfinite().all())
        found = gaps(self._gathering, self.model, self.loss, alone, single)
        away, length = _lengths(found)
        allowed = min(0.25, ROUNDINGS * self._blueprint.rounding) * length + 1e-12
        differs = finite and math.isfinite(length) and not away <= allowed
        if not self._ranks.any("comparing a record", differs):
            return
        moved = nudged_gaps(self._gathering, self.model, self.loss, alone, single)
        if differs and not away <= 2 * max(abs(_lengths(each)[0] - away) for each in moved):
            raise MixedRecords(
                "A record's gradient in its batch is not what it is for that record alone. Nothing was released.",
                why="The model moves or mixes records in a way that did not show when it was looked over, so clipping "
                "does not bound what one of them contributes.",
                fix="Let the model compute each record from that record alone, or pass example= with public records "
                "that take the same way through it as the data.",
            )


def _lengths(found: Sequence[Gap]) -> tuple[float, float]:
    """How far a whole gradient is from the true one, and how long that is."""
    return math.hypot(*(each.away for each in found)), math.hypot(*(each.length for each in found))


def _unseen() -> InputError:
    return InputError(
        "A batch takes a way through the model that was not seen when it was looked over.",
        why="Its records would be computed one at a time, and the model is split over processes, which all have to run "
        "the same layers.",
        fix="Pass example= with public records that take the same way through it as the data.",
    )
