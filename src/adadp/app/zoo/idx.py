"""The IDX format of MNIST and its relatives: two zero bytes, type, number of axes, their lengths, values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adadp.errors import InputError

_UNSIGNED_BYTE = 8


def read_idx(content: bytes) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an IDX file; a view on ``content``, nothing is copied."""
    axes = content[3] if len(content) >= 4 and content[:3] == bytes((0, 0, _UNSIGNED_BYTE)) else 0
    start = 4 + 4 * axes
    if axes == 0 or len(content) < start:
        raise InputError(
            "This is not an IDX file of unsigned bytes.",
            why=f"It starts with {content[:4].hex() or 'nothing'} instead of 000008 and its number of axes.",
            fix="Pass the unzipped file.",
        )
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", axes, 4))
    values = np.frombuffer(content, np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=object):
        raise InputError(f"An IDX file of shape {shape} holds {values.size} values.", fix="Fetch the file again.")
    return values.reshape(shape)
