"""Looking a model over on probe records before it sees a real one.

Two forward passes, on two and on three random records, show where every layer keeps the records, which parameters no
rule covers and how much memory a record needs. A model that writes what it saw into a buffer is refused here, before
any budget is spent. Nothing in this file sees data: only shapes and dtypes of a batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from adadp.errors import InputError
from adadp.gradients.layout import Layout, find_layout
from adadp.gradients.probe_records import Loss, ProbeRecords, same, undisturbed
from adadp.gradients.readers import installed_rules
from adadp.gradients.recorder import Key, OtherUse, Recorder, Use
from adadp.gradients.regions import Region, WholeLoss
from adadp.gradients.rule import Pair
from adadp.sharding import GATHERED, own_part

_NUMBER = 4
"""Bytes of the float32 numbers that gradients are kept in."""


@dataclass(frozen=True)
class UseLayout:
    """Where the records are in the input and in the output of a use."""

    input: Layout | None
    output: Layout


@dataclass(frozen=True)
class Blueprint:
    """How each trained parameter of a model gets its per-example gradients."""

    layouts: Mapping[Key, UseLayout]
    regions: tuple[Region, ...]
    bytes_per_record: int
    scale_shapes: Mapping[str, tuple[int, ...]]
    """The shape of the scales of every trained parameter: a number per input of its layer, or one for all."""
    alone: WholeLoss
    """All parameters, record by record: for a batch that makes other calls than those that were followed."""
    calls_made: frozenset[int] = frozenset()
    """The sequences of calls for which every captured row is its record's."""
    derived: Mapping[Key, frozenset[str]] = field(default_factory=dict)
    """The calls that make one tensor for all records of trained parameters, with the names of these."""
    random: bool = False
    """Whether the model draws random numbers."""
    rounding: float = 0.0
    """What rounding a gradient of a batch and of a record alone may differ by, over its length."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user is told about the regions."""
        return tuple(region.note for region in self.regions)

    @property
    def generic(self) -> frozenset[str]:
        """Names of the parameters that go the generic way."""
        return frozenset(name for region in self.regions for name in region.parameters.values())

    @property
    def all_alone(self) -> WholeLoss | None:
        """The whole loss, if nothing is taken from a batch as a whole: every gradient is that of one record's loss."""
        first = self.regions[0] if len(self.regions) == 1 else None
        everything = self.generic == frozenset(self.alone.parameters.values())
        return first if everything and isinstance(first, WholeLoss) else None


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, each once, under their first name, as the layers use them."""
    return {name: getattr(value, GATHERED, value) for name, value in model.named_parameters() if value.requires_grad}


def inspect(model: nn.Module, loss: Loss, *, probes: ProbeRecords, demoted: Mapping[str, str]) -> Blueprint:
    """The blueprint of ``model``; parameters in ``demoted`` (name to reason) are sent to the whole-loss region."""
    parameters = trained_parameters(model)
    derived: dict[Key, frozenset[str]] = {}
    found: dict[Key, frozenset[str]] | None = None
    while found is None or found:  # what is made of a parameter may be made into something else
        derived |= found or {}
        with probes.parameters(model):
            (two, few_bytes), (three, bytes_held) = (
                _trace(model, loss, probes.batch(count), count, derived) for count in (2, 3)
            )
        found = _shared(two, three)
    layouts = _use_layouts(two.uses, three.uses)
    generic: defaultdict[str, list[str]] = defaultdict(list)  # name -> what used it
    for other in three.others:
        for name in other.names:
            generic[name].append(other.function)
    for use in three.uses:
        if use.key not in layouts:
            for target in use.targets.values():
                generic[target.name].append(type(use.rule).__name__)
    for name, reason in demoted.items():
        generic[name] = [reason]
    regions = _regions(model, loss, probes, generic, demoted)
    instances = sum(_instance_size(use, layouts[use.key], parameters) for use in three.uses if use.key in layouts)
    by_function = sum(parameters[name].numel() for region in regions for name in region.parameters.values())
    # Activations and their gradients, and as much again for what comes and goes; torch.func needs several copies.
    size = 2 * max(1, bytes_held - few_bytes) + _NUMBER * (instances + 4 * by_function)
    scale_shapes = _scale_shapes(three.uses, generic, parameters)
    alone = replace(_whole(model, loss, parameters), vectorised=False)
    return Blueprint(layouts, regions, size, scale_shapes, alone, derived=derived)


def _shared(two: Recorder, three: Recorder) -> dict[Key, frozenset[str]]:
    """Calls that give back one tensor for all records: it has the same shape for two of them and for three."""
    few, more = (list[Use | OtherUse]([*trace.others, *trace.uses]) for trace in (two, three))
    shapes = {call.key: call.output_shape for call in few}
    shared = [call for call in more if call.output_shape is not None and call.output_shape == shapes.get(call.key)]
    return {call.key: frozenset().union(*(each.names for each in shared if each.key == call.key)) for call in shared}


def _whole(model: nn.Module, loss: Loss, names: Iterable[str]) -> WholeLoss:
    return WholeLoss("the loss", {f"model.{name}": name for name in names}, model, loss)


def _regions(
    model: nn.Module, loss: Loss, probes: ProbeRecords, generic: Mapping[str, list[str]], demoted: Container[str]
) -> tuple[Region, ...]:
    """Where the parameters in ``generic`` (name to what used it) go, in their order."""
    found: list[Region] = []
    left = [name for name in generic if name not in demoted]
    for find in installed_rules()[1]:
        found += find(model, loss, probes, left) if left else ()
        left = [name for name in left if not any(name in region.parameters.values() for region in found)]
    rest = [name for name in generic if name in demoted or name in left]
    if rest:
        found.append(_whole(model, loss, rest))
    order = list(generic)
    found.sort(key=lambda region: min(order.index(name) for name in region.parameters.values()))
    reasons = [sorted({", ".join(dict.fromkeys(generic[name])) for name in each.parameters.values()}) for each in found]
    return tuple(replace(region, why=", ".join(why)) for region, why in zip(found, reasons, strict=True))


def _scale_shapes(
    uses: Sequence[Use], generic: Container[str], parameters: Mapping[str, nn.Parameter]
) -> dict[str, tuple[int, ...]]:
    """As the rule of its uses says. Where they disagree or there is no rule, one number for the whole parameter."""
    found: defaultdict[str, set[tuple[int, ...]]] = defaultdict(set)
    for use in uses:
        for slot, target in use.targets.items():
            if target.name not in generic:
                found[target.name].add(use.rule.scale_shape(slot, tuple(parameters[target.name].shape)))
    return {
        name: found[name].pop() if len(found[name]) == 1 else (1,) * value.dim() for name, value in parameters.items()
    }


def _instance_size(use: Use, layout: UseLayout, parameters: Mapping[str, nn.Parameter]) -> int:
    """Numbers per record in the per-example gradients that a use's rule makes; 0 for a closed form."""
    value = None if use.input is None or layout.input is None else layout.input.records_first(use.input.detach(), 3)
    grad = layout.output.records_first(torch.empty(()).expand(use.output_shape), 3)
    if not use.rule.instantiates(Pair(value, grad, tuple(use.targets))):
        return 0
    return sum(target.of(parameters[target.name]).numel() for target in use.targets.values())


