"""What a configuration means as numbers: every row of ``train/planning.py``, and what contradicts itself."""

from __future__ import annotations

import math

import pytest

from adadp.app.accounting import RdpFilter, ZcdpFilter
from adadp.app.accounting.targets import EpsilonTarget, RhoTarget
from adadp.app.config import TrainConfig
from adadp.app.schedules import ExponentialDecay, StepDecay
from adadp.app.spec import RunSpec
from adadp.app.texts.schedules import parse_schedule
from adadp.app.train.planning import filter_of, plan_of, target_of
from adadp.clipping import Flat
from adadp.errors import BudgetExceeded, InputError, UnreachableTarget
from adadp.schedules import Piecewise, Uniform

RECORDS = 560
SHUFFLED = {"rho": 0.5, "sampling": "reshuffle"}
LOOKS = "validation:s0=10,k=0.7"


def config(**settings) -> TrainConfig:
    return TrainConfig(**{"data": "python", "delta": 1e-4, "batch_size": 56, "clip_norm": 1.0, **settings})


def plan(**settings):
    return plan_of(RunSpec.of(config(**settings)), RECORDS)


def rho(noise, epochs) -> float:
    return math.fsum(1 / (2 * noise_multiplier**2) for noise_multiplier in noise.values(epochs))


# The rows of the table --------------------------------------------------------------------------------------------


def test_sigma_is_constant_noise():
    assert plan(noise_multiplier=2.0, epochs=3).noise == Uniform(2.0)
    assert plan(noise_multiplier=0, allow_nonprivate=True, epochs=3).noise is None


def test_sigma_is_what_an_open_schedule_begins_with():
    assert plan(noise_multiplier=2.0, epochs=3, noise_schedule="exp:k=0.1").noise == ExponentialDecay(2.0, 0.1)


def test_a_whole_schedule_without_a_budget_is_taken_as_it_is():
    for text in ("exp:s0=4,k=0.1", "piecewise:0=4,2=3"):
        found = plan(noise_schedule=text, epochs=3)
        assert (found.noise, found.steps) == (parse_schedule(text), 30)


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "reshuffle"])
@pytest.mark.parametrize("noise", [None, "exp:k=0.1", "exp:k=0.1,start=1,stop=3", "piecewise:0=4,2=3", "uniform:"])
def test_a_budget_scales_the_noise(sampling, noise):
    found = plan(epsilon=2.0, epochs=4, sampling=sampling, noise_schedule=noise, accountant="rdp")
    shape = parse_schedule(
        noise.replace("exp:", "exp:s0=1,").replace("uniform:", "uniform:s0=1") if noise else "uniform:s0=1"
    )
    ratio = found.noise.value_at(0) / shape.value_at(0)
    assert found.noise.values(4) == pytest.approx([ratio * each for each in shape.values(4)])
    assert 2 * (1 - 1e-4) < found.epsilon(1e-4, "rdp").epsilon <= 2
    assert found.steps == 40


def test_a_budget_in_rho_has_a_closed_form():
    found = plan(**SHUFFLED, epochs=4)
    assert found.noise.value_at(0) == pytest.approx(math.sqrt(4 / (2 * 0.5)), rel=1e-6)
    decaying = plan(**SHUFFLED, epochs=4, noise_schedule="step:k=0.5,period=2")
    assert decaying.noise.value_at(0) == pytest.approx(math.sqrt((2 + 2 * 4) / (2 * 0.5)), rel=1e-6)
    assert rho(decaying.noise, 4) <= 0.5 * (1 + 1e-15)


def test_an_open_k_is_that_of_the_fastest_decay():
    found = plan(**SHUFFLED, epochs=4, noise_schedule="step:s0=8,period=2")
    exact = 1 / math.sqrt(0.5 * 2 * 64 / 2 - 1)
    assert isinstance(found.noise, StepDecay)
    assert exact <= found.noise.k <= exact + 1.1e-8
    found = plan(**SHUFFLED, epochs=4, noise_schedule="exp:s0=8")
    assert 0.4999 < rho(found.noise, 4) <= 0.5 < rho(ExponentialDecay(8, found.noise.k + 1e-7), 4)
    found = plan(epsilon=2.0, epochs=4, noise_schedule="exp:s0=8", accountant="rdp")
    assert 1.99 < found.epsilon(1e-4, "rdp").epsilon <= 2
    with pytest.raises(UnreachableTarget, match="Even without any decay"):
        plan(**SHUFFLED, epochs=4, noise_schedule="exp:s0=1")


