"""Who draws the batch of which step, when the size of the batches changes: everything against a plain enumeration."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.errors import InputError
from adadp.events import GaussianRelease, flatten
from adadp.randomness import SecureSource, SeededSource
from adadp.sampling import Batches, PoissonSampler, Stretch, Timetable, sampler

RECORDS = 24
WAYS = [
    ("poisson", "add-remove"),
    ("poisson", "replace-one"),
    ("fixed", "replace-one"),
    ("reshuffle", "zero-out"),
    ("reshuffle", "add-remove"),
]
each_way = pytest.mark.parametrize("way", WAYS, ids=" ".join)
batch_sizes = st.lists(st.sampled_from([3, 5, 8, 12, 24]), min_size=1, max_size=6)


def timetable_of(way, sizes) -> Timetable:
    sampling, neighbours = way
    return Timetable.of(*(sampler(sampling, RECORDS, size, neighbours) for size in sizes))


def enumerated(way, sizes, epochs):
    """(sampler, epoch, round, position in the round) of every step of so many epochs, one after the other."""
    sampling, neighbours = way
    rows, rounds = [], 0
    for epoch in range(epochs):
        drawn = sampler(sampling, RECORDS, sizes[min(epoch, len(sizes) - 1)], neighbours)
        for step in range(drawn.steps_per_epoch):
            together = sampling == "reshuffle"
            rows.append((drawn, epoch, rounds if together else rounds + step, step if together else 0))
        rounds = rows[-1][2] + 1
    return rows


def release_of(way, sizes):
    """A release for every step whose noise depends on the epoch, and on which half of it the step is in."""
    found = timetable_of(way, sizes)

    def release(step):
        epoch = found.epoch_of(step)
        late = way[0] != "reshuffle" and step > found.first_step(epoch)
        return GaussianRelease(2.0 + epoch + 0.5 * late, found.stretches[0].sampler.neighbours)

    return release


@each_way
@given(sizes=batch_sizes)
def test_epochs_rounds_and_steps_are_those_of_an_enumeration(way, sizes):
    found, rows = timetable_of(way, sizes), enumerated(way, sizes, len(sizes) + 2)
    for step, (drawn, epoch, number, position) in enumerate(rows):
        assert found.at(step).sampler == drawn
        assert found.epoch_of(step) == epoch
        assert found.round_of(step) == (number, position)
        assert found.rounds_before(step) == len({row[2] for row in rows[:step]})
        following = [other for other in range(step, len(rows)) if rows[other][3] == 0]
        assert found.next_round(step) == (following[0] if following else len(rows))
    firsts = [next(step for step, row in enumerate(rows) if row[1] == epoch) for epoch in range(len(sizes) + 2)]
    assert [found.first_step(epoch) for epoch in range(len(sizes) + 2)] == firsts


@each_way
@given(sizes=batch_sizes)
def test_whether_steps_share_a_draw_is_known_of_the_whole_run(way, sizes):
    rows = enumerated(way, sizes, len(sizes))
    assert timetable_of(way, sizes).shares_draws == any(row[3] for row in rows)


@each_way
@given(sizes=batch_sizes, data=st.data())
def test_what_is_charged_step_by_step_is_what_was_planned(way, sizes, data):
    found, release = timetable_of(way, sizes), release_of(way, sizes)
    rows = enumerated(way, sizes, len(sizes) + 2)
    steps = data.draw(st.integers(1, len(rows)))
    charges = [found.charge(step, release) for step in range(steps)]
    assert [charge is None for charge in charges] == [row[3] > 0 for row in rows[:steps]]
    assert Counter(charge for charge in charges if charge is not None) == flatten(found.planned(steps, release))
    for step, row in enumerate(rows[:steps]):
        if charges[step] is not None:
            last = step if way[0] != "reshuffle" else step + row[0].steps_per_epoch - 1
            assert charges[step] == row[0].amplify(release(step))
            assert {release(each) for each in range(step, last + 1)} == {release(step)}


@given(sizes=batch_sizes, data=st.data())
def test_a_round_that_is_entered_again_is_paid_again(sizes, data):
    way = ("reshuffle", "zero-out")
    found, release = timetable_of(way, sizes), release_of(way, sizes)
    rows = enumerated(way, sizes, len(sizes) + 1)
    step = data.draw(st.integers(0, len(rows) - 1))
    assert found.charge(step, release, resumed=True) == rows[step][0].amplify(release(step))


@pytest.mark.parametrize("source", [SeededSource(3), SecureSource()], ids=["seeded", "secure"])
@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one", "add-remove"])
@settings(max_examples=30)
@given(sizes=batch_sizes)
def test_every_reshuffled_epoch_holds_every_record_once_whatever_its_batches(source, neighbours, sizes):
    found = timetable_of(("reshuffle", neighbours), sizes)
    run = Batches(found, source)
    for epoch in range(len(sizes) + 1):
        batches = [run.batch(step) for step in range(found.first_step(epoch), found.first_step(epoch + 1))]
        assert torch.equal(torch.cat(batches).sort().values, torch.arange(RECORDS))


@pytest.mark.parametrize("way", [each for each in WAYS if each[0] != "reshuffle"], ids=" ".join)
def test_random_numbers_are_never_used_twice(way):
    """A sampler that comes back after a change draws other batches than it did at first."""
    sampling, neighbours = way
    one, other = (sampler(sampling, 400, size, neighbours) for size in (40, 100))
    found = Timetable.of(one, other, one, other)
    run = Batches(found, SeededSource(3))
    batches = [tuple(run.batch(step).tolist()) for step in range(found.first_step(4))]
    assert len(batches) == 2 * (10 + 4)
    assert len(set(batches)) == len(batches)
    overlaps = [len(set(a) & set(b)) for a, b in zip(batches[:10], batches[14:24], strict=True)]
    assert max(overlaps) < 20  # of 40; 4 are expected by chance


def test_reshuffled_epochs_with_the_same_batches_are_dealt_anew_after_a_change():
    one, other = (sampler("reshuffle", 400, size) for size in (200, 100))
    found = Timetable.of(one, other, one)
    run = Batches(found, SeededSource(3))
    first = run.batch(0)
    assert not torch.equal(run.batch(found.first_step(2)), first)


@pytest.mark.parametrize("way", [("reshuffle", "zero-out"), ("reshuffle", "add-remove")], ids=" ".join)
@pytest.mark.parametrize("sizes", [[12, 5, 8], [24, 5, 8]], ids=["several batches at first", "one batch at first"])
def test_a_secure_epoch_is_taken_up_where_it_was_also_after_a_change(way, sizes):
    found = timetable_of(way, sizes)
    middle = found.first_step(1) + 2
    first, second = (Batches(found, SecureSource()) for _ in range(2))
    batches = [first.batch(step) for step in range(middle)][found.first_step(1) :]
    second.restore(first.state())
    batches += [second.batch(step) for step in range(middle, found.first_step(2))]
    assert torch.equal(torch.cat(batches).sort().values, torch.arange(RECORDS))
    with pytest.raises(InputError, match="not at hand"):
        Batches(found, SecureSource()).batch(middle)


def test_equal_samplers_one_after_the_other_are_one_stretch():
    one, other = sampler("poisson", 100, 10), sampler("poisson", 100, 25)
    found = Timetable.of(one, one, other, one)
    assert found.stretches == (Stretch(one, 0, 0, 0), Stretch(other, 2, 20, 20), Stretch(one, 3, 24, 24))


def test_the_true_number_of_records_is_put_into_every_stretch():
    found = Timetable.of(sampler("poisson", 100, 10), sampler("poisson", 100, 25)).for_records(77)
    expected = [PoissonSampler(77, 0.1), PoissonSampler(77, 0.25)]
    assert [each.sampler for each in found.stretches] == expected
    assert found.first_step(2) == 14
    with pytest.raises(InputError, match="another number"):
        Timetable.of(sampler("fixed", 100, 10)).for_records(77)


@pytest.mark.parametrize("step", [-1, 0.5, None])
def test_steps_are_counted_from_0(step):
    with pytest.raises(InputError, match="step must be"):
        timetable_of(("poisson", "add-remove"), [3, 5]).at(step)
