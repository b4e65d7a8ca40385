"""The optimizer ``adambc``: against its formula and the paper's, beside Adam, on pure noise, through checkpoints."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adadp.app.config import TrainConfig
from adadp.app.optimizers.adambc import AdamBC
from adadp.app.optimizers.building import make_optimizer
from adadp.app.runs.optimizer_state import flatten_optimizer, restore_optimizer
from adadp.errors import InputError
from adadp.schedules import Uniform

NUMBERS = st.floats(-10, 10, allow_subnormal=False).filter(lambda value: value == 0 or abs(value) > 1e-3)
SIZES = st.floats(0, 5, allow_subnormal=False)


def parameter(values, dtype=torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=dtype))


def moved(theta: nn.Parameter, optimizer: AdamBC, gradients, deviations) -> None:
    for gradient, deviation in zip(gradients, deviations, strict=True):
        theta.grad = torch.as_tensor(gradient, dtype=theta.dtype).reshape(theta.shape).clone()
        optimizer.set_noise(deviation)
        optimizer.step()


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(NUMBERS, SIZES), min_size=1, max_size=7),
    st.floats(1e-3, 1.0),
    st.tuples(st.floats(0, 0.99), st.floats(0, 0.999)),
    st.floats(1e-10, 1.0),
    st.floats(0, 0.5),
)
def test_it_is_its_formula_for_noise_that_changes(steps, lr, betas, floor, decay):
    theta, value, mean, squares, noise = parameter([1.0]), 1.0, 0.0, 0.0, 0.0
    optimizer = AdamBC([theta], lr, betas=betas, floor=floor, weight_decay=decay)
    for t, (gradient, deviation) in enumerate(steps, start=1):
        moved(theta, optimizer, [[gradient]], [deviation])
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        squares = betas[1] * squares + (1 - betas[1]) * gradient**2
        noise = betas[1] * noise + (1 - betas[1]) * deviation**2
        divisor = max((squares - noise) / (1 - betas[1] ** t), floor)
        value = (1 - lr * decay) * value - lr * mean / (1 - betas[0] ** t) / math.sqrt(divisor)
        assert theta.item() == pytest.approx(value, rel=1e-7, abs=1e-7)


def test_with_constant_noise_it_is_the_algorithm_of_the_paper():
    """Tang et al. 2024: m^ / sqrt(max(v^ - (sigma C / B)^2, gamma')), betas .9 and .999."""
    torch.manual_seed(0)
    noise_multiplier, clip, batch, floor, lr = 2.0, 0.5, 64, 1e-5, 0.01
    phi = (noise_multiplier * clip / batch) ** 2
    gradients = math.sqrt(phi) * torch.randn(50, 40, dtype=torch.float64) + torch.linspace(0, 0.05, 40).double()
    theta = parameter([0.0] * 40)
    optimizer = AdamBC([theta], lr, floor=floor)
    wanted = mean = squares = torch.zeros(40, dtype=torch.float64)
    at_floor = 0
    for t, gradient in enumerate(gradients, start=1):
        moved(theta, optimizer, [gradient], [noise_multiplier * clip / batch])
        mean, squares = 0.9 * mean + 0.1 * gradient, 0.999 * squares + 0.001 * gradient**2
        corrected = squares / (1 - 0.999**t) - phi
        wanted = wanted - lr * (mean / (1 - 0.9**t)) / corrected.clamp(min=floor).sqrt()
        at_floor += int((corrected < floor).sum())
        torch.testing.assert_close(theta.detach(), wanted, rtol=1e-10, atol=1e-12)
    assert 100 < at_floor < 1900  # both branches were there


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_without_noise_it_is_adamw(weight_decay):
    torch.manual_seed(0)
    values, gradients = torch.randn(4, 3, dtype=torch.float64), torch.randn(9, 4, 3, dtype=torch.float64)
    ours, theirs = parameter(values.tolist()), parameter(values.tolist())
    moved(ours, AdamBC([ours], 0.1, floor=1e-30, weight_decay=weight_decay), gradients, [0.0] * 9)
    adam = torch.optim.AdamW([theirs], lr=0.1, eps=0.0, weight_decay=weight_decay)
    for gradient in gradients:
        theirs.grad = gradient.clone()
        adam.step()
    torch.testing.assert_close(ours, theirs)


def test_for_gradients_far_above_the_noise_it_is_adam_and_for_pure_noise_it_is_not():
    generator = torch.Generator().manual_seed(3)
    noise = 0.01 * torch.randn(400, 200, generator=generator, dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(100)

    def travelled(kind: str, gradients: torch.Tensor) -> torch.Tensor:
        theta = parameter([0.0] * 200)
        if kind == "adambc":
            moved(theta, AdamBC([theta], 0.01, floor=1e-8), gradients, [0.01] * 400)
        else:
            adam = torch.optim.Adam([theta], lr=0.01)
            for gradient in gradients:
                theta.grad = gradient.clone()
                adam.step()
        return theta.detach()

    loud = noise + signs
    torch.testing.assert_close(travelled("adambc", loud), travelled("adam", loud), rtol=1e-3, atol=0)
    weak = noise + 0.003 * signs  # Adam divides by the noise: a step of about 0.003/0.01 of the rate
    assert travelled("adam", weak).mul(-signs).mean() < 0.35 * 0.01 * 400
    assert travelled("adambc", weak).mul(-signs).mean() > 0.6 * 0.01 * 400


def test_of_pure_noise_nothing_is_left_in_the_divisor():
    """v^ - Phi^ has mean 0; below the floor, which is half of the time, the divisor is the floor's root."""
    generator = torch.Generator().manual_seed(5)
    size, steps, deviations = 4000, 200, [0.5 + 0.01 * step for step in range(200)]
    theta = parameter([0.0] * size)
    optimizer = AdamBC([theta], 1.0, floor=1e-4)
    gradients = [each * torch.randn(size, generator=generator, dtype=torch.float64) for each in deviations]
    moved(theta, optimizer, gradients[:-1], deviations[:-1])
    before = theta.detach().clone()
    moved(theta, optimizer, gradients[-1:], deviations[-1:])
    state = optimizer.state[theta]
    corrected = (state["squares"] - state["noise"]) / (1 - 0.999**steps)
    typical = state["noise"].item() / (1 - 0.999**steps)  # about 2.3: what Adam divides by the root of
    assert abs(corrected.mean()) < 5 * corrected.std() / math.sqrt(size)
    assert corrected.std() < 0.15 * typical
    below = corrected < 1e-4
    assert 0.4 < below.double().mean() < 0.65
    step = (before - theta.detach())[below]
    torch.testing.assert_close(step, state["mean"][below] / (1 - 0.9**steps) / 1e-2)


def test_noise_may_differ_between_coordinates_and_grow_in_shape():
    torch.manual_seed(1)
    gradients = torch.randn(4, 3, 2, dtype=torch.float64)
    columns = torch.tensor([[0.1, 0.7]], dtype=torch.float64)
    sizes = [0.2, columns, 2 * columns, torch.full((3, 2), 0.3, dtype=torch.float64)]
    together = parameter(torch.zeros(3, 2).tolist())
    moved(together, AdamBC([together], 0.1), gradients, [{together: size} for size in sizes])
    for row in range(3):
        for column in range(2):
            alone = parameter([0.0])
            own = [torch.as_tensor(size, dtype=torch.float64).expand(3, 2)[row, column].item() for size in sizes]
            moved(alone, AdamBC([alone], 0.1), gradients[:, row, column], own)
            assert alone.item() == pytest.approx(together[row, column].item(), rel=1e-9)


def test_the_noise_is_set_before_every_step():
    theta = parameter([1.0])
    optimizer = AdamBC([theta], 0.1)
    theta.grad = torch.ones(1, dtype=torch.float64)
    for _ in range(2):
        with pytest.raises(InputError, match="noise of this step is not set") as caught:
            optimizer.step()
        assert "gradient_deviations" in caught.value.fix
    assert (theta.item(), optimizer.state[theta]) == (1.0, {})
    optimizer.set_noise(0.5)
    optimizer.step()
    with pytest.raises(InputError, match="noise of this step is not set"):
        optimizer.step()
    with pytest.raises(InputError, match="noise of this step is not set"):
        copy.deepcopy(optimizer).step()


@pytest.mark.parametrize(
    ("deviations", "message"),
    [
        (-0.1, "noise must not be negative"),
        (math.inf, "noise must be finite"),
        ("loud", "noise must be a number"),
        ({}, "noise of 2 of 2 parameters is not given"),
        (torch.tensor([1.0, 2.0]), r"shape \(2,\) is given for a parameter of the shape \(3, 4\)"),
        (torch.ones(1, 3, 4), r"shape \(1, 3, 4\)"),
        (torch.tensor([1.0, -1.0, 1.0, 1.0]), "negative or not finite"),
        (torch.tensor(math.nan), "negative or not finite"),
    ],
)
def test_noise_that_is_none_is_refused_and_the_old_one_stays(deviations, message):
    first, second = parameter(torch.zeros(3, 4).tolist()), parameter(torch.zeros(3, 4).tolist())
    optimizer = AdamBC([first, second], 0.1)
    optimizer.set_noise(0.5)
    if isinstance(deviations, torch.Tensor):
        deviations = {first: 1.0, second: deviations}
    with pytest.raises(InputError, match=message):
        optimizer.set_noise(deviations)
    first.grad = torch.ones(3, 4, dtype=torch.float64)
    optimizer.step()
    assert optimizer.state[first]["noise"].item() == pytest.approx(0.001 * 0.25)


def test_what_has_no_gradient_does_not_move():
    still, zero = parameter([1.0]), parameter([2.0])
    optimizer = AdamBC([still, zero], 0.1, weight_decay=0.5)
    zero.grad = torch.zeros(1, dtype=torch.float64)
    optimizer.set_noise(1.0)
    optimizer.step()
    assert still.item() == 1.0
    assert optimizer.state[still] == {}
    assert zero.item() == pytest.approx(2 * (1 - 0.1 * 0.5))  # of a zero gradient the decay alone is left


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_averages_in_float32(dtype):
    """The square of 1e-4 is 0 in float16."""
    theta = parameter([1.0, 1.0], dtype)
    optimizer = AdamBC([theta], 0.1)
    moved(theta, optimizer, [[2e-4, 0.0]], [1e-4])
    assert {optimizer.state[theta][name].dtype for name in ("mean", "squares", "noise")} == {torch.float32}
    assert theta.tolist() == pytest.approx([1 - 0.1 * 2e-4 / math.sqrt(3e-8), 1.0], rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_goes_through_a_checkpoint_bit_for_bit(dtype):
    torch.manual_seed(1)
    start, gradients = torch.randn(2, 5, dtype=dtype), torch.randn(6, 2, 5, dtype=dtype)
    sizes = [torch.rand(1, 5) for _ in range(6)]
    whole = nn.Parameter(start.clone())
    optimizer = AdamBC([whole], 0.1, betas=(0.8, 0.9), floor=1e-3, weight_decay=0.01)
    moved(whole, optimizer, gradients[:3], [{whole: size} for size in sizes[:3]])
    tensors, json = flatten_optimizer(optimizer)
    tensors = {name: value.clone() for name, value in tensors.items()}
    resumed = nn.Parameter(whole.detach().clone())
    moved(whole, optimizer, gradients[3:], [{whole: size} for size in sizes[3:]])
    again = AdamBC([resumed], 0.5)
    restore_optimizer(again, tensors, json)
    moved(resumed, again, gradients[3:], [{resumed: size} for size in sizes[3:]])
    assert torch.equal(whole, resumed)
    for name in ("mean", "squares", "noise"):
        assert torch.equal(optimizer.state[whole][name], again.state[resumed][name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"betas": (1.0, 0.9)}, "beta1 must be below 1"),
        ({"betas": (0.9, -0.1)}, "beta2 must not be negative"),
        ({"floor": 0.0}, "floor must be greater than 0"),
        ({"lr": -1.0}, "lr must not be negative"),
        ({"weight_decay": math.inf}, "weight_decay must be finite"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        AdamBC([parameter([1.0])], **{"lr": 0.1, **options})


def test_a_closure_gives_its_loss():
    theta = parameter([3.0])

    def closure():
        theta.grad = None
        loss = theta.square().sum()
        loss.backward()
        return loss.item()

    optimizer = AdamBC([theta], 0.1)
    optimizer.set_noise(0.0)
    assert optimizer.step(closure) == 9.0
    assert theta.item() < 3.0


def test_it_has_a_name():
    config = TrainConfig("python", noise_multiplier=1.0, delta=1e-4, optimizer="adambc", lr=0.03, weight_decay=0.2)
    made = make_optimizer(nn.Linear(2, 2), config, Uniform(config.lr))
    assert isinstance(made, AdamBC)
    wanted = {"lr": 0.03, "betas": (0.9, 0.999), "floor": 1e-8, "weight_decay": 0.2}
    assert {name: made.param_groups[0][name] for name in wanted} == wanted
    with pytest.raises(InputError, match="the optimizer adambc takes none"):
        TrainConfig("python", noise_multiplier=1.0, delta=1e-4, optimizer="adambc", momentum=0.9)
