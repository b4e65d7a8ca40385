"""Layers that mix the records of a batch: refused by name, and their usual replacement."""

from __future__ import annotations

import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from adadp import checks
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


def replace_batchnorm(model: nn.Module, *, groups: int = 32) -> nn.Module:
    """``model`` with every batch normalisation replaced by group normalisation, in place; returns it.

    Each has at most ``groups`` groups, a divisor of its number of channels. The scale and shift of the layer replaced
    are kept (the very same parameters), its running statistics are dropped. If ``model`` itself is a batch
    normalisation, the replacement is returned.
    """
    checks.count("groups", groups)
    if isinstance(model, _BatchNorm):
        return _group_norm(model, groups)
    replacements: dict[nn.Module, nn.GroupNorm] = {}
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            if isinstance(child, _BatchNorm):
                if child not in replacements:
                    replacements[child] = _group_norm(child, groups)
                setattr(module, name, replacements[child])
    return model


def _group_norm(old: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = old.num_features
    new = nn.GroupNorm(math.gcd(channels, groups), channels, eps=old.eps, affine=old.affine)
    if old.affine:
        new = new.to(device=old.weight.device, dtype=old.weight.dtype)
        new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)
