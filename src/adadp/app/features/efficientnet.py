"""EfficientNet-Lite0 trained on ImageNet, frozen: features for which a linear model is a good one.

The network is that of Tan and Le 2019 in its Lite form (Liu 2020): no squeeze-and-excitation, ReLU6. Its weights are
public and fixed, so its features cost no privacy beyond what ImageNet's own pictures are promised, which is nothing.
Batch normalisation uses the statistics of ImageNet and is multiplied into the convolutions when the weights are read:
no record is looked at together with another.

A record, pixels in [0, 1], is scaled to ``size`` x ``size`` (bilinear), goes through the network, and its last layer is
averaged over the picture to 1280 numbers, all >= 0. Then comes the square root, which tames the few large ones, minus
the mean over the 1280, and l2 norm 1: of that record alone, so that clipping downstream has a known scale.

    case                                       what happens
    grey image (1, H, W)                       read as three equal colours
    images of any size, not square             scaled to size x size
    size that is not a multiple of 32          InputError: the layers halve the picture five times
    records that are not (1 or 3, H, W)        InputError
    non-finite pixel                           that record's features are non-finite, no other record's
    features that are all equal                zero, not NaN
    no records                                 an empty tensor of the right shape
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadp import checks
from adadp.app.features.base import FixedStage, Shape
from adadp.app.zoo.weights import EFFICIENTNET_LITE0, efficientnet_lite0_weights
from adadp.errors import InputError

WIDTH = 1280
_BATCH_NORM_EPSILON = 1e-3
_HALVINGS = 32
_AT_ONCE = 16
"""Images that go through together: more do not fit into the caches of a core."""

_STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))
"""Blocks of each stage, and the stride of the first of them."""


@dataclass(frozen=True)
class EfficientNetLite0(FixedStage):
    """The 1280 features of an image scaled to ``size`` x ``size``; larger is better and slower."""

    name = "efficientnet-lite0"
    size: int = 128

    def __post_init__(self) -> None:
        size = checks.count("size", self.size, minimum=_HALVINGS, why="The layers halve the picture five times.")
        if size % _HALVINGS:
            raise InputError(
                f"size must be a multiple of {_HALVINGS}, got {size}.",
                why="The layers halve the picture five times.",
                fix=f"Pass {size - size % _HALVINGS} or {size - size % _HALVINGS + _HALVINGS}.",
            )
        self._set(size=size)

    @property
    def public(self) -> tuple[str, ...]:
        return (f"EfficientNet-Lite0 with weights trained on {EFFICIENTNET_LITE0.trained_on} (Tan and Le 2019).",)

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < 1:
            raise InputError(
                f"{self.name} cannot read records of shape {tuple(shape)}.",
                why="It reads pictures in grey or in colour.",
                fix="Give (1 or 3, height, width).",
            )
        return (WIDTH,)

    def module(self, shape: Shape) -> nn.Module:
        self.output_shape(shape)
        state = torch.load(io.BytesIO(efficientnet_lite0_weights()), map_location="cpu", weights_only=True)
        return _Features(self, Network(state)).eval()


class _Features(nn.Module):
    """From (records, 1 or 3, H, W) to (records, 1280)."""

    def __init__(self, stage: EfficientNetLite0, network: Network) -> None:
        super().__init__()
        self.stage, self.network = stage, network

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        shape = self.stage.output_shape(tuple(images.shape[1:]))
        side = self.stage.size
        pooled = images.new_empty(len(images), *shape, dtype=torch.float32)
        for start in range(0, len(images), _AT_ONCE):
            pixels = images[start : start + _AT_ONCE].float().expand(-1, 3, -1, -1)
            scaled = functional.interpolate(pixels, (side, side), mode="bilinear", antialias=False)
            pooled[start : start + _AT_ONCE] = self.network((255 * scaled - 127) / 128)
        features = pooled.sqrt()
        return functional.normalize(features - features.mean(1, keepdim=True))


class Network(nn.Module):
    """The network up to its pooled last layer, from the state dictionary of its weights."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _convolution(state, "_conv_stem", "_bn0", stride=2),
            nn.ReLU6(inplace=True),
            *(_Block(state, f"_blocks.{number}", stride, adds) for number, (stride, adds) in enumerate(_blocks())),
            _convolution(state, "_conv_head", "_bn1"),
            nn.ReLU6(inplace=True),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(records, 1280) numbers >= 0, from pixels brought to about -1 .. 1."""
        top: Tensor = self.layers(images.contiguous(memory_format=torch.channels_last))
        return top.mean((2, 3))


class _Block(nn.Module):
    """Inverted bottleneck: widen (in all blocks but the first), filter each channel by itself, narrow."""

    def __init__(self, state: Mapping[str, Tensor], name: str, stride: int, adds: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if f"{name}._expand_conv.weight" in state:
            layers += [_convolution(state, f"{name}._expand_conv", f"{name}._bn0"), nn.ReLU6(inplace=True)]
        layers += [_convolution(state, f"{name}._depthwise_conv", f"{name}._bn1", stride), nn.ReLU6(inplace=True)]
        layers += [_convolution(state, f"{name}._project_conv", f"{name}._bn2")]
        self.layers, self.adds = nn.Sequential(*layers), adds

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.layers(values)
        return found.add_(values) if self.adds else found


def _blocks() -> Iterator[tuple[int, bool]]:
    """Stride of each block, and whether its input is added to its output: the repeated ones of a stage."""
    for repeats, stride in _STAGES:
        yield stride, False
        yield from [(1, True)] * (repeats - 1)


def _convolution(state: Mapping[str, Tensor], name: str, norm: str, stride: int = 1) -> nn.Conv2d:
    """The convolution ``name`` with the batch normalisation ``norm`` multiplied in.

    Where the picture is halved TensorFlow pads one row (column) less before it than after it. Padding both sides alike
    and giving the kernel a first row (column) of zeros is the same, and no padded copy has to be made.
    """
    kernel = state[f"{name}.weight"].double()
    scale = state[f"{norm}.weight"].double() / (state[f"{norm}.running_var"].double() + _BATCH_NORM_EPSILON).sqrt()
    bias = state[f"{norm}.bias"].double() - state[f"{norm}.running_mean"].double() * scale
    kernel = kernel * scale[:, None, None, None]
    padding = kernel.shape[-1] // 2
    if stride == 2:
        kernel = functional.pad(kernel, (1, 0, 1, 0))
    wide, planes, side, _ = kernel.shape
    groups = wide if planes == 1 else 1
    folded = nn.Conv2d(planes * groups, wide, side, stride=stride, padding=padding, groups=groups)
    channels_last = kernel.float().contiguous(memory_format=torch.channels_last)
    folded.weight = nn.Parameter(channels_last, requires_grad=False)
    folded.bias = nn.Parameter(bias.float(), requires_grad=False)
    return folded
