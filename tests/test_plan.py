"""The plan: one object from which sampling, noise and every charge follow."""

from __future__ import annotations

import pytest

from adadp import Plan, PlannedBudget, accountant, parse_schedule
from adadp.clipping import Flat
from adadp.errors import InputError, UnreachableTarget
from adadp.events import Composed, FixedSizeSampled, GaussianRelease, PoissonSampled, ReshuffledEpoch, flatten
from adadp.sampling import PoissonSampler

SHAPE = {"records": 1000, "lot_size": 100}
QUANTILE = "quantile:initial=1,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "reshuffle"])
@pytest.mark.parametrize("clip", [1.0, "per-layer:3", QUANTILE])
@pytest.mark.parametrize("shape", [None, "exp:s0=1,k=0.1"])
@pytest.mark.parametrize("steps", [1, 25])
def test_what_is_charged_step_by_step_is_exactly_what_was_planned(sampling, clip, shape, steps):
    noise = parse_schedule(shape) if shape else 2.0
    plan = Plan.of_noise(noise=noise, steps=steps, clip=clip, sampling=sampling, **SHAPE)
    charged: dict = {}
    budget = PlannedBudget(plan.event())
    rounds = 0
    for step in range(plan.steps):
        event = plan.charge_at(step)
        if event is not None:
            budget.admit(event, 1)
            budget.commit(event, 1)
            charged[event] = charged.get(event, 0) + 1
            rounds += 1
        assert rounds == plan.rounds_before(step + 1)
    assert charged == flatten(plan.event())


def test_the_event_names_the_sampling_that_is_drawn():
    poisson = Plan.of_noise(noise=2.0, steps=5, **SHAPE)
    assert poisson.charge_at(0) == PoissonSampled(0.1, GaussianRelease(2.0))
    fixed = Plan.of_noise(noise=2.0, steps=5, sampling="fixed", **SHAPE)
    assert isinstance(fixed.charge_at(0), FixedSizeSampled)
    assert fixed.neighbours == "replace-one"
    shuffled = Plan.of_noise(noise=2.0, epochs=2, sampling="reshuffle", **SHAPE)
    assert isinstance(shuffled.charge_at(0), ReshuffledEpoch)
    assert [shuffled.charge_at(step) is None for step in range(11)] == [False, *[True] * 9, False]


def test_a_rule_with_a_release_of_its_own_is_charged_on_the_same_lot():
    plan = Plan.of_noise(noise=2.0, steps=5, clip=QUANTILE, **SHAPE)
    both = Composed((GaussianRelease(2.0), GaussianRelease(10.0)))
    assert plan.charge_at(0) == PoissonSampled(0.1, both)


@pytest.mark.parametrize("clip", [1.0, QUANTILE])
@pytest.mark.parametrize("shape", [None, "exp:s0=1,k=0.05", "step:s0=1,k=0.5,period=3"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "reshuffle"])
def test_a_calibrated_plan_lands_on_its_budget(clip, shape, sampling):
    plan = Plan.for_budget(
        epsilon=3.0,
        delta=1e-5,
        epochs=6,
        clip=clip,
        sampling=sampling,
        noise_shape=None if shape is None else parse_schedule(shape),
        **SHAPE,
    )
    epsilon = plan.epsilon(1e-5).epsilon
    assert 2.98 < epsilon <= 3.0
    assert accountant("pld").epsilon(plan.event(), 1e-5).epsilon == epsilon
    if shape is not None:
        assert plan.noise_multiplier_at(plan.steps - 1) < plan.noise_multiplier_at(0)


def test_per_layer_clipping_is_accounted_jointly():
    """Abadi et al. 2016 clip K layers at C and add sigma C to each as if alone; jointly that is sigma / sqrt(K)."""
    plan = Plan.of_noise(noise=2.0, steps=5, clip="per-layer:4", **SHAPE)
    assert plan.clip.l2_bound(4, {}) == pytest.approx(8.0)
    assert plan.epsilon(1e-5).epsilon == Plan.of_noise(noise=2.0, steps=5, clip=4.0, **SHAPE).epsilon(1e-5).epsilon


def test_a_public_number_of_records_hides_the_true_one():
    plan = Plan.of_noise(noise=2.0, steps=5, **SHAPE)
    sampler = plan.sampler_for(1234)
    assert isinstance(sampler, PoissonSampler)
    assert (sampler.records, sampler.sampling_probability) == (1234, 0.1)
    for sampling in ("fixed", "reshuffle"):
        exact = Plan.of_noise(noise=2.0, steps=10, sampling=sampling, **SHAPE)
        assert exact.sampler_for(1000) == exact.sampler
        with pytest.raises(InputError, match="another number") as refused:
            exact.sampler_for(1234)
        assert "1234" not in str(refused.value)


def test_without_noise_the_path_is_the_same_and_nothing_is_private():
    plan = Plan.of_noise(noise=0, steps=5, **SHAPE)
    assert plan.noise is None
    assert plan.noise_multiplier_at(3) == 0
    assert plan.epsilon(1e-5).epsilon == float("inf")


def test_epochs_are_counted_in_steps():
    assert Plan.of_noise(noise=1.0, epochs=3, **SHAPE).steps == 30
    assert Plan.of_noise(noise=1.0, epochs=2, records=1000, lot_size=300).steps == 8
    assert [Plan.of_noise(noise=1.0, epochs=3, **SHAPE).epoch_of(step) for step in (0, 9, 10, 29)] == [0, 0, 1, 2]


def test_the_description_is_json_and_complete():
    plan = Plan.of_noise(noise=1.5, steps=5, clip=Flat(0.5), **SHAPE)
    assert plan.describe() == {
        "records": 1000,
        "lot_size": 100,
        "steps": 5,
        "steps_per_epoch": 10,
        "sampling": "poisson",
        "sampling_probability": 0.1,
        "neighbours": "add-remove",
        "noise": "uniform:s0=1.5",
        "clip": "flat:0.5",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": None}, "given once"),
        ({"epochs": 3}, "given once"),
        ({"lot_size": 2000}, "must not exceed"),
        ({"records": 1}, "records must be at least 2"),
        ({"noise": -1.0}, "must not be negative"),
        ({"sampling": "shuffled"}, "Unknown sampling"),
        ({"neighbours": "friends"}, "neighbouring relation"),
        ({"sampling": "fixed", "neighbours": "add-remove"}, "add-remove"),
        ({"clip": "flat"}, "no bound"),
        ({"clip": -1.0}, "greater than 0"),
    ],
)
def test_bad_plans_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        Plan.of_noise(**{"noise": 1.0, "steps": 5, **SHAPE, **change})


def test_a_budget_that_no_noise_meets_is_refused():
    with pytest.raises(UnreachableTarget):
        Plan.for_budget(epsilon=0.01, delta=1e-5, steps=5, clip=QUANTILE, **SHAPE)
