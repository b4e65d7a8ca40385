"""What a run tells while it goes on, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from adadp.app.figures import headline
from adadp.app.report.wording import plain_words
from adadp.app.runs import ClassCounts, Evaluated
from adadp.app.train.evaluation import Confusion
from adadp.certificate.wording import stated
from adadp.plan import Plan


@dataclass(frozen=True)
class Status:
    """Where a run is, for whoever shows it. Public."""

    step: int
    steps: int
    test_accuracy: float | None
    evaluation: Evaluated | None
    epsilon_so_far: Callable[[], float | None]
    """Computed when asked: about 30 ms. Of a rehearsal, as without its seed."""
    rehearsal: bool


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
    seconds: int
    """Rounded up to one digit, since the exact time depends on the records: see ``coarse_seconds``."""
    plan: Plan
    out: Path | None
    confusion: Confusion | None = None
    """Of the test records: rows are the true classes, columns what the model takes them for."""
    evaluation: Evaluated | None = None
    """What ``evaluate`` returned in the end, with its name and range."""
    figures: dict[str, Any] | None = None
    """Every figure on the test data, as in figures.json: docs/figures.md."""

    @property
    def epsilon(self) -> float | None:
        """None: nothing is guaranteed, as of a rehearsal, which is a run with a seed."""
        epsilon: float | None = self.certificate["epsilon"]
        return epsilon

    @property
    def epsilon_if_unseeded(self) -> float | None:
        """What a rehearsal would be certified with if it had no seed; None of any other run."""
        epsilon: float | None = stated(self.certificate)["epsilon_if_unseeded"]
        return epsilon

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean over the classes of the share of their test records that is right; None where that is not known."""
        return None if self.confusion is None else ClassCounts.of(self.confusion).balanced_accuracy

    holdout: dict[str, Any] | None = None
    """The figures on records that were kept aside, released with noise; None where there are none."""

    @property
    def headline(self) -> str | None:
        """The figure that does not mislead, in words: on the test data, or else on records kept aside; or None."""
        figures = self.holdout if self.figures is None else self.figures
        return None if figures is None else headline(figures)

    def describe(self) -> str:
        """The certificate in plain words."""
        return plain_words(self.certificate)
