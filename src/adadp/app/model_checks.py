"""Models that cannot be trained privately as they are, refused by name.

Each of them would be refused later: a layer that mixes records, or remembers them, by the proof of the engine; anything
else because it cannot be computed or released. The words here say which part it is and what to put in its place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from adadp.errors import InputError
from adadp.sharding import is_split

_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
_SPLIT = "is split over processes (DTensor)"
_PARAMETERS: dict[str, tuple[Callable[[Tensor], bool], str]] = {
    "is not initialised": (is_lazy, "Run the model once on a public batch, so that its lazy layers get their shapes."),
    _SPLIT: (is_split, "Call torch.distributed.fsdp.fully_shard on the whole model last, or pass the plain module."),
    "is on the meta device and has no values": (
        lambda value: value.is_meta, "Call model.to_empty(device='cpu') and initialise it, or load its weights."
    ),
    "is complex": (torch.is_complex, "Keep the real and the imaginary part as two parameters: torch.view_as_complex."),
}  # fmt: skip
"""What a parameter must not be, and what to do about it."""


def check_model(model: nn.Module, *, split: bool = False) -> None:
    """Raise ``InputError`` for a model that would fail later, in words that do not say why. ``split`` by FSDP2 is right
    for an engine that says so.
    """
    _refuse_batch_statistics(model)
    wrong = set(_WRAPPERS) - ({"FSDPModule"} if split else set())
    for name, module in model.named_modules():
        if wrappers := {base.__name__ for base in type(module).__mro__}.intersection(wrong):
            raise InputError(
                f"{name or 'The model'} is wrapped in {wrappers.pop()}.",
                why="It would average gradients over processes or devices, before or after noise is added to them.",
                fix="Pass the plain module (model.module): of several processes, sums are added here (docs/scale.md).",
            )
    for name, value in model.named_parameters():
        for what, (holds, fix) in _PARAMETERS.items():
            if holds(value) and not (split and what == _SPLIT):
                raise InputError(
                    f"The parameter {name} {what}.",
                    why="A private step needs its gradient in real numbers, whole and in one place.",
                    fix=fix,
                )
    if len(devices := {str(value.device) for value in model.parameters()}) > 1:
        raise InputError(
            f"The parameters are on several devices: {', '.join(sorted(devices))}.",
            why="Records are put on one device, and their gradients are summed there.",
            fix="Move the whole model to one device: model.to(device).",
        )


def _refuse_batch_statistics(model: nn.Module) -> None:
    """Raise ``InputError`` for layers whose output or state depends on the other records of the batch."""
    mixing = [
        name or "the model itself"
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
    ]
    if mixing:
        raise InputError(
            f"The model has batch normalisation: {', '.join(mixing)}.",
            why="It computes statistics over the records of a batch, so one record changes the gradients of all others "
            "and no clipping bounds its influence.",
            fix="Use adadp.replace_batchnorm(model), which puts group normalisation in its place.",
        )
    tracking = [
        name or "the model itself"
        for name, module in model.named_modules()
        if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training
    ]
    if tracking:
        raise InputError(
            f"The model has instance normalisation with running statistics: {', '.join(tracking)}.",
            why="The running mean and variance are computed from the records and would be published without noise.",
            fix="Use track_running_stats=False.",
        )
