"""Random processes that draw images: public by construction, since no photograph is in them.

``leaves`` is the dead leaves model (Matheron 1968; Lee, Mumford and Huang 2001): shapes of every size, the small ones
most frequent, cover one another until nothing is left open. Its edges, scales and contrasts are like those of
photographs, and so are the statistics of filters on them.

    case                                    what happens
    the same count, shape and seed          the same images, but for the last bits of sines on other processors
    a larger count                          the first images are the same, in whole batches of 250
    one channel                             the luminance alone
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from adadp.app.features.base import Shape

_AT_ONCE = 250
_FINER = 2
"""Images are drawn on a grid so many times finer, and reduced: edges get intermediate values."""
_LEAVES, _LARGE = 150, 25
"""Shapes of an image at most, and how many of them, drawn last and so at the back, are large for certain."""
_RADII = 1.5 / 64, 40 / 64
"""The smallest and the largest radius, over the side of the image; their density falls as the third power."""
_LUMINANCE, _CHROMA, _SHADING, _TEXTURE = 0.22, 0.07, 0.06, 0.08
"""Standard deviations: of a shape's grey level, its colours, its shading from edge to edge, and the whole texture."""
_LEVEL = 0.47


def leaves(count: int, shape: Shape, seed: int) -> Tensor:
    """``count`` images of ``shape`` (channels, height, width) with values in [0, 1], by dead leaves."""
    generator = torch.Generator().manual_seed(seed)
    batches = [_leaves(_AT_ONCE, shape, generator) for _ in range(-(-count // _AT_ONCE))]
    return torch.cat(batches)[:count]


def _leaves(count: int, shape: Shape, generator: torch.Generator) -> Tensor:
    planes, *sides = shape
    height, width = (_FINER * side for side in sides)
    side = max(height, width)
    rows, columns = torch.arange(height)[:, None] + 0.5, torch.arange(width) + 0.5
    images = torch.zeros(count, planes, height, width)
    is_open = torch.ones(count, height, width, dtype=torch.bool)

    def uniform(*size: int) -> Tensor:
        return torch.rand(count, *size, generator=generator)

    def normal(*size: int) -> Tensor:
        return torch.randn(count, *size, generator=generator)

    smallest, largest = (side * radius for radius in _RADII)
    for number in range(_LEAVES):
        place = uniform(2, 1, 1) * torch.tensor([height + side / 3, width + side / 3])[:, None, None] - side / 6
        angle, stretch = math.pi * uniform(1, 1), (normal(1, 1) / 4).exp()
        radius = (smallest**-2 - uniform(1, 1) * (smallest**-2 - largest**-2)).rsqrt()
        if number >= _LEAVES - _LARGE:
            radius = side * (10 / 64 + 40 / 64 * uniform(1, 1))
        down, across = rows - place[:, 0], columns - place[:, 1]
        along = (across * angle.cos() + down * angle.sin()) / (radius * stretch)
        aside = (down * angle.cos() - across * angle.sin()) / (radius / stretch)
        ellipse, box = along.square() + aside.square() < 1, torch.maximum(along.abs(), aside.abs()) < 0.9
        covered = torch.where(uniform(1, 1) < 0.5, box, ellipse) & is_open
        if number == _LEAVES - 1:
            covered = is_open.clone()
        colour = _LEVEL + _LUMINANCE * normal(1, 1, 1) + (_CHROMA * normal(planes, 1, 1) if planes > 1 else 0)
        slopes = _SHADING * normal(2, 1, 1)
        shading = along.clamp(-2, 2) * slopes[:, 0] + aside.clamp(-2, 2) * slopes[:, 1]
        images = torch.where(covered[:, None], colour + shading[:, None], images)
        is_open &= ~covered
    images += _TEXTURE * uniform(1, 1, 1) * _texture(normal(1, height, width))
    return functional.avg_pool2d(images, _FINER).clamp(0, 1)


def _texture(noise: Tensor) -> Tensor:
    """White ``noise`` with amplitudes that fall as 1 / frequency, and standard deviation 1 in each image."""
    down, across = (torch.fft.fftfreq(side) for side in noise.shape[-2:])
    frequency = (down[:, None].square() + across.square()).sqrt()
    frequency[0, 0] = 1
    texture: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) / frequency).real
    return texture / texture.std((-2, -1), keepdim=True)


PROCESSES: dict[str, tuple[Callable[[int, Shape, int], Tensor], str]] = {"leaves": (leaves, "dead leaves")}
"""Name -> what draws ``count`` images of a shape from a seed, and what it is called in a certificate."""
