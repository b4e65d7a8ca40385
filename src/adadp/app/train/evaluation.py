"""Looks at public test data. They cost nothing, and are checked before anything else is spent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from adadp.app.figures import MOST_CLASSES, Groups, classes_figures, number_figures
from adadp.app.losses import (
    IGNORED,
    Loss,
    check_labels,
    classes_found,
    inputs_and_labels,
    is_of_counts,
    is_tokens,
    probabilities_of,
    scores_of,
)
from adadp.app.runs import Evaluated
from adadp.app.targets import Target
from adadp.errors import InputError
from adadp.input_bound import InputBound
from adadp.records import Data, Records, to_device

Evaluate = Callable[[nn.Module], float]

Scored = tuple[slice, Tensor]
"""Some of the records, and what the model says of them."""

Confusion = tuple[tuple[int, ...], ...]
"""How many records of which class (a row) the model takes for which (a column)."""

_AT_ONCE = 1000

_KEPT = 2**20
"""Digests of different records that are kept to count twins by."""

_COPIES, _FEW, _SPREADS = 0.1, 5, 6
"""A share of copies, and beside it a number and so many standard deviations, up to which nothing is said."""


@dataclass(frozen=True)
class Asked:
    """What is asked of a model beside the share it gets right. All of it is public."""

    class_names: tuple[str, ...] = ()
    """Empty: classes are called by their numbers."""
    threshold: float | None = None
    """From which probability on the second of two classes is said; None: 0.5."""
    groups: Groups | None = None
    """The groups of the test records."""
    targets: tuple[Target, ...] = ()
    """The targets, where they are numbers."""

    def names(self, classes: int) -> tuple[str, ...]:
        """The names of the classes, or their numbers."""
        return self.class_names if len(self.class_names) == classes else tuple(map(str, range(classes)))


@dataclass(frozen=True, eq=False)
class TestRecords:
    """Public records with their labels, and how they come to a model.

    The model is in evaluation mode meanwhile, and in its own modes again afterwards.
    """

    features: Any
    """A tensor, or a dict of them."""
    labels: Tensor
    loss: Loss
    device: torch.device
    dtype: torch.dtype | None
    bound: InputBound
    asked: Asked

    __test__ = False
    """It is no test of pytest."""

    def scored(self, model: nn.Module, at_once: int = _AT_ONCE) -> Iterator[Scored]:
        """What ``model`` says of the records, ``at_once`` of them at a time."""
        with _evaluating(model), torch.no_grad():
            for start in range(0, len(self.labels), at_once):
                rows = slice(start, start + at_once)
                inputs = tree_map(
                    lambda part, rows=rows: self.bound(to_device(part[rows], self.device, self.dtype)), self.features
                )
                yield rows, scores_of(model, inputs)


class NumberRecords(TestRecords):
    """Records to look at a model of numbers with."""

    @property
    def aims(self) -> tuple[Target, ...]:
        """The targets; those that nobody has declared are called by their place."""
        width = self.labels.reshape(len(self.labels), -1).shape[1]
        names = ["target"] if width == 1 else [f"target {place + 1}" for place in range(width)]
        return self.asked.targets or tuple(Target(name, count=is_of_counts(self.loss)) for name in names)

    def look(self, model: nn.Module) -> tuple[Evaluated, dict[str, Any] | None]:
        """The mean absolute error, of several targets the mean of theirs; and every figure of every target.

        None where the model does not say numbers.
        """
        targets, found = self.values(model)
        if not np.isfinite(found).all():
            return Evaluated("MAE", None, low=0.0), None
        figures = number_figures(targets, found, [each.name for each in self.aims], groups=self.asked.groups)
        return Evaluated("MAE", float(np.abs(targets - found).mean()), low=0.0), figures

    def values(
        self, model: nn.Module, at_once: int = _AT_ONCE
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The true values of every target, and those the model says, in columns."""
        said = torch.cat([scores.detach().cpu().reshape(len(scores), -1) for _, scores in self.scored(model, at_once)])
        true = self.labels.reshape(len(self.labels), -1)
        if not said.shape[1] == true.shape[1] == len(self.aims):
            raise InputError(
                "The model, the labels and the declared targets do not have the same number of targets.",
                fix="Give the model one output for each target.",
            )
        columns = list(enumerate(self.aims))
        targets = torch.stack([target.true(true[:, place]) for place, target in columns], dim=1)
        found = torch.stack([target.meant(said[:, place]) for place, target in columns], dim=1)
        return targets.numpy(), found.numpy()