@pytest.mark.parametrize("epochs", [None, "auto"])
@pytest.mark.parametrize("batch_size_schedule", [None, "piecewise:0=56,2=112"])
def test_without_a_length_the_run_is_as_long_as_the_budget_lasts(epochs, batch_size_schedule):
    batches = {"batch_size": None if batch_size_schedule else 56, "batch_size_schedule": batch_size_schedule}
    found = plan(**SHUFFLED, epochs=epochs, noise_schedule="exp:s0=8,k=0.05", **batches)
    assert found.noise == ExponentialDecay(8, 0.05)
    assert rho(found.noise, found.epochs) <= 0.5 < rho(found.noise, found.epochs + 1)
    assert found.steps == found.steps_of(found.epochs)
    sampled = plan(epsilon=2.0, epochs=epochs, noise_schedule="uniform:s0=4", accountant="rdp", **batches)
    longer = sampled.with_noise(sampled.noise, steps=sampled.steps_of(sampled.epochs + 1))
    assert sampled.epsilon(1e-4, "rdp").epsilon <= 2 < longer.epsilon(1e-4, "rdp").epsilon


@pytest.mark.parametrize("length", [{}, {"epochs": 5}, {"steps": 33}])
def test_noise_that_follows_looks_begins_with_s0_and_has_a_filter(length):
    settings = {"rho": 0.5025, "sampling": "reshuffle", **length, "noise_schedule": LOOKS}
    found = plan(**settings)
    assert found.adaptive
    assert found.noise == Piecewise(((0, 10.0),))
    longest = math.floor(0.5025 * 2 * 100) * 10  # all of it with the noise it begins with
    assert found.steps == {"epochs": 50, "steps": 33}.get(next(iter(length), ""), longest)
    budget = filter_of(config(**settings), found)
    assert isinstance(budget, ZcdpFilter)
    assert budget.rho == 0.5025


def test_sampled_batches_that_follow_looks_have_an_rdp_filter():
    settings = {"epsilon": 2.0, "noise_schedule": LOOKS}
    found = plan(**settings)
    budget = filter_of(config(**settings), found)
    assert isinstance(budget, RdpFilter)
    assert (budget.epsilon, budget.delta, len(budget.orders)) == (2.0, 1e-4, 1)
    assert found.epsilon(1e-4, "rdp").epsilon <= 2
    assert found.with_noise(found.noise, steps=found.steps + 10).epsilon(1e-4, "rdp").epsilon > 2
    assert isinstance(
        filter_of(config(**{**settings, "sampling": "reshuffle"}), plan(**settings, sampling="reshuffle")), ZcdpFilter
    )


def test_looks_that_a_budget_has_no_room_for_are_refused():
    with pytest.raises((BudgetExceeded, UnreachableTarget)):
        plan(rho=0.001, sampling="reshuffle", noise_schedule=LOOKS)
    with pytest.raises(BudgetExceeded):
        plan(rho=0.001, sampling="reshuffle", noise_schedule=LOOKS, epochs=3)


# The other numbers ------------------------------------------------------------------------------------------------


def test_batches_over_the_epochs():
    found = plan(noise_multiplier=2.0, epochs=3, batch_size=None, batch_size_schedule="piecewise:0=56,1=112")
    assert (found.batch_size, found.steps) == (56, 10 + 5 + 5)
    found = plan(noise_multiplier=2.0, epochs=3, batch_size=56, batch_size_schedule="poly:k=1,s_end=2,period=2")
    assert [found.batch_size_at(found.timetable.first_step(epoch)) for epoch in range(3)] == [56, 84, 112]
    with pytest.raises(InputError, match="leaves s0 open"):
        plan(noise_multiplier=2.0, epochs=3, batch_size=None, batch_size_schedule="exp:k=0.1")


@pytest.mark.parametrize(
    ("settings", "bound", "factors"),
    [
        ({"clip_norm": 0.5}, 0.5, [1, 1, 1]),
        ({"clip_norm": 0.5, "clip_norm_schedule": "step:k=0.5,period=1"}, 0.5, [1, 0.5, 0.25]),
        ({"clip_norm": None, "clip_norm_schedule": "step:s0=0.5,k=0.5,period=1"}, 0.5, [1, 0.5, 0.25]),
        ({"clip_norm": None, "clip_norm_schedule": "piecewise:0=0.5,1=2"}, 0.5, [1, 4, 4]),
        (
            {"clip_norm": None, "clip_rule": "flat:0.5", "clip_norm_schedule": "step:k=0.5,period=1"},
            0.5,
            [1, 0.5, 0.25],
        ),
        ({"clip_norm": None, "clip_rule": "flat:0.5", "clip_norm_schedule": "piecewise:0=1,1=2"}, 0.5, [1, 2, 2]),
        ({"clip_norm": 0.5, "clip_norm_schedule": "poly:k=1,s_end=0.1,period=1"}, 0.5, [1, 0.1, 0.1]),
    ],
)
def test_the_clip_bound_over_the_epochs(settings, bound, factors):
    found = plan(noise_multiplier=2.0, epochs=3, **settings)
    assert found.clip_rule == Flat(bound)
    assert [found.clip_factor_at(10 * epoch) for epoch in range(3)] == pytest.approx(factors)
    assert (found.clip_norm_schedule is None) == ("clip_norm_schedule" not in settings)