def _trace(
    model: nn.Module, loss: Loss, batch: Sequence[Any], records: int, derived: Container[Key]
) -> tuple[Recorder, int]:
    """What one forward pass on probe records showed, and the bytes autograd keeps of it for the backward pass."""
    recorder = Recorder(trained_parameters(model), derived=derived)
    saved: dict[int, int] = {}  # bytes by storage

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return value

    before = {name: value.detach().clone() for name, value in _state(model).items()}
    with undisturbed(model), torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        with torch.enable_grad(), recorder:
            losses = loss(model, *batch)
        after = _state(model)
        changed = [name for name in after if name not in before or not same(after[name], before[name])]
    if changed:
        raise InputError(
            f"The forward pass writes to {', '.join(changed)}.",
            why="What a model remembers of the records it saw would be published without noise.",
            fix="Switch that bookkeeping off while training privately.",
        )
    check_losses(losses, records)
    return recorder, sum(saved.values()) + sum(use.output_shape.numel() * _NUMBER for use in recorder.uses)


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: own_part(value) for name, value in (*model.named_parameters(), *model.named_buffers())}


def check_losses(losses: object, records: int) -> Tensor:
    """``losses`` if it is one differentiable number per record."""
    found = one_per_record(losses, records)
    if not found.requires_grad:
        raise InputError(
            "The loss does not depend on any trained parameter.", fix="Check requires_grad, torch.no_grad and detach."
        )
    return found


def one_per_record(losses: object, records: int) -> Tensor:
    """``losses`` if it is one number per record."""
    if not isinstance(losses, Tensor) or losses.shape != (records,):
        got = type(losses).__name__
        if isinstance(losses, Tensor):  # without its sizes: that of a batch is sensitive
            got = f"{losses.dim()} dimensions" if losses.dim() != 1 else "another length"
        raise InputError(
            f"The loss must be one number per record, a tensor of 1 dimension, got {got}.",
            why="Each record's gradient is clipped on its own; a mean over the batch has already mixed them.",
            fix="Return per-example losses, for example F.cross_entropy(output, target, reduction='none').",
        )
    return losses


def _use_layouts(two: Sequence[Use], three: Sequence[Use]) -> dict[Key, UseLayout]:
    """The uses whose tensors hold the records one by one, as far as two and three records agree on them."""
    pairs = {use.key: use for use in two}
    layouts = {}
    for use in three:
        other = pairs.get(use.key)
        if other is None or type(other.rule) is not type(use.rule):
            continue
        output, given = find_layout(other.output_shape, use.output_shape), None
        if use.input is not None and other.input is not None:
            given = find_layout(other.input.shape, use.input.shape)
            if given is None:
                continue
        if output is not None and _usable(use, given, output):
            layouts[use.key] = UseLayout(given, output)
    return layouts


def _usable(use: Use, given: Layout | None, output: Layout) -> bool:
    if use.batch_first_only:
        several = output.dim == 0 and use.rule.several_per_record
        return (several or output == Layout(0)) and given in (None, output)
    last = len(use.output_shape) - 1
    return output.dim < max(1, last) and (given is None or given.per_record == output.per_record)