@dataclass(frozen=True, eq=False)
class LabelledRecords(TestRecords):
    """Records to look at a classifier with, by :func:`accuracy_on`. Called with a model: the share it gets right."""

    classes: int

    def __call__(self, model: nn.Module) -> float:
        right = self._total(self.scored(model), lambda found, labels: (found == labels).sum())
        return int(right) / int(self._counted.sum())

    @property
    def _counted(self) -> Tensor:
        """Which labels count: all but those of padding."""
        return self.labels != IGNORED if is_tokens(self.loss) else torch.ones_like(self.labels, dtype=torch.bool)

    def look(self, model: nn.Module) -> tuple[Confusion | None, dict[str, Any] | None]:
        """The confusion matrix and the figures, of one pass through the model."""
        if is_tokens(self.loss) or self.classes > MOST_CLASSES:  # nothing to keep the scores for
            return self.confusion(model), None
        parts = list(self.scored(model))
        return self.confusion(model, parts), self._figures(parts)

    def confusion(self, model: nn.Module, parts: Iterable[Scored] | None = None) -> Confusion | None:
        """What the model takes the records of each class for; a row is a true class. ``parts``: known scores.

        The sum of the diagonal over the sum of all is the share that is right, to the last bit.

        =============================================  ===================================================
        a class without records                        a row of zeros
        several labels to a record                     each is counted
        more than ``MOST_CLASSES`` classes             None
        labels that are probabilities, not classes     None
        =============================================  ===================================================
        """
        size = self.classes
        labels = self.labels[self._counted]
        whole = labels.long()
        if size > MOST_CLASSES or bool((whole != labels).any()) or int(whole.max()) >= size:
            return None
        cells = size * size
        parts = self.scored(model) if parts is None else parts
        counts = self._total(parts, lambda found, true: torch.bincount(true.long() * size + found, minlength=cells))
        return tuple(tuple(row) for row in counts.reshape(size, size).tolist())

    def _figures(self, parts: Iterable[Scored]) -> dict[str, Any] | None:
        """Every figure of the model; None of labels that are no classes, or several to a record, and of scores NaN."""
        whole = self.labels.long()
        if self.labels.numel() != len(self.labels) or bool((whole != self.labels).any()):
            return None
        said = torch.cat([probabilities_of(scores, self.loss) for _, scores in parts])
        if said.dim() != 2 or int(whole.max()) >= said.shape[1] or bool(said.isnan().any()):
            return None
        names, threshold = self.asked.names(self.classes), self.asked.threshold
        return classes_figures(
            said.numpy(),
            whole.cpu().flatten().numpy(),
            names,
            threshold=0.5 if threshold is None else threshold,
            groups=self.asked.groups,
        )

    def found(self, scores: Tensor) -> Tensor:
        """The classes that scores tell, by the threshold if there is one."""
        if self.asked.threshold is None:
            return classes_found(scores, self.loss)
        return (probabilities_of(scores, self.loss)[:, 1] > self.asked.threshold).long()

    def _total(self, parts: Iterable[Scored], of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The sum of what ``of`` makes of the classes found and the true ones, a part of the records at a time."""
        total = torch.zeros((), dtype=torch.long)
        for rows, scores in parts:
            labels, counted = self.labels[rows].cpu().flatten(), self._counted[rows].cpu().flatten()
            found = self.found(scores).cpu().flatten()
            total = total + of(found[counted], labels[counted])
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
    asked: Asked = Asked(),  # noqa: B008  # frozen
) -> LabelledRecords:
    """The share of ``test`` a classifier gets right, for the losses that train one; within ``bound``, as in training.

    ==============================================  ==================================================================
    a loss that trains no classifier                ``InputError``: pass ``evaluate`` in place of ``test``
    no records, or not as many labels as features   ``InputError``
    labels that are no classes of the model         ``InputError``
    ==============================================  ==================================================================
    """
    if classes is None:
        raise InputError(
            "What a model gets right on test data is known for the losses with a name only.",
            fix="Pass evaluate=, a function of the model that returns a number, in place of test.",
        )
    check_pair(test, "test")
    check_labels(test[1], classes, "test", ignored=is_tokens(loss))
    if asked.threshold is not None and (classes != 2 or is_tokens(loss)):
        raise InputError(
            f"`threshold` is {asked.threshold:g}, and there are not two classes.",
            why="It is the probability from which on the second of two is said.",
            fix="Leave it out: of more classes the most probable one is said.",
        )
    _check_groups(asked, test[1])
    bound = InputBound() if bound is None else bound
    return LabelledRecords(test[0], test[1], loss, device, dtype, bound, asked, classes)


def numbers_on(
    test: tuple[Tensor, Tensor],
    loss: Loss,
    device: torch.device,
    dtype: torch.dtype | None,
    *,
    bound: InputBound,
    asked: Asked,
) -> NumberRecords:
    """The errors on ``test`` of a model of numbers, for the losses that train one."""
    check_pair(test, "test")
    if asked.threshold is not None:
        raise InputError("`threshold` is given, and the targets are numbers.", fix="Leave it out.")
    if not bool(torch.isfinite(test[1].double()).all()):
        raise InputError("The test labels are not all finite numbers.", fix="Correct or remove those records.")
    _check_groups(asked, test[1])
    return NumberRecords(test[0], test[1], loss, device, dtype, bound, asked)


def _check_groups(asked: Asked, labels: Tensor) -> None:
    if asked.groups is not None and len(asked.groups.places) != len(labels):
        raise InputError("There are not as many groups as test records.", fix="Give every test record its group.")


def refuse_training_records(data: Data, public: tuple[Tensor, Tensor] | None, called: str = "test") -> None:
    """Refuse ``public`` records, called test or validation data, many of which are records of ``data``.

    Where both are samples of one population, a record of one has an equal in the other about as often as it has a twin
    in its own sample (Good 1953): tables of few columns have many. So with t the larger share of twins in the two,
    of m records t m are expected in the other sample. What goes beyond is a copy. Refused are more of them than a tenth
    of the (1 - t) m others, 5, and six standard deviations of the count; and the same records in any order.

    ==================================================  ==============================================================
    a file, and a copy of it, reordered or not          refused
    test records with all of the training data in them  refused, however many others there are
    five or fewer copies                                go unnoticed: the refusal must not tell of a single record
    tables in which almost all rows have twins          refused only if they are the same records
    records that were changed a little                  go unnoticed, as do those an ``evaluate`` function reads
    records that are no tuples of tensors               are not compared
    ==================================================  ==============================================================
    """
    if not is_pair(public) or public is None:
        return
    theirs, counts = np.unique(_digests(*public), return_counts=True)
    met = _met(data, theirs)
    if met is None:
        return
    ours, size = met.of_theirs.sum(), int(counts.sum())
    twins = max(met.twins, counts[counts > 1].sum() / size)
    same = met.size == size and bool((met.of_theirs == counts).all())
    copied = counts[met.of_theirs > 0].sum()
    if same or _too_many(ours, met.size, size, twins) or _too_many(copied, size, met.size, twins):
        raise InputError(
            f"Many of the {called} records are training records.",
            why=f"What is measured on {called} data is told without noise: of private records nobody would pay for it.",
            fix=f"Give {called} data that is public and was not trained on, or none.",
        )


@dataclass(frozen=True)
class _Met:
    """What a look through the training data found."""

    size: int
    of_theirs: npt.NDArray[np.int64]
    """How often each public record was met."""
    twins: float
    """The share of records that occur more than once."""


def _met(data: Data, theirs: npt.NDArray[np.uint64]) -> _Met | None:
    """Which of ``theirs``, sorted digests, are records of ``data``; None where these have no first and last tensor.

    Twins are counted among the records with the smallest digests, of which two have one if they are equal. They are
    all records up to ``_KEPT`` different ones, and from then on a sample of about as many: memory stays what it is.
    """
    records = Records(data)
    of_theirs, kept, limit = np.zeros(len(theirs), dtype=np.int64), Counter[int](), 2**64 - 1
    for start in range(0, len(records), _AT_ONCE):
        rows = torch.arange(start, min(start + _AT_ONCE, len(records)))
        batch = records.batch(rows, records.groups - 1)
        try:
            inputs, labels = inputs_and_labels(batch if len(batch) == 1 else (batch[0], batch[-1]))
        except InputError:
            return None
        if not all(isinstance(part, Tensor) for part in (*tree_leaves(inputs), labels)):
            return None
        found = _digests(inputs, labels)
        place = np.searchsorted(theirs, found).clip(max=len(theirs) - 1)
        of_theirs += np.bincount(place[theirs[place] == found], minlength=len(theirs))
        kept.update(found[found <= np.uint64(limit)].tolist())
        while len(kept) > _KEPT:
            limit //= 2
            kept = Counter({digest: count for digest, count in kept.items() if digest <= limit})
    return _Met(len(records), of_theirs, sum(count for count in kept.values() if count > 1) / kept.total())


def _digests(values: Any, labels: Tensor) -> npt.NDArray[np.uint64]:
    """A digest of each record, the same for equal numbers of another type and for 0 with either sign.

    It is a sum of the halves of its numbers in float32, each times an odd random number, modulo 2**64: two records that
    differ have one digest with a chance of 2**-48 at most.
    """
    if isinstance(values, Mapping):
        values = {key: values[key] for key in sorted(values)}
    digests = []
    for parts in zip(*(torch.split(each, _AT_ONCE) for each in (*tree_leaves(values), labels)), strict=True):
        rows = torch.cat([part.detach().cpu().reshape(len(part), -1).float() for part in parts], dim=1) + 0.0
        halves = rows.numpy().view(np.uint16).astype(np.uint64)
        digests.append(halves @ (np.random.SFC64(1).random_raw(halves.shape[1]) | np.uint64(1)))
    return np.concatenate(digests)


def _too_many(found: float, size: int, other: int, twins: float) -> bool:
    """Whether more of a sample's ``size`` records, those ``found``, are in the ``other`` one than chance explains."""
    spread = math.sqrt(twins * (1 - twins) * size * (1 + size / other))
    return bool(found - twins * size > _COPIES * (1 - twins) * size + _FEW + _SPREADS * spread)


@dataclass(frozen=True)
class Evaluation:
    """A number that ``measure`` computes for a model from public data, under its own ``name`` and with its range.

    Pass it to ``fit`` as ``evaluate``. The model is in evaluation mode meanwhile, and in its own modes afterwards.

    ==========================================  ======================================================================
    a value outside of ``low`` to ``high``      ``InputError``: the range, or the function, is not what was meant
    not a number (NaN)                          is kept as unknown
    nothing that is a number                    ``InputError``
    no name, or one of more than a line         ``InputError``
    ==========================================  ======================================================================
    """

    measure: Evaluate
    name: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.strip() and self.name.isprintable()):
            raise InputError(f"{self.name!r} is no name for an evaluation.", fix='Pass a short text, such as "AUC".')
        ends = [each for each in (self.low, self.high) if each is not None]
        if not all(map(math.isfinite, ends)) or ends != sorted(set(ends)):
            raise InputError(
                f"{self.low} to {self.high} is no range.", fix="Pass the smaller number as low, or leave an end out."
            )

    def __call__(self, model: nn.Module) -> Evaluated:
        with _evaluating(model):
            found = self.measure(model)
        try:
            value = float(found)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"evaluate returned {type(found).__name__}, not a number.", fix="Return a float, such as an AUC."
            ) from error
        result = Evaluated(self.name, None if math.isnan(value) else value, self.low, self.high)
        below = self.low is not None and value < self.low
        if below or (self.high is not None and value > self.high):
            raise InputError(
                f"evaluate returned {value:g}, and the range of {self.name} is {result.span}.",
                fix="Correct the function, or the range it was given.",
            )
        return result


