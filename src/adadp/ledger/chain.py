"""The lines of a ledger, and what a line torn by a crash counts for. Reader and writer step through the same code.

One JSON object per line, kind and id first, checksum last::

    {"kind":"header","format":1,"run":...,"created":...,"budget":...,"seeded":false,"chain":...}
    {"kind":"define","id":0,"count":1,"event":{...},"chain":...}     before the first charge of this event and count
    {"kind":"charge","id":0,"seq":1,"chain":...}                     one charge of definition 0
    {"kind":"torn","counted":[0],"digest":...,"chain":...}           closes the broken bytes above it

``chain`` = SHA-256(chain of the last good line + this line without its ``chain``), over the very bytes of the file.

Why a torn line is never counted too low
    The writer forces each line to the disk before it begins the next, so at most the last line is torn, and what a
    crash leaves of it is a beginning, perhaps with zero bytes where a block did not arrive. A charge says nothing but
    the id of a definition, and that definition, which holds the event AND how often, was on the disk before the charge
    was begun. So the torn line is compared with the line of every possible charge, and of those that fit, the
    largest count of each event is taken: with the id legible that is the charge itself, with nothing legible it is one
    charge of every event, which dominates whichever it was.

    A torn ``define`` counts for nothing. Its charge had not been begun, because ``define`` was not yet on the disk, and
    every earlier charge stands in a good line above. It is taken for a ``define`` only while no charge fits. The header
    likewise: nothing can be charged before ``create`` has it on the disk.

    Bytes that no crash can leave (a whole line with a wrong checksum, a last line that is no beginning of anything the
    writer would have written) were not torn but tampered with, and the ledger is refused.
"""

from __future__ import annotations

import json
from datetime import datetime
from hashlib import sha256
from typing import Any

from adadp import checks
from adadp.errors import LedgerError
from adadp.events import Event, Neighbours, from_json, to_json

FORMAT = 1
"""Version of the file's layout; a reader refuses others."""

_SEAL_START, _SEAL_END = b',"chain":"', b'"}'
_SEAL_LENGTH = len(_SEAL_START) + sha256().digest_size * 2 + len(_SEAL_END)


