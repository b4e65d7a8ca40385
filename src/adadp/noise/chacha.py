"""Noise made where the sums are: ChaCha20 (RFC 8439), Box-Muller and rounding in tensor operations of any device.

The processor has OpenSSL's generator; an accelerator has none, and carrying noise there would cost more than making it.
All is whole-number arithmetic on int32 (torch's wraps, and has no unsigned shift to the right: ``_rotated`` masks the
copies of the sign away) up to the two words of a normal, so that the words are the same bits on every device. The
logarithm and the cosine may differ in their last bit between kinds of devices, as between kinds of processors.

**No block is used twice.** A release has a key of its own: 256 bits of the source, so two releases share one with a
chance of 2**-256. Under one key the nonce of RFC 8439 is (h, 0, 0) and its counter c, both 32 bits, for block number
2**32 h + c: different numbers are different (counter, nonce), as long as they are below 2**64. ``whole_noise`` uses the
numbers from ``first / 8`` on, one for eight coordinates. A release asks for ranges of coordinates that do not overlap,
each beginning at a multiple of 2**20 and no longer than that: ranges of blocks that do not overlap, and none of which
passes a multiple of 2**32, where h would have to change.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from adadp.normals import COMPILE

PER_BLOCK = 8
"""Normals made of one block of ChaCha20: it has 512 bits, and a normal takes a word of 64."""
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_ROUNDS = 10
"""Of columns and of diagonals."""


def signed(word: int) -> int:
    """A word of 32 bits as int32 holds it."""
    return (word & 0xFFFFFFFF) - ((word & 0x80000000) << 1)


def chacha20(state: Tensor) -> Tensor:
    """The block function of RFC 8439, 2.3, for many states at once: int32, ``[16, blocks]`` both."""
    a, b, c, d = state[0:4], state[4:8], state[8:12], state[12:16]
    for _ in range(_ROUNDS):
        a, b, c, d = quarter_round(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)  # the diagonals as columns
        a, b, c, d = quarter_round(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([a, b, c, d]) + state


def quarter_round(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """RFC 8439, 2.1."""
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


def _rotated(word: Tensor, bits: int) -> Tensor:
    return (word << bits) | ((word >> (32 - bits)) & ((1 << bits) - 1))


def states(fixed: Tensor, counter: Tensor) -> Tensor:
    """The states with the words of ``fixed``, 16 of them, and the counter of each block in the place of word 12."""
    whole = fixed.unsqueeze(1).expand(16, len(counter))
    return torch.cat([whole[:12], counter.unsqueeze(0), whole[13:]])


def fixed_words(key: bytes, nonce: Sequence[int], device: torch.device) -> Tensor:
    """All words of a state but the counter, which is 0."""
    words = [int.from_bytes(key[start : start + 4], "little") for start in range(0, 32, 4)]
    return torch.tensor([signed(word) for word in (*_CONSTANTS, *words, 0, *nonce)], dtype=torch.int32, device=device)


def normals(fixed: Tensor, counter: Tensor) -> Tensor:
    """Standard normals, eight for every block, float64: ``RandomSource.normal`` says how and how far they reach."""
    words = chacha20(states(fixed, counter)).to(torch.int64)
    whole = (words[0::2] & 0xFFFFFFFF) | (words[1::2] << 32)
    radius = (whole[:4].double() + 0.5).abs().mul(2.0**-63).log().mul(-2.0).sqrt()
    angle = whole[4:].double() * (math.pi * 2.0**-63)
    return torch.cat([radius * angle.cos(), radius * angle.sin()]).reshape(-1)


def _rounded(fixed: Tensor, counter: Tensor, deviation: Tensor) -> Tensor:
    return normals(fixed, counter).mul(deviation).round()


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return torch.compile(_rounded, dynamic=False)


def whole_noise(key: bytes, first: int, count: int, deviation: float, device: torch.device) -> Tensor:
    """Normals of ``deviation``, rounded to whole numbers, for the coordinates ``first`` (a multiple of ``PER_BLOCK``)
    to ``first + count``: float64, on ``device``. The same call gives the same numbers. They are made eager on the
    processor and compiled on a GPU, where the whole kernel is one launch instead of five hundred.
    """
    start, blocks = first // PER_BLOCK, -(-count // PER_BLOCK)
    fixed = fixed_words(key, (start >> 32, 0, 0), device)
    counter = torch.arange(blocks, dtype=torch.int32, device=device) + signed(start)
    asked = os.environ.get(COMPILE, "")
    kernel = _compiled() if asked == "1" or (asked != "0" and device.type == "cuda" and _real(fixed)) else _rounded
    return kernel(fixed, counter, torch.tensor(deviation, dtype=torch.float64, device=device))[:count]


def _real(value: Tensor) -> bool:
    return type(value) is Tensor
