"""Per-example gradients of a model, without making them: norms, weighted sums and clamped sums of a batch of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.gradients.capture import Capture, wide
from adadp.gradients.inspection import Loss, trained_parameters
from adadp.gradients.passes import run_batch
from adadp.gradients.proof import proved_blueprint


class GradientEngine:
    """Gets norms and weighted sums of per-example gradients from one forward and one backward pass.

    ``model`` is any ``nn.Module``, used as it is; ``loss(model, *batch)`` returns one number per record; ``example`` is a
    batch of which only shapes and dtypes are read. Building the engine runs the model on a few made-up records and compares
    its gradients with plain autograd's; what has no closed form goes a generic way (``notes`` says which), and a model that
    mixes records is refused.

    The backward pass goes through activations only: parameter gradients are never computed by autograd, and per-example
    gradients never exist where a closed form does.
    """

    def __init__(self, model: nn.Module, loss: Loss, example: Sequence[Any]) -> None:
        self.model = model
        self.loss = loss
        self._parameters = trained_parameters(model)
        self.names = tuple(self._parameters)
        self._blueprint = proved_blueprint(model, loss, example)
        self.notes = self._blueprint.notes

    @property
    def bytes_per_record(self) -> int:
        """About how much memory one more record in a batch needs."""
        return 2 * self._blueprint.bytes_per_record

    def chunk_size(self, limit_bytes: int) -> int:
        """How many records fit ``limit_bytes`` at once; at least one."""
        return max(1, checks.count("limit_bytes", limit_bytes) // self.bytes_per_record)

    def zeros(self) -> dict[str, Tensor]:
        """A sum of nothing: what an empty lot contributes."""
        return {name: torch.zeros_like(value, dtype=wide(value.dtype)) for name, value in self._parameters.items()}

    def capture(self, batch: Sequence[Any]) -> Capture:
        """Run ``batch`` forward and back. What comes out is sensitive and belongs to the caller's stack frame."""
        return run_batch(self._parameters, self.model, self.loss, batch, self._blueprint)
