"""The lower bound itself, on scores whose true epsilon is known: it holds as often as it says, and it gets there."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, binomtest, norm

from adadp.app.audit import lower_bound
from adadp.errors import InputError


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon(delta) of N(0, 1) against N(mu, 1) (Balle and Wang 2018)."""
    return brentq(lambda e: norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu) - delta, 0, 80)


def too_large(draw, truth: float, *, runs: int, repetitions: int, delta: float, confidence: float = 0.95) -> int:
    """How often the bound passes the truth; ``draw`` makes the scores with and without."""
    rng = np.random.default_rng(5)
    bounds = (lower_bound(*draw(rng, runs), delta, confidence) for _ in range(repetitions))
    return sum(bound.epsilon_low > truth for bound in bounds)


def most(repetitions: int, error: float) -> int:
    """More failures than this have a chance of 1e-6 if each happens with probability ``error``."""
    return int(binom.isf(1e-6, repetitions, error))


def gaussians(mu):
    return lambda rng, runs: (rng.normal(mu, 1, runs), rng.normal(0, 1, runs))


def response(p):
    """Randomised response: only one threshold matters, so that the bound is as tight as its two rates."""
    return lambda rng, runs: (rng.random(runs) < p, rng.random(runs) >= p)


@pytest.mark.parametrize(("mu", "delta"), [(0.5, 1e-5), (1.0, 0.1), (2.0, 0.01), (4.0, 1e-5)])
def test_it_holds_for_gaussians_as_often_as_it_says(mu, delta):
    failures = too_large(gaussians(mu), gaussian_epsilon(mu, delta), runs=200, repetitions=200, delta=delta)
    assert failures <= most(200, 0.05)


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_it_holds_for_randomised_response_and_is_not_much_surer_than_it_says(confidence):
    truth = math.log(0.8 / 0.2)
    failures = too_large(response(0.8), truth, runs=400, repetitions=500, delta=1e-9, confidence=confidence)
    assert failures <= most(500, 1 - confidence)
    if confidence == 0.5:  # a rate of failures that is never seen would prove nothing about the 95 %
        assert failures > 25


@pytest.mark.slow
def test_equal_distributions_give_zero_but_for_the_error_that_is_allowed():
    positive = too_large(gaussians(0), 0.0, runs=200, repetitions=200, delta=1e-5)
    assert positive <= most(200, 0.05)
    # with hardly any confidence asked for, chance alone looks like a leak: the test above could fail
    assert too_large(gaussians(0), 0.0, runs=200, repetitions=100, delta=1e-5, confidence=0.02) > 20


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "delta", "share"), [(1.0, 0.1, 0.85), (2.0, 0.1, 0.8), (1.0, 0.01, 0.75)])
def test_it_approaches_the_truth(mu, delta, share):
    truth = gaussian_epsilon(mu, delta)
    found = [lower_bound(*gaussians(mu)(np.random.default_rng(3), runs), delta).epsilon_low for runs in (300, 30_000)]
    assert found[0] < found[1]
    assert share * truth < found[1] <= truth


@pytest.mark.parametrize(("runs", "stated"), [(1000, 4.9), (10_000, 7.2)])
def test_perfect_attacks_reach_the_largest_possible_bound(runs, stated):
    for inside, outside in ((1.0, 0.0), (0.0, 1.0)):
        bound = lower_bound(np.full(runs, inside), np.full(runs, outside), 1e-5)
        assert bound.epsilon_low == bound.largest_possible == pytest.approx(stated, abs=0.05)
        assert (bound.true_rate, bound.false_rate, bound.threshold) == (1, 0, 0.5)
    assert bound.largest_possible == pytest.approx(math.log(runs / (2 * math.log(2 / 0.05))), abs=0.02)


@pytest.mark.parametrize(("hits", "misses"), [(180, 20), (200, 0), (150, 1)])
def test_rates_are_those_of_clopper_and_pearson(hits, misses):
    """Against scipy's interval, on the half that measures."""
    runs = 200
    inside = [1.0] * runs + [1.0] * hits + [0.0] * (runs - hits)
    outside = [0.0] * runs + [1.0] * misses + [0.0] * (runs - misses)
    bound = lower_bound(inside, outside, 1e-5)
    if bound.guess == "without":  # the same test, seen from the other side
        hits, misses = runs - misses, runs - hits
    low = binomtest(hits, runs, alternative="greater").proportion_ci(0.975, "exact").low
    high = binomtest(misses, runs, alternative="less").proportion_ci(0.975, "exact").high
    assert (bound.true_rate, bound.false_rate) == (hits / runs, misses / runs)
    assert (bound.true_rate_low, bound.false_rate_high) == (pytest.approx(low), pytest.approx(high))
    assert bound.epsilon_low == pytest.approx(math.log((low - 1e-5) / high))
    assert (bound.trials_with, bound.trials_without) == (runs, runs)


