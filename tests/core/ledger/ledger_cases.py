"""What the tests of ledger share."""

from __future__ import annotations

import pytest

from adadp.errors import BudgetExceeded
from adadp.events import (
    GaussianRelease,
    PoissonSampled,
    Selection,
)

STEP = PoissonSampled(0.01, GaussianRelease(1.1))


PCA = GaussianRelease(16.0)


PICK = Selection(0.5)


class Recorder:
    """A rule that writes down what it was asked, and refuses what it was told to refuse."""

    def __init__(self, description=None, refuse=()):
        self.description = description or {"rule": "recorder"}
        self.refuse = refuse
        self.calls = []

    def describe(self):
        return self.description

    def admit(self, event, count):
        self.calls.append(("admit", event, count))
        if event in self.refuse:
            raise BudgetExceeded("no")

    def commit(self, event, count):
        self.calls.append(("commit", event, count))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ledger"
