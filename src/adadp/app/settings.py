"""A setting is declared once, as a field of a dataclass: its flag, TOML key, check and help follow.

    @dataclass(frozen=True)
    class Config:
        epochs: int | None = setting(None, group="Training", help="Length in epochs.")

A name between backticks in a help text is another setting, which every front end spells in its own way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass
from functools import lru_cache, partial
from typing import Any, get_args, get_type_hints

from adadp import checks
from adadp.errors import InputError, spelled

AUTO = "auto"
Check = Callable[[str, Any], Any]
"""Takes the name of a setting and its value; returns the value as it is kept, or raises ``InputError``."""


@dataclass(frozen=True)
class Setting:
    """One field as it was declared. ``name``, ``kind`` and ``optional`` (it may be None) follow from the field."""

    help: str
    group: str
    unset: str = ""
    """What holds where the setting is not given."""
    check: Check | None = None
    """Left out: a name among ``choices``, a number above 0, or printable text."""
    choices: tuple[str, ...] = ()
    auto: bool = False
    """Whether it may be ``auto`` in place of a number."""
    none: object = None
    """A value that is kept as None, which says the same."""
    name: str = ""
    kind: type = str
    optional: bool = False

    def checked(self, value: Any) -> Any:
        """``value`` in its one spelling."""
        if (value is None and self.optional) or (self.auto and isinstance(value, str) and value == AUTO):
            return value
        if self.auto and isinstance(value, str):
            what = f"`{self.name}` must be a whole number or auto, got {value!r}."
            raise InputError(what, why=self.help, fix="Pass a number, or auto.")
        check = self.check or (
            partial(one_of, known=self.choices) if self.choices else partial(_CHECKS[self.kind], why=self.help)
        )
        kept: Any = check(self.name, value)
        if self.none is not None and kept == self.none:
            return None
        return kept + 0.0 if self.kind is float else kept  # -0.0 becomes 0.0

    def explained(self, spell: Callable[[str], str] = str) -> str:
        """The help text, with the default and with settings spelled by ``spell``."""
        default = f"  [default: {self.unset}]" if self.unset else ""
        return spelled(self.help + default, spell)


def setting(default: Any = MISSING, **declared: Any) -> Any:
    """A field of a configuration, which is ``declared`` as a ``Setting``."""
    if default is not MISSING and default is not None and default is not False:
        declared.setdefault("unset", str(default))
    return dataclasses.field(default=default, metadata={"setting": Setting(**declared)})


def settings_of(config: type) -> dict[str, Setting]:
    """The settings that the dataclass ``config`` declares, by name."""
    return _settings_of(config)


@lru_cache
def _settings_of(config: type) -> dict[str, Setting]:
    hints = get_type_hints(config)
    found = {}
    for name, field in ((field.name, field.metadata["setting"]) for field in dataclasses.fields(config)):
        kinds = get_args(hints[name]) or (hints[name],)
        found[name] = dataclasses.replace(field, name=name, kind=kinds[0], optional=type(None) in kinds)
    return found


def flag_of(name: str) -> str:
    """``--batch-size`` for ``batch_size``."""
    return f"--{name.replace('_', '-')}"


def refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first of ``names`` that is not ``known``, and name the nearest one that is."""
    known = list(known)
    for name in names:
        if name not in known:
            raise InputError(
                f"Unknown setting {name!r}.",
                why="A setting that is ignored would be a run other than the one you asked for.",
                fix=checks.one_of(name, known),
            )


def text(name: str, value: object, *, why: str = "") -> str:
    """Text that survives a file and a command line: not empty, and without control characters or broken Unicode."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError(
            f"`{name}` must be printable text, got {value!r} ({type(value).__name__}).",
            why=why,
            fix=f"Pass `{name}` as text.",
        )
    return value


def one_of(name: str, value: object, known: Iterable[str]) -> str:
    """One of the names in ``known``."""
    if text(name, value) not in known:
        raise InputError(f"Unknown {name} {value!r}.", fix=checks.one_of(str(value), known))
    return str(value)


def truth(name: str, value: object, *, why: str = "") -> bool:
    """True or false, and nothing else that counts as one of them."""
    if not isinstance(value, bool):
        raise InputError(f"`{name}` must be true or false, got {value!r}.", why=why, fix="Pass it as a bool.")
    return value


def below(limit: float, check: Check) -> Check:
    """``check``, and that the number is below ``limit``."""

    def checked(name: str, value: object) -> Any:
        number = check(name, value)
        if number >= limit:
            raise InputError(f"`{name}` must be below {limit}, got {number}.", fix=f"Pass a smaller `{name}`.")
        return number

    return checked


_CHECKS: dict[type, Callable[..., Any]] = {str: text, int: checks.count, float: checks.positive, bool: truth}
