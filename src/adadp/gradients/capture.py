"""What a forward and a backward pass left of a batch, and the three questions a clip rule may ask of it."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from adadp.errors import InputError
from adadp.gradients.boxes import clamped_products
from adadp.gradients.recorder import Target
from adadp.gradients.rules import (
    LinearRule,
    Pair,
    Rule,
    Sums,
    blank,
    instances,
    norms_of,
    scaled,
    slices,
    square_norm,
    weigh,
    weigh_all,
)

Groups = Sequence[Sequence[str]]
"""A partition of the trained parameters by name."""


@dataclass(frozen=True)
class Piece:
    """One or more uses of the same parameters; ``targets`` says which slot is which parameter."""

    uses: tuple[tuple[Rule, Pair], ...]
    targets: Mapping[str, Target]


class Capture:
    """The per-example gradients of one batch, as pairs of activations. Sensitive.

    Norms and sums are float32 whatever the model computes in (float64 if it computes in that), autocast or not.

    =========================================  =======================================================================
    a record with a gradient that is not       all its norms are infinite, and it contributes nothing to any sum,
    finite, or whose squared norm overflows    whatever its weight
    a weight that is not finite                counts as 0
    no records                                 norms ``[0, groups]``, sums zero
    ``padding``, if it is set                  rows marked in it are not records: their norms are infinite too, and they
                                               contribute nothing
    =========================================  =======================================================================
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], pieces: Sequence[Piece], given: Mapping[str, Tensor], records: int
    ) -> None:
        self._parameters = parameters
        self._pieces = [_Held(piece) for piece in pieces]
        self._given = dict(given)
        self._bad: Tensor | None = None
        self._looked = False
        self._reference = next(iter(parameters.values()))
        self.records = records
        self.padding: Tensor | None = None
        """Which rows fill up the batch to its size, ``[records]``: they have no part in any norm or sum."""

    def picked(self, rows: Tensor) -> Capture:
        """The same for the records at ``rows`` alone."""
        pieces = [held.picked(rows) for held in self._pieces]
        return Capture(self._parameters, pieces, {name: each[rows] for name, each in self._given.items()}, len(rows))

    def square_norms(self, groups: Groups, inverse: Mapping[str, Tensor] | None = None) -> Tensor:
        """Squared norm of every record's gradient over every group of parameters, ``[records, groups]``.

        With ``inverse``, a tensor for every parameter that broadcasts to it: the norm of the gradient times it, which
        is the gradient in scaled coordinates. Sums need no such thing: what all records share can be multiplied later.
        """
        group_of = _group_of(groups, self._parameters)
        columns: list[list[Tensor]] = [[] for _ in groups]
        with exactly(self._reference.device):
            for held in self._pieces:
                for slot, norms in held.square_norms(inverse).items():
                    columns[group_of[held.targets[slot].name]].append(norms)
            for name, grads in self._given.items():
                columns[group_of[name]].append(square_norm(scaled(grads, inverse, name)))
            empty = self._reference.new_zeros(self.records, dtype=wide(self._reference.dtype))
            totals = torch.stack([sum(column[1:], start=column[0]) if column else empty for column in columns], dim=1)
            bad = ~(totals.sum(1) < torch.inf)
            if bool(bad.any()):
                self._blank(bad)
            self._looked = True
            for silent in (self._bad, self.padding):
                if silent is not None:
                    totals.masked_fill_(silent.unsqueeze(1), torch.inf)
            return totals

    def weighted_sums(self, weights: Tensor, groups: Groups) -> dict[str, Tensor]:
        """Sum over records of weight times gradient for every parameter; ``weights`` is ``[records, groups]``."""
        self._check(weights, groups)
        group_of = _group_of(groups, self._parameters)
        self._find_bad()
        sums: dict[str, Tensor] = {}
        with exactly(self._reference.device):
            weights = weights.nan_to_num(0.0, 0.0, 0.0)
            if self.padding is not None:
                weights.masked_fill_(self.padding.unsqueeze(1), 0.0)
            for held in self._pieces:
                by_group: defaultdict[int, list[str]] = defaultdict(list)
                for slot, target in held.targets.items():
                    by_group[group_of[target.name]].append(slot)
                for group, slots in by_group.items():
                    for slot, value in held.weighted_sum(weights[:, group], tuple(slots)).items():
                        self._add(sums, held.targets[slot], value)
            for name, grads in self._given.items():
                self._add(sums, Target(name), weigh(grads, weights[:, group_of[name]]))
            return self._complete(sums)

    def square_sums(self) -> dict[str, Tensor]:
        """Sum over records of the squared gradient, coordinate by coordinate."""
        self._silence()
        sums: dict[str, Tensor] = {}
        with exactly(self._reference.device):
            for held in self._pieces:
                for slot, value in held.square_sum().items():
                    self._add(sums, held.targets[slot], value)
            for name, grads in self._given.items():
                self._add(sums, Target(name), grads.square().sum(0))
            return self._complete(sums)

    def clamped_sums(self, bounds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum over records of the gradient clamped to the box [-bound, bound], coordinate by coordinate.

        ``bounds`` has a tensor of the parameter's shape, nowhere negative, for every trained parameter.
        """
        for name, parameter in self._parameters.items():
            if name not in bounds or bounds[name].shape != parameter.shape:
                raise InputError(
                    f"The box has no bounds of shape {tuple(parameter.shape)} for {name}.",
                    why="A coordinate without a bound would be released without one.",
                    fix="Give a tensor of bounds, of the parameter's shape, for every trained parameter.",
                )
        self._silence()
        sums: dict[str, Tensor] = {}
        with exactly(self._reference.device):
            for held in self._pieces:
                box = {slot: target.of(bounds[target.name]) for slot, target in held.targets.items()}
                for slot, value in held.clamped_sum(box).items():
                    self._add(sums, held.targets[slot], value)
            for name, grads in self._given.items():
                self._add(sums, Target(name), torch.clamp(grads, -bounds[name], bounds[name]).sum(0))
            return self._complete(sums)

    def _check(self, weights: Tensor, groups: Groups) -> None:
        if weights.shape != (self.records, len(groups)):
            raise InputError(
                f"The weights have shape {tuple(weights.shape)}, not ({self.records}, {len(groups)}).",
                why="Every record has a weight for every group of parameters.",
                fix="Give the weights that a clip rule computes from square_norms of the same groups.",
            )

    def _find_bad(self) -> None:
        """Make sure that the records which must not contribute are known: all norms are looked at once."""
        if not self._looked:
            self.square_norms([list(self._parameters)])

    def _silence(self) -> None:
        """Let bad records and padding be zeros, for a sum that has no weights to do it."""
        self._find_bad()
        if self.padding is not None:
            self._blank(self.padding)

    def _blank(self, bad: Tensor) -> None:
        """Let the records marked in ``bad`` contribute nothing: zero times infinity would not do."""
        self._bad = bad if self._bad is None else self._bad | bad
        self._pieces = [held.without(bad) for held in self._pieces]
        self._given = {name: blank(grads, bad) for name, grads in self._given.items()}

    def _add(self, sums: dict[str, Tensor], target: Target, value: Tensor) -> None:
        if target.start is not None:
            whole = torch.zeros_like(self._parameters[target.name], dtype=value.dtype)
            rows = target.of(whole)
            rows.copy_(value.view(rows.shape))
            value = whole
        value = value.view(self._parameters[target.name].shape)
        sums[target.name] = sums[target.name].add_(value) if target.name in sums else value

    def _complete(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Parameters in their order; zeros for those that no record used."""
        return {
            name: sums[name] if name in sums else torch.zeros_like(value, dtype=wide(value.dtype)).detach()
            for name, value in self._parameters.items()
        }


class _Held:
    """A piece, and its per-example gradients if they were the cheaper way."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self.targets = piece.targets
        self._parts: list[Sums] | None = None
        if len(piece.uses) == 1:
            rule, pair = piece.uses[0]
            if rule.instantiates(pair):
                self._parts = instances(rule, pair)

    def picked(self, rows: Tensor) -> Piece:
        """The piece for the records at ``rows`` alone."""
        return replace(self._piece, uses=tuple((rule, pair.picked(rows)) for rule, pair in self._piece.uses))

    def square_norms(self, inverse: Mapping[str, Tensor] | None) -> Sums:
        scales = None if inverse is None else {slot: _rows_of(inverse, each) for slot, each in self.targets.items()}
        if self._parts is None and len(self._piece.uses) == 1:
            rule, pair = self._piece.uses[0]
            return rule.square_norms(pair, scales)
        return norms_of(self._per_example(), scales)

    def weighted_sum(self, weights: Tensor, slots: tuple[str, ...]) -> Sums:
        if self._parts is None and len(self._piece.uses) == 1:
            rule, pair = self._piece.uses[0]
            return rule.weighted_sum(pair.only(slots), weights)
        # Uses that cancel within a record have to do so before they meet other records: its norm is that of their sum.
        return weigh_all(self._per_example(), weights, slots)

    def clamped_sum(self, bounds: Sums) -> Sums:
        one = self._one_position()
        if one is not None:
            return _clamped_linear(*one, bounds)
        return self._sum(lambda slot, grads: torch.clamp(grads, -bounds[slot], bounds[slot]))

    def square_sum(self) -> Sums:
        one = self._one_position()
        if one is not None:  # the square of a product is the product of the squares
            rule, pair = one
            assert pair.input is not None
            squares = Pair(pair.input.square(), pair.output_grad.square(), pair.slots)
            return rule.weighted_sum(squares, pair.output_grad.new_ones(pair.records))
        return self._sum(lambda _, grads: grads.square())

    def _one_position(self) -> tuple[LinearRule, Pair] | None:
        """The rule and pair of a linear layer used once, on one vector per record: its gradient is one product."""
        if self._parts is None and len(self._piece.uses) == 1:
            rule, pair = self._piece.uses[0]
            if isinstance(rule, LinearRule) and pair.input is not None and pair.output_grad.dim() == 2:
                return rule, pair
        return None

    def _sum(self, change: Callable[[str, Tensor], Tensor]) -> Sums:
        """The sum over records of ``change`` of each record's gradient."""
        total: Sums = {}
        for part in self._per_example():
            for slot, grads in part.items():
                value = change(slot, grads).sum(0)
                total[slot] = total[slot] + value if slot in total else value
        return total

    def without(self, bad: Tensor) -> _Held:
        return _Held(replace(self._piece, uses=tuple((rule, pair.without(bad)) for rule, pair in self._piece.uses)))

    def _per_example(self) -> Iterator[Sums]:
        """Per-example gradients summed over the uses, a slice of the records at a time."""
        if self._parts is not None:
            yield from self._parts
            return
        size = sum(rule.working_size(pair) for rule, pair in self._piece.uses)
        for start, stop in slices(self._piece.uses[0][1], size):
            total: Sums = {}
            for rule, pair in self._piece.uses:
                for slot, grads in rule.per_example(pair.rows(start, stop)).items():
                    total[slot] = total[slot] + grads if slot in total else grads
            yield total


def _clamped_linear(rule: LinearRule, pair: Pair, bounds: Sums) -> Sums:
    sums = {}
    assert pair.input is not None
    if "weight" in pair.slots:
        left, right = (pair.input, pair.output_grad) if rule.transposed else (pair.output_grad, pair.input)
        sums["weight"] = clamped_products(left, right, bounds["weight"])
    if "bias" in pair.slots:
        sums["bias"] = torch.clamp(pair.output_grad, -bounds["bias"], bounds["bias"]).sum(0)
    return sums


def _rows_of(inverse: Mapping[str, Tensor], target: Target) -> Tensor:
    """The scales of ``target``: its rows, or all of them where its rows share theirs."""
    scales = inverse[target.name]
    return scales if scales.shape[:1] == (1,) else target.of(scales)


def _group_of(groups: Groups, parameters: Mapping[str, Any]) -> dict[str, int]:
    found = {name: index for index, group in enumerate(groups) for name in group}
    if len(found) != sum(len(group) for group in groups) or set(found) != set(parameters):
        raise InputError(
            "The clip groups are not a partition of the trained parameters.",
            why="A parameter outside of every group would be released without a bound, one in two would count twice.",
            fix="Put every trained parameter in exactly one group.",
        )
    return found


@contextlib.contextmanager
def exactly(device: torch.device) -> Iterator[None]:
    """Neither a graph nor half precision nor TF32, whatever is switched on: norms and sums must belong together."""
    half = torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else None
    short = without_tf32() if device.type == "cuda" else None
    with torch.no_grad(), half or contextlib.nullcontext(), short or contextlib.nullcontext():
        yield


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Float32 with all its digits: TF32, which torch allows for convolutions unless told otherwise, keeps ten bits."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    kept = [*_tf32(products, products), *_tf32(convolutions, *_parts_of(convolutions))]
    products.allow_tf32 = convolutions.allow_tf32 = False
    try:
        yield
    finally:
        for switch, name, value in kept:
            setattr(switch, name, value)


def _tf32(switch: Any, *parts: Any) -> list[tuple[Any, str, Any]]:
    """How TF32 is set, so that it can be set again: by the old switch, or part by part where torch cannot say that."""
    try:
        return [(switch, "allow_tf32", switch.allow_tf32)]
    except RuntimeError:  # the caller uses the switches that torch has since 2.9
        return [(part, "fp32_precision", part.fp32_precision) for part in parts]


def _parts_of(convolutions: Any) -> tuple[Any, ...]:
    return (convolutions.conv, convolutions.rnn) if hasattr(convolutions, "conv") else ()


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of norms and sums for a model that computes in ``dtype``."""
    return dtype if dtype == torch.float64 else torch.float32
