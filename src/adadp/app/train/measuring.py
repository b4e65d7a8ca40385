"""How a run looks at its model: on public test records, at the validation records that its noise follows, and on the
records that are kept aside. Each is tried on one record before anything is charged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from adadp.app.config import TrainConfig
from adadp.app.figures import MOST_CLASSES
from adadp.app.losses import (
    Loss,
    binary_cross_entropy,
    check_labels,
    is_of_counts,
    is_of_numbers,
    is_tokens,
    plain,
)
from adadp.app.schedules import ValidationDecay
from adadp.app.targets import Target
from adadp.app.train.evaluation import (
    Asked,
    Evaluate,
    Evaluation,
    LabelledRecords,
    NumberRecords,
    accuracy_on,
    numbers_on,
)
from adadp.app.train.holdout import Holdout
from adadp.app.train.run import Measure
from adadp.app.train.validation_noise import HeldOut, Looks
from adadp.errors import InputError
from adadp.input_bound import InputBound

Tried = TypeVar("Tried", bound="LabelledRecords | NumberRecords")


@dataclass(frozen=True)
class Measured:
    """A model, and how the records it is tried on come to it."""

    model: nn.Module
    loss: Loss
    classes: int | None
    device: torch.device
    dtype: torch.dtype | None
    bound: InputBound
    asked: Asked

    def by(
        self, test: tuple[Tensor, Tensor] | None, evaluation: Evaluation | None, *, kept_aside: bool
    ) -> Measure | None:
        """How to look at the model; it has been tried once when this returns."""
        if evaluation is None and test is None:
            lacking = "groups" if self.asked.groups is not None else "threshold"
            if self.asked.groups is not None or (self.asked.threshold is not None and not kept_aside):
                raise InputError(
                    f"`{lacking}` is given, and the model is not looked at.",
                    why="It would be ignored.",
                    fix="Give public test data, or leave it out.",
                )
            return None
        if evaluation is None and test is not None:
            return self.numbers(test) if is_of_numbers(self.loss) else self.accuracy(test)
        if test is not None:
            raise InputError(
                "Both test and evaluate are given.", why="A model is judged by one of them.", fix="Leave one out."
            )
        assert evaluation is not None
        evaluation(self.model)
        return evaluation

    def numbers(self, test: tuple[Tensor, Tensor]) -> NumberRecords:
        """The errors on ``test``; the model has been tried on one record when this returns."""
        measure = numbers_on(test, self.loss, self.device, self.dtype, bound=self.bound, asked=self.asked)
        return self._tried(measure, replace(measure, features=_first(test[0]), labels=test[1][:1]).values)

    def accuracy(self, test: tuple[Tensor, Tensor]) -> LabelledRecords:
        """The accuracy on ``test``; it has been tried on one record when this returns."""
        measure = self._accuracy(test)
        return self._tried(measure, replace(measure, features=_first(test[0]), labels=test[1][:1]))

    def _tried(self, measure: Tried, on_one: Callable[[nn.Module], object]) -> Tried:
        """``measure``, when ``on_one`` record of it has been tried."""
        try:
            on_one(self.model)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"The model cannot be tried on the test data: {error}",
                fix="Give the test records the shape and dtype of the training records.",
            ) from error
        return measure

    def holdout(self, aside: tuple[Tensor, Tensor] | None, held: HeldOut | None, config: TrainConfig) -> Holdout | None:
        """The figures to release of the records ``aside``; the model has been tried on one when this returns."""
        if config.holdout is None or held is None or aside is None:
            return None
        size = (config.records or len(held.held)) - held.records
        if config.target_range is not None and (self.asked.targets or not is_of_numbers(self.loss)):
            raise InputError(
                "`target_range` is given, and the targets are classes, or have declared ranges.",
                why="It would be ignored.",
                fix="Leave it out.",
            )
        if is_of_numbers(self.loss):
            width = aside[1].reshape(len(aside[1]), -1).shape[1] if aside[1].dim() > 1 else 1
            targets, count = self.asked.targets, is_of_counts(self.loss)
            if not targets and config.bounds_of_target is not None:
                low, high = config.bounds_of_target
                names = ["target"] if width == 1 else [f"target {place + 1}" for place in range(width)]
                targets = tuple(Target(name, low, high, count=count) for name in names)
            asked = Asked(targets=targets)
            like: LabelledRecords | NumberRecords = NumberRecords(
                aside[0], aside[1], self.loss, self.device, self.dtype, self.bound, asked
            )
        else:
            classes = self.classes or 0
            if not classes or is_tokens(self.loss) or classes > MOST_CLASSES:
                raise InputError(
                    "Records are kept aside for figures, and none are known for this loss.",
                    why=f"Figures are known of one class per record, of at most {MOST_CLASSES}, and of numbers.",
                    fix="Leave `holdout` out, or use a loss with a name.",
                )
            soft = aside[1].is_floating_point() and plain(self.loss) is not binary_cross_entropy
            if soft or aside[1].dim() > 1:
                raise InputError(
                    "Records are kept aside for figures, and their labels are not class numbers.",
                    fix="Leave `holdout` out, or give every record the number of its class.",
                )
            check_labels(aside[1], classes, "training")
            asked = replace(self.asked, groups=None)
            like = LabelledRecords(aside[0], aside[1], self.loss, self.device, self.dtype, self.bound, asked, classes)
        found = Holdout(like if len(aside[1]) else None, like, size, held.held, held.weights)
        found.check()
        if found.records is not None:
            one = replace(like, features=_first(like.features), labels=like.labels[:1])
            self._tried(like, replace(found, records=one, weights=None).sums)
        return found

    def looks(
        self,
        decay: ValidationDecay,
        validation: tuple[Tensor, Tensor] | None,
        public_size: int | None,
        held: HeldOut | None,
    ) -> Looks:
        """The looks of a validation schedule at ``validation``, which ``_decay_of`` has found to be there."""
        assert validation is not None
        size = len(validation[1])
        empty = not size and held is not None  # no coin kept a record aside
        look: Evaluate = _nothing_right if empty else self.accuracy(validation)
        return Looks(decay, look, true_size=size, size=public_size or size, held=None if held is None else held.held)

    def _accuracy(self, test: tuple[Tensor, Tensor]) -> LabelledRecords:
        asked = self.asked
        return accuracy_on(test, self.loss, self.classes, self.device, self.dtype, bound=self.bound, asked=asked)


def _first(features: Any) -> Any:
    """The first record."""
    return tree_map(lambda part: part[:1], features)


def _nothing_right(model: nn.Module) -> float:  # noqa: ARG001
    return 0.0
