"""The unit as the record: all rows of a person are sampled, clipped and protected together.

A record is then a set of rows, of a unit that a column of ids names. Its loss is the mean loss of at most
``rows_per_unit`` of its rows, its gradient is clipped as one vector, and a batch holds each unit by a coin of its own.
So everything that is proved for one record holds for all rows of one unit, used or not.

The model and the loss see rows, as they were written: the rows of a batch of units lie one after another in dimension
0. For the engine they are the positions of a record, as the tokens of a text are, and it follows them as such: rows
that meet rows of another unit are found when the model is looked over, and nothing is made of a row's gradient.

    the rows of a unit                       what is used
    =======================================  ===========================================================================
    up to ``rows_per_unit``                  all of them
    more                                     ``rows_per_unit``, evenly spread over them in their order, the same in
                                             every step: which is a function of their number alone
    fewer than the public length they are    filled up with rows of the same unit, which do not count
    padded to
    one that makes the loss not finite       the unit contributes nothing
    =======================================  ===========================================================================

Public lengths are ``rows_per_unit``, a quarter of it, and so on down to 1: a unit with one row costs one row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from adadp import checks
from adadp.app.losses import Loss
from adadp.errors import InputError
from adadp.gradients.inspection import one_per_record
from adadp.ranks import joined, tensors_digest
from adadp.records import Grouped, Records

ROWS_PER_UNIT = 16
"""How many rows of a unit are used at most, unless told otherwise."""

MOST_ROWS = 4096

NOT_COMPARED = "Whether units of the test data are in the training data too was not checked: its ids were not given."
"""What a certificate says where test data came without ids."""

UNNAMED = "python"
"""What stands for the column in a configuration, where ids were passed as an array."""

Codes: TypeAlias = tuple[Tensor, dict[str, int]]
"""The unit of each row by number, and the number of each id. Sensitive."""

_WIDER = 4
"""One public length over the one before it: at most so many times the rows that a unit has are computed."""


@dataclass(frozen=True, eq=False)
class Units:
    """Which unit each row belongs to: ``codes`` counts units from 0. Sensitive, but for how many units there are."""

    codes: Tensor
    rows_per_unit: int = ROWS_PER_UNIT

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows_per_unit", checks.count("rows_per_unit", self.rows_per_unit))
        if self.rows_per_unit > MOST_ROWS:
            raise InputError(
                f"`rows_per_unit` is {self.rows_per_unit}, and at most {MOST_ROWS} rows of a unit are used.",
                why="Units are padded to public lengths up to it, whatever the data is.",
                fix="Pass a smaller number: which rows are used is spread over all of a unit's.",
            )
        if len(self) < 2:
            raise InputError(
                "All rows belong to one unit.",
                why="Protecting one unit among no others leaves nothing to learn.",
                fix="Name the column that tells people (or what else is to be protected) apart.",
            )

    def __len__(self) -> int:
        """How many units there are."""
        return int(self.codes.max()) + 1 if len(self.codes) else 0

    def check_rows(self, rows: int) -> None:
        """Refuse ids that are not one for each of ``rows`` rows; of several processes, ids that differ."""
        if len(self.codes) != rows:
            raise InputError(
                "`units` and the data have different lengths.",
                why="Each row needs the id of its unit.",
                fix="Pass one id for each row of the data, in the same order.",
            )
        if joined().several:
            joined().check_same({"units in the same order": tensors_digest([self.codes])})

    def parted(self, held: Tensor) -> tuple[Units, Tensor, Tensor]:
        """The units that are not ``held``; and of those that are, the rows that are used, with what each weighs: the
        rows of a unit weigh 1 together. Sensitive.
        """
        order, starts, counts = _by_unit(self.codes, len(self))
        chosen = held.nonzero().squeeze(1)
        used = counts[chosen].clamp(max=self.rows_per_unit)
        unit, of = torch.repeat_interleave(chosen, used), torch.repeat_interleave(used, used)
        place = torch.arange(len(unit)) - torch.repeat_interleave(used.cumsum(0) - used, used)
        kept = self.codes[~held[self.codes]]
        left = Units(torch.unique(kept, return_inverse=True)[1], self.rows_per_unit)
        return left, order[starts[unit] + place * counts[unit] // of], 1 / of.double()

    def one_row_each(self) -> Tensor:
        """Which rows stand for their units where each is to have one: the middle one of each unit. Sensitive."""
        order, starts, counts = _by_unit(self.codes, len(self))
        chosen = torch.zeros(len(self.codes), dtype=torch.bool)
        chosen[order[starts + counts // 2]] = True
        return chosen


class ByUnit(Grouped):
    """The units of ``rows`` as records of a few public lengths: a mask of the rows that count, and the rows."""

    def __init__(self, rows: Records, units: Units) -> None:
        units.check_rows(len(rows))
        if rows.groups > 1:
            raise InputError(
                "`units` is given together with records of several lengths.",
                why="A unit is a set of rows of one shape.",
                fix="Pad the records to one length, or leave `units` out.",
            )
        self._rows = rows
        self._order, self._starts, self._counts = _by_unit(units.codes, len(units))
        self._counts_used = self._counts.clamp(max=units.rows_per_unit)
        lengths = [units.rows_per_unit]
        while lengths[0] > 1:
            lengths.insert(0, max(1, lengths[0] // _WIDER))
        self._lengths = torch.tensor(lengths)
        self.groups = len(lengths)

    def __len__(self) -> int:
        return len(self._counts)

    def groups_of(self, indices: Sequence[int]) -> list[int]:
        """The place of the least length that holds the used rows of each unit."""
        found: list[int] = torch.searchsorted(self._lengths, self._counts_used[list(indices)]).tolist()
        return found

    def gathered(self, indices: Tensor, group: int) -> tuple[Any, ...]:
        """(mask, *rows): the mask is units x length, and so are dimensions 0 and 1 of every tensor of the rows."""
        length = int(self._lengths[group])
        held, used = self._counts[indices, None], self._counts_used[indices, None].clamp(max=length)
        places = torch.arange(length)
        wanted = self._order[self._starts[indices, None] + (places % used) * held // used]
        rows = self._rows.batch(wanted.flatten())
        return places < used, *tree_map(
            lambda leaf: leaf.view(*wanted.shape, *leaf.shape[1:]) if isinstance(leaf, Tensor) else leaf, rows
        )


def record_of(unit: str, place: str = "the training data") -> str:
    """What a record is, for a certificate; ``unit`` is the column, or ``UNNAMED``."""
    ids = "one id of `units`" if unit == UNNAMED else f"one {unit}"
    return f"all rows of {place} with {ids}, together"


def records_by_unit(rows: Records, units: Units | None, device: torch.device | str) -> Records:
    """What is trained on: the ``rows`` themselves, or their units."""
    return rows if units is None else Records(ByUnit(rows, units), device, bound=rows.bound)


def example_by_unit(rows: Records | None, units: Units | None, device: torch.device | str) -> Records | None:
    """Public ``rows`` to look a model over with, in the form of the units of the data: each a unit by itself."""
    if rows is None or units is None:
        return rows
    return records_by_unit(rows, Units(torch.arange(len(rows)), units.rows_per_unit), device)


def loss_by_unit(loss: Loss, units: Units | None) -> Loss:
    """The mean of ``loss`` over the rows of each unit that count."""
    if units is None:
        return loss

    def mean(model: nn.Module, mask: Tensor, *rows: Any) -> Tensor:
        flat = tree_map(lambda leaf: leaf.flatten(0, 1) if isinstance(leaf, Tensor) else leaf, rows)
        losses = one_per_record(loss(model, *flat), mask.numel()).view(mask.shape)
        return (losses * mask).sum(1) / mask.sum(1).clamp(min=1)

    return mean


def _by_unit(codes: Tensor, units: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rows ordered by unit, where each unit begins there, and how many rows it has."""
    order = torch.argsort(codes, stable=True)
    counts = torch.bincount(codes, minlength=units)
    return order, counts.cumsum(0) - counts, counts


