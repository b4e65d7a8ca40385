"""A run folder as somebody made it who wishes harm: one value, or one file, of a good one replaced.

``places`` finds every value in the JSON, TOML and safetensors files of a folder, ``HOSTILE`` is what it may become.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOSTILE: tuple[Any, ...] = (
    *(
        None,
        True,
        5,
        -1,
        0,
        10**30,
        10**9,
        1e308,
        1e-320,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\0",
        "\ud800",
        "\x1b[2J",
    ),
    *("/dev/zero", "../../x", "evil:boom", "evil.py:boom", [], {}, [[]], [None], {"a": 1}, [1, 2], ["a", "a"]),
)
"""Values of every kind; evil.py is a file that says so when it is imported."""

FILES: dict[str, bytes | str] = {
    "nested list": b"[" * 200_000 + b"]" * 200_000,
    "nested object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "nested table": b"x = " + b"[" * 100_000,
    "long key": b"a." * 100_000 + b"a = 1",
    "nothing": b"",
    "null": b"null",
    "no text": b"\xff\xfe\0",
    "long number": b"1" + b"0" * 5000,
    "long hexadecimal": b"epsilon = 0x" + b"f" * 100_000,
    "header of 2^60 bytes": (1 << 60).to_bytes(8, "little") + b"{}",
    "endless": "/dev/zero",
    "terminal": "/dev/tty",
    "pipe": "PIPE",
    "folder": "FOLDER",
    "sparse": "SPARSE",
}
"""Whole files: bytes, what a link points to, or something that is no file."""


def _parse(path: Path) -> tuple[Any, bytes]:
    """The content of a file, and what follows it."""
    raw = path.read_bytes()
    if path.suffix == ".toml":
        return tomllib.loads(raw.decode()), b""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in raw.splitlines()], b""
    if path.suffix == ".safetensors":
        end = 8 + int.from_bytes(raw[:8], "little")
        return json.loads(raw[8:end]), raw[end:]
    return json.loads(raw), b""


def _written(path: Path, content: Any, rest: bytes) -> bytes:
    if path.suffix == ".toml":
        return tomli_w.dumps(content).encode()
    if path.suffix == ".jsonl":
        return b"".join(json.dumps(line).encode() + b"\n" for line in content)
    text = json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + rest if path.suffix == ".safetensors" else text


def _keys(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*above, key)
        yield from _keys(each, (*above, key))


def places(folder: Path) -> list[tuple[str, tuple[Any, ...]]]:
    """Every value of every file that can be taken apart: the file, and the keys that lead to it."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".jsonl", ".toml", ".safetensors"):
            found += [(path.name, keys) for keys in _keys(_parse(path)[0])]
    return found


def spoil(folder: Path, name: str, keys: tuple[Any, ...], value: Any) -> bool:
    """Put ``value`` at one place of a file, or take the place out with ``...``; False: the format cannot say that."""
    path = folder / name
    content, rest = _parse(path)
    inner = content = copy.deepcopy(content)
    for key in keys[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    try:
        path.write_bytes(_written(path, content, rest))
    except (TypeError, ValueError, AttributeError):
        return False
    return True


def replace(path: Path, by: bytes | str) -> None:
    """Put a hostile file in the place of ``path``."""
    path.unlink()
    if isinstance(by, bytes):
        path.write_bytes(by)
    elif by == "PIPE":
        os.mkfifo(path)
    elif by == "FOLDER":
        path.mkdir()
    elif by == "SPARSE":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path.symlink_to(by)
