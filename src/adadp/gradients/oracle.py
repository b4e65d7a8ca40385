"""Per-example gradients the slow and plain way: one record, one backward pass. All else is tested against this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


def loop_losses(model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Any], records: int) -> Tensor:
    """The loss of each record, computed without the others."""
    with torch.no_grad():
        return torch.cat([loss(model, *picked(batch, torch.tensor([record]))) for record in range(records)])


def loop_gradients(
    model: nn.Module, loss: Callable[..., Tensor], batch: Sequence[Any], records: int
) -> list[dict[str, Tensor]]:
    """The gradient of each record's loss by plain autograd, for every trained parameter; zeros where it is unused."""
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    return [gradient(trained, loss, model, *picked(batch, torch.tensor([record]))) for record in range(records)]


def gradient(values: Mapping[str, Tensor], loss: Callable[..., Tensor], *args: Any) -> dict[str, Tensor]:
    """The gradient of ``loss(*args)`` by ``values``; zeros where one is unused."""
    with torch.enable_grad():
        total = loss(*args).sum()
    grads: Sequence[Tensor | None] = [None] * len(values)
    if total.requires_grad:  # a record may take no part, such as a text without a masked word
        grads = torch.autograd.grad(total, list(values.values()), allow_unused=True)
    return {
        name: torch.zeros_like(value) if grad is None else grad.detach().to_dense()
        for (name, value), grad in zip(values.items(), grads, strict=True)
    }


def picked(batch: Sequence[Any], rows: Tensor) -> tuple[Any, ...]:
    """The records of ``batch`` at ``rows``, in memory of their own."""
    cut = tree_map(lambda leaf: leaf[rows.to(leaf.device)] if isinstance(leaf, Tensor) else leaf, tuple(batch))
    return tuple(cut)
