"""Scattering with logarithms, in opponent colours, alike for an image and its mirror image, standardised by channel.

Five changes to ``scatter``, all known before the data is:

1. colours become luminance and two differences of colours (an orthonormal change of basis);
2. a coefficient s of order 1 or 2 becomes log(s + ``floor`` m), with m the mean of its channel over synthetic images:
   contrasts of photographs spread over decades, and a linear model sees ratios better than the few largest;
3. the map of an image and that of its mirror image are added. In the mirror image an angle becomes its opposite, and
   maps are read where they mirror, so no second transform is needed; half of the columns of the sum say everything;
4. every channel is brought to mean 0 and variance 1 over synthetic images;
5. the record is scaled to norm 1, the mean of such rows of synthetic images subtracted, and it is scaled again.

    case                                  what happens
    constant image                        its wavelets are 0: the logarithms are those of the floors
    non-finite pixel                      that record's features are non-finite, no other record's
    a record and its mirror image         features agree but for what the margins of the transform differ in
    a channel without variance            its variance counts as 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.app.features.base import Shape
from adadp.app.features.scattering import Scattering
from adadp.app.features.synthetic.rows import centred, mean_row
from adadp.app.features.synthetic.source import SyntheticStage, in_batches

_OPPONENT = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (0.5, -1.0, 0.5))
"""Luminance, red against blue, green against both; each is divided by its norm."""


@dataclass(frozen=True)
class LogScattering(SyntheticStage):
    """``log-scatter``: scattering up to scale 2^``J`` with ``angles`` angles, logarithms above ``floor`` means."""

    name = "log-scatter"
    J: int = 2
    angles: int = 8
    floor: float = 0.5

    def __post_init__(self) -> None:
        plain = Scattering(J=self.J, angles=self.angles, groups=0)
        floor = checks.positive("floor", self.floor, why="The logarithm of 0 is not finite.")
        self._set(J=plain.J, angles=plain.angles, floor=floor)

    @property
    def scattering(self) -> Scattering:
        """The transform before the logarithm."""
        return Scattering(J=self.J, angles=self.angles, groups=0, unit=False, centre=False, middle=True)

    def output_shape(self, shape: Shape) -> Shape:
        channels, height, width = self.scattering.output_shape(shape)
        return channels, height, -(-width // 2)

    def fit(self, records: Tensor) -> dict[str, Tensor]:
        shape = tuple(records.shape[1:])
        plain = in_batches(_Plain(self, shape), records)
        floors = self.floor * plain.mean((0, 2, 3))
        floors[:: self.scattering.paths] = torch.inf  # order 0 has signs, and stays as it is
        maps = _logarithms(self, plain, floors)
        spread, mean = torch.std_mean(maps, (0, 2, 3))
        scale = torch.where(spread > 0, spread, 1).reciprocal()
        rows = ((maps - mean[:, None, None]) * scale[:, None, None]).flatten(1)
        return {"floors": floors, "mean": mean, "scale": scale, "centre": mean_row(rows)}

    def fitted(self, shape: Shape, tensors: Mapping[str, Tensor]) -> nn.Module:
        return _LogScatteringModule(self, shape, tensors)


class _Plain(nn.Module):
    """Scattering of opponent colours."""

    colours: Tensor

    def __init__(self, stage: LogScattering, shape: Shape) -> None:
        super().__init__()
        self.scattering = stage.scattering.module(shape)
        colours = torch.tensor(_OPPONENT) if shape[0] == 3 else torch.eye(shape[0])
        self.register_buffer("colours", nn.functional.normalize(colours))

    def forward(self, images: Tensor) -> Tensor:
        turned = torch.einsum("oc,nchw->nohw", self.colours, images.to(self.colours))
        features: Tensor = self.scattering(turned)
        return features


class _LogScatteringModule(nn.Module):
    """From (records, C, H, W) to standardised logarithms."""

    floors: Tensor
    mean: Tensor
    scale: Tensor
    centre: Tensor

    def __init__(self, stage: LogScattering, shape: Shape, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.stage, self.plain = stage, _Plain(stage, shape)
        for name, value in tensors.items():
            self.register_buffer(name, value)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        maps = _logarithms(self.stage, self.plain(images), self.floors)
        maps = (maps - self.mean[:, None, None]) * self.scale[:, None, None]
        return centred(maps.flatten(1), self.centre).view_as(maps)


def _logarithms(stage: LogScattering, plain: Tensor, floors: Tensor) -> Tensor:
    """Logarithms above the channels' ``floors``, none where these are infinite, plus those of the mirror image."""
    linear = floors.isinf()[:, None, None]
    logarithms = plain.clamp(min=0).add_(torch.where(floors.isinf(), 1, floors)[:, None, None]).log_()
    maps = torch.where(linear, plain, logarithms)
    paths = stage.scattering.paths
    planes = maps.view(len(maps), maps.shape[1] // paths, paths, *maps.shape[2:])
    mirrored = planes[:, :, _mirrored_paths(stage)].flip(-1).flatten(1, 2)
    both: Tensor = (maps + mirrored)[..., : -(-maps.shape[-1] // 2)]
    return both


def _mirrored_paths(stage: LogScattering) -> list[int]:
    """Where each path of an image stands among those of its mirror image: angles become their opposites.

    ``_wavelet_spectra`` of scattering.py gives angle number a the direction (angles // 2 - 1 - a) pi / angles.
    """
    angles = stage.angles
    opposite = [(2 * (angles // 2 - 1) - angle) % angles for angle in range(angles)]
    paths = [0, *(1 + scale * angles + angle for scale in range(stage.J) for angle in opposite)]
    for later in range(stage.J - 1, 0, -1):  # scales after the first one of a path
        begin = len(paths)
        paths += [
            begin + (first * later + scale) * angles + second
            for first in opposite
            for scale in range(later)
            for second in opposite
        ]
    return paths
