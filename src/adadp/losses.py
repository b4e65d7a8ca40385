"""Losses by name, one number per record, and what can be checked about labels before anything is charged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adadp.errors import InputError

Loss = Callable[..., Tensor]
"""``loss(model, *batch)`` -> one number per record."""


def cross_entropy(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """Softmax cross-entropy of class scores with class numbers."""
    return F.cross_entropy(model(features), labels, reduction="none")


def binary_cross_entropy(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """Logistic loss of one score per record with labels 0 and 1."""
    return F.binary_cross_entropy_with_logits(model(features).reshape(len(labels)), labels.float(), reduction="none")


def mean_squared_error(model: nn.Module, features: Tensor, targets: Tensor) -> Tensor:
    """Squared error, averaged over the outputs of a record."""
    outputs = model(features)
    return F.mse_loss(outputs, targets.reshape(outputs.shape), reduction="none").flatten(1).mean(1)


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


def check_labels(model: nn.Module, loss: Loss, data: Any, device: torch.device | str = "cpu") -> None:
    """Refuse labels that a named loss cannot take, where data is (features, labels) tensors."""
    if loss not in (cross_entropy, binary_cross_entropy) or not isinstance(data, (tuple, list)) or len(data) != 2:
        return
    features, labels = data
    if not isinstance(features, Tensor) or not isinstance(labels, Tensor) or not len(labels):
        return
    classes = 2
    if loss is cross_entropy:
        if labels.is_floating_point():
            return  # class probabilities
        with torch.no_grad():
            training = model.training
            made_up = torch.zeros((1, *features.shape[1:]), dtype=features.dtype, device=device)
            classes = model.eval()(made_up).shape[1]
            model.train(training)
    low, high = labels.min().item(), labels.max().item()
    if low < 0 or high >= classes:
        raise InputError(
            f"Labels must lie between 0 and {classes - 1}, got values from {low:g} to {high:g}.",
            why=f"The model scores {classes} classes.",
            fix="Number the classes from 0, or give the model as many outputs as there are classes.",
        )
