"""Parameters that are split over the processes of a run (FSDP2): which coordinates of each belong to which process.

At rest every process has the rows of its share, as a DTensor. While a layer computes, the parameter is gathered, as
another tensor with a memory of its own, under which a forward pass knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

_GATHERED = "_adadp_gathered"
"""The attribute of a split parameter that is the same parameter as the layers use it."""


@dataclass(frozen=True)
class Share:
    """Rows ``start`` to ``stop`` of a tensor of this ``shape``: what one process adds up and gives its noise."""

    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def coordinates(self) -> range:
        """Among those of the tensor, in the order of its memory."""
        row = prod(self.shape[1:])
        return range(self.start * row, self.stop * row)


def is_split(value: Tensor) -> bool:
    """Whether other processes have parts of ``value``."""
    return hasattr(value, "device_mesh")


def divide(model: nn.Module) -> bool:
    """Whether FSDP has split ``model``; if so, every layer is divided that an ordinary pass has left gathered."""
    layers = [each for each in model.modules() if hasattr(each, "reshard")]
    for each in layers:
        each.reshard()
    return bool(layers) or any(map(is_split, model.parameters()))


def own_part(value: Tensor) -> Tensor:
    """What this process has of ``value``, in the same memory; all of a tensor that is not split."""
    return value.detach().to_local() if is_split(value) else value  # type: ignore[attr-defined]


def gathered(value: nn.Parameter) -> nn.Parameter:
    """``value`` as layers use it; the storage of a split one is empty while it is not gathered."""
    return getattr(value, _GATHERED, value)


def name_gathered(value: nn.Parameter, whole: nn.Parameter) -> None:
    """Remember what a split parameter is called while it is gathered."""
    setattr(value, _GATHERED, whole)


@contextmanager
def moved(parameters: Iterable[nn.Parameter], other: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, every parameter is ``other`` of what it was, and afterwards what it was, bit for bit."""
    plain, split = [], []
    try:
        for value in parameters:
            if is_split(value):  # who gathers it reads this very memory
                part = own_part(value)
                split.append((part, part.clone()))
                part.copy_(other(part))
            else:
                plain.append((value, value.data))
                value.data = other(value.data)
        yield
    finally:
        for value, old in plain:
            value.data = old
        for part, old in split:
            part.copy_(old)
