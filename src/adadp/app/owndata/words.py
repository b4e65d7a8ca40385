"""Free text: hashed words and pairs of words, or the mean of public word vectors.

Words are runs of letters and digits, in lower case. What is public is the rule: no vocabulary is taken from the data.
All features of a text together have length 1, like one category.

    cell                                    what it becomes
    ======================================  ===========================================================================
    more than ``length`` different pieces   its first ``length``
    without a word                          no feature
    empty, or a text of ``missing``         a mark of its own
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from adadp.app.features.text import WIDTH, WordLlama
from adadp.app.owndata.columns import NOTHING, Column, Features, Floats, bucket, read_once
from adadp.app.owndata.tables import distinct
from adadp.app.text_rows import text_rows

BUCKETS, NGRAMS, LENGTH = 512, 2, 64
"""What is taken where the schema does not say."""
_WORD = re.compile(r"\w+")
_BYTES = 2_048
"""How much of a text word vectors are found for."""


@final
@dataclass(frozen=True)
class Words(Column):
    """Runs of up to ``ngrams`` words, each in one of ``buckets`` slots by SHA-256."""

    buckets: int = BUCKETS
    ngrams: int = NGRAMS
    length: int = LENGTH
    missing: tuple[str, ...] = ("",)

    @property
    def kept(self) -> int:
        return self.length

    @property
    def width(self) -> int:
        return self.buckets + 1

    def parse(self, cells: Sequence[str]) -> Floats:
        return read_once(cells, self._slots, self.kept)

    def _slots(self, text: str) -> Floats:
        found = np.full(self.length, NOTHING)
        if text in self.missing:
            found[0] = self.buckets
            return found
        words = _WORD.findall(text.lower())
        runs = [" ".join(words[at : at + size]) for at in range(len(words)) for size in range(1, self.ngrams + 1)]
        slots = list(dict.fromkeys(bucket(run, self.buckets) for run in dict.fromkeys(runs)))[: self.length]
        found[: len(slots)] = slots
        return found

    def expand(self, parsed: NDArray[Any], out: Features) -> None:
        rows, places = np.nonzero(parsed >= 0)
        counts = (parsed >= 0).sum(axis=1)
        out[rows, parsed[rows, places].astype(np.int64)] = 1 / np.sqrt(counts[rows])

    def as_dict(self) -> dict[str, Any]:
        return {
            **{"kind": "text", "buckets": self.buckets, "ngrams": self.ngrams, "length": self.length},
            "missing": list(self.missing),
        }

    def describe(self) -> str:
        return f"a text, whose runs of up to {self.ngrams} words are hashed into {self.buckets} buckets, or missing"


@final
@dataclass(frozen=True)
class Embedded(Column):
    """The mean of the public word vectors called wordllama; a mark for a missing text."""

    missing: tuple[str, ...] = ("",)

    @property
    def kept(self) -> int:
        return self.width

    @property
    def width(self) -> int:
        return WIDTH + 1

    @cached_property
    def _vectors(self) -> Any:
        return WordLlama().module((_BYTES,))

    def parse(self, cells: Sequence[str]) -> Floats:
        texts, where = distinct(cells)
        found = np.zeros((len(texts), self.kept))
        found[:, :WIDTH] = self._vectors(text_rows(texts, _BYTES)).numpy()
        gone = np.array([text.strip() in self.missing for text in texts], dtype=bool)
        found[gone], found[gone, -1] = 0, 1
        return found[where]

    def expand(self, parsed: NDArray[Any], out: Features) -> None:
        out[:] = parsed

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "text", "embedding": "wordllama", "missing": list(self.missing)}

    def describe(self) -> str:
        return "a text, as the mean of public word vectors (wordllama), or missing"
