"""Renyi DP and the moments accountant against dp-accounting and high-precision integrals."""

from __future__ import annotations

import math

import dp_accounting
import mpmath
import pytest
from dp_accounting.rdp import RdpAccountant as TheirRdp
from dp_accounting.rdp import rdp_privacy_accountant as theirs

from adadp.accounting import accountant
from adadp.app.accounting.orders import conversion, minimise
from adadp.app.accounting.renyi import log_moment
from adadp.events import (
    Composed,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    Selection,
    SelectionMechanism,
    ZcdpCost,
    flatten,
)

REPLACE = Neighbours.REPLACE_ONE
RDP, MOMENTS = accountant("rdp"), accountant("moments")
SHAPES = [(0.01, 4.0), (0.01, 0.9), (1e-4, 0.7), (0.3, 2.0), (0.9, 1.0)]


def rdp(event, alpha: float) -> float:
    return log_moment("test", flatten(event))(alpha - 1) / (alpha - 1)


@pytest.mark.parametrize(("q", "sigma"), SHAPES)
@pytest.mark.parametrize("alpha", [1.3, 2, 2.5, 4, 7.25, 16, 33])
def test_poisson_against_dp_accounting(q, sigma, alpha):
    """The same at whole orders; at broken ones theirs is an upper bound, and ours the integral (see the next test)."""
    other = TheirRdp(orders=[alpha])
    other.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)))
    ours, expected = rdp(PoissonSampled(q, GaussianRelease(sigma)), alpha), other._rdp[0]
    assert ours <= expected * (1 + 1e-8) + 1e-14  # the logarithm of 1 + something tiny, in both
    if alpha == int(alpha):
        assert ours == pytest.approx(expected, rel=1e-8, abs=1e-14)


@pytest.mark.parametrize(("q", "sigma"), SHAPES)
@pytest.mark.parametrize("alpha", [1.05, 2.5, 6.3])
def test_poisson_is_the_larger_of_the_two_integrals(q, sigma, alpha):
    with mpmath.workdps(20):
        mu, rate = 1 / mpmath.mpf(sigma), mpmath.mpf(q)

        def integral(power):
            def value(u):
                return mpmath.npdf(u) * (1 - rate + rate * mpmath.exp(mu * u - mu * mu / 2)) ** power

            peak = power * mu if power > 0 else 0
            places = sorted({-20 - abs(peak), -5, 0, peak / 2, peak, peak + 5, peak + 25})
            return mpmath.log(mpmath.quad(value, places)) / (alpha - 1)

        expected = float(max(integral(mpmath.mpf(alpha)), integral(1 - mpmath.mpf(alpha))))
    assert rdp(PoissonSampled(q, GaussianRelease(sigma)), alpha) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 4.0), (0.05, 2.0), (0.001, 1.0), (0.5, 3.0)])
@pytest.mark.parametrize("alpha", [2, 4, 8, 20])
def test_batches_of_fixed_size_are_at_most_the_bound_of_wang_2019(q, sigma, alpha):
    """dp-accounting takes sigma for the sensitivity of the replacement, hence the half."""
    expected = theirs._compute_rdp_sample_wor_gaussian(q, sigma / 2, [alpha])[0]
    ours = rdp(FixedSizeSampled(q, GaussianRelease(sigma, REPLACE)), alpha)
    assert 0 < ours <= expected


@pytest.mark.parametrize(("q", "sigma", "alpha"), [(0.1, 2.0, 3.5), (0.4, 1.0, 2.0)])
def test_batches_of_fixed_size_integrate_the_dominating_pair(q, sigma, alpha):
    """Losses above 0 with P-density phi w, below 0 with phi, both for y > 0, and the rest at 0."""
    with mpmath.workdps(30):
        mu, rate, order = 2 / mpmath.mpf(sigma), mpmath.mpf(q), mpmath.mpf(alpha)

        def part(power):
            return mpmath.quad(
                lambda u: mpmath.npdf(u) * (1 - rate + rate * mpmath.exp(mu * u - mu * mu / 2)) ** power,
                [mu / 2, mu / 2 + 3, mu / 2 + order * mu, mu / 2 + order * mu + 15],
            )

        atom = 1 - part(1) - part(0)
        expected = float(mpmath.log(part(order) + part(1 - order) + atom) / (order - 1))
    assert rdp(FixedSizeSampled(q, GaussianRelease(sigma, REPLACE)), alpha) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("q", "sigma", "alpha"), [(0.1, 2.0, 3.5), (0.4, 1.0, 6.0)])
def test_poisson_with_a_replaced_record_integrates_both_mixtures(q, sigma, alpha):
    with mpmath.workdps(30):
        mu, rate, order = 1 / mpmath.mpf(sigma), mpmath.mpf(q), mpmath.mpf(alpha)

        def value(u):
            up = 1 - rate + rate * mpmath.exp(mu * u - mu * mu / 2)
            down = 1 - rate + rate * mpmath.exp(-mu * u - mu * mu / 2)
            return mpmath.npdf(u) * up**order * down ** (1 - order)

        expected = float(mpmath.log(mpmath.quad(value, [-20, -5, 0, 5, 10, 15, 40])) / (order - 1))
    assert rdp(PoissonSampled(q, GaussianRelease(sigma, REPLACE)), alpha) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("alpha", [1.1, 2, 50])
