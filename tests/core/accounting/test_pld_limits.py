"""More tests of pld: pld limits."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from pld_cases import ADD, PLD, REPLACE, ZERO, assert_delta, assert_epsilon_inverts, fixed, poisson, two_fold

from adadp.accounting import accountant, pld
from adadp.accounting.composition import Composition
from adadp.accounting.contour import contour_curve, saddle_point
from adadp.accounting.dominating import gaussian_multiplier
from adadp.accounting.pld import _epsilon_bracket
from adadp.accounting.privacy_losses import FixedSizeReplace, PoissonRemove, PoissonReplace
from adadp.events import (
    Composed,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    Selection,
    SelectionMechanism,
)

pytestmark = pytest.mark.slow


NOISY = SelectionMechanism.NOISY_MAX


@pytest.mark.parametrize("points", [64, 96, 128, 200, 300])
def test_a_coarse_quadrature_widens_the_bracket(points, monkeypatch):
    """With few nodes the transform is wrong at great heights; what is added for that keeps the bracket true."""
    q, mu, epsilon = 0.3, 1.5, 1.0
    exact = two_fold("remove", q, mu, epsilon)
    monkeypatch.setattr("adadp.accounting.contour._MOST_POINTS", points)
    composition = Composition(0.0, (PoissonRemove(np.array([q]), np.array([mu]), np.array([2.0])),))
    low, high = contour_curve(composition, saddle_point(composition, epsilon=epsilon), epsilon, exact).bounds(epsilon)
    assert low <= exact <= high
    assert high - low < 0.01 * exact


# --- No other configuration of records beats the claimed worst case ---


def _hockey_stick_on_grid(p_means: list, q_means: list, sigma: float, epsilon: float) -> float:
    """For equal-weight mixtures of two-dimensional normals, by brute force."""
    axis = np.arange(-3 - 6 * sigma, 3 + 6 * sigma, sigma / 8)
    x, y = np.meshgrid(axis, axis)

    def density(means: list) -> np.ndarray:
        parts = [np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * sigma**2)) for a, b in means]
        return sum(parts) / len(parts) / (2 * math.pi * sigma**2)

    return float(np.maximum(density(p_means) - math.exp(epsilon) * density(q_means), 0).sum() * (sigma / 8) ** 2)


def _unit_vectors(random: np.random.Generator, count: int) -> np.ndarray:
    """Of length at most 1, half of them exactly."""
    angle = random.uniform(0, 2 * math.pi, count)
    radius = np.where(random.random(count) < 0.5, 1.0, random.random(count))
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _fixed_batches(records: np.ndarray, size: int) -> list:
    """The sum over every batch of ``size`` records."""
    return [records[list(batch)].sum(axis=0) for batch in itertools.combinations(range(len(records)), size)]


def _poisson_batches(records: np.ndarray) -> list:
    """The sum over every subset, all equally likely: q = 1/2."""
    return [
        (records * np.array(chosen)[:, None]).sum(axis=0) for chosen in itertools.product([0, 1], repeat=len(records))
    ]


@pytest.mark.parametrize(("number", "size"), [(2, 1), (3, 1), (4, 2), (4, 3)])
def test_no_data_set_beats_the_fixed_size_pair(number, size):
    random = np.random.default_rng(number * 10 + size)
    sigma, epsilon = 1.0, 0.4
    claimed = PLD.delta(fixed(size / number, sigma), epsilon).delta_high
    for _ in range(40):
        first = _unit_vectors(random, number)
        second = np.concatenate([_unit_vectors(random, 1), first[1:]])
        blanked = np.concatenate([np.zeros((1, 2)), first[1:]])
        for other in (second, blanked):
            for a, b in ((first, other), (other, first)):
                found = _hockey_stick_on_grid(_fixed_batches(a, size), _fixed_batches(b, size), sigma, epsilon)
                assert found <= claimed * (1 + 1e-6)
    # The worst case itself: the others at one end, the record moved from there to the other end.
    others = np.tile([-1.0, 0.0], (number - 1, 1))
    a, b = np.vstack([[1.0, 0.0], others]), np.vstack([[-1.0, 0.0], others])
    worst = _hockey_stick_on_grid(_fixed_batches(a, size), _fixed_batches(b, size), sigma, epsilon)
    assert worst == pytest.approx(claimed, rel=3e-3)


def test_no_data_set_beats_the_poisson_pairs():
    random = np.random.default_rng(5)
    sigma, epsilon = 1.0, 0.4
    replaced = PLD.delta(poisson(0.5, sigma, near=REPLACE), epsilon).delta_high
    added = PLD.delta(poisson(0.5, sigma), epsilon).delta_high
    blank = np.zeros((1, 2))
    for _ in range(40):
        others = _unit_vectors(random, 2)
        one, two = (np.concatenate([_unit_vectors(random, 1), others]) for _ in range(2))
        without = np.concatenate([blank, others])
        for a, b, claimed in ((one, two, replaced), (one, without, added), (without, one, added)):
            found = _hockey_stick_on_grid(_poisson_batches(a), _poisson_batches(b), sigma, epsilon)
            assert found <= claimed * (1 + 1e-6)
    a, b = np.array([[1.0, 0.0]]), np.array([[-1.0, 0.0]])
    assert _hockey_stick_on_grid(_poisson_batches(a), _poisson_batches(b), sigma, epsilon) == pytest.approx(
        replaced, rel=1e-3
    )
    both = [
        _hockey_stick_on_grid(_poisson_batches(a), _poisson_batches(blank), sigma, epsilon),
        _hockey_stick_on_grid(_poisson_batches(blank), _poisson_batches(a), sigma, epsilon),
    ]
    assert max(both) == pytest.approx(added, rel=3e-3)


# --- Selections: randomised response is the worst case of pure DP ---


def randomised_response_delta(pairs: list[tuple[float, int]], epsilon: float) -> float:
    """Every outcome of every randomised response, enumerated."""
    total = mpmath.mpf(0)
    with mpmath.workdps(40):
        for ups in itertools.product(*(range(count + 1) for _, count in pairs)):
            mass, loss = mpmath.mpf(1), mpmath.mpf(0)
            for (each, count), up in zip(pairs, ups, strict=True):
                high = 1 / (1 + mpmath.exp(-mpmath.mpf(each)))
                mass *= mpmath.binomial(count, up) * high**up * (1 - high) ** (count - up)
                loss += (2 * up - count) * mpmath.mpf(each)
            total += mass * max(1 - mpmath.exp(epsilon - loss), 0)
        return float(total)


@pytest.mark.parametrize("pairs", [[(0.5, 1)], [(0.5, 30)], [(0.1, 400)], [(3.0, 4)], [(0.5, 7), (0.2, 11)]], ids=str)
def test_selections_alone_are_enumerated(pairs):
    event = Composed(tuple(Repeated(Selection(each, NOISY), count) for each, count in pairs))
    most = sum(each * count for each, count in pairs)
    for share in (0.0, 0.1, 0.4, 0.95):
        exact = randomised_response_delta(pairs, share * most)
        found = PLD.delta(event, share * most)
        assert found.delta_low <= exact * (1 + 1e-9)
        assert exact <= found.delta_high * (1 + 1e-9) + 1e-300
        assert found.delta_high <= exact * (1 + 1e-6) + 1e-20
    assert PLD.delta(event, most * (1 + 1e-9)).delta == pytest.approx(0.0, abs=1e-12)
    for delta in (1e-6, 0.1):
        assert_epsilon_inverts(event, delta, lambda epsilon: randomised_response_delta(pairs, epsilon))


@pytest.mark.parametrize("count", [1, 200])
def test_the_bounded_range_of_the_exponential_mechanism_is_used(count):
    exponential = PLD.epsilon(Repeated(Selection(0.2), count), 1e-6)
    plain = PLD.epsilon(Repeated(Selection(0.2, NOISY), count), 1e-6)
    rdp = accountant("rdp").epsilon(Repeated(Selection(0.2), count), 1e-6)
    assert exponential.epsilon == pytest.approx(min(plain.epsilon, rdp.epsilon), rel=1e-9)
    assert exponential.epsilon_low <= exponential.epsilon
    at = exponential.epsilon / 2
    expected = min(
        PLD.delta(Repeated(Selection(0.2, NOISY), count), at).delta,
        accountant("rdp").delta(Repeated(Selection(0.2), count), at).delta,
    )
    assert PLD.delta(Repeated(Selection(0.2), count), at).delta == pytest.approx(expected, rel=1e-9)


def _sampled_pair_delta(q: float, mu: float, pick: float, epsilon: float, kind: str, fold: int = 1) -> float:
    """A Gaussian and a selection on one Poisson batch, by summing over outcomes on a fine grid."""
    step = 0.002
    u = np.arange(-12, 12 + mu, step)
    down = 1 / (1 + math.exp(pick))
    base = step * np.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    masses, losses = [], []
    for shift, weight in ((pick, down), (-pick, 1 - down)):
        mix = 1 - q + q * np.exp(mu * u - mu * mu / 2 + shift)
        masses.append(weight * base * (mix if kind == "remove" else 1))
        losses.append(np.log(mix) if kind == "remove" else -np.log(mix))
    mass, loss = np.concatenate(masses), np.concatenate(losses)
    if fold == 2:  # every fourth node is enough for the second release
        coarse = np.zeros_like(mass)
        half = len(mass) // 2
        for part in (slice(0, half), slice(half, None)):
            coarse[part][::8] = 8 * mass[part][::8]
        keep = coarse > 1e-18
        return sum(
            float(m * (mass * -np.expm1(np.minimum(epsilon - x - loss, 0))).sum())
            for m, x in zip(coarse[keep], loss[keep], strict=True)
        )
    return float((mass * -np.expm1(np.minimum(epsilon - loss, 0))).sum())


@pytest.mark.parametrize(("q", "sigma", "pick"), [(0.3, 1.5, 0.5), (0.05, 0.8, 1.0)])
@pytest.mark.parametrize("fold", [1, 2])
def test_a_gaussian_and_a_selection_on_one_batch(q, sigma, pick, fold):
    event = Repeated(PoissonSampled(q, Composed((GaussianRelease(sigma), Selection(pick, NOISY)))), fold)
    for epsilon in (0.1, 0.6):
        exact = max(_sampled_pair_delta(q, 1 / sigma, pick, epsilon, kind, fold) for kind in ("remove", "add"))
        found = PLD.delta(event, epsilon)
        assert found.delta_low * (1 - 1e-4) <= exact <= found.delta_high * (1 + 1e-4)
        assert found.delta_high - found.delta_low <= 0.01 * exact


@pytest.mark.parametrize(("q", "picks", "count"), [(0.3, 1, 1), (0.1, 2, 3), (0.7, 3, 2)])
def test_selections_alone_on_one_batch(q, picks, count):
    """P and Q over the outcomes of the selections, enumerated."""
    each = 0.8
    down = 1 / (1 + math.exp(each))
    absent = np.array([math.comb(picks, k) * down**k * (1 - down) ** (picks - k) for k in range(picks + 1)])
    mix = 1 - q + q * np.exp(each * (2 * np.arange(picks + 1) - picks))
    event = Repeated(PoissonSampled(q, Repeated(Selection(each, NOISY), picks)), count)
    for epsilon in (0.05, 0.3):
        deltas = []
        for p, other in ((absent * mix, absent), (absent, absent * mix)):
            joint_p = np.array([np.prod(x) for x in itertools.product(p, repeat=count)])
            joint_q = np.array([np.prod(x) for x in itertools.product(other, repeat=count)])
            deltas.append(float(np.maximum(joint_p - math.exp(epsilon) * joint_q, 0).sum()))
        assert_delta(event, epsilon, max(deltas), 1e-6)


@pytest.mark.parametrize(
    ("kind", "near"), [(PoissonSampled, ADD), (PoissonSampled, REPLACE), (FixedSizeSampled, REPLACE)]
)
def test_sampling_everything_is_no_sampling(kind, near):
    inner = Composed((GaussianRelease(2.0, near), Selection(0.5, NOISY, near)))
    one, other = PLD.epsilon(kind(1.0, inner), 1e-5), PLD.epsilon(inner, 1e-5)
    assert max(one.epsilon_low, other.epsilon_low) <= min(one.epsilon_high, other.epsilon_high)
    assert one.epsilon == pytest.approx(other.epsilon, rel=1e-3)


def test_releases_on_one_batch_are_one_gaussian_of_their_joint_precision():
    two = PoissonSampled(0.1, Composed((GaussianRelease(3.0), GaussianRelease(4.0))))
    one = PoissonSampled(0.1, GaussianRelease(1 / math.sqrt(1 / 9 + 1 / 16)))
    assert PLD.epsilon(Repeated(two, 50), 1e-5).epsilon == pytest.approx(
        PLD.epsilon(Repeated(one, 50), 1e-5).epsilon, rel=1e-9
    )
    apart = Composed((Repeated(PoissonSampled(0.1, GaussianRelease(3.0)), 50), poisson(0.1, 4.0, 50)))
    assert PLD.epsilon(Repeated(two, 50), 1e-5).epsilon_low > PLD.epsilon(apart, 1e-5).epsilon_high


@pytest.mark.parametrize(
    ("q", "sigma", "epsilon"),
    [(0.03476, 0.4661, 0.00567), (0.001678, 0.263, 0.00351), (0.09507, 0.5968, 0.008), (0.1, 0.3, 0.001), (0.01, 1, 2)],
)
def test_two_fixed_size_batches_contain_the_truth(q, sigma, epsilon):
    """A regression: the point mass at loss 0 was left out of the bound on the cut but not out of the sum."""
    mu = 2 / sigma
    edges = np.linspace(0, mu * mu / 2 + 9.5 * mu, 400_001)
    y = (edges[1:] + edges[:-1]) / 2
    density = np.exp(-((y + mu * mu / 2) ** 2) / (2 * mu * mu)) / (mu * math.sqrt(2 * math.pi)) * (edges[1] - edges[0])
    log_w = np.log1p(q * np.expm1(y))
    mass = np.concatenate([density * np.exp(log_w), density])
    mass = np.append(mass, 1 - mass.sum())
    loss = np.append(np.concatenate([log_w, -log_w]), 0.0)
    order = np.argsort(loss)
    mass, loss = mass[order], loss[order]
    tail = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
    other_tail = np.append(np.cumsum((mass * np.exp(-loss))[::-1])[::-1], 0.0)
    at = np.searchsorted(loss, epsilon - loss, side="right")
    truth = float(mass @ (tail[at] - np.exp(epsilon - loss) * other_tail[at]))
    run = Repeated(FixedSizeSampled(q, GaussianRelease(sigma, Neighbours.REPLACE_ONE)), 2)
    found = accountant("pld").delta(run, epsilon)
    assert found.delta_low <= truth * (1 + 1e-6)
    assert truth * (1 - 1e-6) <= found.delta_high


def test_releases_on_one_batch_without_noise_have_no_noise_together():
    assert gaussian_multiplier(Composed((GaussianRelease(2.0), GaussianRelease(0.0)))) == 0.0


# --- Where not every loss is integrated: bounds from both sides ---


@pytest.mark.parametrize("near", [ADD, REPLACE])
@pytest.mark.parametrize("kind", [PoissonSampled, FixedSizeSampled])
def test_a_multiplier_for_every_step_is_grouped_safely(kind, near):
    """More levels than are integrated one by one: the bracket holds the figure of all of them in one array."""
    if kind is FixedSizeSampled and near is ADD:
        pytest.skip("fixed-size batches have no add-remove neighbours")
    sigmas = [4.0 * 0.998**k for k in range(300)]
    event = Composed(tuple(kind(0.05, GaussianRelease(sigma, near)) for sigma in sigmas))
    families = {
        (PoissonSampled, ADD): (PoissonRemove, 1.0),
        (PoissonSampled, REPLACE): (PoissonReplace, 1.0),
        (FixedSizeSampled, REPLACE): (FixedSizeReplace, 2.0),
    }
    family, distance = families[kind, near]
    mu = distance / np.array(sigmas)
    whole = Composition(0.0, (family(np.full(300, 0.05), mu, np.ones(300), 12.0),), 12.0)
    exact = _epsilon_bracket(whole, 1e-5)
    found = PLD.epsilon(event, 1e-5)
    assert found.epsilon_low <= exact[0]
    assert exact[1] <= found.epsilon_high * (1 + 1e-4)
    assert found.epsilon_high - found.epsilon_low <= 0.01 * found.epsilon_high
    at = PLD.delta(event, exact[1])
    assert at.delta_low <= 1e-5 <= at.delta_high * (1 + 1e-2)


def test_next_to_no_noise_is_taken_as_unsampled():
    """sigma = .01: an upper bound by the release without sampling, and a lower bound by leaving it out."""
    rest = poisson(0.1, 2.0, 10, ZERO)
    tiny = GaussianRelease(0.01, ZERO)
    pick = Selection(0.5, NOISY, ZERO)
    for sampled, plain in (
        (PoissonSampled(0.1, tiny), tiny),
        (PoissonSampled(0.1, Composed((tiny, pick))), Composed((tiny, pick))),
        (FixedSizeSampled(0.1, tiny), GaussianRelease(0.005, ZERO)),
    ):
        found = PLD.epsilon(Composed((rest, sampled)), 1e-5)
        assert found.epsilon_high == pytest.approx(PLD.epsilon(Composed((rest, plain)), 1e-5).epsilon_high, rel=1e-3)
        assert found.epsilon_low <= PLD.epsilon(rest, 1e-5).epsilon_high
        at = PLD.delta(Composed((rest, sampled)), 1.0)
        assert at.delta_low <= at.delta_high
        assert at.delta_high >= PLD.delta(rest, 1.0).delta_low


def test_the_answer_says_where_it_rests_on_rdp_and_without_rdp_it_is_wider(monkeypatch):
    chosen = PoissonSampled(0.05, Composed((GaussianRelease(1.5), Selection(0.5))))
    lowered = PLD.epsilon(Repeated(chosen, 20), 1e-5)
    assert "rdp" in lowered.note
    assert PLD.epsilon(Repeated(PoissonSampled(0.05, GaussianRelease(1.5)), 20), 1e-5).note == ""
    monkeypatch.setattr(pld, "ACCOUNTANTS", {"pld": PLD})
    alone = PLD.epsilon(Repeated(chosen, 20), 1e-5)
    assert alone.note == ""
    assert alone.epsilon > lowered.epsilon
