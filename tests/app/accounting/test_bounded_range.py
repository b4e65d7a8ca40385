"""Gaussian releases and one exponential-mechanism choice on a Poisson batch: above the truth, below pure DP."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adadp.accounting import accountant
from adadp.app.accounting import RdpFilter, bounded_range
from adadp.app.accounting.bounded_range import RangedBatch, ranged_batch, ranged_moment
from adadp.app.accounting.renyi import log_moment
from adadp.errors import AdaptiveEvent, BudgetExceeded
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    Event,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    Selection,
    SelectionMechanism,
    ZcdpCost,
)

NOISY, ZERO, REPLACE = SelectionMechanism.NOISY_MAX, Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE
THETAS = [0.01, 0.7, 3.0, 12.0, 60.0]
BATCHES = [(0.02, 0.5, 0.3), (0.3, 1.0, 1.0), (1e-3, 1.0, 2.0), (0.9, 0.3, 0.1), (0.05, 2.0, 0.5)]


def step(q: float, sigma: float, epsilon: float, near: Neighbours = Neighbours.ADD_REMOVE) -> PoissonSampled:
    return PoissonSampled(q, Composed((GaussianRelease(sigma, near), Selection(epsilon, neighbours=near))))


def moment(event: Event, theta: float) -> float:
    return log_moment("test", {event: 1})(theta)


def two_point(rate: np.ndarray, t: np.ndarray, epsilon: float, power: float) -> np.ndarray:
    """log E[(1 + rate (e^r - 1))^power] for r in {t - epsilon, t} with E[e^r] = 1."""
    up, down = np.expm1(t), -np.expm1(t - epsilon)
    pi = down / (up + down)
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log(pi) + power * np.log1p(rate * up), np.log1p(-pi) + power * np.log1p(-rate * down))


def nodes(mu: float, power: float) -> tuple[np.ndarray, float]:
    """A fine grid of the standard normal variable."""
    spacing = 0.1 / max(mu, 1.0)
    return np.arange(min(0.0, power * mu) - 10, max(0.0, power * mu) + 10, spacing), spacing


def log_sum(logs: np.ndarray) -> float:
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).sum()))


def supremum(q: float, mu: float, epsilon: float, power: float, size: int) -> float:
    """The bound of the theorem itself, without cells: the maximum over a fine grid of t inside of the integral."""
    u, spacing = nodes(mu, power)
    y = mu * u - mu * mu / 2
    mix = np.logaddexp(math.log1p(-q), math.log(q) + y)
    rate = np.exp(math.log(q) + y - mix)[:, None]
    worst = two_point(rate, np.linspace(0.0, epsilon, size)[None, 1:-1], epsilon, power).max(axis=1)
    return log_sum(-u * u / 2 + power * mix + worst) + math.log(spacing / math.sqrt(2 * math.pi))


Scores = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Scores (candidates, outputs) without and with the record, given the released gradient."""


def truth(q: float, mu: float, epsilon: float, theta: float, scores: Scores) -> float:
    """The moment of a Gaussian release and an exponential mechanism, summed over the candidates."""
    found = []
    for power in (theta + 1, -theta):
        u, spacing = nodes(mu, power)
        absent, present = (-epsilon / 2 * score for score in scores(u))
        absent, present = (logits - np.logaddexp.reduce(logits, axis=0) for logits in (absent, present))
        ratio = mu * u - mu * mu / 2 + present - absent
        mix = np.logaddexp(math.log1p(-q), math.log(q) + ratio)
        logs = -u * u / 2 + absent + power * mix
        found.append(log_sum(logs.ravel()) + math.log(spacing / math.sqrt(2 * math.pi)))
    return max(found)


def fixed(without: tuple[float, ...], change: tuple[float, ...]) -> Scores:
    """The same scores whatever was released; the record moves each by ``change``, at most 1."""
    before, move = np.array(without)[:, None], np.array(change)[:, None]
    return lambda u: (before + 0 * u, before + move + 0 * u)


