"""Two layers of filters: patches of the maps that ``patches`` makes, filtered once more.

The first layer has 64 filters of 6 x 6 pixels and their mirror images, at every pixel; relu(+-z - .5), averaged over
3 x 3 places, square root, less the mean over synthetic images. Of these maps, patches of 3 x 3 places are divided by
their contrast and whitened over synthetic patches with a ``ridge`` in units of the mean eigenvalue. From there on it is
what ``patches`` does: ``filters`` whitened synthetic patches of norm 1, relu above and below ``threshold`` standard
deviations of their responses, averages over a ``grid``, maps of mirrored filters added, rows centred.

    case                                  what happens
    constant image                        no response in the first layer: its maps stand at minus their means
    non-finite pixel                      that record's features are non-finite, no other record's
    image of less than 14 pixels a side   InputError: its first layer is no patch
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadp import checks
from adadp.app.features.base import Shape
from adadp.app.features.synthetic.patches import (
    check_images,
    cut,
    longer,
    pixel_filters,
    pixel_responses,
    pooled_halves,
    symmetric,
    whitening_of,
)
from adadp.app.features.synthetic.rows import centred, mean_row
from adadp.app.features.synthetic.source import SyntheticStage, in_batches

_FIRST, _PIXELS, _RIDGE, _THRESHOLD, _POOL = 64, 6, 0.1, 0.5, 3
"""The first layer: filters, their size, the ridge of their whitening, threshold, places averaged on each side."""
_SIZE = 3
"""Places on each side of a patch of the second layer."""
_PATCHES = 20_000
_CONTRAST = 0.1
"""What is added to the contrast of a patch of the second layer, in units of its mean."""
_AT_ONCE = 16


@dataclass(frozen=True)
class DeepPatches(SyntheticStage):
    """``deep-patches:filters=512``: pooled responses to filters of the second layer and their negatives."""

    name = "deep-patches"
    filters: int = 512
    grid: int = 3
    ridge: float = 1.0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        self._set(
            filters=checks.count("filters", self.filters),
            grid=checks.count("grid", self.grid),
            ridge=checks.positive("ridge", self.ridge),
            threshold=checks.non_negative("threshold", self.threshold),
        )

    def output_shape(self, shape: Shape) -> Shape:
        check_images(self, shape, _PIXELS - 1 + _POOL * _SIZE)
        return 2 * self.filters, self.grid, self.grid

    def fit(self, records: Tensor) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(2)
        first = pixel_filters(records, _FIRST, _PIXELS, _RIDGE, generator)
        maps = torch.cat([_first_layer(chunk, first) for chunk in torch.split(records, _AT_ONCE)])
        means = maps.mean((0, 2, 3)).view(2, 2, _FIRST).mean(1, keepdim=True).expand(2, 2, _FIRST).flatten()
        maps -= means[:, None, None]
        patches = cut(maps, _SIZE, _PATCHES, generator).flatten(1)
        squares = patches.square().mean(1, keepdim=True)
        contrast = _CONTRAST * squares.mean()
        patches /= (squares + contrast).sqrt()
        mirrored = _mirrored(patches.view(-1, *maps.shape[1:2], _SIZE, _SIZE)).flatten(1)
        ridge = self.ridge * float(patches.square().mean())
        whitening = whitening_of(torch.cat([patches, mirrored]), ridge)
        directions = longer(patches[: 2 * self.filters] @ whitening)
        spread = (patches[-2000:] @ whitening @ directions.T).std()
        second = (directions @ whitening / spread).view(-1, *maps.shape[1:2], _SIZE, _SIZE)
        found = {"first": first, "means": means, "contrast": contrast, "second": torch.cat([second, _mirrored(second)])}
        shape = tuple(records.shape[1:])
        plain = in_batches(_DeepPatchesModule(self, shape, found), records).flatten(1)
        return found | {"centre": mean_row(plain)}

    def fitted(self, shape: Shape, tensors: Mapping[str, Tensor]) -> nn.Module:
        return _DeepPatchesModule(self, shape, tensors)


class _DeepPatchesModule(nn.Module):
    """From (records, C, H, W) to pooled responses, centred if ``tensors`` has the mean of synthetic rows."""

    first: Tensor
    means: Tensor
    contrast: Tensor
    second: Tensor
    centre: Tensor | None

    def __init__(self, stage: DeepPatches, shape: Shape, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.stage, self.features = stage, stage.output_shape(shape)
        for name in ("first", "means", "contrast"):
            self.register_buffer(name, tensors[name])
        self.register_buffer("second", tensors["second"].contiguous(memory_format=torch.channels_last))
        self.register_buffer("centre", tensors.get("centre"))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        pooled = [self._pooled(chunk) for chunk in torch.split(images.to(self.first), _AT_ONCE)]
        features = torch.cat(pooled) if pooled else images.new_empty(0, *self.features)
        return features if self.centre is None else centred(features.flatten(1), self.centre).view_as(features)

    def _pooled(self, images: Tensor) -> Tensor:
        maps = _first_layer(images, self.first) - self.means[:, None, None]
        square = functional.avg_pool2d(maps.square().mean(1, keepdim=True), _SIZE, 1)
        responses = functional.conv2d(maps.contiguous(memory_format=torch.channels_last), self.second)
        responses = responses.contiguous().mul_((square + self.contrast).rsqrt())
        return symmetric(*pooled_halves(responses, self.stage.threshold, self.stage.grid))


def _first_layer(images: Tensor, filters: Tensor) -> Tensor:
    """Square roots of pooled responses: above the threshold, then below; the mirrored filters second in each."""
    responses = pixel_responses(images, filters, 1)
    places = responses.shape[2] // _POOL, responses.shape[3] // _POOL
    return torch.cat(pooled_halves(responses, _THRESHOLD, places), dim=1).sqrt_()


def _mirrored(patches: Tensor) -> Tensor:
    """Patches of the maps of mirror images: columns in reverse, and each filter's map where that of its mirror was."""
    halves = patches.view(len(patches), 2, 2, _FIRST, *patches.shape[2:])
    return halves.flip(2).flip(-1).reshape(patches.shape)
