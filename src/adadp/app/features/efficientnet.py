"""EfficientNet-Lite0, 1 and 2 trained on ImageNet, frozen: features for which a linear model is a good one.

The networks are those of Tan and Le 2019 in their Lite form (Liu 2020): no squeeze-and-excitation, ReLU6. Their weights
are public and fixed, so their features cost no privacy beyond what ImageNet's own pictures are promised, which is
nothing. Batch normalisation uses the statistics of ImageNet and is multiplied into the convolutions when the weights
are read: no record is looked at together with another.

A record, pixels in [0, 1], is scaled to ``size`` x ``size`` (bilinear), goes through the network, and its last layer is
averaged over the picture to 1280 numbers, all >= 0; with ``mirror`` those of the mirror image are added. Then comes the
square root, which tames the few large ones, minus the mean over the 1280, and l2 norm 1: of that record alone, so that
clipping downstream has a known scale.

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
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadp import checks
from adadp.app.features.base import FixedStage, Shape
from adadp.app.zoo.weights import EFFICIENTNETS, efficientnet_weights
from adadp.errors import InputError

WIDTH = 1280
_BATCH_NORM_EPSILON = 1e-3
_HALVINGS = 32
AT_ONCE = 16
"""Images that go through together: more do not fit into the caches of a core."""

_STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))
"""Blocks of each stage of Lite0, and the stride of the first of them. In Lite1 and Lite2 every stage of more than one
block has one more."""

_NORMS = {"_conv_stem": "_bn0", "_conv_head": "_bn1"}
_NORMS |= {"_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2"}
"""The batch normalisation that follows a convolution."""
_PARTS = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True)
class EfficientNetLite0(FixedStage):
    """The 1280 features of an image scaled to ``size`` x ``size``; larger is better and slower."""

    name = "efficientnet-lite0"
    number: ClassVar[int] = 0
    size: int = 128
    mirror: bool = False
    """Add the pooled last layer of the mirror image, which takes twice the time."""

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
        trained_on = EFFICIENTNETS[self.number].trained_on
        return (f"EfficientNet-Lite{self.number} with weights trained on {trained_on} (Tan and Le 2019).",)

    def output_shape(self, shape: Shape) -> Shape:
        check_picture(self, shape)
        return (WIDTH,)

    def module(self, shape: Shape) -> nn.Module:
        self.output_shape(shape)
        return _Features(self, imagenet(self.number)).eval()


@dataclass(frozen=True)
class EfficientNetLite1(EfficientNetLite0):
    """The same of a deeper network."""

    name = "efficientnet-lite1"
    number = 1


@dataclass(frozen=True)
class EfficientNetLite2(EfficientNetLite0):
    """The same of a deeper and wider network."""

    name = "efficientnet-lite2"
    number = 2


def check_picture(stage: FixedStage, shape: Shape) -> None:
    """That ``stage`` can read records of ``shape``: pictures in grey or in colour."""
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < 1:
        raise InputError(
            f"{stage.name} cannot read records of shape {tuple(shape)}.",
            why="It reads pictures in grey or in colour.",
            fix="Give (1 or 3, height, width).",
        )


class _Features(nn.Module):
    """From (records, 1 or 3, H, W) to (records, 1280)."""

    def __init__(self, stage: EfficientNetLite0, network: Network) -> None:
        super().__init__()
        self.stage, self.network = stage, network

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        self.stage.output_shape(tuple(images.shape[1:]))
        return rooted(pooled(self.network, images, self.stage.size, mirror=self.stage.mirror))


def pooled(network: Network, images: Tensor, size: int, *, mirror: bool) -> Tensor:
    """The pooled last layer of each image, or the sum of those of the image and of its mirror image."""
    found = images.new_empty(len(images), WIDTH, dtype=torch.float32)
    for start in range(0, len(images), AT_ONCE):
        some = prepared(images[start : start + AT_ONCE], size)
        found[start : start + AT_ONCE] = network(some) + network(some.flip(-1)) if mirror else network(some)
    return found


def prepared(images: Tensor, size: int) -> Tensor:
    """What the network reads: ``images`` in [0, 1] in colour, scaled to ``size`` x ``size``, of about -1 to 1."""
    pixels = images.float().expand(-1, 3, -1, -1)
    scaled = functional.interpolate(pixels, (size, size), mode="bilinear", antialias=False)
    return ((255 * scaled - 127) / 128).contiguous(memory_format=torch.channels_last)


def rooted(values: Tensor) -> Tensor:
    """Square roots of the pooled last layer, which tame the few large ones, centred and of norm 1, record by record."""
    features = values.sqrt()
    return functional.normalize(features - features.mean(1, keepdim=True))


def imagenet(number: int) -> Network:
    """The network of EfficientNet-Lite0, 1 or 2 with its weights for ImageNet."""
    state = torch.load(io.BytesIO(efficientnet_weights(number)), map_location="cpu", weights_only=True)
    return Network(folded(state))


class Network(nn.Module):
    """The network up to its pooled last layer, from kernels and biases by the names of its convolutions."""

    def __init__(self, kernels: Mapping[str, Tensor]) -> None:
        super().__init__()
        depth = len({name.split(".")[1] for name in kernels if name.startswith("_blocks.")})
        self.layers = nn.Sequential(
            _convolution(kernels, "_conv_stem", stride=2),
            nn.ReLU6(inplace=True),
            *(_Block(kernels, f"_blocks.{number}", *how) for number, how in enumerate(_blocks(depth))),
            _convolution(kernels, "_conv_head"),
            nn.ReLU6(inplace=True),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(records, 1280) numbers >= 0, from pixels brought to about -1 .. 1."""
        top: Tensor = self.layers(images.contiguous(memory_format=torch.channels_last))
        return top.mean((2, 3))

    def kernels(self) -> dict[str, Tensor]:
        """What a network like this one is made of."""
        found = (each for each in self.modules() if isinstance(each, _Convolution))
        return {f"{each.name}.{part}": value for each in found for part, value in each.named_parameters()}


