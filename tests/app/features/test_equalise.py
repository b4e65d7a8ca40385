"""Shortened directions: what one record moves, which directions are found, and what becomes of records."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from releasing import learned, released

from adadp.app.features import parse_features
from adadp.app.features.equalise import Equalise
from adadp.errors import InputError


def maps(records: int = 400, channels: int = 3, side: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(records, channels, side, side, generator=torch.Generator().manual_seed(seed))


def alike(records: int = 2000, values: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    """Records that share one long direction, and the direction."""
    generator = torch.Generator().manual_seed(5)
    common = torch.nn.functional.normalize(torch.randn(values, generator=generator), dim=0)
    return torch.randn(records, values, generator=generator) * 0.1 + 2 * common, common


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1e-30, 1.0, 1e30]), st.sampled_from([2048, 24, 9, 3]))
def test_one_record_moves_the_query_by_at_most_its_bound(seed, scale, size):
    stage = Equalise(noise_multiplier=1.0, size=size)
    records = maps(20, seed=seed) * scale
    difference = stage.query(records)["covariance"] - stage.query(records[1:])["covariance"]
    assert difference.norm() <= stage.l2_bound


def test_a_smooth_record_reaches_the_bound_in_few_frequencies():
    flat = torch.ones(1, 1, 8, 8)
    assert Equalise(noise_multiplier=1.0, size=4).query(flat)["covariance"].norm().item() == pytest.approx(
        1.0, abs=1e-12
    )


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_zero_or_non_finite_record_counts_as_zero(value):
    stage, records = Equalise(noise_multiplier=1.0), maps(6)
    strange = torch.cat([records, torch.full((1, 3, 4, 4), value)])
    torch.testing.assert_close(
        stage.query(strange)["covariance"], stage.query(records)["covariance"], atol=1e-14, rtol=0
    )
    module = stage.module(learned(stage, records))
    assert module(strange)[-1].abs().max() == 0


def test_all_frequencies_are_the_whole_record():
    """With room for all of them the transform is a rotation: the eigenvalues are those of the records."""
    records = maps(300)
    rows = torch.nn.functional.normalize(records.flatten(1).double())
    true = torch.linalg.eigvalsh(rows.T @ rows).flip(0)
    for size in (48, 2048):
        stage = Equalise(noise_multiplier=1e-6, size=size)
        found = learned(stage, records)
        assert len(found["factors"]) == 48
        edge = 1e-6 * stage.l2_bound * (2 * 48) ** 0.5
        torch.testing.assert_close(edge / found["factors"].double() ** 2, true, rtol=1e-3, atol=1e-4)


def test_the_lowest_frequencies_see_what_is_smooth():
    smooth = torch.nn.functional.interpolate(maps(300, side=2), size=8, mode="bilinear") + 0.01 * maps(300, side=8)
    found = learned(Equalise(noise_multiplier=0.5, size=12), smooth)
    rows = torch.nn.functional.normalize(smooth.flatten(1))
    kept = (rows @ found["directions"].T).square().sum(1).mean()
    assert found["directions"].shape[0] <= 12
    assert kept > 0.5
    identity = found["directions"] @ found["directions"].T
    torch.testing.assert_close(identity, torch.eye(len(identity)), atol=1e-5, rtol=0)


def test_the_direction_all_records_share_is_found_through_the_noise_and_shortened():
    records, common = alike()
    stage = Equalise(noise_multiplier=5.0)
    found = learned(stage, records)
    assert found["factors"][0] < 0.2
    assert (found["factors"][1:] > 0.9).all()  # what fluctuates a little over the edge is hardly changed
    assert float((found["directions"][0] @ common).abs()) > 0.99
    module = stage.module(found)
    before = torch.nn.functional.normalize(records)
    after = module(records)
    assert (after @ common).abs().mean() < 0.3 * (before @ common).abs().mean()
    rest = before - (before @ found["directions"].T) @ found["directions"]
    torch.testing.assert_close(after - (after @ found["directions"].T) @ found["directions"], rest, atol=1e-5, rtol=0)


def test_where_nothing_stands_out_records_pass():
    stage = Equalise(noise_multiplier=1e4)
    records = maps(50)
    found = learned(stage, records)
    assert len(found["factors"]) == 0
    expected = torch.nn.functional.normalize(records.flatten(1)).reshape(records.shape)
    torch.testing.assert_close(stage.module(found)(records), expected)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.1, 100.0))
def test_features_are_never_longer_than_1_and_each_record_is_by_itself(seed, noise_multiplier):
    records = maps(60, seed=seed) * 1e3
    stage = Equalise(noise_multiplier=noise_multiplier)
    module = stage.module(learned(stage, records, seed % 1000))
    features = module(records)
    assert features.shape == records.shape
    assert features.dtype == torch.float32
    assert features.flatten(1).norm(dim=1).max() <= 1 + 1e-6
    torch.testing.assert_close(module(records[7:8]), features[7:8], atol=1e-6, rtol=0)


def test_noise_is_that_of_the_multiplier():
    stage = Equalise(noise_multiplier=3.0)
    noise = released(stage, torch.zeros(2, 100))["covariance"]
    assert noise.std().item() == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(
    "text", ["equalise", "equalise:noise_multiplier=20.0", "equalise:noise_multiplier=2.5,size=100"]
)
def test_it_is_written_as_it_is_read(text):
    (stage,) = parse_features(text)
    assert str(stage) == text
    assert str(stage.with_noise(7.0)).startswith("equalise:noise_multiplier=7.0")


@pytest.mark.parametrize(
    "options", [{"noise_multiplier": 0.0}, {"noise_multiplier": -1.0}, {"size": 1}, {"size": 9000}]
)
def test_wrong_settings_are_refused(options):
    with pytest.raises(InputError):
        Equalise(**options)


def test_records_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="flat records of 3000"):
        Equalise().output_shape((3000,))
    with pytest.raises(InputError, match="300 channels"):
        Equalise(size=200).output_shape((300, 4, 4))
    assert Equalise().output_shape((243, 8, 8)) == (243, 8, 8)
    with pytest.raises(InputError, match="noise of equalise"):
        _ = Equalise().known_noise_multiplier
