"""Networks trained or fine-tuned on public images with classes, and what is known of their features."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from adadp.app import zoo
from adadp.app.features import parse_features
from adadp.app.features.conv_cifar100 import digest
from adadp.app.features.efficientnet import imagenet
from adadp.app.features.lite0_cifar100 import Lite0Cifar100
from adadp.app.features.public_statistics import NAMES, statistics, whitened
from adadp.app.runs.tensors import read_tensors
from adadp.errors import AdaDPError, InputError
from adadp.lab.pretraining.lite0 import Lite0
from adadp.lab.pretraining.training import pretrain

GOLDEN = Path(__file__).parent / "golden"
FILES = Path(zoo.__file__).parents[1] / "features" / "files"
COLOUR = (3, 32, 32)
STAGES = [Lite0Cifar100()]


@pytest.fixture(scope="module")
def photographs() -> tuple[Tensor, Tensor]:
    """Pictures of the sea (0) and of sunflowers (1), 32 x 32."""
    given = np.load(GOLDEN / "conv_cifar100.npz")
    images = functional.interpolate(torch.from_numpy(given["images"]).float(), (32, 32), mode="bilinear")
    return images.to(torch.uint8), torch.from_numpy(given["labels"])


@pytest.fixture(scope="module")
def imagenet_weights() -> None:
    try:
        zoo.efficientnet_weights(0)
    except AdaDPError as error:
        pytest.skip(f"the weights of EfficientNet-Lite0 cannot be had: {error.what}")


def pictures(count: int, shape: tuple[int, ...] = COLOUR, seed: int = 0) -> Tensor:
    return torch.rand((count, *shape), generator=torch.Generator().manual_seed(seed))


# What is known of features


@pytest.fixture(scope="module")
def labelled() -> tuple[Tensor, Tensor]:
    """Rows of 24 numbers around the middles of three classes, ten times as spread along some directions as others."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(300) % 3
    spread = torch.randn(300, 24, generator=draw) * torch.logspace(0, -1, 24)
    return 2 + torch.randn(3, 24, generator=draw)[labels] + spread, labels


def inverse_root(features: Tensor, labels: Tensor) -> Tensor:
    """(S + r I)^(-1/2) in double precision, as it is written down."""
    rows = functional.normalize(features.double() - features.double().mean(0))
    parts = [rows[labels == each] - rows[labels == each].mean(0) for each in labels.unique()]
    within = sum(part.T @ part for part in parts) / len(rows)
    damped = within.numpy() + 0.5 * float(within.trace()) / len(within) * np.eye(len(within))
    eigenvalues, vectors = np.linalg.eigh(damped)
    return torch.from_numpy(vectors / np.sqrt(eigenvalues) @ vectors.T)


def test_features_are_whitened_by_the_spread_within_classes(labelled):
    features, labels = labelled
    rows = functional.normalize(features.double() - features.double().mean(0))
    expected = functional.normalize(rows @ inverse_root(features, labels))
    found = whitened(features, statistics(features, labels, 24))
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-3)


def test_fewer_directions_leave_the_others_as_they_are(labelled):
    features, labels = labelled
    known = statistics(features, labels, 6)
    assert known["directions"].shape == (6, 24)
    assert (known["factors"] < 1).all()
    assert (known["factors"].diff() > 0).all(), "the longest direction is shortened most"
    rows = functional.normalize(features - known["mean"])
    found = whitened(features, known)
    directions = known["directions"].float()
    across = functional.normalize(rows - rows @ directions.T @ directions)
    torch.testing.assert_close(
        functional.normalize(found - found @ directions.T @ directions), across, atol=2e-3, rtol=0
    )


def test_a_record_that_is_the_mean_is_zero_and_a_class_may_be_missing(labelled):
    features, labels = labelled
    known = statistics(features, 2 * labels, 24)
    assert torch.equal(whitened(known["mean"][None], known), torch.zeros(1, 24))
    torch.testing.assert_close(known["factors"], statistics(features, labels, 24)["factors"])
    bad = torch.cat([features[:2], torch.full((1, 24), torch.nan)])
    torch.testing.assert_close(whitened(bad, known)[:2], whitened(features[:2], known))


# How the networks are trained


def test_fine_tuning_leaves_the_first_stages_as_they_were(imagenet_weights, photographs):
    before = imagenet(0).kernels()
    made = pretrain(Lite0(batch=12, held_out=12), photographs[0][:30], photographs[1][:30], epochs=1)
    assert made.record["held_out_images"] == 3
    changed = {name for name, kernel in before.items() if not torch.equal(kernel.half(), made.tensors[name])}
    late = {name for name in before if name == "_conv_head.weight" or 5 <= block_of(name) <= 15}
    assert changed <= late | {"_conv_head.bias"}
    wide = {name for name in late if ".weight" in name and before[name].shape[-1] >= 5}
    assert len(wide) == 7
    assert {name for name in late if name.endswith("weight")} - wide <= changed
    assert not wide & changed
    assert set(made.tensors) == {*before, *NAMES}


def block_of(name: str) -> int:
    """The number of the block a kernel belongs to, -1 of stem and head."""
    return int(name.split(".")[1]) if name.startswith("_blocks.") else -1


# The weights that come with AdaDP


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_the_weights_are_those_of_their_record(stage):
    name = stage.name.replace("-", "_")
    tensors, metadata = read_tensors(FILES / f"{name}.safetensors")
    record = json.loads((FILES / f"{name}.json").read_text(encoding="utf-8"))
    assert json.loads(metadata["record"]) == record
    assert record["sha256"] == digest(tensors)
    assert record["epochs_done"] == record["epochs"]
    assert set(NAMES) < set(tensors)
    entry = zoo.find("cifar100")
    known = [{file.name: file.sha256 for file in form.files} for form in (entry, *entry.alternatives)]
    assert record["data"]["sha256_of_files"] in known
    assert record["held_out_accuracy"] > 0.5


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_features_are_those_of_each_record_alone(stage):
    images = pictures(3)
    module = stage.module(COLOUR)
    features = module(images)
    assert features.shape == (3, *stage.output_shape(COLOUR))
    torch.testing.assert_close(features.norm(dim=1), torch.ones(3))
    assert not features.requires_grad
    torch.testing.assert_close(features, module(images.flip(-1)), rtol=0, atol=1e-3)
    torch.testing.assert_close(module(images[:1]), features[:1], rtol=0, atol=1e-3)
    images[1, 0, 3, 3] = torch.nan
    torch.testing.assert_close(module(images)[::2], features[::2], rtol=0, atol=1e-3)
    grey = pictures(1, (1, 28, 28))
    torch.testing.assert_close(module(grey), module(grey.expand(-1, 3, -1, -1)), rtol=0, atol=1e-3)
    assert module(pictures(0)).shape == (0, *stage.output_shape(COLOUR))


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_the_packaged_weights_tell_photographs_apart(stage, photographs):
    images, labels = photographs
    features = stage.module(COLOUR)(images[:60] / 255)
    train, kinds = features[:40], labels[:40]
    direction = train[kinds == 1].mean(0) - train[kinds == 0].mean(0)
    right = ((features[40:] - train.mean(0)) @ direction > 0) == (labels[40:60] == 1)
    assert right.double().mean() >= 0.95


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_the_stages_are_read_and_say_what_they_were_made_from(stage):
    assert parse_features(str(stage)) == (stage,)
    assert "CIFAR-100" in stage.public[0]
    with pytest.raises(InputError, match="cannot read records of shape"):
        stage.module((784,))
