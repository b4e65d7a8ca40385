"""Advanced composition, step by step from its three theorems."""

from __future__ import annotations

import math

import pytest

from adadp.accounting import Status, accountant
from adadp.events import (
    Composed,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    Selection,
)
from adadp.lab.accounting.strong import gaussian_delta

STRONG, PUBLISHED = accountant("strong"), accountant("strong-published")
ZERO, REPLACE = Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE


def by_hand(q: float, mu: float, steps: int, delta: float, published: bool = False, most: float = 1.0) -> float:
    """The least epsilon over a fine grid of delta_0, where the steps take up to the share ``most`` of delta."""
    best = math.inf
    for k in range(-int(100 * math.log(most)), 4000):
        delta0 = delta / (q * steps) * math.exp(-0.01 * k)
        step = mu * math.sqrt(2 * math.log(1.25 / delta0))
        amplified = q * step if published else math.log1p(q * math.expm1(step))
        rest = delta - q * steps * max(delta0, gaussian_delta(mu, step))
        if rest >= -1e-9 * delta:
            best = min(best, steps * amplified)  # basic composition needs no delta of its own
        if rest > 0:
            whole = math.sqrt(2 * steps * math.log(1 / rest)) * amplified + steps * amplified * math.expm1(amplified)
            best = min(best, whole)
    return best


@pytest.mark.parametrize(
    ("event", "q", "mu", "steps"),
    [
        (PoissonSampled(0.01, GaussianRelease(4.0)), 0.01, 0.25, 10_000),
        (PoissonSampled(0.01, GaussianRelease(4.0, REPLACE)), 0.01, 0.5, 1000),
        (FixedSizeSampled(0.01, GaussianRelease(8.0, REPLACE)), 0.01, 0.25, 1000),
        (FixedSizeSampled(0.01, GaussianRelease(8.0, ZERO)), 0.01, 0.25, 1000),
        (FixedSizeSampled(1.0, GaussianRelease(8.0, ZERO)), 1.0, 0.125, 10),
        (GaussianRelease(10.0), 1.0, 0.1, 50),
        (GaussianRelease(10.0, REPLACE), 1.0, 0.2, 50),
        (ReshuffledEpoch((GaussianRelease(10.0, ZERO), GaussianRelease(20.0, ZERO))), 1.0, 0.1, 50),
    ],
    ids=str,
)
def test_the_composition_by_hand(event, q, mu, steps):
    found = STRONG.epsilon(Repeated(event, steps), 1e-5)
    assert found.epsilon >= by_hand(q, mu, steps, 1e-5) * (1 - 1e-4)
    assert found.epsilon <= by_hand(q, mu, steps, 1e-5, most=math.exp(-0.26)) * (1 + 1e-6)
    assert found.note.startswith("delta_0 = ")
    published = PUBLISHED.epsilon(Repeated(event, steps), 1e-5).epsilon
    assert published >= by_hand(q, mu, steps, 1e-5, published=True) * (1 - 1e-4)
    assert published <= by_hand(q, mu, steps, 1e-5, published=True, most=math.exp(-0.26)) * (1 + 1e-6)


def test_the_classic_rule_is_not_trusted_above_epsilon_1():
    """sigma = .5: the rule promises delta_0 = 1e-1 at epsilon_0 = 4.5, where the exact delta is larger."""
    step = 2 * math.sqrt(2 * math.log(1.25 / 0.5))
    assert gaussian_delta(2.0, step) > 0
    found = STRONG.epsilon(GaussianRelease(0.5), 0.2)
    assert found.epsilon >= accountant("pld").epsilon(GaussianRelease(0.5), 0.2).epsilon_low


def test_pure_selections_need_no_delta_of_their_own():
    picks = Repeated(Selection(0.1), 100)
    advanced = math.sqrt(2 * 100 * math.log(1e5)) * 0.1 + 100 * 0.1 * math.expm1(0.1)
    assert STRONG.epsilon(picks, 1e-5).epsilon == pytest.approx(advanced, rel=1e-12)
    few = Repeated(Selection(0.1), 3)
    assert STRONG.epsilon(few, 1e-5).epsilon == pytest.approx(0.3, rel=1e-12)
    both = STRONG.epsilon(Composed((picks, GaussianRelease(10.0))), 1e-5).epsilon
    assert both > STRONG.epsilon(picks, 1e-5).epsilon


@pytest.mark.parametrize("delta", [0.5, 0.9, 1 - 1e-9])
def test_a_delta_far_above_what_the_steps_can_use(delta):
    """q T delta_0 = delta would need delta_0 > 1: there is nothing above 1 to give."""
    found = STRONG.epsilon(PoissonSampled(1e-6, GaussianRelease(0.3)), delta)
    assert 0 <= found.epsilon < math.inf


def test_delta_is_found_from_epsilon():
    run = Repeated(PoissonSampled(0.01, GaussianRelease(4.0)), 1000)
    for delta in (1e-3, 1e-8):
        epsilon = STRONG.epsilon(run, delta).epsilon
        found = STRONG.delta(run, epsilon)
        assert found.delta_low <= delta * (1 + 1e-6)
        assert delta * (1 - 1e-6) <= found.delta_high
        assert STRONG.epsilon(run, found.delta_high).epsilon <= epsilon * (1 + 1e-12)
    assert STRONG.delta(run, 0.0).delta == 1.0


def test_next_to_no_noise_has_no_classic_split():
    """Far below the noise the classic rule is for, no delta_0 of it is reached: infinity, and no overflow."""
    assert STRONG.epsilon(PoissonSampled(0.5, GaussianRelease(0.01)), 1e-5).epsilon == math.inf
    assert STRONG.delta(PoissonSampled(0.5, GaussianRelease(0.01)), 100.0).delta >= 0.5 * (1 - 1e-6)


def test_the_published_form_says_that_it_is_no_bound():
    found = PUBLISHED.epsilon(Repeated(PoissonSampled(0.01, GaussianRelease(0.5)), 100), 1e-5)
    assert found.status is Status.AS_PUBLISHED
    assert "not a bound" in found.note
    assert found.epsilon < STRONG.epsilon(Repeated(PoissonSampled(0.01, GaussianRelease(0.5)), 100), 1e-5).epsilon
