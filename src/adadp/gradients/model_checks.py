"""Models that cannot be trained privately as they are, refused by name; and compiled ones, which are run as written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
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
COMPILED = "The model is compiled; private gradients are computed by its uncompiled code, with the same parameters."


def plain_model(model: nn.Module) -> nn.Module:
    """``model`` as it was before ``torch.compile`` wrapped it: the same parameters, under their own names."""
    return getattr(model, "_orig_mod", model)


def is_compiled(model: nn.Module) -> bool:
    """Whether ``model`` or a part of it is compiled."""
    return any(hasattr(each, "_orig_mod") or each._compiled_call_impl is not None for each in model.modules())


def uncompiled(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``loss`` run as it is written: what compiled code does with records cannot be followed."""

    def run(*args: Any) -> Tensor:
        if "torch._dynamo" not in sys.modules:  # nobody has compiled anything, and loading the compiler takes seconds
            return loss(*args)
        with torch.compiler.set_stance("force_eager"):
            return loss(*args)

    return run


def check_model(model: nn.Module, *, split: bool = False) -> None:
    """Raise ``InputError`` for a model that would fail later, in words that do not say why. ``split`` by FSDP2 is right
    for an engine that says so.
    """
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


def explain_single_value(error: Exception) -> None:
    """Raise ``InputError`` if ``error`` is torch's for a normalisation over one number."""
    if "Expected more than 1" in str(error):
        raise InputError(
            f"A layer normalises a single number: {error}",
            why="The mean of one number is that number: the layer gives back its bias, whatever the record is.",
            fix="Use fewer groups in GroupNorm, or leave the normalisation out where the picture is 1 x 1.",
        ) from error
