"""The loss distribution accountant against closed forms, direct integration, brute force and two other libraries."""

from __future__ import annotations

import math

import dp_accounting
import mpmath
import numpy as np
import prv_accountant
import pytest
from dp_accounting.pld import PLDAccountant
from pld_cases import (
    ADD,
    PLD,
    REPLACE,
    ZERO,
    _loss_nodes,
    _thresholded,
    assert_delta,
    assert_epsilon_inverts,
    fixed,
    poisson,
    two_fold,
)

from adadp.accounting.contour import direct_curve
from adadp.accounting.dominating import compositions
from adadp.events import (
    Composed,
    GaussianRelease,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
)

pytestmark = pytest.mark.slow


# --- Gaussian releases without sampling: Balle and Wang 2018, Theorem 8, at 50 digits ---


def gaussian_delta(mu: float, epsilon: float) -> float:
    with mpmath.workdps(50):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        first = mpmath.ncdf(mu / 2 - epsilon / mu)
        return float(first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(
    ("event", "mu"),
    [
        (GaussianRelease(200.0), 1 / 200),
        (GaussianRelease(6.0), 1 / 6),
        (GaussianRelease(0.3), 1 / 0.3),
        (GaussianRelease(6.0, REPLACE), 2 / 6),
        (GaussianRelease(6.0, ZERO), 1 / 6),
        (poisson(1.0, 6.0, 100), 10 / 6),
        (poisson(1.0, 6.0, 100, REPLACE), 20 / 6),
        (fixed(1.0, 6.0, 100), 20 / 6),
        (fixed(1.0, 6.0, 100, ZERO), 10 / 6),
        (Repeated(GaussianRelease(200.0), 10**7), math.sqrt(1e7) / 200),
        (Composed((GaussianRelease(3.0), Repeated(GaussianRelease(4.0), 2))), math.sqrt(1 / 9 + 2 / 16)),
        (Repeated(ReshuffledEpoch((GaussianRelease(3.0, ZERO), GaussianRelease(6.0, ZERO))), 9), 1.0),
        (Repeated(ReshuffledEpoch((GaussianRelease(3.0, REPLACE),)), 9), 2.0),
    ],
    ids=str,
)
def test_gaussian_releases_have_the_analytic_curve(event, mu):
    for delta in (0.5, 1e-2, 1e-5, 1e-12):
        assert_epsilon_inverts(event, delta, lambda epsilon: gaussian_delta(mu, epsilon))
    for spread in (0.0, 1.0, 3.0, 6.0):
        epsilon = mu * mu / 2 + spread * mu
        assert_delta(event, epsilon, gaussian_delta(mu, epsilon), 1e-3)


# --- Single sampled releases: the hockey stick between two normal mixtures has a closed form ---


def hockey_stick(p: list[tuple[float, float]], q: list[tuple[float, float]], epsilon: float) -> float:
    """sup over thresholds of P(u > c) - e^epsilon Q(u > c) for unit normal mixtures [(weight, mean), ...].

    The likelihood ratios used here are monotone in u, so the best event is a half line.
    """
    with mpmath.workdps(50):
        factor = mpmath.exp(mpmath.mpf(epsilon))

        def density(mixture, u):
            return sum(mpmath.mpf(w) * mpmath.npdf(u, mpmath.mpf(m)) for w, m in mixture)

        def beyond(mixture, u):
            return sum(mpmath.mpf(w) * mpmath.ncdf(mpmath.mpf(m) - u) for w, m in mixture)

        low, high = mpmath.mpf(-60), mpmath.mpf(60)
        if density(p, low) > factor * density(q, low):  # the ratio exceeds e^epsilon everywhere
            return float(1 - factor)
        for _ in range(170):
            middle = (low + high) / 2
            if density(p, middle) > factor * density(q, middle):
                high = middle
            else:
                low = middle
        return float(max(beyond(p, low) - factor * beyond(q, low), 0))


def remove_delta(q: float, mu: float, epsilon: float) -> float:
    return hockey_stick([(1 - q, 0.0), (q, mu)], [(1.0, 0.0)], epsilon)


def add_delta(q: float, mu: float, epsilon: float) -> float:
    """The mixture is Q and the record pulls down, so that the ratio still rises with u."""
    return hockey_stick([(1.0, 0.0)], [(1 - q, 0.0), (q, -mu)], epsilon)


def replace_delta(q: float, mu: float, epsilon: float) -> float:
    return hockey_stick([(1 - q, 0.0), (q, mu)], [(1 - q, 0.0), (q, -mu)], epsilon)


SINGLE = [(1e-6, 0.3), (1e-3, 0.5), (0.01, 1.0), (0.1, 4.0), (0.5, 1.0), (0.9, 2.0), (0.3, 200.0)]


@pytest.mark.parametrize(("q", "sigma"), SINGLE)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
def test_one_poisson_release(q, sigma, share):
    epsilon = share * math.log1p(q * math.expm1(4 / sigma + 1 / sigma**2))
    exact = max(remove_delta(q, 1 / sigma, epsilon), add_delta(q, 1 / sigma, epsilon))
    assert_delta(poisson(q, sigma), epsilon, exact, 1e-3)
    assert_delta(poisson(q, sigma, near=ZERO), epsilon, exact, 1e-3)


@pytest.mark.parametrize(("q", "sigma"), SINGLE)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
def test_one_poisson_release_with_a_replaced_record(q, sigma, share):
    epsilon = share * math.log1p(q * math.expm1(4 / sigma + 1 / sigma**2))
    assert_delta(poisson(q, sigma, near=REPLACE), epsilon, replace_delta(q, 1 / sigma, epsilon), 1e-3)


@pytest.mark.parametrize(("q", "sigma"), SINGLE)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
@pytest.mark.parametrize("near", [REPLACE, ZERO])
def test_one_release_on_a_batch_of_fixed_size(q, sigma, share, near):
    """Worst case: all others at one end, the record moved from there to the other end, a distance of 2."""
    epsilon = share * math.log1p(q * math.expm1(8 / sigma + 4 / sigma**2))
    assert_delta(fixed(q, sigma, near=near), epsilon, remove_delta(q, 2 / sigma, epsilon), 1e-3)


@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-12])
def test_epsilon_of_one_sampled_release_inverts_the_closed_form(delta):
    q, sigma = 0.3, 0.8
    assert_epsilon_inverts(
        poisson(q, sigma), delta, lambda e: max(remove_delta(q, 1 / sigma, e), add_delta(q, 1 / sigma, e))
    )
    assert_epsilon_inverts(poisson(q, sigma, near=REPLACE), delta, lambda e: replace_delta(q, 1 / sigma, e))
    assert_epsilon_inverts(fixed(q, sigma), delta, lambda e: remove_delta(q, 2 / sigma, e))


