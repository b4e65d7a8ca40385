"""The bound from one run: the theorem against its formula written out, and against the mechanism it is tight for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from adadp.app.one_run import SHARES, chance, one_run_bound, rates, refuted_up_to
from adadp.errors import InputError

pytestmark = pytest.mark.fast


def written_out(m, r, v, epsilon, delta):
    """Theorem 5.2 of Steinke, Nasr and Jagielski 2023, with every i up to m."""
    q = math.exp(epsilon) / (math.exp(epsilon) + 1)
    beta = sum(binom.pmf(w, r, q) for w in range(v, r + 1))
    alpha = max(2 / i * sum(binom.pmf(w, r, q) for w in range(max(0, v - i), v)) for i in range(1, m + 1))
    return min(1.0, beta + alpha * m * delta)


@pytest.mark.parametrize(
    ("m", "r", "v", "epsilon", "delta"),
    [(30, 20, 15, 0.7, 1e-3), (30, 30, 29, 2.0, 1e-2), (12, 6, 0, 0.0, 0.1), (25, 10, 10, 1.0, 1e-9)],
)
def test_the_chance_is_that_of_the_theorem(m, r, v, epsilon, delta):
    assert chance(m, r, v, epsilon, delta) == pytest.approx(written_out(m, r, v, epsilon, delta), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_of_randomised_response_the_truth_is_refuted_as_seldom_as_stated_and_nearly_as_often(epsilon):
    """Who sees every coin, flipped with probability 1 / (1 + e^epsilon), is right binomially often."""
    q, r, error = 1 / (1 + math.exp(-epsilon)), 40, 0.05
    least = next((v for v in range(r + 1) if refuted_up_to(r, r, v, 1e-12, error) > epsilon), r + 1)
    wrong = binom.sf(least - 1, r, q)
    assert wrong <= error
    assert least == r + 1 or wrong + binom.pmf(least - 1, r, q) > error


def test_as_many_right_guesses_show_what_the_docstring_says():
    found = refuted_up_to(600, 600, 600, 1e-12, 0.05 / len(SHARES))
    assert found == pytest.approx(math.log(600 / math.log(80)), abs=0.01)
    assert found == pytest.approx(4.92, abs=0.01)


def test_more_right_guesses_show_more_and_a_larger_delta_less():
    shown = [refuted_up_to(100, 50, right, 1e-5, 0.01) for right in (25, 35, 45, 50)]
    assert shown[0] == 0 < shown[1] < shown[2] < shown[3]
    assert shown[3] > refuted_up_to(100, 50, 50, 3e-4, 0.01) > 0


def test_the_highest_scores_are_guessed_as_trained_on_and_the_lowest_as_not():
    coins = np.arange(100) % 2 == 0
    told = one_run_bound(coins * 1.0, coins, 1e-6)
    assert (told.guesses, told.right, told.canaries) == (100, 100, 100)
    assert told.epsilon_low == pytest.approx(refuted_up_to(100, 100, 100, 1e-6, 0.0125))
    assert one_run_bound(-1.0 * coins, coins, 1e-6).epsilon_low == 0
    sure = np.where(np.arange(100) < 10, 9.0, np.where(np.arange(100) > 89, -9.0, 0.0))
    few = one_run_bound(sure, np.r_[np.ones(10, bool), coins[10:90], np.zeros(10, bool)], 1e-6)
    assert (few.guesses, few.right) == (20, 20)


def test_equal_scores_are_guessed_in_an_order_that_the_coins_did_not_choose():
    coins = np.random.default_rng(0).random(1000) < 0.5
    assert one_run_bound(np.zeros(1000), coins, 1e-6).epsilon_low == 0


def test_rates_at_every_threshold():
    false, true = rates([3.0, 2.0, 2.0, 1.0] * 5, [True, True, False, False] * 5)
    assert false.tolist() == [0, 0.5, 1]
    assert true.tolist() == [0.5, 1, 1]


@pytest.mark.parametrize("scores", [[1.0] * 19, [math.nan] * 30, [[1.0]] * 30])
def test_what_is_refused(scores):
    with pytest.raises(InputError, match="canaries"):
        one_run_bound(scores, [True] * len(scores), 1e-5)