def looking(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Candidates that take the released gradient into account: which of them the record moves depends on it."""
    before = np.stack([0 * u, 2 * np.tanh(u), -np.ones_like(u)])
    return before, before + np.stack([np.sign(u), -np.ones_like(u), np.where(u > 1, -1.0, 1.0)])


PATTERNS = {
    "sharpest": fixed((2.0, 0.0), (-1.0, 1.0)),
    "opposite": fixed((0.0, 0.0), (1.0, -1.0)),
    "three": fixed((0.0, 0.0, 0.0), (1.0, -1.0, 0.5)),
    "rare": fixed((0.0, 3.0, 3.0), (1.0, -1.0, -1.0)),
    "common": fixed((3.0, 0.0, 0.0), (1.0, -1.0, -1.0)),
    "looking": looking,
}


# --- above the truth ---


def is_above(bound: Callable[[float], float], q: float, mu: float, epsilon: float, scores: Scores) -> bool:
    return all(truth(q, mu, epsilon, theta, scores) <= bound(theta) * (1 + 1e-12) + 1e-14 for theta in THETAS)


@pytest.mark.parametrize(("q", "mu", "epsilon"), BATCHES)
@pytest.mark.parametrize("name", PATTERNS)
def test_above_the_moment_of_every_exponential_mechanism(q, mu, epsilon, name):
    assert is_above(ranged_moment(RangedBatch(q, mu, epsilon)), q, mu, epsilon, PATTERNS[name])


@pytest.mark.parametrize(("q", "mu", "epsilon"), BATCHES)
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_twin_with_too_small_a_range_is_caught(q, mu, epsilon, share):
    assert not is_above(ranged_moment(RangedBatch(q, mu, share * epsilon)), q, mu, epsilon, PATTERNS["sharpest"])


@settings(max_examples=60, deadline=None)
@given(
    q=st.floats(1e-4, 0.9),
    mu=st.floats(0.05, 3.0),
    epsilon=st.floats(1e-3, 5.0),
    without=st.tuples(*[st.floats(-5, 5)] * 3),
    change=st.tuples(*[st.floats(-1, 1)] * 3),
    slope=st.floats(-3, 3),
)
def test_above_any_choice_among_three(q, mu, epsilon, without, change, slope):
    """Scores that move with the released gradient too, by ``slope``."""
    before, after = fixed(without, change)(np.zeros(1))
    tilt = slope * np.array([[1.0], [-1.0], [0.0]])

    def scores(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return before + tilt * u, after + tilt * u

    assert is_above(ranged_moment(RangedBatch(q, mu, epsilon)), q, mu, epsilon, scores)


@pytest.mark.parametrize("theta", [0.7, 3.0, 12.0])
def test_two_candidates_come_close(theta):
    """Opposite moves of two candidates, the one that gains at odds of e^-epsilon: t is where e^r varies most."""
    q, mu, epsilon = 0.02, 0.5, 0.3
    plain = moment(PoissonSampled(q, GaussianRelease(1 / mu)), theta)
    share = ranged_moment(RangedBatch(q, mu, epsilon))(theta) - plain
    assert truth(q, mu, epsilon, theta, PATTERNS["sharpest"]) - plain >= 0.98 * share


# --- the theorem, and what the cells add to it ---


@pytest.mark.parametrize(("q", "mu", "epsilon"), BATCHES)
@pytest.mark.parametrize("theta", [0.1, 3.0, 12.0, 60.0])
def test_the_cells_add_less_than_a_hundredth_of_what_the_choice_adds(q, mu, epsilon, theta):
    exact = max(supremum(q, mu, epsilon, power, 801) for power in (theta + 1, -theta))
    plain = moment(PoissonSampled(q, GaussianRelease(1 / mu)), theta)
    assert exact <= ranged_moment(RangedBatch(q, mu, epsilon))(theta) <= exact + 0.01 * (exact - plain) + 3e-14


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    q=st.floats(-5, -0.05).map(lambda x: 10**x),
    mu=st.floats(-2, 0.7).map(lambda x: 10**x),
    epsilon=st.floats(-4, 1.3).map(lambda x: 10**x),
    theta=st.floats(-2, 2).map(lambda x: 10**x),
)
def test_never_below_the_theorem(q, mu, epsilon, theta):
    found = ranged_moment(RangedBatch(q, mu, epsilon))(theta) * (1 + 1e-12) + 1e-15
    assert max(supremum(q, mu, epsilon, power, 401) for power in (theta + 1, -theta)) <= found


@pytest.mark.parametrize(("q", "mu", "epsilon"), BATCHES)
@pytest.mark.parametrize("power", [-60.0, -3.0, -0.1, 1.1, 4.0])
def test_both_orders_of_the_data_sets_are_the_theorem(q, mu, epsilon, power):
    """Removing the record costs more in all of them, so that adding it is looked at by itself."""
    exact, batch = supremum(q, mu, epsilon, power, 801), RangedBatch(q, mu, epsilon)
    plain = bounded_range._Cells.of(1e-9).log_mean(batch, power)
    found = bounded_range._Cells.of(epsilon).log_mean(batch, power)
    assert exact - 1e-14 <= found <= exact + 0.01 * (exact - plain) + 1e-14


@pytest.mark.parametrize("worse", [-1, 1])
def test_the_worse_order_counts(worse, monkeypatch):
    monkeypatch.setattr(bounded_range._Cells, "log_mean", lambda _, __, power: 5.0 if power * worse > 0 else 1.0)
    assert ranged_moment(RangedBatch(0.1, 3.0, 1.0))(2.0) == pytest.approx(5.0)


@pytest.mark.parametrize(("q", "mu", "epsilon"), BATCHES)
@pytest.mark.parametrize("theta", [0.1, 3.0, 12.0, 60.0])
def test_the_quadrature_is_far_better_than_the_cells(q, mu, epsilon, theta, monkeypatch):
    batch = RangedBatch(q, mu, epsilon)
    plain, found = moment(PoissonSampled(q, GaussianRelease(1 / mu)), theta), ranged_moment(batch)(theta)
    spacing = bounded_range._step
    monkeypatch.setattr(bounded_range, "_step", lambda mu: spacing(mu) / 3.1)
    assert ranged_moment(batch)(theta) == pytest.approx(found, rel=1e-12, abs=1e-5 * (found - plain) + 1e-14)


@pytest.mark.parametrize(("q", "mu", "epsilon"), BATCHES)
def test_groups_that_are_not_opened_do_not_hold_the_maximum(q, mu, epsilon, monkeypatch):
    grouped = [ranged_moment(RangedBatch(q, mu, epsilon))(theta) for theta in THETAS]
    monkeypatch.setattr(bounded_range, "_GROUP", 1)
    alone = [ranged_moment(RangedBatch(q, mu, epsilon))(theta) for theta in THETAS]
    assert grouped == pytest.approx(alone, rel=1e-13, abs=1e-15)


# --- limits ---


@pytest.mark.parametrize(("q", "sigma"), [(0.02, 2.0), (1e-4, 0.5), (0.9, 1.0), (0.3, 20.0), (0.01, 0.2)])
@pytest.mark.parametrize("epsilon", [0.0, 1e-7, 1e-300])
def test_without_a_range_it_is_the_gaussian(q, sigma, epsilon):
    for theta in (0.01, 1.0, 7.0, 100.0):
        plain = moment(PoissonSampled(q, GaussianRelease(sigma)), theta)
        assert moment(step(q, sigma, epsilon), theta) == pytest.approx(plain, rel=1e-7, abs=3e-13)


@pytest.mark.parametrize(("q", "epsilon"), [(0.02, 0.3), (0.3, 2.0), (0.9, 0.05), (1e-3, 8.0)])
def test_without_a_gaussian_it_is_the_sampled_choice(q, epsilon):
    """Both ways of having none: sigma = 1e6, and the choice alone."""
    t = np.linspace(0, epsilon, 100_001)[1:-1]
    for theta in THETAS:
        exact = max(two_point(np.array(q), t, epsilon, power).max() for power in (theta + 1, -theta))
        alone = moment(PoissonSampled(q, Selection(epsilon)), theta)
        assert exact <= alone <= exact * 1.03 + 3e-14
        assert moment(step(q, 1e6, epsilon), theta) == pytest.approx(alone, rel=1e-6, abs=3e-14)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.5, 0.3), (2.0, 1.0), (0.1, 5.0)])
def test_with_every_record_in_the_batch_both_add(mu, epsilon):
    t = np.linspace(0, epsilon, 100_001)[1:-1]
    for theta in (0.7, 3.0, 12.0):
        range_alone = two_point(np.array(1 - 1e-15), t, epsilon, theta + 1).max()
        exact = theta * (theta + 1) * mu**2 / 2 + range_alone
        found = ranged_moment(RangedBatch(1 - 1e-9, mu, epsilon))(theta)
        assert exact * (1 - 1e-6) <= found <= exact + 0.02 * range_alone


# --- order ---

rates, ranges, mus = st.floats(1e-5, 0.9), st.floats(1e-4, 20.0), st.floats(0.01, 20.0)
orders = st.floats(-2, 3.7).map(lambda x: 10**x)


@settings(max_examples=60, deadline=None)
@given(q=rates, mu=mus, epsilon=ranges, theta=orders, grow=st.floats(1.0, 1.5))
def test_more_of_anything_costs_more(q, mu, epsilon, theta, grow):
    found = ranged_moment(RangedBatch(q, mu, epsilon))(theta) * (1 - 1e-9) - 1e-14
    assert found <= ranged_moment(RangedBatch(min(q * grow, 0.95), mu, epsilon))(theta)
    assert found <= ranged_moment(RangedBatch(q, mu * grow, epsilon))(theta)
    assert found <= ranged_moment(RangedBatch(q, mu, epsilon * grow))(theta)
    assert found <= ranged_moment(RangedBatch(q, mu, epsilon))(theta * grow)


@settings(max_examples=60, deadline=None)
@given(q=rates, mu=mus, epsilon=ranges, theta=orders)
@example(q=0.5, mu=17.0, epsilon=0.0625, theta=10**1.5)
def test_between_the_gaussian_and_randomised_response(q, mu, epsilon, theta):
    """At the far ends of what is resolved too, and without a warning of numpy."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ranged_moment(RangedBatch(q, mu, epsilon))(theta)
    response = moment(PoissonSampled(q, Composed((GaussianRelease(1 / mu), Selection(epsilon, NOISY)))), theta)
    plain = moment(PoissonSampled(q, GaussianRelease(1 / mu)), theta)
    order = theta * (theta + 1)
    assert plain * (1 - 1e-9) - 1e-12 <= found <= order * (mu**2 / 2 + epsilon**2 / 8) * (1 + 1e-14)
    if (theta + 1) * mu < 100:  # above, the batch may be taken as unsampled
        assert found <= response * (1 + 1e-9) + 1e-12


# --- the events ---


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (step(0.1, 2.0, 0.3), RangedBatch(0.1, 0.5, 0.3)),
        (step(0.1, 2.0, 0.3, ZERO), RangedBatch(0.1, 0.5, 0.3)),
        (PoissonSampled(0.1, Selection(0.3)), RangedBatch(0.1, 0.0, 0.3)),
        (
            PoissonSampled(0.1, Composed((Selection(0.3), Repeated(GaussianRelease(4.0), 4)))),
            RangedBatch(0.1, 0.5, 0.3),
        ),
        (PoissonSampled(0.1, Composed((GaussianRelease(2.0), Repeated(Selection(0.3), 2)))), None),
        (PoissonSampled(0.1, Composed((GaussianRelease(2.0), Selection(0.3), Selection(0.4)))), None),
        (PoissonSampled(0.1, Composed((GaussianRelease(2.0), Selection(0.3, NOISY)))), None),
        (PoissonSampled(0.1, Composed((GaussianRelease(2.0), Selection(0.3), ZcdpCost(0.1)))), None),
        (PoissonSampled(0.1, Composed((Selection(0.3), AdaptivelyChosen(GaussianRelease(2.0))))), None),
        (PoissonSampled(0.1, GaussianRelease(2.0)), None),
        (step(0.1, 2.0, 30.0), RangedBatch(0.1, 0.5, 30.0)),
        (step(0.1, 2.0, 30.1), None),
        (step(0.1, 2.0, 0.3, REPLACE), None),
        (step(0.0, 2.0, 0.3), None),
        (step(1.0, 2.0, 0.3), None),
        (Composed((GaussianRelease(2.0), Selection(0.3))), None),
        (Selection(0.3), None),
    ],
    ids=str,
)
def test_which_batches_are_known(event, expected):
    assert ranged_batch(event) == expected


