"""The inverse questions: always on the safe side, and never further from the edge than they say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.accounting import Accountant, Status, accountant
from adadp.accounting.base import Bracket
from adadp.app.accounting.calibrate import longest, longest_within_rho, most_repetitions, smallest_noise
from adadp.app.accounting.run_shape import RunShape
from adadp.app.schedules import ExponentialDecay, PolynomialDecay
from adadp.errors import InputError, UnreachableTarget
from adadp.events import Event, GaussianRelease, Neighbours, PoissonSampled, Repeated, Selection, ZcdpCost

pytestmark = pytest.mark.slow


PLD, RDP, ZCDP = accountant("pld"), accountant("rdp"), accountant("zcdp")


def run(sigma: float) -> Event:
    return Repeated(PoissonSampled(0.01, GaussianRelease(sigma)), 1000)


@pytest.mark.parametrize("each", [PLD, RDP, accountant("moments"), accountant("strong")], ids=lambda each: each.name)
@pytest.mark.parametrize("epsilon", [0.7, 3.0, 20.0])
def test_the_smallest_noise_is_safe_and_no_smaller_one_is(each, epsilon):
    found = smallest_noise(run, epsilon=epsilon, delta=1e-5, accountant=each)
    assert found.answer.epsilon <= epsilon
    assert found.answer == each.epsilon(run(found.value), 1e-5)
    assert each.epsilon(run(found.value * (1 - 1e-6)), 1e-5).epsilon > epsilon


@settings(max_examples=4, derandomize=True, deadline=None)
@given(
    q=st.floats(-3, -0.5).map(lambda x: 10**x),
    steps=st.integers(100, 10**6),
    epsilon=st.floats(0.1, 50),
    delta=st.floats(-12, -2).map(lambda x: 10**x),
)
def test_the_smallest_noise_anywhere(q, steps, epsilon, delta):
    def make(sigma: float) -> Event:
        return Repeated(PoissonSampled(q, GaussianRelease(sigma)), steps)

    found = smallest_noise(make, epsilon=epsilon, delta=delta, accountant=RDP)
    assert RDP.epsilon(make(found.value), delta).epsilon <= epsilon
    assert RDP.epsilon(make(found.value * (1 - 1e-6)), delta).epsilon > epsilon


def test_the_scale_of_a_whole_schedule():
    shape, schedule = RunShape("poisson", q=0.05), PolynomialDecay(10, 3, 2, 20)

    def make(scale: float) -> Event:
        return shape.first_epochs(schedule.scaled(scale), 10)

    found = smallest_noise(make, epsilon=1.0, delta=1e-5, accountant=PLD)
    assert PLD.epsilon(make(found.value), 1e-5).epsilon <= 1.0
    assert PLD.epsilon(make(found.value * (1 - 1e-5)), 1e-5).epsilon > 1.0


def test_what_is_released_besides_is_counted():
    beside = GaussianRelease(16.0)
    alone = smallest_noise(run, epsilon=1.0, delta=1e-5, accountant=PLD)
    found = smallest_noise(run, epsilon=1.0, delta=1e-5, accountant=PLD, beside=beside)
    assert found.value > alone.value
    steps = most_repetitions(PoissonSampled(0.01, GaussianRelease(2.0)), epsilon=1.0, delta=1e-5, accountant=PLD)
    fewer = most_repetitions(
        PoissonSampled(0.01, GaussianRelease(2.0)), epsilon=1.0, delta=1e-5, accountant=PLD, beside=beside
    )
    assert fewer.value < steps.value


@pytest.mark.parametrize("ask", ["noise", "steps"])
def test_what_is_released_besides_may_already_cost_too_much(ask):
    given = {"epsilon": 1.0, "delta": 1e-5, "accountant": PLD, "beside": GaussianRelease(2.0)}
    asking = smallest_noise if ask == "noise" else most_repetitions
    with pytest.raises(UnreachableTarget, match="releases besides costs epsilon") as refusal:
        asking(run if ask == "noise" else GaussianRelease(100.0), **given)
    assert refusal.value.reachable == PLD.epsilon(GaussianRelease(2.0), 1e-5).epsilon
    assert refusal.value.fix


def test_an_epsilon_that_no_noise_reaches_is_refused_with_the_one_that_is():
    """Whole orders up to 32 pay log(1/delta)/32 before the first release."""
    with pytest.raises(UnreachableTarget, match=r"moments cannot reach epsilon 0\.1 at delta 1e-05") as refusal:
        smallest_noise(run, epsilon=0.1, delta=1e-5, accountant=accountant("moments"))
    reachable = refusal.value.reachable
    assert reachable == pytest.approx(math.log(1e5) / 32, rel=1e-6)
    again = smallest_noise(run, epsilon=reachable * 1.001, delta=1e-5, accountant=accountant("moments"))
    assert again.answer.epsilon <= reachable * 1.001


def test_a_target_so_lax_that_the_least_noise_meets_it():
    found = smallest_noise(GaussianRelease, epsilon=1e9, delta=1e-5, accountant=ZCDP)
    assert found.value <= 1e-3
    assert found.answer.epsilon <= 1e9


def test_noise_above_and_below_where_the_search_starts():
    much = smallest_noise(GaussianRelease, epsilon=1e-3, delta=1e-9, accountant=ZCDP)
    little = smallest_noise(GaussianRelease, epsilon=1e4, delta=1e-9, accountant=ZCDP)
    assert much.value > 1000
    assert little.value < 0.02
    assert much.answer.epsilon <= 1e-3
    assert little.answer.epsilon <= 1e4


class Stairs(Accountant):
    """An epsilon that falls in steps, rounded up, as the safe ends of brackets may."""

    name = "stairs"
    status = Status.PROVED

    def __init__(self, height: float) -> None:
        self.height = height

    def _epsilon(self, counts: dict[Event, int], delta: float) -> Bracket:
        (release,) = counts
        steps = math.ceil(1 / (release.noise_multiplier * self.height)) * self.height
        return Bracket(steps, steps)

    def _delta(self, counts: dict[Event, int], epsilon: float) -> Bracket:
        raise NotImplementedError


@pytest.mark.parametrize("height", [1e-8, 3e-8, 1e-7, 1e-3, 0.3, 1.7])
@pytest.mark.parametrize("epsilon", [0.31, 2.0, 5.3, 17.77])
def test_the_safe_side_of_an_answer_that_jumps(height, epsilon):
    each = Stairs(height)
    if math.ceil(1 / (1e6 * height)) * height > epsilon:
        with pytest.raises(UnreachableTarget):
            smallest_noise(GaussianRelease, epsilon=epsilon, delta=1e-5, accountant=each)
        return
    found = smallest_noise(GaussianRelease, epsilon=epsilon, delta=1e-5, accountant=each)
    assert found.answer.epsilon <= epsilon
    assert each.epsilon(GaussianRelease(found.value), 1e-5).epsilon <= epsilon
    assert each.epsilon(GaussianRelease(found.value * (1 - 2e-7)), 1e-5).epsilon > epsilon - height


@pytest.mark.parametrize("each", [PLD, RDP, ZCDP], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("event", "epsilon"),
    [
        (PoissonSampled(0.01, GaussianRelease(2.0)), 12.0),
        (GaussianRelease(20.0), 2.0),
        (GaussianRelease(3.0, Neighbours.REPLACE_ONE), 9.0),
    ],
    ids=str,
)
def test_the_most_steps_fit_and_one_more_does_not(each, event, epsilon):
    found = most_repetitions(event, epsilon=epsilon, delta=1e-5, accountant=each)
    count = int(found.value)
    assert found.answer == each.epsilon(Repeated(event, count), 1e-5)
    assert found.answer.epsilon <= epsilon < each.epsilon(Repeated(event, count + 1), 1e-5).epsilon


def test_exactly_one_step_fits():
    found = most_repetitions(ZcdpCost(1.0), epsilon=8.0, delta=1e-5, accountant=ZCDP)
    assert found.value == 1


def test_not_even_one_step_fits():
    with pytest.raises(UnreachableTarget, match="Not even one step fits into epsilon 1 at delta 1e-05") as refusal:
        most_repetitions(GaussianRelease(1.0), epsilon=1.0, delta=1e-5, accountant=PLD)
    assert refusal.value.reachable == PLD.epsilon(GaussianRelease(1.0), 1e-5).epsilon


def test_a_run_without_end_is_refused():
    with pytest.raises(InputError, match="More than 1,000,000,000 steps fit"):
        most_repetitions(GaussianRelease(1e9), epsilon=10.0, delta=1e-5, accountant=ZCDP)


def test_the_most_epochs_of_a_schedule():
    shape, schedule = RunShape("poisson", q=0.1), ExponentialDecay(8.0, 0.1)

    def first(epochs: int) -> Event:
        return shape.first_epochs(schedule, epochs)

    found = longest(first, epsilon=2.0, delta=1e-5, accountant=PLD)
    assert found.answer.epsilon <= 2.0 < PLD.epsilon(first(int(found.value) + 1), 1e-5).epsilon
    with pytest.raises(UnreachableTarget, match="Not even one epoch"):
        longest(first, epsilon=0.01, delta=1e-5, accountant=PLD)


def test_the_most_epochs_within_rho():
    def first(epochs: int) -> Event:
        return Repeated(ZcdpCost(0.25), epochs)

    assert longest_within_rho(first, rho=1.0) == (4, 1.0)
    assert longest_within_rho(first, rho=0.99) == (3, 0.75)
    assert longest_within_rho(first, rho=0.25) == (1, 0.25)
    with pytest.raises(UnreachableTarget, match=r"Not even one round fits into rho 0\.2: it costs 0\.25") as refusal:
        longest_within_rho(first, rho=0.2, unit="round")
    assert refusal.value.reachable == 0.25
    with pytest.raises(InputError, match="More than 100,000 epochs"):
        longest_within_rho(lambda epochs: Repeated(ZcdpCost(1e-12), epochs), rho=1.0)


@pytest.mark.parametrize("given", [{"epsilon": 0.0, "delta": 1e-5}, {"epsilon": 1.0, "delta": 1.0}])
def test_targets_are_checked(given):
    with pytest.raises(InputError):
        smallest_noise(run, accountant=PLD, **given)
    with pytest.raises(InputError):
        most_repetitions(Selection(0.1), accountant=PLD, **given)
    with pytest.raises(InputError):
        longest_within_rho(run, rho=-1.0)