def codes_of(ids: Any, name: str) -> Codes:
    """A number for each of ``ids``, by row, and the number of each id; ``name``: that of the column, or ``UNNAMED``."""
    ids = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else ids
    values = np.asarray(ids.to_numpy() if hasattr(ids, "to_numpy") else ids)
    if values.ndim != 1:
        raise InputError(
            f"{_called(name)} has {values.ndim} dimensions.",
            why="It must hold one id for each row.",
            fix="Pass a column or a flat list of ids.",
        )
    known: dict[str, int] = {}
    if values.dtype.kind in "iub":
        uniques, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        order = np.argsort(first)
        return torch.from_numpy(numbered(uniques[order].tolist(), known, name)[np.argsort(order)][inverse]), known
    return torch.from_numpy(numbered(values.tolist(), known, name)), known


def numbered(ids: Sequence[Any], known: dict[str, int], name: str) -> NDArray[np.int64]:
    """The numbers of ``ids`` among those that are ``known``, to which new ones are added.

    An id is its text: ``7``, ``7.0`` and ``" 7"`` are one id in every file and type, so that one person is one unit,
    and is found in the test data. A missing id (None, NaN, empty text) is an error that names the column alone.
    """
    try:
        texts = {each: _text(each) for each in dict.fromkeys(ids)}
    except TypeError:
        raise InputError(f"{_called(name)} holds values that are no ids.", fix="Pass numbers or texts.") from None
    if not all(texts.values()):
        raise InputError(
            f"{_called(name)} has missing ids.",
            why="A row without an id cannot be protected together with the other rows of its unit.",
            fix="Leave such rows out, or give each an id: one of its own if it belongs to nobody else.",
        )
    numbers = {each: known.setdefault(text, len(known)) for each, text in texts.items()}
    return np.fromiter(map(numbers.__getitem__, ids), np.int64, len(ids))


