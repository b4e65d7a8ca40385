"""Corners where the loss distribution is hard: rare samples, many noise levels, tiny deltas, absurd numbers.

How long an answer takes is not asserted; how much work it is, is.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from click.testing import CliRunner

from adadp.accounting import accountant, contour
from adadp.accounting.composition import Composition
from adadp.accounting.dominating import compositions
from adadp.accounting.privacy_losses import PoissonAdd, PoissonRemove
from adadp.accounting.quadrature import SmoothFamily
from adadp.app.accounting.calibrate import smallest_noise
from adadp.app.cli import main
from adadp.errors import AccountingError
from adadp.events import (
    Event,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    compose,
    flatten,
)

pytestmark = pytest.mark.slow


PLD = accountant("pld")


def run(q: float, levels: list[tuple[float, int]]) -> Event:
    return compose(*(Repeated(PoissonSampled(q, GaussianRelease(sigma)), steps) for sigma, steps in levels))


def drawn(seed: int) -> tuple[float, list[tuple[float, int]], float]:
    """A schedule of up to 100 noise levels, all numbers log-uniform over the ranges that are promised."""
    source = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(source.uniform(math.log(low), math.log(high)))

    steps = int(between(1, 1e7))
    count = min(source.choice([1, 2, 5, 27, 100]), steps)
    levels = [(between(0.3, 50), max(1, int(steps * between(1e-4, 1) / count))) for _ in range(count)]
    return between(1e-6, 1), levels, between(1e-12, 1e-3)


HARD = [
    (2.18e-5, [(0.376, 199)], 5.9e-4),
    (1e-4, [(1 - 0.005 * k, 100) for k in range(100)], 1e-5),
    (1e-3, [(1 + 0.03 * k, 100) for k in range(100)], 1e-5),
    (1.2e-6, [(0.3 + 0.003 * k, 5) for k in range(100)], 1e-11),
    (3.1e-5, [(0.6451, 300_000), (11.05, 9637)], 1.2e-9),
    (5.156e-6, [(0.4113, 11)], 2.808e-5),
    (1.4e-5, [(0.57 + 0.1 * k, 2) for k in range(47)], 5e-7),
]


@pytest.fixture
def work(monkeypatch) -> list[int]:
    """Heights and nodes, added up over the noise levels; one entry for each line."""
    found: list[int] = []
    plain = contour._log_transform

    def counting(composition, theta, heights):
        nodes = [family.nodes(theta, theta, float(heights[-1])) for family in composition.families]
        found.append(sum(len(each.loss) * (len(heights) + each.loss.shape[1]) for each in nodes))
        return plain(composition, theta, heights)

    monkeypatch.setattr(contour, "_log_transform", counting)
    return found


@pytest.mark.parametrize("setting", HARD, ids=lambda setting: f"q={setting[0]:g}")
def test_hard_settings_have_a_bracket_of_one_percent_and_bounded_work(setting, work):
    q, levels, delta = setting
    answer = PLD.epsilon(run(q, levels), delta)
    assert answer.epsilon_low <= answer.epsilon_high <= 1.01 * answer.epsilon_low
    assert sum(work) < 4_000_000
    assert len(work) <= 6


@pytest.mark.parametrize("seed", range(30))
def test_random_settings_have_a_bracket_of_one_percent_and_bounded_work(seed, work):
    q, levels, delta = drawn(seed)
    answer = PLD.epsilon(run(q, levels), delta)
    assert answer.epsilon_low <= answer.epsilon_high <= 1.01 * answer.epsilon_low + 1e-6
    assert sum(work) < 4_000_000


def test_lines_share_their_quadratures(monkeypatch):
    """100 levels, in 2 to 3 groups by mu and for two orders of the data sets, take fewer than 100 quadratures."""
    asked = []
    plain = SmoothFamily.nodes

    def counting(family, *arguments, **named):
        asked.append(family)
        return plain(family, *arguments, **named)

    monkeypatch.setattr(SmoothFamily, "nodes", counting)
    for q, levels, delta in HARD[1:4]:
        asked.clear()
        PLD.epsilon(run(q, levels), delta)
        assert len(asked) <= 100


@pytest.mark.parametrize("setting", HARD[:3], ids=lambda setting: f"q={setting[0]:g}")
def test_the_bracket_of_delta_at_both_ends_of_epsilon_agrees(setting):
    """Another line, other nodes: delta at the upper end is at most delta, at the lower end no less."""
    q, levels, delta = setting
    event = run(q, levels)
    answer = PLD.epsilon(event, delta)
    assert PLD.delta(event, answer.epsilon_high * 1.01).delta_low <= delta
    assert PLD.delta(event, answer.epsilon_low * 0.99).delta_high >= delta


# --- Jumps: outcomes that leave the integral and are added by a formula ---


def test_jumps_change_nothing_but_the_work():
    """With and without them, brackets overlap wherever both are narrow."""
    for q, sigma, steps, epsilon in (
        (0.3, 0.7, 2, 1.0),
        (0.01, 0.5, 3, 0.5),
        (1e-3, 0.4, 20, 0.3),
        (1e-4, 0.6, 1000, 0.2),
    ):
        (whole, _) = compositions("pld", flatten(run(q, [(sigma, steps)])), 1e-16)
        near = whole.around(epsilon, 1e-4)
        assert near.jumped(epsilon)[0] > 0
        found = []
        for each in (whole, near):
            theta = contour.saddle_point(each, epsilon=epsilon)
            found.append(contour.contour_curve(each, theta, epsilon, 1e-4).bounds(epsilon))
        assert found[0][0] <= found[1][1]
        assert found[1][0] <= found[0][1]
        assert found[1][1] - found[1][0] < 0.02 * found[1][1]


def two_releases(q: float, mu: float, epsilon: float) -> float:
    """delta(epsilon) of two releases with the record removed, by a sum over a plane of outcomes."""
    u = np.linspace(-9.0, 9.0 + mu, 3001)
    ratio = 1 - q + q * np.exp(mu * u - mu * mu / 2)
    mass = np.exp(-u * u / 2) / math.sqrt(2 * math.pi) * ratio * (u[1] - u[0])
    loss = np.log(ratio)
    return float(mass @ -np.expm1(np.minimum(epsilon - loss[:, None] - loss, 0.0)) @ mass)


@pytest.mark.parametrize("theta", [0.3, 1.0, 2.0])
@pytest.mark.parametrize(("q", "mu", "epsilon"), [(0.3, 1.5, 1.0), (0.05, 1.0, 0.3), (0.01, 2.0, 0.5)])
def test_any_line_gives_the_same_delta_without_jumps(theta, q, mu, epsilon):
    """Low lines are those where aliasing from below is not small, and is subtracted."""
    exact = two_releases(q, mu, epsilon)
    (whole, _) = compositions("pld", flatten(run(q, [(1 / mu, 2)])), 1e-16)
    low, high = contour.contour_curve(whole.around(epsilon, exact), theta, epsilon, exact).bounds(epsilon)
    assert low <= exact * (1 + 1e-4)
    assert high >= exact * (1 - 1e-4)
    assert high - low < 0.1 * exact or q < 0.3  # where these lines are far from the saddle point


def test_jumps_are_what_two_releases_say():
    """P(A) - e^epsilon Q(A) by enumeration of which of two releases jumps, from the tails of normal distributions."""
    (whole, _) = compositions("pld", flatten(run(0.2, [(0.6, 2)])), 1e-16)
    near = whole.around(0.4, 1e-4)
    (family,) = near.families
    assert isinstance(family, PoissonRemove)
    last, spread = float(family.last[0]), math.hypot(1, float(family.taper[0]))
    tail = lambda mean: 0.5 * math.erfc((last - mean) / spread / math.sqrt(2))  # noqa: E731
    by_p, by_q = 0.8 * tail(0.0) + 0.2 * tail(1 / 0.6), tail(0.0)
    expected = (1 - (1 - by_p) ** 2) - math.exp(0.4) * (1 - (1 - by_q) ** 2)
    assert near.jumped(0.4)[0] == pytest.approx(expected, rel=1e-6)
    assert near.jumped(0.4)[1] == pytest.approx(expected, rel=1e-4)
    assert near.jumped(1e3) == (0.0, pytest.approx(1 - (1 - by_p) ** 2, rel=1e-6))


def test_only_compositions_of_one_kind_have_jumps():
    (removed, added) = compositions("pld", flatten(run(0.01, [(1.0, 10)])), 1e-16)
    assert math.isfinite(removed.lowest)
    assert removed.highest == math.inf
    assert added.highest == -removed.lowest
    assert all(isinstance(family, PoissonAdd) for family in added.families)
    mixed = Composition(1.0, removed.families)
    assert mixed.around(1.0, 1e-4) is mixed


# --- Jumps in both directions: a record is replaced ---

KINDS = [PoissonSampled, FixedSizeSampled]


def replaced(kind: type, q: float, levels: list[tuple[float, int]]) -> Event:
    each = (Repeated(kind(q, GaussianRelease(sigma, Neighbours.REPLACE_ONE)), steps) for sigma, steps in levels)
    return compose(*each)


@pytest.mark.parametrize("seed", [9, 14, 20, 23, 32, 50, 63])
@pytest.mark.parametrize("kind", KINDS)
def test_replaced_records_have_a_bracket_of_one_percent_and_bounded_work(kind, seed, work):
    """Among them are settings where the bracket was 100 % wide, or took ten times the work."""
    q, levels, delta = drawn(seed)
    answer = PLD.epsilon(replaced(kind, q, levels), delta)
    assert answer.epsilon_low <= answer.epsilon_high <= 1.01 * answer.epsilon_low + 1e-6
    assert sum(work) < 4_000_000


def replaced_outcomes(kind: type, q: float, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """P-masses and losses of one release, by the midpoint rule on the definition of its dominating pair."""
    if kind is PoissonSampled:
        mu = 1 / sigma
        u = (np.arange(4800) + 0.5) * (20 + 2 * mu) / 4800 - 10 - mu
        normal = [np.exp(-((u - m) ** 2) / 2) / math.sqrt(2 * math.pi) * (u[1] - u[0]) for m in (0.0, mu, -mu)]
        by_p, by_q = (1 - q) * normal[0] + q * normal[1], (1 - q) * normal[0] + q * normal[2]
        return by_p, np.log(by_p / by_q)
    mu = 2 / sigma
    x = (np.arange(2400) + 0.5) * (10 + mu) / 2400
    ratio = 1 - q + q * np.exp(mu * x)
    half = np.exp(-((x + mu / 2) ** 2) / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    rest = 1 - float((half * (1 + ratio)).sum())
    return np.concatenate([half * ratio, half, [rest]]), np.concatenate([np.log(ratio), -np.log(ratio), [0.0]])


@pytest.mark.parametrize("theta", [0.5, 1.5])
@pytest.mark.parametrize(("q", "sigma", "epsilon"), [(0.1, 0.6, 1.0), (0.05, 0.7, 0.3), (1e-3, 0.5, 0.05)])
@pytest.mark.parametrize("kind", KINDS)
def test_two_releases_of_replaced_records_are_what_a_sum_over_a_plane_says(kind, q, sigma, epsilon, theta):
    """Jumps are added by their formula, on lines where aliasing from below is not small either."""
    mass, loss = replaced_outcomes(kind, q, sigma)
    exact = float(mass @ -np.expm1(np.minimum(epsilon - loss[:, None] - loss, 0.0)) @ mass)
    (whole,) = compositions("pld", flatten(replaced(kind, q, [(sigma, 2)])), 1e-16)
    near = whole.around(epsilon, exact)
    assert near.jumped(epsilon)[0] > 1e-3 * exact
    steep = contour.saddle_point(near, epsilon=epsilon)
    low, high = contour.contour_curve(near, theta * steep, epsilon, exact).bounds(epsilon)
    assert low <= exact * (1 + 1e-4)
    assert high >= exact * (1 - 1e-4)
    assert high - low < 0.01 * exact


@pytest.mark.parametrize(("sigma", "epsilon"), [(0.6, 0.4), (3.0, 0.02)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_let_go_of_replaced_records_is_what_the_quadrature_misses(kind, sigma, epsilon):
    """The normal tails by which jumps are charged, against the mass of the nodes that are kept."""
    (whole,) = compositions("pld", flatten(replaced(kind, 0.2, [(sigma, 2)])), 1e-16)
    near = whole.around(epsilon, 0.1)
    (family,) = near.families
    nodes = family.nodes(-1.0, 0.0)
    mass, atom = np.exp(nodes.log_mass), float(family.atom[0])
    assert 1 - mass.sum() == pytest.approx(float(family.beyond_either[0]), rel=1e-9)
    assert near.kept == pytest.approx((mass.sum() ** 2 - atom**2,) * 2, rel=1e-9)
    by_p, by_q = near._jump
    up = nodes.loss[0] > 0
    every = np.exp(whole.families[0].nodes(-1.0, 0.0).log_mass[0])
    losses = whole.families[0].nodes(-1.0, 0.0).loss[0]
    assert 1 - (1 - every[losses > 0].sum() + mass[0, up].sum()) ** 2 == pytest.approx(by_p, rel=1e-6)
    assert 1 - (1 - every[losses < 0].sum() + mass[0, ~up & (nodes.loss[0] < 0)].sum()) ** 2 == pytest.approx(
        by_q, rel=1e-6
    )
    assert near.jumped(epsilon)[0] == pytest.approx(by_p - math.exp(epsilon) * by_q, rel=1e-6)
    assert by_q > 1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_epsilon_is_0_where_delta_covers_the_total_variation_and_no_line_is_needed(kind, work):
    mass, loss = replaced_outcomes(kind, 1e-3, 0.7)
    distance = float(mass @ -np.expm1(-np.maximum(loss, 0.0)))
    event = replaced(kind, 1e-3, [(0.7, 20)])
    (composition,) = compositions("pld", flatten(event), 1e-16)
    assert composition.variation == pytest.approx(20 * distance, rel=1e-5)
    assert PLD.epsilon(event, 20.001 * distance).epsilon_high == 0
    assert not work
    assert PLD.epsilon(event, 0.9 * distance).epsilon_low > 0


# --- Calibration ---


def test_a_schedule_of_100_levels_is_calibrated_in_a_few_answers():
    asked = []

    def make(scale: float) -> Event:
        return run(1e-3, [(scale * (1 + 0.03 * k), 100) for k in range(100)])

    class Counting(type(PLD)):
        def epsilon(self, event, delta):
            asked.append(event)
            return super().epsilon(event, delta)

    found = smallest_noise(make, epsilon=2.0, delta=1e-5, accountant=Counting())
    assert 2.0 * (1 - 1e-5) < found.answer.epsilon <= 2.0
    assert len(asked) <= 8


@pytest.mark.parametrize(("q", "target", "delta"), [(2.2e-6, 0.78, 5.1e-7), (2.6e-6, 0.08, 1.4e-10), (1e-4, 0.3, 1e-5)])
def test_rarely_sampled_levels_are_calibrated_in_a_few_answers_to_their_target(q, target, delta):
    """Where epsilon leaps with sigma and its bracket is blurred."""
    source, asked = random.Random(3), []
    levels = [(math.exp(source.uniform(math.log(0.3), math.log(50))), source.randint(1, 1000)) for _ in range(100)]

    class Counting(type(PLD)):
        def epsilon(self, event, delta):
            asked.append(event)
            return super().epsilon(event, delta)

    found = smallest_noise(
        lambda scale: run(q, [(scale * sigma, steps) for sigma, steps in levels]),
        epsilon=target, delta=delta, accountant=Counting(),
    )  # fmt: skip
    assert target * (1 - 1e-5) < found.answer.epsilon <= target
    assert found.answer == PLD.epsilon(asked[-1], delta)
    assert len(asked) <= 5


# --- Absurd numbers ---

ABSURD = [
    "--q .01 --noise-multiplier 4 --steps 100000000000000000000000000000 --delta 1e-5",
    "--q .01 --noise-multiplier 4 --steps 1000 --delta 1e-300",
    "--q 1e-6 --noise-multiplier .3 --steps 1000 --delta 1e-300",
    "--q .01 --noise-multiplier .04 --steps 1000 --delta 1e-5",
    "--q 1e-6 --noise-multiplier 1e-9 --steps 7 --delta 1e-12",
]


@pytest.mark.parametrize("line", ABSURD)
def test_absurd_numbers_are_answered_or_refused_on_the_command_line(line, work):
    result = CliRunner().invoke(main, ["epsilon", *line.split()])
    assert (result.exit_code == 0 and "proved" in result.output) or (result.exit_code == 2 and "1e12" in result.output)
    assert sum(work) < 4_000_000


@pytest.mark.parametrize("steps", [10**13, 10**30])
def test_so_many_steps_are_refused_with_what_can_be_done(steps):
    with pytest.raises(AccountingError, match="at most 1e12 releases"):
        PLD.epsilon(run(0.01, [(4.0, steps)]), 1e-5)


@pytest.mark.parametrize("delta", [1e-101, 1e-300])
def test_a_tiny_delta_gets_the_renyi_bound(delta):
    event = run(0.01, [(4.0, 1000)])
    answer = PLD.epsilon(event, delta)
    assert answer.epsilon_low == 0
    assert answer.epsilon == accountant("rdp").epsilon(event, delta).epsilon
    assert "Renyi" in answer.note
