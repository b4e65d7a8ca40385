"""Samplers: batches, charges and plans. The distribution of the batches: tests/statistical."""

from __future__ import annotations

import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import RELATIONS, SAME_SIZE_RELATIONS

from adadp.app.accounting.run_shape import RunShape, steps_per_epoch
from adadp.app.samplers import FixedSizeSampler, ReshuffledSampler
from adadp.errors import BudgetExceeded, InputError
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
from adadp.ledger import PlannedBudget
from adadp.randomness import SecureSource, SeededSource
from adadp.sampling import Batches, PoissonSampler, sampler

SEEDED, SECURE = SeededSource(7), SecureSource()
each_source = pytest.mark.parametrize("source", [SECURE, SEEDED], ids=["secure", "seeded"])

batch_sizes = st.integers(2, 60).flatmap(lambda records: st.tuples(st.just(records), st.integers(1, records)))
reshuffled = st.builds(lambda size, near: ReshuffledSampler(*size, near), batch_sizes, st.sampled_from(RELATIONS))
samplers = st.one_of(
    st.builds(lambda size, near: PoissonSampler.of_batch_size(*size, near), batch_sizes, st.sampled_from(RELATIONS)),
    st.builds(lambda size, near: FixedSizeSampler(*size, near), batch_sizes, st.sampled_from(SAME_SIZE_RELATIONS)),
    reshuffled,
)


def releases(drawn, multipliers=(4.0,)):
    """A release for every step, with ``multipliers`` over and over."""
    return lambda step: GaussianRelease(multipliers[step % len(multipliers)], drawn.neighbours)


@given(samplers, st.integers(0, 200), st.integers(0, 100))
def test_a_batch_is_a_sorted_set_of_records(drawn, step, seed):
    batch = drawn.draw(step, SeededSource(seed))
    assert batch.dtype is torch.int64
    assert batch.ndim == 1
    assert torch.equal(batch, batch.unique())
    assert not len(batch) or (batch[0] >= 0 and batch[-1] < drawn.records)
    assert isinstance(drawn, (PoissonSampler, ReshuffledSampler)) or len(batch) == drawn.batch_size


