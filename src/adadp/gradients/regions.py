"""The generic way: per-example gradients of parameters that no rule covers, by ``torch.func`` or by a loop.

A region is a part of the model that is run again for every record on its own and differentiated. The whole loss is one:
slow, and right for any model that does not mix records. Smaller regions only save time. They come from installed
packages (``readers.py``); records are followed into and out of each, and the proof compares its gradients.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from adadp.gradients.layout import Layout
from adadp.gradients.oracle import gradient, picked
from adadp.gradients.probe_records import Loss, check_leading

Told = Callable[[Sequence[tuple[Any, Layout | None]], Sequence[tuple[Tensor, Layout]]], None]
"""Takes what went into a region and what came out, each with the place of the records; None: all records share it."""


class UnseenPath(Exception):
    """A batch made the model do what it did not do when it was looked over: nothing was computed from it."""


class RefusedByVmap(RuntimeError):
    """``torch.func`` cannot run a region."""

    def __init__(self, region: Region, error: RuntimeError) -> None:
        super().__init__(str(error))
        self.region = region


class Watch(Protocol):
    """A region in one forward pass."""

    def edges(self) -> Sequence[GradientEdge]:
        """Where gradients must be asked for. Refuses tensors that were changed in place after the region used them."""
        ...

    def gradients(
        self, at_edges: Iterable[Tensor | None], batch: Sequence[Any], autocast: torch.dtype | None
    ) -> dict[str, Tensor]:
        """Every record's gradient for each parameter of the region; ``autocast`` is its dtype for the loss."""
        ...


@dataclass(frozen=True)
class Region(ABC):
    """Parameters that no rule covers, and how their per-example gradients are computed."""

    title: str
    parameters: Mapping[str, str]
    """Name within the region to trained name."""
    vectorised: bool = field(default=True, kw_only=True)
    """By vmap; otherwise record by record."""
    why: str = field(default="", kw_only=True)
    """What no rule covers."""

    @property
    def note(self) -> str:
        """What a user is told about it."""
        names, way = ", ".join(self.parameters.values()), "by torch.func" if self.vectorised else "record by record"
        return (
            f"{self.title}: no closed form for {self.why}; per-example gradients of {names} {way}, which is exact and "
            "slower."
        )

    @abstractmethod
    def watch(self) -> AbstractContextManager[Watch]:
        """Around the forward pass of a batch."""

    @abstractmethod
    def follow(self, told: Told) -> AbstractContextManager[None]:
        """Around a forward pass on public records: ``told`` must hear of every run, with no outputs of a run
        that was not expected.
        """


class LossModule(nn.Module):
    """The model and its loss as one module, for ``functional_call``."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *batch: Any) -> Tensor:
        """The loss of every record."""
        return self.loss(self.model, *batch)


@dataclass(frozen=True)
class WholeLoss(Region):
    """The whole loss as a region: nothing is taken from the forward pass of the batch."""

    model: nn.Module
    loss: Loss

    def watch(self) -> AbstractContextManager[Watch]:
        return nullcontext(self)

    def follow(self, told: Told) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def edges(self) -> Sequence[GradientEdge]:
        return ()

    def gradients(
        self,
        at_edges: Iterable[Tensor | None],  # noqa: ARG002
        batch: Sequence[Any],
        autocast: torch.dtype | None,
    ) -> dict[str, Tensor]:
        """The gradient of every record's loss: records are in dimension 0."""
        device = next(self.model.parameters()).device.type
        # Tensors of their own: autocast may remember the parameters' casts from a pass without gradients.
        values = {local: self._module.get_parameter(local).detach() for local in self.parameters}
        with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
            if not self.vectorised:
                grads = self._looped(values, batch)
            else:
                try:
                    grads = self._by_vmap(values, batch)
                except RuntimeError as error:
                    raise RefusedByVmap(self, error) from error
        return {self.parameters[local]: value for local, value in grads.items()}

    def _looped(self, values: dict[str, Tensor], batch: Sequence[Any]) -> dict[str, Tensor]:
        values = {local: value.requires_grad_() for local, value in values.items()}
        alone = (picked(batch, torch.tensor([record])) for record in range(check_leading(batch)))
        rows = [gradient(values, functional_call, self._module, values, record) for record in alone]
        return {local: torch.stack([row[local] for row in rows]) for local in values}

    def _by_vmap(self, values: dict[str, Tensor], batch: Sequence[Any]) -> dict[str, Tensor]:
        leaves, spec = tree_flatten(tuple(batch))

        def loss(values: dict[str, Tensor], record: list[Tensor]) -> Tensor:
            rows = iter(record)
            filled = [next(rows).unsqueeze(0) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            losses: Tensor = functional_call(self._module, values, tuple(tree_unflatten(filled, spec)))
            return losses.squeeze(0)

        held = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
        return gradients_by_vmap(loss, (None, [0] * len(held)))(values, held)

    @cached_property
    def _module(self) -> LossModule:
        return LossModule(self.model, self.loss)


def gradients_by_vmap(function: Callable[..., Tensor], in_dims: tuple[Any, ...]) -> Callable[..., dict[str, Tensor]]:
    """``function`` differentiated by its first argument, for every record by itself."""
    mapped = vmap(grad(function), in_dims=in_dims, randomness="different")

    def run(*args: Any) -> dict[str, Tensor]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # the note has said so already
            grads: dict[str, Tensor] = mapped(*args)
            return grads

    return run


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype autocast uses on ``device``, None if it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
