"""Two frozen convolutions trained on CIFAR-100: the way Abadi et al. 2016 bring images to a small private network.

They train a network on the public CIFAR-100, keep its two convolutional layers (5 x 5, 64 channels, ReLU, 2 x 2
max-pooling) and train only what follows on the private images. Looking at public images costs no privacy, and
frozen layers cost no noise. ``adadp pretrain conv-cifar100`` makes the weights; those that come with AdaDP lie beside
this file with the record of how they were made.

A record, pixels in [0, 1], becomes: 24 x 24 pixels from its centre; minus its mean, over its standard deviation; two
layers; and then features of l2 norm ``norm``, so that what clipping downstream does is known before the data is seen.
Each of these looks at that record alone.

    case                                  what happens
    grey image (1, H, W)                  read as three equal colours
    sides from 24 to 32 pixels            the centre is cut out
    shorter side above 32 pixels          first scaled to 32 (bilinear, smoothed), then the centre is cut out
    a side below 24 pixels                InputError, as for records that are not (1 or 3, H, W)
    constant image                        read as zero: features of the biases, finite
    non-finite pixel                      that record's features are non-finite, no other record's
    norm = 0                              the features as the layers give them
    no records                            an empty tensor of the right shape
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

from adadp import checks
from adadp.app.features.base import FixedStage, Shape
from adadp.app.runs.tensors import read_tensors
from adadp.errors import InputError

SIDE = 24
CHANNELS = 64
_LARGEST_CROPPED = 32
_FLATTEST = 1 / (255 * math.sqrt(3 * SIDE * SIDE))
"""Standard deviation below which an image is taken for constant: TensorFlow's, for pixels up to 1 instead of 255."""

_WEIGHTS = Path(__file__).parent / "files" / "conv_cifar100.safetensors"


@dataclass(frozen=True)
class ConvCifar100(FixedStage):
    """The frozen layers; features of l2 norm ``norm``, or as they are if it is 0."""

    name = "conv-cifar100"
    version = 2
    norm: float = 30.0
    """Near the root of the 2304 features: a network that starts as usual then starts with activations of size 1."""

    def __post_init__(self) -> None:
        self._set(norm=checks.non_negative("norm", self.norm, why="0 leaves the features as they are."))

    @property
    def public(self) -> tuple[str, ...]:
        return (
            "Convolutions trained on the training images of CIFAR-100 (Krizhevsky 2009, 'Learning Multiple Layers of "
            "Features from Tiny Images'), as in Abadi et al. 2016. How to train them was chosen among six settings by "
            "a look at 7,000 training images of CIFAR-10, which was not charged: it matters if those are private.",
        )

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < SIDE:
            raise InputError(
                f"{self.name} cannot read records of shape {tuple(shape)}.",
                why=f"Its layers were trained on colour images of {SIDE} x {SIDE} pixels.",
                fix=f"Give (1 or 3, height, width) with at least {SIDE} pixels a side.",
            )
        return CHANNELS, SIDE // 4, SIDE // 4

    def module(self, shape: Shape) -> nn.Module:
        self.output_shape(shape)
        tensors, _ = read_tensors(_WEIGHTS)
        return _Convolutions(self, tensors).eval()


class _Convolutions(nn.Module):
    """From (records, 1 or 3, H, W) to (records, 64, 6, 6). The weights are buffers: nothing trains them."""

    def __init__(self, stage: ConvCifar100, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.stage = stage
        self.names = tuple(tensors)
        for name, tensor in tensors.items():
            self.register_buffer(_plain(name), tensor, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        self.stage.output_shape(tuple(images.shape[1:]))
        tensors = {name: self.get_buffer(_plain(name)) for name in self.names}
        colours = images.float().expand(-1, 3, -1, -1)
        features = convolve(standardised(centre(colours)), tensors)
        if not self.stage.norm:
            return features
        return (self.stage.norm * functional.normalize(features.flatten(1))).view_as(features)


def centre(images: Tensor) -> Tensor:
    """The 24 x 24 pixels in the middle of each image, scaled first if it is larger than those of CIFAR."""
    height, width = images.shape[2:]
    if min(height, width) > _LARGEST_CROPPED:
        scale = _LARGEST_CROPPED / min(height, width)
        height, width = max(_LARGEST_CROPPED, round(height * scale)), max(_LARGEST_CROPPED, round(width * scale))
        images = functional.interpolate(images, (height, width), mode="bilinear", antialias=True)
    top, left = (height - SIDE) // 2, (width - SIDE) // 2
    return images[:, :, top : top + SIDE, left : left + SIDE]


def standardised(images: Tensor) -> Tensor:
    """Each image minus its mean, over its standard deviation."""
    centred = images - images.mean((1, 2, 3), keepdim=True)
    return centred / centred.square().mean((1, 2, 3), keepdim=True).sqrt().clamp_min(_FLATTEST)


def convolve(images: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """Both layers: convolution, ReLU, 2 x 2 max-pooling, twice."""
    for number in (1, 2):
        images = functional.conv2d(images, tensors[f"conv{number}.weight"], tensors[f"conv{number}.bias"], padding=2)
        images = functional.max_pool2d(functional.relu(images), 2)
    return images


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the bytes of ``tensors``, by name in alphabetical order."""
    found = sha256()
    for name in sorted(tensors):
        found.update(name.encode("ascii") + tensors[name].detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def _plain(name: str) -> str:
    """A buffer's name has no dots."""
    return name.replace(".", "_")