def test_a_sigma_whose_square_is_0_is_out_of_range():
    with pytest.raises(ZeroDivisionError):
        ranged_batch(step(0.1, 5.5e-163, 0.3))


@pytest.mark.parametrize("batch", [RangedBatch(0.1, 20.1, 0.3), RangedBatch(0.1, 1e80, 30.0)])
def test_next_to_no_noise_counts_as_unsampled(batch):
    for theta in (0.1, 3.0):
        order = theta * (theta + 1)
        choice = min(order * batch.epsilon**2 / 8, theta * batch.epsilon)
        assert ranged_moment(batch)(theta) == pytest.approx(order * batch.mu**2 / 2 + choice)


def test_orders_out_of_reach_count_as_unsampled():
    batch = RangedBatch(0.1, 1.0, 0.3)
    assert ranged_moment(batch)(1e5) == pytest.approx(1e5 * (1e5 + 1) / 2 + 1e5 * 0.3)
    assert ranged_moment(batch)(1e3) < 1e3 * (1e3 + 1) / 2


def test_other_batches_keep_their_moment():
    """Two choices on one batch, or a noisy max, are randomised response as before; alone a batch's choice costs
    less."""
    for theta in (0.7, 5.0):
        two = PoissonSampled(0.1, Composed((GaussianRelease(2.0), Repeated(Selection(0.3), 2))))
        noisy = PoissonSampled(0.1, Composed((GaussianRelease(2.0), Repeated(Selection(0.3, NOISY), 2))))
        assert moment(two, theta) == moment(noisy, theta)
        one = PoissonSampled(0.1, Composed((GaussianRelease(2.0), Selection(0.3, NOISY))))
        assert moment(step(0.1, 2.0, 0.3), theta) < moment(one, theta) < moment(two, theta)


