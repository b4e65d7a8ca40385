"""Coins found without tossing every one: their law, checked exactly and word by word, and parts against the whole."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, pairwise, product

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from adadp.app.samplers import FixedSizeSampler, ReshuffledSampler
from adadp.errors import InputError
from adadp.randomness import RandomSource, SecureSource, SeededSource
from adadp.sampling import Batches, PoissonSampler
from adadp.sampling.heads import _counts, _places, _table, cumulative, heads

SEEDED, SECURE = SeededSource(7), SecureSource()
each_source = pytest.mark.parametrize("source", [SECURE, SEEDED], ids=["secure", "seeded"])


class Scripted(RandomSource):
    """A source that gives ``first`` words, and behind them, asked again, those of ``further``, and so on."""

    reproducible = True

    def __init__(self, *scripts: list[int]) -> None:
        self.scripts = list(scripts)

    def describe(self) -> str:
        return "scripted"

    def _words(self, count, purpose, step):
        words = self.scripts.pop(0)
        assert len(words) == count
        return np.array(words, dtype=np.uint64)


def exact_cumulative(favourable: int, bits: int) -> list[Fraction]:
    """F(0), F(1), ... as fractions, by the formula of the binomial distribution."""
    q, size = Fraction(favourable, 2**64), 2**bits
    chances = [math.comb(size, k) * q**k * (1 - q) ** (size - k) for k in range(size + 1)]
    return [sum(chances[: k + 1]) for k in range(size + 1)]


# The number of heads of a block


@pytest.mark.parametrize("precision", [64, 128])
@pytest.mark.parametrize("bits", [0, 1, 3, 6])
@pytest.mark.parametrize("favourable", [1, 2**52, 3**38, 2**60 - 1])
def test_bounds_of_the_distribution_function_hold(favourable, bits, precision):
    exact, table = exact_cumulative(favourable, bits), cumulative(favourable, bits, precision)
    assert len(table) <= len(exact)
    for bound, value in zip(table, exact, strict=False):
        assert bound <= value * 2**precision < bound + 2
    assert table[-1] == 2**precision - 1
    assert table == sorted(table)
    assert table[-1] not in table[:-1]


@pytest.mark.parametrize(
    ("favourable", "bits"), [(2**60 - 1, 8), (2**52, 16), (2**52 - 12345, 15), (3**23, 31), (1, 32)]
)
def test_they_hold_for_large_blocks(favourable, bits):
    with mpmath.workdps(80):
        q, size = mpmath.mpf(favourable) / 2**64, 2**bits
        total = mpmath.mpf(0)
        for count, bound in enumerate(cumulative(favourable, bits, 128)):
            total += mpmath.binomial(size, count) * q**count * (1 - q) ** (size - count)
            assert bound <= total * 2**128 < bound + 2


@pytest.mark.parametrize(("favourable", "bits"), [(2**52, 3), (2**60 - 1, 3), (3**37, 1), (2**60 - 2**30, 4)])
def test_a_number_of_heads_has_exactly_its_probability(favourable, bits):
    """U, a fraction here, has as many F(k) at or below it as heads are drawn: also where 64 bits are those of F(k)."""
    exact = exact_cumulative(favourable, bits)
    for value in exact:
        first = int(value * 2**64)
        for near, further in product((-2, -1, 0, 1, 2, 3), (0, 1, 2**63, 2**64 - 1, int(value * 2**128) % 2**64)):
            word = first + near
            if not 0 <= word < 2**64:
                continue
            source = Scripted([word], [further], [2**62], [2**62])
            uniform = Fraction(word * 2**192 + further * 2**128 + 2**126 + 2**62, 2**256)
            below = sum(each <= uniform for each in exact)
            assert _counts(source, 1, favourable, bits, purpose="test", step=0).tolist() == [below]


def test_bits_are_drawn_until_they_decide():
    """F(0) = 15/16 + 2**-64 for one coin: bits decide that differ from its own by more than the bound of F does."""
    favourable, same = 2**60 - 1, 15 * 2**60 + 1
    assert cumulative(favourable, 0, 64)[0] == same
    for words, found in [((same - 1,), 0), ((same, 1, 0), 1), ((same, 2), 1), ((same + 2,), 1)]:
        source = Scripted(*([word] for word in words))
        assert _counts(source, 1, favourable, 0, purpose="test", step=0).tolist() == [found]
        assert not source.scripts, "fewer bits were drawn"


def test_undecided_blocks_have_bits_of_their_own():
    purposes = []

    class Watched(Scripted):
        def _words(self, count, purpose, step):
            purposes.append(purpose)
            return super()._words(count, purpose, step)

    same = 15 * 2**60 + 1
    source = Watched([same, same], [2], [2])
    assert _counts(source, 2, 2**60 - 1, 0, purpose="test", step=0).tolist() == [1, 1]
    assert len(set(purposes)) == 3


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_far_tails_are_reached(bits):
    """The last words of the first 64 bits stand for a tail of 2**-64: more bits find how far out."""
    favourable, last = 2 ** (68 - bits) - 1, 2**64 - 1
    count = _counts(Scripted([last], [last], [2**63]), 1, favourable, bits, purpose="test", step=0)[0]
    with mpmath.workdps(80):
        q, u = mpmath.mpf(favourable) / 2**64, 1 - mpmath.mpf(2) ** -129
        tail = [mpmath.binomial(2**bits, k) * q**k * (1 - q) ** (2**bits - k) for k in range(count + 1)]
        assert sum(tail[:-1]) <= u < sum(tail)
    assert count > len(_table(favourable, bits))


# Their places


def law_of_places(size: int, bits: int) -> dict[tuple[int, ...], Fraction]:
    """The chance of every set of ``size`` places of a block to be found within three draws, over all words."""
    law: dict[tuple[int, ...], Fraction] = Counter()
    pending = [((), Fraction(1))]
    for _ in range(3):
        again = []
        for scripts, chance in pending:
            held = {word for script in scripts for word in script}
            missing = size - len(held)
            for words in product(range(2**bits), repeat=missing):
                reached, part = (*scripts, words), chance / 2 ** (bits * missing)
                if len(held | set(words)) < size:
                    again.append((reached, part))
                    continue
                source = Scripted(*([word << (64 - bits) for word in script] for script in reached))
                found = _places(source, np.array([size]), bits, purpose="test", step=0)
                assert not source.scripts
                law[tuple(found.tolist())] += part
        pending = again
    return law


@pytest.mark.parametrize(("size", "bits"), [(1, 2), (2, 2), (3, 2), (2, 3)])
def test_all_sets_of_places_are_equally_likely(size, bits):
    law = law_of_places(size, bits)
    assert set(law) == set(combinations(range(2**bits), size))
    assert len(set(law.values())) == 1
    assert 0.5 < sum(law.values()) <= 1


def test_a_block_that_is_all_heads_is_filled():
    found = _places(SEEDED, np.array([8, 0, 8, 3]), 3, purpose="test", step=0)
    assert found[:16].tolist() == [*range(8), *range(16, 24)]
    assert len(set(found[16:].tolist()) & set(range(24, 32))) == 3


# All coins


probabilities = st.one_of(st.sampled_from([1.0, 0.5, 1 / 16, 0.0624]), st.floats(1e-9, 1))


@pytest.mark.slow
@given(
    probabilities,
    st.integers(0, 3_000_000),
    st.lists(st.integers(0, 3_000_000), min_size=2, max_size=5),
    st.integers(0),
)
@example(0.05, 2_000_000, [0, 262_144, 262_145, 524_288], 0)
def test_parts_are_together_the_whole(probability, records, cuts, seed):
    source, probability = SeededSource(seed % 2**63), min(probability, 20_000 / max(records, 1))
    first, *inner, end = sorted(min(cut, records) for cut in cuts)
    draw = lambda start, stop: heads(source, range(start, stop), probability, purpose="test", step=3).tolist()  # noqa: E731
    whole = draw(0, records)
    bounds = [first, *inner, end]
    parts = [draw(start, stop) for start, stop in pairwise(bounds)]
    assert [each for part in parts for each in part] == [each for each in whole if first <= each < end]
    assert whole == [each for each in draw(0, records + 70_000) if each < records], "records behind move the others"
    assert whole == sorted(set(whole))


@pytest.mark.parametrize("kind", [PoissonSampler, FixedSizeSampler, ReshuffledSampler])
def test_parts_of_a_batch_are_together_the_batch(kind):
    drawn = PoissonSampler(1000, 0.05) if kind is PoissonSampler else kind(1000, 50)
    run = Batches(drawn, SEEDED)
    for step in range(2 * drawn.steps_per_epoch):
        parts = [run.batch(step, range(*ends)) for ends in ((0, 300), (300, 300), (300, 999), (999, 1000))]
        assert torch.equal(torch.cat(parts), run.batch(step))
        assert torch.equal(parts[2], drawn.draw(step, SEEDED, range(300, 999)))


def test_parts_of_a_secure_epoch_are_together_the_epoch():
    run = Batches(ReshuffledSampler(100, 10), SECURE)
    held = [run.batch(step, part).tolist() for step in range(10) for part in (range(37), range(37, 100))]
    assert sorted(each for part in held for each in part) == list(range(100))


@pytest.mark.parametrize("part", [range(-1, 5), range(0, 101), range(5, 3), range(0, 10, 2)])
@pytest.mark.parametrize("drawn", [PoissonSampler(100, 0.05), FixedSizeSampler(100, 5), ReshuffledSampler(100, 5)])
def test_parts_that_are_refused(drawn, part):
    with pytest.raises(InputError, match="part"):
        drawn.draw(0, SEEDED, part)


@each_source
def test_coins_that_always_fall_the_same_way(source):
    draw = lambda probability: heads(source, range(5, 300_007), probability, purpose="test", step=0)  # noqa: E731
    assert torch.equal(draw(1.0), torch.arange(5, 300_007))
    assert draw(1.0).dtype is draw(2.0**-65).dtype is torch.int64
    assert len(draw(2.0**-65)) == len(draw(0.0)) == len(draw(2.0**-64)) == 0


@each_source
@pytest.mark.parametrize("probability", [1e-7, 1e-4, 0.01, 0.06, 0.07])
def test_about_as_many_heads_as_expected(source, probability):
    records = round(4000 / probability)
    found = heads(source, range(records), probability, purpose="test", step=0)
    assert abs(len(found) - 4000) < 6.5 * math.sqrt(4000)
    assert torch.equal(found, found.unique())
    assert found[0] >= 0
    assert found[-1] < records
    halves = (found < records // 2).sum().item()
    assert abs(halves - len(found) / 2) < 6.5 * math.sqrt(len(found)) / 2


def test_groups_and_blocks_do_not_repeat_each_other():
    span = 1024 << 17
    found = heads(SEEDED, range(2 * span), 1e-4, purpose="test", step=0)
    first, second = found[found < span], found[found >= span] - span
    assert len(set(first.tolist()) & set(second.tolist())) < 20
    assert len((found % 2**17).unique()) > 0.85 * len(found)


def test_the_heads_of_a_seed_never_change():
    """Golden: a run that resumes draws them again."""
    assert heads(SEEDED, range(10**8), 5e-8, purpose="sampling", step=5).tolist() == [12421438, 41922920, 47972721]
    assert heads(SEEDED, range(100), 0.5, purpose="sampling", step=5).tolist()[:5] == [0, 1, 4, 7, 8]


def test_a_batch_of_many_records_costs_what_its_size_costs():
    """100 batches from 10**12 records: coins alone would take hours."""
    drawn = PoissonSampler(10**12, 1e-10)
    assert 9000 < sum(len(drawn.draw(step, SECURE)) for step in range(100)) < 11000
