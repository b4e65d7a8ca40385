"""What a forward and a backward pass left of a batch, and the questions that may be asked of it."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadp.errors import InputError
from adadp.gradients.derived import Target
from adadp.gradients.rule import Pair, Rule, Sums, instances, norms_of, slices, weigh_all

Groups = Sequence[Sequence[str]]
"""A partition of the trained parameters by name."""


class Piece:
    """One or more uses of the same parameters, and their per-example gradients if these are the cheaper way.

    ``targets`` says which slot is which parameter. Sensitive.
    """

    def __init__(self, uses: tuple[tuple[Rule, Pair], ...], targets: Mapping[str, Target]) -> None:
        self._uses = uses
        self.targets = targets
        self.closed_form: tuple[Rule, Pair] | None = None
        """The rule and the pair of a single use whose per-example gradients need not be made."""
        self._parts: list[Sums] | None = None
        if len(uses) == 1:
            rule, pair = uses[0]
            if rule.instantiates(pair):
                self._parts = instances(rule, pair)
            else:
                self.closed_form = uses[0]

    def changed(self, change: Callable[[Tensor], Tensor]) -> Piece:
        """The same with other records, or fewer: see ``Pair.changed``."""
        return Piece(tuple((rule, pair.changed(change)) for rule, pair in self._uses), self.targets)

    def blanked(self, bad: Tensor) -> Piece:
        """The same with zeros for the records marked in ``bad``: zero times infinity would not do."""

        def zeros(rows: Tensor, start: int = 0) -> Tensor:
            marked = bad[start : start + len(rows)]
            return rows.masked_fill(marked.view(-1, *[1] * (rows.dim() - 1)), 0)

        if self._parts is None:
            return self.changed(zeros)
        start, parts = 0, self._parts
        for number, part in enumerate(parts):
            parts[number] = {slot: zeros(rows, start) for slot, rows in part.items()}
            start += max((len(rows) for rows in part.values()), default=0)
        return self

    def square_norms(self, inverse: Mapping[str, Tensor] | None) -> Sums:
        """The squared norm of every record's gradient, times ``inverse`` where that is given, ``[records]``."""
        scales = None if inverse is None else {slot: _rows_of(inverse, each) for slot, each in self.targets.items()}
        if self.closed_form is not None:
            rule, pair = self.closed_form
            return rule.square_norms(pair, scales)
        return norms_of(self.per_example(), scales)

    def weighted_sum(self, weights: Tensor, slots: tuple[str, ...]) -> Sums:
        """The sum over records of weight times gradient, for some of the parameters."""
        if self.closed_form is not None:
            rule, pair = self.closed_form
            return rule.weighted_sum(pair.only(slots), weights)
        # Uses that cancel within a record have to do so before they meet other records: its norm is that of their sum.
        return weigh_all(self.per_example(), weights, slots)

    def per_example(self) -> Iterator[Sums]:
        """Per-example gradients summed over the uses, a slice of the records at a time."""
        if self._parts is not None:
            yield from self._parts
            return
        size = sum(rule.working_size(pair) for rule, pair in self._uses)
        for start, stop in slices(self._uses[0][1], size):
            made = [rule.per_example(pair.rows(start, stop)) for rule, pair in self._uses]
            total = made[0]
            for each in made[1:]:  # of one slot: a parameter may be a weight here and a bias there
                (slot,), (grads,) = total, each.values()
                total = {slot: total[slot] + grads.view_as(total[slot])}
            yield total


class _Given(Rule):
    """Per-example gradients that are there already, in the place of the output gradient."""

    def per_example(self, pair: Pair) -> Sums:
        return {"weight": pair.output_grad}

    def working_size(self, pair: Pair) -> int:  # noqa: ARG002
        return 0


