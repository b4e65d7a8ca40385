"""Reading a ledger: every line is checked, a torn end is counted, nothing is locked and nothing is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from adadp.errors import LedgerCorrupt, LedgerError
from adadp.events import Event, Neighbours, Repeated, compose
from adadp.files import contents
from adadp.ledger.chain import Chain, fits, is_whole

_LARGEST = 1 << 32  # bytes: forty million steps
_HEADER_START = b'{"kind":"header","format":'


@dataclass(frozen=True)
class LedgerRecord:
    """What a ledger said when it was read.

    ``charges`` counts what must be taken as released, torn lines included; ``torn`` says how many lines were torn.
    ``head`` is the checksum of the last good line and ``length`` the number of good lines: the two pin the ledger.
    """

    run: str
    created: str
    budget: dict[str, Any] | None
    neighbours: Neighbours | None
    charges: Mapping[Event, int]
    torn: int
    head: str
    length: int
    seeded: bool | None = None
    """Whether the noise was computed from a seed; None: the ledger does not say."""

    @property
    def not_private(self) -> str | None:
        """Why no epsilon holds, whatever was charged, if the run has said so; see ``PlannedBudget``."""
        found: str | None = (self.budget or {}).get("not_private")
        return found

    @property
    def began(self) -> float:
        """``created`` in seconds, as file systems count them."""
        return datetime.fromisoformat(self.created).timestamp()

    def event(self) -> Event | None:
        """Everything charged, as one event for an accountant; ``None`` if nothing was."""
        return whole(self.charges)


def read_ledger(path: str | os.PathLike[str], *, expected_head: str | None = None) -> LedgerRecord:
    """Read and verify the ledger at ``path``. Needs no lock: a charge that is just being written is counted as torn.

    ``expected_head`` is the ``head`` a certificate pinned. Without it, whole lines cut off the end go unnoticed.
    Raises ``LedgerCorrupt`` naming the first line that does not hold.
    """
    name = os.fspath(path)
    try:
        data = contents(Path(name), _LARGEST)
    except OSError as error:
        raise cannot_open(name, error) from error
    chain, torn = replay(data, name)
    if torn is not None:
        chain.count_torn(torn)
    if expected_head is not None and expected_head.strip().lower() != chain.head:
        raise _not_the_head(name, expected_head.strip().lower(), chain, data)
    return LedgerRecord(
        **chain.header,
        neighbours=chain.neighbours,
        charges=chain.charges,
        torn=chain.torn,
        head=chain.head,
        length=chain.length,
    )


def replay(data: bytes, name: str) -> tuple[Chain, bytes | None]:
    """The chain of the good lines in ``data``, and the torn bytes after them if a crash left any.

    A last line that lacks nothing but its newline is good: what it says is known.
    """
    _check_header(data, name)
    lines = data.removesuffix(b"\n").split(b"\n")
    chain = Chain()
    torn: bytes | None = None
    number = first = 1
    try:
        for number, line in enumerate(lines, start=1):
            if torn is None:
                if not chain.accept(line):
                    torn, first = line, number
            elif line == chain.torn_line(torn):
                chain.accept_torn(torn)
                torn = None
            elif fits(line, chain.torn_line(torn)):  # the closing record was torn by another crash
                torn += b"\n" + line
            else:
                raise ValueError("its checksum does not hold, and no record closes it as torn")
        if torn is not None:
            chain.torn_line(torn)  # refuses what no crash can have left
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise LedgerCorrupt(
            f"Line {number if torn is None else first} of {name} does not hold: {error}.",
            why="It was edited, or a line before it was removed, moved or doubled, so the count cannot be trusted.",
            fix="Restore the file from a copy. Do not go on with this run: what it has released is no longer known.",
        ) from error
    return chain, torn


def whole(charges: Mapping[Event, int]) -> Event | None:
    """All of ``charges`` as one event; ``None`` for none."""
    parts = [event if count == 1 else Repeated(event, count) for event, count in charges.items()]
    return compose(*parts) if parts else None


def cannot_open(name: str, error: OSError) -> LedgerError:
    """The error for a file the system will not open."""
    return LedgerError(
        f"The ledger {name} cannot be opened: {error.strerror or error}.",
        fix="Give the path of a ledger file that exists and that you may read (and, to charge, write).",
    )


def _check_header(data: bytes, name: str) -> None:
    """Tell a ledger whose creation was interrupted from a file that is none."""
    header = data.split(b"\n", 1)[0]
    if not fits(header[: len(_HEADER_START)], _HEADER_START):
        raise LedgerCorrupt(f"Line 1 of {name} is not the header of a ledger.", fix="Check the path.")
    if header == data.removesuffix(b"\n") and not is_whole(header):
        raise LedgerCorrupt(
            f"The ledger {name} stops inside its header, line 1.",
            why="The process died while it created the ledger. Nothing was charged through it: the header is on the "
            "disk before the first charge can begin.",
            fix="If it was never longer than this, delete it and create it again; if it was, restore it from a copy.",
        )


def _not_the_head(name: str, expected: str, chain: Chain, data: bytes) -> LedgerError:
    if f'"chain":"{expected}"'.encode() in data:
        return LedgerError(
            f"The ledger {name} goes on after the expected head {expected}; its head is {chain.head}.",
            why="Nothing was removed, but what was charged since is not covered by whoever pinned that head.",
            fix="Account for the whole ledger again.",
        )
    return LedgerCorrupt(
        f"The ledger {name} does not hold the expected head {expected}; its head is {chain.head}.",
        why="Lines were cut off its end, or it is another ledger.",
        fix="Restore the file that the head was taken from.",
    )
