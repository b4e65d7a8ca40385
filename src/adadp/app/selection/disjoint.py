"""One setting per part of the data, the choice on the last part (Yu et al. 2019, section IV-A3).

k settings are trained on k disjoint parts and their errors counted on one part more. Setting i is chosen with a
probability proportional to exp(-epsilon z_i / 2), where z_i is its number of errors: the exponential mechanism
(McSherry and Talwar 2007), which is epsilon-DP because one record of the last part moves each z_i by at most 1.

    the part of a record is                        because
    add-remove neighbours: drawn by itself         one record more moves no other
    others: by a random order, in equal parts      the number of records is public; the rest goes to the last part
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adadp.errors import InputError
from adadp.events import Neighbours, Selection
from adadp.randomness import RandomSource
from adadp.release import Crossing

_PARTS, _CHOICE = "search/parts", "search/choice"


def part_size(public: int, settings: int) -> int:
    """The public number of records in one of the parts for ``settings`` settings and the choice."""
    size = public // (settings + 1)
    if size < 2:
        raise InputError(
            f"{public} records are too few for {settings + 1} parts.", fix="Compare fewer settings, or use by = repeat."
        )
    return size


def parts_of(total: int, settings: int, *, size: int, neighbours: Neighbours, source: RandomSource) -> Tensor:
    """The part of each of ``total`` records: 0 to ``settings`` - 1 are trained on, ``settings`` is the last."""
    if neighbours is Neighbours.ADD_REMOVE:
        drawn = source.uniform(total, purpose=_PARTS, step=0) * (settings + 1)
        return drawn.long().clamp_(max=settings)
    part = torch.full((total,), settings)
    order = source.permutation(total, purpose=_PARTS, step=0)
    for number in range(settings):
        part[order[number * size : (number + 1) * size]] = number
    return part


def draw_choice(errors: Sequence[int], epsilon: float, neighbours: Neighbours, crossing: Crossing) -> int:
    """The exponential mechanism: a number i with probability proportional to exp(-epsilon errors[i] / 2).

    The ledger of the search holds the choice already. One record moves a number of errors by 1, either way.
    """
    # ======================== trust line: above sensitive, below public ========================
    permit = crossing.pay(Selection(epsilon, neighbours=neighbours), None)
    return permit.choice(torch.tensor(errors, dtype=torch.float64), 2.0, step=0, purpose=_CHOICE)
