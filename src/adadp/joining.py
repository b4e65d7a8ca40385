"""What the processes of a run must have in common, compared before anything is charged.

Each process is given all records, and computes on its own part of them. So a record must have the same number in all:
data that every process has shuffled by itself could hold one record in several parts, and its bound would not hold.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from adadp.errors import InputError
from adadp.randomness import RandomSource
from adadp.ranks import Ranks, code_digest, tensors_digest
from adadp.records import Records
from adadp.sharding import is_split

_STRETCHES = 31
"""Into which records that are not in memory are divided; those at the ends are compared."""


def join(ranks: Ranks, model: nn.Module, records: Records, source: RandomSource, configuration: str) -> None:
    """Refuse processes that are not of one run, and give all of them the parameters and buffers of the first, but for
    parameters that are split, of which every part has one owner.

    What is compared, a digest of it or the thing itself, is not in the error.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    layout = [(name, tuple(each.shape), each.dtype, each.requires_grad) for name, each in tensors.items()]
    ranks.check_same(
        {
            "version of AdaDP or of torch": code_digest(),
            "configuration": re.sub(" at 0x[0-9a-f]+", "", configuration),
            "model": repr(layout),
            "number of records": str(len(records)),
        }
    )
    ranks.check_same({"records in the same order": _digest_of(records)})
    _check_numbers(ranks, source)
    ranks.copy_first(each for each in tensors.values() if not is_split(each))


def _check_numbers(ranks: Ranks, source: RandomSource) -> None:
    """Refuse secure sources that give several processes the same numbers, as copies of one generator would."""
    found = ranks.all_of("comparing random numbers", source.key(purpose="processes", step=0))
    if not source.reproducible and len(set(found)) < ranks.size:
        raise InputError(
            "Several processes have the same random numbers.",
            why="Their coins would not be independent, and neither would the noise of their shares.",
            fix="Give each process a generator that was seeded by itself, or pass no `seed`.",
        )


def _digest_of(records: Records) -> str:
    """A digest of all records that are in memory, and of a few of others. Of those none, if they differ when they are
    read again, as where a data set draws random numbers: such data cannot be compared.
    """
    in_memory = tensors_digest(leaf for leaf in tree_leaves(records.columns or ()) if isinstance(leaf, Tensor))
    if records.columns is not None and not records.stored:
        return in_memory
    few = sorted({place * (len(records) - 1) // _STRETCHES for place in range(_STRETCHES + 1)})
    found = set()
    for _ in range(2):
        read = tree_leaves([records.batch(torch.tensor([each])) for each in few])
        found.add(tensors_digest(leaf for leaf in read if isinstance(leaf, Tensor)))
    return in_memory + (found.pop() if len(found) == 1 else "")
