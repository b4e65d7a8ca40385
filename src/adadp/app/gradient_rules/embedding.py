"""Tables of vectors looked up by index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adadp.gradients.readers import Reading
from adadp.gradients.rule import Pair, Rule, Scales, Sums, scale_rows, square_norm


@dataclass(frozen=True)
class EmbeddingRule(Rule):
    """``embedding(indices, weight)``: a record's gradient has its output gradients in the rows it looked up.

    A row looked up twice gets the sum of the two before the norm is taken. ``padding_idx`` gets no gradient.
    """

    rows: int
    padding_idx: int | None

    def working_size(self, pair: Pair) -> int:
        return self.rows * pair.output_grad.shape[-1]

    def instantiates(self, pair: Pair) -> bool:  # noqa: ARG002
        """Never: only the rows that were looked up are touched."""
        return False

    def per_example(self, pair: Pair) -> Sums:
        index, grads = self._lookups(pair)
        table = grads.new_zeros(pair.records * self.rows, grads.shape[-1])
        table.index_add_(0, (index + self._offsets(pair)).reshape(-1), grads.flatten(0, 1))
        return {"weight": table.view(pair.records, self.rows, -1)}

    def scale_shape(self, slot: str, shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        return (shape[0], 1)

    def square_norms(self, pair: Pair, inverse: Scales = None) -> Sums:
        owner, row, grads = self._rows_of_records(pair)
        if inverse is not None:
            scale = inverse["weight"]
            grads = grads * (scale if scale.shape[0] == 1 else scale[row])
        return {"weight": grads.new_zeros(pair.records).index_add_(0, owner, square_norm(grads))}

    def weighted_sum(self, pair: Pair, weights: Tensor) -> Sums:
        """Of what the norms are taken of: terms that cancel within a record must not meet in the table of all."""
        owner, row, grads = self._rows_of_records(pair)
        table = grads.new_zeros(self.rows, grads.shape[-1])
        return {"weight": table.index_add_(0, row, scale_rows(grads, weights[owner]))}

    def _rows_of_records(self, pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
        """For every row that a record looked up, once: the record, the row, and the record's gradient there."""
        index, grads = self._lookups(pair)
        keys, place = torch.unique((index + self._offsets(pair)).reshape(-1), return_inverse=True)
        found = grads.new_zeros(len(keys), grads.shape[-1]).index_add_(0, place, grads.flatten(0, 1))
        return keys.div(self.rows, rounding_mode="floor"), keys % self.rows, found

    def _lookups(self, pair: Pair) -> tuple[Tensor, Tensor]:
        """Indices ``[records, lookups]`` and gradients ``[records, lookups, width]``, zero at the padding index."""
        assert pair.input is not None
        index = pair.input.reshape(pair.records, -1).long()
        grads = pair.output_grad.reshape(pair.records, index.shape[1], -1)
        if self.padding_idx is not None:
            grads = grads.masked_fill((index == self.padding_idx).unsqueeze(2), 0)
        return index, grads

    def _offsets(self, pair: Pair) -> Tensor:
        """A table of its own for every record."""
        return torch.arange(pair.records, device=pair.output_grad.device).unsqueeze(1) * self.rows


def _embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, *_: Any, **__: Any) -> Reading:
    padding = padding_idx if padding_idx is None or padding_idx >= 0 else weight.shape[0] + padding_idx
    return Reading(EmbeddingRule(weight.shape[0], padding), input, {"weight": weight})


READERS = {F.embedding: _embedding}
