"""CIFAR-100: small colour photographs of a hundred kinds of things.

Two forms: the publishers' files, and pictures with 10,000 images each which leave out the test images and the one
training image that is also a test image of CIFAR-10. The second is for making features to be used on CIFAR-10.
"""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
from numpy.typing import NDArray

from adadp.app.zoo.addresses import TarAddress
from adadp.app.zoo.cifar10 import read_batches
from adadp.app.zoo.description import Contents, DataSet, Records
from adadp.app.zoo.sources import DataFile
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
    from PIL import Image  # noqa: PLC0415  # only this form decodes pictures

    with Image.open(io.BytesIO(picture), formats=["WEBP"]) as opened:
        pixels: NDArray[np.uint8] = np.asarray(opened.convert("RGB"))
    height, width = (length // _SIDE for length in pixels.shape[:2])
    tiles: NDArray[np.uint8] = pixels.reshape(height, _SIDE, width, _SIDE, 3).transpose(0, 2, 4, 1, 3)
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
    files=(
        DataFile(
            "train.bin",
            size=153_700_000,
            sha256="f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        ),
        DataFile(
            "test.bin",
            size=30_740_000,
            sha256="d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
        ),
    ),
    read=read,
    sources=(TarAddress("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", 168_513_733, "cifar-100-binary"),),
)

_TILES = dataclasses.replace(
    _OFFICIAL,
    split="49,999 of the publishers' 50,000 training images, in another order, and no test images; labels are the 100 "
    "fine classes",
    train_records=49_999,
    test_records=0,
    files=(
        DataFile(
            "cifar100-train-1.webp",
            size=17_253_498,
            sha256="a07cea0a685b2a407731a16f4838c77d66c6df5bee956b4a64e750ed2d7bb2dc",
            md5="74d1fe48bb03473b02b0656c62afc5a7",
        ),
        DataFile(
            "cifar100-train-2.webp",
            size=17_275_186,
            sha256="27db9d1bc591c3be3c82dc5afad564c16521364f8cb04e8265242b06071e188a",
            md5="78a1b336161f68e17d2c471b527261a4",
        ),
        DataFile(
            "cifar100-train-3.webp",
            size=17_270_140,
            sha256="e3112266cc6f94ef9bdbe43220143574f3c70283c9875f626d40bbd6ae02e030",
            md5="242fdb939fb42e20f212815ecaa1e224",
        ),
        DataFile(
            "cifar100-train-4.webp",
            size=17_290_178,
            sha256="af26761ea334c0f2fa23504b8528f06cf95b42c73be9997843822bdffb089e75",
            md5="87ccc85edd97c0663d386973354c2376",
        ),
        DataFile(
            "cifar100-train-5.webp",
            size=17_282_710,
            sha256="7338262f42132f2c9132971b5db0e9dafca807b4c67f9ebe000bb427217ceddc",
            md5="729652a91e586e59c205aa6addb37622",
        ),
        DataFile(
            _LABELS,
            size=196_416,
            sha256="55a473c0efa35ef13ff798b9b336355625fc143350651f9612d6b57250bbbf02",
            md5="3f85647ea1de56fd1961257576ee958e",
        ),
    ),
    read=read_tiles,
    sources=(),
)

CIFAR100 = dataclasses.replace(_OFFICIAL, alternatives=(_TILES,))
