"""What a file becomes a tensor by: an encoder. It holds public declarations only and is saved with a run."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

Path: TypeAlias = "str | os.PathLike[str]"


class Encoder(ABC):
    """From a file or folder to features, and to labels where it has them, the same way for training and prediction.

    Every field is public: declared, or said to be disclosed by ``OwnData.disclosed``, or released and charged.
    """

    kind: ClassVar[str]
    class_names: tuple[str, ...]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one record, as ``read`` gives it."""

    @abstractmethod
    def read(self, path: Path) -> Tensor:
        """The features of ``path``; its labels are not looked at."""

    @abstractmethod
    def read_labelled(self, path: Path) -> tuple[Tensor, Tensor]:
        """The features and the labels (int64) of ``path``."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """The encoder as JSON, which ``encoder_from_json`` reads back as an equal one."""
