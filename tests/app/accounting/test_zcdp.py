"""zCDP: costs, conversions, and the sampled estimate of yu-2019."""

from __future__ import annotations

import math

import pytest

from adadp.accounting import ACCOUNTANTS, Status, accountant
from adadp.app.accounting.zcdp import rho_of, rho_to_delta, rho_to_epsilon
from adadp.errors import AdaptiveEvent
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    Selection,
    SelectionMechanism,
    ZcdpCost,
    flatten,
)

ZCDP, SAMPLED = ACCOUNTANTS["zcdp"], ACCOUNTANTS["zcdp-sampled"]
REPLACE, ZERO = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT


@pytest.mark.parametrize(
    ("event", "rho"),
    [
        (GaussianRelease(2.0), 1 / 8),
        (GaussianRelease(2.0, ZERO), 1 / 8),
        (GaussianRelease(2.0, REPLACE), 4 / 8),
        (ZcdpCost(0.3), 0.3),
        (Selection(0.4), 0.4**2 / 8),
        (Selection(0.4, SelectionMechanism.NOISY_MAX), 0.4**2 / 2),
        (PoissonSampled(0.01, GaussianRelease(2.0)), 1 / 8),
        (PoissonSampled(0.01, GaussianRelease(2.0, REPLACE)), 4 / 8),
        (PoissonSampled(0.01, Composed((GaussianRelease(2.0), ZcdpCost(0.3)))), 1 / 8 + 0.3),
        (PoissonSampled(0.0, GaussianRelease(2.0)), 0.0),
        (FixedSizeSampled(0.01, GaussianRelease(2.0, REPLACE)), 4 / 8),
        (FixedSizeSampled(0.01, GaussianRelease(2.0, ZERO)), 4 / 8),
        (FixedSizeSampled(1.0, GaussianRelease(2.0, ZERO)), 1 / 8),
        (FixedSizeSampled(1.0, ZcdpCost(0.3, ZERO)), 0.3),
        (FixedSizeSampled(0.1, ZcdpCost(0.3, REPLACE)), 0.3),
        (ReshuffledEpoch((GaussianRelease(2.0, ZERO), Repeated(GaussianRelease(2.0, ZERO), 3))), 3 / 8),
        (ReshuffledEpoch((GaussianRelease(2.0, REPLACE), ZcdpCost(0.3, REPLACE))), 4 / 8),
    ],
    ids=str,
)
def test_the_rho_of_every_event(event, rho):
    assert rho_of("test", event) == pytest.approx(rho, rel=1e-15)


def test_rho_adds():
    event = Composed((Repeated(GaussianRelease(2.0), 3), ZcdpCost(0.5)))
    assert ZCDP.rho(flatten(event)) == pytest.approx(3 / 8 + 0.5, rel=1e-15)
    assert ZCDP.epsilon(event, 1e-5).note == "rho = 0.875"


def test_the_conversions_are_inverse_to_each_other():
    for rho in (1e-6, 0.1, 5.0, 1e4):
        for delta in (1e-12, 1e-5, 0.5):
            epsilon = rho_to_epsilon(rho, delta)
            assert epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1 / delta)), rel=1e-15)
            assert rho_to_delta(rho, epsilon) == pytest.approx(delta, rel=1e-9)


def test_delta_at_small_epsilon():
    assert rho_to_delta(0.0, 0.0) == 0.0
    assert rho_to_delta(1.0, 0.5) == 1.0
    assert ZCDP.delta(ZcdpCost(1.0), 0.5).delta == 1.0
    assert ZCDP.delta(ZcdpCost(1.0), 5.0).delta == pytest.approx(math.exp(-4.0), rel=1e-12)


def test_an_adaptive_mark_is_refused():
    with pytest.raises(AdaptiveEvent):
        rho_of("test", AdaptivelyChosen(ZcdpCost(1.0)))


def by_hand(rho: float, u: float, delta: float) -> float:
    """yu-2019, Theorem 3: the minimum over 1 < alpha <= u of rho alpha + ln(1/delta) / (alpha - 1)."""
    grid = [1 + (u - 1) * k / 200_000 for k in range(1, 200_001)]
    return min(rho * alpha + math.log(1 / delta) / (alpha - 1) for alpha in grid)


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 6.0, 40_000), (0.01, 1.0, 10), (1e-3, 0.8, 1)])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_the_sampled_estimate_is_theorem_3(q, sigma, steps, delta):
    u = sigma**2 * math.log(1 / (q * sigma)) + 1
    rho = steps * q**2 / sigma**2
    run = Repeated(PoissonSampled(q, GaussianRelease(sigma)), steps)
    found = SAMPLED.epsilon(run, delta)
    assert found.epsilon == pytest.approx(by_hand(rho, u, delta), rel=1e-6)
    assert found.status is Status.ESTIMATE
    assert "not a guarantee" in found.note
    assert SAMPLED.delta(run, found.epsilon).delta == pytest.approx(delta, rel=1e-6)


def test_the_sampled_estimate_of_different_steps_keeps_the_lowest_order():
    first, second = PoissonSampled(0.01, GaussianRelease(4.0)), PoissonSampled(0.01, GaussianRelease(1.0))
    rho, order = SAMPLED._rho_and_order({first: 10, second: 5})
    assert rho == pytest.approx(10 * (0.01 / 4) ** 2 + 5 * 0.01**2, rel=1e-12)
    assert order == pytest.approx(math.log(100) + 1, rel=1e-12)


def test_the_sampled_estimate_lies_above_the_truth_here():
    run = Repeated(PoissonSampled(0.01, GaussianRelease(6.0)), 40_000)
    assert SAMPLED.epsilon(run, 1e-5).epsilon > accountant("rdp").epsilon(run, 1e-5).epsilon
