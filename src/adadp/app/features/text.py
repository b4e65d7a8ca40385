"""Features of texts, which are rows of bytes (``adadp.app.text_rows``): their first bytes, or public word vectors.

``bytes`` cuts a text short for a model that reads bytes. ``wordllama`` is the mean of the vectors of a text's pieces of
words, with l2 norm 1, so that clipping downstream has a known scale. Its vectors are public and fixed, so they cost no
privacy beyond what the texts they were made from are promised, which is nothing. Each text is read by itself.

    case                                       what happens
    records that are not rows of bytes         InputError
    an empty text                              zeros
    a text longer than length                  its first length bytes (bytes), pieces (wordllama)
    length of bytes beyond that of a record    InputError: there is nothing to read
    no records                                 an empty tensor of the right shape
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn import functional

from adadp import checks
from adadp.app.features.base import FixedStage, Shape
from adadp.app.text_rows import row_texts
from adadp.app.zoo.weights import WORDLLAMA, wordllama_files
from adadp.errors import InputError

WIDTH = 256


@dataclass(frozen=True)
class Bytes(FixedStage):
    """The first ``length`` bytes of a text, as whole numbers; 0 where the text has ended."""

    name = "bytes"
    always_written = ("length",)
    length: int = 64

    def __post_init__(self) -> None:
        self._set(length=checks.count("length", self.length, minimum=2, why="A byte is guessed from those before it."))

    def output_shape(self, shape: Shape) -> Shape:
        check_text(self, shape)
        if self.length > shape[0]:
            raise InputError(
                f"{self} cannot read records of {shape[0]} bytes.", fix=f"Pass a length of at most {shape[0]}."
            )
        return (self.length,)

    def module(self, shape: Shape) -> nn.Module:  # noqa: ARG002
        return _First(self.length)


class _First(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, rows: Tensor) -> Tensor:
        return rows[:, : self.length].long()


@dataclass(frozen=True)
class WordLlama(FixedStage):
    """The mean of the word vectors of a text's first ``length`` pieces."""

    name = "wordllama"
    always_written = ("length",)
    length: int = 512

    def __post_init__(self) -> None:
        self._set(length=checks.count("length", self.length))

    @property
    def public(self) -> tuple[str, ...]:
        return (f"{WORDLLAMA.title}. Made from {WORDLLAMA.trained_on} ({WORDLLAMA.citation}).",)

    def output_shape(self, shape: Shape) -> Shape:
        check_text(self, shape)
        return (WIDTH,)

    def module(self, shape: Shape) -> nn.Module:  # noqa: ARG002
        return _Mean(self.length)


class _Mean(nn.Module):
    """Texts to the means of their vectors. One text at a time: a mean over a batch would round otherwise by batch."""

    vectors: Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        vectors, tokenizer = wordllama_files()
        self.tokenizer = _tokenizers().Tokenizer.from_str(tokenizer.decode())
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(length)
        self.register_buffer("vectors", load(vectors)["embedding.weight"].float(), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        found = self.tokenizer.encode_batch(row_texts(rows), add_special_tokens=False)
        means = torch.zeros(len(rows), WIDTH, device=self.vectors.device)
        for mean, each in zip(means, found, strict=True):
            if each.ids:
                mean.copy_(self.vectors[each.ids].mean(0))
        return functional.normalize(means, eps=math.ulp(1.0))


def check_text(stage: FixedStage, shape: Shape) -> None:
    """Refuse records that cannot be texts."""
    if len(shape) != 1:
        raise InputError(
            f"{stage.name} cannot read records of shape {tuple(shape)}.",
            why="It reads texts, which are rows of bytes.",
            fix="Give a data set of texts, or make rows with adadp.app.text_rows.text_rows(texts, length).",
        )


def _tokenizers() -> Any:
    try:
        import tokenizers  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise InputError("Reading texts needs the package tokenizers.", fix="pip install 'adadp[text]'") from error
    return tokenizers
