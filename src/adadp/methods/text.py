"""Methods by name, with options: ``adadp``, ``adadp:power=0.4,start=50``, ``adadp-published:clip=lot``."""

from __future__ import annotations

from dataclasses import fields

from adadp import checks
from adadp.errors import InputError
from adadp.methods.adadp import AdaDp
from adadp.methods.agd import Agd
from adadp.methods.base import Method
from adadp.methods.clipped import DpSgd
from adadp.methods.dpopt import DpOpt
from adadp.methods.momentum import DpSgdMomentum
from adadp.methods.published import AdadpPublished, Adal, Adan

METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (AdaDp, DpSgd, DpSgdMomentum, Agd, Adal, Adan, AdadpPublished, DpOpt)
}
"""Name -> method; the first is the default."""


def parse_method(text: str) -> Method:
    """The method written as ``name`` or ``name:option=value,option=value``; what is not given keeps its default."""
    name, colon, rest = (part.strip() for part in text.partition(":"))
    kind = METHODS.get(name)
    if kind is None:
        raise InputError(f"Unknown method {name!r}.", fix=checks.one_of(name, METHODS))
    defaults: dict[str, float | int | str] = {field.name: getattr(kind, field.name) for field in fields(kind)}
    usage = f"Its options are: {', '.join(f'{key}={value}' for key, value in defaults.items())}."
    options: dict[str, object] = {}
    for item in rest.split(",") if colon else ():
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
    return kind(**options)
