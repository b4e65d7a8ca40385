"""The user's own data in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from adadp.app.owndata.base import Encoder
from adadp.app.owndata.tabular import TableEncoder

Records: TypeAlias = tuple[Tensor, Tensor]
"""Values, one row per record, and labels as int64."""


@dataclass(frozen=True, eq=False)
class OwnData:
    """The user's own data. The repr shows no record.

    ``disclosed`` and ``public`` are sentences for the certificate: what was taken from the data without noise, and what
    was declared. Rows of a table with private bounds end in raw values, as ``TableEncoder`` says.
    """

    train: Records = field(repr=False)
    test: Records | None = field(repr=False)
    class_names: tuple[str, ...]
    record: str
    disclosed: tuple[str, ...]
    public: tuple[str, ...]
    encoder: Encoder

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)


def public_columns(encoder: TableEncoder) -> tuple[str, ...]:
    """What is public about each column, in a sentence."""
    return tuple(f"Column {name}: {column.describe()}, as declared." for name, column in encoder.columns)
