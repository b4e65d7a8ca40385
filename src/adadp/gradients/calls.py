"""Reading a torch function call: which rule fits it, which argument is the input and which are its parameters.

Only calls whose rule is exact are listed; any other use of a trained parameter is found by the recorder and goes to the
generic way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adadp.errors import InputError
from adadp.gradients.rules import BroadcastRule, ConvolutionRule, EmbeddingRule, LinearRule, NormalisationRule, Rule
from adadp.gradients.rules.elementwise import group_normalise, layer_normalise, rms_normalise


@dataclass(frozen=True)
class Reading:
    """A call that a rule covers. ``parameters`` are candidates: the recorder keeps those that are trained."""

    rule: Rule
    input: Tensor | None
    parameters: Mapping[str, Tensor]
    batch_first_only: bool = False
    """Whether the rule needs the records in dimension 0 of the tensors as they are."""


def read_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reading | None:
    """How a rule covers this call, or None."""
    reader = _READERS.get(function)
    return None if reader is None else reader(*args, **kwargs)


def _parameters(weight: Tensor | None, bias: Tensor | None) -> dict[str, Tensor]:
    named = {"weight": weight, "bias": bias}
    return {slot: value for slot, value in named.items() if value is not None}


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Reading | None:
    if weight.dim() != 2 or input.dim() < 2:
        return None
    return Reading(LinearRule(), input, _parameters(weight, bias))


def _matmul(input: Tensor, other: Tensor) -> Reading | None:
    if other.dim() != 2 or input.dim() < 2:
        return None
    return Reading(LinearRule(transposed=True), input, {"weight": other})


def _convolution(dimensions: int) -> Callable[..., Reading | None]:
    def read(  # noqa: PLR0917 - the signature is torch's
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: int | str | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
    ) -> Reading | None:
        if input.dim() != dimensions + 2:
            return None
        dilations = _each(dilation, dimensions)
        if padding == "valid":
            padding = 0
        if padding == "same":
            total = [d * (k - 1) for d, k in zip(dilations, weight.shape[2:], strict=True)]
            padding = tuple(side // 2 for side in total)
            if any(side % 2 for side in total):  # the far side is padded by one more
                input = F.pad(input.detach(), [more for side in reversed(total) for more in (0, side % 2)])
        assert not isinstance(padding, str)
        rule = ConvolutionRule(
            tuple(weight.shape), _each(stride, dimensions), _each(padding, dimensions), dilations, groups
        )
        return Reading(rule, input, _parameters(weight, bias), batch_first_only=True)

    return read


def _transposed_convolution(dimensions: int) -> Callable[..., Reading | None]:
    def read(  # noqa: PLR0917 - the signature is torch's
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,  # noqa: ARG001 - seen in the shape of the output
        groups: int = 1,
        dilation: int | tuple[int, ...] = 1,
    ) -> Reading | None:
        if input.dim() != dimensions + 2:
            return None
        rule = ConvolutionRule(
            tuple(weight.shape),
            _each(stride, dimensions),
            _each(padding, dimensions),
            _each(dilation, dimensions),
            groups,
            transposed=True,
        )
        return Reading(rule, input, _parameters(weight, bias), batch_first_only=True)

    return read


def _embedding(  # noqa: PLR0917 - the signature is torch's
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001
    scale_grad_by_freq: bool = False,
    sparse: bool = False,  # noqa: ARG001
) -> Reading | None:
    if max_norm is not None:
        raise InputError(
            "An embedding with max_norm cannot be trained privately.",
            why="It rewrites the rows that were looked up during the forward pass: which rows change shows which words "
            "the records hold, without any noise.",
            fix="Leave max_norm out; per-example clipping bounds the update.",
        )
    if scale_grad_by_freq:
        raise InputError(
            "An embedding with scale_grad_by_freq cannot be trained privately.",
            why="It divides by how often an index occurs in the batch, so one record changes the gradients of others.",
            fix="Set scale_grad_by_freq=False.",
        )
    padding = padding_idx if padding_idx is None or padding_idx >= 0 else weight.shape[0] + padding_idx
    return Reading(EmbeddingRule(weight.shape[0], padding), input, {"weight": weight})


def _layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Reading:
    shape = tuple(normalized_shape)
    return Reading(NormalisationRule(layer_normalise(shape, eps), shape), input, _parameters(weight, bias))


def _rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Reading:
    shape = tuple(normalized_shape)
    return Reading(NormalisationRule(rms_normalise(shape, eps), shape), input, _parameters(weight, None))


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Reading:
    rule = NormalisationRule(group_normalise(num_groups, eps), None)
    return Reading(rule, input, _parameters(weight, bias), batch_first_only=True)


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
    rule = NormalisationRule(group_normalise(input.shape[1], eps), None)
    return Reading(rule, input, _parameters(weight, bias), batch_first_only=True)


def _add(input: Any, other: Any, *, alpha: float = 1) -> Reading | None:
    return _broadcast(input, other, multiplied=False, alpha=alpha)


def _mul(input: Any, other: Any) -> Reading | None:
    return _broadcast(input, other, multiplied=True, alpha=1)


def _broadcast(first: Any, second: Any, *, multiplied: bool, alpha: float) -> Reading | None:
    """One side must be a parameter of no more dimensions than the other; only one may be trained."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return None
    if isinstance(second, torch.nn.Parameter) and first.dim() >= second.dim():
        activation, parameter, factor = first, second, alpha
    elif isinstance(first, torch.nn.Parameter) and second.dim() >= first.dim():
        activation, parameter, factor = second, first, 1.0
    else:
        return None
    rule = BroadcastRule(tuple(parameter.shape), multiplied, float(factor))
    return Reading(rule, activation if multiplied else None, {"weight": parameter}, batch_first_only=True)


def _expand(input: Tensor, *_: Any) -> Reading:
    return Reading(BroadcastRule(tuple(input.shape), False), None, {"weight": input}, batch_first_only=True)


def _repeat(input: Tensor, *sizes: Any) -> Reading | None:
    """Once for every record, and no more: then it is an expansion."""
    times = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    once = len(times) == input.dim() > 0 and input.shape[0] == 1 and all(each == 1 for each in times[1:])
    return _expand(input) if once else None


def _each(value: int | tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dimensions
    return tuple(value) * dimensions if len(value) == 1 else tuple(value)


_READERS: dict[Callable[..., Any], Callable[..., Reading | None]] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    Tensor.matmul: _matmul,
    F.conv1d: _convolution(1),
    F.conv2d: _convolution(2),
    F.conv3d: _convolution(3),
    F.conv_transpose1d: _transposed_convolution(1),
    F.conv_transpose2d: _transposed_convolution(2),
    F.conv_transpose3d: _transposed_convolution(3),
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    torch.add: _add,
    Tensor.add: _add,
    Tensor.add_: _add,
    Tensor.__iadd__: _add,
    torch.mul: _mul,
    Tensor.mul: _mul,
    Tensor.expand: _expand,
    Tensor.repeat: _repeat,
}
