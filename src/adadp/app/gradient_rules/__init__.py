"""Closed forms of per-example gradients for torch's own layers, offered to the engine as anybody's would be.

They make training fast: without them every parameter goes the generic way. The engine compares every one with plain
autograd before the first step, and on records of real batches, so that a wrong formula is found. What rounding does to
a closed form is allowed for here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adadp.app.gradient_rules import (
    attention,
    broadcast,
    convolution,
    embedding,
    linear,
    normalisation,
    recurrent,
)
from adadp.gradients.readers import Reader

READERS: dict[Callable[..., Any], Reader] = {
    function: reader
    for module in (linear, convolution, embedding, normalisation, broadcast, attention, recurrent)
    for function, reader in module.READERS.items()
}
"""Torch function -> what reads a call of it; the entry point of the group ``adadp.gradient_rules``."""
