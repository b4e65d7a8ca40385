"""Means, paired gains, Holm's adjustment and smallest epsilons: laws, and figures of others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from adadp.lab.compare.statistics import Smallest, between, holm, mean_of, paired_gain, smallest_epsilon, spread_of

shares = st.integers(0, 123).map(lambda right: right / 123)
by_seed = st.dictionaries(st.integers(0, 9), shares, min_size=2, max_size=10)


def test_of_nothing_and_of_one():
    assert (mean_of([]), spread_of([]), mean_of([0.5]), spread_of([0.5])) == (None, None, 0.5, None)
    assert spread_of([0.9, 0.8]) == pytest.approx(math.sqrt(0.005))
    assert paired_gain({0: 0.5}, {1: 0.5}) is None
    one = paired_gain({0: 0.5, 2: 0.7}, {0: 0.25})
    assert one is not None
    assert (one.seeds, one.gain, one.low, one.high, one.p) == (1, 0.25, None, None, None)


@given(by_seed, st.data())
def test_the_gain_is_a_paired_t_test(one, data):
    other = {seed: data.draw(shares) for seed in one}
    found = paired_gain(one, other)
    assert found is not None
    seeds = sorted(one)
    gains = [one[seed] - other[seed] for seed in seeds]
    if max(gains) - min(gains) < 1e-9:
        assert found.p is found.low is found.high is None
        return
    test = stats.ttest_rel([one[seed] for seed in seeds], [other[seed] for seed in seeds])
    interval = test.confidence_interval(0.95)
    assert found.p == pytest.approx(test.pvalue, abs=1e-9)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert (found.p < 0.05) == (not found.low <= 0 <= found.high)
    back = paired_gain(other, one)
    assert back is not None
    assert (back.gain, back.low, back.high) == pytest.approx((-found.gain, -found.high, -found.low))


def test_equal_differences_have_no_p_whatever_rounding_does():
    found = paired_gain({0: 0.95, 1: 0.96, 2: 0.3}, {0: 0.94, 1: 0.95, 2: 0.29})
    assert found is not None
    assert found.p is None
    assert found.gain == pytest.approx(0.01)


def test_holm_by_hand():
    assert holm([0.01, None, 0.04, 0.03, 0.005]) == [pytest.approx(0.03), None, 0.06, 0.06, 0.02]


@given(st.lists(st.none() | st.floats(0, 1), max_size=12))
def test_holm_keeps_order_and_lies_between_p_and_bonferroni(values):
    adjusted = holm(values)
    tested = [(p, q) for p, q in zip(values, adjusted, strict=True) if p is not None]
    assert [p is None for p in values] == [q is None for q in adjusted]
    assert all(p <= q <= min(1, len(tested) * p) or q == pytest.approx(p) for p, q in tested)
    ranked = [q for _, q in sorted(tested)]
    assert ranked == sorted(ranked)


grids = st.dictionaries(st.floats(0.01, 10), shares, min_size=1, max_size=8)


@given(grids, shares)
def test_from_the_smallest_epsilon_on_the_mark_is_reached(means, mark):
    found = smallest_epsilon(means, mark)
    if found.epsilon is None:
        assert means[max(means)] < mark
        assert found.text == f"> {max(means):g}"
    else:
        assert all(value >= mark for epsilon, value in means.items() if epsilon >= found.epsilon)
        assert found.text == (f"<= {min(means):g}" if found.epsilon == min(means) else f"{found.epsilon:g}")
    if found.above is not None:
        assert means[found.above] < mark
        assert not any(found.above < epsilon < (found.epsilon or math.inf) for epsilon in means)


def test_a_mean_that_falls_again_does_not_count():
    assert smallest_epsilon({1.0: 0.95, 2.0: 0.89, 4.0: 0.93, 8.0: 0.96}, 0.9) == Smallest(4.0, 2.0, "4")
    assert smallest_epsilon({}, 0.9) == Smallest(None, None, "not measured")


@given(st.floats(0.001, 100), st.floats(1.0, 100))
def test_a_gap_is_halved_inside_it(low, ratio):
    found = between(Smallest(low * ratio, low, ""))
    if found is not None:
        assert low < found < low * ratio
        assert found == pytest.approx(low * math.sqrt(ratio), rel=1e-3)
    assert found is not None or ratio < 1.01
    assert between(Smallest(None, low, "")) is between(Smallest(low, None, "")) is None
