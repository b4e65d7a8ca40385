"""What all pre-training has in common: images, epochs, the weights found, and the record of how they were made.

case                                             what happens
images as bytes, or divided by 255               the same weights
the global generator and number of threads       left as they were found
images that are not (records, 3, H, W), or too   InputError, as for fewer than 20 images, labels below 0 or
small                                            missing
a loss that is no longer finite                  RunError: nothing is written
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadp import checks
from adadp.app.features.conv_cifar100 import digest
from adadp.app.runs.tensors import write_tensors
from adadp.app.zoo import DataSet
from adadp.errors import InputError, RunError

_LEAST = 20
AT_ONCE = 500
_STATISTICS = 10_000
"""Images that public statistics of features are made of."""


@dataclass(frozen=True)
class Epoch:
    """What ``watch`` is told after each epoch, of ``epochs``: the weights so far among it."""

    number: int
    epochs: int
    loss: float
    held_out_accuracy: float
    seconds: float
    pretrained: Pretrained


@dataclass(frozen=True, eq=False)
class Pretrained:
    """Weights by name, and how they were made. ``name`` is what their files are called."""

    name: str
    tensors: dict[str, Tensor]
    record: dict[str, Any]


@dataclass(frozen=True)
class Recipe(ABC):
    """What is trained, and how: a frozen dataclass whose fields the record states."""

    name: ClassVar[str]
    """What the command calls it."""
    side: ClassVar[int]
    """The fewest pixels an image may have along each side."""
    epochs: ClassVar[int]
    batch: int
    warm_up: int
    """Steps over which the rate rises, at most a tenth of all. Then it falls as a cosine."""
    smoothing: float
    held_out: int
    """The last images, at most a tenth of all, are kept from training and measure the accuracy."""

    @abstractmethod
    def network(self, classes: int, pixels: Tensor, labels: Tensor) -> nn.Module:
        """What is trained: from what ``varied`` makes to logits."""

    @abstractmethod
    def optimizer(self, network: Any) -> torch.optim.Optimizer:
        """What trains it."""

    @abstractmethod
    def varied(self, pixels: Tensor) -> Tensor:
        """Another picture of the same thing every time, of bytes, as the network reads it."""

    @abstractmethod
    def frozen(self, network: Any) -> dict[str, Tensor]:
        """The layers that are kept, as they will be used."""

    @abstractmethod
    def logits(self, network: Any, tensors: dict[str, Tensor], images: Tensor) -> Tensor:
        """Of images in [0, 1], by what is kept and the last layer of the network."""

    def finished(self, tensors: dict[str, Tensor], pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """What is kept besides when training is over, made of the first public images."""
        return tensors


def pretrain(
    recipe: Recipe,
    images: Tensor,
    labels: Tensor,
    *,
    seed: int = 0,
    epochs: int | None = None,
    threads: int = 1,
    watch: Callable[[Epoch], None] | None = None,
    origin: DataSet | None = None,
) -> Pretrained:
    """Layers trained to tell the classes of public ``images`` apart, which must not be private.

    ``images`` are (records, 3, H, W), as bytes or as float pixels in [0, 1]; the record says that they are ``origin``.
    """
    epochs = checks.count("epochs", recipe.epochs if epochs is None else epochs)
    seed, threads = checks.count("seed", seed, minimum=0), checks.count("threads", threads)
    pixels, labels = _as_bytes(images, recipe.side), _as_classes(labels, len(images))
    held_out = min(recipe.held_out, len(pixels) // 10)
    kept = len(pixels) - held_out
    train, test = (pixels[:kept], labels[:kept]), (pixels[kept:], labels[kept:])
    made: dict[str, Any] = {
        "data": None if origin is None else _described(origin),
        "images": kept,
        "held_out_images": held_out,
        "classes": int(labels.max()) + 1,
        "seed": seed,
        "epochs": epochs,
        "threads": threads,
        "settings": asdict(recipe),
        "torch": torch.__version__,
    }
    with _reproducibly(seed, threads):
        network = recipe.network(made["classes"], *train)
        start = time.monotonic()
        for number, loss in _epochs(recipe, network, *train, epochs):
            tensors = recipe.frozen(network)
            accuracy = _accuracy(partial(recipe.logits, network, tensors), *test)
            if number == epochs:
                tensors = recipe.finished(tensors, pixels[:_STATISTICS], labels[:_STATISTICS])
            found = {"epochs_done": number, "held_out_accuracy": accuracy, "sha256": digest(tensors)}
            pretrained = Pretrained(recipe.name.replace("-", "_"), tensors, made | found)
            if watch is not None:
                watch(Epoch(number, epochs, loss, accuracy, time.monotonic() - start, pretrained))
    return pretrained


def write_pretrained(folder: Path, pretrained: Pretrained) -> tuple[Path, Path]:
    """Write the weights and the record of how they were made to ``folder``; the record is in both files."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(pretrained.record, indent=2, sort_keys=True)
    weights, record = folder / f"{pretrained.name}.safetensors", folder / f"{pretrained.name}.json"
    write_tensors(weights, pretrained.tensors, {"record": text})
    record.write_text(text + "\n", encoding="utf-8")
    return weights, record


