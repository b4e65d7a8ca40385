"""What a schedule must be to land on a budget: it does, and a little less noise would not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.accounting import accountant
from adadp.app.accounting.targets import EpsilonTarget, RhoTarget, Target
from adadp.app.accounting.zcdp import ZcdpAccountant
from adadp.app.schedules import ExponentialDecay, PolynomialDecay, StepDecay, TimeDecay
from adadp.errors import InputError, UnreachableTarget
from adadp.events import Event, GaussianRelease, Neighbours, PoissonSampled, Repeated, ReshuffledEpoch, compose
from adadp.schedules import Schedule, Uniform

EPOCHS = 12
TARGETS = [
    RhoTarget(0.8),
    EpsilonTarget(3.0, 1e-5, accountant("zcdp")),
    EpsilonTarget(3.0, 1e-5, accountant("pld")),
]
each_target = pytest.mark.parametrize("target", TARGETS, ids=["rho", "epsilon zcdp", "epsilon pld"])
SHAPES = {
    "uniform": Uniform(1),
    "time": TimeDecay(1, 0.2),
    "exp": ExponentialDecay(1, 0.1),
    "step": StepDecay(1, 0.6, 4),
    "poly": PolynomialDecay(1, 3, 0.3, 10),
}
DECAYS = {
    "time": lambda k: TimeDecay(12, k),
    "exp": lambda k: ExponentialDecay(12, k, start=2),
    "step": lambda k: StepDecay(12, k, 4),
    "poly": lambda k: PolynomialDecay(12, k, 2.5, 12),
}


def epochs_of(schedule: Schedule, epochs: int = EPOCHS) -> Event:
    """Reshuffled epochs with the noise of ``schedule``."""
    near = Neighbours.ZERO_OUT
    return compose(*(ReshuffledEpoch((GaussianRelease(sigma, near),), False) for sigma in schedule.values(epochs)))


def steps_of(schedule: Schedule, epochs: int = EPOCHS) -> Event:
    """Ten Poisson steps for every epoch."""
    return compose(*(Repeated(PoissonSampled(0.1, GaussianRelease(sigma)), 10) for sigma in schedule.values(epochs)))


def rho_of(schedule: Schedule, epochs: int = EPOCHS) -> float:
    return math.fsum(1 / (2 * sigma**2) for sigma in schedule.values(epochs))


@each_target
@pytest.mark.parametrize("shape", SHAPES)
def test_the_scale_is_the_least_that_fits(target, shape):
    schedule = SHAPES[shape]
    scale = target.scale(lambda x: epochs_of(schedule.scaled(x)))
    assert target.cost(epochs_of(schedule.scaled(scale))) <= target.limit
    assert target.cost(epochs_of(schedule.scaled(scale * (1 - 1e-6)))) > target.limit
    if isinstance(target, RhoTarget):  # rho falls with the square of the scale
        assert scale == pytest.approx(math.sqrt(rho_of(schedule) / target.rho), rel=2e-7)


@given(st.floats(0.01, 50), st.floats(0.001, 0.3), st.integers(1, 40))
def test_the_scale_for_a_rho_has_a_closed_form(rho, k, epochs):
    schedule = ExponentialDecay(1, k)
    scale = RhoTarget(rho).scale(lambda x: epochs_of(schedule.scaled(x), epochs))
    assert scale == pytest.approx(math.sqrt(rho_of(schedule, epochs) / rho), rel=2e-7)
    assert ZcdpAccountant().rho({GaussianRelease(scale): 1}) > 0
    assert RhoTarget(rho).cost(epochs_of(schedule.scaled(scale), epochs)) <= rho


@each_target
@pytest.mark.parametrize("shape", DECAYS)
def test_the_rate_is_that_of_the_fastest_decay_that_fits(target, shape):
    below_one = shape == "step"
    k = target.rate(lambda k: epochs_of(DECAYS[shape](k)), below_one=below_one)
    assert k == round(k, 8)
    faster = k - 2e-8 if below_one else k + 2e-8
    cost = target.cost(epochs_of(DECAYS[shape](k)))
    assert 0.999 * target.limit < cost <= target.limit
    assert target.cost(epochs_of(DECAYS[shape](faster))) > target.limit


def test_the_rate_for_a_rho_has_a_closed_form():
    """A step after 6 of 12 epochs: rho = 6 / (2 s0^2) (1 + 1 / k^2)."""
    k = RhoTarget(0.8).rate(lambda k: epochs_of(StepDecay(12, k, 6)), below_one=True)
    exact = 1 / math.sqrt(0.8 * 2 * 12**2 / 6 - 1)
    assert exact <= k <= exact + 1.1e-8


@settings(max_examples=30)
@given(st.floats(0.05, 5), st.floats(4, 20))
def test_a_rate_never_passes_the_budget(rho, s0):
    target = RhoTarget(rho)
    for make, below_one in ((lambda k: StepDecay(s0, k, 5), True), (lambda k: ExponentialDecay(s0, k), False)):
        if rho_of(Uniform(s0)) > rho:
            with pytest.raises(UnreachableTarget, match="Even without any decay"):
                target.rate(lambda k, make=make: epochs_of(make(k)), below_one=below_one)
        elif rho_of(Uniform(s0)) < 0.99 * rho:
            k = target.rate(lambda k, make=make: epochs_of(make(k)), below_one=below_one)
            assert rho_of(make(k)) <= rho * (1 + 1e-14)
            assert rho_of(make(k - 2e-8 if below_one else k + 2e-8)) > rho


def test_a_budget_that_no_rate_lands_on_is_refused():
    with pytest.raises(UnreachableTarget, match=r"Even without any decay the schedule costs 1.5") as found:
        RhoTarget(0.8).rate(lambda k: epochs_of(ExponentialDecay(2, k)), below_one=False)
    assert found.value.reachable == pytest.approx(1.5, rel=1e-6)
    for make, below_one in (
        (lambda k: PolynomialDecay(12, k, 6, 10), False),
        (lambda k: StepDecay(12, k, EPOCHS), True),
        (lambda k: ExponentialDecay(12, k, EPOCHS), False),
    ):
        with pytest.raises(UnreachableTarget, match="However fast the schedule decays") as found:
            RhoTarget(0.8).rate(lambda k, make=make: epochs_of(make(k)), below_one=below_one)
        assert found.value.reachable < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("target", [TARGETS[2], EpsilonTarget(3.0, 1e-5, accountant("rdp"))], ids=["pld", "rdp"])
def test_sampled_batches_land_on_the_budget_too(target):
    schedule = ExponentialDecay(1, 0.1)
    scale = target.scale(lambda x: steps_of(schedule.scaled(x)))
    assert target.cost(steps_of(schedule.scaled(scale))) <= 3 < target.cost(steps_of(schedule.scaled(scale * 0.999)))
    k = target.rate(lambda k: steps_of(ExponentialDecay(3, k), 6), below_one=False)
    cost = target.cost(steps_of(ExponentialDecay(3, k), 6))
    assert 2.97 < cost <= 3 < target.cost(steps_of(ExponentialDecay(3, k + 1e-4), 6))


@each_target
@pytest.mark.parametrize("shape", [Uniform(8), ExponentialDecay(8, 0.02), StepDecay(8, 0.8, 10)])
def test_the_length_is_the_most_epochs_that_fit(target, shape):
    epochs = target.length(lambda count: epochs_of(shape, count))
    assert target.cost(epochs_of(shape, epochs)) <= target.limit < target.cost(epochs_of(shape, epochs + 1))


@pytest.mark.parametrize(
    ("schedule", "epochs"),
    [
        (Uniform(8), 100),
        (TimeDecay(10, 0.05), 38),
        (StepDecay(10, 0.6, 10), 31),
        (ExponentialDecay(10, 0.01), 71),
        (PolynomialDecay(10, 3, 2, 100), 44),
    ],
)
def test_the_lengths_of_yu_et_al_2019_table_2(schedule, epochs):
    """All of these have a total of 0.78125, which the constant one lands on exactly."""
    assert RhoTarget(0.78125).length(lambda count: epochs_of(schedule, count)) == epochs


def test_a_length_of_less_than_an_epoch_is_refused():
    with pytest.raises(UnreachableTarget, match=r"Not even one epoch fits into rho 0.8"):
        RhoTarget(0.8).length(lambda count: epochs_of(Uniform(0.5), count))
    with pytest.raises(UnreachableTarget, match="Not even one epoch fits into epsilon 3"):
        TARGETS[2].length(lambda count: epochs_of(Uniform(0.1), count))


def test_a_rho_that_no_noise_reaches_is_refused():
    before = GaussianRelease(1.0, Neighbours.ZERO_OUT)
    with pytest.raises(UnreachableTarget, match=r"rho 0.4 cannot be reached") as found:
        RhoTarget(0.4).scale(lambda x: compose(before, epochs_of(Uniform(x), 1)))
    assert found.value.reachable == pytest.approx(0.5)


@pytest.mark.parametrize("rho", [0, -1, math.inf, math.nan, None])
def test_a_budget_is_positive(rho):
    with pytest.raises(InputError, match="rho must be"):
        RhoTarget(rho)
    with pytest.raises(InputError, match="epsilon must be"):
        EpsilonTarget(rho, 1e-5, accountant("pld"))


def test_a_delta_is_checked():
    with pytest.raises(InputError, match="delta must lie"):
        EpsilonTarget(1.0, 0.0, accountant("pld"))


def test_targets_say_what_they_are():
    assert [str(each) for each in TARGETS[:2]] == ["rho 0.8", "epsilon 3 at delta 1e-05"]
    assert all(isinstance(each, Target) for each in TARGETS)
