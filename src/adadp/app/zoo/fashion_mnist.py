"""Fashion-MNIST: articles of clothing, in the files and shapes of MNIST."""

from __future__ import annotations

from adadp.app.zoo.addresses import Address
from adadp.app.zoo.description import DataSet
from adadp.app.zoo.mnist import read
from adadp.app.zoo.packages import DebianPackage
from adadp.app.zoo.sources import DataFile

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
    files=(
        DataFile(
            "train-images-idx3-ubyte",
            size=47_040_016,
            sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            md5="f4a8712d7a061bf5bd6d2ca38dc4d50a",
        ),
        DataFile(
            "train-labels-idx1-ubyte",
            size=60_008,
            sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            md5="9018921c3c673c538a1fc5bad174d6f9",
        ),
        DataFile(
            "t10k-images-idx3-ubyte",
            size=7_840_016,
            sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            md5="8181f5470baa50b63fa0f6fddb340f0a",
        ),
        DataFile(
            "t10k-labels-idx1-ubyte",
            size=10_008,
            sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            md5="15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
    read=read,
    sources=(
        Address("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
        DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
    ),
)
