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

**Not covered.** The sampler's own finite precision: N is a function of 64-bit words, right to about 2**-53 and cut off
at 9.4 standard deviations (``adadp.randomness``). The time a release takes. What happened before: ``l2_bound`` must
hold for the sum as it was computed, with the rounding errors of its additions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from adadp import checks
from adadp.errors import InputError
from adadp.randomness import RandomSource

_GRID_BITS = 14
"""Rounding to the grid may move two sums apart by 2**-14 of the l2 bound."""
_LARGEST = 2.0**52
"""Whole numbers up to this, and their sums, are exact in double precision."""
_FARTHEST = 10.0
"""No source makes a normal beyond this many standard deviations."""
_EXPONENTS = (-1022, 970)
"""Exponents of grids in which 1/g and 2**53 g are doubles."""


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
        float64                               float64
        float32, float16, bfloat16            float32
        whole numbers, booleans, complex      refused
        tensors of several dtypes or devices  each with its own
    """

    def release(
        self,
        total: Mapping[str, Tensor],
        *,
        l2_bound: float,
        noise_multiplier: float,
        source: RandomSource,
        step: int,
        purpose: str = "noise",
    ) -> dict[str, Tensor]:
        """Release the sensitive sums ``total``, to which one record contributes at most ``l2_bound`` in l2.

        The release must have been charged. Two releases of one step need different purposes, or a seeded source gives
        both the same noise.
        """
        noise_multiplier = checks.non_negative(
            "noise_multiplier", noise_multiplier, why="It is a standard deviation over an l2 bound."
        )
        _check_dtypes(total)
        vector = _flat(total)
        if noise_multiplier == 0 or len(vector) == 0:
            _check_range(vector, torch.finfo(torch.float64).max)
            return _parts(vector, total)
        grid = grid_of(l2_bound, len(vector))
        deviation = noise_multiplier * (l2_bound / grid + math.sqrt(len(vector)))
        if not deviation * _FARTHEST <= _LARGEST:
            raise InputError(
                f"`noise_multiplier` {noise_multiplier:g} is too large for {len(vector)} coordinates.",
                why="The noise would leave the range in which additions are exact.",
                fix="Pass a smaller `noise_multiplier`.",
            )
        vector.mul_(1 / grid).round_()
        _check_range(vector, _LARGEST)
        vector.add_(source.normal(len(vector), purpose=purpose, step=step).mul_(deviation).round_())
        return _parts(vector.mul_(grid), total)


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


def _check_range(vector: Tensor, largest: float) -> None:
    """Refuse values beyond ``largest``, infinite ones and nan, and reveal none of them."""
    if not len(vector):
        return
    low, high = torch.aminmax(vector)  # nan wins in both
    if not (-largest <= low.item() and high.item() <= largest):
        raise InputError(
            "The sum to be released holds a value that is not finite or far beyond its bound. Nothing was released.",
            why="No sum of clipped contributions can; what is in it must not be shown.",
            fix="Clip every record's contribution, and let a record that is not finite contribute zero.",
        )


def _flat(total: Mapping[str, Tensor]) -> Tensor:
    """All coordinates as one new double-precision vector on the CPU."""
    vector = torch.empty(sum(tensor.numel() for tensor in total.values()), dtype=torch.float64)
    start = 0
    for tensor in total.values():
        vector[start : start + tensor.numel()] = tensor.detach().reshape(-1)
        start += tensor.numel()
    return vector


def _parts(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``vector`` cut into tensors of the shapes and devices of ``like``, in double precision only where it had it."""
    single = vector.to(torch.float32)
    parts = {}
    start = 0
    for name, tensor in like.items():
        source = vector if tensor.dtype is torch.float64 else single
        parts[name] = source[start : start + tensor.numel()].view(tensor.shape).to(tensor.device)
        start += tensor.numel()
    return parts
