"""The plan: one object from which sampling, noise and every charge follow."""

from __future__ import annotations

import copy
import pickle
from collections import Counter

import pytest
from clip_texts import rule_of

from adadp import Plan, accountant
from adadp.app.accounting.plans import plan_for, scaled_to
from adadp.app.accounting.targets import EpsilonTarget, RhoTarget
from adadp.app.texts.schedules import parse_schedule
from adadp.clipping import Flat
from adadp.errors import InputError, UnreachableTarget
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    FixedSizeSampled,
    GaussianRelease,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    flatten,
)
from adadp.ledger import PlannedBudget
from adadp.sampling import PoissonSampler
from adadp.schedules import Piecewise, Uniform

SHAPE = {"records": 1000, "batch_size": 100}
QUANTILE = "quantile:initial=1,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "reshuffle"])
@pytest.mark.parametrize("clip_norm", [1.0, "per-layer:3", QUANTILE])
@pytest.mark.parametrize("shape", [None, "exp:s0=1,k=0.1", "piecewise:0=2,1=4"])
@pytest.mark.parametrize("batches", [None, "piecewise:0=100,1=350,2=100", "poly:s0=1000,k=1,s_end=100,period=4"])
@pytest.mark.parametrize("steps", [1, 25])
@pytest.mark.parametrize("before", [(), (16.0, 8.0)])
def test_what_is_charged_step_by_step_is_exactly_what_was_planned(sampling, clip_norm, shape, batches, steps, before):
    noise = parse_schedule(shape) if shape else 2.0
    over = None if batches is None else parse_schedule(batches)
    shape = (
        SHAPE if over is None else {"records": 1000, "batch_size": int(over.value_at(0)), "batch_size_schedule": over}
    )
    plan = Plan.of_noise(
        noise=noise, steps=steps, clip_norm=rule_of(clip_norm), sampling=sampling, before=before, **shape
    )
    charged: dict = dict.fromkeys(plan.charges_before(), 1)
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
    for other in (Uniform(3.0), Piecewise(((0, 3.0), (1, 5.0))), Piecewise(((0, 3.0), (2, 5.0)), tick=4)):
        assert plan.event(other) == plan.with_noise(other).event()


def test_the_event_names_the_sampling_that_is_drawn():
    poisson = Plan.of_noise(noise=2.0, steps=5, **SHAPE)
    assert poisson.charge_at(0) == PoissonSampled(0.1, GaussianRelease(2.0))
    fixed = Plan.of_noise(noise=2.0, steps=5, sampling="fixed", **SHAPE)
    assert isinstance(fixed.charge_at(0), FixedSizeSampled)
    assert fixed.neighbours == "replace-one"
    shuffled = Plan.of_noise(noise=2.0, epochs=2, sampling="reshuffle", **SHAPE)
    assert isinstance(shuffled.charge_at(0), ReshuffledEpoch)
    assert [shuffled.charge_at(step) is None for step in range(11)] == [False, *[True] * 9, False]


def test_a_rule_with_a_release_of_its_own_is_charged_on_the_same_batch():
    plan = Plan.of_noise(noise=2.0, steps=5, clip_norm=rule_of(QUANTILE), **SHAPE)
    both = Composed((GaussianRelease(2.0), GaussianRelease(10.0)))
    assert plan.charge_at(0) == PoissonSampled(0.1, both)


