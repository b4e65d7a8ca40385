"""The settings a search compares: what each changes in the base configuration.

They are fixed before any data is read. A grid is the product of its values; a list says each setting in full.

    given                                           becomes
    ==============================================  =================================================================
    ``lr=0.05,0.1``                                 two values, numbers where the field is one
    ``noise_schedule=uniform:|exp:k=0.1,start=2``   two values: ``|`` separates them where one holds a comma or colon
    a comma and a colon, and no ``|``               an error: it could mean one value or several
    ``[[setting]]`` tables in a TOML file           one setting each
    a name that is no field of a configuration      an error that names the nearest
    what all runs of a search share (data, delta,   an error
    epsilon, sampling, seed, ...)
    the same setting twice                          an error: it would be drawn twice as often
    no setting                                      an error
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from adadp.app.config import TrainConfig
from adadp.errors import InputError
from adadp.files import read_toml

Setting = dict[str, Any]

_FLOATS = ("lr", "clip_norm", "momentum", "weight_decay", "ema")
_COUNTS = ("batch_size", "epochs", "steps")
_TEXTS = (
    "lr_schedule",
    "clip_norm_schedule",
    "clip_rule",
    "batch_size_schedule",
    "noise_schedule",
    "optimizer",
    "method",
    "model",
    "features",
)
MAY_DIFFER = (*_FLOATS, *_COUNTS, *_TEXTS)
"""Fields in which the runs of one search may differ."""


def grid(values: Mapping[str, Sequence[Any]]) -> tuple[Setting, ...]:
    """Every combination of ``values``: field -> what it may be."""
    for name, options in values.items():
        if isinstance(options, str) or not isinstance(options, Sequence) or not options:
            raise InputError(f"The grid gives no list of values for {name}.", fix=f"Pass {name}=[...], not empty.")
    return checked(dict(zip(values, each, strict=True)) for each in itertools.product(*values.values()))


def parse_grid(texts: Iterable[str]) -> tuple[Setting, ...]:
    """Every combination of values written as ``NAME=VALUE,VALUE``, one text per field."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, rest = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not equals or not rest:
            raise InputError(f"{text!r} is not NAME=VALUES.", fix="Write it like lr=0.05,0.1.")
        if name in found:
            raise InputError(f"The grid gives {name} twice.", fix="Put all its values into one.")
        if "|" not in rest and "," in rest and ":" in rest:
            raise InputError(
                f"The values of {name} hold commas and colons: {rest!r}.",
                why="Whether that is one value or several cannot be told.",
                fix="Separate values by |, like noise_schedule=uniform:|exp:k=0.1,start=2.",
            )
        parts = rest.split("|" if "|" in rest else ",")
        found[name] = [_value(name, part.strip()) for part in parts if part.strip()]
    return grid(found)


def read_settings(path: Path) -> tuple[Setting, ...]:
    """The settings in a TOML file, one ``[[setting]]`` each."""
    try:
        content = read_toml(path)
    except OSError as error:
        raise InputError(
            f"The settings {path} cannot be read: {error.strerror or error}.", fix="Check the path."
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}.", fix="Write [[setting]] and its fields below it.") from error
    tables = content.pop("setting", None)
    if content or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(
            f"{path} is not a list of settings.", fix="Write [[setting]] before each, and nothing else in the file."
        )
    return checked(tables)


def checked(settings: Iterable[Mapping[str, Any]]) -> tuple[Setting, ...]:
    """``settings`` if a search can compare them."""
    found = [dict(setting) for setting in settings]
    if not found:
        raise InputError("There is no setting to choose.", fix="Pass a grid, or a list of settings.")
    for setting in found:
        for name in setting:
            _refuse_shared(name)
    for one, other in itertools.combinations(found, 2):
        if one == other:
            raise InputError(
                f"The setting {one} is there twice.", why="It would be drawn twice as often.", fix="Leave one out."
            )
    return tuple(found)


def _refuse_shared(name: str) -> None:
    if name in MAY_DIFFER:
        return
    if name not in {field.name for field in fields(TrainConfig)}:
        TrainConfig.from_dict({name: None})  # refuses it, and names the nearest
    raise InputError(
        f"{name} cannot differ between the settings of a search.",
        why="All its runs see the same records under one guarantee.",
        fix="Give it once, for all. Settings may differ in: " + ", ".join(MAY_DIFFER) + ".",
    )


def _value(name: str, text: str) -> Any:
    kind = float if name in _FLOATS else int if name in _COUNTS else str
    try:
        return kind(text)
    except ValueError:
        return text  # auto, or something the configuration refuses by name
