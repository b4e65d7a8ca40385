"""Group normalisation in the place of batch normalisation, which private training refuses."""

from __future__ import annotations

import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from adadp import checks


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