def _epochs(
    recipe: Recipe, network: nn.Module, pixels: Tensor, labels: Tensor, epochs: int
) -> Iterator[tuple[int, float]]:
    """Train, epoch by epoch: the number of each, from 1, and the mean loss in it."""
    optimizer = recipe.optimizer(network)
    batches = math.ceil(len(pixels) / recipe.batch)
    warm_up = max(1, min(recipe.warm_up, epochs * batches // 10))
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / warm_up) * (1 + math.cos(math.pi * step / (epochs * batches))) / 2,
    )
    for number in range(1, epochs + 1):
        network.train()
        total = 0.0
        for chosen in torch.randperm(len(pixels)).tensor_split(batches):
            logits = network(recipe.varied(pixels[chosen]))
            loss = functional.cross_entropy(logits, labels[chosen], label_smoothing=recipe.smoothing)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rates.step()
            total += loss.item() * len(chosen)
        if not math.isfinite(total):
            raise RunError(f"The loss was not finite in epoch {number}.", fix="Lower the rate.")
        network.eval()
        yield number, total / len(pixels)


def crops(pixels: Tensor, side: int) -> Tensor:
    """Random squares of ``side`` pixels, one of each image, every other one mirrored."""
    records, planes, height, width = pixels.shape
    top = torch.randint(height - side + 1, (records, 1))
    left = torch.randint(width - side + 1, (records, 1))
    along = torch.arange(side)
    rows, columns = top + along, left + torch.where(torch.rand(records, 1) < 0.5, along.flip(0), along)
    return pixels[
        torch.arange(records)[:, None, None, None],
        torch.arange(planes)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


@torch.no_grad()
def folded(convolution: nn.Module, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution with the scale and shift of the batch normalisation multiplied in."""
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    scale = norm.weight / (variance + norm.eps).sqrt()
    return convolution.weight * scale[:, None, None, None], norm.bias - mean * scale


@torch.no_grad()
def _accuracy(logits_of: Callable[[Tensor], Tensor], pixels: Tensor, labels: Tensor) -> float:
    """Share of the images whose largest logit is their class's."""
    right = 0
    for start in range(0, len(pixels), AT_ONCE):
        logits = logits_of(pixels[start : start + AT_ONCE].float() / 255)
        right += int((logits.argmax(1) == labels[start : start + AT_ONCE]).sum())
    return right / len(pixels)


def _described(data: DataSet) -> dict[str, Any]:
    """What the record says about the images: enough to know whether others are the same."""
    files = {file.name: file.sha256 for file in data.files}
    return {"name": data.name, "citation": data.citation, "split": data.split, "sha256_of_files": files}


def _as_bytes(images: Tensor, side: int) -> Tensor:
    """``images`` as bytes, so that many fit into memory."""
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < side or len(images) < _LEAST:
        raise InputError(
            f"Pre-training cannot use images of shape {tuple(images.shape)}.",
            why=f"It needs (records, 3, height, width) with at least {_LEAST} records and {side} x {side} pixels.",
            fix="Give colour images, such as those of CIFAR-100.",
        )
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point() or not (images.min() >= 0 and images.max() <= 1):
        raise InputError(
            "Pixels must be bytes, or floats in [0, 1].",
            why="Nothing else says what is black and what is white.",
            fix="Divide by the largest pixel value there can be.",
        )
    return (images * 255).round().to(torch.uint8)


def _as_classes(labels: Tensor, records: int) -> Tensor:
    """``labels`` as whole numbers from 0, one for each image."""
    if labels.shape != (records,) or labels.is_floating_point() or int(labels.min()) < 0:
        raise InputError(
            f"The labels of {records} images must be as many whole numbers from 0.",
            why="Each image is one example of one class.",
            fix="Give the class of every image as an integer tensor.",
        )
    return labels.to(torch.int64)


@contextmanager
def _reproducibly(seed: int, threads: int) -> Iterator[None]:
    """Random numbers from ``seed`` and a fixed number of threads, which sums depend on; both put back afterwards."""
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
