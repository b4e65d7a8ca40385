"""Losses by name, one number per record, and what can be checked about labels before anything is charged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adadp.errors import InputError

Loss = Callable[..., Tensor]
"""``loss(model, *batch)`` -> one number per record."""


def cross_entropy(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """Softmax cross-entropy of class scores with class numbers, or with class probabilities (floats).

    Where a record has several labels (a sequence, an image), their mean.
    """
    targets = labels if labels.is_floating_point() else labels.long()
    losses = F.cross_entropy(model(features), targets, reduction="none")
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def binary_cross_entropy(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """Logistic loss of one score per record with labels 0 and 1."""
    scores = model(features).reshape(len(labels))
    return F.binary_cross_entropy_with_logits(scores, labels.reshape(len(labels)).to(scores.dtype), reduction="none")


def mean_squared_error(model: nn.Module, features: Tensor, targets: Tensor) -> Tensor:
    """Squared error, averaged over the outputs of a record."""
    outputs = model(features)
    losses = F.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype), reduction="none")
    return losses.reshape(len(targets), -1).mean(1)


LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "binary-cross-entropy": binary_cross_entropy,
    "mse": mean_squared_error,
}


def find_loss(loss: str | Loss) -> Loss:
    """The loss called ``loss``, or ``loss`` itself if it is a function."""
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise InputError(
            f"Unknown loss {loss!r}.",
            fix=f"Use one of {', '.join(LOSSES)}, or a function loss(model, *batch) of one number per record.",
        )
    return LOSSES[loss]


def classes_of(model: nn.Module, loss: Loss, like: Sequence[Any], public: Sequence[Any] | None = None) -> int | None:
    """How many classes ``model`` tells apart, if ``loss`` is for classes.

    ``like`` is a batch of (features, labels), of which only shapes and dtypes are used: the model is given zeros, or
    the features of ``public`` records.
    """
    if loss is binary_cross_entropy:
        return 2
    if loss is not cross_entropy:
        return None
    if len(like) != 2 or not all(isinstance(part, Tensor) for part in like):
        raise InputError(
            "The loss cross-entropy takes records of two tensors, features and labels.",
            fix="Pass data as (features, labels), or a loss function of your own that takes what a record holds.",
        )
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            scores = model.eval()(torch.zeros_like(like[0]) if public is None else public[0])
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise InputError(
            f"The model cannot read the records: {error}",
            why=f"A batch of one record has shape {tuple(like[0].shape)}, dtype {like[0].dtype}.",
            fix="Give the model the input shape and dtype the records have. If it cannot read zeros, pass example= "
            "with a few public records that it can read.",
        ) from error
    finally:
        for module, training in modes:
            module.training = training
    if not isinstance(scores, Tensor) or scores.dim() < 2:
        raise InputError(
            "The model does not return class scores of shape (records, classes).",
            why="The loss cross-entropy needs one score per class.",
            fix="Give the model an output per class, or use the loss binary-cross-entropy for a single score.",
        )
    return scores.shape[1]


def check_labels(labels: object, classes: int, whose: str) -> None:
    """Refuse labels that are not classes of the model; ``whose`` are they, such as "training"?

    Floats between 0 and 1 are probabilities and pass.
    """
    if not isinstance(labels, Tensor) or not labels.numel():
        return
    low, high = labels.min().item(), labels.max().item()
    highest = 1 if labels.is_floating_point() else classes - 1
    if low < 0 or high > highest:
        raise InputError(
            f"The {whose} labels must lie between 0 and {highest}, got values from {low:g} to {high:g}.",
            why=f"The model scores {classes} classes.",
            fix="Number the classes from 0, or give the model as many outputs as there are classes.",
        )
