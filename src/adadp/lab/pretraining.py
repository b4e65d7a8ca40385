"""How the frozen convolutions of ``conv-cifar100`` are trained, on public images and without privacy.

The two layers are those Abadi et al. 2016 take from the CIFAR tutorial of TensorFlow: 5 x 5 convolutions to 64 channels
on 24 x 24 crops, ReLU and 2 x 2 max-pooling. Two things differ:

- Instead of local response normalisation, batch normalisation stands between each convolution and its ReLU. It mixes
  images while training, which is harmless on public ones, and afterwards it is a fixed scale and shift per channel that
  is multiplied into the convolution: what is frozen is nothing but two convolutions.
- A linear layer follows, instead of layers of 384, 192 and 100 units. It is thrown away, and without the hidden layers
  it is the features themselves that must tell the classes apart.

How this was chosen, and what that costs: six settings were tried, once each, for 4 epochs on 12,000 images of
CIFAR-100, and compared by a ridge classifier on 5,000 training images of CIFAR-10, tested on 2,000 others of them (best
of eight ridges and scalings, so all numbers are a little too high; their standard error is .011):

    normalisation, layers that follow                        rate   labels, colours, dropout     accuracy
    batch,  384, 192, 100                                    0.1    plain                        .527
    group after ReLU,  384, 192, 100                         0.05   plain                        .510
    group before ReLU,  384, 192, 100                        0.05   plain                        .500
    batch,  384, 192, 100                                    0.1    smoothed, varied, none       .537
    batch,  384, 192, 100 with batch normalisation           0.1    smoothed, varied, 0.25       .541
    batch,  100 (this one)                                   0.1    smoothed, varied, 0.3        .559

Several things change from row to row, and neighbouring rows differ by little more than chance: this is a choice, not
evidence for either change. Local response normalisation was not tried. The choice has looked at private records when
CIFAR-10 is the private data, and nothing was charged for it; the stage says so on the certificate.

Images are standardised one by one, so brightness and contrast are gone already; what is varied is the crop, its mirror
image and the gain of each colour. Nesterov momentum, a rate that warms up and falls as a cosine, smoothed labels.

    case                                             what happens
    the same images, seed, threads and torch         the same weights, bit for bit
    images as bytes, or divided by 255               the same weights
    the global generator and number of threads       left as they were found
    images that are not (records, 3, H, W >= 24)     InputError, as for fewer than 20 images, labels below 0 or missing
    a loss that is no longer finite                  RunError: nothing is written
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadp import checks
from adadp.app.features.conv_cifar100 import CHANNELS, SIDE, centre, convolve, digest, standardised
from adadp.app.runs.tensors import write_tensors
from adadp.app.zoo import DataSet
from adadp.errors import InputError, RunError

WEIGHTS, RECORD = "conv_cifar100.safetensors", "conv_cifar100.json"
_LEAST = 20
_AT_ONCE = 500


@dataclass(frozen=True)
class Settings:
    """What the training is set to besides seed and length. The defaults made the weights that come with AdaDP."""

    batch: int = 128
    rate: float = 0.1
    warm_up: int = 200
    """Steps over which the rate rises, at most a tenth of all."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    smoothing: float = 0.1
    dropout: float = 0.3
    colour: float = 0.2
    """Each colour of an image is multiplied by a number from 1 - colour to 1 + colour."""
    held_out: int = 2000
    """The last images, at most a tenth of all, are kept from training and measure the accuracy."""


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
    """The two convolutions by name, and how they were made."""

    tensors: dict[str, Tensor]
    record: dict[str, Any]


def pretrain(
    images: Tensor,
    labels: Tensor,
    *,
    seed: int = 0,
    epochs: int = 12,
    threads: int = 1,
    watch: Callable[[Epoch], None] | None = None,
    settings: Settings | None = None,
    origin: DataSet | None = None,
) -> Pretrained:
    """Two convolutions trained to tell the classes of public ``images`` apart, which must not be private.

    ``images`` are (records, 3, H, W), as bytes or as float pixels in [0, 1]; the record says that they are ``origin``.
    """
    settings = settings or Settings()
    epochs, threads = checks.count("epochs", epochs), checks.count("threads", threads)
    seed = checks.count("seed", seed, minimum=0)
    pixels, labels = _pixels(images), _labels(labels, len(images))
    held_out = min(settings.held_out, len(pixels) // 10)
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
        "settings": asdict(settings),
        "torch": torch.__version__,
    }
    with _reproducibly(seed, threads):
        network = _Network(made["classes"], settings.dropout)
        start = time.monotonic()
        for number, loss in _epochs(network, *train, epochs, settings):
            accuracy = _accuracy(network, *test)
            tensors = network.frozen()
            found = {"epochs_done": number, "held_out_accuracy": accuracy, "sha256": digest(tensors)}
            pretrained = Pretrained(tensors, made | found)
            if watch is not None:
                watch(Epoch(number, epochs, loss, accuracy, time.monotonic() - start, pretrained))
    return pretrained


