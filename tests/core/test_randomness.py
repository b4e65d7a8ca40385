"""Sources of random numbers: validation, replay, ranges and tails. Their distributions: tests/statistical."""

from __future__ import annotations

import math
import os
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadp.errors import InputError
from adadp.randomness import RandomSource, SecureSource, SeededSource

SOURCES = [SecureSource(), SeededSource(7)]
seeds = st.integers(0, 2**63 - 1)
purposes = st.text(min_size=1, max_size=20)
steps = st.integers(0, 10**9)

each_source = pytest.mark.parametrize("source", SOURCES, ids=["secure", "seeded"])
each_draw = pytest.mark.parametrize("draw", ["uniform", "normal", "permutation", "coins"])


def asked(source: RandomSource, draw: str, count: int, **where) -> torch.Tensor:
    return source.coins(count, 0.5, **where) if draw == "coins" else getattr(source, draw)(count, **where)


class OneWord(RandomSource):
    """A source whose every word is ``word``: what the extreme words become."""

    reproducible = True

    def __init__(self, word: int) -> None:
        self.word = word

    def describe(self) -> str:
        return "one word"

    def _words(self, count, purpose, step):
        return np.full(count, self.word, dtype=np.uint64)


@each_source
@each_draw
@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 1001])
def test_as_many_numbers_as_asked_for(source, draw, count):
    numbers = asked(source, draw, count, purpose="test", step=0)
    dtypes = {"uniform": torch.float64, "normal": torch.float64, "permutation": torch.int64, "coins": torch.bool}
    assert numbers.shape == (count,)
    assert numbers.dtype is dtypes[draw]
    assert numbers.device.type == "cpu"
    assert not numbers.zero_().any(), "cannot be written to"


@each_source
def test_uniforms_fill_the_unit_interval(source):
    numbers = source.uniform(10_000, purpose="test", step=0)
    assert 0 <= numbers.min() < 0.01
    assert 0.99 < numbers.max() < 1
    assert len(numbers.unique()) == 10_000
    assert torch.equal(numbers * 2.0**53, (numbers * 2.0**53).round())
    assert (numbers * 2.0**53 % 2 == 1).any(), "fewer than 53 bits"


@each_source
@given(count=st.integers(0, 200))
def test_a_permutation_holds_every_number_once(source, count):
    order = source.permutation(count, purpose="test", step=0)
    assert torch.equal(order.sort().values, torch.arange(count))


@each_source
@pytest.mark.parametrize(("probability", "share"), [(0, 0.0), (0.0, 0.0), (1, 1.0), (1.0, 1.0)])
def test_coins_that_always_fall_the_same_way(source, probability, share):
    assert source.coins(1000, probability, purpose="test", step=0).double().mean() == share


@pytest.mark.parametrize("probability", [2.0**-64, 2.0**-12, 0.01, 0.3, 0.5, 1 - 2.0**-53])
def test_a_coin_has_exactly_its_probability(probability):
    """Of the 2**64 words, those below probability * 2**64 are heads, which is a whole number here."""
    heads = int(probability * 2**64)
    assert heads == probability * 2**64
    assert OneWord(heads - 1).coins(1, probability, purpose="test", step=0).all()
    assert not OneWord(heads).coins(1, probability, purpose="test", step=0).any()


def test_a_coin_is_never_more_likely_than_stated():
    assert not OneWord(0).coins(1, 2.0**-65, purpose="test", step=0).any()


@pytest.mark.parametrize("word", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_extreme_words_give_finite_numbers(word):
    normals = OneWord(word).normal(2, purpose="test", step=0)
    assert torch.isfinite(normals).all()
    assert 0 <= OneWord(word).uniform(1, purpose="test", step=0).item() < 1


def test_the_tail_of_the_normal_reaches_beyond_eight_and_ends_before_ten():
    """Word 0 is the smallest uniform, 2**-64, at angle 0."""
    assert OneWord(0).normal(1, purpose="test", step=0).item() == pytest.approx(math.sqrt(2 * 64 * math.log(2)))
    assert 8 < OneWord(0).normal(1, purpose="test", step=0).item() < 10


@each_draw
@given(seed=seeds, purpose=purposes, step=steps)
def test_a_seeded_source_repeats_itself(draw, seed, purpose, step):
    first = asked(SeededSource(seed), draw, 50, purpose=purpose, step=step)
    assert torch.equal(first, asked(SeededSource(seed), draw, 50, purpose=purpose, step=step))


@given(seeds, purposes, steps, seeds, purposes, steps)
def test_every_seed_purpose_and_step_has_its_own_stream(seed, purpose, step, seed2, purpose2, step2):
    first = SeededSource(seed).uniform(4, purpose=purpose, step=step)
    second = SeededSource(seed2).uniform(4, purpose=purpose2, step=step2)
    assert torch.equal(first, second) == ((seed, purpose, step) == (seed2, purpose2, step2))


@pytest.mark.parametrize(
    ("one", "other"),
    [((5, "noise", 3), (5 + 2**32, "noise", 3)), ((1, "1:a", 2), (1, "a", 21)), ((1, "a", 12), (11, "a", 2))],
    ids=["seeds that agree in 32 bits", "purpose that looks like a step", "digits that move"],
)
def test_streams_that_a_careless_key_would_confuse(one, other):
    streams = [SeededSource(seed).normal(8, purpose=purpose, step=step) for seed, purpose, step in (one, other)]
    assert not torch.equal(*streams)


def test_the_words_of_a_seed_never_change():
    """Golden: they are what a saved run resumes with."""
    uniforms = SeededSource(7).uniform(3, purpose="noise", step=5)
    assert uniforms.tolist() == [0.6444721758292404, 0.21032346777327882, 0.8888610252688043]


@each_draw
def test_a_secure_source_cannot_be_replayed(draw):
    first, second = (asked(SecureSource(), draw, 200, purpose="test", step=0) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_draws_other_numbers():
    SecureSource().uniform(1, purpose="test", step=0)
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(there, SecureSource()._words(4, "test", 0).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(here, 32) != SecureSource()._words(4, "test", 0).tobytes()


def test_more_bytes_than_the_system_gives_at_once(monkeypatch):
    monkeypatch.setattr("adadp.randomness._MOST_BYTES", 64)
    assert len(SecureSource().uniform(1001, purpose="test", step=0).unique()) == 1001


def test_what_a_certificate_says():
    assert SecureSource().describe() == "secure (operating-system entropy)"
    assert SeededSource(7).describe() == "seed 7: reproducible, not secure"
    assert not SecureSource().reproducible
    assert SeededSource(7).reproducible


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "7", None, True])
def test_seeds_that_are_refused(seed):
    with pytest.raises(InputError, match="seed"):
        SeededSource(seed)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_seeds_at_the_ends_are_accepted(seed):
    assert SeededSource(seed).seed == seed


@each_source
@each_draw
@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"count": -1}, "count"),
        ({"count": 1.5}, "count"),
        ({"step": -1}, "step"),
        ({"step": None}, "step"),
        ({"purpose": ""}, "purpose"),
        ({"purpose": 3}, "purpose"),
    ],
)
def test_requests_that_are_refused(source, draw, wrong, name):
    request = {"count": 3, "purpose": "test", "step": 0, **wrong}
    with pytest.raises(InputError, match=name):
        asked(source, draw, **request)


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan])
def test_probabilities_that_are_refused(probability):
    with pytest.raises(InputError, match="probability"):
        SeededSource(7).coins(3, probability, purpose="test", step=0)


