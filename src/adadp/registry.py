"""Parts by name: ours, those of installed packages, and those in a file of the user's own, all found the same way.

A package offers a part by an entry point in a group such as ``adadp.methods`` or ``adadp.accountants``. Without a
package a part is named by its place: ``package.module:Mine``, or ``folder/file.py:Mine``.

    name of a built-in part or an entry point   that part
    module:Name, file.py:Name                   the object of that name, which must be of the right type
    an unknown name                             ``InputError`` with the nearest known one
    an import that fails                        ``InputError`` that names the module and the error
    two packages that offer one name            the first found; a built-in name cannot be replaced
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from adadp import checks
from adadp.errors import InputError

T = TypeVar("T")

_INSTALLED_ONLY = ContextVar("installed only", default=False)


@contextmanager
def installed_only(*, trust_code: bool = False) -> Iterator[None]:
    """Inside, without ``trust_code``, parts are found by names of installed packages alone: no text imports code."""
    token = _INSTALLED_ONLY.set(_INSTALLED_ONLY.get() or not trust_code)
    try:
        yield
    finally:
        _INSTALLED_ONLY.reset(token)


def refuse_untrusted(kind: str, name: str) -> None:
    """Refuse, inside of ``installed_only``, the part that ``name`` names by its place."""
    if _INSTALLED_ONLY.get():
        raise InputError(
            f"The {kind} {name} is named by where it is defined.",
            why="Loading it would run that code, and a folder can come from anybody.",
            fix="Pass `trust_code` if you do; or install it as a package with an entry point (docs/extend.md).",
        )


class Registry(Mapping[str, T], Generic[T]):
    """The parts of one kind by name, built-in ones first. Entry points are looked up when first asked for.

    ``accept`` turns what was found into the part, or returns None for something else.
    """

    def __init__(self, kind: str, built_in: Mapping[str, T], accept: Callable[[object], T | None]) -> None:
        self._kind, self._accept = kind, accept
        self._known: dict[str, T] = dict(built_in)
        self._built_in = tuple(built_in)

    @cached_property
    def _offered(self) -> dict[str, EntryPoint]:
        group = f"adadp.{self._kind.replace(' ', '_')}s"
        offered = sorted(entry_points(group=group), key=lambda each: not each.value.startswith("adadp."))  # ours win
        found = {each.name: each for each in reversed(offered)}
        return {name: found[name] for name in reversed(found) if name not in self._built_in}

    def __iter__(self) -> Iterator[str]:
        return iter((*self._built_in, *self._offered))

    def __len__(self) -> int:
        return len(self._built_in) + len(self._offered)

    def __getitem__(self, name: str) -> T:
        return self._known[name] if name in self._known else self._loaded(name, self._offered[name].load)

    def find(self, name: str) -> T:
        """The part called ``name``, or the one at the place ``name``."""
        module, at_place, attribute = name.rpartition(":")
        if at_place:
            refuse_untrusted(self._kind, name)
            return self._loaded(name, lambda: getattr(_module(module), attribute))
        if name not in self:
            raise InputError(
                f"Unknown {self._kind} {name!r}.",
                fix=f"{checks.one_of(name, self)} One of your own is named by its place, package.module:Name.",
            )
        return self[name]

    def _loaded(self, name: str, load: Callable[[], object]) -> T:
        if name not in self._known:
            try:
                part = self._accept(load())
            except Exception as error:
                raise InputError(
                    f"The {self._kind} {name} cannot be loaded: {type(error).__name__}: {error}.",
                    fix="Check the spelling, and that the module can be imported by itself.",
                ) from error
            if part is None:
                fix = f"Name a class that docs/extend.md describes as a {self._kind}."
                place = self._offered[name].value if name in self._offered else name
                raise InputError(f"{place} is not a {self._kind}.", fix=fix)
            self._known[name] = part
        return self._known[name]


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
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
