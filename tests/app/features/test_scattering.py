"""Scattering against kymatio's numbers (golden/scattering.md says where they are from), and its laws."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adadp.app.features.scattering import Scattering
from adadp.errors import InputError

GOLDEN = np.load(Path(__file__).parent / "golden" / "scattering.npz")
MNIST, COLOUR = (1, 28, 28), (3, 32, 32)
PLAIN = Scattering(groups=0, unit=False, centre=False)
UNCENTRED = Scattering(centre=False)
module_of = cache(Scattering.module)


def features(stage: Scattering, images: Tensor) -> Tensor:
    return module_of(stage, tuple(images.shape[1:]))(images)


def pictures(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand((count, *shape), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("case", "stage"),
    [("mnist", PLAIN), ("colour", PLAIN), ("odd", PLAIN), ("uneven", PLAIN), ("deep", replace(PLAIN, J=3, angles=4))],
)
def test_values_are_kymatios(case, stage):
    expected = GOLDEN[f"{case}_out"]
    found = features(stage, torch.from_numpy(GOLDEN[f"{case}_in"])).numpy()
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_normalised_features_are_group_norm_of_27_groups_then_unit_norm():
    images = torch.from_numpy(GOLDEN["colour_in"])
    groups = torch.from_numpy(GOLDEN["colour_out"]).double().reshape(1, 27, -1)
    centred = groups - groups.mean(2, keepdim=True)
    scaled = centred / (centred.square().mean(2, keepdim=True) + 1e-5).sqrt()
    expected = (scaled / scaled.norm()).reshape(1, 243, 8, 8)
    torch.testing.assert_close(features(UNCENTRED, images).double(), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("shape", [MNIST, COLOUR])
def test_centring_maps_pixels_to_minus_2_to_2_first(shape):
    images = pictures(3, shape)
    torch.testing.assert_close(features(Scattering(), images), features(UNCENTRED, (images - 0.5) * 4))


@pytest.mark.parametrize(
    ("stage", "shape", "expected"),
    [
        (Scattering(), MNIST, (81, 7, 7)),
        (Scattering(), COLOUR, (243, 8, 8)),
        (Scattering(), (1, 30, 27), (81, 7, 6)),
        (Scattering(), (1, 5, 5), (81, 1, 1)),
        (Scattering(J=1, groups=3), (1, 28, 28), (9, 14, 14)),
        (Scattering(J=3, groups=7), (1, 32, 9), (217, 4, 1)),
        (Scattering(angles=1, groups=0), (2, 28, 28), (8, 7, 7)),
        (Scattering(angles=3, groups=4), (1, 28, 28), (16, 7, 7)),
    ],
)
def test_output_shape_is_what_comes_out(stage, shape, expected):
    assert stage.output_shape(shape) == expected
    found = stage.module(shape)(pictures(2, shape))
    assert found.shape == (2, *expected)
    assert found.isfinite().all()


@pytest.mark.slow
@given(st.integers(1, 60), st.integers(0, 59), st.sampled_from([MNIST, COLOUR]), st.sampled_from([Scattering(), PLAIN]))
@settings(max_examples=15, deadline=None)
def test_a_record_is_transformed_by_itself(count, index, shape, stage):
    index %= count
    batch = pictures(count, shape, seed=count)
    alone = features(stage, batch[index : index + 1])
    torch.testing.assert_close(features(stage, batch)[index : index + 1], alone, rtol=1e-5, atol=1e-6)
    others = 5 * pictures(count, shape, seed=99)
    others[index] = batch[index]
    torch.testing.assert_close(features(stage, others)[index : index + 1], alone, rtol=1e-5, atol=1e-6)


@given(st.floats(1e-3, 1e3), st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_scattering_is_homogeneous_and_blind_to_sign_after_order_0(factor, seed):
    images = pictures(2, (1, 9, 14), seed)
    once = features(PLAIN, images)
    for scaled in (factor, -factor):
        found = features(PLAIN, scaled * images)
        torch.testing.assert_close(found[:, :1], scaled * once[:, :1], rtol=1e-5, atol=1e-6 * factor)
        torch.testing.assert_close(found[:, 1:], factor * once[:, 1:], rtol=1e-4, atol=1e-6 * factor)


@pytest.mark.parametrize("shape", [MNIST, COLOUR])
def test_records_have_norm_1_whatever_their_contrast(shape):
    images = pictures(3, shape) * torch.tensor([1e-3, 1.0, 100.0]).reshape(3, 1, 1, 1)
    torch.testing.assert_close(features(Scattering(), images).flatten(1).norm(dim=1), torch.ones(3))


def test_groups_have_mean_0_and_variance_1():
    found = features(Scattering(unit=False), 255 * pictures(2, MNIST)).reshape(2, 27, -1)
    torch.testing.assert_close(found.mean(2), torch.zeros(2, 27), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.var(2, unbiased=False), torch.ones(2, 27), rtol=1e-3, atol=0)


@pytest.mark.parametrize("stage", [UNCENTRED, PLAIN])
def test_zero_image_has_zero_features(stage):
    images = pictures(2, MNIST)
    images[1] = 0
    found = features(stage, images)
    assert (found[1] == 0).all()
    assert (found[0] != 0).any()


@pytest.mark.parametrize("level", [1.0, -3.0, 1e-3])
def test_constant_image_keeps_its_level_in_order_0_only(level):
    found = features(PLAIN, torch.full((1, *MNIST), level))[0]
    torch.testing.assert_close(found[0], torch.full((7, 7), level), rtol=1e-4, atol=0)
    assert found[1:].abs().max() < 1e-6 * abs(level)
    assert features(Scattering(), torch.full((1, *MNIST), level)).isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("stage", [Scattering(), PLAIN])
def test_non_finite_pixel_stays_in_its_record(stage, value):
    images = pictures(4, MNIST)
    clean = features(stage, images)
    images[2, 0, 5, 5] = value
    found = features(stage, images)
    assert not found[2].isfinite().any()
    keep = [0, 1, 3]
    torch.testing.assert_close(found[keep], clean[keep])


@pytest.mark.parametrize(("stage", "shape"), [(Scattering(), MNIST), (PLAIN, COLOUR)])
def test_no_records(stage, shape):
    assert features(stage, pictures(0, shape)).shape == (0, *stage.output_shape(shape))


@pytest.mark.parametrize(
    "shape", [(), (784,), (28, 28), (1, 1, 28, 28), (0, 28, 28), (1, 4, 28), (1, 28, 4), (1, 0, 0)]
)
def test_records_that_are_no_images_are_refused(shape):
    with pytest.raises(InputError):
        Scattering().output_shape(shape)
    with pytest.raises(InputError):
        Scattering().module(shape)


@pytest.mark.parametrize("shape", [(28, 28), (5, 28, 28), (5, 1, 28, 27), (5, 3, 28, 28), (5, 784), (5,), ()])
def test_a_batch_of_another_shape_is_refused(shape):
    with pytest.raises(InputError, match="shape"):
        module_of(Scattering(), MNIST)(torch.zeros(shape))


@pytest.mark.parametrize("groups", [2, 82, 54])
def test_groups_must_divide_the_channels(groups):
    with pytest.raises(InputError, match="81 channels"):
        Scattering(groups=groups).output_shape(MNIST)


@pytest.mark.parametrize(
    "options",
    [
        {"J": 0},
        {"J": 1.5},
        {"J": "2"},
        {"angles": 0},
        {"groups": -1},
        {"unit": 2},
        {"unit": "yes"},
        {"unit": None},
        {"centre": 2},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError):
        Scattering(**options)


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (Scattering(), "scatter"),
        (Scattering(J=2, angles=8, groups=27, unit=1), "scatter"),
        (PLAIN, "scatter:groups=0,unit=0,centre=0"),
        (Scattering(J=3.0, angles=4, groups=61), "scatter:J=3,angles=4,groups=61"),
    ],
)
def test_text_names_what_is_not_default(stage, text):
    assert str(stage) == text


def test_a_stage_is_a_value():
    assert Scattering() == Scattering(J=2)
    assert hash(Scattering()) == hash(Scattering(J=2.0))
    assert Scattering() != PLAIN
    with pytest.raises(FrozenInstanceError):
        Scattering().J = 3


def test_the_module_is_frozen_and_moves_with_its_filters():
    module = Scattering().module(MNIST)
    assert not module.training
    assert not list(module.parameters())
    assert not module.state_dict()
    images = pictures(2, MNIST).requires_grad_()
    assert not module(images).requires_grad
    assert module.double()(images).dtype == torch.float64
    assert {buffer.device.type for buffer in module.to("meta").buffers()} == {"meta"}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64, torch.float16])
def test_images_of_any_type_are_read_as_float32(dtype):
    images = (255 * pictures(2, MNIST)).to(dtype)
    torch.testing.assert_close(features(PLAIN, images), features(PLAIN, images.float()), rtol=0, atol=0)


def test_the_images_are_left_as_they_were():
    images = pictures(3, COLOUR)
    before = images.clone()
    features(Scattering(), images)
    assert torch.equal(images, before)