def test_sources_are_frozen():
    with pytest.raises(FrozenInstanceError):
        SeededSource(7).seed = 8


@pytest.mark.parametrize(("count", "size"), [(10, 0), (10, 10), (10, 6), (10, 5), (10, 1), (60_000, 600), (0, 0)])
@pytest.mark.parametrize("source", [SecureSource(), SeededSource(3)], ids=["secure", "seeded"])
def test_a_subset_is_sorted_distinct_and_of_its_size(source, count, size):
    drawn = source.subset(count, size, purpose="test", step=0).tolist()
    assert len(drawn) == size == len(set(drawn))
    assert drawn == sorted(drawn)
    assert all(0 <= each < count for each in drawn)


@pytest.mark.parametrize("size", [2, 4])
def test_every_subset_is_equally_likely(size):
    """Chi-square over all subsets of six, by both ways of drawing: first hits (2 of 6), a permutation (4 of 6)."""
    draws = 6000
    counts: dict[tuple[int, ...], int] = {}
    for step in range(draws):
        drawn = tuple(SeededSource(1).subset(6, size, purpose="test", step=step).tolist())
        counts[drawn] = counts.get(drawn, 0) + 1
    expected = draws / 15
    assert len(counts) == 15
    assert sum((each - expected) ** 2 / expected for each in counts.values()) < 36.1  # 14 degrees, 0.1 %


def test_a_subset_larger_than_the_whole_is_refused():
    with pytest.raises(InputError, match="A subset of 7 was asked of 6"):
        SeededSource(1).subset(6, 7, purpose="test", step=0)


# Dropout and its like


CPU = torch.device("cpu")


@each_source
def test_random_layers_leave_the_state_of_torch_alone(source):
    torch.manual_seed(5)
    torch.randn(3)
    before = torch.get_rng_state()
    with source.random_layers(CPU, step=0):
        torch.rand(5)
        assert not torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), before)


def test_random_layers_leave_it_alone_after_an_error_too():
    before = torch.get_rng_state()
    layers = SecureSource().random_layers(CPU, step=0)
    layers.__enter__()
    torch.rand(5)
    assert not layers.__exit__(ValueError, ValueError("x"), None)
    assert torch.equal(torch.get_rng_state(), before)


def layer_numbers(source: RandomSource, step: int) -> list[float]:
    torch.manual_seed(5)
    with source.random_layers(CPU, step=step):
        return torch.rand(4).tolist()


def test_random_layers_follow_seed_and_step():
    assert layer_numbers(SeededSource(7), 3) == layer_numbers(SeededSource(7), 3)
    assert layer_numbers(SeededSource(7), 3) != layer_numbers(SeededSource(7), 4)
    assert layer_numbers(SeededSource(7), 3) != layer_numbers(SeededSource(8), 3)
    assert layer_numbers(SecureSource(), 3) != layer_numbers(SecureSource(), 3)


def test_random_layers_draw_the_whole_state_of_the_generator():
    """A number of 32 bits, which is all that torch.manual_seed takes on the CPU, could be guessed."""
    with OneWord(2**64 - 2**32 + 5).random_layers(CPU, step=0):
        words = torch.get_rng_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
        assert set(words.tolist()) == {5, 2**32 - 1}
        assert torch.get_rng_state().numel() == len(torch.Generator().get_state())


@each_source
def test_numbers_of_random_layers_are_uniform(source):
    with source.random_layers(CPU, step=0):
        numbers = torch.rand(100_000, dtype=torch.float64)
    counts = torch.histc(numbers, bins=20, min=0, max=1)
    assert float(((counts - 5000) ** 2 / 5000).sum()) < 65  # 19 degrees of freedom: 1e-6