def test_moments_of_different_batches_add():
    parts = {step(0.1, 2.0, 0.3): 3, step(0.2, 4.0, 0.1): 2, PoissonSampled(0.1, GaussianRelease(2.0)): 5}
    for theta in (0.7, 5.0):
        each = sum(count * moment(part, theta) for part, count in parts.items())
        assert log_moment("test", parts)(theta) == pytest.approx(each, rel=1e-12)


# --- accountants and filters ---

AGD = step(0.02, 2.0, 0.3)


def test_the_choice_costs_a_quarter_of_what_pure_dp_says():
    """800 steps at q = .02, sigma = 2, epsilon = .3, delta = 1e-5: 1.296 without a choice, 1.573 with a noisy max."""
    rdp = accountant("rdp")
    plain = rdp.epsilon(Repeated(PoissonSampled(0.02, GaussianRelease(2.0)), 800), 1e-5).epsilon
    noisy = PoissonSampled(0.02, Composed((GaussianRelease(2.0), Selection(0.3, NOISY))))
    response = rdp.epsilon(Repeated(noisy, 800), 1e-5).epsilon
    found = rdp.epsilon(Repeated(AGD, 800), 1e-5).epsilon
    assert (plain, response) == (pytest.approx(1.29624, abs=1e-4), pytest.approx(1.57344, abs=1e-4))
    assert found == pytest.approx(1.37078, abs=1e-4)
    assert found - plain < 0.3 * (response - plain)


