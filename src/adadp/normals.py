"""Standard normals from words of 64 random bits, by the transform of Box and Muller 1958: the same bits everywhere.

For two words i and j, signed, the normals are r cos t and r sin t, with

    u = |i + 1/2| / 2**63,    r = sign(i + 1/2) sqrt(-2 ln u),    t = pi j / 2**64

t is uniform over half a circle, and the sign of i + 1/2, which u does not depend on, chooses the half.

**The tail.** The radius reaches as far as the smallest u lets it. From 32-bit uniforms it ends at 6.7, so that outcomes
beyond are possible for one data set and impossible for its neighbour, whose mean is another. The missing tail is a
chance of 2**-32 per pair: 0.08 over the 7e8 draws of 10,000 steps of a network of 71,010 parameters, which no delta
allows. Here u keeps 53 significant bits down to 2**-64, the radius reaches 9.4, and the missing tail is one of 2e-11.

**The bits.** Logarithms and cosines of libraries differ in their last bit from one processor to another. Here all is
made of sums, products, quotients and roots of doubles, each rounded as IEEE 754 says, and of whole numbers, in one
order. So a seed has the same normals on every machine, and a faster way than numpy can be compared with it: C that is
compiled when a process first asks for ``_MANY`` (``adadp.app.compiled_normals``) is used if it makes the same bits
(``_agree``). ``ADADP_COMPILE_NOISE=0`` does without it.

Rounding makes a relative error of at most 2**-51 in r, and in a normal one of at most 2**-50 r: more than was found
against 60 digits (tests/core/test_normals.py). All numbers take the same operations.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from adadp.registry import Registry

COMPILE = "ADADP_COMPILE_NOISE"
"""Set to 0, nothing that makes noise is compiled; set to 1, all is, at once and on every device."""
_MANY = 1 << 16
"""Normals asked for at once by whoever asks for more later: compiling takes as long as 2**25 of them by numpy."""
_IN_CACHE = 1 << 14
"""Pairs that numpy makes at a time: they stay in the second cache of a core."""

# Of fdlibm (Sun Microsystems 1993), __ieee754_log, __kernel_sin and __kernel_cos: polynomials right to 2**-58.
LOG = (
    6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
    1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01,
)  # fmt: skip
SINE = (
    -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04, 2.75573137070700676789e-06,
    -2.50507602534068634195e-08, 1.58969099521155010221e-10,
)  # fmt: skip
COSINE = (
    4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05, -2.75573143513906633035e-07,
    2.08757232129817482790e-09, -1.13596475577881948265e-11,
)  # fmt: skip
ROOT_HALF = 0x3FE6A09E667F3BCD
"""The bits of the square root of 1/2."""
ANGLE = math.pi * 2.0**-65
LN2 = math.log(2.0)

Words = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Transform = Callable[[Words, Words, Doubles, Doubles], None]
"""From the words i and j of pairs to their normals, which it writes into the last two."""

FASTER: Registry[Callable[[], Transform | None]] = Registry(
    "transform", {}, lambda found: found if callable(found) else None
)
"""What makes a transform, or None where it cannot."""


def in_numpy(i: Words, j: Words, x: Doubles, y: Doubles) -> None:
    """The transform of the module's first lines."""
    for start in range(0, len(i), _IN_CACHE):
        piece = slice(start, start + _IN_CACHE)
        shifted = i[piece] + 0.5
        bits = np.abs(shifted).view(np.int64)
        exponent = (bits - ROOT_HALF) >> 52
        mantissa = (bits - (exponent << 52)).view(np.float64)
        f = mantissa - 1.0
        s = f / (mantissa + 1.0)
        s2 = s * s
        square = ((63 - exponent) * LN2 - (f - (f - _polynomial(LOG, s2) * s2) * s)) * 2.0
        radius = np.copysign(np.sqrt(square), shifted)
        half = j[piece] * ANGLE
        h2 = half * half
        sine = _polynomial(SINE, h2) * h2 * half + half
        cosine = 1.0 - (h2 * 0.5 - _polynomial(COSINE, h2) * (h2 * h2))
        x[piece] = (1.0 - sine * sine * 2.0) * radius
        y[piece] = sine * cosine * 2.0 * radius


def _polynomial(coefficients: tuple[float, ...], at: Doubles) -> Doubles:
    """By Horner's rule; the constant comes first."""
    *others, highest = coefficients
    found = at * highest
    for value in reversed(others[1:]):
        found += value
        found *= at
    found += others[0]
    return found


def normals_of(words: npt.NDArray[np.uint64]) -> Doubles:
    """A normal for each of an even number of words. The first half of these are the i, the others the j; the first half
    of the normals are the r cos t, the others the r sin t.
    """
    found, signed, pairs = np.empty(len(words)), words.view(np.int64), len(words) // 2
    asked = os.environ.get(COMPILE, "")
    fast = compiled() if asked == "1" or (asked != "0" and len(words) >= _MANY) else None
    (fast or in_numpy)(signed[:pairs], signed[pairs:], found[:pairs], found[pairs:])
    return found


@functools.cache
def compiled() -> Transform | None:
    """A faster way that makes the same bits, if an installed package has one that works here."""
    return next((made for make in FASTER.values() if (made := make()) is not None and _agree(made)), None)


def _agree(transform: Transform) -> bool:
    """Whether ``transform`` makes the bits of ``in_numpy``: of powers of two, of numbers beside them, and of others."""
    powers = np.uint64(1) << np.arange(64, dtype=np.uint64)
    words = np.concatenate([powers, powers - np.uint64(1), ~powers, np.random.SFC64(0).random_raw(1 << 14)])
    i, j, made = words.view(np.int64), words[::-1].copy().view(np.int64), np.empty((2, 2, len(words)))
    in_numpy(i, j, *made[0])
    transform(i, j, *made[1])
    return bool(np.array_equal(made[0], made[1]))