def canonical(value: object) -> bytes:
    """``value`` as compact JSON in ASCII; keys keep their order."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def fits(torn: bytes, line: bytes) -> bool:
    """Whether a crash while ``line`` was written can have left ``torn``: a beginning of it, holes reading as zeros."""
    body, rest = torn[: len(line)], torn[len(line) :]
    return not rest.strip(b"\0") and all(left in (0, wanted) for left, wanted in zip(body, line, strict=False))


def is_whole(line: bytes) -> bool:
    """Whether ``line`` ends as lines end, so that no crash has cut it."""
    seal = line[-_SEAL_LENGTH:]
    return seal.startswith(_SEAL_START) and seal.endswith(_SEAL_END)


class Chain:
    """What the good lines so far say, and how the next line must look."""

    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self.head = ""
        self.length = 0
        self.seq = 0
        self.torn = 0
        self._definitions: list[tuple[Event, int]] = []
        self._ids: dict[tuple[Event, int], int] = {}
        self._times: list[int] = []  # how often each definition was charged: cheaper to step than a count per event

    @property
    def neighbours(self) -> Neighbours | None:
        """The one relation of every event in the ledger; ``None`` before the first."""
        return self._definitions[0][0].neighbours if self._definitions else None

    @property
    def charges(self) -> dict[Event, int]:
        """How often each event counts as released; an event defined but never charged is left out."""
        charges: dict[Event, int] = {}
        for (event, count), times in zip(self._definitions, self._times, strict=True):
            if times:
                charges[event] = charges.get(event, 0) + times * count
        return charges

    def id_of(self, event: Event, count: int) -> int:
        """The id under which ``count`` times ``event`` is defined, or would be next."""
        return self._ids.get((event, count), len(self._definitions))

    def defines(self, number: int) -> bool:
        """Whether there is a definition with this id."""
        return number < len(self._definitions)

    def header_line(self, fields: dict[str, Any]) -> bytes:
        return self._sealed({"kind": "header", "format": FORMAT, **fields})

    def define_line(self, event: Event, count: int) -> bytes:
        return self._sealed({"kind": "define", "id": len(self._definitions), "count": count, "event": to_json(event)})

    def charge_line(self, number: int) -> bytes:
        return self._sealed({"kind": "charge", "id": number, "seq": self.seq + 1})

    def torn_line(self, torn: bytes) -> bytes:
        """The record that closes ``torn``, the broken bytes (one line or more) after the last good line."""
        return self._sealed({"kind": "torn", "counted": self._counted(torn), "digest": sha256(torn).hexdigest()})

    def accept(self, line: bytes) -> bool:
        """Take in a header, define or charge; ``False`` when the checksum does not hold.

        A line that says, under a valid checksum, what no writer of this format writes raises ``ValueError``,
        ``KeyError`` or ``TypeError``.
        """
        body, seal = line[:-_SEAL_LENGTH] + b"}", line[-_SEAL_LENGTH:]
        if seal != self._seal(body):
            return False
        self._interpret(json.loads(body.decode("ascii")))  # a str spares json the guess at its encoding
        self._advance(line)
        return True

    def accept_torn(self, torn: bytes) -> None:
        """Take in the record that closes ``torn``."""
        line = self.torn_line(torn)
        self.count_torn(torn)
        self._advance(line)

    def count_torn(self, torn: bytes) -> None:
        """Count ``torn`` as spent without a record: what a reader does, who must not write."""
        for number in self._counted(torn):
            self._times[number] += 1
        self.torn += 1

    def _interpret(self, body: dict[str, Any]) -> None:
        kind = body["kind"]
        if (kind == "header") != (self.length == 0):
            raise ValueError("a ledger has one header, and it is the first line")
        if kind == "header":
            if body["format"] != FORMAT:
                raise LedgerError(
                    f"The ledger has format {body['format']!r}; this AdaDP reads format {FORMAT}.",
                    why="Charges read with another meaning would be counted wrongly.",
                    fix="Use the AdaDP release that wrote it.",
                )
            if not isinstance(body["run"], str) or datetime.fromisoformat(body["created"]).tzinfo is None:
                raise ValueError("the header names no run, or no time with its zone")
            self.header = {key: body[key] for key in ("run", "created", "budget")} | {"seeded": body.get("seeded")}
        elif kind == "define":
            event, count = from_json(body["event"]), checks.count("count", body["count"])
            if body["id"] != len(self._definitions) or self.neighbours not in (None, event.neighbours):
                raise ValueError("the definition has a wrong id or another neighbouring relation")
            self._ids[event, count] = len(self._definitions)
            self._definitions.append((event, count))
            self._times.append(0)
        elif kind == "charge":
            if body["id"] not in range(len(self._definitions)) or body["seq"] != self.seq + 1:
                raise ValueError("the charge has an unknown id or is out of sequence")
            self._times[body["id"]] += 1
            self.seq += 1
        else:
            raise ValueError(f"a line of kind {kind!r} does not belong here")

    def _counted(self, torn: bytes) -> list[int]:
        """Ids of the charges ``torn`` counts for: of all that fit, the one with the largest count per event."""
        line = torn.split(b"\n", 1)[0]  # what follows it are records, torn themselves, which charge nothing
        largest: dict[Event, int] = {}
        for number, (event, count) in enumerate(self._definitions):
            if fits(line, self.charge_line(number)):
                best = largest.get(event, number)
                largest[event] = number if count >= self._definitions[best][1] else best
        start = canonical({"kind": "define", "id": len(self._definitions)})[:-1] + b","
        is_torn_define = fits(line[: len(start)], start) and not is_whole(line)
        if not line or not (largest or is_torn_define):
            raise ValueError("its checksum does not hold, and no crash can have left it like this")
        return sorted(largest.values())

    def _seal(self, body: bytes) -> bytes:
        return _SEAL_START + sha256(self.head.encode("ascii") + body).hexdigest().encode("ascii") + _SEAL_END

    def _sealed(self, fields: dict[str, Any]) -> bytes:
        body = canonical(fields)
        return body[:-1] + self._seal(body)

    def _advance(self, line: bytes) -> None:
        self.head = line[-_SEAL_LENGTH:].removeprefix(_SEAL_START).removesuffix(_SEAL_END).decode("ascii")
        self.length += 1
