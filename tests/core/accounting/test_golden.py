"""Every number of the accounting table, with its source.

Papers are named as in docs/notation.md. A test called ``..._prints_...`` holds a number that a paper prints and that
its own formula does not give, with what the formula gives and why the two differ.
"""

from __future__ import annotations

import math

import mpmath
import pytest

from adadp.accounting import ACCOUNTANTS, Status, accountant
from adadp.app.accounting.calibrate import longest_within_rho, smallest_noise
from adadp.app.accounting.run_shape import RunShape
from adadp.app.schedules import ExponentialDecay, PolynomialDecay, StepDecay, TimeDecay
from adadp.events import Event, GaussianRelease, Neighbours, PoissonSampled, Repeated, ReshuffledEpoch, flatten
from adadp.lab.accounting.strong import gaussian_delta
from adadp.schedules import Schedule, Uniform

DELTA = 1e-5


def dp_sgd(sigma: float, steps: int, q: float = 0.01) -> Event:
    return Repeated(PoissonSampled(q, GaussianRelease(sigma)), steps)


def reshuffled(sigma: float, epochs: int) -> Event:
    return Repeated(ReshuffledEpoch((GaussianRelease(sigma, Neighbours.ZERO_OUT),)), epochs)


def epsilon(name: str, event: Event) -> float:
    return accountant(name).epsilon(event, DELTA).epsilon


@pytest.mark.parametrize(
    ("name", "sigma", "steps", "value", "tolerance", "source"),
    [
        ("moments", 4, 10_000, 1.26, 0.005, "abadi-2016, sections 3.1 and 5.1 (E = 100)"),
        ("moments", 6, 40_000, 1.67, 0.005, "yu-2019, section V-A, epoch 400, `MA`"),
        ("rdp", 4, 10_000, 1.036, 0.001, "dp-accounting 0.6, RdpAccountant: 1.0355"),
        ("pld", 4, 10_000, 0.947, 0.0005, "dp-accounting 0.6, PLDAccountant"),
        ("pld", 0.9, 1_800, 3.06, 0.005, "dp-accounting 0.6, PLDAccountant; the example of xu-2020, section III-C"),
        ("strong", 4, 10_000, 26.4, 0.05, "our evaluation with ln(1 + q (e^eps_0 - 1)); abadi-2016 prints 9.34"),
        ("strong", 4, 40_000, 82.3, 0.05, "our evaluation with ln(1 + q (e^eps_0 - 1)); abadi-2016 prints 24.22"),
        ("strong", 6, 40_000, 29.0, 0.05, "our evaluation with the best split of delta; yu-2019 prints 34.3"),
        ("zcdp-sampled", 6, 40_000, 2.37, 0.005, "yu-2019, section V-A, epoch 400, `zCDP(RS)`"),
    ],
)
def test_the_accountants_reproduce_the_published_runs(name, sigma, steps, value, tolerance, source):
    assert epsilon(name, dp_sgd(sigma, steps)) == pytest.approx(value, abs=tolerance), source


def test_the_tight_figures_to_many_digits():
    """prv-accountant 0.2 with an error of .002 estimates 0.946867 and 3.063596; dp-accounting 0.6, which rounds losses
    up on a grid of 1e-4, gives 0.946999 and 3.063604."""
    first = accountant("pld").epsilon(dp_sgd(4, 10_000), DELTA)
    second = accountant("pld").epsilon(dp_sgd(0.9, 1_800), DELTA)
    assert 0.9468 < first.epsilon_low <= first.epsilon_high < 0.9470
    assert 3.0635 < second.epsilon_low <= second.epsilon_high < 3.0637


def test_abadi_2016_prints_2_55_where_whole_orders_give_2_576():
    """abadi-2016, section 5.1, E = 400. The moments at whole lambda <= 32 give 2.576; at the best real
    order it is 2.5737, so no choice of orders gives 2.55 with the paper's conversion: the printed figure is 1 % low."""
    value = epsilon("moments", dp_sgd(4, 40_000))
    assert value == pytest.approx(2.576, abs=0.0005)
    assert value / 2.55 == pytest.approx(1.01, abs=0.001)


@pytest.mark.parametrize(("steps", "ours", "printed"), [(10_000, 9.353, 9.34), (40_000, 24.245, 24.22)])
def test_abadi_2016_prints_a_strong_composition_that_is_no_bound(steps, ours, printed):
    """abadi-2016, sections 3.1 and 5.1 (E = 100 and E = 400), `strong composition`.

    The figures need every step amplified to q eps_0, which is below what sampling can be proved to give. Our evaluation
    of that reading is 0.15 % above theirs; how they chose the split of delta is not said.
    """
    answer = accountant("strong-published").epsilon(dp_sgd(4, steps), DELTA)
    assert answer.status is Status.AS_PUBLISHED
    assert answer.epsilon == pytest.approx(ours, abs=0.0005)
    assert answer.epsilon == pytest.approx(printed, rel=0.0015)
    assert epsilon("strong", dp_sgd(4, steps)) > 2.5 * answer.epsilon


def test_yu_2019_prints_34_3_for_a_strong_composition_that_is_29_0():
    """yu-2019, section V-A, epoch 400, sigma = 6: the best split of delta gives less than what is printed, so the
    printed figure is true but not the bound's best."""
    assert epsilon("strong", dp_sgd(6, 40_000)) == pytest.approx(29.04, abs=0.005)
    assert epsilon("strong", dp_sgd(6, 40_000)) < 34.3


