"""Convolutions and transposed convolutions of one to three dimensions, through their patches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adadp.app.gradient_rules.linear import gram_square_norm
from adadp.gradients.readers import Reader, Reading
from adadp.gradients.rule import (
    Pair,
    Rule,
    Scales,
    Sums,
    instances,
    norms_of,
    scale_rows,
    scaled,
    slices,
    square_norm,
    weigh,
)

_ONE_BY_ONE = 1 << 21
"""Multiplications of one record's gradient from which on torch's own kernel is called for each record: the call then
costs less than cutting patches (measured: 26 ms instead of 46 for 120 records and a 5x5 convolution of 64 channels)."""


@dataclass(frozen=True)
class ConvolutionRule(Rule):
    """``conv1d/2d/3d``, or with ``transposed`` ``conv_transpose1d/2d/3d``; any stride, padding, dilation and groups.

    The gradient of one record is a matrix product over positions: patches of the input times the output gradient. For a
    transposed convolution the two change places, because it is the gradient of a convolution with respect to its input.
    On a processor, large ones are made by torch's kernel, record by record, which cuts no patches.
    """

    weight_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False

    def working_size(self, pair: Pair) -> int:
        if "weight" not in pair.slots:
            return pair.output_grad.shape[1]
        if self._one_by_one(pair):
            return math.prod(self.weight_shape)
        return math.prod(self.weight_shape[1:]) * (self.weight_shape[0] + self.groups * self._positions(pair))

    def instantiates(self, pair: Pair) -> bool:
        """By multiplications per record and group: two Gram matrices over the positions, or the product itself."""
        if "weight" not in pair.slots:
            return True
        positions = self._positions(pair)
        patch, channels = math.prod(self.weight_shape[1:]), self.weight_shape[0] // self.groups
        return positions * (patch + channels) >= patch * channels

    def per_example(self, pair: Pair) -> Sums:
        grads = {}
        if "weight" in pair.slots:
            if self._one_by_one(pair):
                grads["weight"] = pair.output_grad.new_empty(pair.records, *self.weight_shape)
                for record, made in enumerate(grads["weight"]):
                    made.copy_(self._whole(pair.rows(record, record + 1)))
            else:
                patches, points = self._matrices(pair)
                product = torch.matmul(points, patches.mT)
                grads["weight"] = product.view(pair.records, *self.weight_shape)
        if "bias" in pair.slots:
            grads["bias"] = pair.output_grad.flatten(2).sum(2)
        return grads

    def scale_shape(self, slot: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        if slot == "bias":
            return (1,)
        return (shape[0], *[1] * (len(shape) - 1)) if self.transposed else (1, *shape[1:])

    def square_norms(self, pair: Pair, inverse: Scales = None) -> Sums:
        norms = {}
        if "weight" in pair.slots:
            norms["weight"] = self._weight_norms(pair, inverse)
        if "bias" in pair.slots:
            norms["bias"] = square_norm(scaled(pair.output_grad.flatten(2).sum(2), inverse, "bias"))
        return norms

    def weighted_sum(self, pair: Pair, weights: Tensor) -> Sums:
        sums = {}
        if "weight" in pair.slots:
            rows = scale_rows(pair.output_grad, weights)
            sums["weight"] = self._whole(Pair(pair.input, rows, ("weight",)))
        if "bias" in pair.slots:
            sums["bias"] = weigh(pair.output_grad.flatten(2).sum(2), weights)
        return sums

    def _whole(self, pair: Pair) -> Tensor:
        """The gradient of the weight, added over all records."""
        assert pair.input is not None
        total: Tensor = torch.ops.aten.convolution_backward(
            pair.output_grad,
            pair.input,
            pair.input.new_empty(1).expand(self.weight_shape),
            None,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self._output_padding(pair),
            self.groups,
            [False, True, False],
        )[1]
        return total

    def _output_padding(self, pair: Pair) -> list[int]:
        """How much longer the output of a transposed convolution is than its input makes it, by its shape."""
        if not self.transposed:
            return [0] * len(self.stride)
        image, points = self._sides(pair)
        settings = zip(self.stride, self.padding, self.dilation, self.weight_shape[2:], strict=True)
        return [
            size - ((count - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1)
            for size, count, (stride, padding, dilation, kernel) in zip(
                image.shape[2:], points.shape[2:], settings, strict=True
            )
        ]

    def _positions(self, pair: Pair) -> int:
        return math.prod(self._sides(pair)[1].shape[2:])

    def _one_by_one(self, pair: Pair) -> bool:
        multiplications = math.prod(self.weight_shape) * self._positions(pair)
        return pair.output_grad.device.type == "cpu" and multiplications >= _ONE_BY_ONE

    def _sides(self, pair: Pair) -> tuple[Tensor, Tensor]:
        """The tensor patches are cut from, and the one with a value per patch."""
        assert pair.input is not None
        return (pair.output_grad, pair.input) if self.transposed else (pair.input, pair.output_grad)

    def _matrices(self, pair: Pair) -> tuple[Tensor, Tensor]:
        """Patches ``[records, groups, patch, positions]`` and values ``[records, groups, channels, positions]``."""
        image, points = self._sides(pair)
        patches = unfold(
            image.contiguous(),  # cutting patches of channels that lie together takes several times as long
            kernel=self.weight_shape[2:],
            positions=tuple(points.shape[2:]),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
        )
        records = pair.records
        positions = patches.shape[-1]
        return (
            patches.reshape(records, self.groups, -1, positions),
            points.reshape(records, self.groups, -1, positions),
        )

    def _weight_norms(self, pair: Pair, inverse: Scales) -> Tensor:
        scale = None if inverse is None else inverse["weight"]
        if scale is not None and scale.shape[0] > 1 and scale[0].numel() > 1:
            return norms_of(instances(self, pair.only(("weight",))), inverse)["weight"]
        parts = [self._gram_norms(pair.rows(*each), scale) for each in slices(pair, self.working_size(pair))]
        return torch.cat(parts)

    def _gram_norms(self, pair: Pair, scale: Tensor | None) -> Tensor:
        patches, points = self._matrices(pair)
        if scale is not None and scale.shape[0] == 1:  # a number per entry of a patch, or one for all
            patches = patches * scale.expand(1, *self.weight_shape[1:]).reshape(-1, 1)
        elif scale is not None:  # a number per channel of the points
            points = points * scale.view(self.groups, -1, 1)
        norms = gram_square_norm(patches.flatten(0, 1).mT, points.flatten(0, 1).mT)
        return norms.view(pair.records, self.groups).sum(1)


def unfold(
    image: Tensor,
    *,
    kernel: tuple[int, ...],
    positions: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """Patches of ``[records, channels, *space]`` as ``[records, channels * kernel, positions]``, for any dimension.

    ``positions`` may stop short of the last place where the kernel fits (a transposed convolution's output padding).
    """
    if any(padding):
        image = F.pad(image, [side for pad in reversed(padding) for side in (pad, pad)])
    steps = image.stride()[2:]
    view = image.as_strided(
        (*image.shape[:2], *kernel, *positions),
        (
            *image.stride()[:2],
            *(step * dilate for step, dilate in zip(steps, dilation, strict=True)),
            *(step * skip for step, skip in zip(steps, stride, strict=True)),
        ),
        image.storage_offset(),
    )
    return view.reshape(image.shape[0], image.shape[1] * math.prod(kernel), math.prod(positions))


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
        return Reading(rule, input, {"weight": weight, "bias": bias}, batch_first_only=True)

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
        return Reading(rule, input, {"weight": weight, "bias": bias}, batch_first_only=True)

    return read


def _each(value: int | tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dimensions
    return tuple(value) * dimensions if len(value) == 1 else tuple(value)


READERS: dict[Callable[..., Any], Reader] = {
    F.conv1d: _convolution(1),
    F.conv2d: _convolution(2),
    F.conv3d: _convolution(3),
    F.conv_transpose1d: _transposed_convolution(1),
    F.conv_transpose2d: _transposed_convolution(2),
    F.conv_transpose3d: _transposed_convolution(3),
}
