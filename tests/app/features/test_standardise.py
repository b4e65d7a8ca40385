"""Channel statistics released privately: what one record moves, what is learned, and what is done with it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from releasing import learned

from adadp.app.features import parse_features
from adadp.app.features.standardise import Standardise
from adadp.errors import InputError

SHAPE = (5, 4, 4)


def records(count: int = 4000) -> torch.Tensor:
    """Channels of different level and spread."""
    values = torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(0))
    spread = torch.tensor([0.4, 1.0, 3.0, 0.5, 2.0])[:, None, None]
    return values * spread + torch.tensor([0.0, 1.0, -1.0, 0.2, 0.0])[:, None, None]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["normal", "constant", "one channel", "one value", "zero", "nan", "inf", "huge", "tiny"]),
)
def test_one_record_moves_the_query_by_at_most_its_bound(seed: int, kind: str) -> None:
    stage = Standardise(noise_multiplier=1.0)
    data = torch.randn(20, *SHAPE, generator=torch.Generator().manual_seed(seed))
    one = data[7]
    if kind == "constant":
        one.fill_(1.0)
    elif kind == "one channel":
        one[1:] = 0
        one[0] = 1.0
    elif kind == "one value":
        one.zero_()[2, 1, 1] = -5.0
    elif kind in ("zero", "nan", "inf", "huge", "tiny"):
        one.fill_({"zero": 0.0, "nan": math.nan, "inf": math.inf, "huge": 1e30, "tiny": 1e-30}[kind])
    without = torch.cat([data[:7], data[8:]])
    moved = float((stage.query(data)["statistics"] - stage.query(without)["statistics"]).norm())
    assert moved <= stage.l2_bound
    if kind == "one channel":
        assert moved > 0.999 * stage.l2_bound, "the bound is reached"


def test_a_record_too_small_for_its_square_does_not_pass_the_bound() -> None:
    stage = Standardise(noise_multiplier=1.0)
    shape = torch.tensor([[1.0, 0.7, 0.3, 0.0]], dtype=torch.float64)
    for tenth in range(0, 3200, 3):
        found = float(stage.query(shape * 10.0 ** (-tenth / 10))["statistics"].norm())
        assert found <= stage.l2_bound


def test_statistics_are_those_of_records_of_unit_norm() -> None:
    data = records()
    unit = data / data.flatten(1).norm(dim=1)[:, None, None, None]
    found = learned(Standardise(noise_multiplier=1e-3), data)
    torch.testing.assert_close(found["mean"], unit.mean((0, 2, 3)), rtol=0, atol=1e-5)
    torch.testing.assert_close(1 / found["scale"] ** 2, unit.var((0, 2, 3), unbiased=False), rtol=1e-3, atol=0)


def test_channels_come_out_alike_through_the_noise_and_records_have_the_norm() -> None:
    data = records()
    stage = Standardise(noise_multiplier=5.0, norm=3.0)
    features = stage.module(learned(stage, data))(data)
    assert features.shape == data.shape
    torch.testing.assert_close(features.flatten(1).norm(dim=1), torch.full((4000,), 3.0))
    spread = features.std((0, 2, 3))
    assert spread.max() / spread.min() < 1.3
    assert (data.std((0, 2, 3)).max() / data.std((0, 2, 3)).min()) > 7
    assert (features.mean((0, 2, 3)).abs() < 0.1 * spread).all()
    torch.testing.assert_close(stage.module(learned(stage, data))(data[3:4]), features[3:4])


def test_a_channel_that_is_always_the_same_is_not_blown_up() -> None:
    data = records()
    data[:, 0] = 0
    stage = Standardise(noise_multiplier=5.0)
    features = stage.module(learned(stage, data))(data)
    assert features[:, 0].abs().mean() < features[:, 1].abs().mean()


def test_few_records_are_left_as_they_are() -> None:
    data = records(10)
    stage = Standardise(noise_multiplier=50.0)
    found = learned(stage, data)
    assert found["mean"].tolist() == [0.0] * 5
    assert found["scale"].tolist() == [1.0] * 5


def test_vectors_have_channels_of_one_value() -> None:
    data = torch.randn(3000, 6, generator=torch.Generator().manual_seed(1)) * torch.arange(1.0, 7.0)
    stage = Standardise(noise_multiplier=2.0)
    features = stage.module(learned(stage, data))(data)
    assert features.shape == (3000, 6)
    assert features.std(0).max() / features.std(0).min() < 1.4  # 1.32 without noise, and 6 before


@pytest.mark.parametrize(
    "text", ["standardise", "standardise:noise_multiplier=20.0", "standardise:noise_multiplier=2.5,norm=4.0"]
)
def test_text(text: str) -> None:
    (stage,) = parse_features(text)
    assert str(stage) == text


def test_bad_input() -> None:
    with pytest.raises(InputError, match="noise of standardise"):
        _ = Standardise().known_noise_multiplier
    for options in ({"noise_multiplier": 0.0}, {"norm": 0.0}, {"noise_multiplier": -1.0}):
        with pytest.raises(InputError):
            Standardise(**options)
    with pytest.raises(InputError, match="single numbers"):
        Standardise(noise_multiplier=1.0).output_shape(())
