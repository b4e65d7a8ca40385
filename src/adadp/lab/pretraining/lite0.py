"""How the network of ``lite0-cifar100`` is made: EfficientNet-Lite0, fine-tuned on public images without privacy.

Its weights for ImageNet are those of ``efficientnet-lite0``, with the batch norms multiplied in. The stem and the first
three stages stay as they are; the rest, and a new last layer, are trained on images scaled to 128 x 128: AdamW, small
steps of at most norm 1, smoothed labels, random crops and mirror images. The last layer starts from a linear classifier
of the first images (L-BFGS), so that the first steps do not spoil what is there.

The weights are kept in half precision; the accuracy on held-out images is that of the kept weights. So is what follows
from the features of images that were trained on, for ``lite0-cifar100`` to use: their mean, and the directions in which
images of one class differ most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadp.app.features.efficientnet import AT_ONCE, WIDTH, Network, imagenet, pooled, prepared, rooted
from adadp.app.features.lite0_cifar100 import DIRECTIONS, SIZE
from adadp.app.features.public_statistics import statistics
from adadp.lab.pretraining.training import Recipe, crops

_FROZEN = 7
"""Of the network's layers: the stem and its ReLU6, and the five blocks of stages 1 to 3."""
_SLOW = 5
"""Filters of single channels of this many pixels a side stay as they are: their gradients would take a third of the
time, for 2 % of the weights."""
_PROBED = 5000
_BORDER = 3


@dataclass(frozen=True)
class Lite0(Recipe):
    """EfficientNet-Lite0 fine-tuned. The defaults made the weights that come with AdaDP."""

    name = "lite0-cifar100"
    side = 32
    epochs = 1
    batch: int = 64
    rate: float = 3e-4
    head_rate: float = 1e-3
    warm_up: int = 20
    weight_decay: float = 0.01
    smoothing: float = 0.1
    longest: float = 1.0
    """The norm that a gradient is cut to."""
    held_out: int = 2000

    def network(self, classes: int, pixels: Tensor, labels: Tensor) -> nn.Module:
        network = _FineTuned(imagenet(0), classes)
        network.probe(pixels[:_PROBED], labels[:_PROBED])
        return network

    def optimizer(self, network: _FineTuned) -> torch.optim.Optimizer:
        trained = [each for each in network.top.parameters() if each.requires_grad]
        optimizer = torch.optim.AdamW(
            [{"params": trained, "lr": self.rate}, {"params": network.head.parameters(), "lr": self.head_rate}],
            betas=(0.9, 0.98),
            weight_decay=self.weight_decay,
        )

        def cut(*_: object) -> None:
            nn.utils.clip_grad_norm_(trained, self.longest)

        optimizer.register_step_pre_hook(cut)
        return optimizer

    def varied(self, pixels: Tensor) -> Tensor:
        """Random crops of a few pixels, every other one mirrored, scaled up."""
        wider = functional.pad(pixels.float(), (_BORDER,) * 4, mode="reflect")
        return prepared(crops(wider, pixels.shape[-1]) / 255, SIZE)

    def frozen(self, network: _FineTuned) -> dict[str, Tensor]:
        return {name: value.detach().half().contiguous() for name, value in network.whole.kernels().items()}

    def logits(self, network: _FineTuned, tensors: dict[str, Tensor], images: Tensor) -> Tensor:
        return network.classified(pooled(Network(tensors), images, SIZE, mirror=False))

    def finished(self, tensors: dict[str, Tensor], pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
        found = rooted(pooled(Network(tensors), pixels.float() / 255, SIZE, mirror=True))
        return tensors | statistics(found, labels, DIRECTIONS)


class _FineTuned(nn.Module):
    """The network, its frozen layers apart, and a classifier of its features brought to mean 0 and deviation 1."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, whole: Network, classes: int) -> None:
        super().__init__()
        self.whole = whole.requires_grad_(False)
        self.top = whole.layers[_FROZEN:].requires_grad_(True)
        for layer in self.top.modules():
            if isinstance(layer, nn.Conv2d) and layer.groups > 1 and layer.kernel_size[0] >= _SLOW:
                layer.requires_grad_(False)
        self.head = nn.Linear(WIDTH, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("deviation", torch.ones(WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            below = torch.cat([self.whole.layers[:_FROZEN](some) for some in torch.split(images, AT_ONCE)])
        return self.classified(self.top(below).mean((2, 3)))

    def classified(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head((features - self.mean) / self.deviation)
        return logits

    def probe(self, pixels: Tensor, labels: Tensor) -> None:
        """Fit the last layer alone."""
        with torch.no_grad():
            features = pooled(self.whole, pixels.float() / 255, SIZE, mirror=False)
        self.mean, self.deviation = features.mean(0), features.std(0) + 0.02
        optimizer = torch.optim.LBFGS(self.head.parameters(), max_iter=30, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            found = functional.cross_entropy(self.classified(features), labels)
            found = found + 3e-3 * self.head.weight.square().sum()
            found.backward()  # type: ignore[no-untyped-call]
            return found

        optimizer.step(loss)  # type: ignore[no-untyped-call]
