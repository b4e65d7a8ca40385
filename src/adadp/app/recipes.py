"""What is taken where a configuration says nothing: per data set and features, settings that were measured to work.

The settings were chosen on held-out training records of public data sets, a few settings with one seed each (the files
in experiments/ say how many), so on these data sets a certificate cannot count the search. They are constants: nothing
here looks at data. For data of a user's own they are those of a small table, and only a start.
"""

from __future__ import annotations

from dataclasses import dataclass

from adadp.app.features import NONE, Stage

OWN = "own"
"""Stands for any data of a user's own."""
TABLE = "table"
"""Stands for a table of a user's own, which a linear model reads."""
NUMBERS = "table of numbers"
"""The same with targets that are numbers."""
LINEAR = ("linear", "linear-no-bias")


@dataclass(frozen=True)
class Recipe:
    """Settings that go together. ``decay``: the learning rate falls linearly to a hundredth over the epochs. ``auto``:
    with a target epsilon, batch and length are chosen from it (``auto_size``), and these numbers are for runs without.
    ``by_records``: batch and epochs follow the number of records (``auto_size.table_size``). ``momentum`` and ``ema``
    are taken where the rate is.
    """

    model: str
    batch_size: int
    epochs: int
    clip_norm: float
    lr: float
    optimizer: str = "sgd"
    decay: bool = False
    auto: bool = False
    by_records: bool = False
    momentum: float = 0.0
    ema: float | None = None


DEFAULT_FEATURES = {
    "mnist": "scatter",
    "fashion-mnist": "scatter",
    "cifar10": "synthetic:leaves+log-scatter&patches&deep-patches+synthetic-pca",
    "cifar100": "scatter",
    "imdb": "wordllama",
}
"""Data set -> the features it gets where neither features nor a model are named."""

BYTE_MODEL = "byte-decoder"
"""The model that reads the features bytes where none are named."""

EQUALISED = "equalise"
"""What the method adadp puts after such features; see docs/methods/adadp.md."""

SHAPED = (EQUALISED, "centre")
"""Released stages that leave features as they are but for their mean and the length of some directions."""

DELTAS = {
    "cancer": 1e-4,
    "mnist": 1e-5,
    "fashion-mnist": 1e-5,
    "cifar10": 1e-5,
    "cifar100": 1e-5,
    "covertype": 1e-6,
    "adult": 1e-5,
    "imdb": 1e-5,
}
"""Data set -> the delta of its papers, below one over its number of records, which is public."""

RECIPES: dict[tuple[str, str], Recipe] = {
    ("cancer", NONE): Recipe("cancer-mlp", batch_size=56, epochs=20, clip_norm=1.0, lr=0.5),
    ("mnist", NONE): Recipe("mlp:1000", batch_size=2400, epochs=40, clip_norm=1.0, lr=4.0),
    ("mnist", "pca"): Recipe(
        "mnist-mlp", batch_size=1200, epochs=16, clip_norm=1.0, lr=0.01, optimizer="adam", decay=True, auto=True
    ),
    ("mnist", "scatter"): Recipe(
        "linear-no-bias", batch_size=1200, epochs=16, clip_norm=0.1, lr=0.14, optimizer="adam", decay=True, auto=True
    ),
    ("cifar10", "scatter"): Recipe(
        "linear-no-bias", batch_size=4000, epochs=48, clip_norm=0.1, lr=0.1, optimizer="adam", decay=True
    ),
    ("cifar10", "conv-cifar100"): Recipe(
        "cifar-fc", batch_size=2000, epochs=30, clip_norm=1.0, lr=0.003, optimizer="adam", decay=True
    ),
    ("cifar10", "efficientnet-lite0"): Recipe(
        "linear-no-bias", batch_size=4000, epochs=24, clip_norm=0.1, lr=0.15, optimizer="adam", decay=True
    ),
    ("covertype", NONE): Recipe(
        "covertype-mlp", batch_size=5000, epochs=10, clip_norm=1.0, lr=0.01, optimizer="adam", decay=True
    ),
    ("adult", NONE): Recipe("linear", batch_size=1000, epochs=20, clip_norm=0.5, lr=0.05, optimizer="adam", decay=True),
    ("imdb", "wordllama"): Recipe(
        "linear", batch_size=2000, epochs=20, clip_norm=0.1, lr=0.1, optimizer="adam", decay=True
    ),
    ("imdb", "bytes"): Recipe(
        "byte-decoder", batch_size=500, epochs=3, clip_norm=0.1, lr=0.006, optimizer="adam", decay=True
    ),
    (TABLE, NONE): Recipe(
        "linear-no-bias",
        batch_size=4000,
        epochs=32,
        clip_norm=0.7,
        lr=0.1,
        optimizer="adam",
        decay=True,
        by_records=True,
    ),
    # Errors of numbers are small against their range, most of all where it is wide: so are the gradients.
    (NUMBERS, NONE): Recipe(
        "linear-no-bias",
        batch_size=4000,
        epochs=32,
        clip_norm=0.2,
        lr=0.01,
        optimizer="adam",
        decay=True,
        by_records=True,
    ),
    (OWN, NONE): Recipe("linear", batch_size=512, epochs=20, clip_norm=0.5, lr=0.05, optimizer="adam", decay=True),
}

_BY_FEATURES: dict[str, Recipe] = {
    "synthetic-pca": Recipe(
        "linear-no-bias", batch_size=8192, epochs=60, clip_norm=0.1, lr=60.0, momentum=0.9, ema=0.99
    ),
    "scatter": RECIPES["mnist", "scatter"],
    "pca": RECIPES["mnist", "pca"],
    "conv-cifar100": RECIPES["cifar10", "conv-cifar100"],
    "efficientnet-lite0": RECIPES["cifar10", "efficientnet-lite0"],
    "efficientnet-lite1": RECIPES["cifar10", "efficientnet-lite0"],
    "efficientnet-lite2": RECIPES["cifar10", "efficientnet-lite0"],
    "lite0-cifar100": RECIPES["cifar10", "efficientnet-lite0"],
    "timm": RECIPES["cifar10", "efficientnet-lite0"],
    "wordllama": RECIPES["imdb", "wordllama"],
    "hf": RECIPES["imdb", "wordllama"],
    "bytes": RECIPES["imdb", "bytes"],
    "hf-tokens": Recipe(
        "byte-decoder", batch_size=500, epochs=3, clip_norm=0.1, lr=0.0005, optimizer="adam", decay=True
    ),
}
"""The last features before the network -> what they get with data that has no recipe of its own for them."""


def recipe_for(data: str, stages: tuple[Stage, ...]) -> Recipe:
    """The recipe for a data set (``OWN``, ``TABLE`` or ``NUMBERS`` for others) and the features before the network."""
    names = [stage.name for stage in stages]
    while len(names) > 1 and names[-1] in SHAPED:  # the same features, in better shape
        names.pop()
    kind = "+".join(names) or NONE
    own = RECIPES.get((data, kind))
    if own is not None:
        return own
    by_features = _BY_FEATURES.get(names[-1]) if names else None
    return by_features or RECIPES.get((data, NONE)) or RECIPES[OWN, NONE]
