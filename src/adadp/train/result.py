"""What a run tells while it goes on, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from adadp.plan import Plan
from adadp.report.certificate import plain_words
from adadp.runs import ClassCounts
from adadp.train.evaluation import Confusion


@dataclass(frozen=True)
class Status:
    """Where a run is, for whoever shows it. Public."""

    step: int
    steps: int
    test_accuracy: float | None
    epsilon_so_far: Callable[[], float | None]
    """Computed when asked: about 30 ms."""


@dataclass(frozen=True)
class TrainResult:
    """A trained model and its certificate."""

    model: nn.Module
    """Takes records as they come from the data: brought into their declared range, through the features, to the
    network. Without features and without a declared range it is ``network``."""
    network: nn.Module
    """The trained part alone, whose parameters are saved and certified; it takes features."""
    certificate: dict[str, Any]
    test_accuracy: float | None
    seconds: float
    plan: Plan
    out: Path | None
    confusion: Confusion | None = None
    """Of the test records: rows are the true classes, columns what the model takes them for."""

    @property
    def epsilon(self) -> float | None:
        """None: nothing is guaranteed."""
        epsilon: float | None = self.certificate["epsilon"]
        return epsilon

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean over the classes of the share of their test records that is right; None where that is not known."""
        return None if self.confusion is None else ClassCounts.of(self.confusion).balanced_accuracy

    def describe(self) -> str:
        """The certificate in plain words."""
        return plain_words(self.certificate)
