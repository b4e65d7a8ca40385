"""Files that a stranger may have made: read without waiting and up to a size, JSON and TOML up to a depth.

a folder, a pipe, a device, a larger file                      ``OSError``: a pipe may never answer, a device never end
nested more than 100 deep, a key of more than 10 parts, an     ``ValueError``
int beyond every float, NaN or an infinity in JSON, half a
character
"""

from __future__ import annotations

import json
import math
import re
import stat
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST = 1 << 26
"""Bytes of a file of JSON that are read at most; TOML is slower to read."""
LARGEST_TOML = 1 << 20
_DEEPEST, _LONGEST = 100, 10
_PART = r"(?:(?<![\w-])[\w-]+|\"[^\"\n]*\"|'[^'\n]*')"
_LONG_KEY = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART}){{{_LONGEST}}}")
"""What takes tomllib as long as the square of its length."""


def regular_size(path: Path) -> int:
    """The size of the file at ``path``, which is one that has an end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path.name} is a folder, a pipe or a device, and not a file")
    return status.st_size


def contents(path: Path, largest: int = LARGEST) -> bytes:
    """The bytes of the file at ``path``, of which there may be ``largest``."""
    if regular_size(path) > largest:
        raise OSError(f"{path.name} has more than {largest} bytes")
    with path.open("rb") as file:
        return file.read(largest)


def json_of(text: bytes | str) -> Any:
    """The value that ``text`` is in JSON."""
    try:
        return _sound(json.loads(text), finite=True)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def toml_of(text: str) -> dict[str, Any]:
    """The keys that ``text`` has in TOML."""
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {_LONGEST} parts")
    try:
        found: dict[str, Any] = _sound(tomllib.loads(text), finite=False)  # settings say which of them is not
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


def read_toml(path: Path, largest: int = LARGEST_TOML) -> dict[str, Any]:
    """The keys of the TOML file at ``path``."""
    return toml_of(contents(path, largest).decode("utf-8-sig"))


def _sound(value: Any, *, finite: bool) -> Any:
    """``value`` if all in it can be written, compared and shown again."""
    level = [value]
    for _ in range(_DEEPEST):
        for each in level:
            if finite and isinstance(each, float) and not math.isfinite(each):
                raise ValueError(f"{each} is no number to compute with")
            if isinstance(each, int) and each.bit_length() > 1024:
                raise ValueError("a number has more than 300 digits")
            if isinstance(each, str):
                each.encode("utf-8")  # half of a pair is no character
        level = [
            inner
            for each in level
            if isinstance(each, (dict, list))
            for inner in ((*each, *each.values()) if isinstance(each, dict) else each)
        ]
        if not level:
            return value
    raise ValueError(f"it is nested more than {_DEEPEST} deep")
