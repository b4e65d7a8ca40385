"""Records by index from whatever the data is, and a clear refusal of what cannot be sampled."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from adadp.errors import InputError
from adadp.records import Records

FEATURES = torch.arange(12.0).reshape(6, 2)
LABELS = torch.arange(6) % 2
TWO = torch.tensor([4, 1])


class Listed(Dataset):
    """A map-style data set over a list."""

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]


class Stream(IterableDataset):
    def __len__(self):
        return 6

    def __iter__(self):
        return iter(range(6))


def same(left, right):
    return left.dtype == right.dtype and torch.equal(left, right)


@pytest.mark.parametrize(
    "data",
    [
        (FEATURES, LABELS),
        [FEATURES, LABELS],
        TensorDataset(FEATURES, LABELS),
        Listed([(FEATURES[i], int(LABELS[i])) for i in range(6)]),
        Listed([[FEATURES[i].numpy(), LABELS[i]] for i in range(6)]),
        Listed([namedtuple("Row", "x y")(FEATURES[i], LABELS[i]) for i in range(6)]),
    ],
    ids=["tuple", "list", "tensor data set", "tuples", "numpy", "named tuples"],
)
def test_a_batch_is_the_columns_of_the_records_asked_for(data):
    records = Records(data)
    features, labels = records.batch(TWO)
    assert len(records) == 6
    assert same(features, FEATURES[TWO])
    assert same(labels, LABELS[TWO])
    assert [part.shape[0] for part in records.example()] == [1, 1]


def test_one_tensor_or_one_dict_is_one_element_of_the_batch():
    (alone,) = Records(FEATURES).batch(TWO)
    (named,) = Records({"x": FEATURES, "y": LABELS}).batch(TWO)
    (fetched,) = Records(Listed([{"x": FEATURES[i], "y": LABELS[i]} for i in range(6)])).batch(TWO)
    (vector,) = Records(Listed([FEATURES[i] for i in range(6)])).batch(TWO)
    assert same(alone, FEATURES[TWO])
    assert same(vector, FEATURES[TWO])
    for found in (named, fetched):
        assert same(found["x"], FEATURES[TWO])
        assert same(found["y"], LABELS[TWO])


def test_several_inputs_and_nested_ones_stay_in_order():
    left, (right, named) = Records((FEATURES, (LABELS, {"z": FEATURES + 1}))).batch(TWO)
    assert same(left, FEATURES[TWO])
    assert same(right, LABELS[TWO])
    assert same(named["z"], FEATURES[TWO] + 1)


def test_text_beside_tensors_stays_text():
    features, names = Records(Listed([(FEATURES[i], f"name {i}") for i in range(6)])).batch(TWO)
    assert same(features, FEATURES[TWO])
    assert tuple(names) == ("name 4", "name 1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_float64_becomes_what_the_model_computes_in_and_nothing_else_does(dtype):
    wide, half, labels = Records((FEATURES.double(), FEATURES.half(), LABELS), dtype=dtype).batch(TWO)
    assert (wide.dtype, half.dtype, labels.dtype) == (dtype, torch.float16, torch.int64)
    (fetched,) = Records(Listed([np.ones(2) for _ in range(6)]), dtype=dtype).batch(TWO)
    assert fetched.dtype == dtype
    assert Records(FEATURES.double()).batch(TWO)[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((FEATURES, LABELS[:5]), r"different lengths\."),
        ((FEATURES, torch.tensor(3)), "different lengths"),
        (torch.tensor(3), "different lengths"),
        ((FEATURES[:1], LABELS[:1]), r"has 1 record\..*two records at least"),
        (FEATURES[:0], r"has 0 records\."),
        (Listed([FEATURES[0]]), r"has 1 record\."),
        (Listed([]), r"has 0 records\."),
        ([(FEATURES[0], 1), (FEATURES[1], 0)], "holds int where tensors are meant"),
        ((), "holds nothing"),
        ({}, "holds nothing"),
        (DataLoader(Stream()), "is Stream, whose records cannot be counted"),
        (Stream(), "is Stream, whose records cannot be counted"),
        (iter([1, 2]), "cannot be counted and found by index"),
        ({1, 2, 3}, "is set"),
        ("mnist", "no data that is read by index"),
        (None, "is NoneType"),
        (7, "is int"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_records_to_draw_is_refused(data, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        Records(data)


@pytest.mark.parametrize("records", [[object(), object()], [torch.ones(2), torch.ones(3)]], ids=["object", "shapes"])
def test_records_that_make_no_batch_are_refused_in_words(records):
    with pytest.raises(InputError, match="cannot be put into one batch") as caught:
        Records(Listed(records)).batch(torch.tensor([0, 1]))
    assert not any(letter.isdigit() for letter in str(caught.value))  # shapes of private records
    assert caught.value.__suppress_context__


def test_only_tensors_are_kept_as_columns():
    assert Records(TensorDataset(FEATURES, LABELS)).columns[1] is LABELS
    assert Records(Listed([FEATURES[0], FEATURES[1]])).columns is None
