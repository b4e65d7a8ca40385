"""Which of many coins show heads, found without a toss for every coin: the time follows the heads, not the coins.

The law is exactly that of independent coins, each of which shows heads with probability q = floor(probability 2**64) /
2**64. That is ``probability`` for a double of at least 2**-12, and below it for others, never above
(``RandomSource.coins``). The argument:

1.  Coins stand in blocks of 2**b. The number of heads of a block is Binomial(2**b, q), and given their number every
    set of that size is equally likely. Whoever draws the number and then the set has drawn independent coins.
2.  The number is drawn by inversion: it is how many k have F(k) <= U, for the distribution function F and a uniform U.
    The first 64 bits of U decide it, except where they agree with those of some F(k). Then U is given 64 bits more, and
    F is computed as precisely, until they differ. Bounds of F hold rounding included (``cumulative``), so this is the
    comparison of two real numbers and has no error.
3.  The set is what independent uniform places first hit, as many different ones as the block has heads. Exchanging the
    names of places does not change the law of what they hit, so all sets of one size are equally likely. A block has
    2**b places and a word is a whole number of times 2**b, so places are uniform.
4.  The last block reaches beyond the data. Its coins without a record are dropped, which leaves the others independent.

So a record's coin depends neither on the other records nor on how many there are: what the theorem of amplification by
Poisson sampling needs for add-remove neighbours.

A seeded source has a stream for every group of blocks, and blocks and heads take its words in their order. So a part of
the coins can be drawn by itself and is the same as in the whole, and as in data that have more records behind.

    probability >= 1/16             coins are tossed one by one: there are few to a head
    probability < 2**-64            no heads at all
    probability below 2**-28        blocks of 2**32 with fewer than 16 heads on average
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadp import checks
from adadp.randomness import RandomSource

_BLOCKS = 1024
"""In a group, which is drawn at once."""

_HEADS = 16
"""In a block, at most, on average."""


def heads(source: RandomSource, coins: range, probability: float, *, purpose: str, step: int) -> Tensor:
    """The sorted numbers of those of ``coins`` that show heads: sensitive."""
    favourable = int(checks.probability("probability", probability) * 2.0**64)
    if favourable == 0:
        return torch.empty(0, dtype=torch.int64)
    bits = min(32, max(8, (_HEADS * 2**64 // favourable).bit_length() - 1))
    span = _BLOCKS << bits
    found = [np.empty(0, dtype=np.int64)]
    for group in range(coins.start // span, -(-coins.stop // span)):
        first, named = group * span, f"{purpose}, group {group}"
        reached = min(span, coins.stop - first)
        if favourable >= 2**60:
            inside = source.coins(reached, probability, purpose=named, step=step).numpy().nonzero()[0]
        else:
            blocks = -(-reached >> bits)
            counts = _counts(source, blocks, favourable, bits, purpose=named, step=step)
            inside = _places(source, counts, bits, purpose=named, step=step)
        found.append(inside + first)
    all_found = np.concatenate(found)
    ends = np.searchsorted(all_found, [coins.start, coins.stop])
    return torch.from_numpy(all_found[slice(*ends)])


def cumulative(favourable: int, bits: int, precision: int) -> list[int]:
    """F(k) for k = 0, 1, ... in units of 2**-``precision``: each entry c says c <= F(k) < c + 2.

    F is the distribution function of Binomial(2**``bits``, q) for q = ``favourable`` / 2**64 below 1/16, mean up to 16
    and ``bits`` up to 32. The last entry stands for 1 - 2**-``precision``, the largest number of that precision.

    Proof: the probabilities p are whole numbers of units u = 2**-(``precision`` + 128), rounded down, so sums of them
    are not above F. A square of a number in [0, 1] doubles its error and rounds once, so p(0) is short by less than
    2**32 u. Each step multiplies the error by p(k) / p(k - 1) <= m / k, where m = 2**``bits`` q / (1 - q) < 17.1, and
    rounds once. So an error of 1 somewhere adds at most 1 + m + m**2 / 2! + ... = exp(m) < 2**25 to all sums after it.
    An entry of n steps is short by less than 2**25 (2**32 + n) u < 2**-64 units of its own, and by one for its floor.
    """
    size, tails, unit = 1 << bits, 2**64 - favourable, precision + 128
    chance = tails << (unit - 64)
    for _ in range(bits):
        chance = chance * chance >> unit
    total, table, largest = chance, [chance >> 128], 2**precision - 1
    while table[-1] < largest:
        count = len(table)
        chance = chance * (size - count + 1) * favourable // (count * tails)
        total += chance
        table.append(min(total >> 128, largest))
    return table


@lru_cache(maxsize=64)
def _table(favourable: int, bits: int) -> npt.NDArray[np.uint64]:
    return np.array(cumulative(favourable, bits, 64), dtype=np.uint64)


def _counts(
    source: RandomSource, blocks: int, favourable: int, bits: int, *, purpose: str, step: int
) -> npt.NDArray[np.intp]:
    """How many heads each of ``blocks`` has."""
    words = source.words(blocks, purpose=f"{purpose}, counts", step=step)
    table = _table(favourable, bits)
    counts = np.searchsorted(table, words, side="right")
    undecided = (counts > 0) & (words - table[counts - 1] < 2)
    for block in undecided.nonzero()[0].tolist():
        named = f"{purpose}, block {block}"
        counts[block] = _decided(source, int(words[block]), favourable, bits, purpose=named, step=step)
    return counts


def _decided(source: RandomSource, start: int, favourable: int, bits: int, *, purpose: str, step: int) -> int:
    """The number of heads for a uniform number that begins with ``start``, which is about one of the table.

    A table of 100 entries leaves 200 words of 2**64 undecided.
    """
    precision = 64
    while True:
        (further,) = source.words(1, purpose=f"{purpose}, bits from {precision}", step=step).tolist()
        start, precision = start << 64 | further, precision + 64
        table = cumulative(favourable, bits, precision)
        count = bisect_right(table, start)
        if not count or start - table[count - 1] >= 2:
            return count


def _places(
    source: RandomSource, counts: npt.NDArray[np.intp], bits: int, *, purpose: str, step: int
) -> npt.NDArray[np.int64]:
    """The sorted places of as many heads as ``counts`` says for each block."""
    blocks = np.arange(len(counts), dtype=np.int64)
    places, missing, draw = np.empty(0, dtype=np.int64), counts, 0
    while total := int(missing.sum()):
        words = source.words(total, purpose=f"{purpose}, places {draw}", step=step)
        hit = (words >> np.uint64(64 - bits)).astype(np.int64)
        places = np.sort(np.concatenate([places, np.repeat(blocks << bits, missing) + hit]))
        places = places[np.diff(places, prepend=-1) > 0]
        missing, draw = counts - np.bincount(places >> bits, minlength=len(counts)), draw + 1
    return places