def named(evaluate: Evaluate | Evaluation) -> Evaluation:
    """``evaluate`` with a name: that of the function, where it was given none."""
    if isinstance(evaluate, Evaluation):
        return evaluate
    function = getattr(evaluate, "func", evaluate)  # of a functools.partial
    found = getattr(function, "__name__", type(function).__name__)
    return Evaluation(evaluate, "evaluation" if found == "<lambda>" else found)


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
    if not is_pair(records):
        other = ", or evaluate=, a function of the model" if name == "test" else ""
        raise InputError(
            f"The {name} data must be a pair of tensors, features and class numbers, of the same length above 0.",
            fix=f"Pass {name}=(features, labels){other}.",
        )


def is_pair(test: object) -> bool:
    """Whether ``test`` are inputs, a tensor or a dict of them, and as many labels."""
    if not isinstance(test, (tuple, list)) or len(test) != 2:
        return False
    inputs, labels = test
    parts = [*tree_leaves(inputs), labels]
    if not isinstance(inputs, (Tensor, dict)) or len(parts) < 2 or not all(isinstance(part, Tensor) for part in parts):
        return False
    return all(part.dim() > 0 and len(part) == len(labels) > 0 for part in parts) and not labels.is_complex()


def labelled(data: Data) -> tuple[Any, Tensor]:
    """Public records of any kind as inputs and labels: all at once, in the largest of their shapes."""
    records = Records(data)
    columns = records.columns
    batch = records.batch(torch.arange(len(records)), records.groups - 1) if columns is None else columns
    inputs, labels = inputs_and_labels(batch)
    return inputs, labels
