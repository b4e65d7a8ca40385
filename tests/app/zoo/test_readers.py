"""From bytes to records, on files small enough to write down."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from adadp.app.zoo import find
from adadp.app.zoo.adult import CATEGORIES, NUMBERS
from adadp.app.zoo.adult import read as read_adult
from adadp.app.zoo.cifar10 import from_sprite, read_batches
from adadp.app.zoo.cifar100 import read_tiles
from adadp.app.zoo.covertype import BOUNDS
from adadp.app.zoo.covertype import read as read_covertype
from adadp.app.zoo.scaling import to_unit_range
from adadp.app.zoo.sources import SourceFailed
from adadp.errors import InputError

RANDOM = np.random.RandomState(0)
IMAGES = RANDOM.randint(0, 256, (6, 3, 32, 32), dtype=np.uint8)
"""Six images as (image, colour, row, column)."""


def binary(images, *labels):
    """The publishers' layout: label bytes, then the red, the green and the blue pixels."""
    rows = zip(*labels, images, strict=True)
    return b"".join(bytes(row[:-1]) + row[-1].tobytes() for row in rows)


def picture(pixels, kind):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, lossless=True)
    return file.getvalue()


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_files_are_labels_and_planes(label_bytes):
    classes = [3, 0, 9, 1, 1, 7]
    coarse = [[8] * 6][: label_bytes - 1]
    first, second = (
        binary(IMAGES[part], *(labels[part] for labels in (*coarse, classes))) for part in (slice(0, 4), slice(4, 6))
    )
    images, labels = read_batches([first, second], labels=label_bytes)
    assert labels.tolist() == classes
    assert (images.dtype, labels.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(images, IMAGES.astype(np.float32) / np.float32(255))


def test_a_cifar_file_that_ends_within_a_record_is_refused():
    with pytest.raises(InputError, match="records of 3073 bytes"):
        read_batches([binary(IMAGES, range(6))[:-1]])


def sprite(images):
    """An image in every row, its pixels one after the other."""
    return picture(images.transpose(0, 2, 3, 1).reshape(len(images), 1024, 3), "PNG")


@pytest.mark.parametrize(
    ("name", "labels", "part"),
    [
        ("data_batch_1.bin", "train_lables.json", slice(0, 2)),
        ("data_batch_3.bin", "train_lables.json", slice(4, 6)),
        ("test_batch.bin", "test_lables.json", slice(0, 2)),
    ],
)
def test_a_sprite_is_rebuilt_to_the_publishers_bytes(name, labels, part):
    classes = [5, 1, 4, 2, 3, 9]
    parts = {name.replace(".bin", ".png"): sprite(IMAGES[part]), labels: json.dumps(classes).encode()}
    assert from_sprite(name, parts, batch=2) == binary(IMAGES[part], classes[part])


@pytest.mark.parametrize(
    ("images", "labels", "said"), [(IMAGES[:1], [1, 2], r"\(1, 1024, 3\)"), (IMAGES[:2], [1], "1 labels")]
)
def test_a_sprite_of_another_size_is_refused(images, labels, said):
    parts = {"test_batch.png": sprite(images), "test_lables.json": json.dumps(labels).encode()}
    with pytest.raises(SourceFailed, match=said):
        from_sprite("test_batch.bin", parts, batch=2)


def tiles(images, across=2):
    """Pictures of tiles, row by row."""
    down = len(images) // across
    return images.reshape(down, across, 3, 32, 32).transpose(0, 3, 1, 4, 2).reshape(down * 32, across * 32, 3)


def tile_files(labels):
    images = RANDOM.randint(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    files = {
        f"cifar100-train-{number}.webp": picture(tiles(images[4 * number - 4 : 4 * number]), "WEBP")
        for number in range(1, 6)
    }
    return images, files | {"cifar100-train-labels.json": json.dumps({"labels": labels}).encode()}


def test_tiles_are_images_and_padding_is_left_out():
    images, files = tile_files(list(range(19)))
    (train, labels), (test, test_labels) = read_tiles(files)
    assert labels.tolist() == list(range(19))
    np.testing.assert_array_equal(train, images[:19].astype(np.float32) / np.float32(255))
    assert (test.shape, test_labels.shape) == ((0, 3, 32, 32), (0,))
    assert (train.dtype, test.dtype, test_labels.dtype) == (np.float32, np.float32, np.int64)


def test_fewer_tiles_than_labels_are_refused():
    with pytest.raises(InputError, match="20 tiles cannot be 21 images"):
        read_tiles(tile_files(list(range(21)))[1])


ROWS = [
    [2596, 51, 3, 258, 0, 510, 221, 232, 148, 6279, *[1, 0, 0, 0], *[0] * 39, 1, 5],
    [*[0] * 54, 1],
    [*[9999] * 54, 7],
]


def covertype(rows):
    return {"covtype.data": "".join(",".join(map(str, row)) + "\n" for row in rows).encode()}


def test_covertype_is_scaled_by_declared_bounds_and_cut_off_at_them():
    (features, labels), (rest, _) = read_covertype(covertype(ROWS), train_records=3)
    assert len(rest) == 0
    by_label = dict(zip(labels.tolist(), features, strict=True))
    assert sorted(by_label) == [0, 4, 6]
    expected = [
        2 * (value - low) / (high - low) - 1 for value, (low, high) in zip(ROWS[0], BOUNDS.values(), strict=False)
    ]
    np.testing.assert_allclose(by_label[4][:10], expected, atol=1e-6)
    assert by_label[4][10:].tolist() == ROWS[0][10:54]
    assert by_label[0][:5].tolist() == [-1, -1, -1, -1, 0], "an elevation of 0 is cut off at the lowest"
    assert by_label[6][6] == 1, "and a hillshade of 9999 at the highest"


def test_the_split_of_covertype_looks_at_no_value():
    def elevations(rows):
        parts = read_covertype(covertype([[row, *[0] * 53, 1] for row in rows]), train_records=300)
        return [np.round((part[0][:, 0] + 1) / 2 * 3500 + 1000).astype(int).tolist() for part in parts]

    train, test = elevations(range(1000, 1400))
    assert (len(train), sorted(train + test)) == (300, list(range(1000, 1400)))
    turned = elevations(range(1399, 999, -1))
    assert turned == [[2399 - value for value in train], [2399 - value for value in test]]
    assert train[:3] == [1000 + row for row in np.random.RandomState(2018).permutation(400)[:3]]


def test_a_row_of_covertype_with_a_number_too_few_is_refused():
    with pytest.raises(InputError, match="55 numbers"):
        read_covertype(covertype([ROWS[0], ROWS[1][:-1]]))


PERSON = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, "
    "<=50K"
)
MISSING = "90, ?, 2000000, 11th, 7, Widowed, ?, Own-child, Black, Female, 0, 99999, 99, ?, >50K"


def adult(train, test=""):
    return {"adult.data": f"{train}\n\n".encode(), "adult.test": f"|1x3 Cross validator\n{test}\n".encode()}


def marks(features):
    names = [f"{name}={word}" for name, words in CATEGORIES.values() for word in words.split(", ")]
    return {name for name, mark in zip(names, features[len(NUMBERS) :], strict=True) if mark == 1}


def test_adult_is_numbers_and_a_mark_for_every_word():
    (train, incomes), (test, test_incomes) = read_adult(adult(f"{PERSON}\n{MISSING}", f"{MISSING}.\n{PERSON}."))
    assert (incomes.tolist(), test_incomes.tolist()) == ([0, 1], [1, 0])
    np.testing.assert_array_equal(train, test[::-1])
    assert train.shape == (2, *find("adult").shape)
    values = (39, 77516, 13, 2174, 0, 40)
    expected = [
        2 * (value - low) / (high - low) - 1 for value, (_, (low, high)) in zip(values, NUMBERS.values(), strict=True)
    ]
    np.testing.assert_allclose(train[0, :6], expected, atol=1e-6)
    assert {"workclass=State-gov", "native-country=Cuba", "sex=Male"} < marks(train[0])
    assert {"workclass=?", "occupation=?", "native-country=?", "race=Black"} < marks(train[1])
    assert [len(marks(row)) for row in train] == [8, 8]
    assert train[1, [1, 4]].tolist() == [1, 1], "a weight and a loss beyond their bounds are cut off"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (PERSON.replace("Cuba", "Atlantis"), "native-country of Adult has an unknown word: 'Atlantis'"),
        (PERSON.replace("White", "?"), "race of Adult has an unknown word"),
        (PERSON.replace("<=50K", "50K"), "income of Adult has an unknown word: '50K'"),
        (PERSON.replace(", Cuba", ""), "15 values"),
    ],
)
def test_a_row_of_adult_that_is_not_as_described_is_refused(row, message):
    with pytest.raises(InputError, match=message):
        read_adult(adult(row, PERSON))


@given(arrays(np.int64, (5, 2), elements=st.integers(-(10**6), 10**6)), st.integers(0, 4))
def test_scaling_looks_at_one_record_only(values, row):
    bounds = [(-100, 50), (0, 1000)]
    scaled = to_unit_range(values, bounds)
    assert np.abs(scaled).max() <= 1
    np.testing.assert_array_equal(to_unit_range(values[row : row + 1], bounds), scaled[row : row + 1])
    inside = np.clip(values, *np.array(bounds).T)
    np.testing.assert_allclose(scaled, (inside - [-25, 500]) / [75, 500], atol=1e-5)