def _called(name: str) -> str:
    """What a user is told about the ids ``name``."""
    return "The argument `units`" if name == UNNAMED else f"The column {name!r}"


def _text(value: Any) -> str:
    """``value`` as the text of an id; empty for None, NaN, and what pandas has for these."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(value, float):
        return "" if math.isnan(value) else str(int(value)) if value.is_integer() else str(value)
    text = (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)).strip()
    whole, point, rest = text.partition(".")
    return whole if point and rest.strip("0") == "" and whole.removeprefix("-").isdecimal() else text


def refuse_shared(train: Mapping[Any, int], public: Mapping[Any, int], name: str, called: str = "test") -> None:
    """Refuse ``public`` data with units that are trained on; which or how many is not told."""
    if train.keys() & public.keys():
        raise InputError(
            f"Units of the {called} data are in the training data too, by the ids in {_called(name)[4:]}.",
            why=f"What is measured on {called} data is told without noise, and a unit that was trained on makes the "
            "figure too good.",
            fix="Put all rows of a unit into one of the two.",
        )


def taken_out(data: Any, units: Any, given: str) -> tuple[Any, Any]:
    """``data`` without its column ``units``, and that column; ids that are no name of a column as they are."""
    if not isinstance(units, str):
        return data, units
    found = _found(data, units)
    if found is None:
        raise InputError(
            f"The data has no column {units!r}, which `{given}` names.",
            why="It says which rows belong together.",
            fix="Pass the name of a column of a frame, table or dict, or an array with one id for each row.",
        )
    return found


def has_column(data: Any, column: str) -> bool:
    """Whether ``taken_out`` finds ``column`` in ``data``."""
    return _found(data, column) is not None


def _found(data: Any, column: str) -> tuple[Any, Any] | None:
    """``data`` without ``column``, which may be one of the first of its parts, and the column."""
    if not isinstance(data, tuple) or not data:
        return _without(data, column)
    inner = _without(data[0], column)
    return None if inner is None else ((inner[0], *data[1:]), inner[1])


def _without(data: Any, column: str) -> tuple[Any, Any] | None:
    """``data`` without ``column``, and the column; None where it has none."""
    if isinstance(data, Mapping):
        others = {name: value for name, value in data.items() if name != column}
        return (others, data[column]) if column in data else None
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # pandas
        return (data.drop(columns=[column]), data[column]) if column in data.columns else None
    if column not in getattr(data, "column_names", ()):  # Arrow and Hugging Face
        return None
    drop = data.remove_columns if hasattr(data, "remove_columns") else data.drop_columns
    return drop([column]), data[column]
