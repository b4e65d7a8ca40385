"""The privacy losses themselves: log moments, atoms, mixtures, caps and the quadrature under them."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from adadp.accounting.composition import Composition, cap_for
from adadp.accounting.contour import contour_curve, direct_curve, log_chernoff, saddle_point
from adadp.accounting.pld import _crossing
from adadp.accounting.privacy_losses import (
    Discrete,
    FixedSizeReplace,
    Mixture,
    PoissonAdd,
    PoissonRemove,
    PoissonReplace,
)

ROWS = [(1e-6, 0.3), (0.01, 1.0), (0.3, 2.0), (0.9, 0.5), (0.5, 200.0)]


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


def family(kind, q: float, mu: float, count: float = 1.0, **more):
    return kind(column(q), column(mu), column(count), **more)


def log_moment(kind, q: float, mu: float, theta: float) -> float:
    """log E_P[e^(theta L)] by adaptive integration with 25 digits."""
    with mpmath.workdps(25):
        rate, shift = mpmath.mpf(q), mpmath.mpf(mu)

        def w(u, sign=1):
            return 1 - rate + rate * mpmath.exp(sign * shift * u - shift * shift / 2)

        power = {
            PoissonRemove: lambda u: w(u) ** (theta + 1),
            PoissonAdd: lambda u: w(u) ** (-theta),
            PoissonReplace: lambda u: w(u) ** (theta + 1) * w(u, -1) ** (-theta),
        }
        if kind is FixedSizeReplace:
            places = [shift / 2, shift / 2 + 4, shift / 2 + 12, shift * (theta + 2) + 20]

            def part(power):
                return mpmath.quad(lambda u: mpmath.npdf(u) * w(u) ** power, places)

            return float(mpmath.log(part(theta + 1) + part(-theta) + 1 - part(1) - part(0)))
        places = sorted([-20 - 2 * theta * mu, -6, 0, 6, (theta + 1) * mu, (2 * theta + 2) * mu + 20])
        return float(mpmath.log(mpmath.quad(lambda u: mpmath.npdf(u) * power[kind](u), places)))


@pytest.mark.parametrize("kind", [PoissonRemove, PoissonAdd, PoissonReplace, FixedSizeReplace])
@pytest.mark.parametrize(("q", "sigma"), ROWS)
@pytest.mark.parametrize("theta", [0.2, 1.0, 4.5])
def test_log_moments_against_mpmath(kind, q, sigma, theta):
    found = Composition(0.0, (family(kind, q, 1 / sigma),)).cumulants(theta)
    # A logarithm of 1 + something tiny: right to the rounding of a sum of some hundred terms around 1.
    assert found[0] == pytest.approx(log_moment(kind, q, 1 / sigma, theta), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("kind", [PoissonRemove, PoissonAdd, PoissonReplace, FixedSizeReplace])
def test_cumulants_are_derivatives_of_the_log_moment(kind):
    composition = Composition(0.3, (family(kind, 0.2, 0.8, 5.0),))
    theta, step = 1.7, 1e-4
    below, at, above = (composition.cumulants(theta + k * step) for k in (-1, 0, 1))
    assert at[1] == pytest.approx((above[0] - below[0]) / (2 * step), rel=1e-6)
    assert at[2] == pytest.approx((above[1] - below[1]) / (2 * step), rel=1e-6)
    assert composition.cumulants(0.0)[0] == pytest.approx(0.0, abs=1e-12)
    assert composition.cumulants(-1.0)[0] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("kind", [PoissonRemove, PoissonAdd, PoissonReplace, FixedSizeReplace])
def test_the_masses_add_to_one_and_the_losses_are_in_range(kind):
    nodes = family(kind, 0.2, 0.8).nodes(0.0, 0.0)
    mass = np.exp(nodes.log_mass)
    assert mass.sum() == pytest.approx(1.0, abs=1e-12)
    assert (mass * np.exp(-nodes.loss)).sum() == pytest.approx(1.0, abs=1e-9)  # E_P[e^-L] = Q of everything
    for part in nodes.parts:
        steps = np.diff(nodes.loss[0, part])
        assert (steps >= 0).all() or (steps <= 0).all()
    if kind is PoissonAdd:
        assert nodes.loss.max() <= -math.log(0.8) + 1e-12
    if kind is PoissonRemove:
        assert nodes.loss.min() >= math.log(0.8) - 1e-12


def test_no_digits_are_lost_where_the_loss_is_tiny():
    """q = 1e-6, sigma = 200: the mean loss is q^2 (e^(mu^2) - 1) / 2, some 1e-17."""
    mean = Composition(0.0, (family(PoissonRemove, 1e-6, 1 / 200),)).cumulants(0.0)[1]
    assert mean == pytest.approx(1e-12 * math.expm1(1 / 200**2) / 2, rel=1e-3)


def test_the_atom_of_a_fixed_size_batch():
    """What is not above 0 with P-density phi w nor below 0 with phi, both for y > 0."""
    each = family(FixedSizeReplace, 0.3, 1.2)
    positive = 0.3 * ndtr(0.6) + 0.7 * ndtr(-0.6)
    assert each.atom[0] == pytest.approx(1 - positive - ndtr(-0.6), rel=1e-12)
    nodes = each.nodes(0.0, 0.0)
    assert math.exp(nodes.log_mass[0, -1]) == pytest.approx(each.atom[0], rel=1e-12)
    assert nodes.loss[0, -1] == 0.0
    assert nodes.parts[-1].stop == nodes.loss.shape[1] - 1
    assert family(PoissonRemove, 0.3, 1.2).atom[0] == 0.0


def test_a_mixture_is_its_parts_by_their_weights():
    parts = (family(PoissonRemove, 0.2, 0.8, shift=0.5), family(PoissonRemove, 0.2, 0.8, shift=-0.5))
    mixed = Composition(0.0, (Mixture(parts, (0.3, 0.7)),))
    for theta in (0.5, 3.0):
        expected = sum(
            weight * math.exp(Composition(0.0, (part,)).cumulants(theta)[0])
            for weight, part in zip((0.3, 0.7), parts, strict=True)
        )
        assert math.exp(mixed.cumulants(theta)[0]) == pytest.approx(expected, rel=1e-10)
    nodes = mixed.families[0].nodes(1.0, 1.0)
    assert [part.start for part in nodes.parts] == [0, nodes.parts[0].stop]
    assert nodes.parts[-1].stop == nodes.loss.shape[1]


def test_a_family_holds_many_rows():
    q, mu, counts = column(0.01, 0.2, 0.5), column(1.0, 0.5, 0.1), column(3, 1, 100)
    together = Composition(0.0, (PoissonRemove(q, mu, counts),)).cumulants(2.0)
    apart = [Composition(0.0, (family(PoissonRemove, *row),)).cumulants(2.0) for row in zip(q, mu, counts, strict=True)]
    assert together == pytest.approx([sum(values) for values in zip(*apart, strict=True)], rel=1e-9)


def test_discrete_losses_are_enumerated():
    two = Discrete(np.array([[0.7, 0.3]]), np.array([[0.5, -0.5]]), column(3))
    masses, losses = two.composed(100)
    assert sorted(losses) == pytest.approx([-1.5, -0.5, 0.5, 1.5])
    assert masses.sum() == pytest.approx(1.0)
    assert masses[np.argmax(losses)] == pytest.approx(0.7**3)
    assert two.composed(3) is None
    three = Discrete(np.array([[0.5, 0.3, 0.2]]), np.array([[1.0, 0.0, -1.0]]), column(2))
    masses, losses = three.composed(9)
    assert len(masses) == 9
    assert masses[losses == 2.0] == pytest.approx([0.25])
    assert three.composed(8) is None
    both = Discrete(np.array([[0.7, 0.3], [0.6, 0.4]]), np.array([[0.5, -0.5], [0.2, -0.2]]), column(1, 2))
    masses, losses = both.composed(100)
    assert len(masses) == 6
    assert losses.max() == pytest.approx(0.9)
    assert masses[np.argmax(losses)] == pytest.approx(0.7 * 0.36)


# --- Caps ---


@pytest.mark.parametrize("releases", [1, 1000, 10**7])
@pytest.mark.parametrize("ignored", [1e-6, 1e-16, 1e-25])
def test_the_cap_lets_go_of_what_may_be_ignored(releases, ignored):
    cap = cap_for(releases, ignored)
    for kind in (PoissonReplace, FixedSizeReplace):
        composition = Composition(0.0, (family(kind, 0.1, 0.5, float(releases), cap=cap),))
        assert composition.cut_off == pytest.approx(ignored, rel=1e-6)
    for kind in (PoissonRemove, PoissonAdd):  # of these one side only is capped
        assert Composition(0.0, (family(kind, 0.1, 0.5, float(releases), cap=cap),)).cut_off <= ignored
    assert cap_for(0, 1e-6) == cap_for(1, 1e-6)


@pytest.mark.parametrize("kind", [PoissonRemove, PoissonAdd, PoissonReplace, FixedSizeReplace])
def test_what_the_cap_takes_away_is_within_the_bound(kind):
    """The mass that is let go is at most cut_off, and there is some."""
    for cap in (1.5, 3.0, 5.0):
        capped = family(kind, 0.3, 0.7, cap=cap)
        lost = 1 - np.exp(capped.nodes(0.0, 0.0).log_mass).sum()
        bound = Composition(0.0, (capped,)).cut_off
        assert lost + 1e-13 > 0.0
        assert lost <= bound * (1 + 1e-6) + 1e-12
    wide = np.exp(family(kind, 0.3, 0.7, cap=1.5).nodes(0.0, 0.0).log_mass).sum()
    assert wide < 0.999


def test_the_cap_keeps_high_orders_from_outcomes_that_never_happen():
    free = Composition(0.0, (family(PoissonRemove, 1e-3, 1.0),)).cumulants(200.0)[0]
    capped = Composition(0.0, (family(PoissonRemove, 1e-3, 1.0, cap=7.0),)).cumulants(200.0)[0]
    assert capped < free / 10


# --- The line of integration ---


@pytest.mark.parametrize("theta", [0.5, 2.0, 8.0])
def test_every_line_gives_the_same_curve(theta):
    """Any positive theta is a true line; brackets from different ones overlap and hold the exact value."""
    composition = Composition(1.0, ())
    exact = float(ndtr(0.5 - 1.5) - math.exp(1.5) * ndtr(-0.5 - 1.5))
    low, high = contour_curve(composition, theta, 1.5, exact).bounds(1.5)
    assert low <= exact <= high
    assert high - low <= 0.01 * exact
    assert math.log(exact) <= log_chernoff(composition, theta, 1.5)


def test_the_curve_is_true_far_from_where_it_is_tight():
    composition = Composition(1.0, (family(PoissonRemove, 0.1, 1.0, 10.0),))
    theta = saddle_point(composition, epsilon=2.0)
    curve = contour_curve(composition, theta, 2.0, 1e-2)
    for epsilon in (0.0, 1.0, 4.0, 8.0, 1e3, 1e6):
        local = saddle_point(composition, epsilon=min(epsilon, 20.0))
        low, high = curve.bounds(epsilon)
        tight = contour_curve(composition, local, epsilon, 1e-9).bounds(epsilon)
        assert 0 <= low <= high <= 1
        assert low <= tight[1]
        assert tight[0] <= high
    assert curve.bounds(1e6)[0] == 0.0
    far = Composition(400.0, ())
    curve = contour_curve(far, saddle_point(far, epsilon=300.0), 300.0, 1e-6)
    assert curve.bounds(0.0)[1] == 1.0


def test_the_saddle_point_answers_both_questions_alike():
    composition = Composition(0.0, (family(PoissonRemove, 0.01, 0.25, 10_000.0),))
    theta = saddle_point(composition, log_delta=math.log(1e-5))
    _, first, _ = composition.cumulants(theta)
    assert saddle_point(composition, epsilon=first - 1 / theta - 1 / (theta + 1)) == pytest.approx(theta, rel=0.05)


def test_the_crossing_of_a_rough_bound_has_its_ends_on_their_sides():
    """Rounding makes bounds rough; the interval that is returned still has its left end above and its right not."""

    def bound(epsilon: float) -> float:
        return math.exp(-epsilon) * (1 + 1e-7 * math.sin(1e8 * epsilon))

    for delta in [0.9 * 0.8**k for k in range(40)]:
        low, high = _crossing(bound, delta, near=1.0, scale=1.0)
        assert bound(low) > delta >= bound(high)
        assert high - low < 1e-6
    assert _crossing(lambda epsilon: 0.01 / (1 + epsilon), 0.5, near=3.0, scale=1.0) == (0.0, 0.0)


def test_only_what_can_be_summed_has_a_direct_curve():
    one = family(PoissonRemove, 0.1, 1.0)
    assert direct_curve(Composition(0.0, (one,))) is not None
    assert direct_curve(Composition(1.0, (one,))) is None
    assert direct_curve(Composition(0.0, (family(PoissonRemove, 0.1, 1.0, 2.0),))) is None
