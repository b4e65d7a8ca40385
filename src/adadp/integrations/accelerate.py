"""A training loop led by ``accelerate``, in one process: ``prepare`` in place of ``accelerator.prepare``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from accelerate import Accelerator  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from adadp.app.loop import PrivateGradients
from adadp.errors import InputError
from adadp.integrations.runs import begin, of_loader, planned

_SETTINGS = ("seed", "chunk_size", "memory_limit", "arithmetic", "example")
"""What goes to ``PrivateGradients``; all other settings are the plan's."""


def prepare(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    loader: DataLoader[Any],
    loss: Callable[..., Tensor],
    *,
    folder: str | os.PathLike[str],
    epsilon: float,
    delta: float,
    resumed_at: int | None = None,
    **settings: Any,
) -> tuple[nn.Module, Optimizer, PrivateGradients]:
    """The model and the optimizer as ``accelerator`` prepares them, and the private gradients of the loader's records.

    ``loss(model, *batch)`` returns one loss per record. ``settings`` are ``epochs`` or ``steps``, ``clip_norm`` and
    what else ``plan_for`` and ``PrivateGradients`` take. In the loop ``private.release()`` replaces a batch, its
    loss and ``accelerator.backward``; ``private.save(folder)`` after it completes the run folder.

    After a stop, load the accelerator's own checkpoint and pass as ``resumed_at`` how many steps it has.
    """
    if accelerator.num_processes > 1:
        raise InputError(
            f"The accelerator has {accelerator.num_processes} processes.",
            why="Private gradients are computed by one: each of several would draw batches and noise of its own.",
            fix="Launch one process.",
        )
    if accelerator.gradient_accumulation_steps != 1 or accelerator.mixed_precision == "fp16":
        raise InputError(
            "The accelerator accumulates gradients, or scales a loss in fp16.",
            why="A release is the gradient of a whole batch, and there is no loss to scale.",
            fix="Make the batch of the loader as large as it shall be, and use bf16 or full precision.",
        )
    data, batch_size = of_loader(loader)
    plan_settings = {name: value for name, value in settings.items() if name not in _SETTINGS}
    others = {name: value for name, value in settings.items() if name in _SETTINGS}
    plan = planned(len(data), epsilon=epsilon, delta=delta, batch_size=batch_size, **plan_settings)
    model, optimizer = accelerator.prepare(model, optimizer)
    private = begin(model, data, loss, plan, folder, resumed_at=resumed_at, **others)
    return model, optimizer, private
