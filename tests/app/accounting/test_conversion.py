"""From moments and from rho to (epsilon, delta): the best conversion that is true of all mechanisms.

mpmath solves the same problems by other means: bisection of derivatives with 40 digits.
"""

from __future__ import annotations

import math

import mpmath
import pytest

from adadp.app.accounting.orders import conversion, largest_moment
from adadp.app.accounting.zcdp import largest_rho, rho_to_epsilon, smallest_epsilon

pytestmark = pytest.mark.slow


BUDGETS = [(2.0, 1e-5), (0.1, 1e-6), (8.0, 1e-5), (1e-3, 1e-3), (1.5, 0.02), (30.0, 1e-5), (0.5, 1e-12)]


def coins(p, q, theta):
    """The log moment between two coins."""
    return mpmath.log(p ** (1 + theta) * q**-theta + (1 - p) ** (1 + theta) * (1 - q) ** -theta)


def best_coins(theta, epsilon, delta):
    """The two coins with p - e^epsilon q = delta and the least moment, by the root of its derivative."""

    def at(log_excess):
        excess = mpmath.exp(log_excess)
        return excess + delta, excess * mpmath.exp(-epsilon)

    low, high = mpmath.log(delta) - 20, mpmath.log(1 - delta)
    slope = lambda x: mpmath.diff(lambda y: coins(*at(y), theta), x)  # noqa: E731
    for _ in range(50):  # to 1e-14, which is 1e-28 of the least moment
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return at(low)


@pytest.mark.parametrize("theta", [0.5, 3.0, 12.0, 80.0])
@pytest.mark.parametrize(("epsilon", "delta"), [(2.0, 1e-5), (1e-3, 1e-3), (1.5, 0.02), (8.0, 1e-9)])
def test_the_largest_moment_is_that_of_the_best_two_coins(theta, epsilon, delta):
    with mpmath.workdps(40):
        p, q = best_coins(mpmath.mpf(theta), mpmath.mpf(epsilon), mpmath.mpf(delta))
        exact = float(coins(p, q, mpmath.mpf(theta)))
    found = largest_moment(theta, epsilon, delta)
    assert found == pytest.approx(exact, rel=1e-11, abs=1e-11)
    assert found <= exact * (1 + 1e-15)
    assert found >= (theta * epsilon + math.log(delta) - conversion(theta)) * (1 - 1e-11) - 1e-11


def test_where_every_coin_would_do_the_largest_moment_is_still_safe():
    """At theta delta >= 1 the best first coin is 1."""
    assert largest_moment(50.0, 1.0, 0.5) == pytest.approx(50 * (1.0 - math.log1p(-0.5)), rel=1e-7)


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_largest_rho_is_that_of_two_coins(epsilon, delta):
    """The best coins reach delta and are within rho at every order and both ways: no larger rho is true."""
    rho = largest_rho(epsilon, delta)
    with mpmath.workdps(40):
        exact_epsilon, exact_delta = mpmath.mpf(epsilon), mpmath.mpf(delta)

        def ratio(log_theta):
            theta = mpmath.exp(log_theta)
            return coins(*best_coins(theta, exact_epsilon, exact_delta), theta) / (theta * (theta + 1))

        # The ratio has one maximum: ternary search.
        low, high = mpmath.mpf(-2), mpmath.mpf(9)
        for _ in range(40):
            left, right = (2 * low + high) / 3, (low + 2 * high) / 3
            low, high = (left, high) if ratio(left) < ratio(right) else (low, right)
        best = mpmath.exp((low + high) / 2)
        exact = ratio((low + high) / 2)
        p, q = best_coins(best, exact_epsilon, exact_delta)
        assert float(p - mpmath.exp(exact_epsilon) * q) == pytest.approx(delta, rel=1e-12)
        for k in range(-30, 31):
            theta = best * mpmath.exp(mpmath.mpf(k) / 5)
            assert max(coins(p, q, theta), coins(q, p, theta)) <= exact * theta * (theta + 1) * (
                1 + mpmath.mpf(10) ** -9
            )
    assert rho <= float(exact)
    assert rho == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_smallest_epsilon_is_the_inverse_on_the_safe_side(epsilon, delta):
    rho = largest_rho(epsilon, delta)
    again = smallest_epsilon(rho, delta)
    assert again == pytest.approx(epsilon, rel=1e-8)
    assert largest_rho(again, delta) >= rho
    assert again < rho_to_epsilon(rho, delta)


def test_a_rho_so_small_that_delta_covers_it_costs_next_to_nothing():
    assert smallest_epsilon(1e-12, 1e-3) <= 1e-9 * rho_to_epsilon(1e-12, 1e-3)