@given(samplers, st.integers(1, 9))
def test_the_usual_size_of_a_part_is_public_and_between_its_share_and_the_whole(drawn, parts):
    share = drawn.usual_share(parts)
    assert drawn.usual_share(1) == drawn.usual_size
    assert drawn.usual_size / parts <= share <= max(drawn.usual_size, -(-drawn.records // parts))
    assert share <= -(-drawn.records // parts) or parts == 1


@given(samplers, st.integers(0, 200), st.integers(0, 100))
def test_a_seeded_batch_can_be_drawn_again_alone_or_in_a_run(drawn, step, seed):
    batch = drawn.draw(step, SeededSource(seed))
    run = Batches(drawn, SeededSource(seed))
    run.batch(0)
    assert torch.equal(batch, drawn.draw(step, SeededSource(seed)))
    assert torch.equal(batch, run.batch(step))


@each_source
@given(drawn=reshuffled)
def test_an_epoch_of_reshuffled_batches_holds_every_record_once(source, drawn):
    run = Batches(drawn, source)
    for epoch in range(2):
        first = epoch * drawn.steps_per_epoch
        epoch_batches = [run.batch(step) for step in range(first, first + drawn.steps_per_epoch)]
        assert torch.equal(torch.cat(epoch_batches).sort().values, torch.arange(drawn.records))
        if not drawn.independent_assignment:
            assert [len(each) for each in epoch_batches[:-1]] == [drawn.batch_size] * (len(epoch_batches) - 1)
            assert 1 <= len(epoch_batches[-1]) <= drawn.batch_size


@pytest.mark.parametrize("kind", ["poisson", "fixed", "reshuffle"])
@each_source
def test_steps_and_epochs_draw_anew(kind, source):
    drawn = sampler(kind, 1000, 100)
    run = Batches(drawn, source)
    assert not torch.equal(run.batch(0), run.batch(1))
    first = Batches(drawn, source).batch(0)
    assert not torch.equal(first, run.batch(drawn.steps_per_epoch))


def test_reshuffled_batches_of_add_remove_neighbours_vary_in_size():
    drawn = ReshuffledSampler(1000, 100, Neighbours.ADD_REMOVE)
    assert len({len(drawn.draw(step, SEEDED)) for step in range(10)}) > 1
    assert drawn.charge(0, releases(drawn)).independent_assignment


def test_adding_a_record_leaves_the_batches_of_the_others():
    """What add-remove neighbours need: with a slice of a shuffled order it does not hold."""
    with_record, without = (ReshuffledSampler(size, 10, Neighbours.ADD_REMOVE) for size in (100, 99))
    assert with_record.steps_per_epoch == without.steps_per_epoch == 10
    assert torch.equal(with_record.arrange(0, SEEDED)[:-1], without.arrange(0, SEEDED))
    shuffled = [ReshuffledSampler(size, 10).arrange(0, SEEDED) for size in (100, 99)]
    assert not torch.equal(shuffled[0][:-1], shuffled[1])


@each_source
@pytest.mark.parametrize(
    "drawn",
    [
        PoissonSampler(50, 1.0),
        PoissonSampler.of_batch_size(50, 50),
        FixedSizeSampler(50, 50),
        ReshuffledSampler(50, 50),
    ],
)
def test_a_batch_as_large_as_the_data_holds_all_of_it(source, drawn):
    run = Batches(drawn, source)
    assert drawn.steps_per_epoch == 1
    for step in range(3):
        assert torch.equal(run.batch(step), torch.arange(50))


def test_an_empty_batch_is_a_batch_and_is_charged():
    drawn = PoissonSampler(2, 1e-6)
    batch = drawn.draw(0, SEEDED)
    assert batch.shape == (0,)
    assert batch.dtype is torch.int64
    assert drawn.charge(0, releases(drawn)) == PoissonSampled(1e-6, GaussianRelease(4.0))


def test_public_numbers():
    poisson = PoissonSampler.of_batch_size(60_000, 600)
    assert (poisson.sampling_probability, poisson.steps_per_epoch) == (0.01, 100)
    assert PoissonSampler(60_000, 0.011).steps_per_epoch == 91
    fixed, reshuffled = FixedSizeSampler(1001, 100), ReshuffledSampler(1001, 100)
    assert fixed.steps_per_epoch == reshuffled.steps_per_epoch == 11
    assert [len(reshuffled.draw(step, SEEDED)) for step in range(11)] == [100] * 10 + [1]
    assert (poisson.neighbours, fixed.neighbours, reshuffled.neighbours) == (
        Neighbours.ADD_REMOVE,
        Neighbours.REPLACE_ONE,
        Neighbours.ZERO_OUT,
    )


@given(batch_sizes)
def test_an_epoch_is_as_long_as_the_accountant_takes_it_to_be(size):
    drawn = PoissonSampler.of_batch_size(*size)
    assert drawn.steps_per_epoch == steps_per_epoch(drawn.sampling_probability)


def test_charges():
    near = Neighbours.REPLACE_ONE
    drawn = FixedSizeSampler(100, 10)
    assert drawn.charge(3, lambda step: GaussianRelease(1.0 + step, near)) == FixedSizeSampled(
        0.1, GaussianRelease(4.0, near)
    )
    assert drawn.amplify(GaussianRelease(2.0, near)) == FixedSizeSampled(0.1, GaussianRelease(2.0, near))


def test_a_reshuffled_epoch_is_charged_at_its_first_step():
    drawn, near = ReshuffledSampler(40, 10), Neighbours.ZERO_OUT
    release_of = releases(drawn, (1.0, 2.0, 1.0))
    steps = [drawn.charge(step, release_of) for step in range(5)]
    assert steps[0] == ReshuffledEpoch((GaussianRelease(1.0, near), GaussianRelease(2.0, near)))
    assert steps[1:4] == [None] * 3
    assert steps[4] == ReshuffledEpoch((GaussianRelease(2.0, near), GaussianRelease(1.0, near)))
    assert drawn.amplify(GaussianRelease(1.0, near)) == ReshuffledEpoch((GaussianRelease(1.0, near),))


def test_a_run_resumed_within_an_epoch_pays_for_the_rest_of_it_again():
    drawn, near = ReshuffledSampler(40, 10), Neighbours.ZERO_OUT
    release_of = releases(drawn, (1.0, 2.0, 3.0, 3.0))
    assert drawn.charge(2, release_of, resumed=True) == ReshuffledEpoch((GaussianRelease(3.0, near),))
    assert drawn.charge(0, release_of, resumed=True) == drawn.charge(0, release_of)
    poisson = PoissonSampler(40, 0.25)
    assert poisson.charge(2, releases(poisson), resumed=True) == poisson.charge(2, releases(poisson))


@pytest.mark.slow
@settings(max_examples=200)
@given(samplers, st.integers(1, 150), st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=5))
def test_a_plan_admits_its_charges_and_not_one_more(drawn, steps, multipliers):
    release_of = releases(drawn, multipliers)
    budget = PlannedBudget(drawn.planned(steps, release_of))
    charges = [event for step in range(steps) if (event := drawn.charge(step, release_of)) is not None]
    for event in charges:
        budget.admit(event, 1)
        budget.commit(event, 1)
    for event in set(charges):
        with pytest.raises(BudgetExceeded):
            budget.admit(event, 1)


def test_plans_are_compact():
    drawn = PoissonSampler(100, 0.1)
    one = PoissonSampled(0.1, GaussianRelease(4.0))
    assert drawn.planned(70, releases(drawn)) == Repeated(one, 70)
    alternating = drawn.planned(7, releases(drawn, (4.0, 5.0)))
    assert alternating == Composed((Repeated(one, 4), Repeated(PoissonSampled(0.1, GaussianRelease(5.0)), 3)))


def test_a_last_epoch_cut_short_costs_a_whole_one():
    drawn = ReshuffledSampler(40, 10)
    assert drawn.planned(5, releases(drawn)) == drawn.planned(8, releases(drawn))
    assert sum(flatten(drawn.planned(9, releases(drawn))).values()) == 3


@pytest.mark.parametrize("kind", ["poisson", "fixed"])
def test_the_plan_is_what_the_accountant_plans(kind):
    drawn = sampler(kind, 1000, 50)
    assert flatten(drawn.planned(30, releases(drawn))) == flatten(RunShape(kind, q=0.05).run(4.0, steps=30))


def test_the_reshuffled_plan_is_what_the_accountant_plans():
    drawn = sampler("reshuffle", 1000, 50)
    assert flatten(drawn.planned(60, releases(drawn))) == flatten(RunShape("reshuffle").run(4.0, epochs=3))


def test_long_plans_are_quick():
    """Processor time, several times what it takes on an idle core."""
    drawn = PoissonSampler(60_000, 0.01)
    release, before = GaussianRelease(4.0), time.process_time()
    drawn.planned(100_000, lambda step: release)
    assert time.process_time() - before < 2


def test_neighbours_must_agree_with_the_release():
    drawn = PoissonSampler(100, 0.1, Neighbours.REPLACE_ONE)
    with pytest.raises(InputError, match=r"add-remove.*replace-one"):
        drawn.charge(0, lambda step: GaussianRelease(1.0))
    with pytest.raises(InputError, match=r"add-remove.*replace-one"):
        drawn.planned(3, lambda step: GaussianRelease(1.0))


# One run, its memory and its checkpoints


def test_secure_reshuffled_batches_need_a_memory():
    drawn = ReshuffledSampler(40, 10)
    with pytest.raises(InputError, match="Batches"):
        drawn.draw(0, SECURE)
    run = Batches(drawn, SECURE)
    assert torch.equal(run.batch(0), run.batch(0))
    assert len(ReshuffledSampler(40, 40).draw(0, SECURE)) == 40


@each_source
def test_a_run_goes_on_from_its_checkpoint(source, tmp_path):
    drawn = ReshuffledSampler(40, 10)
    run = Batches(drawn, source)
    run.batch(4)
    torch.save(run.state(), tmp_path / "state.pt")
    resumed = Batches(drawn, source)
    resumed.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    assert all(torch.equal(run.batch(step), resumed.batch(step)) for step in range(4, 8))


def test_a_secure_epoch_is_never_dealt_twice():
    drawn = ReshuffledSampler(40, 10)
    with pytest.raises(InputError, match="not at hand"):
        Batches(drawn, SECURE).batch(2)
    run = Batches(drawn, SECURE)
    run.batch(0)
    with pytest.raises(InputError, match="not at hand"):
        run.batch(5)
    run.batch(4)
    with pytest.raises(InputError, match="not at hand"):
        run.batch(0)
    run.batch(7)


def test_a_checkpoint_holds_no_secret_batch():
    for drawn in (PoissonSampler(40, 0.25), FixedSizeSampler(40, 10), ReshuffledSampler(40, 10)):
        run = Batches(drawn, SEEDED)
        run.batch(0)
        assert run.state() == {}
    for drawn in (PoissonSampler(40, 0.25), FixedSizeSampler(40, 10)):
        run = Batches(drawn, SECURE)
        first = run.batch(0)
        assert run.state() == {}
        assert any(not torch.equal(first, run.batch(0)) for _ in range(5)), "remembered"


def test_a_state_does_not_share_memory_with_the_run():
    run = Batches(ReshuffledSampler(40, 10), SECURE)
    batch, state = run.batch(0), run.state()
    state["arrangement"].zero_()
    assert torch.equal(batch, run.batch(0))
    state = run.state()
    run.restore(state)
    state["arrangement"].zero_()
    assert torch.equal(batch, run.batch(0))


def test_an_empty_state_forgets():
    run = Batches(ReshuffledSampler(40, 10), SECURE)
    assert run.state() == {}
    run.batch(0)
    run.restore({})
    with pytest.raises(InputError, match="not at hand"):
        run.batch(1)


@pytest.mark.parametrize(
    "state",
    [
        {"round": 0},
        {"round": 0, "arrangement": torch.zeros(39, dtype=torch.int64)},
        {"round": 0, "arrangement": [0] * 40},
        {"round": "0", "arrangement": torch.zeros(40, dtype=torch.int64)},
        {"round": 0, "arrangement": torch.zeros(40, dtype=torch.int64), "more": 1},
    ],
)
def test_states_that_are_refused(state):
    with pytest.raises(InputError, match="does not fit"):
        Batches(ReshuffledSampler(40, 10), SECURE).restore(state)


def test_a_state_of_another_sampler_is_refused():
    run = Batches(ReshuffledSampler(40, 10), SECURE)
    run.batch(0)
    with pytest.raises(InputError, match="does not fit"):
        Batches(PoissonSampler(40, 0.25), SECURE).restore(run.state())


# What is refused


@pytest.mark.parametrize("records", [0, 1, -5, 2.5, "60000", None])
@pytest.mark.parametrize("kind", ["poisson", "fixed", "reshuffle"])
def test_numbers_of_records_that_are_refused(kind, records):
    with pytest.raises(InputError, match="records"):
        sampler(kind, records, 1)


@pytest.mark.parametrize("kind", ["poisson", "fixed", "reshuffle"])
@pytest.mark.parametrize("batch_size", [0, -1, 101, math.nan, math.inf, "10"])
def test_batch_sizes_that_are_refused(kind, batch_size):
    with pytest.raises(InputError, match="batch_size"):
        sampler(kind, 100, batch_size)


@pytest.mark.parametrize("kind", ["fixed", "reshuffle"])
def test_only_poisson_batches_may_have_a_fractional_size(kind):
    assert PoissonSampler.of_batch_size(100, 12.5).sampling_probability == 0.125
    with pytest.raises(InputError, match="batch_size"):
        sampler(kind, 100, 12.5)


@pytest.mark.parametrize("probability", [0, 0.0, -0.1, 1.0001, math.nan, "0.1"])
def test_probabilities_that_are_refused(probability):
    with pytest.raises(InputError, match="sampling_probability"):
        PoissonSampler(100, probability)


def test_a_single_record_is_refused_by_the_classes_too():
    for build in (lambda: PoissonSampler(1, 0.5), lambda: FixedSizeSampler(1, 1), lambda: ReshuffledSampler(1, 1)):
        with pytest.raises(InputError, match="records"):
            build()


def test_fixed_batches_refuse_add_remove_neighbours():
    with pytest.raises(InputError, match="add-remove"):
        FixedSizeSampler(100, 10, Neighbours.ADD_REMOVE)
    with pytest.raises(InputError, match="add-remove"):
        sampler("fixed", 100, 10, "add-remove")


@pytest.mark.parametrize("step", [-1, 0.5, None])
def test_steps_that_are_refused(step):
    drawn = ReshuffledSampler(40, 10)
    for ask in (
        lambda: drawn.draw(step, SEEDED),
        lambda: Batches(drawn, SEEDED).batch(step),
        lambda: drawn.charge(step, releases(drawn)),
    ):
        with pytest.raises(InputError, match="step"):
            ask()


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_plans_that_are_refused(steps):
    drawn = PoissonSampler(100, 0.1)
    with pytest.raises(InputError, match="steps"):
        drawn.planned(steps, releases(drawn))


def test_samplers_by_name():
    assert sampler("poisson", 100, 10) == PoissonSampler(100, 0.1)
    assert sampler("fixed", 100, 10, "zero-out") == FixedSizeSampler(100, 10, Neighbours.ZERO_OUT)
    assert sampler("reshuffle", 100, 10, Neighbours.REPLACE_ONE) == ReshuffledSampler(100, 10, Neighbours.REPLACE_ONE)
    assert PoissonSampler(100, 0.1, "zero-out").neighbours is Neighbours.ZERO_OUT
    with pytest.raises(InputError, match="poisson, fixed, reshuffle"):
        sampler("shuffle", 100, 10)
    with pytest.raises(InputError, match="neighbouring"):
        sampler("poisson", 100, 10, "next door")
