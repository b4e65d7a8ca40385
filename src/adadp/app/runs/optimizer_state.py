"""The state of any ``torch.optim`` optimizer as tensors and JSON, and back, bit for bit and without pickle.

JSON has no tuples, no int keys, no infinities and no tensors, so those are written as an object with one key that says
what it is; every dict is written that way too, so that nothing can be mistaken for a mark:

    (0.9, 0.999)   {"tuple": [0.9, 0.999]}              {0: None}   {"dict": [[0, null]]}
    inf, nan       {"float": "inf"}, {"float": "nan"}   a tensor    {"tensor": "state[0]['exp_avg']"}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from adadp.errors import InputError


def flatten_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimizer's ``state_dict`` as tensors by name, and JSON that says where they belong.

    The tensors are the optimizer's own, not copies: save them before the next step.
    """
    tensors: dict[str, Tensor] = {}
    content = {key: encoded(value, str(key), tensors) for key, value in optimizer.state_dict().items()}
    return tensors, {"optimizer": type(optimizer).__qualname__, "shapes": _shapes(optimizer), "content": content}


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor], json: Mapping[str, Any]) -> None:
    """Put what ``flatten_optimizer`` took from an optimizer into one of the same kind, over parameters of such shapes.

    ``load_state_dict`` casts the state to the dtype of its parameter; where that changed it, the exact tensor is put
    back. On an error the optimizer is what it was before.
    """
    kind = type(optimizer).__qualname__
    if json.get("optimizer") != kind:
        raise InputError(
            f"The state is that of the optimizer {json.get('optimizer')!r}, and this one is {kind}.",
            why="Its numbers would be taken for something else.",
            fix="Resume with the optimizer the run began with.",
        )
    if json.get("shapes") != _shapes(optimizer):
        raise InputError(
            f"The state belongs to parameters of the shapes {json.get('shapes')}, these have {_shapes(optimizer)}.",
            why="torch would mix them up, or notice only in the next step.",
            fix="Build the model and the optimizer as the run did that saved it.",
        )
    try:
        content = {key: decoded(value, tensors) for key, value in json["content"].items()}
        optimizer.load_state_dict(content)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"The state does not fit this optimizer: {error}.",
            why="A part of it is missing, or another version wrote it.",
            fix="Build the model and the optimizer as the run did that saved it.",
        ) from error
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in content["state"].items():
        current = optimizer.state[parameters[index]]
        for key, value in values.items():
            if isinstance(value, Tensor) and current[key].dtype != value.dtype:
                current[key] = value.to(current[key].device)


def _shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    return [[list(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups]


def encoded(value: object, name: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` as JSON; tensors go into ``tensors``, under names that begin with ``name``."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        pairs = [
            [encoded(key, name, tensors), encoded(item, f"{name}[{key!r}]", tensors)] for key, item in value.items()
        ]
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        items = [encoded(item, f"{name}[{index}]", tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    raise InputError(
        f"{name} of the optimizer is {type(value).__name__}, which has no place in a checkpoint.",
        why="Checkpoints hold tensors and JSON, so that reading one cannot run code.",
        fix="Use an optimizer whose state is made of tensors, numbers, text, lists, tuples and dicts.",
    )


def decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What ``encoded`` made JSON of."""
    if isinstance(value, list):
        return [decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((mark, content),) = value.items()
    if mark == "tensor":
        return tensors[content].clone()
    if mark == "float":
        return float(content)
    if mark == "tuple":
        return tuple(decoded(item, tensors) for item in content)
    if mark == "dict":
        return {decoded(key, tensors): decoded(item, tensors) for key, item in content}
    raise ValueError(f"the mark {mark!r} is unknown")
