"""The small networks the papers train, built from a seed.

    name            network
    linear          softmax regression on the flattened record, starting at zero
    linear-no-bias  the same without a bias. A bias is an input of 1 to every record: beside features of norm 1 it takes
                    half of each gradient's squared norm, which is clipped, and has little to say
    mlp             one hidden layer of 1000 units, ReLU; mlp:256,128 sets the hidden widths
    mnist-mlp       mlp:1000, which Abadi et al. 2016 train on 60 principal components
    mnist-convex    linear, the convex model of Yu et al. 2018
    mnist-cnn       5x5 convolutions to 10 and 20 channels, each with 2x2 pooling, 50 units (Yu et al. 2018)
    cancer-mlp      mlp:10,20,10 (Yu et al. 2019); cancer is its older name
    covertype-mlp   two hidden layers of 100 units, tanh (Yu et al. 2018)
    cifar-fc        mlp:384,384, the trained part of the CIFAR-10 network of Abadi et al. 2016 on frozen convolutions
    cnn             two convolutions and a hidden layer of 32 units, ReLU: 26,010 parameters on MNIST, the network of
                    the Opacus example
    cnn-tanh        the same with tanh, which suits clipped gradients better (Papernot et al. 2021)
    feature-cnn     two 3x3 convolutions with tanh on maps of features such as scattering (after Tramer and Boneh 2021);
                    feature-cnn:64,64 sets their channels
    resnet          a residual network for small images with group normalisation in place of batch normalisation, which
                    would mix records; resnet:20 sets its depth, 6n + 2
    byte-decoder    a language model of bytes, of width 64 and 2 layers; byte-decoder:128,4 sets both
    hf:NAME         a public model of transformers, from a folder or the hub: see ``adadp.app.hub_models``
    module:function a function of yours: function(input_shape, classes) returns a torch.nn.Module; the module may lie in
                    the current folder

``small_transformer`` reads tokens and is built by its own function. No network has a layer that mixes records.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.app.hub_models import PREFIX, HubModel
from adadp.app.zoo.byte_decoder import ByteDecoder
from adadp.errors import InputError
from adadp.registry import refuse_untrusted

Shape = tuple[int, ...]


def _linear(name: str, shape: Shape, classes: int, *, bias: bool = True) -> nn.Module:
    del name
    layer = nn.Linear(math.prod(shape), classes, bias=bias)
    for value in layer.parameters():
        nn.init.zeros_(value)  # a convex model may start anywhere; a random start is one more noise to undo
    return nn.Sequential(nn.Flatten(), layer)


def _mlp(
    name: str, shape: Shape, classes: int, sizes: Shape = (1000,), activation: type[nn.Module] = nn.ReLU
) -> nn.Module:
    del name
    widths = (math.prod(shape), *sizes)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, width in pairwise(widths):
        layers += [nn.Linear(before, width), activation()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def _paper_cnn(name: str, shape: Shape, classes: int) -> nn.Module:
    _check_images(name, shape, 16)
    layers: list[nn.Module] = []
    for before, width in ((shape[0], 10), (10, 20)):
        layers += [nn.Conv2d(before, width, kernel_size=5), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(_left(layers, shape), 50), nn.ReLU(), nn.Linear(50, classes))


def _cnn(name: str, shape: Shape, classes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    _check_images(name, shape, 14)
    layers = [
        nn.Conv2d(shape[0], 16, kernel_size=8, stride=2, padding=3),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
    ]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(_left(layers, shape), 32), activation(), nn.Linear(32, classes)
    )


def _feature_cnn(name: str, shape: Shape, classes: int, sizes: Shape = (64, 64)) -> nn.Module:
    _check_images(name, shape, 2)
    layers = [
        nn.Conv2d(shape[0], sizes[0], kernel_size=3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(sizes[0], sizes[1], kernel_size=3, padding=1),
        nn.Tanh(),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(_left(layers, shape), classes))


def _left(layers: list[nn.Module], shape: Shape) -> int:
    with torch.no_grad():
        return int(nn.Sequential(*layers)(torch.zeros(1, *shape)).numel())


def _resnet(name: str, shape: Shape, classes: int, sizes: Shape = (20,)) -> nn.Module:
    _check_images(name, shape, 8)
    (depth,) = sizes
    if not 8 <= depth <= _DEEPEST or (depth - 2) % 6:
        raise InputError(
            f"{name} has no depth of 6n + 2.", fix=f"Use resnet:8, resnet:14, resnet:20, ..., up to {_DEEPEST}."
        )
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, kernel_size=3, padding=1, bias=False), *_norm(16)]
    before = 16
    for width in (16, 32, 64):
        for block in range((depth - 2) // 6):
            layers.append(_Residual(before, width, stride=2 if block == 0 and width > 16 else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def _norm(channels: int) -> tuple[nn.Module, nn.Module]:
    return nn.GroupNorm(8, channels), nn.ReLU()


class _Residual(nn.Module):
    """Two convolutions with group normalisation, added to their input (He et al. 2016, Wu and He 2018)."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(before, width, kernel_size=3, stride=stride, padding=1, bias=False),
            *_norm(width),
            nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False),
            nn.GroupNorm(8, width),
        )
        same = before == width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, width, kernel_size=1, stride=stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        return torch.relu(self.path(maps) + self.shortcut(maps))


