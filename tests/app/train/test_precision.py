"""Runs of compiled models and in half precision."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from adadp import fit
from adadp.gradients.model_checks import COMPILED

DATA = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 2
SETTINGS = {"noise_multiplier": 1.0, "delta": 1e-3, "steps": 2, "batch_size": 40, "seed": 3, "method": "dpsgd"}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def compiled(which):
    if which == "the model":
        return torch.compile(network(), backend="eager")
    model = network()
    model[0] = torch.compile(model[0], backend="eager")
    return model


@pytest.mark.parametrize("which", ["the model", "a part"])
def test_a_compiled_model_trains_as_it_does_uncompiled(which, tmp_path):
    plain = fit(network(), DATA, **SETTINGS).network.state_dict()
    model = compiled(which)
    result = fit(model, DATA, out=tmp_path / "run", **SETTINGS)
    assert COMPILED in result.certificate["notes"]
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert list(saved) == sorted(plain)
    for name, value in plain.items():
        assert torch.equal(saved[name], value)
    assert torch.equal(dict(model.named_parameters()).popitem()[1], plain["2.bias"])  # it is the caller's that learnt
    fresh = network()
    fresh.load_state_dict(saved)
    assert torch.allclose(fresh(DATA[0]), model(DATA[0]))


def test_a_run_under_autocast_is_near_the_one_in_full_precision():
    """The same batches and noise: what differs is what half precision rounds, and something must."""
    full, half = (fit(network(), DATA, **SETTINGS, precision=each).network for each in ("float32", "bf16"))
    away = float(
        nn.utils.parameters_to_vector(full.parameters())
        .sub(nn.utils.parameters_to_vector(half.parameters()))
        .detach()
        .abs()
        .max()
    )
    assert 0 < away < 1e-3
    assert {value.dtype for value in half.parameters()} == {torch.float32}


def test_a_model_in_half_precision_takes_data_in_full():
    result = fit(network().bfloat16(), DATA, test=(DATA[0] + 1, DATA[1]), **SETTINGS)
    assert {value.dtype for value in result.network.parameters()} == {torch.bfloat16}
    start = network().bfloat16().state_dict()
    assert not all(torch.equal(value, start[name]) for name, value in result.network.state_dict().items())
