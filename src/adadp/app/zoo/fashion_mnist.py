"""Fashion-MNIST: articles of clothing, in the files and shapes of MNIST."""

from __future__ import annotations

from adadp.app.zoo.addresses import Address
from adadp.app.zoo.description import DataSet, listed
from adadp.app.zoo.mnist import read
from adadp.app.zoo.packages import DebianPackage

FASHION_MNIST = DataSet(
    name="fashion-mnist",
    title="Fashion-MNIST: grey images of articles of clothing",
    citation="H. Xiao, K. Rasul and R. Vollgraf 2017, Fashion-MNIST: a novel image dataset for benchmarking machine "
    "learning algorithms, arXiv:1708.07747",
    licence="MIT",
    record="One image of one article of clothing, as a shop showed it. No person stands behind a record.",
    scaling="pixel / 255",
    split="the publishers' training and test files",
    shape=(1, 28, 28),
    classes=10,
    train_records=60_000,
    test_records=10_000,
    default_model="linear",
    files=listed("fashion-mnist"),
    read=read,
    sources=(
        Address("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
        DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
    ),
)
