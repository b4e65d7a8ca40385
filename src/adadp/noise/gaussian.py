"""The Gaussian mechanism on a grid, so that the low bits of floating-point noise tell nothing.

**The attack.** Doubles are not real numbers. Which low bits a sum x + N can have depends on x, so an outcome possible
for one data set may be impossible for its neighbour, whatever epsilon was computed (Mironov 2012 for Laplace noise;
Jin et al. 2022, "Are We There Yet? Timing and Floating-Point Attacks on Differential Privacy Systems", for Gaussian
noise; Holohan and Braghin 2021, "Secure Random Sampling in Differential Privacy", blur the bits with several draws).

**The guard.** Let m be the number of coordinates, C the ``l2_bound`` and g the largest power of two with
g sqrt(m) <= C / 2**14. Write R for rounding to multiples of g, coordinate by coordinate. Released is

    R(x) + R(N),    N ~ normal with standard deviation  noise_multiplier * (C + g sqrt(m))

1. R moves a coordinate by at most g / 2, so if x and x' differ by at most C in l2, R(x) and R(x') differ by at most
   C + g sqrt(m). (Where replacing a record moves the sum by 2C, by at most 2C + g sqrt(m) <= 2 (C + g sqrt(m)).)
2. R(x) + N is therefore the Gaussian mechanism with exactly ``noise_multiplier`` on the query R(x).
3. R(x) is on the grid, so R(R(x) + N) = R(x) + R(N): what is released is R(R(x) + N), post-processing of 2.
4. In units of g all terms are whole numbers below 2**53, for which the sum of two doubles is exact. So the computer
   releases what 3 says, and every multiple of g is as possible for x' as for x.

The price is a standard deviation larger by a factor of at most 1 + 2**-14.

**Several processes** (``adadp.ranks``) have each a part of x: a double-precision sum of the contributions of its own
records. The parts are added in double precision, as the parts of a batch are in one process; a coordinate is added up,
rounded to the grid and given its noise in one process alone, and so once. What is released is what 3 says, whichever
process a record is in, and all processes hold the same bits of it; or, of tensors that are split (``adadp.sharding``),
each its rows, which were added up before.

**Not covered.** The sampler's own finite precision: N is a function of 64-bit words, right to about 2**-50 and cut off
at 9.4 standard deviations (``adadp.normals``). The time a release takes. What happened before: ``l2_bound`` must
hold for the sum as it was computed, with the rounding errors of its additions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from adadp import checks
from adadp.errors import InputError
from adadp.noise.chacha import whole_noise
from adadp.randomness import RandomSource
from adadp.ranks import ONE, Ranks
from adadp.sharding import is_split, own_part, own_rows

_GRID_BITS = 14
"""Rounding to the grid may move two sums apart by 2**-14 of the l2 bound."""
_LARGEST = 2.0**52
"""Whole numbers up to this, and their sums, are exact in double precision."""
_FARTHEST = 10.0
"""No source makes a normal beyond this many standard deviations."""
_EXPONENTS = (-1022, 970)
"""Exponents of grids in which 1/g and 2**53 g are doubles."""
_BLOCK = 1 << 20
"""Coordinates that processes exchange, or a device makes noise for, at a time: a power of two of at least
``chacha.PER_BLOCK``, as counters need."""
_IN_CACHE = 1 << 16
"""Coordinates that the processor makes noise for at a time: all they need stays near its second cache."""


class GaussianMechanism:
    """Adds normal noise of standard deviation ``noise_multiplier * l2_bound``, nearly, to a sum; see the module.

    All coordinates of all tensors are one vector: one record may move it by ``l2_bound`` in l2, and the noise is drawn
    once, in the order of the mapping.

        the sum, or the parameters            what is released
        no tensor                             an empty dict
        tensors without elements              tensors without elements
        all zero (an empty batch)               noise
        noise_multiplier = 0                  the sum, unrounded, whatever l2_bound is: the non-private run
        l2_bound = 0, inf or nan, with noise  refused
        noise_multiplier negative, inf, nan   refused, as is one above about 10**10 / sqrt(m): not exact any more
        a value not finite, or above 2**52 g  refused without a word about it: no clipped sum (of 10**8 records) has one
        float64                               ``dtype``, or float64
        float32, float16, bfloat16            ``dtype``, or float32
        whole numbers, booleans, complex      refused
        tensors of several dtypes or devices  each with its own
    """

    overwrites = False
    """Whether sums are overwritten with what is released, if that has their dtype: no second vector of all coordinates,
    and nothing sensitive is left. Audits keep the sums."""

    def __init__(self, *, overwrites: bool = False) -> None:
        self.overwrites = overwrites

    def release(
        self,
        total: Mapping[str, Tensor],
        *,
        l2_bound: float,
        noise_multiplier: float,
        source: RandomSource,
        step: int,
        purpose: str = "noise",
        dtype: torch.dtype | None = None,
        ranks: Ranks = ONE,
    ) -> dict[str, Tensor]:
        """Release the sensitive sums ``total``, to which one record contributes at most ``l2_bound`` in l2.

        The release must have been charged. Two releases of one step need different purposes, or a seeded source gives
        both the same noise. Each of several ``ranks`` has its part of the sums; all get the same release. With a
        ``dtype``, that of the sums, which may tell how many were added, does not show.
        """
        noise_multiplier = checks.non_negative(
            "noise_multiplier", noise_multiplier, why="It is a standard deviation over an l2 bound."
        )
        _check_dtypes(total)
        coordinates = sum(tensor.numel() for tensor in total.values())
        if noise_multiplier == 0 or coordinates == 0:
            _check_range(total, torch.finfo(torch.float64).max)
            return {name: self._noiseless(tensor, dtype, ranks) for name, tensor in total.items()}
        grid = grid_of(l2_bound, coordinates)
        deviation = noise_multiplier * (l2_bound / grid + math.sqrt(coordinates))
        if not deviation * _FARTHEST <= _LARGEST:
            raise InputError(
                f"`noise_multiplier` {noise_multiplier:g} is too large for {coordinates} coordinates.",
                why="The noise would leave the range in which additions are exact.",
                fix="Pass a smaller `noise_multiplier`.",
            )
        _check_range(total, _LARGEST * grid / ranks.size)
        noise = _Noise(coordinates, deviation, source, purpose, step)
        released = {name: self._room(tensor, dtype or _kept_dtype(tensor)) for name, tensor in total.items()}
        if ranks.several:
            ranks.meet(f"releasing {purpose} of step {step}")
            if any(map(is_split, total.values())):
                _add_parts(total, released, grid, noise)
            else:
                _add_together(*_flat(total, released), grid, noise, ranks)
        else:
            _add(*_flat(total, released), grid, noise)
        return released

    def _noiseless(self, tensor: Tensor, dtype: torch.dtype | None, ranks: Ranks) -> Tensor:
        copy, kept = not (self.overwrites and tensor.is_contiguous()), dtype or _kept_dtype(tensor)
        own = tensor.detach().to(torch.float64 if ranks.several else kept, copy=copy)
        return own.to(kept) if is_split(tensor) else ranks.summed("adding up", own.contiguous()).to(kept)

    def _room(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Memory for what is released of ``tensor``."""
        if self.overwrites and tensor.dtype is dtype and tensor.is_contiguous():
            return tensor.detach()
        if is_split(tensor):
            return torch.empty_like(tensor, dtype=dtype)
        return torch.empty(tensor.shape, dtype=dtype, device=tensor.device)


