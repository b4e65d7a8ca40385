"""Normalisation layers: scale and shift after a normalisation that looks at one record only.

The per-example gradient is no larger than the output of the layer: it is simply computed, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from adadp.gradients.readers import Reader, Reading
from adadp.gradients.rule import Pair, Rule, Sums


@dataclass(frozen=True)
class NormalisationRule(Rule):
    """``y = normalise(x) * weight + bias`` with parameters over the trailing ``shape``, or over the channels.

    ``normalise`` looks at one record at a time (layer, RMS, group and instance normalisation).
    """

    normalise: Callable[[Tensor], Tensor]
    shape: tuple[int, ...] | None
    """Shape of the parameters over the trailing dimensions; None: one number per channel, dimension 1."""

    def working_size(self, pair: Pair) -> int:
        return pair.output_grad[:1].numel()

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


def _layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Reading:
    shape = tuple(normalized_shape)
    return Reading(
        NormalisationRule(lambda x: F.layer_norm(x, shape, eps=eps), shape), input, {"weight": weight, "bias": bias}
    )


def _rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Reading:
    shape = tuple(normalized_shape)
    return Reading(NormalisationRule(lambda x: F.rms_norm(x, shape, eps=eps), shape), input, {"weight": weight})


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Reading:
    rule = NormalisationRule(lambda x: F.group_norm(x, num_groups, eps=eps), None)
    return Reading(rule, input, {"weight": weight, "bias": bias}, batch_first_only=True)


def _instance_norm(  # noqa: PLR0917 - the signature is torch's
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Reading | None:
    if not use_input_stats or running_mean is not None or running_var is not None:
        return None
    rule = NormalisationRule(lambda x: F.group_norm(x, x.shape[1], eps=eps), None)
    return Reading(rule, input, {"weight": weight, "bias": bias}, batch_first_only=True)


READERS: dict[Callable[..., Any], Reader] = {
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
}
