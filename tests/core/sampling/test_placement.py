"""Secret places: uniform, of a public number, and such that one record more moves at most one other."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
import torch

from adadp.app.samplers import FixedSizeSampler, ReshuffledSampler
from adadp.randomness import SecureSource, SeededSource
from adadp.sampling import PoissonSampler, places


@pytest.mark.parametrize("rows", [1, 4, 64])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 63, 64, 65, 200])
def test_every_record_has_one_place(count, rows):
    holders = places(count, rows, SeededSource(3), step=5)
    assert len(holders) == max(count, rows)
    assert sorted(holders[holders >= 0].tolist()) == list(range(count))
    if count <= rows:
        assert int((holders < 0).sum()) == rows - count


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_one_record_more_moves_at_most_one_other(rows):
    """With free rows nobody; without, the one whose place it takes, and that one goes to the end."""
    for seed in range(20):
        for count in range(70):
            before, after = (places(number, rows, SeededSource(seed), step=1) for number in (count, count + 1))
            here = {int(record): row for row, record in enumerate(before) if record >= 0}
            there = {int(record): row for row, record in enumerate(after) if record >= 0}
            moved = [record for record, row in here.items() if there[record] != row]
            assert len(moved) <= (count >= rows)
            assert all(there[record] == count for record in moved)


@pytest.mark.parametrize(("count", "rows"), [(3, 3), (2, 3), (3, 2), (3, 1)])
def test_every_arrangement_is_equally_likely(count, rows):
    source = SecureSource()
    drawn = Counter(tuple(places(count, rows, source, step=0).tolist()) for _ in range(6000))
    wanted = set(permutations([*range(count), *[-1] * max(0, rows - count)]))
    assert set(drawn) == wanted
    for number in drawn.values():
        assert abs(number - 6000 / len(wanted)) < 5 * (6000 / len(wanted)) ** 0.5


def test_places_of_a_seed_are_those_of_its_step():
    one, again, other = (places(9, 12, SeededSource(1), step=step) for step in (2, 2, 3))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_usual_size_is_public_and_not_often_exceeded():
    poisson = PoissonSampler.of_batch_size(10_000, 100)
    assert poisson.usual_size == 110
    sizes = [len(poisson.draw(step, SeededSource(0))) for step in range(300)]
    assert 0.75 < sum(size <= 110 for size in sizes) / 300 < 0.95
    assert PoissonSampler.of_batch_size(50, 50).usual_size == 50
    assert PoissonSampler.of_batch_size(10**6, 1).usual_size == 2
    assert FixedSizeSampler(100, 10).usual_size == 10
    assert ReshuffledSampler(105, 10).usual_size == 10
    assert ReshuffledSampler(100, 10, "add-remove").usual_size == 13
