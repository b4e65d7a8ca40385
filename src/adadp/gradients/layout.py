"""Where the records are in a tensor: found by running the model on two and on three probe records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Dimension ``dim`` of a tensor has ``per_record`` entries for every record."""

    dim: int
    per_record: int = 1

    def records_first(self, value: Tensor, records: int) -> Tensor:
        """``value`` with the records in dimension 0, and a dimension of its own for several entries per record."""
        moved = value if self.dim == 0 else value.movedim(self.dim, 0)
        if self.per_record == 1:
            return moved
        return moved.reshape(records, self.per_record, *moved.shape[1:])

    def fits(self, shape: Sequence[int], records: int) -> bool:
        """Whether a tensor of this shape can hold so many records."""
        return len(shape) > self.dim and shape[self.dim] == records * self.per_record


def find_layout(two: Sequence[int], three: Sequence[int]) -> Layout | None:
    """The layout of a tensor from its shapes with two and with three records; None if it does not hold one by one."""
    if len(two) != len(three):
        return None
    changed = [dim for dim, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if len(changed) != 1:
        return None
    dim = changed[0]
    per_record, rest = divmod(two[dim], 2)
    if rest or three[dim] != 3 * per_record or per_record == 0:
        return None
    return Layout(dim, per_record)