def test_both_orders_of_the_data_sets_count():
    """Each order of the two data sets is the worse one somewhere; the answer is never below either."""
    q, sigma = 0.7, 1.0
    first = [(remove_delta(q, 1.0, e), add_delta(q, 1.0, e), e) for e in (0.05, 0.2, 0.5, 0.9)]
    two = two_fold("add", q, 1.0, 0.4), two_fold("remove", q, 1.0, 0.4)
    for remove, add, epsilon in first:
        assert PLD.delta(poisson(q, sigma), epsilon).delta_high >= max(remove, add)
    assert PLD.delta(poisson(q, sigma, 2), 0.4).delta_high >= max(two)
    orders = compositions("pld", {PoissonSampled(0.7, GaussianRelease(1.0)): 1}, 1e-12)
    low = [direct_curve(each).bounds(0.5) for each in orders]
    assert len(low) == 2
    assert low[0] == pytest.approx((first[2][0],) * 2, rel=1e-4)
    assert low[1] == pytest.approx((first[2][1],) * 2, rel=1e-4)


def three_fold(kind: str, q: float, mu: float, epsilon: float) -> float:
    mass, loss = _loss_nodes(kind, q, mu)
    return float(mass @ _thresholded(kind, q, mu, epsilon - loss[:, None] - loss[None, :]) @ mass)


FEW = [(0.01, 0.7, 1.0), (0.1, 1.0, 0.5), (0.5, 2.0, 0.3), (0.9, 1.0, 1.5), (0.2, 0.5, 3.0)]


