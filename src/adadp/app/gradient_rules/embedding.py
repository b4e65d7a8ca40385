"""Tables looked up by index: word vectors, bags of them, and weights that are chosen record by record."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adadp.app.gradient_rules.linear import LinearRule, norm_from_grams, positions_of
from adadp.gradients.readers import Reader, Reading, WrittenOut
from adadp.gradients.rule import Pair, Rule, Scales, Sums, scale_rows, square_norm


@dataclass(frozen=True)
class EmbeddingRule(Rule):
    """``embedding(indices, weight)``: a record's gradient has its output gradients in the rows it looked up.

    A row looked up twice gets the sum of the two before the norm is taken. ``padding_idx`` gets no gradient. A row may
    have any shape: ``weight[experts]`` looks up matrices.
    """

    shape: tuple[int, ...]
    padding_idx: int | None = None

    @property
    def rows(self) -> int:
        return self.shape[0]

    def working_size(self, pair: Pair) -> int:  # noqa: ARG002
        return math.prod(self.shape)

    def instantiates(self, pair: Pair) -> bool:  # noqa: ARG002
        """Never: only the rows that were looked up are touched."""
        return False

    def per_example(self, pair: Pair) -> Sums:
        index, grads = self.lookups(pair)
        table = grads.new_zeros(pair.records * self.rows, grads.shape[-1])
        table.index_add_(0, (index + self._offsets(pair)).reshape(-1), grads.flatten(0, 1))
        return {"weight": table.view(pair.records, *self.shape)}

    def scale_shape(self, slot: str, shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        return (shape[0], *[1] * (len(shape) - 1))

    def square_norms(self, pair: Pair, inverse: Scales = None) -> Sums:
        owner, row, grads = self._rows_of_records(pair)
        if inverse is not None:
            scale = inverse["weight"] if inverse["weight"].shape[0] == 1 else inverse["weight"][row]
            grads = grads * scale.expand(-1, *self.shape[1:]).flatten(1)
        return {"weight": grads.new_zeros(pair.records).index_add_(0, owner, square_norm(grads))}

    def weighted_sum(self, pair: Pair, weights: Tensor) -> Sums:
        """Of what the norms are taken of: terms that cancel within a record must not meet in the table of all."""
        owner, row, grads = self._rows_of_records(pair)
        table = grads.new_zeros(self.rows, grads.shape[-1])
        return {"weight": table.index_add_(0, row, scale_rows(grads, weights[owner])).view(self.shape)}

    def joined(self, uses: Sequence[tuple[Rule, Pair]]) -> tuple[Rule, Pair] | None:
        """Lookups in one table are one lookup at all places; with linear layers of that weight, a ``TiedRule``."""
        lookups = [pair for rule, pair in uses if rule == self]
        products = [(rule, pair) for rule, pair in uses if rule == LinearRule()]
        if len(lookups) + len(products) != len(uses):
            return None
        index, grads = (torch.cat(each, 1) for each in zip(*map(self.lookups, lookups), strict=True))
        looked_up = lookups[0] if len(lookups) == 1 else Pair(index, grads, ("weight",))
        if not products:
            return self, looked_up
        joined = products[0] if len(products) == 1 else LinearRule().joined(products)
        assert joined is not None
        return TiedRule(self, LinearRule()), TiedPair(None, joined[1].output_grad, ("weight",), looked_up, joined[1])

    def _rows_of_records(self, pair: Pair) -> tuple[Tensor, ...]:
        """For every row that a record looked up, once: the record, the row, and the record's gradient there."""
        if "rows" not in pair.kept:
            pair.kept["rows"] = self._found_rows(pair)
        return pair.kept["rows"]

    def _found_rows(self, pair: Pair) -> tuple[Tensor, ...]:
        index, grads = self.lookups(pair)
        find = _unique if grads.device.type == "cpu" else _unique_of_fixed_size
        keys, place = find((index + self._offsets(pair)).reshape(-1))
        found = grads.new_zeros(len(keys), grads.shape[-1]).index_add_(0, place, grads.flatten(0, 1))
        return keys.div(self.rows, rounding_mode="floor"), keys % self.rows, found

    def lookups(self, pair: Pair) -> tuple[Tensor, Tensor]:
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


@dataclass(frozen=True)
class TiedPair(Pair):
    """What the two kinds of uses of a table of words left behind that is the last layer of its model too."""

    looked_up: Pair
    product: Pair

    def changed(self, change: Callable[[Tensor], Tensor]) -> TiedPair:
        product = self.product.changed(change)
        return TiedPair(None, product.output_grad, self.slots, self.looked_up.changed(change), product)


