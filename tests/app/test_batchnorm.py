"""Batch normalisation replaced by group normalisation."""

import pytest
from torch import nn

from adadp import replace_batchnorm
from adadp.errors import InputError


def test_replace_batchnorm():
    inner = nn.BatchNorm2d(6, eps=0.1).double()
    nn.init.normal_(inner.weight)
    last = nn.BatchNorm2d(7, affine=False)
    model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48), nn.Sequential(nn.Conv2d(48, 6, 1), inner), last)
    names = [name for name, _ in model.named_parameters()]
    assert replace_batchnorm(model, groups=32) is model
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    assert [name for name, _ in model.named_parameters()] == names
    new = model[2][1]
    assert (new.num_groups, new.num_channels, new.eps) == (2, 6, 0.1)
    assert new.weight is inner.weight
    assert new.bias is inner.bias
    assert model[1].num_groups == 16
    assert model[3].weight is None
    assert model[3].num_groups == 1


def test_replace_batchnorm_keeps_sharing_mode_and_a_lone_layer():
    shared = nn.BatchNorm1d(4).eval()
    model = replace_batchnorm(nn.Sequential(shared, nn.Linear(4, 4), shared))
    assert model[0] is model[2]
    assert not model[0].training
    alone = replace_batchnorm(nn.BatchNorm1d(4), groups=2)
    assert isinstance(alone, nn.GroupNorm)
    assert alone.num_groups == 2
    with pytest.raises(InputError, match="groups"):
        replace_batchnorm(nn.Sequential(), groups=0)
