"""The user's own data in memory, and what is still to be released before its features are whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from torch import Tensor

from adadp.errors import InputError
from adadp.owndata.base import Encoder
from adadp.owndata.bounds import BoundsQuery
from adadp.owndata.tabular import TableEncoder

Records: TypeAlias = tuple[Tensor, Tensor]
"""Features as float32 and labels as int64."""


@dataclass(frozen=True, eq=False)
class PendingBounds:
    """Number columns whose bounds are to be released: ``values`` (records, columns) is private, NaN where missing."""

    names: tuple[str, ...]
    values: Tensor = field(repr=False)
    test_values: Tensor | None = field(default=None, repr=False)

    @property
    def query(self) -> BoundsQuery:
        """What to release: ``query.query(values)`` plus noise."""
        return BoundsQuery(len(self.names))


@dataclass(frozen=True, eq=False)
class OwnData:
    """The user's own data. The repr shows no record.

    ``disclosed`` and ``public`` are sentences for the certificate: what was taken from the data without noise, and what
    was declared. While ``pending`` is not None the columns it names are zeros in ``train`` and ``test``.
    """

    train: Records = field(repr=False)
    test: Records | None = field(repr=False)
    class_names: tuple[str, ...]
    record: str
    disclosed: tuple[str, ...]
    public: tuple[str, ...]
    encoder: Encoder
    pending: PendingBounds | None = None

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def complete(self, bounds: Sequence[tuple[float, float]]) -> OwnData:
        """The data with the released ``bounds`` of the pending columns put in, in the order of ``pending.names``."""
        if self.pending is None or not isinstance(self.encoder, TableEncoder):
            raise InputError("No bounds are to be released for this data.", fix="Use it as it is.")
        encoder = replace(self.encoder, bounds=tuple((float(low), float(high)) for low, high in bounds))
        test = None
        if self.test is not None and self.pending.test_values is not None:
            test = (encoder.completed(self.test[0], self.pending.test_values), self.test[1])
        return replace(
            self,
            train=(encoder.completed(self.train[0], self.pending.values), self.train[1]),
            test=test,
            public=(self.public[0], *public_columns(encoder)),
            encoder=encoder,
            pending=None,
        )


def public_columns(encoder: TableEncoder) -> tuple[str, ...]:
    """What is public about each column, in a sentence."""
    released = encoder.private_columns
    known = dict(encoder.bounded())
    return tuple(
        f"Column {name}: {known.get(name, column).describe()}, "
        f"{'by bounds that were released and charged' if name in released and encoder.bounds else 'as declared'}."
        for name, column in encoder.columns
    )
