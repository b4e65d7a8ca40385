"""Compiled models, which are run as written, and words for what torch says of a single number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from adadp.errors import InputError

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


def explain_single_value(error: Exception) -> None:
    """Raise ``InputError`` if ``error`` is torch's for a normalisation over one number."""
    if "Expected more than 1" in str(error):
        raise InputError(
            f"A layer normalises a single number: {error}",
            why="The mean of one number is that number: the layer gives back its bias, whatever the record is.",
            fix="Use fewer groups in GroupNorm, or leave the normalisation out where the picture is 1 x 1.",
        ) from error
