"""Rows that are written once and then read by index: in memory while they are few, else in a temporary file.

The file has no name, so nobody else can open it, and it is gone when the process ends, however it ends.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

IN_MEMORY = 1 << 26
"""Bytes up to which the rows stay in memory."""


class Spool:
    """Rows of ``columns`` numbers of one type."""

    def __init__(self, dtype: type[np.generic], columns: tuple[int, ...] = ()) -> None:
        self._dtype, self._shape = np.dtype(dtype), columns
        self._parts: list[NDArray[Any]] = []
        self._bytes = 0
        self._file: Any = None
        self.rows = 0
        """How many there are."""

    def add(self, rows: NDArray[Any]) -> None:
        """Put ``rows`` behind those that are there."""
        part = np.ascontiguousarray(rows, dtype=self._dtype)
        self.rows += len(part)
        self._bytes += part.nbytes
        self._parts.append(part)
        if self._file is None and self._bytes > IN_MEMORY:
            self._file = tempfile.TemporaryFile(prefix="adadp-")  # noqa: SIM115  # the array keeps it
        if self._file is not None:
            for waiting in self._parts:
                self._file.write(waiting.data)
            self._parts.clear()

    def array(self) -> NDArray[Any]:
        """All rows; in a file they are mapped."""
        if self._file is None:
            return np.concatenate(self._parts) if self._parts else np.empty((0, *self._shape), self._dtype)
        self._file.flush()
        return np.memmap(self._file, self._dtype, "r", shape=(self.rows, *self._shape))