def given(gradients: Mapping[str, Tensor]) -> list[Piece]:
    """Per-example gradients by parameter, ``[records, *shape]``, as pieces."""
    return [
        Piece(((_Given(), Pair(None, each.to(accumulation_dtype(each.dtype)), ("weight",))),), {"weight": Target(name)})
        for name, each in gradients.items()
    ]


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

    def __init__(self, parameters: Mapping[str, nn.Parameter], pieces: Sequence[Piece], records: int) -> None:
        self.parameters = parameters
        self.pieces = list(pieces)
        self._bad: Tensor | None = None
        self._looked = False
        self._reference = next(iter(parameters.values()))
        self.records = records
        self.share: Callable[[str, Tensor], Tensor] | None = None
        """What is kept of a sum as soon as it is made, where parameters are split over processes."""
        self.padding: Tensor | None = None
        """Which rows fill up the batch to its size, ``[records]``: they have no part in any norm or sum."""

    def picked(self, rows: Tensor) -> Capture:
        """The same for the records at ``rows`` alone."""
        return Capture(self.parameters, [piece.changed(lambda side: side[rows]) for piece in self.pieces], len(rows))

    def square_norms(self, groups: Groups, inverse: Mapping[str, Tensor] | None = None) -> Tensor:
        """Squared norm of every record's gradient over every group of parameters, ``[records, groups]``.

        With ``inverse``, a tensor for every parameter that broadcasts to it: the norm of the gradient times it, which
        is the gradient in scaled coordinates. Sums need no such thing: what all records share can be multiplied later.
        """
        group_of = _group_of(groups, self.parameters)
        columns: list[list[Tensor]] = [[] for _ in groups]
        with full_precision(self._reference.device):
            for piece in self.pieces:
                for slot, norms in piece.square_norms(inverse).items():
                    columns[group_of[piece.targets[slot].name]].append(norms)
            empty = self._reference.new_zeros(self.records, dtype=accumulation_dtype(self._reference.dtype))
            totals = torch.stack([sum(column[1:], start=column[0]) if column else empty for column in columns], dim=1)
            bad = ~(totals.sum(1) < torch.inf)
            if bad.device.type != "cpu" or bool(bad.any()):  # elsewhere asking would wait for the device
                self._bad = bad if self._bad is None else self._bad | bad
            self._looked = True
            for silent in (self._bad, self.padding):
                if silent is not None:
                    totals.masked_fill_(silent.unsqueeze(1), torch.inf)
            return totals

    def weighted_sums(self, weights: Tensor, groups: Groups) -> dict[str, Tensor]:
        """Sum over records of weight times gradient for every parameter; ``weights`` is ``[records, groups]``."""
        if weights.shape != (self.records, len(groups)):
            raise InputError(
                f"The weights have shape {tuple(weights.shape)}, not ({self.records}, {len(groups)}).",
                why="Every record has a weight for every group of parameters.",
                fix="Give the weights that a clip rule computes from square_norms of the same groups.",
            )
        group_of = _group_of(groups, self.parameters)
        self._find_bad()
        weights = weights.nan_to_num(0.0, 0.0, 0.0)
        if self.padding is not None:
            weights.masked_fill_(self.padding.unsqueeze(1), 0.0)

        def weighed(piece: Piece) -> Sums:
            by_group: defaultdict[int, list[str]] = defaultdict(list)
            for slot, target in piece.targets.items():
                by_group[group_of[target.name]].append(slot)
            sums = [piece.weighted_sum(weights[:, group], tuple(slots)) for group, slots in by_group.items()]
            return {slot: value for each in sums for slot, value in each.items()}

        return self._summed(weighed)

    def sums(self, of: Callable[[Piece], Sums]) -> dict[str, Tensor]:
        """What ``of`` makes of every piece, a tensor of the parameter's shape for every slot, added up by parameter.

        For a sum that has no weights: records that must not contribute are zeros in the pieces.
        """
        self._find_bad()
        if self.padding is not None:
            self._bad = self.padding if self._bad is None else self._bad | self.padding
        return self._summed(of)

    def _find_bad(self) -> None:
        """Make sure that the records which must not contribute are known: all norms are looked at once."""
        if not self._looked:
            self.square_norms([list(self.parameters)])

    def _summed(self, of: Callable[[Piece], Sums]) -> dict[str, Tensor]:
        """Parameters in their order; zeros for those that no record used."""
        sums: dict[str, Tensor] = {}
        left = Counter(target.name for piece in self.pieces for target in piece.targets.values())
        with full_precision(self._reference.device):
            for piece in self.pieces:
                for slot, value in of(piece if self._bad is None else piece.blanked(self._bad)).items():
                    self.add(sums, target := piece.targets[slot], value)
                    left[target.name] -= 1
                    if self.share is not None and not left[target.name]:
                        sums[target.name] = self.share(target.name, sums[target.name])
            for name, value in self.parameters.items():
                if name not in sums:
                    zeros = zero_sums({name: value})[name]
                    sums[name] = zeros if self.share is None else self.share(name, zeros)
        return {name: sums[name] for name in self.parameters}

    def add(self, sums: dict[str, Tensor], target: Target, value: Tensor) -> None:
        """Add ``value`` to what ``sums`` has of the parameter of ``target``."""
        if target.start is not None:
            whole = torch.zeros_like(self.parameters[target.name], dtype=value.dtype)
            rows = target.of(whole)
            rows.copy_(value.view(rows.shape))
            value = whole
        value = value.view(self.parameters[target.name].shape)
        sums[target.name] = sums[target.name].add_(value) if target.name in sums else value


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
def full_precision(device: torch.device) -> Iterator[None]:
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


def zero_sums(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zeros in the shapes of ``parameters``, in the dtype of their sums."""
    return {name: torch.zeros_like(each, dtype=accumulation_dtype(each.dtype)) for name, each in parameters.items()}


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of norms and sums for a model that computes in ``dtype``."""
    return dtype if dtype == torch.float64 else torch.float32
