"""Two-layer wavelet scattering: a fixed transform of images, after which a linear model is a good one.

With Morlet wavelets psi of scale 2^j and angle theta, and a Gaussian low-pass phi of scale 2^J, an image x becomes

    x * phi,    |x * psi_1| * phi,    ||x * psi_1| * psi_2| * phi    for j2 > j1,

read off at every 2^J-th pixel (Bruna and Mallat 2013, "Invariant Scattering Convolution Networks"). Nothing is learned,
so it costs no privacy. Before the wavelets the image is mirrored at its edges, afterwards those margins are cut off;
the values, and the order of the channels, are those of ``Scattering2D(J, shape, L=angles)`` of kymatio (Andreux et al.
2020). Then each group of neighbouring channels of a record is brought to mean 0 and variance 1, and the record to l2
norm 1: both look at that record alone (group norm: Tramer and Boneh 2021, with 27 groups). ``centre`` maps pixels from
[0, 1] to [-2, 2] first: wavelets do not see the level, but x * phi shares a group with them, and off centre its level
would drown the rest of the group (one point of accuracy on colour images, none on digits).

How it is fast: the real part of psi is even and its imaginary part is odd, so half a spectrum serves for each; a
convolution is evaluated only where it is read, by adding up the frequencies that alias; the way back from the spectrum,
and phi, which is a product of two one-dimensional Gaussians, are small matrices; images go through in chunks that stay
in the cache.

    case                                  what happens
    zero image                            features are 0, not NaN, unless the image is centred first
    constant image                        wavelets have mean 0: only x * phi is left, up to rounding
    non-finite pixel                      that record's features are non-finite, no other record's
    no records                            an empty tensor of the right shape
    side of at most 2^J pixels            InputError: mirroring the margin needs more
    record that is not (C, H, W)          InputError
    groups that do not divide channels    InputError; ``groups=0`` leaves group norm out
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadp import checks
from adadp.app.features.base import FixedStage, Shape
from adadp.errors import InputError

_PI = 3.1415
"""The pi in the filters' norm, kept as kymatio has it so that features agree with it in all digits of a float32."""

_CHUNK_PIXELS = 1 << 15
"""Pixels (margins included) that are transformed at once: the second layer holds about 60 times as many numbers."""


@dataclass(frozen=True)
class Scattering(FixedStage):
    """Scattering up to scale 2^``J`` with ``angles`` angles; group norm unless ``groups=0``; unit norm if ``unit``;
    pixels centred first if ``centre``. Maps are read at the first of every 2^J pixels, or in their ``middle``, where
    the map of a mirror image is the mirrored map.
    """

    name = "scatter"
    version = 2
    J: int = 2
    angles: int = 8
    groups: int = 27
    unit: bool = True
    centre: bool = True
    middle: bool = False

    def __post_init__(self) -> None:
        self._set(
            J=checks.count("J", self.J, why="Features average over 2^J pixels."),
            angles=checks.count("angles", self.angles, why="Each wavelet has an angle."),
            groups=checks.count("groups", self.groups, minimum=0, why="0 is no group norm."),
        )
        for flag in ("unit", "centre", "middle"):
            value = getattr(self, flag)
            if value not in (False, True):
                raise InputError(f"{flag} must be 0 or 1, got {value!r}.", fix=f"Write {flag}=0 or {flag}=1.")
            self._set(**{flag: bool(value)})

    @property
    def paths(self) -> int:
        """Channels for each channel of the image: orders 0, 1 and 2."""
        return 1 + self.J * self.angles + self.J * (self.J - 1) // 2 * self.angles**2

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or shape[0] < 1:
            raise InputError(
                f"Scattering reads images, got records of shape {tuple(shape)}.",
                fix="Give records of shape (channels, height, width).",
            )
        planes, height, width = shape
        if min(height, width) <= 2**self.J:
            raise InputError(
                f"Scattering with J={self.J} cannot read records of shape {tuple(shape)}.",
                why=f"The image is mirrored at its edges, which takes more than 2^J = {2**self.J} pixels a side.",
                fix="Use larger images or a smaller J.",
            )
        channels = planes * self.paths
        if self.groups and channels % self.groups:
            raise InputError(
                f"{channels} channels do not make {self.groups} groups of one size.",
                why="Group norm puts the same number of neighbouring channels in each group.",
                fix="Pass groups that divide the channels, or groups=0 for no group norm.",
            )
        return channels, height >> self.J, width >> self.J

    def module(self, shape: Shape) -> nn.Module:
        return _ScatteringModule(self, shape).eval()


class _ScatteringModule(nn.Module):
    """From (records, C, H, W) to features in float32; the filters are buffers. No gradient flows through it."""

    def __init__(self, stage: Scattering, shape: Shape) -> None:
        super().__init__()
        self.stage, self.shape, self.features = stage, tuple(shape), stage.output_shape(shape)
        J, angles = stage.J, stage.angles
        side = 1 << J
        margins = [(length // side + 2) * side - length for length in shape[1:]]
        self.margins = [part for margin in reversed(margins) for part in (margin // 2, margin - margin // 2)]
        size = (shape[1] + margins[0], shape[2] + margins[1])
        self.chunk = max(1, _CHUNK_PIXELS // (shape[0] * size[0] * size[1]))
        spectra = [_wavelet_spectra(size, scale, angles) for scale in range(J)]
        self.first = nn.ModuleList(_Modulus(spectra[scale], 0, scale) for scale in range(J))
        self.second = nn.ModuleList(
            _Modulus(spectra[scale], before, scale) for before in range(J) for scale in range(before + 1, J)
        )
        self.low_pass = nn.ModuleList(_LowPass(size, level, J, stage.middle) for level in range(J))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1:] != self.shape:
            raise InputError(
                f"This scattering reads records of shape {self.shape}, got {tuple(images.shape[1:])}.",
                fix="Give a batch of such records, or make the module for their shape.",
            )
        images = images.to(next(self.buffers()))
        if not len(images):
            return images.new_empty(0, *self.features)
        if self.stage.centre:
            images = (images - 0.5) * 4
        chunks = (images[start : start + self.chunk] for start in range(0, len(images), self.chunk))
        return torch.cat([self._normalised(self._scattered(chunk)) for chunk in chunks])

    def _scattered(self, images: Tensor) -> Tensor:
        """Of every plane the paths of order 0, of order 1 by (scale, angle), of order 2 by the first and the second."""
        planes = functional.pad(images, self.margins, mode="reflect").flatten(0, 1)
        spectrum = torch.fft.fft2(planes)
        once = [modulus(spectrum) for modulus in self.first]
        paths = [self.low_pass[0](planes[:, None])]
        paths += [low_pass(waves) for low_pass, waves in zip(self.low_pass, once, strict=True)]
        second = iter(self.second)
        for scale, waves in enumerate(once[:-1]):
            spectrum = torch.fft.fft2(waves.flatten(0, 1))
            twice = [low_pass(next(second)(spectrum)) for low_pass in self.low_pass[scale + 1 :]]
            paths.append(torch.cat(twice, dim=1).view(len(planes), -1, *self.features[1:]))
        return torch.cat(paths, dim=1).view(len(images), *self.features)

    def _normalised(self, features: Tensor) -> Tensor:
        if self.stage.groups:
            features = functional.group_norm(features, self.stage.groups)
        return functional.normalize(features.flatten(1)).view_as(features) if self.stage.unit else features


class _Modulus(nn.Module):
    """|u * psi| for every angle, from the spectrum of real u on every 2^level-th pixel, read on every 2^scale-th.

    A real filter spectrum P is E + O, even and odd: with U the spectrum of u, U E is that of the real part of the
    convolution and -i U O that of its imaginary part. Reading every k-th pixel adds the k^2 frequencies that alias.
    """

    filters: Tensor
    rows: Tensor
    columns: Tensor

    def __init__(self, spectra: Tensor, level: int, scale: int) -> None:
        super().__init__()
        self.every = 1 << (scale - level)
        whole = _cropped(_cropped(spectra, level, -2), level, -1)
        mirrored = whole.flip(-2, -1).roll((1, 1), (-2, -1))
        parts = torch.stack([whole + mirrored, whole - mirrored]) / (2 * self.every**2)
        self.size = whole.shape[-2] // self.every, whole.shape[-1] // self.every
        filters = self._aliases(parts).unsqueeze(-2).expand(-1, -1, -1, -1, 2, -1).flatten(-3).unsqueeze(2)
        self.register_buffer("filters", filters.float(), persistent=False)
        self.register_buffer("rows", _inverse_of_half(self.size[0]).float(), persistent=False)
        self.register_buffer("columns", _inverse(self.size[1]).float(), persistent=False)

    def _aliases(self, spectrum: Tensor) -> Tensor:
        """(..., M, N) as (k^2, ..., m / 2 + 1, n): half the spectrum of the coarse grid, once for every alias."""
        rows, columns = self.size
        grid = spectrum.reshape(*spectrum.shape[:-2], self.every, rows, self.every, columns)
        return grid.movedim((-4, -2), (0, 1)).flatten(0, 1)[..., : rows // 2 + 1, :]

    def forward(self, spectrum: Tensor) -> Tensor:
        aliases = self._aliases(spectrum)
        real, imaginary = aliases.real, aliases.imag
        even, odd = torch.stack([real, imaginary], dim=-2), torch.stack([imaginary, -real], dim=-2)
        terms = torch.stack([even, odd], dim=1).flatten(-3).unsqueeze(3)
        total = terms[0] * self.filters[0]
        for term, filters in zip(terms[1:], self.filters[1:], strict=True):
            total.addcmul_(term, filters)
        columns = torch.matmul(total.view(*total.shape[:-1], -1, 2 * self.size[1]), self.columns)
        parts = torch.matmul(self.rows, columns.view(*total.shape[:-1], -1, self.size[1]))
        return parts[0].square_().addcmul_(parts[1], parts[1]).sqrt_()


class _LowPass(nn.Module):
    """u * phi from resolution 2^-``level``, read at every 2^J-th pixel without the outermost one on each side."""

    rows: Tensor
    columns: Tensor

    def __init__(self, size: tuple[int, int], level: int, J: int, middle: bool) -> None:
        super().__init__()
        rows, columns = (_low_pass_matrix(length, level, J, middle) for length in size)
        self.register_buffer("rows", rows.float(), persistent=False)
        self.register_buffer("columns", columns.T.contiguous().float(), persistent=False)

    def forward(self, waves: Tensor) -> Tensor:
        return torch.matmul(torch.matmul(self.rows, waves), self.columns)


def _inverse(length: int) -> Tensor:
    """Inverse Fourier transform of a row [real parts, imaginary parts]: the matrix to multiply it by from the right."""
    matrix = torch.fft.ifft(torch.eye(length, dtype=torch.float64))
    return torch.cat([torch.cat([matrix.real, matrix.imag], 1), torch.cat([-matrix.imag, matrix.real], 1)])


def _inverse_of_half(length: int) -> Tensor:
    """The same for a column of pairs (real, imaginary) of half a spectrum, to multiply it by from the left."""
    basis = torch.eye(length // 2 + 1, dtype=torch.complex128)
    pairs = torch.stack([torch.fft.irfft(basis, length), torch.fft.irfft(1j * basis, length)], 1)
    return pairs.flatten(0, 1).T.contiguous()


def _low_pass_matrix(length: int, level: int, J: int, middle: bool) -> Tensor:
    """One side of phi, a Gaussian of standard deviation 0.8 2^(J-1): from length / 2^level to length / 2^J - 2.

    In the ``middle`` means (2^J - 1) / 2 pixels further.
    """
    width = 0.8 * 2 ** (J - 1)
    near = torch.arange(-2 * length, 3 * length, dtype=torch.float64)
    waves = torch.exp(-near.square() / (2 * width**2)).reshape(5, length)
    periodic = waves.sum(0) / math.sqrt(2 * _PI * width**2)
    shift = torch.fft.fftfreq(length >> level, dtype=torch.float64) * (2**J - 1) / 2 ** (level + 1) if middle else 0
    phase = torch.exp(2j * math.pi * torch.as_tensor(shift))
    response = torch.fft.ifft(_cropped(torch.fft.fft(periodic).real, level, -1) * phase).real
    read = torch.arange(1, (length >> J) - 1)[:, None] << (J - level)
    return torch.take(response, (read - torch.arange(len(response))) % len(response))


def _wavelet_spectra(size: tuple[int, int], scale: int, angles: int) -> Tensor:
    """Spectra, which are real, of the Morlet wavelets g (exp(i xi.u) - beta), with beta so that the mean is 0.

    |xi| = 3 pi / 4 at scale 0; g is a Gaussian of standard deviation 0.8 along xi, and angles / 4 times it across.
    """
    width, slant, frequency = 0.8 * 2**scale, 4 / angles, 0.75 * math.pi / 2**scale
    rows, columns = (torch.arange(-2 * length, 3 * length, dtype=torch.float64) for length in size)
    spectra = []
    for index in range(angles):
        angle = (angles // 2 - 1 - index) * math.pi / angles
        along = rows[:, None] * math.cos(angle) + columns * math.sin(angle)
        across = columns * math.cos(angle) - rows[:, None] * math.sin(angle)
        envelope = torch.exp(-(along.square() + (slant * across).square()) / (2 * width**2))
        envelope, wave = (
            values.reshape(5, size[0], 5, size[1]).sum((0, 2)) * slant / (2 * _PI * width**2)
            for values in (envelope, torch.polar(envelope, frequency * along))
        )
        spectra.append(torch.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real)
    return torch.stack(spectra)


def _cropped(spectrum: Tensor, level: int, dim: int) -> Tensor:
    """The frequencies that the grid of every 2^level-th pixel knows, -n/2 to n/2 - 1 of them, along one dimension."""
    length = spectrum.shape[dim]
    kept = torch.fft.fftfreq(length >> level, d=1 / (length >> level)).round().long() % length
    return spectrum.index_select(dim, kept)