@pytest.mark.parametrize("clip_norm", [1.0, QUANTILE])
@pytest.mark.parametrize("shape", [None, "exp:s0=1,k=0.05", "step:s0=1,k=0.5,period=3"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "reshuffle"])
def test_a_calibrated_plan_lands_on_its_budget(clip_norm, shape, sampling):
    plan = plan_for(
        epsilon=3.0,
        delta=1e-5,
        epochs=6,
        clip_norm=rule_of(clip_norm),
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
    plan = Plan.of_noise(noise=2.0, steps=5, clip_norm=rule_of("per-layer:4"), **SHAPE)
    assert plan.clip_rule.l2_bound(4, {}) == pytest.approx(8.0)
    assert plan.epsilon(1e-5).epsilon == Plan.of_noise(noise=2.0, steps=5, clip_norm=4.0, **SHAPE).epsilon(1e-5).epsilon


def test_a_public_number_of_records_hides_the_true_one():
    plan = Plan.of_noise(noise=2.0, steps=5, **SHAPE)
    sampler = plan.timetable.for_records(1234).at(0).sampler
    assert isinstance(sampler, PoissonSampler)
    assert (sampler.records, sampler.sampling_probability) == (1234, 0.1)
    for sampling in ("fixed", "reshuffle"):
        exact = Plan.of_noise(noise=2.0, steps=10, sampling=sampling, **SHAPE)
        assert exact.timetable.for_records(1000) == exact.timetable
        with pytest.raises(InputError, match="another number") as refused:
            exact.timetable.for_records(1234)
        assert "1234" not in str(refused.value)


def test_without_noise_the_path_is_the_same_and_nothing_is_private():
    plan = Plan.of_noise(noise=0, steps=5, **SHAPE)
    assert plan.noise is None
    assert plan.noise_multiplier_at(3) == 0
    assert plan.epsilon(1e-5).epsilon == float("inf")


def test_epochs_are_counted_in_steps():
    assert Plan.of_noise(noise=1.0, epochs=3, **SHAPE).steps == 30
    assert Plan.of_noise(noise=1.0, epochs=2, records=1000, batch_size=300).steps == 8
    assert [Plan.of_noise(noise=1.0, epochs=3, **SHAPE).epoch_of(step) for step in (0, 9, 10, 29)] == [0, 0, 1, 2]


def test_the_description_is_json_and_complete():
    plan = Plan.of_noise(noise=1.5, steps=5, clip_norm=Flat(0.5), **SHAPE)
    assert plan.describe() == {
        "records": 1000,
        "batch_size": 100,
        "steps": 5,
        "steps_per_epoch": 10,
        "sampling": "poisson",
        "sampling_probability": 0.1,
        "neighbours": "add-remove",
        "noise": "uniform:s0=1.5",
        "clip_norm": "flat:0.5",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": None}, "given once"),
        ({"epochs": 3}, "given once"),
        ({"batch_size": 2000}, "must not exceed"),
        ({"records": 1}, "records must be at least 2"),
        ({"noise": -1.0}, "must not be negative"),
        ({"sampling": "shuffled"}, "Unknown sampling"),
        ({"neighbours": "friends"}, "neighbouring relation"),
        ({"sampling": "fixed", "neighbours": "add-remove"}, "add-remove"),
        ({"clip_norm": -1.0}, "greater than 0"),
        (
            {"clip_norm": rule_of(QUANTILE), "clip_norm_schedule": Uniform(1)},
            "quantile was given together with a schedule of the clip bound",
        ),
        ({"batch_size_schedule": Uniform(50)}, "batch_size is 100, and its schedule .* begins with another"),
        ({"batch_size_schedule": Uniform(2000), "batch_size": 2000}, "must not exceed"),
        ({"before": (0.0,)}, "before must be greater than 0"),
    ],
)
def test_bad_plans_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        Plan.of_noise(**{"noise": 1.0, "steps": 5, **SHAPE, **change})


def test_a_budget_that_no_noise_meets_is_refused():
    with pytest.raises(UnreachableTarget):
        plan_for(epsilon=0.01, delta=1e-5, steps=5, clip_norm=rule_of(QUANTILE), **SHAPE)


# Batches, clip bounds and noise over the epochs ----------------------------------------------------------------------

BATCHES = parse_schedule("piecewise:0=100,1=300,3=1000")


def test_an_epoch_has_as_many_steps_as_batches_of_its_size_need():
    plan = Plan.of_noise(noise=1.0, epochs=4, batch_size_schedule=BATCHES, **SHAPE)
    assert plan.steps == 10 + 4 + 4 + 1
    assert plan.epochs == 4
    assert [plan.steps_of(epochs) for epochs in range(1, 7)] == [10, 14, 18, 19, 20, 21]
    assert [plan.epoch_of(step) for step in (0, 9, 10, 13, 14, 17, 18)] == [0, 0, 1, 1, 2, 2, 3]
    assert [plan.batch_size_at(step) for step in (0, 9, 10, 17, 18)] == [100, 100, 300, 300, 1000]
    assert [step for step in range(1, 20) if plan.ends_epoch(step)] == [10, 14, 18, 19]
    assert plan.charge_at(9) == PoissonSampled(0.1, GaussianRelease(1.0))
    assert plan.charge_at(10) == PoissonSampled(0.3, GaussianRelease(1.0))


