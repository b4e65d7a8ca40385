"""Methods by name, with options: ``adadp``, ``adadp:power=0.4,start=50``, ``package.module:Mine:rate=2``."""

from __future__ import annotations

from dataclasses import fields

from adadp.app.methods.adadp import AdaDp
from adadp.app.texts.parts import find
from adadp.errors import InputError, within
from adadp.methods.base import Method
from adadp.methods.clipped import DpSgd
from adadp.registry import Registry


def _accept(found: object) -> type[Method] | None:
    return found if isinstance(found, type) and issubclass(found, Method) else None


METHODS: Registry[type[Method]] = Registry("method", {kind.name: kind for kind in (AdaDp, DpSgd)}, _accept)
"""Name -> method; the first is the default."""


def method_text(method: Method) -> str:
    """What ``parse_method`` reads as ``method``: by name if that is known, else by where its class is defined."""
    kind = type(method)
    if method.name in METHODS and METHODS[method.name] is kind:
        return str(method)
    _, _, options = str(method).partition(":")
    return ":".join([kind.__module__, kind.__qualname__, *([options] if options else [])])


def parse_method(text: str) -> Method:
    """The method written as ``name`` or ``name:option=value,option=value``; what is not given keeps its default."""
    kind, rest = find(METHODS, text)
    name = kind.name
    defaults: dict[str, float | int | str] = {field.name: getattr(kind, field.name) for field in fields(kind)}
    usage = f"Its options are: {', '.join(f'{key}={value}' for key, value in defaults.items())}."
    options: dict[str, object] = {}
    for item in () if rest is None else rest.split(","):
        option, _, value = (part.strip() for part in item.partition("="))
        if option not in defaults:
            raise InputError(
                f"The method {name} has no option {option!r}.", fix=usage if defaults else "It has no options."
            )
        if option in options:
            raise InputError(f"{text!r} gives {option} twice.", why="Only one could count.", fix="Leave one out.")
        try:
            options[option] = type(defaults[option])(value)
        except ValueError:
            raise InputError(f"{option}={value} of {name} cannot be read.", fix=usage) from None
    with within(text, own_names=True):
        return kind(**options)
