"""Files that a stranger may have made: what has no end, is too large or too deep is refused, not waited for."""

from __future__ import annotations

import json
import math
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST, LARGEST_TOML = 1 << 26, 1 << 20
"""Bytes that are read at most; TOML is slower to read."""
_DEEPEST, _LONGEST, _HOLDS = 100, 10, (dict, list)
_PART = r"(?:(?<![\w-])[\w-]+|\"[^\"\n]*\"|'[^'\n]*')"
_LONG_KEY = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART}){{{_LONGEST}}}")


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
    return _sound(json.loads, text, finite=True)


def toml_of(text: str) -> dict[str, Any]:
    """The keys that ``text`` has in TOML. A long one takes tomllib as long as the square of its length."""
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {_LONGEST} parts")
    return _sound(tomllib.loads, text, finite=False)  # type: ignore[no-any-return]


def read_toml(path: Path, largest: int = LARGEST_TOML) -> dict[str, Any]:
    """The keys of the TOML file at ``path``."""
    return toml_of(contents(path, largest).decode("utf-8-sig"))


def _sound(load: Callable[[Any], Any], text: bytes | str, *, finite: bool) -> Any:
    """What is loaded of ``text``, if all in it can be written, compared and shown again."""
    try:
        value = load(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(_DEEPEST):
        for each in level:
            whole = isinstance(each, int) and each.bit_length() > 1024
            if whole or (finite and isinstance(each, float) and not math.isfinite(each)):
                raise ValueError("a number is beyond those that can be computed with")
            if isinstance(each, str):
                each.encode("utf-8")  # half of a pair is no character
        parts = [
            (*each, *each.values()) if isinstance(each, dict) else each for each in level if isinstance(each, _HOLDS)
        ]
        level = [inner for each in parts for inner in each]
        if not level:
            return value
    raise ValueError(f"it is nested more than {_DEEPEST} deep")
