"""What a confusion matrix says about the classes, rare ones too, which an accuracy hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adadp.errors import InputError


@dataclass(frozen=True)
class ClassCounts:
    """How many records there are of each class, and how many of these a model gets right.

    ==========================================  ==============================================================
    a class without records                     counts neither in the balanced accuracy nor as never right
    two classes as frequent as each other       ``largest`` is the first of them
    records of one class only                   nothing beats always answering it
    no records at all, a number below 0         ``InputError``
    ==========================================  ==============================================================
    """

    records: tuple[int, ...]
    right: tuple[int, ...]

    def __post_init__(self) -> None:
        pairs = list(zip(self.records, self.right, strict=True))
        if not any(self.records) or not all(0 <= right <= records for records, right in pairs):
            raise InputError(
                "These are no counts of records of classes.",
                why="There are none, or a count is below 0, or more of a class are right than there are.",
                fix="Give each class its number of records, and how many of them are right.",
            )

    @classmethod
    def of(cls, confusion: Sequence[Sequence[int]]) -> ClassCounts:
        """From a matrix with a row for each true class and a column for what its records are taken for."""
        if any(len(row) != len(confusion) for row in confusion):
            raise InputError(
                "A confusion matrix has as many columns as rows.", fix="Give a row and a column for each class."
            )
        if any(count < 0 for row in confusion for count in row):
            raise InputError("Numbers below 0 are no counts of records.", fix="Count the records of each class.")
        return cls(tuple(map(sum, confusion)), tuple(row[place] for place, row in enumerate(confusion)))

    @property
    def occurring(self) -> int:
        """How many classes have records."""
        return sum(size > 0 for size in self.records)

    @property
    def balanced_accuracy(self) -> float:
        """The mean, over the classes that occur, of the share of their records that is right."""
        pairs = zip(self.records, self.right, strict=True)
        return sum(right / size for size, right in pairs if size) / self.occurring

    @property
    def largest(self) -> int:
        """The most frequent class."""
        return self.records.index(max(self.records))

    @property
    def largest_share(self) -> float:
        """The accuracy of always answering the most frequent class."""
        return max(self.records) / sum(self.records)

    @property
    def beats_largest(self) -> bool:
        """Whether the model gets more right than that answer would."""
        return sum(self.right) > max(self.records)

    @property
    def never_right(self) -> tuple[int, ...]:
        """The classes that occur and of which no record is right."""
        pairs = zip(self.records, self.right, strict=True)
        return tuple(place for place, (size, right) in enumerate(pairs) if size and not right)
