"""Ranges of columns as a stage of a run: its bound, its scaling, and that a table's own scaling says the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from releasing import learned

from adadp.app.features import parse_features
from adadp.app.features.private_bounds import Bounds
from adadp.app.owndata.columns import position
from adadp.errors import InputError


def table(records: int = 3000) -> torch.Tensor:
    """Two features with a place for a third between them, then the raw values of the features 1 and 2."""
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(records, 3, generator=generator, dtype=torch.float64)
    features[:, 1:] = 0
    raw = torch.stack([torch.linspace(-30, 90, records, dtype=torch.float64), torch.ones(records) * 5], dim=1)
    raw[7, 0] = math.nan
    return torch.cat([features, raw], dim=1)


STAGE = Bounds(columns=(1, 2), noise_multiplier=2.0)


def test_ranges_are_found_through_the_noise():
    assert learned(STAGE, table(), seed=1)["ranges"].tolist() == [[-32.0, 128.0], [4.0, 8.0]]


def test_values_are_scaled_into_their_places_like_a_declared_column():
    records = table()
    features = STAGE.module(learned(STAGE, records, seed=1))(records)
    assert features.shape == (3000, 3)
    assert features.dtype == torch.float32
    assert torch.equal(features[:, 0], records[:, 0].float())
    for place, (low, high) in ((1, (-32.0, 128.0)), (2, (4.0, 8.0))):
        expected = 2 * position(records[:, place + 2].numpy(), low, high) - 1
        assert np.allclose(features[:, place], np.nan_to_num(expected), atol=1e-6)
    assert features[7, 1] == 0, "a missing value is the middle of the range"


def test_values_beyond_the_range_are_clipped():
    module = STAGE.module({"ranges": torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)})
    row = torch.tensor([[0.5, 0, 0, 1e9, -math.inf]], dtype=torch.float64)
    assert module(row).tolist() == [[0.5, 1.0, -1.0]]


def test_one_record_moves_the_query_by_its_bound():
    records = table()
    difference = STAGE.query(records)["histograms"] - STAGE.query(records[1:])["histograms"]
    assert difference.norm() == pytest.approx(math.sqrt(2))
    assert difference.norm() <= STAGE.l2_bound


def test_it_is_read_back_from_its_text():
    assert parse_features(str(STAGE)) == (STAGE,)
    assert parse_features("bounds:columns=4") == (Bounds(columns=(4,)),)


@pytest.mark.parametrize("shape", [(3,), (4,), (3, 5), ()])
def test_records_without_raw_values_are_refused(shape):
    with pytest.raises(InputError, match="bounds cannot read"):
        STAGE.output_shape(shape)


@pytest.mark.parametrize("options", [{"columns": ()}, {"columns": (1,), "noise_multiplier": 0.0}, {"columns": (-1,)}])
def test_bad_options_are_refused(options):
    with pytest.raises(InputError):
        Bounds(**options)


def test_without_noise_there_is_no_multiplier():
    with pytest.raises(InputError, match="noise of bounds"):
        _ = Bounds(columns=(1,)).known_noise_multiplier