def test_a_run_may_end_within_an_epoch_of_changed_batches():
    plan = Plan.of_noise(noise=1.0, steps=12, batch_size_schedule=BATCHES, **SHAPE)
    assert plan.epochs == 2
    assert flatten(plan.event()) == {plan.charge_at(0): 10, plan.charge_at(10): 2}
    assert plan.ends_epoch(12)
    assert not plan.ends_epoch(11)


def test_a_size_that_is_no_whole_number_is_rounded_alike_everywhere():
    plan = Plan.of_noise(
        noise=1.0, epochs=3, records=1000, batch_size=100, batch_size_schedule=parse_schedule("exp:s0=100,k=0.3")
    )
    assert [plan.batch_size_at(plan.timetable.first_step(epoch)) for epoch in range(3)] == [100, 74, 55]
    assert [plan.timetable.stretches[epoch].sampler.sampling_probability for epoch in range(3)] == [0.1, 0.074, 0.055]


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "reshuffle"])
def test_the_clip_bound_changes_nothing_in_what_is_charged(sampling):
    plain = Plan.of_noise(noise=1.5, epochs=3, sampling=sampling, **SHAPE)
    plan = Plan.of_noise(
        noise=1.5, epochs=3, sampling=sampling, clip_norm_schedule=parse_schedule("exp:s0=1,k=0.5"), **SHAPE
    )
    assert [plan.clip_factor_at(step) for step in (0, 9, 10)] == [1, 1, pytest.approx(0.6065306597)]
    assert plain.clip_factor_at(29) == 1
    assert plan.event() == plain.event()


def test_noise_that_was_chosen_on_the_way_is_marked():
    plan = Plan.of_noise(noise=4.0, epochs=5, **SHAPE).realised([4.0, 4.0, 2.0])
    assert plan.adaptive
    assert plan.noise == Piecewise(((0, 4.0), (2, 2.0)))
    assert plan.steps == 50
    assert plan.charge_at(19) == AdaptivelyChosen(PoissonSampled(0.1, GaussianRelease(4.0)))
    assert plan.charge_at(20) == plan.charge_at(49) == AdaptivelyChosen(PoissonSampled(0.1, GaussianRelease(2.0)))
    again = plan.realised([4.0, 4.0, 2.0, 1.0])
    assert again.charge_at(29) == plan.charge_at(29)
    assert again.charge_at(30) == AdaptivelyChosen(PoissonSampled(0.1, GaussianRelease(1.0)))


def test_reshuffled_epochs_with_chosen_noise_are_marked_and_charged_once():
    plan = Plan.of_noise(noise=4.0, epochs=3, sampling="reshuffle", **SHAPE).realised([4.0, 2.0])
    charges = [plan.charge_at(step) for step in range(30)]
    assert [step for step in range(30) if charges[step] is not None] == [0, 10, 20]
    near = plan.neighbours
    assert charges[10] == AdaptivelyChosen(ReshuffledEpoch((GaussianRelease(2.0, near),), False))
    assert plan.charge_at(13, resumed=True) == charges[10]


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "reshuffle"])
@pytest.mark.parametrize("shape", ["uniform:s0=3", "exp:s0=3,k=0.3", "piecewise:0=1,2=5"])
def test_noise_is_scaled_as_a_whole_to_the_least_that_fits(sampling, shape):
    noise = parse_schedule(shape)
    draft = Plan.of_noise(
        noise=noise, epochs=4, batch_size_schedule=BATCHES, sampling=sampling, before=(20.0,), **SHAPE
    )
    target = EpsilonTarget(2.0, 1e-5, accountant("zcdp" if sampling == "reshuffle" else "rdp"))
    plan = scaled_to(draft, target)
    scale = plan.noise.value_at(0) / noise.value_at(0)
    assert plan.noise.values(4) == pytest.approx([scale * each for each in noise.values(4)])
    assert 2 * (1 - 1e-5) < target.cost(plan.event()) <= 2
    assert target.cost(draft.with_noise(noise.scaled(scale * (1 - 1e-5))).event()) > 2
    assert (plan.steps, plan.batch_size_schedule, plan.before) == (draft.steps, draft.batch_size_schedule, draft.before)


