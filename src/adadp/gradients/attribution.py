"""Row i of every captured tensor belongs to record i: followed through one forward pass on public records.

The pass is the one a real batch gets, with ``Owners`` around it. Whatever cannot be followed is not taken from the
batch: its parameters go the generic way, as a part of the whole loss, one record at a time, where nothing can be moved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from adadp.gradients.derived import Derived
from adadp.gradients.inspection import Blueprint, check_losses, trained_parameters
from adadp.gradients.layout import Layout
from adadp.gradients.owners import Owners
from adadp.gradients.probe_records import Loss, check_leading, undisturbed
from adadp.gradients.recorder import Recorder, Use
from adadp.gradients.regions import Region, Told


@dataclass(frozen=True)
class Attribution:
    """What one pass showed: parameters that cannot be attributed, with the reason, and the calls it was shown for."""

    astray: Mapping[str, str]
    calls_made: int


class _Attributing(Recorder):
    """A recorder that asks whose the rows of every use are."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], blueprint: Blueprint, owners: Owners, records: int
    ) -> None:
        super().__init__(parameters, skip=blueprint.generic, derived=blueprint.derived)
        self._layouts = blueprint.layouts
        self._owners = owners
        self._records = records
        self.astray: dict[str, str] = {}

    def _answered(self, func: Callable[..., Any], given: tuple[Any, ...], output: Any) -> Any:
        self._owners.watch_answer(func, given, output)
        return output

    def _derive(self, derived: Derived, output: Tensor) -> None:
        super()._derive(derived, output)
        if self._owners.known(output):
            self.astray |= dict.fromkeys(derived.roots, self._owners.reason())

    def _kept(self, use: Use, output: Tensor) -> Tensor:
        layout, belongs = self._layouts.get(use.key), self._owners.belongs
        if (
            layout is not None
            and (use.input is None or layout.input is None or belongs(use.input, layout.input, self._records))
            and belongs(output, layout.output, self._records)
        ):
            return self._owners.claim(output, layout.output, self._records)
        self.astray |= {target.name: self._owners.reason() for target in use.targets.values()}
        return output


def attribute(model: nn.Module, loss: Loss, batch: Sequence[Any], blueprint: Blueprint, owners: Owners) -> Attribution:
    """Follow ``batch``, which is public, through ``model``. An ``owners`` used before knows what models remember."""
    records, parameters = check_leading(batch), trained_parameters(model)
    recorder = _Attributing(parameters, blueprint, owners, records)
    owners.next_pass()
    owners.give(batch)
    with contextlib.ExitStack() as followed:
        for region in blueprint.regions:
            followed.enter_context(region.follow(_claims(region, recorder, owners, records)))
        with undisturbed(model), torch.enable_grad(), owners, recorder:
            losses = check_losses(loss(model, *batch), records)
    if owners.lost is None and (name := _own_backward(losses)) is not None:
        owners.lost = f"{name}, a torch.autograd.Function with a backward pass of its own,"
    if owners.lost is not None or not owners.belongs(losses, Layout(0), records):
        return Attribution(dict.fromkeys(parameters, owners.reason()), recorder.calls_made)
    return Attribution(recorder.astray, recorder.calls_made)


def _claims(region: Region, recorder: _Attributing, owners: Owners, records: int) -> Told:
    """Asks whose the rows are that go into a region and come out of it."""

    def told(inputs: Sequence[tuple[Any, Layout | None]], outputs: Sequence[tuple[Tensor, Layout]]) -> None:
        owned = all(
            not isinstance(leaf, Tensor)
            or (not owners.known(leaf) if place is None else owners.belongs(leaf, place, records))
            for leaf, place in inputs
        ) and all(
            owners.belongs(leaf, place, records) and owners.claim(leaf, place, records) is leaf
            for leaf, place in outputs
        )
        if not owned or not outputs:
            recorder.astray |= dict.fromkeys(region.parameters.values(), owners.reason())

    return told


def _own_backward(losses: Tensor) -> str | None:
    """The name of code of the user's own in the backward pass, of which nothing is known."""
    seen: set[Any] = set()
    waiting = [losses.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return node.name()
        seen.add(node)
        waiting += [below for below, _ in node.next_functions]
    return None
