"""The data sets by name. A new one is a small file with its entry, and a line here."""

from __future__ import annotations

from pathlib import Path

from adadp import checks
from adadp.app.zoo.adult import ADULT
from adadp.app.zoo.cancer import CANCER
from adadp.app.zoo.cifar10 import CIFAR10
from adadp.app.zoo.cifar100 import CIFAR100
from adadp.app.zoo.covertype import COVERTYPE
from adadp.app.zoo.description import DataSet, LoadedData
from adadp.app.zoo.fetching import StrPath, fetch
from adadp.app.zoo.imdb import IMDB
from adadp.app.zoo.mnist import FASHION_MNIST, MNIST
from adadp.errors import InputError

DATA_SETS: dict[str, DataSet] = {
    entry.name: entry for entry in (CANCER, MNIST, FASHION_MNIST, CIFAR10, CIFAR100, COVERTYPE, ADULT, IMDB)
}


def find(name: str) -> DataSet:
    """The entry called ``name``."""
    if name not in DATA_SETS:
        own = _as_own(name)
        fix = checks.one_of(name, DATA_SETS) if own is None else f"Data of your own is named with its kind: {own}."
        raise InputError(f"There is no data set {name!r}.", fix=fix)
    return DATA_SETS[name]


def _as_own(name: str) -> str | None:
    """How the user's own file or folder is named, if ``name`` looks like one; also behind a kind there is not."""
    path = Path(name.rpartition(":")[2] or name)
    ending = path.suffix.lower()
    if ending == ".npz":
        own = f"npz:{path}"
    elif path.is_file() or ending in (".csv", ".tsv", ".parquet", ".pq"):
        own = f"table:{path}"
    elif path.is_dir():
        own = f"images:{path}"
    else:
        return None
    return own if own != name else None


def load(data: str | DataSet, *, cache: StrPath | None = None, source_dir: StrPath | None = None) -> LoadedData:
    """A data set by name (or by an entry of your own) as tensors; fetched if it has to be.

    Features are float32 (of texts: bytes, uint8) and scaled by public constants only, the entry's ``scaling``: a mean,
    a standard deviation or a maximum of the data would itself be a release, and would have to be paid for.
    Labels are int64 from 0.
    """
    import torch  # noqa: PLC0415  # the catalogue itself needs no torch, and `adadp data list` does not wait for it

    entry = find(data) if isinstance(data, str) else data
    fetched = fetch(entry, cache=cache, source_dir=source_dir)
    form = fetched.form
    (train_x, train_y), (test_x, test_y) = form.read(fetched.contents)
    return LoadedData(
        train=(torch.from_numpy(train_x), torch.from_numpy(train_y)),
        test=(torch.from_numpy(test_x), torch.from_numpy(test_y)),
        classes=form.classes,
        description=form,
    )
