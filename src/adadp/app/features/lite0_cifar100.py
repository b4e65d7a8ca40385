"""EfficientNet-Lite0 fine-tuned on CIFAR-100, frozen: for small photographs.

A network for ImageNet expects large, sharp pictures. Fine-tuned on other small public photographs it reads those of
CIFAR-10 better. ``adadp pretrain lite0-cifar100`` makes the weights; those that come with AdaDP lie beside this file
with the record of how they were made.

A record, pixels in [0, 1], is scaled to 128 x 128; its last layer is averaged over the picture and added to that of its
mirror image. Then come the square root, centring and norm 1, record by record, and public statistics of CIFAR-100
(``public_statistics``). Cases are those of ``efficientnet``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from adadp.app.features.base import FixedStage, Shape
from adadp.app.features.efficientnet import WIDTH, Network, check_picture, pooled, rooted
from adadp.app.features.public_statistics import NAMES, whitened
from adadp.app.runs.tensors import read_tensors
from adadp.app.zoo.weights import EFFICIENTNETS

SIZE = 128
DIRECTIONS = 384

_WEIGHTS = Path(__file__).parent / "files" / "lite0_cifar100.safetensors"


@dataclass(frozen=True)
class Lite0Cifar100(FixedStage):
    """1280 features of l2 norm 1."""

    name = "lite0-cifar100"

    @property
    def public(self) -> tuple[str, ...]:
        return (
            f"EfficientNet-Lite0 with weights trained on {EFFICIENTNETS[0].trained_on} (Tan and Le 2019), fine-tuned "
            "on the training images of CIFAR-100 (Krizhevsky 2009, 'Learning Multiple Layers of Features from Tiny "
            "Images'). How to fine-tune it was chosen by looks at training images of CIFAR-10, which were not charged: "
            "it matters if those are private.",
        )

    def output_shape(self, shape: Shape) -> Shape:
        check_picture(self, shape)
        return (WIDTH,)

    def module(self, shape: Shape) -> nn.Module:
        self.output_shape(shape)
        return _Features(self, read_tensors(_WEIGHTS)[0]).eval()


class _Features(nn.Module):
    """From (records, 1 or 3, H, W) to (records, 1280)."""

    def __init__(self, stage: Lite0Cifar100, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.stage, self.network = stage, Network(tensors)
        for name in NAMES:
            self.register_buffer(name, tensors[name].float(), persistent=False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        self.stage.output_shape(tuple(images.shape[1:]))
        features = rooted(pooled(self.network, images, SIZE, mirror=True))
        return whitened(features, dict(self.named_buffers(recurse=False)))