def test_noise_is_scaled_to_a_rho_in_closed_form():
    draft = Plan.of_noise(noise=parse_schedule("piecewise:0=1,1=2"), epochs=3, sampling="reshuffle", **SHAPE)
    plan = scaled_to(draft, RhoTarget(0.5))
    assert plan.noise.value_at(0) == pytest.approx((0.5 * (1 + 2 / 4) / 0.5) ** 0.5, rel=1e-6)


def test_a_target_that_is_spent_ahead_is_refused():
    draft = Plan.of_noise(noise=1.0, epochs=3, sampling="reshuffle", before=(1.0,), **SHAPE)
    with pytest.raises(InputError, match=r"costs all of rho 0.5"):
        scaled_to(draft, RhoTarget(0.5))
    assert scaled_to(draft, RhoTarget(0.51)).noise.value_at(0) > 10


def test_other_noise_and_another_length():
    plan = Plan.of_noise(noise=1.0, epochs=3, batch_size_schedule=BATCHES, **SHAPE)
    other = plan.with_noise(Uniform(2.0), steps=12)
    assert (other.steps, other.noise, other.batch_size_schedule) == (12, Uniform(2.0), BATCHES)
    assert plan.with_noise(Uniform(2.0)).steps == plan.steps
    constant = Plan.of_noise(noise=1.0, epochs=3, **SHAPE).with_noise(Uniform(2.0), steps=12)
    assert constant.event() == Repeated(PoissonSampled(0.1, GaussianRelease(2.0)), 12)


def test_schedules_are_part_of_the_description():
    described = Plan.of_noise(
        noise=1.0, epochs=3, batch_size_schedule=BATCHES, clip_norm_schedule=Uniform(1.0), before=(16.0,), **SHAPE
    ).describe()
    assert described["batch_size_schedule"] == "piecewise:0=100,1=300,3=1000"
    assert described["clip_factors"] == "uniform:s0=1"
    assert described["before"] == [16.0]
    assert "adaptive" not in described
    assert Plan.of_noise(noise=1.0, epochs=3, **SHAPE).realised([1.0]).describe()["adaptive"] is True


def test_a_budget_holds_for_growing_batches_and_a_falling_clip():
    batches, clips = parse_schedule("piecewise:0=100,2=200"), parse_schedule("poly:s0=1,k=1,s_end=0.5,period=4")
    shape = {
        "records": 1000,
        "batch_size": 100,
        "epochs": 4,
        "batch_size_schedule": batches,
        "clip_norm_schedule": clips,
    }
    plan = plan_for(epsilon=2.0, delta=1e-5, noise_shape=parse_schedule("exp:s0=1,k=0.2"), **shape)
    assert 1.99 < plan.epsilon(1e-5).epsilon <= 2
    assert [plan.batch_size_at(step) for step in (0, 19, 20, 29)] == [100, 100, 200, 200]
    assert plan.clip_factor_at(plan.steps - 1) == 0.625


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("steps", [1, 9, 10, 37])
@pytest.mark.parametrize("keep", [False, True])
def test_a_schedule_over_the_epochs_is_charged_as_its_steps_are(sampling, steps, keep):
    """The event of a plan is made epoch by epoch; a run charges step by step."""
    clips = {"clip_norm_schedule": parse_schedule("exp:s0=1,k=0.2"), "keep_noise": True} if keep else {}
    plan = Plan.of_noise(
        noise=parse_schedule("step:s0=4,k=0.5,period=2"),
        records=1000,
        batch_size=100,
        steps=steps,
        sampling=sampling,
        **clips,
    )
    assert flatten(plan.event()) == Counter(plan.charge_at(step) for step in range(steps))


def test_a_plan_that_has_been_asked_is_pickled_and_copied_as_it_was_made():
    plan = plan_for(epsilon=2, delta=1e-5, records=1000, batch_size=100, steps=5)
    charges = [plan.charge_at(step) for step in range(5)]
    for other in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert other == plan
        assert [other.charge_at(step) for step in range(5)] == charges
        assert other.event() == plan.event()
