"""Encoders turn files into tensors; ``OwnData`` holds what they have read."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from adadp.app.targets import Target
from adadp.records import Stored

Path: TypeAlias = "str | os.PathLike[str]"
Records: TypeAlias = tuple[Tensor, Tensor]
"""Values, one row per record, and labels as int64."""
MaybeStored: TypeAlias = tuple[Tensor | Stored, Tensor | Stored]
"""The same, where they may be on disk."""


class Encoder(ABC):
    """From a file or folder to features, and to labels where it has them, the same way for training and prediction.

    It is saved with a run. Every field is public: declared, or said to be disclosed by ``OwnData.disclosed``, or
    released and charged.
    """

    kind: ClassVar[str]
    class_names: tuple[str, ...]
    """Empty where the targets are numbers."""
    targets: tuple[Target, ...] = ()
    """Those that are numbers."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one record, as ``read`` gives it."""

    @abstractmethod
    def read(self, path: Path) -> Tensor:
        """The features of ``path``; its labels are not looked at."""

    @abstractmethod
    def read_labelled(self, path: Path) -> Records:
        """The features and the labels of ``path``."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """The encoder as JSON, which ``encoder_from_json`` reads back as an equal one."""


@dataclass(frozen=True, eq=False)
class OwnData:
    """The user's own data. The repr shows no record.

    ``disclosed`` and ``public`` are sentences for the certificate: what was taken from the data without noise, and what
    was declared. Rows of a table with private bounds end in raw values, as ``TableEncoder`` says.
    """

    train: MaybeStored = field(repr=False)
    test: Records | None = field(repr=False)
    record: str
    disclosed: tuple[str, ...]
    public: tuple[str, ...]
    encoder: Encoder
    units: Tensor | None = field(default=None, repr=False)
    """The unit of each row of ``train``, counted from 0."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of the labels."""
        return self.encoder.class_names
