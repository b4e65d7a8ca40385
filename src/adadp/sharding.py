"""Parameters, and sums of gradients, that are split by rows over the processes of a run: DTensors, as FSDP2 makes them.

Every process has, and adds up, some rows of each. While a layer computes, its parameters are gathered: other tensors,
under which a forward pass knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

GATHERED = "_adadp_gathered"
"""The attribute of a split parameter that is the same parameter as layers use it."""


def is_split(value: Tensor) -> bool:
    """Whether other processes have parts of ``value``."""
    return hasattr(value, "device_mesh")


def own_part(value: Tensor) -> Tensor:
    """The rows of ``value`` that are here, in the same memory; all of a tensor that is not split."""
    return value.detach().to_local() if is_split(value) else value  # type: ignore[attr-defined]


def own_rows(value: Tensor) -> range:
    """Which rows of a split tensor are here: the parts are equal, but for the last ones, which may be empty."""
    mesh, rows = value.device_mesh, value.shape[0]  # type: ignore[attr-defined]
    even = -(-rows // mesh.size())
    return range(min(even * mesh.get_local_rank(), rows), min(even * (mesh.get_local_rank() + 1), rows))


def divide(model: nn.Module) -> bool:
    """Whether FSDP has split ``model``; if so, every layer is divided that an ordinary pass has left gathered."""
    layers = [each for each in model.modules() if hasattr(each, "reshard")]
    for each in layers:
        each.reshard()  # type: ignore[operator]
    return bool(layers) or any(map(is_split, model.parameters()))


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
