"""Planned runs become the events they are."""

from __future__ import annotations

import pytest

from adadp.app.accounting.run_shape import RunShape, Sampling, steps_per_epoch
from adadp.app.schedules import StepDecay
from adadp.errors import EventError, InputError
from adadp.events import (
    Composed,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    flatten,
)
from adadp.schedules import Uniform

ADD, REPLACE, ZERO = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT


@pytest.mark.parametrize(
    ("q", "steps"), [(1.0, 1), (0.5, 2), (0.01, 100), (1 / 3, 3), (0.3, 4), (0.99, 2), (1e-6, 10**6)]
)
def test_an_epoch_is_one_over_q_steps_rounded_up(q, steps):
    assert steps_per_epoch(q) == steps


def test_every_sampling_has_its_event_and_its_usual_neighbours():
    assert RunShape(q=0.1).step(2.0) == PoissonSampled(0.1, GaussianRelease(2.0, ADD))
    assert RunShape("fixed", q=0.1).step(2.0) == FixedSizeSampled(0.1, GaussianRelease(2.0, REPLACE))
    assert RunShape(Sampling.RESHUFFLE).step(2.0) == ReshuffledEpoch((GaussianRelease(2.0, ZERO),))
    assert RunShape("poisson", q=0.1, neighbours="replace-one").neighbours is REPLACE
    assert RunShape("fixed", q=0.1, neighbours=ZERO).step(1.0).neighbours is ZERO


def test_epochs():
    assert RunShape(q=0.1).epoch(2.0) == Repeated(PoissonSampled(0.1, GaussianRelease(2.0)), 10)
    assert RunShape("reshuffle").epoch(2.0) == ReshuffledEpoch((GaussianRelease(2.0, ZERO),))


def test_runs_with_one_multiplier():
    shape = RunShape(q=0.1)
    step = PoissonSampled(0.1, GaussianRelease(2.0))
    assert flatten(shape.run(2.0, steps=25)) == {step: 25}
    assert flatten(shape.run(Uniform(2.0), steps=25)) == {step: 25}
    assert flatten(shape.run(2.0, epochs=3)) == {step: 30}
    epoch = ReshuffledEpoch((GaussianRelease(2.0, ZERO),))
    assert flatten(RunShape("reshuffle").run(2.0, epochs=3)) == {epoch: 3}


def test_runs_with_a_schedule():
    shape, schedule = RunShape(q=0.1), StepDecay(4.0, 0.5, 1)

    def step(sigma: float) -> PoissonSampled:
        return PoissonSampled(0.1, GaussianRelease(sigma))

    assert flatten(shape.run(schedule, epochs=3)) == {step(4.0): 10, step(2.0): 10, step(1.0): 10}
    assert flatten(shape.run(schedule, steps=25)) == {step(4.0): 10, step(2.0): 10, step(1.0): 5}
    assert flatten(shape.run(schedule, steps=20)) == {step(4.0): 10, step(2.0): 10}
    assert flatten(shape.run(schedule, steps=7)) == {step(4.0): 7}
    assert isinstance(shape.first_epochs(schedule, 2), Composed)


@pytest.mark.parametrize("length", [{}, {"steps": 1, "epochs": 1}])
def test_the_length_must_be_given_once(length):
    with pytest.raises(InputError, match="given once"):
        RunShape(q=0.1).run(2.0, **length)


def test_a_reshuffled_run_is_counted_in_epochs():
    with pytest.raises(InputError, match="counted in epochs"):
        RunShape("reshuffle").run(2.0, steps=10)


@pytest.mark.parametrize("length", [{"steps": 0}, {"epochs": 0}, {"steps": 2.5}, {"epochs": -1}])
def test_lengths_are_checked(length):
    with pytest.raises(InputError):
        RunShape(q=0.1).run(2.0, **length)


def test_shapes_are_checked():
    with pytest.raises(InputError, match="Unknown sampling 'shuffle'") as refusal:
        RunShape("shuffle")
    assert "poisson, fixed, reshuffle" in refusal.value.fix
    with pytest.raises(InputError, match="poisson sampling needs q"):
        RunShape("poisson")
    with pytest.raises(InputError, match="fixed sampling needs q"):
        RunShape("fixed")
    for q in (0.0, 1.5, -0.1):
        with pytest.raises(InputError, match="q must"):
            RunShape(q=q)
    with pytest.raises(EventError, match="Unknown neighbouring relation"):
        RunShape(q=0.1, neighbours="swap")
    with pytest.raises(EventError, match="add-remove neighbours"):
        RunShape("fixed", q=0.1, neighbours=ADD).step(1.0)


@pytest.mark.parametrize("sigma", [0.0, -1.0])
def test_a_planned_run_has_noise(sigma):
    with pytest.raises(InputError, match="noise_multiplier"):
        RunShape(q=0.1).step(sigma)
    with pytest.raises(InputError, match="noise_multiplier"):
        RunShape(q=0.1).run(sigma, steps=1)
