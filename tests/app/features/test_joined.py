"""Features side by side: shares, texts, and what cannot be joined."""

from __future__ import annotations

import math

import pytest
import torch

from adadp.app.features import features_text, fixed_first, parse_features, whole_module
from adadp.app.features.joined import Joined, described
from adadp.errors import InputError

SHAPE = (1, 12, 12)
OWN = """
from dataclasses import dataclass
from torch import nn
from adadp.app.features import FixedStage

@dataclass(frozen=True)
class Flat(FixedStage):
    def output_shape(self, shape):
        return (shape[0] * shape[1] * shape[2],)

    def module(self, shape):
        return nn.Flatten()
"""


@pytest.fixture
def own(tmp_path):
    place = tmp_path / "mine.py"
    place.write_text(OWN)
    return place


def test_blocks_stand_side_by_side_with_the_same_share_of_a_norm_of_one(own):
    images = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(0))
    (stage,) = parse_features(f"{own}:Flat & scatter:groups=0")
    module, shape = whole_module((stage,), SHAPE, {})
    features = module(images)
    assert shape == stage.output_shape(SHAPE) == (144 + 81 * 9,)
    torch.testing.assert_close(features[:, :144], images.flatten(1) / images.flatten(1).norm(dim=1)[:, None] / 2**0.5)
    torch.testing.assert_close(features[:, 144:].norm(dim=1), torch.full((6,), math.sqrt(0.5)))
    assert module(torch.zeros(1, *SHAPE))[0, :144].abs().max() == 0


def test_and_binds_more_tightly_than_plus():
    stages = parse_features("scatter:J=1&scatter+pca:dim=5,noise_multiplier=9")
    assert isinstance(stages[0], Joined)
    assert [block.J for block in stages[0].blocks] == [1, 2]
    assert features_text(stages) == "scatter:J=1&scatter+pca:dim=5,noise_multiplier=9.0"
    assert fixed_first(stages)[0] == stages[:1]


@pytest.mark.parametrize(("text", "part"), [("scatter&centre", "released"), ("scatter&", "no features"), ("&", "no f")])
def test_what_cannot_be_joined_is_refused(text, part):
    with pytest.raises(InputError, match=part):
        parse_features(text)


def test_the_cache_sees_the_file_of_a_block(own):
    (before,) = parse_features(f"scatter&{own}:Flat")
    said = described(before)
    own.write_text(OWN + "\n# changed\n")
    (after,) = parse_features(f"scatter&{own}:Flat")
    assert described(after)[0] == said[0]
    assert described(after)[1] != said[1]
