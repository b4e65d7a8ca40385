"""Groups of records: the dominating pair against brute force, other programs, and what is refused."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from adadp import GroupAccountant, Ledger, accountant
from adadp.app.cli import main
from adadp.errors import AdaDPError, InputError
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    Disjoint,
    Event,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    Selection,
    ZcdpCost,
)
from adadp.ledger import PlannedBudget

ZERO, REPLACE = Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE


def poisson(q: float, sigma: float, steps: int = 1, near: Neighbours = Neighbours.ADD_REMOVE) -> Event:
    return Repeated(PoissonSampled(q, GaussianRelease(sigma, near)), steps)


def densities(x, q, sigma, k):
    """The mixture with the group and the Gaussian without it, written out."""
    mixture = sum(binom.pmf(j, k, q) * norm.pdf(x, j, sigma) for j in range(k + 1))
    return mixture, norm.pdf(x, 0, sigma)


def brute_delta(q, sigma, k, epsilon):
    """delta of one release by the integral of (P - e^epsilon Q)+, the worse of both orders."""
    x = np.linspace(-12 * sigma, k + 12 * sigma, 400_001)
    pair = densities(x, q, sigma, k)
    return max(np.maximum(p - math.exp(epsilon) * other, 0).sum() * (x[1] - x[0]) for p, other in (pair, pair[::-1]))


@pytest.mark.parametrize(
    ("q", "sigma", "k", "epsilon"),
    [(0.1, 1.0, 2, 0.5), (0.1, 1.0, 5, 2.0), (0.5, 2.0, 3, 0.3), (0.01, 0.7, 4, 1.0), (0.9, 3.0, 10, 1.0)],
)
def test_one_release_against_the_integral(q, sigma, k, epsilon):
    found = GroupAccountant(k).delta(poisson(q, sigma), epsilon)
    exact = brute_delta(q, sigma, k, epsilon)
    assert found.delta_low * (1 - 1e-6) <= exact <= found.delta_high * (1 + 1e-6)
    assert found.delta_high - found.delta_low < 0.01 * exact


@pytest.mark.slow
@pytest.mark.parametrize(("q", "sigma", "k", "epsilon"), [(0.2, 1.0, 3, 1.0), (0.05, 0.8, 2, 0.5)])
def test_two_releases_against_a_sum_over_a_grid(q, sigma, k, epsilon):
    """P x P and Q x Q on a fine grid: delta is the sum of (p p' - e^epsilon q q')+."""
    x, step = np.linspace(-10 * sigma, k + 10 * sigma, 6001, retstep=True)
    pair = [each * step for each in densities(x, q, sigma, k)]
    exact = max(
        np.maximum(np.multiply.outer(p, p) - math.exp(epsilon) * np.multiply.outer(other, other), 0).sum()
        for p, other in (pair, pair[::-1])
    )
    found = GroupAccountant(k).delta(poisson(q, sigma, 2), epsilon)
    assert found.delta_low * (1 - 1e-4) <= exact <= found.delta_high * (1 + 1e-4)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "k", "delta", "expected"),
    [
        (0.01, 4, 1000, 2, 1e-5, 0.5796600864033595),
        (0.01, 1, 1000, 5, 1e-5, 11.637976520190229),
        (0.1, 2, 100, 3, 1e-6, 9.392890095224537),
    ],
)
def test_many_releases_against_dp_accounting(q, sigma, steps, k, delta, expected):
    """dp-accounting 0.6.0, from_mixture_gaussian_mechanism with binomial weights and a discretisation of 1e-4, which is
    pessimistic by up to 3e-5 here."""
    found = GroupAccountant(k).epsilon(poisson(q, sigma, steps), delta)
    assert found.epsilon_low - 1e-6 <= expected
    assert found.epsilon_high == pytest.approx(expected, rel=1e-4)


@given(st.floats(0.01, 0.6), st.floats(0.7, 5.0), st.integers(1, 4), st.integers(0, 3), st.floats(0.0, 2.0))
def test_no_vectors_of_a_group_are_worse_than_parallel_ones(q, sigma, k, seed, epsilon):
    """The lemma: any contributions of norm at most 1 against k parallel ones of norm 1, by Monte Carlo on the same
    draws for both orders."""
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(k, 3))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)
    sets = list(itertools.product([0, 1], repeat=k))
    weights = np.array([q ** sum(each) * (1 - q) ** (k - sum(each)) for each in sets])
    centres = np.array(sets) @ vectors / sigma
    draws = generator.normal(size=(20_000, 3))
    ratio = np.exp(draws @ centres.T - (centres**2).sum(1) / 2) @ weights
    spread = 5 / math.sqrt(len(draws))
    limit = GroupAccountant(k).delta(poisson(q, sigma), epsilon).delta_high
    removed, added = np.maximum(ratio - math.exp(epsilon), 0), np.maximum(1 - math.exp(epsilon) * ratio, 0)
    assert removed.mean() <= limit + spread * removed.std()
    assert added.mean() <= limit + spread * added.std()


def test_one_record_is_what_pld_says():
    event = poisson(0.02, 1.5, 100)
    assert GroupAccountant(1).epsilon(event, 1e-5) == accountant().epsilon(event, 1e-5)
    assert GroupAccountant(1).delta(event, 1.0) == accountant().delta(event, 1.0)


def test_the_figure_for_a_group_of_one_by_the_mixture_is_that_of_pld():
    """The family itself, with two components, against that of the core."""
    event = poisson(0.02, 1.5, 100)
    found = GroupAccountant(2)
    found.size = 1
    bracket = found._bracket({PoissonSampled(0.02, GaussianRelease(1.5)): 100}, 1e-9, lambda each: _worse(each, 1e-5))
    exact = accountant().epsilon(event, 1e-5)
    assert bracket.low == pytest.approx(exact.epsilon_low, rel=1e-3)
    assert bracket.high == pytest.approx(exact.epsilon_high, rel=1e-3)


def _worse(found, delta):
    from adadp.accounting.pld import worse_epsilon

    return worse_epsilon(found, delta)


@pytest.mark.parametrize("k", [2, 7, 100])
def test_what_all_records_are_in_costs_k_times_the_distance(k):
    def plain(event):
        return GroupAccountant(k).epsilon(event, 1e-6).epsilon

    def single(sigma, count=1, near=Neighbours.ADD_REMOVE):
        return accountant().epsilon(Repeated(GaussianRelease(sigma, near), count), 1e-6).epsilon

    assert plain(GaussianRelease(50.0)) == pytest.approx(single(50.0 / k), rel=1e-6)
    assert plain(GaussianRelease(50.0, REPLACE)) == pytest.approx(single(50.0 / k, near=REPLACE), rel=1e-6)
    assert plain(Repeated(PoissonSampled(1.0, GaussianRelease(50.0)), 4)) == pytest.approx(
        single(50.0 / k, 4), rel=1e-6
    )
    shuffled = ReshuffledEpoch((GaussianRelease(50.0, ZERO), GaussianRelease(40.0, ZERO)))
    assert plain(shuffled) == pytest.approx(single(40.0 / k, near=ZERO), rel=1e-6)


def test_a_selection_costs_k_times_its_epsilon():
    assert GroupAccountant(3).epsilon(Selection(0.5), 1e-9).epsilon == pytest.approx(1.5, rel=1e-6)


def test_zero_out_is_add_remove():
    assert (
        GroupAccountant(3).epsilon(poisson(0.1, 2.0, 20, ZERO), 1e-6).epsilon
        == GroupAccountant(3).epsilon(poisson(0.1, 2.0, 20), 1e-6).epsilon
    )


def test_a_larger_group_costs_more_and_less_than_unsampled():
    found = [GroupAccountant(k).epsilon(poisson(0.05, 3.0, 50), 1e-6).epsilon for k in (1, 2, 4, 8, 16)]
    assert found == sorted(found)
    assert found[-1] < GroupAccountant(16).epsilon(Repeated(GaussianRelease(3.0), 50), 1e-6).epsilon


def test_multiplying_epsilon_alone_is_no_bound():
    """Three times epsilon at the same delta is less than three records cost: why it is computed from the events."""
    event = poisson(0.1, 2.0, 100)
    alone = accountant().epsilon(event, 1e-6).epsilon
    assert GroupAccountant(3).epsilon(event, 1e-6).epsilon_low > 3 * alone


def test_the_proved_rule_for_any_mechanism_is_never_beaten():
    """k epsilon with delta (1 + e^epsilon + .. + e^((k - 1) epsilon)) holds for every mechanism."""
    for q, sigma, steps, k in ((0.01, 1.0, 100, 2), (0.1, 2.0, 20, 3), (0.02, 4.0, 500, 5)):
        event = poisson(q, sigma, steps)
        epsilon = 0.5
        delta = accountant().delta(event, epsilon).delta
        total = delta * sum(math.exp(j * epsilon) for j in range(k))
        assert GroupAccountant(k).delta(event, k * epsilon).delta_low <= total * (1 + 1e-9)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (poisson(0.1, 1.0, 1, REPLACE), "not of replace-one"),
        (FixedSizeSampled(0.1, GaussianRelease(1.0, REPLACE)), "on a batch of fixed size no worst case is known"),
        (PoissonSampled(0.1, Composed((GaussianRelease(1.0), Selection(0.1)))), "only Gaussian releases"),
        (ZcdpCost(0.1), "zCDP cost"),
        (AdaptivelyChosen(PoissonSampled(0.1, GaussianRelease(1.0))), "filter"),
        (Disjoint((GaussianRelease(1.0), GaussianRelease(2.0))), "may be in several parts"),
    ],
)
def test_what_has_no_theorem_is_refused(event, message):
    with pytest.raises(AdaDPError, match=message):
        GroupAccountant(2).epsilon(event, 1e-5)


@pytest.mark.parametrize("size", [0, -1, 1.5, 1001, "3"])
def test_bad_sizes_are_refused(size):
    with pytest.raises(InputError, match="group"):
        GroupAccountant(size)


def test_noise_that_cannot_be_resolved_is_taken_as_unsampled():
    found = GroupAccountant(50).epsilon(poisson(0.1, 1.0, 1), 1e-5)
    assert found.epsilon == pytest.approx(accountant().epsilon(GaussianRelease(1 / 50), 1e-5).epsilon, rel=1e-6)
    assert found.epsilon_low <= found.epsilon


def test_the_command_says_what_a_group_costs():
    words = ["--q", "0.01", "--noise-multiplier", "4", "--steps", "1000", "--group", "2", "--json"]
    found = json.loads(CliRunner().invoke(main, ["epsilon", *words, "--delta", "1e-5"]).output)
    assert found["epsilon"] == pytest.approx(0.57966, abs=2e-5)
    assert found["note"] == "for 2 records together"
    found = json.loads(CliRunner().invoke(main, ["delta", *words, "--epsilon", "0.57966"]).output)
    assert found["delta"] == pytest.approx(1e-5, rel=1e-2)


@pytest.mark.parametrize(
    "more", [["--accountant", "rdp"], ["--accountant", "all"], ["--sampling", "all"], ["--plot", "a.png"]]
)
def test_the_command_refuses_what_it_has_for_one_record_only(more):
    words = [
        "epsilon",
        "--q",
        "0.1",
        "--noise-multiplier",
        "4",
        "--epochs",
        "1",
        "--delta",
        "1e-5",
        "--group",
        "2",
        *more,
    ]
    result = CliRunner().invoke(main, words)
    assert result.exit_code != 0
    assert "--group 2 was given together with" in str(result.output) + str(result.exception)


def test_the_ledger_of_a_run_says_what_a_group_costs(tmp_path):
    event = poisson(0.1, 2.0, 10)
    with Ledger.create(tmp_path / "l.jsonl", budget=PlannedBudget(event), seeded=False) as ledger:
        ledger.charge(PoissonSampled(0.1, GaussianRelease(2.0)), 10)
    words = ["ledger", "show", str(tmp_path / "l.jsonl"), "--delta", "1e-5", "--json"]
    found = json.loads(CliRunner().invoke(main, [*words, "--group", "3"]).output)
    assert found["epsilon"] == GroupAccountant(3).epsilon(event, 1e-5).epsilon
    assert found["group"] == 3
    assert "group" not in json.loads(CliRunner().invoke(main, words).output)
    shown = CliRunner().invoke(main, ["ledger", "show", str(tmp_path / "l.jsonl"), "--group", "3"])
    assert "--group needs --delta" in str(shown.output) + str(shown.exception)
