"""Bounds of columns from noisy counts over public bins."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.app.features.private_bounds import BINS, DEFAULT, EDGES, Bounds, ranges
from adadp.errors import InputError

values = st.floats(allow_nan=True, allow_infinity=True)


def stage_of(columns: int) -> Bounds:
    return Bounds(columns=tuple(range(columns)))


def counts_of(table: torch.Tensor) -> torch.Tensor:
    """The counts of raw values, which come behind as many features."""
    records = torch.cat([torch.zeros(table.shape, dtype=table.dtype), table], dim=1)
    return stage_of(table.shape[1]).query(records)["histograms"]


@st.composite
def tables(draw):
    width = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(values, min_size=width, max_size=width), min_size=1, max_size=12))
    return torch.tensor(rows, dtype=torch.float64)


@given(tables(), st.data())
def test_one_record_moves_the_counts_by_at_most_the_bound(table, data):
    removed = data.draw(st.integers(0, len(table) - 1))
    without = torch.cat([table[:removed], table[removed + 1 :]])
    moved = counts_of(table) - counts_of(without)
    assert (moved >= 0).all()
    assert float(torch.linalg.vector_norm(moved)) <= stage_of(table.shape[1]).l2_bound
    assert (moved.sum(dim=1) == (~table[removed].isnan()).double()).all()


def test_the_bound_is_reached():
    moved = counts_of(torch.tensor([[1.0, -5.0, 0.0]]))
    assert float(torch.linalg.vector_norm(moved)) == pytest.approx(stage_of(3).l2_bound)


@given(st.integers(1, 10**4))
def test_the_bound_is_never_rounded_down(columns):
    bound = stage_of(columns).l2_bound
    assert Fraction(bound) ** 2 >= columns
    assert bound == pytest.approx(math.sqrt(columns), rel=1e-15)


@given(st.floats(allow_nan=False))
def test_a_value_counts_in_the_bin_that_holds_it(value):
    (counts,) = counts_of(torch.tensor([[value]], dtype=torch.float64))
    bin_ = int(counts.argmax())
    assert counts.sum() == 1
    assert EDGES[bin_] <= value or bin_ == 0
    assert value < EDGES[bin_ + 1] or bin_ == len(counts) - 1


def test_the_bins_are_signed_powers_of_two():
    assert len(EDGES) == BINS + 1 == 122
    assert list(EDGES) == sorted(EDGES)
    assert (EDGES[-1], EDGES[0], EDGES[61], EDGES[60]) == (2.0**40, -(2.0**40), 2.0**-20, -(2.0**-20))


@given(tables())
def test_without_noise_every_value_within_the_bins_is_inside_the_bounds(table):
    for column, (low, high) in zip(table.T, ranges(counts_of(table), 0.0), strict=True):
        known = column[~column.isnan()].clamp(EDGES[0], EDGES[-1])
        assert ((low <= known) & (known <= high)).all()
        assert low < high


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([0.0, 0.0], (-(2.0**-20), 2.0**-20)),
        ([3.0, 5.0], (2.0, 8.0)),
        ([-3.0, 1.0], (-4.0, 2.0)),
        ([math.inf, 1.0], (1.0, 2.0**40)),
        ([-(2.0**50)], (-(2.0**40), -(2.0**39))),
        ([math.nan], DEFAULT),
        ([], DEFAULT),
    ],
)
def test_bounds_without_noise(column, expected):
    assert ranges(counts_of(torch.tensor(column, dtype=torch.float64)[:, None]), 0.0) == [expected]


def noisy_bounds(columns: np.ndarray, std: float, seed: int) -> list[tuple[float, float]]:
    counts = counts_of(torch.from_numpy(columns))
    noise = torch.randn(counts.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return ranges(counts + std * noise, std)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.floats(-1000, 1000), st.floats(0.01, 100), st.floats(1, 30))
def test_with_noise_the_range_of_usual_columns_is_found(seed, mean, spread, std):
    """Nearly all of the values are inside, and the range is at most a few powers of two wider than they are."""
    random = np.random.default_rng(seed)
    columns = np.stack([random.normal(mean, spread, 20_000), random.lognormal(mean / 200, 1.0, 20_000)], axis=1)
    for column, (low, high) in zip(columns.T, noisy_bounds(columns, std, seed), strict=True):
        outside = np.mean((column < low) | (column > high))
        assert outside <= 121 * 10 * std / len(column)
        assert outside <= 0.05
        reach = np.abs(column).max()
        assert max(-low, high) <= 2 * reach


def test_noise_alone_gives_the_public_default():
    empty = np.full((50, 2), np.nan)
    answers = [noisy_bounds(empty, 7.0, seed) == [DEFAULT, DEFAULT] for seed in range(300)]
    assert sum(answers) >= 295


def test_a_single_record_is_not_seen_through_the_noise():
    """An outlier of one record must not stretch the range: 300 seeds, at most a few by chance."""
    column = np.concatenate([np.linspace(1, 1.9, 1000), [1e9]])[:, None]
    stretched = [noisy_bounds(column, 5.0, seed)[0][1] > 2**20 for seed in range(300)]
    assert sum(stretched) <= 5


def test_shapes_and_noise_are_checked():
    with pytest.raises(InputError, match="bounds cannot read"):
        stage_of(2).query(torch.zeros(5, 3))
    with pytest.raises(InputError, match="noise_std"):
        ranges(torch.zeros(2, BINS), -1.0)
