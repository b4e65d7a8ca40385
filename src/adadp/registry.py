"""Parts by name: ours, those of installed packages, and those in a file of the user's own, all found the same way.

A package offers a part by an entry point in one of the groups ``adadp.methods``, ``adadp.clip_rules``,
``adadp.features``, ``adadp.accountants`` and ``adadp.commands``. Without a package a part is named by where it is
defined: ``package.module:Mine``, or ``folder/file.py:Mine``.

    name of a built-in part or an entry point   that part
    module:Name, file.py:Name                   the object of that name, which must be of the right type
    an unknown name                             ``InputError`` with the nearest known one
    an import that fails                        ``InputError`` that names the module and the error
    two packages that offer one name            the first found; a built-in name cannot be replaced
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from adadp import checks
from adadp.errors import InputError

T = TypeVar("T")

_PLACE = re.compile(r"(?P<module>[^:]+):(?P<name>[A-Za-z_]\w*)(?P<options>:.*)?", re.DOTALL)
"""``module:Name``, with options behind a second colon; ``name:option=value`` is not one."""


def is_place(text: str) -> bool:
    """Whether ``text`` names a part by where it is defined, in code of the user's own."""
    return _PLACE.fullmatch(text) is not None


class Registry(Mapping[str, T], Generic[T]):
    """The parts of one kind by name, built-in ones first. Entry points are looked up when first asked for.

    ``accept`` turns what was found into the part, or returns None for something else.
    """

    def __init__(self, kind: str, built_in: Mapping[str, T], accept: Callable[[object], T | None]) -> None:
        self._kind, self._built_in, self._accept = kind, built_in, accept
        self._loaded: dict[str, T] = {}

    @property
    def group(self) -> str:
        """The entry points that are looked up: ``adadp.methods`` for methods."""
        return f"adadp.{self._kind.replace(' ', '_')}s"

    @cached_property
    def _offered(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for each in entry_points(group=self.group):
            if each.name not in self._built_in:
                found.setdefault(each.name, each)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter((*self._built_in, *self._offered))

    def __len__(self) -> int:
        return len(self._built_in) + len(self._offered)

    def __getitem__(self, name: str) -> T:
        if name in self._built_in:
            return self._built_in[name]
        if name not in self._loaded:
            offered = self._offered[name]
            try:
                found = offered.load()
            except Exception as error:
                raise _not_loaded(self._kind, name, error) from error
            self._loaded[name] = self._accepted(found, offered.value)
        return self._loaded[name]

    def find(self, text: str) -> tuple[T, str]:
        """The part that ``text`` names, by name or by place, and its options: what stands behind the next colon."""
        name, _, options = (part.strip() for part in text.partition(":"))
        place = _PLACE.fullmatch(text)
        if place is not None and name not in self:
            return self._at(place["module"], place["name"]), (place["options"] or "").removeprefix(":")
        if name not in self:
            raise InputError(
                f"Unknown {self._kind} {name!r}.",
                fix=f"{checks.one_of(name, self)} One of your own is named by its place, package.module:Name.",
            )
        return self[name], options

    def _at(self, module: str, name: str) -> T:
        key = f"{module}:{name}"
        if key not in self._loaded:
            try:
                found = getattr(_module(module), name)
            except Exception as error:
                raise _not_loaded(self._kind, key, error) from error
            self._loaded[key] = self._accepted(found, key)
        return self._loaded[key]

    def _accepted(self, found: object, place: str) -> T:
        part = self._accept(found)
        if part is None:
            raise InputError(
                f"{place} is not a {self._kind}.",
                fix=f"Name a class that docs/extend.md describes as a {self._kind}.",
            )
        return part


def _module(name: str) -> ModuleType:
    """The module called ``name``, or in the file ``name``; modules in the current folder are found too."""
    if not name.endswith(".py"):
        if "" not in sys.path:
            sys.path.append("")
        return importlib.import_module(name)
    path = Path(name).resolve()
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _not_loaded(kind: str, name: str, error: Exception) -> InputError:
    return InputError(
        f"The {kind} {name} cannot be loaded: {type(error).__name__}: {error}.",
        fix="Check the spelling, and that the module can be imported by itself.",
    )