def test_a_rule_with_a_bound_and_a_schedule_with_another_are_refused():
    with pytest.raises(InputError, match=r"has a bound, and clip_norm_schedule begins with another, 0.7"):
        plan(
            noise_multiplier=2.0, epochs=3, clip_norm=None, clip_rule="flat:0.5", clip_norm_schedule="exp:s0=0.7,k=0.1"
        )
    with pytest.raises(InputError, match="leaves s0 open"):
        plan(noise_multiplier=2.0, epochs=3, clip_norm=None, clip_norm_schedule="exp:k=0.1")


def test_the_rate_over_the_epochs():
    assert RunSpec.of(config(noise_multiplier=1.0)).lr is None
    assert RunSpec.of(config(noise_multiplier=1.0, lr=0.5)).lr == Uniform(0.5)
    assert RunSpec.of(config(noise_multiplier=1.0, lr=0.5, lr_schedule="exp:k=0.1")).lr == ExponentialDecay(0.5, 0.1)
    assert RunSpec.of(config(noise_multiplier=1.0, lr_schedule="piecewise:0=1,3=2")).lr == Piecewise(
        ((0, 1.0), (3, 2.0))
    )


def test_targets_and_looks_of_a_configuration():
    assert target_of(config(noise_multiplier=1.0)) is None
    assert target_of(config(rho=0.5)) == RhoTarget(0.5)
    found = target_of(config(epsilon=2.0, accountant="rdp"))
    assert isinstance(found, EpsilonTarget)
    assert (found.epsilon, found.delta, found.accountant.name) == (2.0, 1e-4, "rdp")
    assert RunSpec.of(config(noise_multiplier=1.0)).decay is None
    assert RunSpec.of(config(noise_multiplier=1.0, noise_schedule="exp:k=0.1")).decay is None
    assert RunSpec.of(config(rho=0.5, noise_schedule=LOOKS)).decay.s0 == 10


def test_a_public_number_of_records_wins_and_loses_those_kept_aside():
    assert plan(noise_multiplier=2.0, epochs=3, records=1000).records == 1000
    found = plan(epsilon=2.0, noise_schedule=LOOKS, validation=100, validation_public=True, records=1000, epochs=2)
    assert found.records == 900


def test_features_are_paid_before_the_steps():
    free, paid = (plan(**SHUFFLED, epochs=4, features=text) for text in (None, "pca:dim=3,noise_multiplier=2"))
    assert paid.before == (2.0,)
    assert paid.noise.value_at(0) == pytest.approx(math.sqrt(4 / (2 * (0.5 - 1 / 8))), rel=1e-6)
    assert free.before == ()
    for settings in ({"epochs": 4}, {"noise_schedule": "uniform:s0=8"}, {"noise_schedule": LOOKS}):
        with pytest.raises(InputError, match=r"costs all of rho 0.5"):
            plan(**SHUFFLED, features="pca:dim=3,noise_multiplier=1", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_multiplier": 1.0, "delta": None, "epochs": 3}, "delta must be given"),
        ({"noise_multiplier": 1.0}, "length of the run must be given"),
        ({"epsilon": 1.0}, "leaves s0 open"),
        ({"noise_multiplier": 1.0, "epochs": 3, "batch_size": "auto"}, "batch_size or steps is auto"),
        ({"epsilon": 1.0, "steps": "auto"}, "batch_size or steps is auto"),
        ({"rho": 1.0, "epochs": 3}, "rho is given, and batches are sampled .poisson."),
        ({"rho": 1.0, "epochs": 3, "sampling": "fixed"}, "rho is given, and batches are sampled .fixed."),
        (
            {"noise_multiplier": 1.0, "epochs": 3, "accountant": "zcdp", "sampling": "reshuffle", "batch_size": 9999},
            "exceed",
        ),
    ],
)
def test_what_is_missing_or_contradicts_itself_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        plan(**settings)


def test_full_batches_may_have_a_rho():
    found = plan(rho=0.5, epochs=4, batch_size=RECORDS)
    assert found.noise.value_at(0) == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(InputError, match="batches are sampled"):
        plan(rho=0.5, epochs=4, batch_size=None, batch_size_schedule="piecewise:0=560,1=56")
