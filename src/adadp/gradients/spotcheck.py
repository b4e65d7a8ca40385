"""A net below the proof: in a real run, a few records of a batch are computed alone and compared.

The proof holds for the calls a model makes; what Python does between them (a list kept for later, numbers drawn
elsewhere than by torch) it cannot see. So on a few random steps some records of the batch are computed one at a time by
plain autograd. If the engine says otherwise the run stops before the release, with an error that tells nothing of them.

What rounding can do is found out, not guessed: where a record differs, it is computed again with parameters that are a
few roundings off. A gradient that jumps then (huge numbers that cancel, the corner of a ReLU) may differ by as much.

Where records are computed one at a time anyway nothing can be mixed, but it can be remembered. There the first record
of every batch is computed before and after the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadp.errors import MixedRecords
from adadp.gradients.capture import Capture
from adadp.gradients.oracle import loop_gradients, picked
from adadp.sharding import moved

_NUDGE, _NUDGES = 2.0**-20, 8
"""How far parameters are moved, over their size, to see what rounding does to a gradient, and how often."""
ROUNDINGS = 20
"""How many times the rounding that is usual for a model may pass. The gradient of another record, or of several mixed,
differs by about its whole length: by 500 of these in single precision, by 20 in half precision."""


def compare_alone(
    model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Any], capture: Capture, *, rounding: float
) -> None:
    """Stop if the gradients that ``capture`` holds for the few records of ``batch`` are not theirs alone.

    A record that is not finite contributes nothing, in a batch and alone, and is passed over.
    """
    alone = loop_gradients(model, loss, batch, capture.records)
    names = list(alone[0])
    norms = capture.square_norms([names])
    allowed = min(0.25, ROUNDINGS * rounding)
    for record, truth in enumerate(alone):
        got = capture.weighted_sums(torch.eye(capture.records).to(norms)[:, record : record + 1], [names])
        length = _length(truth)
        away = _length({name: value - truth[name] for name, value in got.items()})
        if not (bool(length.isfinite()) and bool(norms[record].isfinite())) or bool(away <= allowed * length + 1e-12):
            continue
        moved = moved_by_rounding(model, loss, picked(batch, torch.tensor([record])), truth)
        if not bool(away <= 2 * torch.stack([_length(each) for each in moved]).max()):
            raise MixedRecords(
                "A record's gradient in its batch is not what it is for that record alone. Nothing was released.",
                why="The model moves or mixes records in a way that did not show when it was looked over, so clipping "
                "does not bound what one of them contributes.",
                fix="Let the model compute each record from that record alone, or pass example= with public records "
                "that take the same way through it as the data.",
            )


def compare_again(before: Mapping[str, Tensor], after: Mapping[str, Tensor], *, rounding: float) -> None:
    """Stop if the gradient of a record alone is another one after other records were computed: the same kernels ran on
    the same numbers, so that the model remembers something.
    """
    length = _length(before)
    if not bool(length.isfinite()) and not bool(_length(after).isfinite()):
        return
    if not bool(_length({name: value - before[name] for name, value in after.items()}) <= rounding * length + 1e-12):
        raise MixedRecords(
            "A record's gradient is another one after other records were seen. Nothing was released.",
            why="What a model remembers of the records it saw mixes them with those that come later.",
            fix="Keep nothing from one call of the model to the next, and draw random numbers by torch alone.",
        )


def moved_by_rounding(
    model: nn.Module, loss: Callable[..., Tensor], record: Sequence[Any], truth: Mapping[str, Tensor]
) -> list[dict[str, Tensor]]:
    """How the gradient of a record alone moves when the parameters are a few roundings off, several times."""
    found = []
    for _ in nudged(model):
        (other,) = loop_gradients(model, loss, record, 1)
        found.append({name: value - truth[name] for name, value in other.items()})
    return found


def nudged(model: nn.Module) -> Iterator[None]:
    """Several times, with the parameters a few roundings off each time."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(_NUDGES):
        with moved(
            model.parameters(), lambda old: old + _NUDGE * old * torch.randn(old.shape, generator=generator).to(old)
        ):
            yield


def _length(tensors: Mapping[str, Tensor]) -> Tensor:
    lengths = torch.stack([torch.linalg.vector_norm(value.double()) for value in tensors.values()])
    total: Tensor = torch.linalg.vector_norm(lengths)
    return total
