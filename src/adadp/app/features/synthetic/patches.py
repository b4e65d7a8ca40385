"""Responses of an image to filters cut from synthetic images, pooled (after Coates, Lee and Ng 2011).

Patches of ``size`` x ``size`` pixels are brought to mean 0 and divided by sqrt(variance + .03^2): by contrast, above a
floor below which it is noise. Over synthetic patches and their mirror images they are whitened (ZCA) with a ``ridge``.
A filter is a whitened synthetic patch of norm 1: the longer of two that are drawn, for the short ones say little. With
z its response to a patch, relu(z - threshold) and relu(-z - threshold) are averaged over a ``grid`` of overlapping
regions. The same filters mirrored give the maps of the mirror image, which are added: an image and its mirror image
have the same features. Then rows of norm 1 are centred as ``log-scatter`` does.

    case                                  what happens
    constant image                        no response: the record stands at minus the mean of synthetic images
    non-finite pixel                      that record's features are non-finite, no other record's
    image smaller than a patch            InputError
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadp import checks
from adadp.app.features.base import FixedStage, Shape
from adadp.app.features.synthetic.rows import centred, mean_row
from adadp.app.features.synthetic.source import SyntheticStage, in_batches
from adadp.errors import InputError

CONTRAST = 0.03**2
"""Variance of the noise that contrasts are measured against, for pixels in [0, 1]."""
_PATCHES = 40_000
"""Synthetic patches that the whitening is computed from, with as many mirror images."""
_AT_ONCE = 16
"""Images whose responses are computed at once, so that they stay in the cache."""


@dataclass(frozen=True)
class Patches(SyntheticStage):
    """``patches:filters=256``: pooled responses to so many synthetic filters and their negatives."""

    name = "patches"
    filters: int = 256
    size: int = 6
    stride: int = 2
    grid: int = 4
    ridge: float = 0.1
    threshold: float = 0.5

    def __post_init__(self) -> None:
        self._set(
            **{field: checks.count(field, getattr(self, field)) for field in ("filters", "size", "stride", "grid")},
            ridge=checks.positive("ridge", self.ridge),
            threshold=checks.non_negative("threshold", self.threshold),
        )

    def output_shape(self, shape: Shape) -> Shape:
        check_images(self, shape, self.size)
        return 2 * self.filters, self.grid, self.grid

    def fit(self, records: Tensor) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1)
        filters = pixel_filters(records, self.filters, self.size, self.ridge, generator)
        shape = tuple(records.shape[1:])
        plain = in_batches(_PatchesModule(self, shape, {"filters": filters}), records).flatten(1)
        return {"filters": filters, "centre": mean_row(plain)}

    def fitted(self, shape: Shape, tensors: Mapping[str, Tensor]) -> nn.Module:
        return _PatchesModule(self, shape, tensors)


class _PatchesModule(nn.Module):
    """From (records, C, H, W) to pooled responses, centred if ``tensors`` has the mean of synthetic rows."""

    filters: Tensor
    centre: Tensor | None

    def __init__(self, stage: Patches, shape: Shape, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.stage, self.features = stage, stage.output_shape(shape)
        self.register_buffer("filters", tensors["filters"])
        self.register_buffer("centre", tensors.get("centre"))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        pooled = [self._pooled(chunk) for chunk in torch.split(images.to(self.filters), _AT_ONCE)]
        features = torch.cat(pooled) if pooled else images.new_empty(0, *self.features)
        return features if self.centre is None else centred(features.flatten(1), self.centre).view_as(features)

    def _pooled(self, images: Tensor) -> Tensor:
        stage = self.stage
        responses = pixel_responses(images, self.filters, stage.stride)
        return symmetric(*pooled_halves(responses, stage.threshold, stage.grid))


def check_images(stage: FixedStage, shape: Shape, smallest: int) -> None:
    """Refuse records that are not images of at least ``smallest`` pixels a side."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise InputError(
            f"{stage.name} cannot read records of shape {tuple(shape)}.",
            why=f"It reads images of at least {smallest} x {smallest} pixels.",
            fix="Give records of shape (channels, height, width).",
        )


def pixel_filters(images: Tensor, count: int, size: int, ridge: float, generator: torch.Generator) -> Tensor:
    """``count`` whitened synthetic patches as filters for patches as they are, and then their mirror images."""
    patches = cut(images, size, _PATCHES, generator).flatten(1)
    patches -= patches.mean(1, keepdim=True)
    patches /= (patches.square().mean(1, keepdim=True) + CONTRAST).sqrt()
    shape = (-1, images.shape[1], size, size)
    mirrored = patches.view(shape).flip(-1).flatten(1)
    whitening = whitening_of(torch.cat([patches, mirrored]), ridge)
    filters = (longer(patches[: 2 * count] @ whitening) @ whitening).view(shape)
    filters -= filters.mean((1, 2, 3), keepdim=True)  # of a patch with its mean only the rest is seen
    return torch.cat([filters, filters.flip(-1)])


def pixel_responses(images: Tensor, filters: Tensor, stride: int) -> Tensor:
    """Responses of patches at mean 0 and contrast 1; the filters have mean 0."""
    size = filters.shape[-1]
    mean = functional.avg_pool2d(images, size, stride).mean(1, keepdim=True)
    square = functional.avg_pool2d(images.square(), size, stride).mean(1, keepdim=True)
    contrast = ((square - mean.square()).clamp(min=0) + CONTRAST).rsqrt()
    return functional.conv2d(images, filters, stride=stride).mul_(contrast)


def pooled_halves(responses: Tensor, threshold: float, grid: int | tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Averages over a grid of what lies above the threshold, and below its negative; overwrites ``responses``."""
    positive = functional.adaptive_avg_pool2d((responses - threshold).relu_(), grid)
    return positive, functional.adaptive_avg_pool2d(responses.neg_().sub_(threshold).relu_(), grid)


def symmetric(*halves: Tensor) -> Tensor:
    """Maps of filters plus the mirrored maps of the mirrored filters, which are the second half of each."""
    added = [first + second.flip(-1) for first, second in (half.chunk(2, dim=1) for half in halves)]
    return torch.cat(added, dim=1)


def cut(maps: Tensor, size: int, count: int, generator: torch.Generator) -> Tensor:
    """``count`` patches of ``size`` x ``size`` from random places of random maps."""
    _, channels, height, width = maps.shape
    which = torch.randint(len(maps), (count,), generator=generator)
    down = torch.randint(height - size + 1, (count,), generator=generator)
    across = torch.randint(width - size + 1, (count,), generator=generator)
    steps = torch.arange(size)
    rows, columns = (down[:, None] + steps)[:, None, :, None], (across[:, None] + steps)[:, None, None, :]
    return maps[which[:, None, None, None], torch.arange(channels)[:, None, None], rows, columns]


def whitening_of(rows: Tensor, ridge: float) -> Tensor:
    """(C + ridge)^(-1/2) for the second moment C of ``rows``."""
    moment = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
    for chunk in torch.split(rows, 4096):
        moment += (chunk.T @ chunk).double()
    sizes, vectors = torch.linalg.eigh(moment / len(rows))
    whitening: Tensor = (vectors * (sizes.clamp(min=0) + ridge).rsqrt()) @ vectors.T
    return whitening.float()


def longer(rows: Tensor) -> Tensor:
    """Of each two neighbouring ``rows`` the longer one, scaled to norm 1."""
    pairs = rows.view(-1, 2, rows.shape[1])
    second = pairs[:, 1].norm(dim=1) > pairs[:, 0].norm(dim=1)
    return functional.normalize(torch.where(second[:, None], pairs[:, 1], pairs[:, 0]))