def test_leaves_have_their_closed_forms(alpha):
    assert rdp(GaussianRelease(3.0), alpha) == pytest.approx(alpha / 18, rel=1e-12)
    assert rdp(GaussianRelease(3.0, REPLACE), alpha) == pytest.approx(4 * alpha / 18, rel=1e-12)
    assert rdp(ZcdpCost(0.7), alpha) == pytest.approx(0.7 * alpha, rel=1e-12)
    assert rdp(Selection(0.8), alpha) == pytest.approx(min(alpha * 0.08, 0.8), rel=1e-12)
    response = rdp(Selection(0.8, SelectionMechanism.NOISY_MAX), alpha)
    up, down = 1 / (1 + math.exp(-0.8)), 1 / (1 + math.exp(0.8))
    exact = math.log(up**alpha * down ** (1 - alpha) + down**alpha * up ** (1 - alpha)) / (alpha - 1)
    assert response == pytest.approx(exact, rel=1e-9)


def test_moments_add():
    parts = [PoissonSampled(0.1, GaussianRelease(2.0)), GaussianRelease(5.0), ZcdpCost(0.01), Selection(0.3)]
    whole = rdp(Composed((Repeated(parts[0], 3), *parts[1:])), 5.0)
    assert whole == pytest.approx(3 * rdp(parts[0], 5.0) + sum(rdp(part, 5.0) for part in parts[1:]), rel=1e-9)


def test_a_mixture_on_one_batch_costs_less_than_unsampled_and_more_than_its_gaussian():
    inner = Composed((GaussianRelease(2.0), Selection(0.5, SelectionMechanism.NOISY_MAX)))
    assert rdp(PoissonSampled(0.2, GaussianRelease(2.0)), 4.0) < rdp(PoissonSampled(0.2, inner), 4.0) < rdp(inner, 4.0)


@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), [(0.01, 4.0, 10_000, 1e-5), (0.1, 1.0, 50, 1e-8)])
def test_epsilon_is_at_most_that_of_dp_accounting(q, sigma, steps, delta):
    """Ours searches all real orders, theirs a list."""
    other = TheirRdp()
    other.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)), steps)
    expected = other.get_epsilon(delta)
    found = RDP.epsilon(Repeated(PoissonSampled(q, GaussianRelease(sigma)), steps), delta)
    assert expected * 0.99 <= found.epsilon <= expected * (1 + 1e-9)
    assert found.note.startswith("order alpha = ")


def test_the_conversion_is_the_best_for_its_order():
    """max over u of e^(-theta u) (1 - e^(-u)) is at e^(-u) = theta / (1 + theta)."""
    for theta in (0.01, 1.0, 30.0):
        best = max(math.exp(-theta * u) * -math.expm1(-u) for u in [k * 1e-3 / theta for k in range(1, 20_000)])
        assert math.exp(conversion(theta)) == pytest.approx(best, rel=1e-4)


def test_no_order_beats_the_one_that_is_found():
    run = Repeated(PoissonSampled(0.01, GaussianRelease(1.0)), 2000)
    moment = log_moment("rdp", flatten(run))
    best = RDP.epsilon(run, 1e-5).epsilon
    grid = [0.01 * 1.05**k for k in range(200)]
    assert best <= min((moment(t) + conversion(t) - math.log(1e-5)) / t for t in grid) * (1 + 1e-9)
    at = RDP.delta(run, 2.0).delta
    assert at <= min(math.exp(moment(t) + conversion(t) - 2 * t) for t in grid if moment(t) < 300) * (1 + 1e-9)


def test_little_noise_over_many_steps_needs_orders_close_to_one():
    run = Repeated(GaussianRelease(0.3), 10**7)
    rho = 10**7 / (2 * 0.09)
    assert RDP.epsilon(run, 1e-12).epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e12)), rel=1e-3)


def test_minimise_stops_once_it_is_past_the_minimum():
    asked = []

    def value(order: float) -> float:
        asked.append(order)
        return (order - 3) ** 2 + 1

    least, at = minimise(value, [2.0**k for k in range(-5, 30)])
    assert least == pytest.approx(1.0, abs=1e-6)
    assert at == pytest.approx(3.0, abs=1e-2)
    assert max(asked) < 100


def test_moments_use_whole_orders_up_to_32_and_the_plain_tail_bound():
    run = Repeated(PoissonSampled(0.01, GaussianRelease(4.0)), 10_000)
    moment = log_moment("moments", flatten(run))
    found = MOMENTS.epsilon(run, 1e-5)
    assert found.epsilon == min((moment(order) + math.log(1e5)) / order for order in range(1, 33))
    assert found.note == "lambda = 19"
    tiny = PoissonSampled(1e-5, GaussianRelease(50.0))
    assert MOMENTS.epsilon(tiny, 1e-5).epsilon == pytest.approx(math.log(1e5) / 32, rel=1e-6)
    assert MOMENTS.delta(run, 2.0).delta == min(math.exp(moment(order) - 2 * order) for order in range(1, 33))
    assert MOMENTS.delta(run, 0.0).delta == 1.0
    assert RDP.delta(run, 0.0).delta < 1.0
