"""The optimizer ``rms``: against its formula, beside RMSprop, through checkpoints, and by name."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adadp.app import zoo
from adadp.app.config import TrainConfig
from adadp.app.optimizers.adaptive_rate import AdaptiveRate
from adadp.app.optimizers.building import make_optimizer
from adadp.app.runs.optimizer_state import flatten_optimizer, restore_optimizer
from adadp.app.train import fit
from adadp.errors import InputError
from adadp.schedules import Uniform

NUMBERS = st.floats(-10, 10, allow_subnormal=False).filter(lambda value: value == 0 or abs(value) > 1e-3)


def parameter(values, dtype=torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=dtype))


@settings(deadline=None, max_examples=50)
@given(st.lists(NUMBERS, min_size=1, max_size=6), st.floats(1e-3, 1.0), st.floats(0.01, 1.0))
def test_it_is_lines_22_to_26(gradients, lr, gamma):
    theta, average, value = parameter([1.0]), 0.0, 1.0
    optimizer = AdaptiveRate([theta], lr, gamma=gamma)
    for gradient in gradients:
        theta.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        average = (1 - gamma) * average + gamma * gradient**2
        value -= lr * gradient / math.sqrt(average + 1e-8)
        assert theta.item() == pytest.approx(value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_without_smoothing_it_is_rmsprop(weight_decay):
    torch.manual_seed(0)
    values, gradients = torch.randn(4, 3, dtype=torch.float64), torch.randn(5, 4, 3, dtype=torch.float64)
    ours, theirs = parameter(values.tolist()), parameter(values.tolist())
    pairs = [
        (ours, AdaptiveRate([ours], 0.1, smoothing=1e-30, weight_decay=weight_decay)),
        (theirs, torch.optim.RMSprop([theirs], lr=0.1, alpha=0.9, eps=1e-30, weight_decay=weight_decay)),
    ]
    for theta, optimizer in pairs:
        for gradient in gradients:
            theta.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_what_has_no_gradient_does_not_move():
    still, zero = parameter([1.0]), parameter([2.0])
    optimizer = AdaptiveRate([still, zero], 0.1)
    zero.grad = torch.zeros(1, dtype=torch.float64)
    optimizer.step()
    assert (still.item(), zero.item()) == (1.0, 2.0)
    assert optimizer.state[still] == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_squares_in_float32(dtype):
    """The square of 1e-4, and the smoothing term, are 0 in float16: the step would be infinite."""
    theta = parameter([1.0, 1.0], dtype)
    optimizer = AdaptiveRate([theta], 0.1)
    theta.grad = torch.tensor([1e-4, 0.0], dtype=dtype)
    optimizer.step()
    assert optimizer.state[theta]["squares"].dtype == torch.float32
    wanted = 1 - 0.1 * 1e-4 / math.sqrt(0.1 * 1e-8 + 1e-8)
    assert theta.tolist() == pytest.approx([wanted, 1.0], rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_goes_through_a_checkpoint_bit_for_bit(dtype):
    torch.manual_seed(1)
    start, gradients = torch.randn(5, dtype=dtype), torch.randn(6, 5, dtype=dtype)

    def steps(theta, optimizer, some):
        for gradient in some:
            theta.grad = gradient.clone()
            optimizer.step()

    whole = nn.Parameter(start.clone())
    optimizer = AdaptiveRate([whole], 0.1, gamma=0.2, weight_decay=0.01)
    steps(whole, optimizer, gradients[:3])
    tensors, json = flatten_optimizer(optimizer)
    tensors = {name: value.clone() for name, value in tensors.items()}
    resumed = nn.Parameter(whole.detach().clone())
    steps(whole, optimizer, gradients[3:])
    again = AdaptiveRate([resumed], 0.5)
    restore_optimizer(again, tensors, json)
    steps(resumed, again, gradients[3:])
    assert torch.equal(whole, resumed)
    assert torch.equal(optimizer.state[whole]["squares"], again.state[resumed]["squares"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.0}, "gamma must be greater than 0"),
        ({"gamma": 1.5}, "gamma must be at most 1"),
        ({"smoothing": 0.0}, "smoothing must be greater than 0"),
        ({"lr": -1.0}, "lr must not be negative"),
        ({"lr": math.nan}, "lr must be finite"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        AdaptiveRate([parameter([1.0])], **{"lr": 0.1, **options})


def test_a_closure_gives_its_loss():
    theta = parameter([3.0])

    def closure():
        theta.grad = None
        loss = theta.square().sum()
        loss.backward()
        return loss.item()

    assert AdaptiveRate([theta], 0.1).step(closure) == 9.0
    assert theta.item() < 3.0


def test_it_has_a_name():
    config = TrainConfig("python", noise_multiplier=1.0, delta=1e-4, optimizer="rms", lr=0.03, weight_decay=0.2)
    made = make_optimizer(nn.Linear(2, 2), config, Uniform(config.lr))
    assert isinstance(made, AdaptiveRate)
    wanted = {"lr": 0.03, "gamma": 0.1, "smoothing": 1e-8, "weight_decay": 0.2}
    assert {name: made.param_groups[0][name] for name in wanted} == wanted
    with pytest.raises(InputError, match="the optimizer rms takes none"):
        TrainConfig("python", noise_multiplier=1.0, delta=1e-4, optimizer="rms", momentum=0.9)


def test_a_whole_run_with_it(tmp_path):
    torch.manual_seed(0)
    data = zoo.load("cancer").train
    budget = {"epsilon": 2.0, "delta": 1e-4, "steps": 30, "batch_size": 56, "seed": 0}
    result = fit(nn.Linear(9, 2), data, out=tmp_path / "run", optimizer="rms", lr=0.05, **budget)
    assert 1.99 < result.epsilon_if_unseeded <= 2
    accuracy = (result.model(data[0]).argmax(1) == data[1]).double().mean().item()
    assert accuracy > 0.85
