"""Layers without a rule: by torch.func, or record by record."""

import pytest
import torch
from agreement import agrees, square
from torch import nn

from adadp.gradients import GradientEngine


class Pairs(nn.Module):
    """Bilinear forms have no rule."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Bilinear(3, 3, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.layer(x, x.flip(-1)))


def test_layers_without_a_rule_go_the_generic_way():
    agrees(Pairs(), (torch.randn(3, 3),), generic=["layer.weight", "layer.bias"])


def test_notes_say_what_goes_the_generic_way():
    with pytest.warns(UserWarning, match=r"layer \(Bilinear\): no closed form for bilinear") as caught:
        engine = GradientEngine(Pairs(), square, (torch.randn(3, 3),))
    assert [str(each.message) for each in caught] == list(engine.notes)
    assert caught[0].filename == __file__