def write_pretrained(folder: Path, pretrained: Pretrained) -> tuple[Path, Path]:
    """Write the weights and the record of how they were made to ``folder``; the record is in both files."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(pretrained.record, indent=2, sort_keys=True)
    write_tensors(folder / WEIGHTS, pretrained.tensors, {"record": text})
    (folder / RECORD).write_text(text + "\n", encoding="utf-8")
    return folder / WEIGHTS, folder / RECORD


class _Layer(nn.Module):
    """Convolution, batch normalisation, ReLU, pooling."""

    def __init__(self, planes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(planes, CHANNELS, kernel_size=5, padding=2, bias=False)
        self.norm = nn.BatchNorm2d(CHANNELS)

    def forward(self, images: Tensor) -> Tensor:
        return functional.max_pool2d(functional.relu(self.norm(self.convolution(images))), 2)

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the convolution with the scale and shift of the normalisation multiplied in."""
        mean, variance = self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert variance is not None
        scale = self.norm.weight / (variance + self.norm.eps).sqrt()
        return self.convolution.weight * scale[:, None, None, None], self.norm.bias - mean * scale


class _Network(nn.Module):
    def __init__(self, classes: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = _Layer(3), _Layer(CHANNELS)
        features = CHANNELS * (SIDE // 4) ** 2
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(features, classes))
        for layer in (self.first, self.second):
            nn.init.kaiming_normal_(layer.convolution.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of standardised ``images``."""
        logits: Tensor = self.head(self.second(self.first(images)))
        return logits

    @torch.no_grad()
    def frozen(self) -> dict[str, Tensor]:
        """The two convolutions as they will be used."""
        names = ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")
        return dict(zip(names, self.first.folded() + self.second.folded(), strict=True))


def _epochs(
    network: _Network, pixels: Tensor, labels: Tensor, epochs: int, settings: Settings
) -> Iterator[tuple[int, float]]:
    """Train, epoch by epoch: the number of each, from 1, and the mean loss in it."""
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=settings.rate,
        momentum=settings.momentum,
        nesterov=True,
        weight_decay=settings.weight_decay,
    )
    batches = math.ceil(len(pixels) / settings.batch)
    warm_up = max(1, min(settings.warm_up, epochs * batches // 10))
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / warm_up) * (1 + math.cos(math.pi * step / (epochs * batches))) / 2,
    )
    for number in range(1, epochs + 1):
        network.train()
        total = 0.0
        for chosen in torch.randperm(len(pixels)).tensor_split(batches):
            logits = network(_varied(pixels[chosen], settings.colour))
            loss = functional.cross_entropy(logits, labels[chosen], label_smoothing=settings.smoothing)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rates.step()
            total += loss.item() * len(chosen)
        if not math.isfinite(total):
            raise RunError(f"The loss was not finite in epoch {number}.", fix="Lower the rate.")
        yield number, total / len(pixels)


def _varied(pixels: Tensor, colour: float) -> Tensor:
    """Random crops, every other one mirrored, with the gain of each colour varied; standardised."""
    records, planes, height, width = pixels.shape
    top = torch.randint(height - SIDE + 1, (records, 1))
    left = torch.randint(width - SIDE + 1, (records, 1))
    along = torch.arange(SIDE)
    rows, columns = top + along, left + torch.where(torch.rand(records, 1) < 0.5, along.flip(0), along)
    crops = pixels[
        torch.arange(records)[:, None, None, None],
        torch.arange(planes)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
    gain = 1 + colour * (2 * torch.rand(records, planes, 1, 1) - 1)
    return standardised(crops.float() / 255 * gain)


@torch.no_grad()
def _accuracy(network: _Network, pixels: Tensor, labels: Tensor) -> float:
    """Of the network's head on the frozen convolutions, as they will be used."""
    network.eval()
    tensors = network.frozen()
    right = 0
    for start in range(0, len(pixels), _AT_ONCE):
        crops = standardised(centre(pixels[start : start + _AT_ONCE].float() / 255))
        logits = network.head(convolve(crops, tensors))
        right += int((logits.argmax(1) == labels[start : start + _AT_ONCE]).sum())
    return right / len(pixels)


def _described(data: DataSet) -> dict[str, Any]:
    """What the record says about the images: enough to know whether others are the same."""
    files = {file.name: file.sha256 for file in data.files}
    return {"name": data.name, "citation": data.citation, "split": data.split, "sha256_of_files": files}


def _pixels(images: Tensor) -> Tensor:
    """``images`` as bytes, so that many fit into memory."""
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < SIDE or len(images) < _LEAST:
        raise InputError(
            f"Pre-training cannot use images of shape {tuple(images.shape)}.",
            why=f"It needs (records, 3, height, width) with at least {_LEAST} records and {SIDE} x {SIDE} pixels.",
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


def _labels(labels: Tensor, records: int) -> Tensor:
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
