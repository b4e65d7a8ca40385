"""Layers that mix the records of a batch, refused by name."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from adadp.errors import InputError


def refuse_batch_statistics(model: nn.Module) -> None:
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
