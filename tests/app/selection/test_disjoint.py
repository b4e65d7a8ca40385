"""Releases from disjoint parts of the data: the worst part is what they cost, for every accountant."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.accounting import accountant
from adadp.app.accounting import RdpFilter, ZcdpFilter
from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import PoissonRepetitions
from adadp.errors import AccountingError, EventError, UnsupportedEvent
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    Disjoint,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    Selection,
    ZcdpCost,
    describe,
    from_json,
    is_noiseless,
    is_silent,
    to_json,
)

SMALL = Repeated(PoissonSampled(0.1, GaussianRelease(4.0)), 30)
LARGE = Repeated(PoissonSampled(0.1, GaussianRelease(2.0)), 30)
CHOICE = Selection(0.3)
PARTS = Disjoint((SMALL, LARGE, CHOICE))
LAW = PoissonRepetitions(3.0)


@pytest.mark.parametrize("name", ["pld", "rdp", "moments", "zcdp", "strong"])
def test_the_worst_part_is_the_cost(name):
    asked = accountant(name)
    alone = [asked.epsilon(part, 1e-5) for part in PARTS.parts]
    whole = asked.epsilon(PARTS, 1e-5)
    assert whole.epsilon == max(answer.epsilon for answer in alone)
    assert whole.epsilon_low == max(answer.epsilon_low for answer in alone)
    assert asked.delta(PARTS, 0.5).delta == max(asked.delta(part, 0.5).delta for part in PARTS.parts)


@pytest.mark.parametrize("name", ["pld", "rdp"])
def test_what_is_composed_with_parts_is_added_to_each(name):
    asked, beside = accountant(name), GaussianRelease(9.0)
    together = asked.epsilon(Composed((beside, PARTS)), 1e-5).epsilon
    assert together == asked.epsilon(Composed((beside, LARGE)), 1e-5).epsilon
    assert together > asked.epsilon(PARTS, 1e-5).epsilon


def test_parts_told_apart_twice_may_meet_the_worst_part_twice():
    asked = accountant("rdp")
    assert asked.epsilon(Repeated(PARTS, 2), 1e-5).epsilon == asked.epsilon(Repeated(LARGE, 2), 1e-5).epsilon
    other = Disjoint((GaussianRelease(3.0), CHOICE))
    both = asked.epsilon(Composed((PARTS, other)), 1e-5).epsilon
    assert both == asked.epsilon(Composed((LARGE, GaussianRelease(3.0))), 1e-5).epsilon


def test_a_mixed_case_can_be_worse_than_the_same_part_twice():
    """By pure DP and by a Gaussian neither dominates at every delta: all cases are asked."""
    parts = Disjoint((GaussianRelease(2.0), Selection(1.0)))
    asked = accountant("rdp")
    cases = [(GaussianRelease(2.0),) * 2, (GaussianRelease(2.0), Selection(1.0)), (Selection(1.0),) * 2]
    costs = [asked.epsilon(Composed(case), 1e-6).epsilon for case in cases]
    assert asked.epsilon(Repeated(parts, 2), 1e-6).epsilon == max(costs)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.5, 50.0), min_size=1, max_size=4))
def test_gaussian_parts_cost_the_least_noise(sigmas):
    parts = Disjoint(tuple(GaussianRelease(noise_multiplier) for noise_multiplier in sigmas))
    least = accountant("zcdp").epsilon(GaussianRelease(min(sigmas)), 1e-5).epsilon
    assert accountant("zcdp").epsilon(parts, 1e-5).epsilon == least


def test_a_part_that_tells_nothing_costs_nothing():
    silent = Disjoint((Selection(0.0), ZcdpCost(0.0)))
    assert is_silent(silent)
    assert accountant("pld").epsilon(silent, 1e-5).epsilon == 0
    half = Disjoint((Selection(0.0), LARGE))
    assert accountant("pld").epsilon(half, 1e-5).epsilon == accountant("pld").epsilon(LARGE, 1e-5).epsilon


def test_a_part_without_noise_has_no_epsilon():
    assert is_noiseless(Disjoint((LARGE, GaussianRelease(0.0))))
    assert accountant("pld").epsilon(Disjoint((LARGE, GaussianRelease(0.0))), 1e-5).epsilon == math.inf


def test_a_search_may_be_in_a_part():
    search = BestOf((SMALL,), LAW)
    asked = accountant("rdp")
    assert asked.epsilon(Disjoint((search, CHOICE)), 1e-5).epsilon == asked.epsilon(search, 1e-5).epsilon
    with pytest.raises(UnsupportedEvent):
        accountant("pld").epsilon(Disjoint((search, CHOICE)), 1e-5)


def test_too_many_cases_are_refused():
    many = Disjoint(tuple(GaussianRelease(1.0 + number) for number in range(30)))
    with pytest.raises(UnsupportedEvent, match="cases of where a record can be"):
        accountant("zcdp").epsilon(Repeated(many, 4), 1e-5)


def test_json_and_words():
    assert from_json(to_json(PARTS)) == PARTS
    assert to_json(PARTS)["kind"] == "disjoint"
    assert describe(Disjoint((GaussianRelease(2.0), CHOICE))) == (
        "Disjoint parts [Gaussian(sigma=2) | Selection(epsilon=0.3, exponential)]"
    )


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Disjoint(()), "non-empty"),
        (lambda: Disjoint((GaussianRelease(1.0), GaussianRelease(1.0, Neighbours.ZERO_OUT))), "mixes neighbouring"),
        (lambda: Disjoint((AdaptivelyChosen(GaussianRelease(1.0)),)), "chosen from earlier ones"),
        (lambda: Disjoint((PARTS,)), "Disjoint holds Disjoint"),
        (lambda: BestOf((PARTS,), LAW), "BestOf holds Disjoint"),
        (lambda: AdaptivelyChosen(PARTS), "AdaptivelyChosen holds Disjoint"),
        (lambda: PoissonSampled(0.1, Composed((CHOICE, Disjoint((CHOICE,))))), "PoissonSampled holds Disjoint"),
        (lambda: ReshuffledEpoch((Disjoint((CHOICE,)),), True), "ReshuffledEpoch holds Disjoint"),
    ],
)
def test_what_parts_cannot_hold_or_be_in(make, match):
    with pytest.raises(EventError, match=match):
        make()


def test_filters_refuse_parts():
    for rule in (
        RdpFilter(epsilon=9.0, delta=1e-5, expected=GaussianRelease(5.0)),
        ZcdpFilter(epsilon=9.0, delta=1e-5),
    ):
        with pytest.raises(AccountingError):
            rule.admit(PARTS)
