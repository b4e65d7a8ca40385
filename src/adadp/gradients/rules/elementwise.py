"""Layers whose per-example gradient is no larger than the layer's output: it is simply computed, once.

Normalisation layers (scale and shift after a normalisation that looks at one record only), and a bare parameter added
to or multiplied with an activation, or repeated for every record (position tables, class tokens, layer scales).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from adadp.gradients.rules.base import Pair, Rule, Sums


class ReducedRule(Rule):
    """Per-example gradients are sums over positions of a product of activations."""

    def working_size(self, pair: Pair) -> int:
        return pair.output_grad[:1].numel()


@dataclass(frozen=True)
class NormalisationRule(ReducedRule):
    """``y = normalise(x) * weight + bias`` with parameters over the trailing ``shape``, or over the channels.

    ``normalise`` looks at one record at a time (layer, RMS, group and instance normalisation).
    """

    normalise: Callable[[Tensor], Tensor]
    shape: tuple[int, ...] | None
    """Shape of the parameters over the trailing dimensions; None: one number per channel, dimension 1."""

    def per_example(self, pair: Pair) -> Sums:
        d = pair.output_grad
        grads = {}
        if "weight" in pair.slots:
            assert pair.input is not None
            grads["weight"] = self._reduce(d * self.normalise(pair.input))
        if "bias" in pair.slots:
            grads["bias"] = self._reduce(d)
        return grads

    def _reduce(self, values: Tensor) -> Tensor:
        if self.shape is None:
            return values.flatten(2).sum(2) if values.dim() > 2 else values
        positions = values.dim() - 1 - len(self.shape)
        return values.flatten(1, positions).sum(1) if positions else values


@dataclass(frozen=True)
class BroadcastRule(ReducedRule):
    """``x + p``, ``x * p`` and ``p.expand(...)``: the output gradient (times x), summed to the shape of p.

    ``factor`` is the constant ``alpha`` of an addition.
    """

    shape: tuple[int, ...]
    multiplied: bool
    factor: float = 1.0

    def per_example(self, pair: Pair) -> Sums:
        d = pair.output_grad
        if self.multiplied:
            assert pair.input is not None
            d = d * pair.input
        elif self.factor != 1:
            d = d * self.factor
        # Dimensions of a record, without the batch; a parameter with a leading 1 for the batch keeps it.
        own = self.shape[1:] if len(self.shape) == d.dim() else self.shape
        missing = d.dim() - 1 - len(own)
        if missing:
            d = d.flatten(1, missing).sum(1)
        for dim, size in enumerate(own, start=1):
            if size == 1 and d.shape[dim] != 1:
                d = d.sum(dim, keepdim=True)
        return {"weight": d.reshape(d.shape[0], *self.shape)}


def layer_normalise(shape: tuple[int, ...], eps: float) -> Callable[[Tensor], Tensor]:
    """Normalisation over the trailing ``shape``."""
    return lambda x: F.layer_norm(x, shape, eps=eps)


def rms_normalise(shape: tuple[int, ...], eps: float | None) -> Callable[[Tensor], Tensor]:
    """Division by the root mean square over the trailing ``shape``."""
    return lambda x: F.rms_norm(x, shape, eps=eps)


def group_normalise(groups: int, eps: float) -> Callable[[Tensor], Tensor]:
    """Normalisation over groups of channels; with as many groups as channels, instance normalisation."""
    return lambda x: F.group_norm(x, groups, eps=eps)
