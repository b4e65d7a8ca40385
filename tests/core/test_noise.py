"""The Gaussian release: every row of its table, the grid, and the attack the grid is there for.

The distribution of the noise: tests/statistical.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadp.errors import InputError
from adadp.noise import GaussianMechanism
from adadp.noise.gaussian import grid_of
from adadp.randomness import RandomSource, SecureSource, SeededSource

SEEDED = SeededSource(7)


def release(total, *, l2_bound=1.0, noise_multiplier=2.0, source=SEEDED, step=0, **more):
    return GaussianMechanism().release(
        total, l2_bound=l2_bound, noise_multiplier=noise_multiplier, source=source, step=step, **more
    )


class NoNumbers(RandomSource):
    """A source that must not be asked."""

    reproducible = True

    def describe(self) -> str:
        return "none"

    def _words(self, count, purpose, step):
        raise AssertionError("numbers were drawn")


# The table of edge cases


def test_no_tensor():
    assert release({}, source=NoNumbers()) == {}
    assert release({}, noise_multiplier=0) == {}


def test_tensors_without_elements():
    released = release({"a": torch.zeros(0, 3), "b": torch.zeros(0, dtype=torch.float64)}, source=NoNumbers())
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in released.items()} == {
        "a": ((0, 3), torch.float32),
        "b": ((0,), torch.float64),
    }
    beside = release({"a": torch.zeros(0, 3), "b": torch.zeros(5)})
    assert beside["a"].shape == (0, 3)
    assert torch.equal(beside["b"], release({"b": torch.zeros(5)})["b"])


def test_an_all_zero_sum_is_noise():
    released = release({"a": torch.zeros(1000)})["a"]
    assert (released != 0).float().mean() > 0.99
    assert released.std().item() == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("l2_bound", [0.0, 1.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_noise_the_sum_comes_out_as_it_is(l2_bound, dtype):
    total = torch.randn(3, 5, dtype=dtype) * math.pi
    released = release({"a": total}, l2_bound=l2_bound, noise_multiplier=0, source=NoNumbers())["a"]
    assert torch.equal(released, total)
    released.zero_()
    assert total.abs().sum() > 0, "shares memory with the sum"


@pytest.mark.parametrize("l2_bound", [0, 0.0, -1.0, math.inf, math.nan, "1", 1e-320, 1e300])
def test_bounds_that_are_refused(l2_bound):
    with pytest.raises(InputError, match="l2_bound"):
        release({"a": torch.zeros(3)}, l2_bound=l2_bound)


@pytest.mark.parametrize("noise_multiplier", [-1.0, math.inf, math.nan, "1", 1e12])
def test_multipliers_that_are_refused(noise_multiplier):
    with pytest.raises(InputError, match="noise_multiplier"):
        release({"a": torch.zeros(3)}, noise_multiplier=noise_multiplier)


@pytest.mark.parametrize("noise_multiplier", [0.0, 2.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_sums_that_are_not_finite_are_refused_without_a_word_about_them(bad, noise_multiplier):
    total = torch.full((1000,), 0.1234567)
    total[613] = bad
    with pytest.raises(InputError, match="Nothing was released") as refusal:
        release({"a": torch.zeros(3), "layer": total}, noise_multiplier=noise_multiplier, source=NoNumbers())
    assert not any(word in str(refusal.value) for word in ("nan", "inf ", "613", "layer", "0.12"))


def test_huge_sums():
    largest = 2.0**52 * grid_of(1.0, 1)
    released = release({"a": torch.tensor([largest], dtype=torch.float64)})["a"]
    assert abs(released.item() - largest) < 20
    with pytest.raises(InputError, match="Nothing was released") as refusal:
        release({"a": torch.tensor([1.001 * largest], dtype=torch.float64)})
    assert f"{largest:g}"[:4] not in str(refusal.value)
    with pytest.raises(InputError, match="Nothing was released"):
        release({"a": torch.tensor([1e308], dtype=torch.float64)})


def test_mixed_dtypes():
    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    released = release({str(dtype): torch.ones(2, 2, dtype=dtype) for dtype in dtypes})
    assert [tensor.dtype for tensor in released.values()] == [torch.float64, *[torch.float32] * 3]
    assert all(tensor.shape == (2, 2) for tensor in released.values())


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_dtypes_that_are_refused(dtype):
    with pytest.raises(InputError, match="'count'"):
        release({"count": torch.ones(2, dtype=dtype)})


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_scalar(shape):
    released = release({"count": torch.full(shape, 5.0)}, l2_bound=1.0)["count"]
    assert released.shape == shape
    assert 0 < abs(released.item() - 5.0) < 20


def test_sums_that_are_views_or_need_gradients():
    total = torch.randn(4, 6).t()
    with_gradient = total.clone().requires_grad_()
    released = release({"a": total})["a"]
    assert torch.equal(released, release({"a": with_gradient})["a"])
    assert not released.requires_grad


# What is drawn


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 100))
def test_one_draw_serves_all_tensors_in_their_order(sizes, step):
    parts = {str(number): torch.randn(size, dtype=torch.float64) for number, size in enumerate(sizes)}
    whole = release({"all": torch.cat(list(parts.values()))}, step=step)["all"]
    assert torch.equal(whole, torch.cat(list(release(parts, step=step).values())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sum_is_left_alone(dtype):
    total = torch.randn(10, dtype=dtype)
    before = total.clone()
    released = release({"a": total})["a"]
    assert torch.equal(total, before)
    assert not torch.equal(released, total)


def test_steps_and_purposes_have_noise_of_their_own():
    total = {"a": torch.zeros(10)}
    first = release(total, step=3)["a"]
    assert torch.equal(first, release(total, step=3)["a"])
    assert not torch.equal(first, release(total, step=4)["a"])
    assert not torch.equal(first, release(total, step=3, purpose="count")["a"])
    assert not torch.equal(*(release(total, source=SecureSource(), step=3)["a"] for _ in range(2)))


@given(st.floats(0.1, 100), st.floats(0.1, 100), st.integers(1, 400), st.floats(-1, 1))
def test_the_noise_is_the_stated_multiple_of_the_rounded_sensitivity(l2_bound, multiplier, size, value):
    """Against the formula, in plain arithmetic, with the source's own normals."""
    total = torch.full((size,), value * l2_bound, dtype=torch.float64)
    released = release({"a": total}, l2_bound=l2_bound, noise_multiplier=multiplier)["a"]
    normals = SEEDED.normal(size, purpose="noise", step=0)
    grid = grid_of(l2_bound, size)
    expected = total + multiplier * (l2_bound + grid * math.sqrt(size)) * normals
    assert ((released - expected).abs() <= grid * (1 + 1e-6)).all()


