"""Looks at public test data. They cost nothing, and are checked before anything else is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from adadp.errors import InputError
from adadp.losses import Loss, binary_cross_entropy, check_labels, cross_entropy
from adadp.records import placed

Evaluate = Callable[[nn.Module], float]

_AT_ONCE = 1000


def accuracy_on(
    test: tuple[Tensor, Tensor], loss: Loss, classes: int | None, device: torch.device, dtype: torch.dtype | None
) -> Evaluate:
    """The share of ``test`` a classifier gets right, for the losses that train one.

    ==============================================  ==================================================================
    a loss that trains no classifier                ``InputError``: pass ``evaluate`` in place of ``test``
    no records, or not as many labels as features   ``InputError``
    labels that are no classes of the model         ``InputError``
    ==============================================  ==================================================================
    """
    if classes is None or loss not in (cross_entropy, binary_cross_entropy):
        raise InputError(
            "Accuracy on test data is known for cross-entropy losses only.",
            fix="Pass evaluate=, a function of the model that returns a number, in place of test.",
        )
    if not _is_pair(test):
        raise InputError(
            "The test data must be a pair of tensors, features and class numbers, of the same length above 0.",
            fix="Pass test=(features, labels), or evaluate=, a function of the model.",
        )
    check_labels(test[1], classes, "test")

    def measure(model: nn.Module) -> float:
        right = 0
        with torch.no_grad():
            for features, labels in zip(torch.split(test[0], _AT_ONCE), torch.split(test[1], _AT_ONCE), strict=True):
                scores = model(placed(features, device, dtype))
                found = scores.argmax(1) if loss is cross_entropy else (scores > 0).long()
                right += int((found.cpu().reshape(labels.shape) == labels.cpu()).sum())
        return right / test[1].numel()

    return measure


def guarded(evaluate: Evaluate) -> Evaluate:
    """``evaluate`` on the model in evaluation mode, which is in its own modes again afterwards; a plain float."""

    def measure(model: nn.Module) -> float:
        with _evaluating(model):
            value = evaluate(model)
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"evaluate returned {type(value).__name__}, not a number.", fix="Return a float, such as an accuracy."
            ) from error

    return measure


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _is_pair(test: object) -> bool:
    if not isinstance(test, (tuple, list)) or len(test) != 2 or not all(isinstance(part, Tensor) for part in test):
        return False
    features, labels = test
    return features.dim() > 0 and labels.dim() > 0 and len(features) == len(labels) > 0 and not labels.is_complex()
