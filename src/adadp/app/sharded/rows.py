"""The rows of parameters and of an optimizer's state that each process has: written, read, and put together.

They are written by ``torch.distributed.checkpoint``, so that any number of processes can read them again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from adadp.app.runs.optimizer_state import flatten_optimizer, restore_optimizer
from adadp.errors import RunError
from adadp.ranks import Ranks
from adadp.sharding import divide, is_split


def save_rows(folder: Path, model: nn.Module, optimizer: Optimizer, ranks: Ranks) -> dict[str, Any]:
    """Write the rows of all processes into ``folder``; what must be kept beside them, as JSON."""
    divide(model)
    tensors, text = flatten_optimizer(optimizer)
    ranks.meet("saving rows")
    try:
        save(_named(model.state_dict(), tensors), checkpoint_id=folder)
    except (CheckpointException, OSError) as error:
        raise RunError(
            f"The parameters cannot be written to {folder}: {_first_line(error)}",
            why="A run that cannot be resumed would lose what it spends.",
            fix="Make room there, and give all processes the same folder to write to.",
        ) from error
    return text


def load_rows(folder: Path, model: nn.Module, optimizer: Optimizer, text: Mapping[str, Any], ranks: Ranks) -> None:
    """Read the rows of this process from what any number of processes wrote to ``folder``."""
    divide(model)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    ranks.meet("loading rows")
    try:
        stored = FileSystemReader(folder).read_metadata().state_dict_metadata
        held = {
            name.removeprefix("optimizer/"): _room_for(name, each, parameters)
            for name, each in stored.items()
            if name.startswith("optimizer/")
        }
        values = model.state_dict()
        load(_named(values, held), checkpoint_id=folder)
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:
        raise RunError(
            f"The parameters in {folder} cannot be read: {_first_line(error)}",
            why="The run can only go on from what it had.",
            fix="Put the folder back as it was, where all processes see it, and build the model as the run did.",
        ) from error
    model.load_state_dict(values)
    restore_optimizer(optimizer, held, text)


def whole_tensors(model: nn.Module, ranks: Ranks) -> dict[str, Tensor]:
    """All tensors of ``model``, in the memory of the first process's machine; nothing in the other processes."""
    divide(model)
    ranks.meet("putting the model together")
    found = {}
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if is_split(value) else value
        if ranks.first:
            found[name] = whole.detach().cpu()
    return found


def _named(model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> dict[str, Any]:
    return {**{f"model/{name}": each for name, each in model.items()}, **_under_optimizer(optimizer)}


def _under_optimizer(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"optimizer/{name}": each for name, each in tensors.items()}


def _room_for(name: str, stored: Any, parameters: list[Tensor]) -> Tensor:
    """A tensor to read into: divided like its parameter, if it is of that shape."""
    place = re.match(r"optimizer/state\[(\d+)\]", name)
    like = None if place is None else parameters[int(place[1])]
    dtype = stored.properties.dtype
    if like is not None and like.shape == stored.size:
        return torch.zeros_like(like, dtype=dtype, requires_grad=False)
    return torch.zeros(stored.size, dtype=dtype)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
