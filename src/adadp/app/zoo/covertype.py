"""Covertype: the kind of forest on 30 m x 30 m cells of northern Colorado."""

from __future__ import annotations

import numpy as np

from adadp.app.zoo.addresses import Address
from adadp.app.zoo.description import Contents, DataSet, Records, listed
from adadp.app.zoo.scaling import Bounds, to_unit_range
from adadp.errors import InputError

_FILE = "covtype.data"
_RECORDS = 581_012
_TRAIN_RECORDS = 464_809
_SPLIT_SEED = 2018
_COLUMNS = 55

BOUNDS: dict[str, Bounds] = {
    "elevation (m)": (1_000, 4_500),
    "aspect (degrees)": (0, 360),
    "slope (degrees)": (0, 90),
    "horizontal distance to water (m)": (0, 2_000),
    "vertical distance to water (m)": (-1_000, 1_000),
    "horizontal distance to a road (m)": (0, 10_000),
    "hillshade at 9 am": (0, 255),
    "hillshade at noon": (0, 255),
    "hillshade at 3 pm": (0, 255),
    "horizontal distance to a fire point (m)": (0, 10_000),
}
"""Angles and the index of hillshade have the range of their unit, elevation about that of Colorado. Distances have no
declared range: their round numbers were chosen knowing the extremes of the published file, none of which they cut off.
"""


def read(contents: Contents, *, train_records: int = _TRAIN_RECORDS) -> tuple[Records, Records]:
    """Ten numbers scaled by ``BOUNDS``, 44 marks 0 or 1 (wilderness area, soil type), and the kind of forest from 0.

    The rows are split by a permutation of row numbers from a fixed seed, which looks at no value: neighbouring cells
    stand near one another in the file. ``RandomState`` is used because numpy promises that its streams never change.
    """
    text = contents[_FILE].decode("ascii").strip().replace("\n", ",")
    values = np.fromstring(text, dtype=np.int16, sep=",")
    if values.size % _COLUMNS:
        raise InputError(f"A row of {_FILE} must hold {_COLUMNS} numbers.", fix="Fetch the file again.")
    table = values.reshape(-1, _COLUMNS)
    features = np.empty((len(table), _COLUMNS - 1), dtype=np.float32)
    features[:, : len(BOUNDS)] = to_unit_range(table[:, : len(BOUNDS)], list(BOUNDS.values()))
    features[:, len(BOUNDS) :] = table[:, len(BOUNDS) : -1]
    labels = table[:, -1].astype(np.int64) - 1
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(table))
    train, test = order[:train_records], order[train_records:]
    return (features[train], labels[train]), (features[test], labels[test])


COVERTYPE = DataSet(
    name="covertype",
    title="Covertype: the kind of forest from maps, on cells of northern Colorado",
    citation="J. A. Blackard and D. J. Dean 1999, Comparative accuracies of artificial neural networks and "
    "discriminant analysis in predicting forest cover types from cartographic variables, Computers and Electronics in "
    "Agriculture 24(3); UCI Machine Learning Repository, doi 10.24432/C50K5N",
    licence="CC BY 4.0; copyright J. A. Blackard and Colorado State University",
    record="One cell of 30 m x 30 m of land. No person stands behind a record, and neighbouring cells are much alike.",
    scaling="ten numbers from declared bounds (docs/data.md) to [-1, 1], cut off at them; 44 marks as they are, 0 or 1",
    split=f"the rows permuted by row number with a fixed seed: {_TRAIN_RECORDS:,} (four fifths) to train, the rest to "
    "test",
    shape=(_COLUMNS - 1,),
    classes=7,
    train_records=_TRAIN_RECORDS,
    test_records=_RECORDS - _TRAIN_RECORDS,
    default_model="covertype-mlp",
    files=listed("covertype"),
    read=read,
    sources=(Address("https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/"),),
)