def test_zcdp_of_one_gaussian_release():
    """Bun and Steinke 2016, Proposition 1.6: rho = 1 / (2 sigma^2) = .0139 for sigma = 6 (yu-2019, section V-A)."""
    rho = ACCOUNTANTS["zcdp"].rho(flatten(GaussianRelease(6)))
    assert rho == pytest.approx(1 / 72, rel=1e-15)
    assert rho == pytest.approx(0.0139, abs=0.00005)


def test_the_21_5_of_yu_2019_for_reshuffled_epochs():
    """yu-2019, section V-A, epoch 400, `zCDP(RF)`: 400 epochs of sigma = 6 are 21.5506, printed as 21.5."""
    assert ACCOUNTANTS["zcdp"].rho(flatten(reshuffled(6, 400))) == pytest.approx(400 / 72, rel=1e-15)
    assert epsilon("zcdp", reshuffled(6, 400)) == pytest.approx(21.5506, abs=0.00005)


def test_the_sampled_zcdp_figure_is_an_estimate_only():
    """yu-2019, section IV-B: P = q^2/sigma^2 was checked on a grid, not proved."""
    assert accountant("zcdp-sampled").epsilon(dp_sgd(6, 40_000), DELTA).status is Status.ESTIMATE


def test_xu_2020_prints_4_0_at_order_6_where_theorem_1_gives_6_92_at_order_4():
    """xu-2020, section III-C, the example after Theorem 1: q = .01, sigma_* = .9, T = 1800, delta = 1e-5."""
    answer = accountant("theorem1").epsilon(dp_sgd(0.9, 1_800), DELTA)
    assert answer.status is Status.AS_PUBLISHED
    assert answer.epsilon == pytest.approx(6.92, abs=0.005)
    assert answer.note.startswith("alpha = 4;")


def test_xu_2020_prints_the_figure_of_poisson_sampling_under_the_classic_conversion():
    """xu-2020, section III-C: 4.0 at alpha = 6 is lambda = 5 of the moments accountant, 4.015, not Theorem 1."""
    answer = accountant("moments").epsilon(dp_sgd(0.9, 1_800), DELTA)
    assert answer.epsilon == pytest.approx(4.015, abs=0.0005)
    assert answer.note == "lambda = 5"


def test_theorem_1_gives_the_least_delta_at_a_fixed_epsilon():
    """xu-2020, section III-C: delta_* is the minimum over alpha at fixed epsilon."""
    theorem1 = accountant("theorem1")
    at = theorem1.epsilon(dp_sgd(0.9, 1_800), DELTA)
    assert theorem1.delta(dp_sgd(0.9, 1_800), at.epsilon).delta == pytest.approx(DELTA, rel=1e-9)


def test_the_classic_gaussian_gives_0_808_once():
    """Dwork and Roth 2014, Theorem A.1: sigma = sqrt(2 ln(1.25/delta)) / epsilon. For sigma = 6 epsilon = .8075,
    printed as .808 (yu-2019, section V-A). The exact value (Balle and Wang 2018) is .5945: the classic one is loose."""
    classic = math.sqrt(2 * math.log(1.25 / DELTA)) / 6
    assert classic == pytest.approx(0.808, abs=0.001)
    assert gaussian_delta(1 / 6, classic) < DELTA
    exact = accountant("pld").epsilon(GaussianRelease(6), DELTA)
    assert exact.epsilon_low <= 0.594498407744 <= exact.epsilon_high < classic
    with mpmath.workdps(30):
        at_exact = mpmath.ncdf(mpmath.mpf(1) / 12 - exact.epsilon * 6) - mpmath.exp(exact.epsilon) * mpmath.ncdf(
            -mpmath.mpf(1) / 12 - exact.epsilon * 6
        )
        assert DELTA * 0.999 < at_exact <= DELTA


def test_the_calibrated_noise_is_2_1274():
    """For (2, 1e-5), q = .01, T = 10,000. dp-accounting 0.6 (PLD, grid of 1e-4), which rounds up, gives epsilon 2.00004
    at sigma = 2.12740 and 1.99999 at 2.12745."""
    found = smallest_noise(lambda sigma: dp_sgd(sigma, 10_000), epsilon=2.0, delta=DELTA, accountant=accountant("pld"))
    assert found.value == pytest.approx(2.1274, abs=0.00005)
    assert found.answer.epsilon <= 2.0


@pytest.mark.parametrize(
    ("schedule", "epochs"),
    [
        (Uniform(8), 100),
        (TimeDecay(10, 0.05), 38),
        (StepDecay(10, 0.6, 10), 31),
        (ExponentialDecay(10, 0.01), 71),
        (PolynomialDecay(10, 3, 2, 100), 44),
    ],
    ids=str,
)
def test_the_epochs_a_budget_of_rho_lasts(schedule: Schedule, epochs: int):
    """yu-2019, Table II: rho_total = .78125, s0 = 10 (uniform: sigma = 8)."""

    def first(count: int) -> Event:
        return RunShape("reshuffle").first_epochs(schedule, count)

    found, rho = longest_within_rho(first, rho=0.78125)
    assert found == epochs
    assert rho <= 0.78125
    assert ACCOUNTANTS["zcdp"].rho(flatten(first(epochs + 1))) > 0.78125
