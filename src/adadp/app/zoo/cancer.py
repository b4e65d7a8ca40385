"""Breast Cancer Wisconsin (Original): nine marks of a cell sample, benign or malignant."""

from __future__ import annotations

import numpy as np

from adadp.app.zoo.description import Contents, DataSet, Records, listed

_FILE = "breast-cancer-wisconsin.data"
_TRAIN_RECORDS = 560
_SPLIT_SEED = 2019


def read(contents: Contents) -> tuple[Records, Records]:
    """Nine marks, their declared range 1..10 mapped to [-1, 1], and 0 for benign or 1 for malignant.

    A row with a missing mark is left out for what stands in itself alone; no value is filled in from other rows, which
    would mix records. The rest is split by a permutation of row numbers from a fixed seed, which looks at no value.
    ``RandomState`` is used because numpy promises that its streams never change.
    """
    rows = [line.split(",") for line in contents[_FILE].decode("ascii").splitlines() if "?" not in line]
    table = np.array(rows, dtype=np.int64)
    marks = ((table[:, 1:10] - 5.5) / 4.5).astype(np.float32)
    labels = np.where(table[:, 10] == 4, 1, 0).astype(np.int64)
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(table))
    train, test = order[:_TRAIN_RECORDS], order[_TRAIN_RECORDS:]
    return (marks[train], labels[train]), (marks[test], labels[test])


CANCER = DataSet(
    name="cancer",
    title="Breast Cancer Wisconsin (Original): cell samples, benign or malignant",
    citation="O. L. Mangasarian and W. H. Wolberg 1990, Cancer diagnosis via linear programming, SIAM News 23(5); "
    "obtained from the University of Wisconsin Hospitals, Madison, from Dr. William H. Wolberg; UCI Machine Learning "
    "Repository, doi 10.24432/C5HP4Z",
    licence="CC BY 4.0; its donors ask to be cited and acknowledged",
    record="One cell sample. The 699 samples come from 645 distinct patients, some of whom gave several: protecting a "
    "record does not protect such a patient. 14 patients are in both the training and the test records.",
    scaling="(mark - 5.5) / 4.5, from the declared range 1..10 to [-1, 1]",
    split=f"683 rows without a missing mark, permuted by row number with a fixed seed: {_TRAIN_RECORDS} to train, the "
    "rest to test (the sizes of Yu et al. 2019)",
    shape=(9,),
    classes=2,
    train_records=_TRAIN_RECORDS,
    test_records=123,
    default_model="cancer-mlp",
    files=listed("cancer"),
    read=read,
    packaged=True,
)
