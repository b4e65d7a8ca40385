"""Adult, also called Census Income: who earned more than 50,000 dollars in 1994."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adadp.app.zoo.addresses import Address
from adadp.app.zoo.description import Contents, DataSet, Records, listed
from adadp.app.zoo.scaling import Bounds, to_unit_range
from adadp.errors import InputError

_TRAIN, _TEST = "adult.data", "adult.test"

NUMBERS: dict[int, tuple[str, Bounds]] = {
    0: ("age", (0, 100)),
    2: ("fnlwgt", (0, 1_500_000)),
    4: ("education-num", (1, 16)),
    10: ("capital-gain", (0, 99_999)),
    11: ("capital-loss", (0, 5_000)),
    12: ("hours-per-week", (0, 99)),
}
"""Column -> its name and bounds. Those of age, education-num, capital-gain and hours-per-week are what the field can
hold. fnlwgt and capital-loss have no declared range: their round numbers were chosen knowing the extremes of the
published files, none of which they cut off."""

CATEGORIES: dict[int, tuple[str, str]] = {
    1: (
        "workclass",
        "Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, Without-pay, Never-worked, ?",
    ),
    3: (
        "education",
        "Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, 7th-8th, 12th, Masters, "
        "1st-4th, 10th, Doctorate, 5th-6th, Preschool",
    ),
    5: (
        "marital-status",
        "Married-civ-spouse, Divorced, Never-married, Separated, Widowed, Married-spouse-absent, Married-AF-spouse",
    ),
    6: (
        "occupation",
        "Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty, Handlers-cleaners, "
        "Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving, Priv-house-serv, Protective-serv, "
        "Armed-Forces, ?",
    ),
    7: ("relationship", "Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried"),
    8: ("race", "White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black"),
    9: ("sex", "Female, Male"),
    13: (
        "native-country",
        "United-States, Cambodia, England, Puerto-Rico, Canada, Germany, Outlying-US(Guam-USVI-etc), India, Japan, "
        "Greece, South, China, Cuba, Iran, Honduras, Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, Portugal, "
        "Ireland, France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, Guatemala, Nicaragua, "
        "Scotland, Thailand, Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, Holand-Netherlands, ?",
    ),
}
"""Column -> its name and its words in the order of the UCI description; "?" where that says values may be missing."""

_INCOMES = ("<=50K", ">50K")
_COLUMNS = 15


def read(contents: Contents) -> tuple[Records, Records]:
    """Six numbers scaled by their bounds, then a mark 0 or 1 for every word of every category; 1 is above 50,000.

    No row is left out: a missing value is a word of its own.
    """
    return _part(contents[_TRAIN]), _part(contents[_TEST])


def _part(content: bytes) -> Records:
    lines = content.decode("ascii").splitlines()
    rows = [line.split(", ") for line in lines if line and not line.startswith("|")]
    if any(len(row) != _COLUMNS for row in rows):
        raise InputError(f"A row of Adult must hold {_COLUMNS} values.", fix="Fetch the file again.")
    columns = list(zip(*rows, strict=True))
    numbers = np.array([columns[column] for column in NUMBERS], dtype=np.int64).T
    features = [to_unit_range(numbers, [bounds for _, bounds in NUMBERS.values()])]
    for column, (name, words) in CATEGORIES.items():
        known = words.split(", ")
        features.append(np.eye(len(known), dtype=np.float32)[_positions(name, columns[column], known)])
    incomes = [income.removesuffix(".") for income in columns[-1]]
    return np.concatenate(features, axis=1), _positions("income", incomes, _INCOMES)


def _positions(name: str, column: Sequence[str], known: Sequence[str]) -> NDArray[np.int64]:
    """Where each word of ``column`` stands among the ``known``."""
    place = {word: position for position, word in enumerate(known)}
    unknown = set(column) - set(place)
    if unknown:
        raise InputError(f"{name} of Adult has an unknown word: {min(unknown)!r}.", fix="Fetch the file again.")
    return np.array([place[word] for word in column], dtype=np.int64)


ADULT = DataSet(
    name="adult",
    title="Adult (Census Income): who earned more than 50,000 dollars in 1994",
    citation="R. Kohavi 1996, Scaling up the accuracy of naive-Bayes classifiers: a decision-tree hybrid, KDD; B. "
    "Becker and R. Kohavi, UCI Machine Learning Repository, doi 10.24432/C5XW20",
    licence="CC BY 4.0",
    record="One person of the Current Population Survey of 1994. People of one household may be several records, and "
    "some rows are equal.",
    scaling="six numbers from declared bounds (docs/data.md) to [-1, 1], cut off at them; a mark 0 or 1 for every word "
    "of the eight categories, a missing value being a word of its own",
    split="the publishers' training and test files",
    shape=(len(NUMBERS) + sum(len(words.split(", ")) for _, words in CATEGORIES.values()),),
    classes=2,
    train_records=32_561,
    test_records=16_281,
    default_model="linear",
    files=listed("adult"),
    read=read,
    sources=(Address("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/", suffix=""),),
)
