"""A net below the proof: in a real run, a few records of a lot are computed alone and compared.

The proof holds for the calls a model makes; what Python does between them (a truth value that comes back as a number,
a list kept for later) it cannot see. So on a few random steps some records of the lot are computed one at a time by
plain autograd, and what the engine says of them must be the same up to rounding. Otherwise the run stops, before the
release. All of this is sensitive and stays here; the error tells nothing of the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from adadp.errors import MixedRecords
from adadp.gradients.capture import Capture
from adadp.gradients.engine import GradientEngine
from adadp.gradients.oracle import loop_gradients

_RECORDS = 2
"""How many records are computed alone."""
_COMPANY = 6
"""In how small a batch they are computed again where the model draws random numbers."""
_ROUNDING, _HALF_ROUNDING = 0.05, 0.2
"""Differences that rounding may make, over the length of a gradient. A gradient of another record, or of two mixed,
differs by about its whole length."""


def check_records(engine: GradientEngine, batch: Sequence[Any], capture: Capture, places: Tensor) -> None:
    """Compare the records at the first of ``places`` (a secret random order) with themselves alone.

    A model that draws random numbers would draw others: its records are computed in evaluation mode, a few together and
    then each alone.
    """
    if engine.random:
        batch = _cut(batch, places[:_COMPANY])
        places = torch.arange(len(places[:_COMPANY]))
        with engine.evaluating():
            _compare(engine, batch, engine.capture(batch), places[:_RECORDS])
    else:
        _compare(engine, batch, capture, places[:_RECORDS])


def _compare(engine: GradientEngine, batch: Sequence[Any], capture: Capture, places: Tensor) -> None:
    names = list(engine.names)
    with torch.enable_grad():
        alone = loop_gradients(engine.model, engine.loss, _cut(batch, places), len(places))
    half = any(value.dtype in (torch.float16, torch.bfloat16) for value in engine.model.parameters())
    allowed = (
        _HALF_ROUNDING if half or torch.is_autocast_enabled(next(engine.model.parameters()).device.type) else _ROUNDING
    )
    norms = capture.square_norms([names])
    for place, truth in zip(places.tolist(), alone, strict=True):
        weights = torch.zeros_like(norms)
        weights[place] = 1
        got = capture.weighted_sums(weights, [names])
        length = _length(truth)
        if not length.isfinite() or not bool(norms[place].isfinite().all()):
            continue  # such a record contributes nothing
        away = _length({name: got[name].double() - truth[name].double() for name in names})
        if not bool(away <= allowed * length + 1e-12):
            raise MixedRecords(
                "A record's gradient in its lot is not what it is for that record alone. Nothing was released.",
                why="The model moves or mixes records in a way that did not show when it was looked over, so clipping "
                "does not bound what one of them contributes.",
                fix="Let the model compute each record from that record alone; pass example= with public records that "
                "take the same way through it as the data.",
            )


def _length(tensors: dict[str, Tensor]) -> Tensor:
    return torch.stack([value.double().norm() for value in tensors.values()]).norm()


def _cut(batch: Sequence[Any], places: Tensor) -> tuple[Any, ...]:
    cut = tree_map(lambda leaf: leaf[places.to(leaf.device)] if isinstance(leaf, Tensor) else leaf, tuple(batch))
    return tuple(cut)
