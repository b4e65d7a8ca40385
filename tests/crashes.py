"""Every state of the disk in which a crash can leave a short piece of work, enumerated.

The work is done once, while what it asks of the system is written down: files made, written, synced, renamed, removed,
and the moments at which something was released. From that trace the folder is then made as each crash would leave it:

    killed    the process is gone, the system lives: everything asked for is there
    lost      power failed: nothing is there that was not synced, neither bytes of a file nor names in a folder
    torn      power failed: half of the last write has arrived
    holes     power failed: the last write has its length, and its blocks are zeros
    empty     power failed: names are there, and of files that were not synced nothing but what was synced before

A database of SQLite is taken as what it promises: a commit is on the disk as a whole.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adadp.noise import GaussianMechanism

HOW = ("killed", "lost", "torn", "holes", "empty")
_CALLS = ("open", "close", "write", "pwrite", "fsync", "ftruncate", "replace", "rename", "unlink", "remove", "mkdir")


@dataclass
class Trace:
    """What was asked of the system below ``root``, in its order; names are relative to it, files have numbers."""

    root: Path
    databases: tuple[str, ...] = ()
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    files: int = 0
    known: dict[str, bytes] = field(default_factory=dict)

    def relative(self, path: Any, folder: int | None = None) -> str | None:
        """``path`` below the root; None of what lies elsewhere."""
        place = os.path.join("" if folder is None else os.readlink(f"/proc/self/fd/{folder}"), os.fspath(path))
        place = os.path.abspath(place)
        inside = place == str(self.root) or place.startswith(f"{self.root}/")
        return os.path.relpath(place, self.root) if inside else None

    def add(self, *step: Any) -> None:
        """Note a step, and before it what a database holds by now."""
        for name in self.databases:
            content = (self.root / name).read_bytes() if (self.root / name).exists() else b""
            if content != self.known.get(name, b""):
                self.known[name] = content
                self.steps.append(("commit", name, content))
        self.steps.append(step)

    def made(self, name: str) -> int:
        """A new file of that name."""
        self.files += 1
        self.names[name] = self.files
        self.add("link", name, self.files)
        return self.files


class _Raw(io.RawIOBase):
    """A file that is written through the functions that are watched."""

    def __init__(self, path: Any, flags: int) -> None:
        self._file = os.open(path, flags, 0o666)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file

    def write(self, data: Any) -> int:
        return os.write(self._file, data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._file)


@contextmanager
def watched(trace: Trace) -> Iterator[None]:
    """Inside, everything that is done below the root of ``trace`` goes into it, and is done."""
    real = {name: getattr(os, name) for name in _CALLS}
    opened, files = builtins.open, dict[int, list[Any]]()

    def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = None if isinstance(path, int) else trace.relative(path, dir_fd)
        new = name is not None and not os.path.lexists(trace.root / name)
        number: int = real["open"](path, flags, mode, dir_fd=dir_fd)
        if name is not None and not os.path.isdir(trace.root / name) and name not in trace.databases:
            if new:
                trace.made(name)
            if flags & os.O_TRUNC and not new:
                trace.add("cut", trace.names[name], 0)
            files[number] = [trace.names.get(name), 0, bool(flags & os.O_APPEND)]
        elif name is not None:
            files[number] = [name, 0, False]
        return number

    def close(number: int) -> None:
        files.pop(number, None)
        real["close"](number)

    def wrote(number: int, data: bytes, place: int | None) -> None:
        found = files.get(number)
        if found is not None and isinstance(found[0], int):
            at = -1 if found[2] else found[1] if place is None else place
            if place is None:
                found[1] += len(data)
            trace.add("data", found[0], at, data)

    def write(number: int, data: Any) -> int:
        done: int = real["write"](number, data)
        wrote(number, bytes(data)[:done], None)
        return done

    def pwrite(number: int, data: Any, place: int) -> int:
        done: int = real["pwrite"](number, data, place)
        wrote(number, bytes(data)[:done], place)
        return done

    def fsync(number: int) -> None:
        real["fsync"](number)
        if number in files:
            trace.add("sync" if isinstance(files[number][0], int) else "sync names", files[number][0])

    def ftruncate(number: int, size: int) -> None:
        real["ftruncate"](number, size)
        if number in files and isinstance(files[number][0], int):
            trace.add("cut", files[number][0], size)

    def rename(old: Any, new: Any, **where: Any) -> None:
        real["rename"](old, new, **where)
        ours, theirs = trace.relative(old), trace.relative(new)
        if ours is not None and theirs is not None:
            moved = {name for name in trace.names if name == ours or name.startswith(f"{ours}/")}
            for name in moved:
                trace.names[theirs + name[len(ours) :]] = trace.names.pop(name)
            trace.add("rename", ours, theirs)

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        name = trace.relative(path, dir_fd)
        real["unlink"](path, dir_fd=dir_fd)
        if name is not None:
            trace.names.pop(name, None)
            trace.add("unlink", name)

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real["mkdir"](path, mode, dir_fd=dir_fd)
        if (name := trace.relative(path, dir_fd)) is not None:
            trace.add("mkdir", name)

    def plain_open(file: Any, mode: str = "r", *others: Any, **options: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wxa") or trace.relative(file) is None:
            return opened(file, mode, *others, **options)
        flags = os.O_WRONLY | os.O_CREAT | {"w": os.O_TRUNC, "x": os.O_EXCL, "a": os.O_APPEND}[mode.strip("bt+")[0]]
        raw = io.BufferedWriter(_Raw(file, flags))
        return raw if "b" in mode else io.TextIOWrapper(raw, encoding="utf-8", newline=options.get("newline"))

    release = GaussianMechanism.release

    def released(self: Any, total: Any, **options: Any) -> Any:
        found = release(self, total, **options)
        if options.get("purpose") != "count":
            trace.add("release")
        return found

    ours = (open_, close, write, pwrite, fsync, ftruncate, rename, rename, unlink, unlink, mkdir)
    with pytest.MonkeyPatch.context() as patch:
        for name, each in zip(_CALLS, ours, strict=True):
            patch.setattr(os, name, each)
        patch.setattr(builtins, "open", plain_open)
        patch.setattr(io, "open", plain_open)
        patch.setattr(GaussianMechanism, "release", released)
        yield


def record(root: Path, work: Callable[[], object], databases: tuple[str, ...] = ()) -> Trace:
    """The trace of ``work`` below ``root``, an empty folder."""
    trace = Trace(root, databases)
    with watched(trace):
        work()
        trace.add("end")
    return trace


@dataclass
class _Disk:
    """What is in memory, and what of it is on the disk."""

    names: dict[str, int | None] = field(default_factory=dict)
    kept_names: dict[str, int | None] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    kept: dict[int, bytes] = field(default_factory=dict)
    commits: dict[str, bytes] = field(default_factory=dict)
    last: tuple[int, int, int] | None = None
    """File, place and length of the last write, while it is not synced."""
    moved: list[tuple[str, str]] = field(default_factory=list)
    """Renames that are not synced."""

    def do(self, step: tuple[Any, ...]) -> None:
        """Take in one step of a trace."""
        kind, *about = step
        if kind == "link":
            self.names[about[0]] = about[1]
            self.data[about[1]] = b""
        elif kind == "mkdir":
            self.names[about[0]] = None
        elif kind == "unlink":
            self.names.pop(about[0], None)
        elif kind == "rename":
            old, new = about
            _move(self.names, old, new)
            self.moved.append((old, new))
        elif kind == "data":
            number, place, data = about
            before = self.data[number]
            place = len(before) if place < 0 else place
            self.data[number] = before[:place].ljust(place, b"\0") + data + before[place + len(data) :]
            self.last = (number, place, len(data))
        elif kind == "cut":
            self.data[about[0]] = self.data[about[0]][: about[1]].ljust(about[1], b"\0")
        elif kind == "sync":
            self.kept[about[0]] = self.data[about[0]]
            self.last = None if self.last is not None and self.last[0] == about[0] else self.last
        elif kind == "sync names":
            self._keep_names("" if about[0] == "." else about[0])
        elif kind == "commit":
            self.commits[about[0]] = about[1]

    def _keep_names(self, folder: str) -> None:
        """What is in ``folder`` is on the disk, and the folders around it; one that was renamed is so as a whole."""
        for old, new in [each for each in self.moved if os.path.dirname(each[1]) == folder]:
            _move(self.kept_names, old, new)
            self.moved.remove((old, new))
        for name in [name for name in self.kept_names if os.path.dirname(name) == folder and name not in self.names]:
            for inner in [each for each in self.kept_names if each == name or each.startswith(f"{name}/")]:
                del self.kept_names[inner]
        self.kept_names |= {name: each for name, each in self.names.items() if os.path.dirname(name) == folder}
        parts = folder.split("/") if folder else []
        self.kept_names |= {"/".join(parts[:end]): None for end in range(1, len(parts) + 1)}

    def after(self, how: str) -> tuple[dict[str, int | None], dict[int, bytes]]:
        """Names and contents that are found after a crash."""
        if how == "killed":
            return self.names, self.data
        if how == "lost":
            return self.kept_names, {number: self.kept.get(number, b"") for number in self.data}
        if how == "empty":
            return self.names, {number: self.kept.get(number, b"") for number in self.data}
        if self.last is None:
            return self.names, self.data
        number, place, length = self.last
        content, end = self.data[number], place + length
        torn = content[: place + length // 2] if how == "torn" else content[:place] + bytes(length) + content[end:]
        return self.names, {**self.data, number: torn}


def _move(names: dict[str, int | None], old: str, new: str) -> None:
    """Rename ``old``, with what is in it; what was called ``new`` is gone."""
    for name in [name for name in names if name == old or name.startswith(f"{old}/")]:
        names[new + name[len(old) :]] = names.pop(name)


def crashes(trace: Trace) -> Iterator[tuple[str, int, dict[str, bytes | None]]]:
    """How and after how many releases there was a crash, and the folder that it left: each such state once."""
    disk, releases, seen = _Disk(), 0, set[Any]()
    for step in trace.steps:
        disk.do(step)
        releases += step[0] == "release"
        for how in HOW:
            names, data = disk.after(how)
            state: dict[str, bytes | None] = {
                name: None if number is None else data[number] for name, number in sorted(names.items())
            }
            state |= disk.commits
            key = (how == "killed", releases, tuple(state.items()))
            if key not in seen:
                seen.add(key)
                yield how, releases, state


def put(root: Path, state: dict[str, bytes | None]) -> None:
    """Make ``root`` hold ``state`` and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, content in state.items():
        place = root / name
        if content is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
