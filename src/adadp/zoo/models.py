"""The small networks the papers train, built from a seed.

    name          network
    linear        softmax regression on the flattened record
    mlp           one hidden layer of 1000 units, ReLU (Abadi et al. 2016); mlp:256,128 sets the hidden widths
    cancer        mlp:10,20,10 (Yu et al. 2019)
    cnn           two convolutions and a hidden layer of 32 units, ReLU: 26,010 parameters on MNIST, the network of the
                  Opacus example
    cnn-tanh      the same with tanh, which suits clipped gradients better (Papernot et al. 2021)

``small_transformer`` reads tokens and is built by its own function. No network has a layer that mixes records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.errors import InputError
from adadp.zoo.catalogue import find

MODELS = ("linear", "mlp", "cancer", "cnn", "cnn-tanh")
"""Names for ``build_model``; ``mlp`` may be followed by its widths."""

_CNN_SMALLEST = 14
"""Height and width below which nothing is left after the second pooling of ``cnn``."""


def build_model(name: str, *, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The network ``name`` for records of ``input_shape``, with weights drawn from ``seed``.

    what is given                      what happens
    an unknown name, or bad widths     ``InputError`` with the known names
    an input too small for ``cnn``     ``InputError``: no pixel would be left
    a global generator in any state    it is neither read nor moved
    """
    shape = tuple(checks.count("input_shape", length) for length in input_shape)
    classes = checks.count("classes", classes, minimum=2, why="With one class there is nothing to learn.")
    with _drawing_from(seed):
        kind, colon, widths = name.partition(":")
        if kind == "mlp" and colon:
            return _mlp(shape, _widths(name, widths), classes)
        if name == "mlp":
            return _mlp(shape, (1000,), classes)
        if name == "linear":
            return _mlp(shape, (), classes)
        if name == "cancer":
            return _mlp(shape, (10, 20, 10), classes)
        if name == "cnn":
            return _cnn(name, shape, classes, nn.ReLU)
        if name == "cnn-tanh":
            return _cnn(name, shape, classes, nn.Tanh)
    raise _unknown(f"There is no model {name!r}.")


def default_model(data_name: str) -> str:
    """The model the papers train on a data set of the catalogue."""
    return find(data_name).default_model


def small_transformer(
    vocabulary: int,
    classes: int,
    *,
    seed: int,
    sequence: int = 64,
    width: int = 128,
    layers: int = 4,
    heads: int = 4,
) -> nn.Module:
    """A classifier of token sequences: embedding, ``layers`` encoder layers, mean over the positions, linear.

    Input: (records, positions) int64 with at most ``sequence`` positions. Dropout is 0, the norm is per position.
    """
    vocabulary, classes = checks.count("vocabulary", vocabulary), checks.count("classes", classes, minimum=2)
    sequence, layers = checks.count("sequence", sequence), checks.count("layers", layers)
    width, heads = checks.count("width", width), checks.count("heads", heads)
    if width % heads:
        raise InputError(f"A width of {width} cannot be split over {heads} heads.", fix="Pass a multiple of the heads.")
    with _drawing_from(seed):
        return _Transformer(
            vocabulary=vocabulary, classes=classes, sequence=sequence, width=width, layers=layers, heads=heads
        )


class _Transformer(nn.Module):
    def __init__(self, *, vocabulary: int, classes: int, sequence: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(sequence, width)
        # nn.TransformerEncoder would copy one layer, and all layers would start with the same weights.
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, heads, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
                for _ in range(layers)
            )
        )
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        # Positions are looked up once per record, so that every layer's input has the records on its first axis.
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        encoded = self.layers(self.tokens(tokens) + self.positions(positions))
        logits: Tensor = self.head(encoded.mean(dim=1))
        return logits


def _mlp(shape: tuple[int, ...], hidden: tuple[int, ...], classes: int) -> nn.Module:
    sizes = (math.prod(shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for size, width in pairwise(sizes):
        layers += [nn.Linear(size, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def _cnn(name: str, shape: tuple[int, ...], classes: int, activation: type[nn.Module]) -> nn.Module:
    if len(shape) != 3 or min(shape[1:]) < _CNN_SMALLEST:
        raise InputError(
            f"{name} cannot read records of shape {shape}.",
            why=f"It needs (channels, height, width) with at least {_CNN_SMALLEST} x {_CNN_SMALLEST} pixels.",
            fix="Choose linear or mlp.",
        )
    left = math.prod(_after_convolutions(length) for length in shape[1:])
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, kernel_size=8, stride=2, padding=3),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * left, 32),
        activation(),
        nn.Linear(32, classes),
    )


def _after_convolutions(length: int) -> int:
    """How many of ``length`` pixels are left: convolution 8/2 padded by 3, pool 2/1, convolution 4/2, pool 2/1."""
    pooled = length // 2 - 1
    return (pooled - 4) // 2


def _widths(name: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise _unknown(f"The hidden widths of {name!r} are not whole numbers above 0.")
    return tuple(int(part) for part in parts)


def _unknown(what: str) -> InputError:
    return InputError(what, fix=f"Choose one of: {', '.join(MODELS)}; or mlp with its widths, such as mlp:256,128.")


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Weights are drawn from ``seed`` on the CPU; every global generator is left as it was found."""
    seed = checks.count("seed", seed, minimum=0)
    if seed >= 2**64:
        raise InputError(f"seed must be below 2^64, got {seed}.", fix="Pass a smaller seed.")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield
