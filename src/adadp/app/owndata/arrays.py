"""Arrays in an .npz file: ``x`` (records first), ``y`` (the number of each record's class), never through pickle.

x                                         becomes
========================================  =========================================================================
uint8                                     divided by 255, the public range of a byte
other numbers, true and false             kept, within the declared range
NaN, infinite, beyond float32             an error with the record
one dimension, none, no records           an error: the first dimension counts the records
text, objects, complex numbers            an error; objects would need pickle, which runs what it reads
another shape or another scale than       an error
the encoder was made for

y                                         becomes
========================================  =========================================================================
whole numbers 0 .. classes - 1            labels
below 0, or classes and above             an error with the record: the largest label is not asked for the classes
another length than x, not whole          an error
"""

from __future__ import annotations

import pathlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from adadp import checks
from adadp.app.owndata.base import Encoder, Path
from adadp.app.owndata.schema import as_names
from adadp.errors import InputError
from adadp.input_bound import InputBound

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

PIXEL = 255.0


@final
@dataclass(frozen=True)
class ArrayEncoder(Encoder):
    """Arrays of records of one shape; ``pixels`` says that they are bytes, divided by 255.

    ``bound`` is a public range that all numbers are brought into, in training and in prediction alike.
    """

    record_shape: tuple[int, ...]
    pixels: bool
    class_names: tuple[str, ...]
    bound: tuple[float, float] = (-checks.LARGEST_INPUT, checks.LARGEST_INPUT)
    kind: ClassVar[str] = "npz"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.record_shape

    def read(self, path: Path) -> Tensor:
        return self.features(path, read_arrays(path, ("x",)))

    def read_labelled(self, path: Path) -> tuple[Tensor, Tensor]:
        return self.labelled(path, read_arrays(path, ("x", "y")))

    def labelled(self, path: Path, arrays: Arrays, suffix: str = "") -> tuple[Tensor, Tensor]:
        """Features and labels of the arrays ``x`` and ``y``, or with a ``suffix`` to their names."""
        features = self.features(path, arrays, suffix)
        labels = class_numbers(path, f"y{suffix}", arrays[f"y{suffix}"], len(features), len(self.class_names))
        return features, labels

    def features(self, path: Path, arrays: Arrays, suffix: str = "") -> Tensor:
        """The features of the array ``x``, or with a ``suffix`` to its name."""
        name = f"x{suffix}"
        values = check_features(path, name, arrays[name])
        if values.shape[1:] != self.shape or (values.dtype == np.uint8) != self.pixels:
            raise InputError(
                f"{name} of {path} has records of shape {values.shape[1:]} and type {values.dtype}, and the training "
                f"records are of shape {self.shape} and {'bytes' if self.pixels else 'not bytes'}.",
                why="The model would be given something it was not trained on.",
                fix="Bring the array to the same shape, and to uint8 or not, as the training data is.",
            )
        with np.errstate(over="ignore"):
            floats = values.astype(np.float32)
        finite = np.isfinite(floats).reshape(len(floats), -1).all(axis=1)
        if not finite.all():
            raise InputError(
                f"{name} of {path} is not finite in record {int(np.argmin(finite))} (counting from 0).",
                why="Such a record has no gradient.",
                fix="Correct or remove it.",
            )
        inside: Tensor = InputBound(*self.bound)(
            torch.from_numpy(floats / np.float32(PIXEL) if self.pixels else floats)
        )
        return inside

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "pixels": self.pixels,
            "classes": list(self.class_names),
            "bound": list(self.bound),
        }


def class_numbers(path: Path, name: str, labels: NDArray[Any], records: int, classes: int) -> Tensor:
    """The array ``name`` of ``path``, if it has the number of a class for each of ``records`` records."""
    if labels.shape != (records,) or labels.dtype.kind not in "iu":
        raise InputError(
            f"{name} of {path} must hold {records} whole numbers, one for each record; it has shape {labels.shape} "
            f"and type {labels.dtype}.",
            fix="Save the number of each record's class, from 0, as an integer array.",
        )
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise InputError(
            f"{name} of {path} is {labels[index]} in record {index} (counting from 0), and there are {classes} "
            "classes.",
            why="Classes are counted from 0.",
            fix="Correct the label, or declare the classes that are publicly known.",
        )
    return torch.from_numpy(labels.astype(np.int64))


def given_features(path: Path, shape: tuple[int, ...] | None = None) -> Tensor:
    """The array ``x`` of ``path`` as it would be given to ``fit``, of records of ``shape``; floats as float32."""
    values = check_features(path, "x", read_arrays(path, ("x",))["x"])
    if shape is not None and values.shape[1:] != shape:
        raise InputError(
            f"x of {path} has records of shape {values.shape[1:]}, and the model takes {shape}.",
            fix="Save records like those the model was trained on.",
        )
    return torch.from_numpy(values.astype(np.float32) if values.dtype.kind == "f" else values)


def given_pair(path: Path, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    """The arrays ``x`` and ``y`` of ``path`` as they would be given to ``fit``."""
    features = given_features(path, shape)
    return features, class_numbers(path, "y", read_arrays(path, ("y",))["y"], len(features), classes)


def array_features(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The array ``x`` of ``path`` as records of ``shape``; bytes are pixels, other numbers are scaled already."""
    arrays = read_arrays(path, ("x",))
    return ArrayEncoder(shape, arrays["x"].dtype == np.uint8, ()).features(path, arrays)


def check_features(path: Path, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """``values``, if they are numbers with the records in the first of at least two dimensions."""
    if values.dtype.kind not in "biuf" or values.ndim < 2 or not values.size:
        raise InputError(
            f"{name} of {path} must hold numbers in (records, features...); it has shape {values.shape} and type "
            f"{values.dtype}.",
            fix="Save an array with one row per record.",
        )
    return values


def declared_classes(path: Path, arrays: Arrays, declared: tuple[str, ...] | None) -> tuple[str, ...]:
    """The classes the schema ``declared``, or those of the array ``classes``: their number or their names."""
    if declared is not None and "classes" in arrays:
        raise InputError(
            f"Both the schema and the array classes of {path} declare the classes.", fix="Keep one of the two."
        )
    if declared is not None:
        return declared
    if "classes" not in arrays:
        raise InputError(
            f"{path} does not say how many classes there are.",
            why="The largest label depends on the data, so it cannot be asked.",
            fix="Write [target] and classes = 10 into a schema, or save classes=10 beside x and y.",
        )
    return as_names(arrays["classes"].tolist())


def read_arrays(path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    """The ``needed`` arrays of ``path``, which must be there, and the ``optional`` ones that are."""
    with _opened(path) as file:
        absent = [name for name in needed if name not in file.files]
        if absent:
            raise InputError(
                f"{path} has no array {absent[0]}; it has {', '.join(file.files) or 'none'}.",
                fix="Save it with numpy.savez(file, x=features, y=labels, classes=10).",
            )
        found = {name: file[name] for name in (*needed, *optional) if name in file.files}
    for name, values in found.items():
        if not isinstance(values, np.ndarray):
            raise InputError(f"{name} in {path} is not an array.", fix="Save it with numpy.savez.")
    return found


@contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    """The archive ``path``; whatever is wrong with it is one kind of error."""
    try:
        with pathlib.Path(path).open("rb") as stream:
            if not stream.read(6).startswith((b"PK", b"\x93NUMPY")):
                raise InputError(f"{path} is no .npz file.", fix="Save arrays with numpy.savez(file, x=features).")
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, NpzFile):
            raise InputError(f"{path} holds a single array.", fix="Save x and y together, with numpy.savez.")
        with file:
            yield file
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.", fix="Check the path.") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read as a .npz file of plain arrays.",
            why="It is damaged, or holds Python objects, which are not read: that would run what is in them.",
            fix="Save plain arrays of numbers with numpy.savez.",
        ) from error
