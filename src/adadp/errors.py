"""One exception tree. Every error says what was wrong, why it matters and what to do.

AdaDPError
├── InputError            a value, option or file the caller gave is not usable (also a ValueError)
│   ├── EventError        an event is malformed, or its JSON is not one this version reads
│   └── MixedRecords      a model computes a record otherwise in its batch than alone; nothing was released
├── AccountingError       an accountant cannot answer
│   ├── UnsupportedEvent  it has no theorem for this event
│   ├── AdaptiveEvent     the multiplier was chosen from earlier releases: only a filter may certify it
│   └── UnreachableTarget no setting meets the target; carries the value that can be reached
├── BudgetExceeded        a release was refused because it would pass the budget; nothing was released
├── LedgerError           the ledger file cannot be used
│   ├── LedgerBusy        another process or object is writing it
│   └── LedgerCorrupt     its chain of checksums does not hold
├── RunError              the folder of a run, or a file in it, cannot be written or read
├── RankError             a process of a run in several has failed, ended, or does not answer
└── Interrupted           a run was asked to stop; what it had done is saved
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

_NAME = re.compile(r"`([\w. ]+)`")


def spelled(text: str, spell: Callable[[str], str] = str) -> str:
    """``text``, in which settings stand between backticks, with ``spell(name)`` in place of each of them."""
    return _NAME.sub(lambda found: spell(found[1]), text)


class AdaDPError(Exception):
    """Base of every error AdaDP raises on purpose.

    ``what`` went wrong, ``why`` it matters and ``fix``, what to do about it, are kept apart so that a program
    can show them as it likes; ``str(error)`` joins them. Whoever raises it writes settings between backticks: here they
    have their plain names, and ``parts`` spells them as the user does, ``--batch-size`` on the command line.
    """

    told = False
    """Whether all processes of a run in several have raised it, so that one of them may say it for all."""

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.written = (what, why, fix)
        self.what, self.why, self.fix = map(spelled, self.written)
        super().__init__(" ".join(self.parts()))

    def parts(self, spell: Callable[[str], str] = str) -> list[str]:
        """What, why and fix, as far as they are given, with ``spell(name)`` for every setting."""
        return [spelled(part, spell) for part in self.written if part]


class InputError(AdaDPError, ValueError):
    """A value, option or file given by the caller is not usable."""


@contextmanager
def within(place: str, *, own_names: bool = False) -> Iterator[None]:
    """Say of an error in which file, case or text it is; with ``own_names`` it speaks of names of that place only."""
    try:
        yield
    except AdaDPError as error:
        what, why, fix = (error.what, error.why, error.fix) if own_names else error.written
        raise InputError(f"{place}: {what}", why=why, fix=fix) from error


@contextmanager
def without_text(what: str) -> Iterator[None]:
    """Around code of the user's that is given private records: of its exceptions only type and line are told.

    The text of an exception may show what it was raised about: a shape, a value, a whole record.
    """
    try:
        yield
    except AdaDPError:
        raise
    except Exception as error:
        lines = [(frame.f_globals.get("__name__", ""), frame, line) for frame, line in walk_tb(error.__traceback__)]
        theirs = [each for each in lines if each[0].partition(".")[0] not in ("adadp", "torch", "contextlib")]
        _, frame, line = (theirs or lines)[-1]
        place = f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"
        raise InputError(
            f"{what}: {type(error).__name__} at {place}.",
            why="Its text is left out, because it may show records.",
            fix="Try the same on a few public records, where everything is shown.",
        ) from None


class EventError(InputError):
    """An event is malformed, or its JSON is not one this version reads."""


class MixedRecords(InputError):
    """A model computes a record otherwise in its batch than alone. Nothing was charged or released for that batch."""


class AccountingError(AdaDPError):
    """An accountant cannot answer the question it was asked."""


class UnsupportedEvent(AccountingError):
    """The accountant has no theorem that covers this event; it does not guess."""


class AdaptiveEvent(AccountingError):
    """The noise multiplier was chosen from earlier releases, which only a filter may certify."""


class UnreachableTarget(AccountingError):
    """No setting meets the target. ``reachable`` is the nearest value that can be met, with its unit in ``what``."""

    def __init__(self, what: str, *, reachable: float, why: str = "", fix: str = "") -> None:
        super().__init__(what, why=why, fix=fix)
        self.reachable = reachable


class BudgetExceeded(AdaDPError):
    """A release was refused because it would pass the budget. Nothing was charged and nothing was released."""


class LedgerError(AdaDPError):
    """The ledger file cannot be used."""


class LedgerBusy(LedgerError):
    """Another process, or another object of this one, is writing the ledger."""


class LedgerCorrupt(LedgerError):
    """The ledger's chain of checksums does not hold: a line was edited, removed or reordered."""


class RunError(AdaDPError):
    """The folder of a run, or a file in it, cannot be written or read."""


class RankError(AdaDPError):
    """A process of a run in several has failed, ended, or does not answer. The others stop, and release nothing."""


class Interrupted(AdaDPError):
    """A run was asked to stop. What it had done is saved, if it has a folder."""