@pytest.mark.parametrize(("q", "sigma", "epsilon"), FEW)
def test_two_poisson_releases(q, sigma, epsilon):
    exact = max(two_fold(kind, q, 1 / sigma, epsilon) for kind in ("remove", "add"))
    assert_delta(poisson(q, sigma, 2), epsilon, exact, 2e-2)


@pytest.mark.parametrize(("q", "sigma", "epsilon"), FEW)
def test_three_poisson_releases(q, sigma, epsilon):
    exact = max(three_fold(kind, q, 1 / sigma, epsilon) for kind in ("remove", "add"))
    assert_delta(poisson(q, sigma, 3), epsilon, exact, 2e-2)


@pytest.mark.parametrize(("q", "sigma", "epsilon"), FEW)
def test_two_releases_on_batches_of_fixed_size(q, sigma, epsilon):
    """The pair is symmetric: L > 0 as in remove, L < 0 as in add, and an atom at 0."""
    mu = 2 / sigma

    def one(e: np.ndarray) -> np.ndarray:
        positive = _thresholded("remove", q, mu, np.abs(e))
        return np.where(e >= 0, positive, -np.expm1(e) + np.exp(e) * positive)

    x, w = np.polynomial.legendre.leggauss(1500)
    u, w = mu / 2 + (11 + mu) * (x + 1) / 2, (11 + mu) / 2 * w  # y = mu u - mu^2/2 > 0
    density = w * np.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    loss = np.log(1 - q + q * np.exp(mu * u - mu * mu / 2))
    masses = np.concatenate([density * np.exp(loss), density])
    losses = np.concatenate([loss, -loss])
    exact = float(masses @ one(epsilon - losses) + (1 - masses.sum()) * one(np.array(epsilon)))
    assert_delta(fixed(q, sigma, 2), epsilon, exact, 2e-2)


@pytest.mark.parametrize(("q", "sigma", "epsilon"), FEW)
def test_two_poisson_releases_with_a_replaced_record(q, sigma, epsilon):
    mu = 1 / sigma
    grid = np.arange(-12.0, 12.0 + mu, 0.01)
    centre = np.exp(-grid * grid / 2) / math.sqrt(2 * math.pi)
    p = centre * (1 - q + q * np.exp(mu * grid - mu * mu / 2))
    other = centre * (1 - q + q * np.exp(-mu * grid - mu * mu / 2))
    exact = float(np.maximum(np.outer(p, p) - math.exp(epsilon) * np.outer(other, other), 0).sum() * 1e-4)
    found = PLD.delta(poisson(q, sigma, 2, REPLACE), epsilon)
    assert found.delta_low * (1 - 1e-4) <= exact <= found.delta_high * (1 + 1e-4)
    assert found.delta_high - found.delta_low <= 2e-2 * exact


def test_different_releases_compose():
    """A Gaussian without sampling beside a sampled one: E over the first of the closed form of the second."""
    q, mu, sigma, epsilon = 0.2, 1.0, 2.0, 0.8
    u = np.arange(-12, 12, 0.001)
    mass = 0.001 * np.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    plain = u / sigma + 0.5 / sigma**2
    exact = max(float(mass @ _thresholded(kind, q, mu, epsilon - plain)) for kind in ("remove", "add"))
    event = Composed((GaussianRelease(sigma), PoissonSampled(q, GaussianRelease(1 / mu))))
    assert_delta(event, epsilon, exact)


# --- Many releases: two other libraries ---

MANY = [
    (0.01, 4.0, 10_000, 1e-5),
    (0.01, 0.9, 1_800, 1e-5),
    (0.001, 0.6, 1_000, 1e-6),
    (0.1, 2.0, 100, 1e-8),
    (0.5, 5.0, 50, 1e-3),
]


def dp_accounting_epsilon(event: dp_accounting.DpEvent, count: int, delta: float, relation, interval: float) -> float:
    other = PLDAccountant(relation, value_discretization_interval=interval)
    other.compose(event, count)
    return other.get_epsilon(delta)


