"""What a run reports on its way: one JSON object per line, each with the step it belongs to.

a NaN or an infinity                   null: JSON has neither
a line torn by a crash                 dropped: by the reader, by ``rewind`` and by the next ``append``
the disk is full                       ``RunError``; what was written of the line is taken back
a broken line before the last          ``RunError`` with its number: no crash leaves that
a record without a step                ``InputError``: a resumed run could not tell whether to keep it
"""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from adadp import checks
from adadp.app.runs.atomic import cannot_write, write_all, write_atomic
from adadp.disk import BINARY, force
from adadp.errors import InputError, RunError
from adadp.files import contents, json_of


def coarse_seconds(seconds: float) -> int:
    """How long something took, as it may be told: whole seconds, rounded up to one digit, as 1, 9, 20 or 700.

    A step takes longer the more records its batch has, and how many these are depends on the records. One record is in
    its share of the batches only, so it moves the time of a whole run by about one part in the number of records: far
    below a digit, and below what else a computer does meanwhile.
    """
    size = int(10 ** max(0, math.ceil(math.log10(max(seconds, 1.0))) - 1))
    return max(1, math.ceil(seconds / size)) * size


def append(path: Path, record: dict[str, Any]) -> None:
    """Add ``record`` as a line of its own. The system has it when this returns; the disk may get it later."""
    if "step" not in record:
        raise InputError(
            f"The record {record!r} has no step.",
            why="A run that resumes drops what came after its checkpoint.",
            fix='Add "step", the number of steps done so far.',
        )
    step = checks.count("step", record["step"], minimum=0)
    try:
        line = json.dumps(_finite({**record, "step": step}), allow_nan=False).encode("ascii") + b"\n"
    except TypeError as error:
        raise InputError(
            f"The record {record!r} is not JSON: {error}.", fix="Pass plain numbers (tensor.item()), text and lists."
        ) from error
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY, 0o666)
        try:
            end = _end_of_last_line(file)
            os.ftruncate(file, end)
            try:
                write_all(file, line)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file, end)
                raise
        finally:
            os.close(file)
    except OSError as error:
        raise cannot_write(path, error) from error


def sync(path: Path) -> None:
    """Force all records to the disk, if there are any."""
    try:
        file = os.open(path, os.O_RDWR | BINARY)
    except FileNotFoundError:
        return
    try:
        force(file)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        os.close(file)


def read(path: Path) -> list[dict[str, Any]]:
    """All records, the oldest first."""
    return [record for _, record in _lines(path)]


def rewind(path: Path, step: int) -> None:
    """Drop, atomically, the records of steps after ``step``."""
    step = checks.count("step", step, minimum=0)
    lines = list(_lines(path))
    kept = b"".join(line + b"\n" for line, record in lines if record["step"] <= step)
    if path.exists() and kept != path.read_bytes():
        write_atomic(path, kept)


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Every whole line, as it stands in the file and as it is meant."""
    try:
        *lines, _torn = contents(path).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error
    records: list[tuple[bytes, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json_of(line)
            checks.count("step", record["step"], minimum=0)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"Line {number} of {path} is not a record with a step.",
                why="It was edited or damaged: a crash can break only the last line.",
                fix="Repair or remove that line.",
            ) from error
        records.append((line, record))
    return records


def _end_of_last_line(file: int) -> int:
    """Where the last whole line ends, which is the end of the file unless a crash tore a line."""
    end = os.fstat(file).st_size
    block = 4096
    while end:
        start = max(0, end - block)
        os.lseek(file, start, os.SEEK_SET)
        newline = os.read(file, end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _finite(value: Any) -> Any:
    """``value`` with null in place of every number that JSON has no word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
