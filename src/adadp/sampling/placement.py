"""Where the records of a batch stand: a secret, uniformly random place for each of them.

How a float32 kernel rounds what it computes for a record can depend on the row the record is in and on the number of
rows. So the number of rows is public, and rows are drawn at random. One record more then moves at most one other:

    records in the batch     the places they get                      one record more
    n < rows               n different rows of ``rows``, uniform    takes one of the free rows; nobody moves
    n >= rows              the first n rows, in uniform order       takes a uniform one of n + 1; who was there goes to
                                                                    the last

Both hold for the random numbers as they are drawn here if the new record is the last of its batch, and for any other in
distribution, because the places do not depend on who the records are. docs/arithmetic.md says what follows from it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adadp.randomness import RandomSource


def places(count: int, rows: int, source: RandomSource, *, step: int, purpose: str = "places") -> Tensor:
    """Which of ``count`` records stands in each row, -1 for a row without one. At least ``rows`` rows; sensitive."""
    holders = source.permutation(rows, purpose=purpose, step=step)
    if count <= rows:
        return holders.masked_fill_(holders >= count, -1)
    order = holders.tolist()
    further = source.uniform(count - rows, purpose=f"{purpose} beyond", step=step).tolist()
    for record, uniform in enumerate(further, start=rows):
        place = int(uniform * (record + 1))
        order.append(record)
        order[place], order[record] = order[record], order[place]
    return torch.tensor(order)