@pytest.mark.parametrize("guess", ["with", "without"])
@pytest.mark.parametrize("outcome", [1.0, -1.0])
def test_an_outcome_that_only_one_side_has_is_found_whichever_side_it_is(guess, outcome):
    """In three of ten runs of one side; only one of the four cases can show it."""
    rare, never = ([outcome] * 3 + [0.0] * 7) * 40, [0.0] * 400
    bound = lower_bound(*((rare, never) if guess == "with" else (never, rare)), 1e-5)
    assert (bound.guess, bound.above, bound.threshold) == (guess, outcome > 0, outcome / 2)
    assert (bound.true_rate, bound.false_rate) == (0.3, 0)
    assert bound.epsilon_low > 2.5
    assert f"'{guess}'" in bound.describe()


def test_the_half_that_measures_takes_no_part_in_the_choice():
    """The first half says the first score tells them apart, the second half that only the second one does."""
    zeros, ones = np.zeros(100), np.ones(100)
    inside = np.stack([np.r_[ones, zeros], np.r_[zeros, ones]], axis=1)
    outside = np.stack([np.r_[zeros, zeros], np.r_[zeros, zeros]], axis=1)
    bound = lower_bound(inside, outside, 1e-5)
    assert bound.score == 0
    assert bound.epsilon_low == 0 < bound.largest_possible


def test_the_better_of_several_scores_is_taken():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, 600))
    inside, outside = np.stack([noise[0], rng.normal(3, 1, 600)], axis=1), rng.normal(size=(600, 2))
    bound = lower_bound(inside, outside, 1e-5)
    assert bound.score == 1
    assert bound == replace(lower_bound(inside[:, 1], outside[:, 1], 1e-5), score=1)


scores = st.lists(st.integers(-5, 5), min_size=2, max_size=40)


@settings(max_examples=80, deadline=None)
@given(inside=scores, outside=scores, delta=st.floats(1e-6, 0.9), confidence=st.floats(0.05, 0.999))
def test_laws_of_any_scores(inside, outside, delta, confidence):
    bound = lower_bound(inside, outside, delta, confidence)
    assert 0 <= bound.epsilon_low <= bound.largest_possible
    assert 0 <= bound.true_rate_low <= bound.true_rate <= 1
    assert 0 <= bound.false_rate <= bound.false_rate_high <= 1
    assert bound.trials_with == len(inside) - len(inside) // 2
    scaled = lower_bound([8 * each - 3 for each in inside], [8 * each - 3 for each in outside], delta, confidence)
    assert (scaled.epsilon_low, scaled.guess) == (bound.epsilon_low, bound.guess)
    assert scaled.threshold == 8 * bound.threshold - 3
    assert bound.guess in bound.describe()


@pytest.mark.parametrize("runs", [20, 1000])
def test_a_larger_delta_or_confidence_leaves_less_to_show(runs):
    inside, outside = np.ones(runs), np.zeros(runs)
    largest = [lower_bound(inside, outside, *each).largest_possible for each in ((0.01, 0.9), (0.1, 0.9), (0.1, 0.99))]
    assert largest[0] > largest[1] > largest[2] >= 0


@pytest.mark.parametrize("value", [0.0, 3.5])
def test_scores_that_are_all_equal_show_nothing(value):
    bound = lower_bound([value] * 100, [value] * 60, 1e-5)
    assert (bound.epsilon_low, bound.threshold, bound.trials_with, bound.trials_without) == (0, value, 50, 30)


def test_a_delta_above_the_rate_of_right_guesses_explains_everything():
    inside, outside = [1.0, 0.0] * 100, [0.0] * 200
    assert lower_bound(inside, outside, 0.1).epsilon_low > 1
    assert lower_bound(inside, outside, 0.6).epsilon_low < 0.5
    assert lower_bound(inside, outside, 0.999).epsilon_low == 0


@pytest.mark.parametrize(
    ("inside", "outside", "options", "words"),
    [
        ([1.0], [1.0, 2.0], {}, "scores_with"),
        ([1.0, 2.0], [], {}, "scores_without"),
        ([1.0, math.nan], [1.0, 2.0], {}, "finite"),
        ([1.0, 2.0], [1.0, math.inf], {}, "finite"),
        ([[1.0, 2.0]] * 2, [1.0, 2.0], {}, "kinds"),
        (np.zeros((2, 0)), np.zeros((2, 0)), {}, "scores_with"),
        ([1.0, 2.0], [1.0, 2.0], {"delta": 0}, "delta"),
        ([1.0, 2.0], [1.0, 2.0], {"confidence": 1.0}, "confidence"),
        ([1.0, 2.0], [1.0, 2.0], {"confidence": 0.0}, "confidence"),
    ],
)
def test_what_is_refused(inside, outside, options, words):
    with pytest.raises(InputError, match=words):
        lower_bound(inside, outside, **({"delta": 1e-5} | options))
