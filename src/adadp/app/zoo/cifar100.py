"""CIFAR-100: small colour photographs of a hundred kinds of things.

Two forms: the publishers' files, and pictures with 10,000 images each which leave out the test images and the one
training image that is also a test image of CIFAR-10. The second is for making features to be used on CIFAR-10.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
from numpy.typing import NDArray

from adadp.app.zoo.addresses import TarAddress
from adadp.app.zoo.cifar10 import pixels, read_batches
from adadp.app.zoo.description import Contents, DataSet, Records, listed
from adadp.errors import InputError

_PICTURES = tuple(f"cifar100-train-{number}.webp" for number in range(1, 6))
_LABELS = "cifar100-train-labels.json"
_SIDE = 32


def read(contents: Contents) -> tuple[Records, Records]:
    """Images of shape (3, 32, 32), each value divided by the constant 255, and the fine classes."""
    return read_batches([contents["train.bin"]], labels=2), read_batches([contents["test.bin"]], labels=2)


def read_tiles(contents: Contents) -> tuple[Records, Records]:
    """The same from pictures of 32 x 32 tiles, row by row. Tiles past the last label are padding; no test records."""
    labels = np.array(json.loads(contents[_LABELS])["labels"], dtype=np.int64)
    tiles = np.concatenate([_tiles(contents[name]) for name in _PICTURES])
    if len(tiles) < len(labels):
        raise InputError(f"{len(tiles)} tiles cannot be {len(labels)} images.", fix="Fetch the files again.")
    images = tiles[: len(labels)].astype(np.float32)
    images /= 255
    return (images, labels), (images[:0], labels[:0])


def _tiles(picture: bytes) -> NDArray[np.uint8]:
    """The tiles of a picture as (tile, colour, row, column)."""
    values = pixels(picture, "WEBP")
    height, width = (length // _SIDE for length in values.shape[:2])
    tiles: NDArray[np.uint8] = values.reshape(height, _SIDE, width, _SIDE, 3).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(height * width, 3, _SIDE, _SIDE)


_OFFICIAL = DataSet(
    name="cifar100",
    title="CIFAR-100: colour photographs of a hundred kinds of things",
    citation="A. Krizhevsky 2009, Learning multiple layers of features from tiny images, technical report, University "
    "of Toronto",
    licence="None stated; its publishers ask to be cited",
    record="One photograph, collected from the web. 10 % of the test images have a near duplicate among the training "
    "images (Barz and Denzler 2020), one training image is a test image of CIFAR-10, and the same person may have "
    "taken or be seen in several: protecting an image does not protect a person.",
    scaling="value / 255",
    split="the publishers' training and test files; labels are the 100 fine classes",
    shape=(3, _SIDE, _SIDE),
    classes=100,
    train_records=50_000,
    test_records=10_000,
    default_model="linear",
    files=listed("cifar100"),
    read=read,
    sources=(TarAddress("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", 168_513_733, "cifar-100-binary"),),
)

_TILES = dataclasses.replace(
    _OFFICIAL,
    split="49,999 of the publishers' 50,000 training images, in another order, and no test images; labels are the 100 "
    "fine classes",
    train_records=49_999,
    test_records=0,
    files=listed("cifar100-pictures"),
    read=read_tiles,
    sources=(),
)

CIFAR100 = dataclasses.replace(_OFFICIAL, alternatives=(_TILES,))