@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), MANY)
@pytest.mark.parametrize("near", [ADD, REPLACE])
def test_dp_accounting_agrees(q, sigma, steps, delta, near):
    """dp-accounting rounds losses up, so its figure is an upper bound; at this interval it is within 0.1 %."""
    relations = dp_accounting.NeighboringRelation
    relation = relations.ADD_OR_REMOVE_ONE if near is ADD else relations.REPLACE_ONE
    theirs = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    expected = dp_accounting_epsilon(theirs, steps, delta, relation, 1e-4)
    found = PLD.epsilon(poisson(q, sigma, steps, near), delta)
    assert found.epsilon_low <= expected * (1 + 1e-6)
    assert found.epsilon_high == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), MANY)
def test_the_bracket_of_prv_accountant_overlaps(q, sigma, steps, delta):
    mechanism = prv_accountant.PoissonSubsampledGaussianMechanism(sampling_probability=q, noise_multiplier=sigma)
    other = prv_accountant.PRVAccountant(
        [mechanism], max_self_compositions=[steps], eps_error=0.02, delta_error=delta / 1000
    )
    low, _, high = other.compute_epsilon(delta, [steps])
    found = PLD.epsilon(poisson(q, sigma, steps), delta)
    assert found.epsilon_low <= high
    assert low <= found.epsilon_high
    assert low <= found.epsilon_low * (1 + 1e-9)
    assert found.epsilon_high <= high * (1 + 1e-9)


def test_a_schedule_of_a_hundred_multipliers():
    """Composing 100 different sigmas, against dp-accounting."""
    sigmas = [6 * 0.99**k for k in range(100)]
    other = PLDAccountant(value_discretization_interval=1e-3)
    for sigma in sigmas[::10]:
        other.compose(dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(sigma)), 40)
    ours = Composed(tuple(poisson(0.05, sigma, 40) for sigma in sigmas[::10]))
    assert PLD.epsilon(ours, 1e-5).epsilon == pytest.approx(other.get_epsilon(1e-5), rel=2e-3)
    whole = PLD.epsilon(Composed(tuple(poisson(0.05, sigma, 40) for sigma in sigmas)), 1e-5)
    assert whole.epsilon_high - whole.epsilon_low < 1e-3 * whole.epsilon_high
    coarse = [PLD.epsilon(poisson(0.05, sigma, 4000), 1e-5).epsilon for sigma in (sigmas[0], sigmas[-1])]
    assert coarse[0] < whole.epsilon < coarse[1]


# --- The brackets are narrow ---


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
@pytest.mark.parametrize(
    ("q", "sigma", "steps"),
    [
        (0.01, 4.0, 10_000),
        (0.01, 0.5, 100),
        (0.001, 1.0, 10**6),
        (1e-4, 0.7, 10**5),
        (1e-6, 0.3, 10**7),
        (1e-6, 200.0, 10**7),
        (1e-2, 200.0, 10**7),
        (0.2, 30.0, 10**4),
        (0.99, 1.0, 10),
        (0.5, 0.3, 1000),
        (0.5, 0.3, 10**7),
    ],
)
def test_brackets_are_at_most_one_percent_wide(q, sigma, steps, delta):
    for event in (poisson(q, sigma, steps), poisson(q, sigma, steps, REPLACE), fixed(q, sigma, steps)):
        found = PLD.epsilon(event, delta)
        assert found.epsilon_high - found.epsilon_low <= 0.01 * found.epsilon_high


@pytest.mark.parametrize(("steps", "width"), [(3, 1e-3), (10_000, 1e-3)])
def test_rare_samples_leave_a_bracket_that_is_narrow_in_absolute_terms(steps, width):
    found = PLD.epsilon(poisson(1e-6, 1.0, steps), 1e-12)
    assert 0 < found.epsilon_low <= found.epsilon_high
    assert found.epsilon_high - found.epsilon_low <= width


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "epsilon"),
    [(1e-6, 1.0, 2, 1e-5), (1e-6, 1.0, 2, 1e-4), (1e-6, 0.3, 3, 0.1), (1e-6, 0.3, 3, 5.0)],
)
def test_rare_samples_are_bracketed_if_not_always_narrowly(q, sigma, steps, epsilon):
    fold = two_fold if steps == 2 else three_fold
    exact = max(fold(kind, q, 1 / sigma, epsilon) for kind in ("remove", "add"))
    found = PLD.delta(poisson(q, sigma, steps), epsilon)
    assert found.delta_low <= exact <= found.delta_high