# The grid


@given(st.floats(1e-280, 1e280), st.integers(1, 10**9))
def test_the_grid_is_the_largest_power_of_two_that_costs_one_part_in_2_to_14(l2_bound, coordinates):
    grid = grid_of(l2_bound, coordinates)
    assert math.frexp(grid)[0] == 0.5
    cost = grid * math.sqrt(coordinates) / l2_bound * 2**14
    assert 0.5 * (1 - 1e-12) < cost < 1 + 1e-12


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20),
    st.floats(1e-3, 1e3),
    st.floats(0.01, 100),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_everything_released_is_a_multiple_of_the_grid(values, l2_bound, multiplier, dtype):
    released = release({"a": torch.tensor(values, dtype=dtype)}, l2_bound=l2_bound, noise_multiplier=multiplier)["a"]
    multiples = released.double() / grid_of(l2_bound, len(values))
    assert torch.equal(multiples, multiples.round())


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_the_noise_does_not_depend_on_the_sum(values, l2_bound):
    """R(x) + R(N), exactly: what two sums release under the same noise differs by R(x) - R(x')."""
    total = torch.tensor(values, dtype=torch.float64)
    grid = grid_of(l2_bound, len(values))
    on_grid = (total / grid).round() * grid
    noise = release({"a": torch.zeros_like(total)}, l2_bound=l2_bound)["a"]
    assert torch.equal(release({"a": total}, l2_bound=l2_bound)["a"], on_grid + noise)


# The attack on the low bits


def lowest_bits(values: torch.Tensor) -> np.ndarray:
    """The exponent of the lowest set bit of each value: the finest grid it shows to lie on."""
    mantissa, exponent = np.frexp(values.double().numpy())
    whole = (mantissa * 2**53).astype(np.int64)
    return np.log2((whole & -whole).astype(float)) + exponent - 53


def told_apart_by_low_bits(release_of) -> bool:
    """Whether the low bits of what two neighbouring sums release are distributed differently (Jin et al. 2022)."""
    first, second = (lowest_bits(release_of(total)) for total in (torch.zeros(20_000), torch.ones(20_000)))
    return max(abs((first < bit).mean() - (second < bit).mean()) for bit in range(-80, 4)) > 0.05


@pytest.mark.parametrize("source", [SEEDED, SecureSource()], ids=["seeded", "secure"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_low_bits_do_not_tell_neighbours_apart(source, dtype):
    bound = math.sqrt(20_000)
    assert not told_apart_by_low_bits(lambda x: release({"a": x.to(dtype)}, l2_bound=bound, source=source)["a"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_low_bits_tell_neighbours_apart_where_noise_is_simply_added(dtype):
    noise = SEEDED.normal(20_000, purpose="noise", step=0)
    assert told_apart_by_low_bits(lambda x: x.to(dtype) + noise.to(dtype))
