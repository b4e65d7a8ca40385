"""Looks at public test data. They cost nothing, and are checked before anything else is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adadp.errors import InputError
from adadp.input_bound import InputBound
from adadp.losses import Loss, binary_cross_entropy, check_labels, cross_entropy
from adadp.records import placed

Evaluate = Callable[[nn.Module], float]

Confusion = tuple[tuple[int, ...], ...]
"""How many records of which class (a row) the model takes for which (a column)."""

MOST_CLASSES = 200
"""With more classes a confusion matrix is not made: nobody reads it, and its size is their square."""

_AT_ONCE = 1000


@dataclass(frozen=True, eq=False)
class LabelledRecords:
    """Records to look at a classifier with; made by :func:`accuracy_on`. Called with a model: the share it gets right.

    The model is in evaluation mode meanwhile, and in its own modes again afterwards.
    """

    features: Tensor
    labels: Tensor
    loss: Loss
    classes: int
    device: torch.device
    dtype: torch.dtype | None
    bound: InputBound

    def __call__(self, model: nn.Module) -> float:
        right = self._total(model, lambda found, labels: (found == labels).sum())
        return int(right) / self.labels.numel()

    def confusion(self, model: nn.Module) -> Confusion | None:
        """What the model takes the records of each class for; a row is a true class.

        The sum of the diagonal over the sum of all is the share that is right, to the last bit.

        =============================================  ===================================================
        a class without records                        a row of zeros
        several labels to a record                     each is counted
        more than ``MOST_CLASSES`` classes             None
        labels that are probabilities, not classes     None
        =============================================  ===================================================
        """
        size = self.classes
        whole = self.labels.long()
        if size > MOST_CLASSES or bool((whole != self.labels).any()) or int(whole.max()) >= size:
            return None
        cells = size * size
        counts = self._total(model, lambda found, true: torch.bincount(true.long() * size + found, minlength=cells))
        return tuple(tuple(row) for row in counts.reshape(size, size).tolist())

    def _total(self, model: nn.Module, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The sum of what ``of`` makes of the classes found and the true ones, a part of the records at a time."""
        total = torch.zeros((), dtype=torch.long)
        parts = (torch.split(part, _AT_ONCE) for part in (self.features, self.labels))
        with _evaluating(model), torch.no_grad():
            for features, labels in zip(*parts, strict=True):
                scores = model(self.bound(placed(features, self.device, self.dtype)))
                found = scores.argmax(1) if self.loss is cross_entropy else (scores > 0).long()
                total = total + of(found.cpu().reshape(labels.shape).flatten(), labels.cpu().flatten())
        return total


def share_right(confusion: Confusion) -> float:
    """The accuracy that a confusion matrix tells."""
    return sum(row[place] for place, row in enumerate(confusion)) / sum(map(sum, confusion))


def accuracy_on(
    test: tuple[Tensor, Tensor],
    loss: Loss,
    classes: int | None,
    device: torch.device,
    dtype: torch.dtype | None,
    *,
    bound: InputBound | None = None,
) -> LabelledRecords:
    """The share of ``test`` a classifier gets right, for the losses that train one; within ``bound``, as in training.

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
    check_pair(test, "test")
    check_labels(test[1], classes, "test")
    return LabelledRecords(test[0], test[1], loss, classes, device, dtype, InputBound() if bound is None else bound)


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


def check_pair(records: object, name: str) -> None:
    """Refuse ``records`` (the argument ``name``) that are no features and labels."""
    if not _is_pair(records):
        other = ", or evaluate=, a function of the model" if name == "test" else ""
        raise InputError(
            f"The {name} data must be a pair of tensors, features and class numbers, of the same length above 0.",
            fix=f"Pass {name}=(features, labels){other}.",
        )


def _is_pair(test: object) -> bool:
    if not isinstance(test, (tuple, list)) or len(test) != 2 or not all(isinstance(part, Tensor) for part in test):
        return False
    features, labels = test
    return features.dim() > 0 and labels.dim() > 0 and len(features) == len(labels) > 0 and not labels.is_complex()
