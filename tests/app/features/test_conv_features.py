"""Frozen public convolutions: the two layers from CIFAR-100, how they are trained, and EfficientNet-Lite0."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import correlate2d
from torch import Tensor

from adadp.app import zoo
from adadp.app.features import parse_features
from adadp.app.features.base import FixedStage
from adadp.app.features.conv_cifar100 import ConvCifar100, centre, convolve, digest, standardised
from adadp.app.features.efficientnet import EfficientNetLite0, EfficientNetLite1, EfficientNetLite2, prepared, rooted
from adadp.app.runs.tensors import read_tensors
from adadp.errors import AdaDPError, InputError, RunError
from adadp.lab.cli.pretrain import pretrain as command
from adadp.lab.pretraining.convolutions import Convolutions, _Network
from adadp.lab.pretraining.training import pretrain, write_pretrained

GOLDEN = Path(__file__).parent / "golden"
FILES = Path(zoo.__file__).parents[1] / "features" / "files"
COLOUR = (3, 32, 32)
SMALL = EfficientNetLite0(size=32)
QUICK = Convolutions(batch=12, rate=0.05)
WEIGHTS, RECORD = "conv_cifar100.safetensors", "conv_cifar100.json"

module_of = cache(lambda stage: stage.module(COLOUR))


@pytest.fixture(scope="module")
def photographs() -> tuple[Tensor, Tensor]:
    given = np.load(GOLDEN / "conv_cifar100.npz")
    return torch.from_numpy(given["images"]), torch.from_numpy(given["labels"])


@pytest.fixture(scope="module")
def pretrained(photographs):
    return pretrain(QUICK, *photographs, seed=0, epochs=2)


@pytest.fixture(scope="module")
def imagenet() -> None:
    try:
        zoo.efficientnet_weights(0)
    except AdaDPError as error:
        pytest.skip(f"the weights of EfficientNet-Lite0 cannot be had: {error.what}")


@pytest.fixture(params=[ConvCifar100(), SMALL], ids=["conv-cifar100", "efficientnet-lite0"])
def stage(request) -> FixedStage:
    if request.param is SMALL:
        request.getfixturevalue("imagenet")
    return request.param


def pictures(count: int, shape: tuple[int, ...] = COLOUR, seed: int = 0) -> Tensor:
    return torch.rand((count, *shape), generator=torch.Generator().manual_seed(seed))


# Both stages


def test_features_have_the_promised_shape_and_norm_and_no_gradient(stage):
    features = module_of(stage)(pictures(3))
    assert features.shape == (3, *stage.output_shape(COLOUR))
    assert features.dtype == torch.float32
    norm = stage.norm if isinstance(stage, ConvCifar100) else 1.0
    torch.testing.assert_close(features.flatten(1).norm(dim=1), torch.full((3,), norm))
    assert not features.requires_grad
    assert not any(each.requires_grad for each in module_of(stage).parameters())


def test_a_record_is_mapped_by_itself(stage):
    images = pictures(40)
    module = module_of(stage)
    together = module(images)
    others = images.clone()
    others[:17], others[18:] = 0, 1e6
    assert torch.equal(together[17], module(others)[17])
    alone = module(images[17:18])[0]  # other kernels for other batch sizes, and a root makes small differences larger
    torch.testing.assert_close(together[17], alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_non_finite_pixel_spoils_no_other_record(stage, bad):
    images = pictures(3)
    expected = module_of(stage)(images)
    images[1, 0, 16, 16] = bad
    found = module_of(stage)(images)
    assert not found[1].isfinite().all()
    torch.testing.assert_close(found[::2], expected[::2], rtol=0, atol=2e-6)


def test_grey_is_three_equal_colours(stage):
    grey = pictures(2, (1, 28, 28))
    torch.testing.assert_close(module_of(stage)(grey), module_of(stage)(grey.repeat(1, 3, 1, 1)), rtol=0, atol=1e-6)


def test_no_records_give_no_features(stage):
    assert module_of(stage)(pictures(0)).shape == (0, *stage.output_shape(COLOUR))


def test_constant_images_have_finite_features(stage):
    levels = torch.tensor([0.0, 0.5, 1.0])[:, None, None, None].expand(3, *COLOUR)
    assert module_of(stage)(levels).isfinite().all()


@pytest.mark.parametrize("shape", [(784,), (2, 32, 32), (4, 32, 32), (3, 32), (1, 3, 32, 32), (3, 0, 32)])
def test_records_that_are_not_pictures_are_refused(stage, shape):
    with pytest.raises(InputError, match="cannot read records of shape"):
        stage.output_shape(shape)
    with pytest.raises(InputError, match="cannot read records of shape"):
        stage.module(shape)
    with pytest.raises(InputError, match="cannot read records of shape"):
        module_of(stage)(torch.zeros(2, *shape))


def test_the_stage_says_what_public_data_it_is_made_from(stage):
    (sentence,) = stage.public
    assert ("CIFAR-100" if isinstance(stage, ConvCifar100) else "ImageNet") in sentence


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (ConvCifar100(), "conv-cifar100"),
        (ConvCifar100(norm=0), "conv-cifar100:norm=0.0"),
        (ConvCifar100(norm=2.5), "conv-cifar100:norm=2.5"),
        (EfficientNetLite0(), "efficientnet-lite0"),
        (EfficientNetLite0(size=224), "efficientnet-lite0:size=224"),
        (EfficientNetLite2(size=96, mirror=True), "efficientnet-lite2:size=96,mirror=1"),
    ],
)
def test_text_makes_the_stage_again(made, text):
    assert str(made) == text
    assert parse_features(text) == (made,)
    with pytest.raises(FrozenInstanceError):
        made.norm = 3


def test_the_certificate_is_told_that_cifar10_was_looked_at():
    assert "7,000 training images of CIFAR-10, which was not charged" in ConvCifar100().public[0]


# The two layers


def by_hand(image: np.ndarray, tensors: dict[str, Tensor]) -> np.ndarray:
    """The layers in double precision: one plane at a time, as they are written down."""
    planes = image[:, 4:28, 4:28].astype(np.float64)
    planes = (planes - planes.mean()) / planes.std()
    for number in (1, 2):
        kernels, bias = (tensors[f"conv{number}.{part}"].double().numpy() for part in ("weight", "bias"))
        sums = [sum(map(partial(correlate2d, mode="same"), planes, kernel)) for kernel in kernels]
        active = np.maximum(np.array(sums) + bias[:, None, None], 0)
        side = active.shape[1] // 2
        planes = active.reshape(-1, side, 2, side, 2).max((2, 4))
    return planes


def test_layers_are_those_of_the_paper():
    tensors, _ = read_tensors(FILES / WEIGHTS)
    images = np.load(GOLDEN / "efficientnet_lite0.npz")["images"][:1] / np.float32(255)
    found = ConvCifar100(norm=0).module(COLOUR)(torch.from_numpy(images))[0]
    np.testing.assert_allclose(found.numpy(), by_hand(images[0], tensors), rtol=1e-4, atol=1e-4)


def test_norm_only_scales():
    images = pictures(4)
    plain = ConvCifar100(norm=0).module(COLOUR)(images)
    found = ConvCifar100(norm=5).module(COLOUR)(images)
    torch.testing.assert_close(found, 5 * plain / plain.flatten(1).norm(dim=1)[:, None, None, None])


@given(gain=st.floats(0.05, 1), shift=st.floats(0, 1))
@settings(max_examples=10, deadline=None)
def test_brightness_and_contrast_do_not_matter(gain, shift):
    images = pictures(2)
    torch.testing.assert_close(
        module_of(ConvCifar100())(gain * images + shift), module_of(ConvCifar100())(images), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("shape", [(3, 24, 24), (1, 28, 28), (3, 24, 200), (3, 33, 33), (3, 64, 64), (3, 97, 60)])
def test_other_sizes_are_brought_to_24(shape):
    assert centre(pictures(2, shape)).shape == (2, shape[0], 24, 24)
    assert ConvCifar100().module(shape)(pictures(2, shape)).shape == (2, 64, 6, 6)


def test_the_centre_is_cut_out_and_large_images_are_scaled_first():
    images = pictures(1)
    assert torch.equal(centre(images), images[:, :, 4:28, 4:28])
    ramp = torch.linspace(0, 1, 64).expand(1, 3, 64, 64)
    torch.testing.assert_close(centre(ramp)[0, 0, 0], torch.linspace(0, 1, 64).view(32, 2).mean(1)[4:28])
    stripes = (torch.arange(320) // 2 % 2).float().expand(1, 3, 320, 320)
    torch.testing.assert_close(centre(stripes), torch.full((1, 3, 24, 24), 0.5), rtol=0, atol=0.02)


def test_images_below_24_pixels_are_refused():
    with pytest.raises(InputError, match="at least 24 pixels"):
        ConvCifar100().output_shape((3, 23, 32))


@pytest.mark.parametrize("norm", [-1, float("nan"), "1"])
def test_a_bad_norm_is_refused(norm):
    with pytest.raises(InputError, match="norm must"):
        ConvCifar100(norm=norm)


def test_standardised_images_have_mean_0_and_variance_1():
    found = standardised(0.3 * pictures(3) + 0.2)
    torch.testing.assert_close(found.mean((1, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.square().mean((1, 2, 3)), torch.ones(3))


def test_the_weights_are_those_of_their_record():
    tensors, metadata = read_tensors(FILES / WEIGHTS)
    record = json.loads((FILES / RECORD).read_text(encoding="utf-8"))
    assert json.loads(metadata["record"]) == record
    assert record["sha256"] == digest(tensors)
    assert record["epochs_done"] == record["epochs"]
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "conv1.weight": (64, 3, 5, 5),
        "conv1.bias": (64,),
        "conv2.weight": (64, 64, 5, 5),
        "conv2.bias": (64,),
    }
    known = [{file.name: file.sha256 for file in form.files} for form in forms_of_cifar100()]
    assert record["data"]["sha256_of_files"] in known
    assert record["images"] + record["held_out_images"] in [form.train_records for form in forms_of_cifar100()]
    assert record["held_out_accuracy"] > 0.4


def forms_of_cifar100():
    entry = zoo.find("cifar100")
    return (entry, *entry.alternatives)


def test_the_packaged_weights_tell_photographs_apart(photographs):
    images, labels = photographs
    features = module_of(ConvCifar100())(images / 255).flatten(1).double()
    train, test = features[:80], features[80:]
    middle = train.mean(0)
    direction = train[labels[:80] == 1].mean(0) - train[labels[:80] == 0].mean(0)
    right = ((test - middle) @ direction > 0).long() == labels[80:]
    assert right.double().mean() > 0.9


# How they are trained


@pytest.mark.slow
def test_pretraining_is_reproduced_bit_for_bit(photographs, pretrained):
    images, labels = photographs
    torch.manual_seed(99)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    again = pretrain(QUICK, images.float() / 255, labels, seed=0, epochs=2)
    assert again.record == pretrained.record
    assert all(torch.equal(again.tensors[name], pretrained.tensors[name]) for name in pretrained.tensors)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    other = pretrain(QUICK, images, labels, seed=1, epochs=2)
    assert other.record["sha256"] != pretrained.record["sha256"]


@pytest.mark.slow
def test_pretraining_learns_and_tells_how_it_goes(photographs):
    seen = []
    made = pretrain(QUICK, *photographs, seed=0, epochs=4, watch=seen.append)
    assert [epoch.number for epoch in seen] == [1, 2, 3, 4]
    assert seen[-1].loss < 0.8 * seen[0].loss
    assert made.record["held_out_accuracy"] == seen[-1].held_out_accuracy >= 0.75
    assert made.record["held_out_images"] == 12
    assert (made.record["images"], made.record["classes"], made.record["epochs_done"]) == (108, 2, 4)
    assert seen[-1].pretrained.record == made.record


def test_frozen_convolutions_are_the_trained_layers():
    torch.manual_seed(0)
    network = _Network(classes=2, dropout=0.3)
    network.train()
    for seed in range(3):
        network(standardised(pictures(8, (3, 24, 24), seed)))
    for layer in (network.first, network.second):
        torch.nn.init.normal_(layer.norm.weight)
        torch.nn.init.normal_(layer.norm.bias)
    network.eval()
    images = standardised(pictures(4, (3, 24, 24)))
    torch.testing.assert_close(
        convolve(images, network.frozen()), network.second(network.first(images)), rtol=1e-4, atol=1e-4
    )


def test_pretrained_weights_are_written_with_their_record(tmp_path, pretrained):
    weights, record = write_pretrained(tmp_path / "new", pretrained)
    tensors, metadata = read_tensors(weights)
    assert digest(tensors) == pretrained.record["sha256"]
    assert json.loads(metadata["record"]) == json.loads(record.read_text(encoding="utf-8")) == pretrained.record


def test_a_loss_that_is_not_finite_stops(photographs):
    with pytest.raises(RunError, match="not finite in epoch 1"):
        pretrain(replace(QUICK, rate=1e30, warm_up=1), *photographs, epochs=1)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(30, 1, 32, 32), torch.zeros(30).long(), "cannot use images of shape"),
        (torch.zeros(30, 3, 23, 32), torch.zeros(30).long(), "cannot use images of shape"),
        (torch.zeros(19, 3, 32, 32), torch.zeros(19).long(), "cannot use images of shape"),
        (torch.full((30, 3, 32, 32), 255.0), torch.zeros(30).long(), r"floats in \[0, 1\]"),
        (torch.full((30, 3, 32, 32), torch.nan), torch.zeros(30).long(), r"floats in \[0, 1\]"),
        (torch.zeros(30, 3, 32, 32).int(), torch.zeros(30).long(), r"floats in \[0, 1\]"),
        (torch.zeros(30, 3, 32, 32), torch.zeros(29).long(), "labels of 30 images"),
        (torch.zeros(30, 3, 32, 32), torch.full((30,), -1), "labels of 30 images"),
        (torch.zeros(30, 3, 32, 32), torch.zeros(30), "labels of 30 images"),
    ],
)
def test_unusable_images_and_labels_are_refused(images, labels, message):
    with pytest.raises(InputError, match=message):
        pretrain(QUICK, images, labels, epochs=1)


@pytest.mark.parametrize("option", ["epochs", "threads", "seed"])
def test_unusable_lengths_are_refused(photographs, option):
    with pytest.raises(InputError, match=f"{option} must be"):
        pretrain(QUICK, *photographs, **{option: -1})


def test_the_command_makes_what_the_function_makes(tmp_path, monkeypatch, photographs, pretrained):
    loaded = zoo.LoadedData(photographs, photographs, 2, zoo.find("cifar100"))
    asked = []
    monkeypatch.setattr(zoo, "load", lambda *given, **options: asked.append((given, options)) or loaded)
    result = CliRunner().invoke(command, ["--out", str(tmp_path), "--epochs", "1", "--seed", "5", "--from", "here"])
    assert result.exit_code == 0, result.output
    assert asked == [(("cifar100",), {"source_dir": "here"})]
    expected = pretrain(Convolutions(), *photographs, seed=5, epochs=1)
    assert expected.record["sha256"] in result.stdout
    assert "epoch 1/1" in result.stderr
    record = json.loads((tmp_path / RECORD).read_text(encoding="utf-8"))
    assert record["sha256"] == expected.record["sha256"]
    assert record["data"]["sha256_of_files"] == {file.name: file.sha256 for file in zoo.find("cifar100").files}


# EfficientNet-Lite0


@pytest.mark.parametrize("kind", [EfficientNetLite0, EfficientNetLite1, EfficientNetLite2])
def test_network_agrees_with_its_publishers(kind):
    try:
        module = kind(size=64).module(COLOUR)
    except AdaDPError as error:
        pytest.skip(f"the weights of {kind.name} cannot be had: {error.what}")
    images = torch.from_numpy(np.load(GOLDEN / "efficientnet_lite0.npz")["images"])
    scaled = torch.nn.functional.interpolate(images.float(), (64, 64), mode="bilinear")
    pooled = torch.from_numpy(np.load(GOLDEN / f"{kind.name.replace('-', '_')}.npz")["pooled"])
    torch.testing.assert_close(module.network((scaled - 127) / 128), pooled, rtol=0, atol=1e-4)
    roots = pooled.double().sqrt()
    centred = roots - roots.mean(1, keepdim=True)
    expected = centred / centred.norm(dim=1, keepdim=True)
    torch.testing.assert_close(module(images / 255).double(), expected, rtol=0, atol=1e-4)
    assert kind.name.removeprefix("efficientnet-").capitalize() in kind().public[0]


def test_with_the_mirror_image_both_ways_to_look_count_alike(imagenet):
    images = pictures(2)
    module, both = module_of(SMALL), EfficientNetLite0(size=32, mirror=True).module(COLOUR)
    torch.testing.assert_close(both(images), both(images.flip(-1)), rtol=0, atol=1e-4)
    pooled = sum(module.network(prepared(each, 32)) for each in (images, images.flip(-1)))
    torch.testing.assert_close(both(images), rooted(pooled), rtol=0, atol=1e-4)
    assert not torch.allclose(module(images), both(images), atol=0.01)


@pytest.mark.parametrize("size", [0, 16, 33, 100, 64.5, True])
def test_a_bad_size_is_refused(size):
    with pytest.raises(InputError, match="size must"):
        EfficientNetLite0(size=size)


def test_features_that_are_all_equal_are_zero(imagenet, monkeypatch):
    module = SMALL.module(COLOUR)
    monkeypatch.setattr(module.network, "forward", lambda images: torch.ones(len(images), 1280))
    assert torch.equal(module(pictures(2)), torch.zeros(2, 1280))
