"""What ``adadp.gradients.proof`` and ``spotcheck`` compare, one parameter at a time: no process holds two gradients.

All processes make the same comparisons at the same time, because every pass needs all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adadp.app.sharded.gathering import Gathering
from adadp.errors import InputError
from adadp.gradients.capture import Capture, full_precision
from adadp.gradients.inspection import Blueprint
from adadp.gradients.oracle import picked
from adadp.gradients.probe_records import Loss, ProbeRecords, random_states
from adadp.gradients.proof import HALF, RECORDS, SHARP, Proof
from adadp.gradients.recorder import Recorder
from adadp.gradients.spotcheck import nudged


@dataclass(frozen=True)
class Gap:
    """How far a captured gradient of a parameter is from the true one, and how long that is."""

    name: str
    away: float
    length: float


def gaps(gathering: Gathering, model: nn.Module, loss: Loss, batch: Sequence[Any], capture: Capture) -> list[Gap]:
    """For every parameter: the sum of the gradients of ``capture``, and that of ``batch`` by plain autograd."""
    weights, found = torch.ones(capture.records), dict[str, Gap]()

    def see(name: str, truth: Tensor) -> None:
        got = sum_of(capture, name, weights)
        found[name] = Gap(name, float((got - truth.to(got.dtype)).norm()), float(truth.norm()))

    with torch.enable_grad():
        losses = loss(model, *batch)
    if losses.requires_grad:
        gathering.each_gradient(capture.parameters, losses, see)
    unused = [name for name in capture.parameters if name not in found]
    with gathering.available(unused):
        return [
            found[name] if name in found else Gap(name, float(sum_of(capture, name, weights).norm()), 0.0)
            for name in capture.parameters
        ]


def sum_of(capture: Capture, name: str, weights: Tensor) -> Tensor:
    """The weighted sum of the gradients of one parameter, whole."""
    sums: dict[str, Tensor] = {}
    parameter = capture.parameters[name]
    with full_precision(parameter.device):
        for piece in capture.pieces:
            slots = tuple(slot for slot, target in piece.targets.items() if target.name == name)
            for slot, value in (piece.weighted_sum(weights.to(parameter), slots) if slots else {}).items():
                capture.add(sums, piece.targets[slot], value)
    return sums[name] if name in sums else torch.zeros_like(parameter, dtype=torch.float32)


def nudged_gaps(
    gathering: Gathering, model: nn.Module, loss: Loss, record: Sequence[Any], capture: Capture
) -> list[list[Gap]]:
    """The gaps of one record when the parameters are a few roundings off, several times.

    By the triangle inequality its gradient moves by as much as the distance to the captured one changes, or more.
    """
    return [gaps(gathering, model, loss, record, capture) for _ in nudged(model)]


class ShardedProof(Proof):
    """The proof of a model that is split over processes."""

    def __init__(self, gathering: Gathering, model: nn.Module, loss: Loss, probes: ProbeRecords) -> None:
        super().__init__(model, loss, probes)
        self._gathering = gathering

    def followed(self, blueprint: Blueprint) -> tuple[Blueprint, dict[str, str]]:
        """As in one process; but a parameter that needs the generic way is refused."""
        blueprint, astray = super().followed(blueprint)
        inner = [name for name in derived(blueprint) if not self._gathering.is_of_the_whole(name)]
        refused = {
            **dict.fromkeys(inner, "a layer that makes something of it before it is used"),
            **dict.fromkeys(blueprint.generic, "a call without a closed form"),
            **astray,
        }
        if refused:
            raise InputError(
                f"{', '.join(sorted(refused))}: no closed form for per-example gradients applies "
                f"({next(iter(refused.values()))}).",
                why="The generic way needs all parameters in one place, and the model is split over processes.",
                fix="Freeze these parameters, write the layer with calls that docs/models.md lists, or pass the plain "
                "module.",
            )
        return blueprint, astray

    def _plain(self, batch: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor], bool, float]:
        """The losses; the gradients are compared elsewhere."""
        torch.manual_seed(0)
        before = random_states(self._model)
        with torch.enable_grad(), Recorder(self._parameters) as recorder:
            losses = self._loss(self._model, *batch)
        random = not all(map(torch.equal, before, random_states(self._model)))
        half = losses.dtype in HALF or any(dtype in HALF for dtype in recorder.dtypes)
        return losses.detach(), {}, random, 5e-2 if half else 2e-3

    def _influenced(
        self, blueprint: Blueprint, batch: Sequence[Any], other: Sequence[Any], kept: Sequence[int], rounding: float
    ) -> set[str]:
        captures = [self._captured(each, blueprint) for each in (batch, other)]
        found = []
        with self._gathering.available(derived(blueprint)), torch.no_grad():
            for record in kept:
                first, second = (each.picked(torch.tensor([record])) for each in captures)
                for name in self._parameters:
                    truth = sum_of(second, name, torch.ones(1))
                    found.append(
                        Gap(name, float((sum_of(first, name, torch.ones(1)) - truth).norm()), float(truth.norm()))
                    )
        return _too_far(found, rounding * SHARP)

    def _wrong_total(
        self,
        blueprint: Blueprint,
        batch: Sequence[Any],
        total: dict[str, Tensor],  # noqa: ARG002
        rounding: float,
        random: bool,  # noqa: ARG002
    ) -> set[str]:
        capture = self._captured(batch, blueprint)
        torch.manual_seed(0)
        return _too_far(gaps(self._gathering, self._model, self._loss, batch, capture), rounding)

    def _wrong_parts(self, blueprint: Blueprint, batch: Sequence[Any], rounding: float) -> set[str]:
        capture = self._captured(batch, blueprint)
        with self._gathering.available(derived(blueprint)):
            norms = capture.square_norms(self._groups).double().sqrt().cpu()
        alone = [picked(batch, torch.tensor([record])) for record in range(RECORDS)]
        single = [capture.picked(torch.tensor([record])) for record in range(RECORDS)]
        rows = [gaps(self._gathering, self._model, self._loss, *each) for each in zip(alone, single, strict=True)]
        largest = max(each.length for row in rows for each in row)
        wrong: set[str] = set()
        for record, row in enumerate(rows):
            slack = rounding * 1e-3 * largest
            far = {each.name: each for each in row if not each.away <= rounding * each.length + slack}
            if far:
                moved = nudged_gaps(self._gathering, self._model, self._loss, alone[record], single[record])
                jumps = {each.name: 0.0 for each in row}
                for each in (gap for again in moved for gap in again if gap.name in far):
                    jumps[each.name] = max(jumps[each.name], abs(each.away - far[each.name].away))
                wrong |= {name for name, each in far.items() if not each.away <= 2 * jumps[name]}
            for group, each in enumerate(row):  # a jump is in the captured gradient and in its norm
                off = abs(float(norms[record, group]) - each.length)
                if not off <= rounding * each.length + slack + (each.away if each.name in far else 0.0):
                    wrong.add(each.name)
        return wrong


def _too_far(found: Sequence[Gap], rounding: float) -> set[str]:
    """Names whose gradients differ by more than rounding, relative to their own size and a little to the largest."""
    slack = rounding * 1e-3 * max(each.length for each in found)
    return {each.name for each in found if not each.away <= rounding * each.length + slack}


def derived(blueprint: Blueprint) -> set[str]:
    """Parameters that others are made of: to pull a gradient back to them takes their values."""
    return set[str]().union(*blueprint.derived.values())
