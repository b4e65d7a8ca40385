"""Texts as tensors: one row of UTF-8 bytes per text, all of one public length, filled up with zeros.

A text of a person has a length of its own, which would be seen in the shape of a tensor. So every text is cut at, or
filled up to, a length that is chosen without the data.

    case                                        what happens
    a text longer than ``length`` bytes         its first ``length`` bytes; half a character at the end is dropped
    a NUL character in a text                   dropped: zero stands for "no more text"
    a surrogate that UTF-8 cannot write         a question mark
    an empty text                               a row of zeros
"""

from __future__ import annotations

# The catalogue of data sets reads texts with this module, and does not wait for torch.
# ruff: noqa: PLC0415
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adadp import checks

if TYPE_CHECKING:
    from torch import Tensor


def byte_rows(texts: Iterable[str], length: int) -> NDArray[np.uint8]:
    """``texts`` as rows of ``length`` bytes."""
    length = checks.count("length", length)
    written = [text.replace("\0", "").encode("utf-8", "replace") for text in texts]
    whole = [each if len(each) <= length else _cut(each, length) for each in written]
    rows = np.zeros((len(whole), length), dtype=np.uint8)
    for row, each in zip(rows, whole, strict=True):
        row[: len(each)] = np.frombuffer(each, dtype=np.uint8)
    return rows


def text_rows(texts: Iterable[str], length: int) -> Tensor:
    """The same as a tensor: records for ``fit``, with the features ``wordllama`` or ``hf:NAME`` or a byte model."""
    import torch

    return torch.from_numpy(byte_rows(texts, length))


def text_blocks(text: str, length: int) -> Tensor:
    """One long text as blocks of ``length`` bytes, each a record; what is left over at the end is dropped.

    A guarantee for such records protects one block. Two blocks of one page, or of one person, are two records.
    """
    import torch

    length = checks.count("length", length)
    written = np.frombuffer(text.replace("\0", "").encode("utf-8", "replace"), dtype=np.uint8)
    blocks = written[: len(written) // length * length].reshape(-1, length)
    return torch.from_numpy(blocks.copy())


def row_texts(rows: Tensor) -> list[str]:
    """The texts that ``rows`` hold."""
    whole = rows.detach().cpu().byte().numpy()
    return [row.tobytes().rstrip(b"\0").decode("utf-8", "replace") for row in whole]


def _cut(written: bytes, length: int) -> bytes:
    """At most ``length`` bytes of UTF-8, without a part of a character at their end."""
    return written[:length].decode("utf-8", "ignore").encode()