class _Block(nn.Module):
    """Inverted bottleneck: widen (in all blocks but the first), filter each channel by itself, narrow."""

    def __init__(self, kernels: Mapping[str, Tensor], name: str, stride: int, adds: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if f"{name}._expand_conv.weight" in kernels:
            layers += [_convolution(kernels, f"{name}._expand_conv"), nn.ReLU6(inplace=True)]
        layers += [_convolution(kernels, f"{name}._depthwise_conv", stride), nn.ReLU6(inplace=True)]
        layers += [_convolution(kernels, f"{name}._project_conv")]
        self.layers, self.adds = nn.Sequential(*layers), adds

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.layers(values)
        return found.add_(values) if self.adds else found


class _Convolution(nn.Conv2d):
    name: str


def _blocks(depth: int) -> Iterator[tuple[int, bool]]:
    """Stride of each block, and whether its input is added to its output: the repeated ones of a stage."""
    longer = depth > sum(repeats for repeats, _ in _STAGES)
    for repeats, stride in _STAGES:
        yield stride, False
        yield from [(1, True)] * (repeats - 1 + (longer and repeats > 1))


def folded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Kernels and biases of the convolutions, with the batch normalisations of ``state`` multiplied in."""
    kernels = {}
    for name in (name.removesuffix(".weight") for name in state if name.endswith(".weight")):
        before, dot, last = name.rpartition(".")
        if last in _NORMS:
            norm = {part: state[f"{before}{dot}{_NORMS[last]}.{part}"].double() for part in _PARTS}
            scale = norm["weight"] / (norm["running_var"] + _BATCH_NORM_EPSILON).sqrt()
            kernels[f"{name}.weight"] = (state[f"{name}.weight"].double() * scale[:, None, None, None]).float()
            kernels[f"{name}.bias"] = (norm["bias"] - norm["running_mean"] * scale).float()
    return kernels


def _convolution(kernels: Mapping[str, Tensor], name: str, stride: int = 1) -> nn.Conv2d:
    """The convolution ``name``.

    Where the picture is halved TensorFlow pads one row (column) less before it than after it. Padding both sides alike
    and giving the kernel a first row (column) of zeros is the same, and no padded copy has to be made.
    """
    kernel = kernels[f"{name}.weight"].float()
    if stride == 2 and kernel.shape[-1] % 2:
        kernel = functional.pad(kernel, (1, 0, 1, 0))
    wide, planes, side, _ = kernel.shape
    groups = wide if planes == 1 else 1
    made = _Convolution(planes * groups, wide, side, stride=stride, padding=(side - 1) // 2, groups=groups)
    made.name = name
    channels_last = kernel.contiguous(memory_format=torch.channels_last)
    made.weight = nn.Parameter(channels_last, requires_grad=False)
    made.bias = nn.Parameter(kernels[f"{name}.bias"].float(), requires_grad=False)
    return made
