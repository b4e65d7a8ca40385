"""The mean of the records released: what one record moves, and what is subtracted."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from releasing import learned

from adadp.app.features.centre import Centre


def records(count: int = 3000) -> torch.Tensor:
    """Records of very different length around a common direction."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(count, 4, 5, generator=generator) + 2
    return values * torch.rand(count, 1, 1, generator=generator).mul(9).exp()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([None, 0.0, math.nan, math.inf, 1e30, 1e-30, 1e-44]))
def test_one_record_moves_the_query_by_at_most_its_bound_and_reaches_it(seed, value):
    stage = Centre(noise_multiplier=1.0)
    data = torch.randn(20, 4, 5, generator=torch.Generator().manual_seed(seed))
    if value is not None:
        data[7] = value
    moved = (stage.query(data)["sum"] - stage.query(torch.cat([data[:7], data[8:]]))["sum"]).norm()
    assert moved <= stage.l2_bound
    if value in (None, 1e30):
        assert moved > 0.99999 * stage.l2_bound


def test_replacing_a_record_moves_it_by_what_is_claimed():
    stage = Centre(noise_multiplier=1.0)
    one, opposite = torch.ones(1, 7), -torch.ones(1, 7)
    for other in (opposite, torch.tensor([[1.0, -1, 0, 0, 0, 0, 0]])):
        moved = (stage.query(one)["sum"] - stage.query(other)["sum"]).norm()
        assert moved <= stage.replaced * stage.l2_bound
    assert (stage.query(one)["sum"] - stage.query(opposite)["sum"]).norm() == pytest.approx(2.0)


def test_the_mean_of_unit_records_is_subtracted():
    data, stage = records(), Centre(noise_multiplier=0.01)
    unit = data / data.flatten(1).norm(dim=1)[:, None, None]
    found = learned(stage, data)
    torch.testing.assert_close(found["mean"], unit.mean(0).flatten(), atol=1e-4, rtol=0)
    expected = unit - unit.mean(0)
    expected /= expected.flatten(1).norm(dim=1)[:, None, None]
    features = stage.module(found)(data)
    torch.testing.assert_close(features, expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(stage.module(found)(data[5:6]), features[5:6])
    strange = torch.full((1, 4, 5), math.nan)
    mean = found["mean"] / found["mean"].norm()
    torch.testing.assert_close(stage.module(found)(strange).flatten(), -mean)


def test_a_count_that_noise_drowns_leaves_the_mean_out():
    data = records(40)
    assert not learned(Centre(noise_multiplier=10.0), data)["mean"].any()
    assert learned(Centre(noise_multiplier=0.5), data)["mean"].any()
