"""One batch forward and back: uses recorded, output gradients asked for, pairs put together parameter by parameter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from adadp.errors import InputError
from adadp.gradients.capture import Capture, Piece, exactly, wide
from adadp.gradients.inspection import Blueprint, check_losses, whole_loss_call
from adadp.gradients.made_up import Loss, check_leading
from adadp.gradients.recorder import Recorder, Target, Use
from adadp.gradients.regions import Call, CallCollector, LossModule, autocast_dtype
from adadp.gradients.rules import LinearRule, Pair, Rule


def run_batch(
    parameters: Mapping[str, nn.Parameter], model: nn.Module, loss: Loss, batch: Sequence[Any], blueprint: Blueprint
) -> Capture:
    """One forward pass, one backward pass over activations, and what they leave for the clip rule.

    No record at all is a batch like any other: every sum is zero, and the model, which may not take it, is not run.
    """
    records = check_leading(batch)
    if records == 0:
        return Capture(parameters, [], {}, 0)
    recorder = Recorder(parameters, skip=blueprint.generic)
    collectors = [CallCollector() for _ in blueprint.regions]
    inner = [
        (region.module, collector)
        for region, collector in zip(blueprint.regions, collectors, strict=True)
        if not isinstance(region.module, LossModule)
    ]
    handles = [module.register_forward_hook(collector, with_kwargs=True) for module, collector in inner]
    try:
        with torch.enable_grad(), recorder:
            losses = check_losses(loss(model, *batch), records)
    finally:
        for handle in handles:
            handle.remove()
    if recorder.others:
        unseen = recorder.others[0]
        raise InputError(
            f"{unseen.function} used {', '.join(unseen.names)}, which the model did not do when it was inspected.",
            why="How to get a record's gradient from a use is settled, and proved, ahead.",
            fix="Write the model so that its path does not depend on its input, or is taken by made-up records too.",
        )
    edges = [use.edge for use in recorder.uses]
    edges += [edge for collector in collectors for call in collector.calls for edge in call.edges if edge is not None]
    grads: Sequence[Tensor | None] = ()
    if edges:
        grads = torch.autograd.grad(losses.sum(), edges, allow_unused=True)
    autocast = autocast_dtype([losses])
    with exactly(losses.device):
        pieces = _pieces(recorder.uses, grads, blueprint, records)
        rest = iter(grads[len(recorder.uses) :])
        given: dict[str, Tensor] = {}
        for region, collector in zip(blueprint.regions, collectors, strict=True):
            if isinstance(region.module, LossModule):
                call, layout = whole_loss_call(batch, losses.detach(), autocast)
                one = replace(region, layouts=(layout,))
                given |= one.per_example([call], [[torch.ones_like(losses)]], records)
            else:
                given |= region.per_example(collector.calls, _output_grads(collector.calls, rest), records)
        given = {name: value.to(wide(value.dtype)) for name, value in given.items()}
        return Capture(parameters, pieces, given, records)


def _output_grads(calls: Sequence[Call], grads: Iterator[Tensor | None]) -> list[list[Tensor | None]]:
    return [[None if edge is None else next(grads) for edge in call.edges] for call in calls]


def _pair(use: Use, grad: Tensor, blueprint: Blueprint, records: int) -> Pair:
    layout = blueprint.layouts.get(use.key)
    value = use.checked_input()
    if (
        layout is None
        or not layout.output.fits(grad.shape, records)
        or (value is not None and layout.input is not None and not layout.input.fits(value.shape, records))
    ):
        raise InputError(
            f"The layer that holds {use.key[0]!r} has an output of {grad.dim()} dimensions whose shape does not follow "
            "from what was seen when the model was inspected.",
            why="Where the records are in it is not known.",
            fix="Call every layer the same number of times, with the records in the same place, for every batch.",
        )
    needed = value if "weight" in use.targets else None
    return Pair(
        None
        if needed is None or layout.input is None
        else _widened(layout.input.records_first(needed.detach(), records)),
        _widened(layout.output.records_first(grad, records)),
        tuple(use.targets),
    )


def _widened(value: Tensor) -> Tensor:
    return value if not value.is_floating_point() else value.to(wide(value.dtype))


def _pieces(uses: Sequence[Use], grads: Sequence[Tensor | None], blueprint: Blueprint, records: int) -> list[Piece]:
    """Pairs with the records first, one piece per set of parameters; several uses of one parameter stay together."""
    by_target: defaultdict[Target, list[tuple[Rule, Pair, str]]] = defaultdict(list)
    singles: list[tuple[Rule, Pair, Mapping[str, Target]]] = []
    uses_of: defaultdict[Target, int] = defaultdict(int)
    for use in uses:
        for target in use.targets.values():
            uses_of[target] += 1
    for use, grad in zip(uses, grads, strict=False):
        if grad is None:  # the loss does not depend on this use
            continue
        pair = _pair(use, grad, blueprint, records)
        alone = tuple(slot for slot in pair.slots if uses_of[use.targets[slot]] == 1)
        if alone:
            singles.append((use.rule, pair.only(alone), {slot: use.targets[slot] for slot in alone}))
        for slot in pair.slots:
            if slot not in alone:
                by_target[use.targets[slot]].append((use.rule, pair.only((slot,)), slot))
    pieces = [Piece(((rule, pair),), targets) for rule, pair, targets in singles]
    for target, several in by_target.items():
        slots = {slot for _, _, slot in several}
        slot = next(iter(slots))
        if len(slots) > 1:
            raise InputError(
                f"{target.name} is used as a weight in one place and as a bias in another.",
                fix="Give the two places parameters of their own.",
            )
        pieces.append(Piece(_joined([(rule, pair) for rule, pair, _ in several]), {slot: target}))
    return pieces


def _joined(uses: list[tuple[Rule, Pair]]) -> tuple[tuple[Rule, Pair], ...]:
    """A linear layer called several times is one linear layer over all positions: its closed forms hold again."""
    rule = uses[0][0]
    if not isinstance(rule, LinearRule) or any(other != rule for other, _ in uses):
        return tuple(uses)
    grads = torch.cat([_with_positions(pair.output_grad) for _, pair in uses], dim=1)
    inputs = [pair.input for _, pair in uses]
    first = inputs[0]
    joined = None if first is None else torch.cat([_with_positions(each) for each in inputs if each is not None], dim=1)
    return ((rule, Pair(joined, grads, uses[0][1].slots)),)


def _with_positions(rows: Tensor) -> Tensor:
    return rows.unsqueeze(1) if rows.dim() == 2 else rows.flatten(1, -2)