def test_moments_and_delta_know_it_too():
    rdp = accountant("rdp")
    run = Repeated(AGD, 800)
    assert rdp.delta(run, rdp.epsilon(run, 1e-5).epsilon).delta == pytest.approx(1e-5, rel=1e-3)
    assert rdp.epsilon(run, 1e-5).epsilon < accountant("moments").epsilon(run, 1e-5).epsilon < 2.0


def test_a_filter_takes_it_chosen_on_the_way():
    plain, marked = (RdpFilter(epsilon=1.0, delta=1e-5, expected=AGD) for _ in range(2))
    for count in (100, 100):
        plain.commit(AGD, count)
        marked.commit(AdaptivelyChosen(AGD), count)
    assert 0 < plain.used == marked.used < 1
    marked.admit(AdaptivelyChosen(AGD))
    with pytest.raises(BudgetExceeded):
        marked.admit(AdaptivelyChosen(AGD), 800)
    with pytest.raises(AdaptiveEvent):
        accountant("rdp").epsilon(AdaptivelyChosen(AGD), 1e-5)


def test_a_filter_charges_the_range():
    """What its one order leaves room for: more steps than of a noisy max."""
    noisy = PoissonSampled(0.02, Composed((GaussianRelease(2.0), Selection(0.3, NOISY))))
    rule = RdpFilter(epsilon=1.0, delta=1e-5, orders=(15.0,))
    rule.commit(AGD)
    ranged_cost = rule.used
    rule.commit(noisy)
    assert 1.15 * ranged_cost < rule.used - ranged_cost


def test_pld_knows_what_rdp_knows():
    run = Repeated(AGD, 800)
    assert accountant("pld").epsilon(run, 1e-5).epsilon <= accountant("rdp").epsilon(run, 1e-5).epsilon
    assert accountant("pld").delta(run, 1.0).delta <= accountant("rdp").delta(run, 1.0).delta
