"""One batch forward and back: uses recorded, output gradients asked for, pairs put together parameter by parameter."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from adadp.gradients.capture import Capture, Piece, accumulation_dtype, full_precision, given
from adadp.gradients.derived import Target
from adadp.gradients.inspection import Blueprint, check_losses
from adadp.gradients.probe_records import Loss, ProbeRecords, check_leading
from adadp.gradients.recorder import Recorder, Use
from adadp.gradients.regions import UnseenPath, WholeLoss, autocast_dtype
from adadp.gradients.rule import Pair, Rule

Passed = tuple[Sequence[Use], Sequence[Tensor | None]]
"""The uses of parameters in a batch with their inputs, and the gradients at their outputs. Sensitive."""


class Passes(Protocol):
    """Makes the passes of a batch as ``run_batch`` does, only faster; ``note`` says how."""

    note: str

    def __call__(self, batch: Sequence[Any]) -> Passed | None:
        """One pass; None for a batch that is to be run as written."""


MakePasses = Callable[[nn.Module, Loss, Blueprint, ProbeRecords], Passes]


def run_batch(
    parameters: Mapping[str, nn.Parameter], model: nn.Module, loss: Loss, batch: Sequence[Any], blueprint: Blueprint
) -> Capture:
    """One forward pass, one backward pass over activations, and what they leave for the clip rule.

    No record at all is a batch like any other: every sum is zero, and the model, which may not take it, is not run.
    ``UnseenPath`` if the model did what it did not do when it was looked over: then nothing is taken from the batch.
    """
    records = check_leading(batch)
    if records == 0:
        return Capture(parameters, [], 0)
    if (whole := blueprint.all_alone) is not None:
        return run_alone(parameters, batch, whole)
    recorder = Recorder(parameters, skip=blueprint.generic, derived=blueprint.derived)
    with contextlib.ExitStack() as watched:
        watches = [watched.enter_context(region.watch()) for region in blueprint.regions]
        with torch.enable_grad(), recorder:
            losses = check_losses(loss(model, *batch), records)
    asked = [watch.edges() for watch in watches]
    for use in recorder.uses:
        use.checked_input()
    if recorder.others or recorder.calls_made not in blueprint.calls_made:
        raise UnseenPath
    edges = [*(use.edge for use in recorder.uses), *itertools.chain(*asked)]
    grads = torch.autograd.grad(losses.sum(), edges, allow_unused=True) if edges else ()
    autocast = autocast_dtype(losses.device)
    with full_precision(losses.device):
        pieces = _pieces(recorder.uses, grads, blueprint, records)
        rest = iter(grads[len(recorder.uses) :])
        for watch, places in zip(watches, asked, strict=True):
            pieces += given(watch.gradients(list(itertools.islice(rest, len(places))), batch, autocast))
        return Capture(parameters, pieces, records)


def capture_of(
    parameters: Mapping[str, nn.Parameter], passed: Passed, batch: Sequence[Any], blueprint: Blueprint
) -> Capture:
    """The same from the uses of a pass that was made elsewhere and the gradients at their outputs."""
    records = check_leading(batch)
    with full_precision(next(iter(parameters.values())).device):
        return Capture(parameters, _pieces(*passed, blueprint, records), records)


def run_alone(parameters: Mapping[str, nn.Parameter], batch: Sequence[Any], whole: WholeLoss) -> Capture:
    """Every record's gradient of the whole loss: right whatever the model does with a batch."""
    device = next(iter(parameters.values())).device
    with torch.no_grad():
        gradients = whole.gradients((), batch, autocast_dtype(device))
    return Capture(parameters, given(gradients), check_leading(batch))


def _pair(use: Use, grad: Tensor, blueprint: Blueprint, records: int) -> Pair:
    layout, value = blueprint.layouts.get(use.key), use.checked_input()
    if layout is None or not layout.output.fits(grad.shape, records):
        raise UnseenPath
    given = None
    if value is not None and layout.input is not None:
        if not layout.input.fits(value.shape, records):
            raise UnseenPath
        if "weight" in use.targets:
            given = _widened(layout.input.records_first(value.detach(), records))
    return Pair(given, _widened(layout.output.records_first(grad, records)), tuple(use.targets))


def _widened(value: Tensor) -> Tensor:
    return value.to(accumulation_dtype(value.dtype)) if value.is_floating_point() else value


def _pieces(uses: Sequence[Use], grads: Sequence[Tensor | None], blueprint: Blueprint, records: int) -> list[Piece]:
    """Pairs with the records first, one piece per set of parameters; several uses of one parameter stay together."""
    uses_of = Counter(target for use in uses for target in use.targets.values())
    alike = Counter(tuple(use.targets.items()) for use in uses)
    together: defaultdict[tuple[tuple[str, Target], ...], list[tuple[Rule, Pair]]] = defaultdict(list)
    apart: defaultdict[Target, list[tuple[Rule, Pair]]] = defaultdict(list)
    for use, grad in zip(uses, grads, strict=False):
        if grad is None:  # the loss does not depend on this use
            continue
        pair, targets = _pair(use, grad, blueprint, records), tuple(use.targets.items())
        if all(uses_of[target] == alike[targets] for _, target in targets):
            together[targets].append((use.rule, pair))
        else:
            for slot, target in targets:
                apart[target].append((use.rule, pair.only((slot,))))
    pieces: list[Piece] = []
    for targets, several in together.items():
        if len(joined := _joined(several)) == 1:
            pieces += _pieces_of(*joined[0], dict(targets))
        else:
            for slot, target in targets:
                apart[target] += [(rule, pair.only((slot,))) for rule, pair in several]
    for target, several in apart.items():
        pieces.append(Piece(_joined(several), {several[0][1].slots[0]: target}))
    return pieces


def _pieces_of(rule: Rule, pair: Pair, targets: Mapping[str, Target]) -> list[Piece]:
    """One use as a piece, or as two: parameters whose per-example gradients are made, and others with a closed form."""
    made = {slot: rule.instantiates(pair.only((slot,))) for slot in pair.slots}
    parts = [tuple(slot for slot in pair.slots if made[slot] is each) for each in (True, False)]
    return [Piece(((rule, pair.only(part)),), {slot: targets[slot] for slot in part}) for part in parts if part]


def _joined(uses: list[tuple[Rule, Pair]]) -> tuple[tuple[Rule, Pair], ...]:
    """Several uses of the same parameters as one, where a rule of theirs knows how."""
    found = uses[0] if len(uses) == 1 else next(filter(None, (rule.joined(uses) for rule, _ in uses)), None)
    return tuple(uses) if found is None else (found,)