def _byte_decoder(name: str, shape: Shape, classes: int, sizes: Shape = (64, 2)) -> nn.Module:
    del classes
    if sizes[1] > _DEEPEST:
        raise InputError(f"{name} has more than {_DEEPEST} layers.", fix="Choose fewer.")
    return ByteDecoder(_row_length(name, shape), *sizes)


def _row_length(name: str, shape: Shape) -> int:
    if len(shape) != 1:
        raise InputError(
            f"{name} cannot read records of shape {shape}.", why="It reads texts.", fix="Choose a data set of texts."
        )
    return shape[0]


_NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "linear": _linear,
    "linear-no-bias": partial(_linear, bias=False),
    "mlp": _mlp,
    "mnist-mlp": _mlp,
    "mnist-convex": _linear,
    "mnist-cnn": _paper_cnn,
    "cancer-mlp": partial(_mlp, sizes=(10, 20, 10)),
    "covertype-mlp": partial(_mlp, sizes=(100, 100), activation=nn.Tanh),
    "cifar-fc": partial(_mlp, sizes=(384, 384)),
    "cnn": _cnn,
    "cnn-tanh": partial(_cnn, activation=nn.Tanh),
    "feature-cnn": _feature_cnn,
    "resnet": _resnet,
    "byte-decoder": _byte_decoder,
}
_MOST_PARAMETERS, _MOST_LAYERS, _DEEPEST = 1 << 30, 100, 1208
_SIZES = {"mlp": None, "feature-cnn": 2, "resnet": 1, "byte-decoder": 2}
"""Networks whose name may be followed by sizes, and by how many; None: any number."""

MODELS = tuple(_NETWORKS)
"""Names for ``build_model``; ``mlp``, ``feature-cnn``, ``resnet`` and ``byte-decoder`` may be followed by sizes."""
_NETWORKS["cancer"] = _NETWORKS["cancer-mlp"]  # its older name


def build_model(name: str, *, input_shape: Shape, classes: int, seed: int, numbers: bool = False) -> nn.Module:
    """The network ``name`` for records of ``input_shape``, with weights drawn from ``seed``. ``classes`` is how many
    numbers it says of a record: scores, or with ``numbers`` one for each target.

    what is given                      what happens
    an unknown name, or bad widths     ``InputError`` with the known names
    an input too small for ``cnn``     ``InputError``: no pixel would be left
    a global generator in any state    it is neither read nor moved
    """
    shape = tuple(checks.count("input_shape", length) for length in input_shape)
    least = 1 if numbers else 2
    classes = checks.count("classes", classes, minimum=least, why="With one class there is nothing to learn.")
    kind, colon, sizes = name.partition(":")
    own = colon and kind not in _SIZES
    given = {"sizes": _sizes(name, sizes, _SIZES[kind])} if colon and not own else {}
    if kind in _NETWORKS and not own:
        _check_size(name, _NETWORKS[kind], shape, classes, **given)
    with _drawing_from(seed):
        if name.startswith(PREFIX):
            return HubModel.of(name).build(_row_length(name, shape), classes)
        if own:
            return _of_your_own(name, kind, sizes, shape, classes)
        if kind not in _NETWORKS:
            raise _unknown(f"There is no model {name!r}.")
        return _NETWORKS[kind](name, shape, classes, **given)


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