def _flat(total: Mapping[str, Tensor], released: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The coordinates of the sums and of what is released."""
    return [each.detach().reshape(-1) for each in total.values()], [each.view(-1) for each in released.values()]


def _add_parts(total: Mapping[str, Tensor], released: Mapping[str, Tensor], grid: float, noise: _Noise) -> None:
    """R(x) + R(N) for the rows of x that are here: they are added up already, and no other process has them."""
    before = 0
    for name, tensor in total.items():
        first = before + own_rows(tensor).start * math.prod(tensor.shape[1:])
        values, flat = own_part(tensor.detach()).reshape(-1), own_part(released[name]).view(-1)
        for start in range(0, len(flat), _BLOCK):
            stop = min(len(flat), start + _BLOCK)
            drawn = noise.between(first + start, first + stop, flat.device)
            whole = values[start:stop].to(torch.float64, copy=True).mul_(1 / grid).round_()
            flat[start:stop] = whole.add_(drawn).mul_(grid)
        before += tensor.numel()


def _add(sums: list[Tensor], flats: list[Tensor], grid: float, noise: _Noise) -> None:
    """R(x) + R(N) of ``sums`` into ``flats``, a block at a time."""
    for values, flat in zip(sums, flats, strict=True):
        start = 0
        while start < len(flat):
            drawn = noise.take(len(flat) - start, flat.device)
            stop = start + len(drawn)
            whole = values[start:stop].to(torch.float64, copy=True).mul_(1 / grid).round_()
            flat[start:stop] = whole.add_(drawn).mul_(grid)
            start = stop


def _add_together(sums: list[Tensor], flats: list[Tensor], grid: float, noise: _Noise, ranks: Ranks) -> None:
    """The same where each of ``ranks`` has a part of x: a stretch of coordinates at a time, of which every process adds
    up an equal share, gives it noise, and sends it to all.
    """
    device, coordinates = sums[0].device, sum(map(len, sums))
    sent = max((flat.dtype for flat in flats), key=lambda dtype: dtype.itemsize)
    for start in range(0, coordinates, ranks.size * _BLOCK):
        count = min(ranks.size * _BLOCK, coordinates - start)
        share = -(-count // ranks.size)
        mine = torch.zeros(ranks.size * share, dtype=torch.float64, device=device)
        for piece, at in _pieces(sums, start, count):
            mine[at : at + len(piece)] = piece
        first = start + min(ranks.rank * share, count)
        last = start + min((ranks.rank + 1) * share, count)
        whole = ranks.scattered_sum(mine).mul_(1 / grid).round_()
        whole[: last - first] += noise.between(first, last, device)
        everything = ranks.gathered(whole.mul_(grid).to(sent))
        for piece, at in _pieces(flats, start, count):
            piece.copy_(everything[at : at + len(piece)])


class _Noise:
    """The noise of one release in units of its grid, coordinate by coordinate, in blocks.

    On the processor the source draws it; elsewhere it is made on the device from a key of the source (``chacha``).
    """

    def __init__(self, coordinates: int, deviation: float, source: RandomSource, purpose: str, step: int) -> None:
        self._coordinates, self._deviation = coordinates, deviation
        self._source, self._purpose, self._step = source, purpose, step
        self._first, self._key = 0, b""
        self._block = torch.empty(0)

    def take(self, most: int, device: torch.device) -> Tensor:
        """The noise of the next coordinates, as many as ``most`` or as the block at hand has left."""
        if not len(self._block):
            self._block = self._drawn(self._first, device)
            self._first += len(self._block)
        taken, self._block = self._block[:most].to(device), self._block[most:]
        return taken

    def between(self, first: int, last: int, device: torch.device) -> Tensor:
        """The noise of these coordinates: the same as ``take`` gives them where the source is reproducible."""
        size = _size_on(device)
        blocks = range(first // size * size, last if first < last else 0, size)
        drawn = [self._drawn(block, device)[max(0, first - block) : last - block] for block in blocks]
        return torch.cat(drawn) if drawn else torch.zeros(0, dtype=torch.float64, device=device)

    def _drawn(self, first: int, device: torch.device) -> Tensor:
        """The noise of the block that begins with the coordinate ``first``."""
        count = min(_size_on(device), self._coordinates - first)
        if device.type == "cpu":
            purpose = f"{self._purpose}, from {first}" if first else self._purpose
            return self._source.normal(count, purpose=purpose, step=self._step).mul_(self._deviation).round_()
        self._key = self._key or self._source.key(purpose=self._purpose, step=self._step)
        return whole_noise(self._key, first, count, self._deviation, device)


def _size_on(device: torch.device) -> int:
    return min(_BLOCK, _IN_CACHE) if device.type == "cpu" else _BLOCK


def _pieces(flats: list[Tensor], start: int, count: int) -> Iterator[tuple[Tensor, int]]:
    """``count`` coordinates of ``flats`` in a row from ``start`` on: each piece with where it begins among these."""
    first = 0
    for flat in flats:
        piece = flat[max(0, start - first) : max(0, start + count - first)]
        if len(piece):
            yield piece, max(0, first - start)
        first += len(flat)


def grid_of(l2_bound: float, coordinates: int) -> float:
    """The power of two to whose multiples a vector of so many coordinates is rounded: public."""
    why = "It is what one record can move the sum by; noise is proportional to it."
    bound = checks.positive("l2_bound", l2_bound, why=why)
    exponent = math.floor(math.log2(bound) - math.log2(coordinates) / 2) - _GRID_BITS
    if not _EXPONENTS[0] <= exponent <= _EXPONENTS[1]:
        raise InputError(
            f"l2_bound {bound:g} is outside the range of the noise grid.",
            why=why,
            fix="Scale the contributions so that their bound is nearer to 1.",
        )
    return math.ldexp(1.0, exponent)


def _check_dtypes(total: Mapping[str, Tensor]) -> None:
    for name, tensor in total.items():
        if not tensor.is_floating_point():
            raise InputError(
                f"The sum {name!r} has dtype {tensor.dtype}, which is not a floating-point one.",
                why="Noise would be truncated with it.",
                fix="Convert it to float32 before the release.",
            )


def _check_range(total: Mapping[str, Tensor], largest: float) -> None:
    """Refuse values beyond ``largest``, infinite ones and nan, and reveal none of them."""
    parts = [own_part(tensor.detach()) for tensor in total.values()]
    ends = [end.double() for part in parts if part.numel() for end in torch.aminmax(part)]
    if ends and not farthest(ends) <= largest:  # nan wins in all of them
        raise InputError(
            "The sum to be released holds a value that is not finite or far beyond its bound. Nothing was released.",
            why="No sum of clipped contributions can; what is in it must not be shown.",
            fix="Clip every record's contribution, and let a record that is not finite contribute zero.",
        )


def farthest(ends: list[Tensor]) -> float:
    """The largest of these numbers without their signs: here, and nowhere else, a release waits for the device."""
    return float(torch.stack([end.to(ends[0].device) for end in ends]).abs().max())


def _kept_dtype(tensor: Tensor) -> torch.dtype:
    """Of what is released: double precision only where the sum had it."""
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32