@dataclass(frozen=True)
class TiedRule(Rule):
    """A table of words that is the last layer of its model too (GPT-2): the gradient is the sum of the two.

    Looking up row r is a product with the unit vector e_r: the sum is that of a linear layer over the positions s of
    the one use and t of the other, sum_s d_s a_s^T + sum_t e_{r_t} g_t^T. Its norm follows from the same Gram matrices
    without making a table: d_s . e_r is an entry of d_s, and e_r . e_q is 1 for equal rows.
    """

    table: EmbeddingRule
    layer: LinearRule

    def per_example(self, pair: Pair) -> Sums:
        looked_up, product = _both(pair)
        return {"weight": self.layer.per_example(product)["weight"] + self.table.per_example(looked_up)["weight"]}

    def working_size(self, pair: Pair) -> int:
        looked_up, product = _both(pair)
        return self.layer.working_size(product) + self.table.working_size(looked_up)

    def instantiates(self, pair: Pair) -> bool:
        """Never for a table with more numbers than the Gram matrices take multiplications."""
        looked_up, product = _both(pair)
        places = product.output_grad[0].numel() // self.table.rows + looked_up.output_grad[0, ..., 0].numel()
        return places * (self.table.rows + looked_up.output_grad.shape[-1]) >= 2 * self.working_size(pair)

    def square_norms(self, pair: Pair, inverse: Scales = None) -> Sums:
        looked_up, product = _both(pair)
        assert product.input is not None
        index, g = self.table.lookups(looked_up)
        a, d, unit = (
            positions_of(product.input),
            positions_of(product.output_grad),
            torch.ones_like(index, dtype=g.dtype),
        )
        if inverse is not None:
            scale = inverse["weight"]
            if 1 not in scale.shape:
                return super().square_norms(pair, inverse)
            if scale.shape[0] == 1:
                a, g = a * scale, g * scale
            else:
                d, unit = d * scale.view(-1), scale.view(-1)[index]
        sides = torch.cat([a, g], 1)
        crossed = d.gather(2, index.unsqueeze(1).expand(-1, d.shape[1], -1)) * unit.unsqueeze(1)
        equal = (index.unsqueeze(1) == index.unsqueeze(2)) * (unit.unsqueeze(1) * unit.unsqueeze(2))
        gram = torch.cat([torch.cat([torch.bmm(d, d.mT), crossed], 2), torch.cat([crossed.mT, equal], 2)], 1)
        return {"weight": norm_from_grams(torch.bmm(sides, sides.mT), gram, a.shape[2], d.shape[2])}

    def weighted_sum(self, pair: Pair, weights: Tensor) -> Sums:
        """The two may cancel within a record: the allowance of the norm for that covers the rounding here too."""
        looked_up, product = _both(pair)
        total = self.layer.weighted_sum(product, weights)["weight"]
        return {"weight": total + self.table.weighted_sum(looked_up, weights)["weight"]}


def _both(pair: Pair) -> tuple[Pair, Pair]:
    assert isinstance(pair, TiedPair)
    return pair.looked_up, pair.product


def _unique(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Every key once, and where each of ``keys`` is among them."""
    found, place = torch.unique(keys, return_inverse=True)
    return found, place


def _unique_of_fixed_size(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The same with zeros behind, as long as ``keys``: how many keys differ would have to be asked of the device.

    No place leads to the zeros behind, so that what is summed up there is nothing.
    """
    ordered, order = keys.sort()
    new = torch.cat([ordered.new_zeros(1), (ordered[1:] != ordered[:-1]).long()])[: len(keys)].cumsum(0)
    return torch.zeros_like(keys).scatter_(0, new, ordered), torch.empty_like(order).scatter_(0, order, new)


def _embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, *_: Any, **__: Any) -> Reading:
    padding = padding_idx if padding_idx is None or padding_idx >= 0 else weight.shape[0] + padding_idx
    return Reading(EmbeddingRule(tuple(weight.shape), padding), input, {"weight": weight})


def _chosen(table: Any, index: Any) -> Reading | None:
    """``weight[index]``: as torch writes a lookup of whole rows, of matrices for experts."""
    whole = isinstance(table, Tensor) and table.dim() > 1 and isinstance(index, Tensor)
    if not whole or index.dtype not in {torch.int32, torch.int64} or not index.dim():
        return None
    return Reading(EmbeddingRule(tuple(table.shape)), index % table.shape[0], {"weight": table})  # -1 is the last row


def bag(  # noqa: PLR0917 - the signature is that of embedding_bag
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,  # noqa: ARG001 - None, or it is not read
    max_norm: float | None = None,  # noqa: ARG001 - refused before
    norm_type: float = 2.0,  # noqa: ARG001
    scale_grad_by_freq: bool = False,  # noqa: ARG001
    mode: str = "mean",
    sparse: bool = False,  # noqa: ARG001 - the private gradient has noise in every row
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,  # noqa: ARG001
    padding_idx: int | None = None,
    **_: Any,
) -> Tensor:
    """``F.embedding_bag`` of ``[records, words]``: looked up, then put together."""
    words = F.embedding(input, weight, padding_idx)
    if per_sample_weights is not None:
        words = words * per_sample_weights.unsqueeze(-1)
    if padding_idx is None:
        return words.max(1).values if mode == "max" else words.sum(1) if mode == "sum" else words.mean(1)
    padding = padding_idx if padding_idx >= 0 else weight.shape[0] + padding_idx
    absent = (input == padding).unsqueeze(-1)
    count = (~absent).sum(1)
    if mode == "max":
        return words.masked_fill(absent, -torch.inf).max(1).values.masked_fill(count == 0, 0.0)
    total = words.masked_fill(absent, 0.0).sum(1)
    return total if mode == "sum" else total / count.clamp(min=1)


def _bag(input: Tensor, weight: Tensor, offsets: Tensor | None = None, *args: Any, **kwargs: Any) -> WrittenOut | None:
    """Bags of one size; where offsets say which words are a record's, it is computed by itself."""
    if input.dim() != 2 or offsets is not None:
        return None
    return WrittenOut(lambda part: bag(input, weight, None, *args, **kwargs))  # noqa: ARG005


READERS: dict[Callable[..., Any], Reader] = {
    F.embedding: _embedding,
    F.embedding_bag: _bag,
    Tensor.__getitem__: _chosen,
}