def _of_your_own(name: str, module: str, function: str, shape: Shape, classes: int) -> nn.Module:
    """What ``module:function`` returns for the shape of a record and the number of classes."""
    if not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
        raise _unknown(f"There is no model {name!r}.")
    refuse_untrusted("model", name)
    with _importing_from_here():
        try:
            made: object = importlib.import_module(module)
            for part in function.split("."):
                made = getattr(made, part)
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"The model {name} cannot be found: {error}.",
                fix="Name a module that can be imported from here, and a function in it, like nets:small.",
            ) from error
        if not callable(made):
            raise InputError(f"{name} is no function.", fix="Name one that takes (input_shape, classes).")
        _check_signature(name, made)
        network = made(shape, classes)
    if not isinstance(network, nn.Module):
        raise InputError(
            f"{name} returned {type(network).__name__}, not a torch.nn.Module.", fix="Return the network itself."
        )
    return network


@contextmanager
def _importing_from_here() -> Iterator[None]:
    """The current folder is looked into first, as by ``python -m``; for the command ``adadp`` it is not on the path."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with suppress(ValueError):  # what was imported may have put the path in order itself
            sys.path.remove(here)


def _check_signature(name: str, made: Callable[..., object]) -> None:
    """Refuse what cannot be called with a shape and a number of classes; a mistake inside of it stays as it is."""
    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):  # some of what is written in C does not say what it takes
        return
    try:
        signature.bind((), 0)
    except TypeError as error:
        raise InputError(
            f"{name}{signature} cannot be called as {name}(input_shape, classes): {error}.",
            why="The network must fit the shape of a record, without the batch, and the number of classes.",
            fix="Take these two; what else the function takes needs a default.",
        ) from error


def _check_images(name: str, shape: Shape, smallest: int) -> None:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise InputError(
            f"{name} cannot read records of shape {shape}.",
            why=f"It needs (channels, height, width) with at least {smallest} x {smallest} pixels.",
            fix="Choose linear or mlp.",
        )


def _check_size(name: str, network: Callable[..., nn.Module], shape: Shape, classes: int, **given: Any) -> None:
    """Refuse a network of more parameters than a machine holds, before there is one: shapes alone are made here."""
    try:
        with torch.device("meta"):
            size = sum(each.numel() for each in network(name, shape, classes, **given).parameters())
    except (RuntimeError, OverflowError, TypeError):  # torch counts in 64 bits
        size = 1 << 63
    if size > _MOST_PARAMETERS:
        raise InputError(
            f"{name} for records of shape {shape} and {classes} outputs has more than {_MOST_PARAMETERS:,} parameters.",
            why="Larger ones of the named networks are not built.",
            fix="Choose smaller sizes, or fewer classes.",
        )


def _sizes(name: str, text: str, how_many: int | None) -> Shape:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part[:10]) > 0 for part in parts):
        raise _unknown(f"The sizes of {name!r} are not whole numbers above 0.")
    if len(parts) > _MOST_LAYERS or any(len(part) > 9 for part in parts):
        raise _unknown(f"The sizes of {name[:40]!r} are too many, or too large.")
    if how_many is not None and len(parts) != how_many:
        raise _unknown(f"{name!r} needs {how_many} size{'s' if how_many > 1 else ''}.")
    return tuple(int(part) for part in parts)


def _unknown(what: str) -> InputError:
    return InputError(
        what,
        fix=f"Choose one of: {', '.join(MODELS)}; with sizes, such as mlp:256,128; "
        "a public model, hf:NAME; or module:function of your own.",
    )


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Weights are drawn from ``seed`` on the CPU; every global generator is left as it was found."""
    seed = checks.count("seed", seed, minimum=0)
    if seed >= 2**64:
        raise InputError(f"`seed` must be below 2^64, got {seed}.", fix="Pass a smaller `seed`.")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield
