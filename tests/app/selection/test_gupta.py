"""Appendix D of Abadi et al. 2016, number by number."""

from __future__ import annotations

import math

import pytest

from adadp.accounting import Status
from adadp.app.selection.gupta import GuptaPlan, most_settings
from adadp.errors import InputError


def test_the_example_of_the_appendix():
    """Validation on 10,000 records, a loss of 1%: 8 ln(40/p) < 100 holds for p >= 1/6700, and the search costs 4."""
    plan = GuptaPlan(6700, 0.5, 0.05)
    assert plan.lost_answers == pytest.approx(8 * math.log(40 * 6700), rel=1e-12)
    assert plan.lost_answers < 0.01 * 10_000 < GuptaPlan(6800, 0.5, 0.05).lost_answers
    assert 6700 <= most_settings(0.5, 0.05, 100) < 6800
    assert plan.claimed_epsilon(2.0, own_validation=True) == 4.0
    assert plan.claimed_epsilon(8.0, own_validation=True) == 8.0
    assert plan.claimed_epsilon(2.0) == 6.0
    assert plan.status is Status.AS_PUBLISHED


def test_the_number_of_calls_is_out_of_reach_even_for_few_settings():
    assert GuptaPlan(10, 0.5, 0.05).calls == math.ceil(400**2 * math.log(400)) == 958_635


@pytest.mark.parametrize("settings", [1, 7, 500])
def test_the_most_settings_are_the_most(settings):
    tolerated = GuptaPlan(settings, 0.3, 0.1).lost_answers
    assert most_settings(0.3, 0.1, tolerated * (1 + 1e-12)) == settings
    assert most_settings(0.3, 0.1, tolerated * (1 - 1e-12)) == settings - 1


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0, 0.5, 0.05), "settings must be at least 1"),
        ((2.5, 0.5, 0.05), "settings must be a whole number"),
        ((2, 0.0, 0.05), "epsilon_prime must be greater than 0"),
        ((2, 0.51, 0.05), "epsilon_prime must be at most 1/2"),
        ((2, 0.5, 0.0), "delta must lie strictly"),
        ((2, 0.5, 1.0), "delta must lie strictly"),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused(arguments, match):
    with pytest.raises(InputError, match=match):
        GuptaPlan(*arguments)


def test_a_bad_tolerance_or_epsilon_is_refused():
    with pytest.raises(InputError, match="lost_answers must"):
        most_settings(0.5, 0.05, 0.0)
    with pytest.raises(InputError, match="at most 1/2"):
        most_settings(0.6, 0.05, 1.0)
    with pytest.raises(InputError, match="epsilon must not be negative"):
        GuptaPlan(2, 0.5, 0.05).claimed_epsilon(-1.0)
