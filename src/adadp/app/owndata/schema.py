"""The schema: what is publicly known about a file before anyone looks at a value. TOML, checked when it is read.

[target]
column = "income"                  the column to predict; only for tables
classes = ["<=50K", ">50K"]        every class by name, or their number: 10 stands for "0" to "9"

[columns.age]                      a table's columns, in the order of the features
kind = "number"                    with low and high, or bounds = "private"; missing = true, or a list of texts
[columns.job]
kind = "category"                  with values = [...] or buckets = 64; missing = a list of texts
[columns.id]
kind = "ignore"

[file]
delimiter = ";"                    for text that is not separated by commas
[images]
size = [32, 32]                    height and width all images are brought to
mode = "RGB"                       or "L"

given                                          becomes
=============================================  ====================================================================
an unknown section, key or kind                an error that names the nearest known one
a column without a kind                        an error that lists the kinds
low >= high, NaN or infinite bounds            an error: nothing can be mapped to [-1, 1]
low or high beside bounds = "private"          an error: it means two things
values beside buckets, or neither              an error
a value twice, an empty one, spaces around it  an error: no cell could ever be it
a whole number as a value or class             its text: 3 is "3"
one class                                      an error: there is nothing to predict
a target that is also a column                 an error: the answer would be a feature
a part that the kind of data has no use for    an error: it would be ignored
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadp import checks
from adadp.app.owndata.columns import Column
from adadp.app.owndata.declarations import different_texts, parse_column, refuse_unknown
from adadp.errors import InputError, within

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MODES = {"L": 1, "RGB": 3}
"""How images may be read -> their channels."""

_KEYS = {
    "target": ("column", "classes"),
    "file": ("delimiter",),
    "images": ("size", "mode"),
}
_USES = {
    "table": ("columns", "target", "classes", "delimiter"),
    "npz": ("classes",),
    "images": ("classes", "size", "mode"),
}


@dataclass(frozen=True)
class Schema:
    """What a schema declares; a part it leaves out is None, or no columns."""

    columns: tuple[tuple[str, Column], ...] = ()
    target: str | None = None
    classes: tuple[str, ...] | None = None
    delimiter: str | None = None
    size: tuple[int, int] | None = None
    mode: str | None = None

    def for_kind(self, kind: str) -> Schema:
        """The schema, if all it declares is used by data of this ``kind`` (table, npz or images)."""
        unused = [
            field.name
            for field in dataclasses.fields(self)
            if field.name not in _USES[kind] and getattr(self, field.name) not in (None, ())
        ]
        if unused:
            raise InputError(
                f"The schema declares {', '.join(unused)}, which {kind} data has no use for.",
                why="It would be ignored.",
                fix=f"Take it out; {kind} data uses {', '.join(_USES[kind])}.",
            )
        return self


def load_schema(path: str | os.PathLike[str]) -> Schema:
    """The schema in the TOML file ``path``."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"The schema {path} cannot be read: {error.strerror}.", fix="Check the path.") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise InputError(
            f"The schema {path} is not TOML: {error}.", fix='Write one declaration per line, like kind = "number".'
        ) from error
    with within(f"In the schema {path}"):
        return parse_schema(values)


def parse_schema(values: Mapping[str, Any]) -> Schema:
    """The schema with the declarations ``values``, as TOML or JSON read them."""
    refuse_unknown("the schema", values, (*_KEYS, "columns"))
    parts = {name: _section(values, name, keys) for name, keys in _KEYS.items()}
    declared = values.get("columns", {})
    if not isinstance(declared, Mapping):
        raise InputError("columns must be a section.", fix="Write [columns.NAME] for each column.")
    columns = tuple((str(name), parse_column(str(name), column)) for name, column in declared.items())
    target = parts["target"].get("column")
    if target is not None and (not isinstance(target, str) or not target.strip()):
        raise InputError(f"target.column must be the name of a column, got {target!r}.", fix='Write column = "income".')
    delimiter = parts["file"].get("delimiter")
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n '):
        raise InputError(f"file.delimiter must be one character, got {delimiter!r}.", fix='Write ";" or "\\t".')
    mode = parts["images"].get("mode")
    if mode is not None and mode not in MODES:
        raise InputError(f"images.mode must be one of {', '.join(MODES)}, got {mode!r}.", fix='Write mode = "RGB".')
    return Schema(columns, target, _classes(parts["target"]), delimiter, _size(parts["images"]), mode)


def as_names(classes: object) -> tuple[str, ...]:
    """The names of ``classes``: a list of texts, or a number of classes, which are then called "0", "1", ..."""
    if isinstance(classes, int) and not isinstance(classes, bool):
        return tuple(map(str, range(checks.count("classes", classes, minimum=2))))
    names = different_texts("classes", classes)
    if len(names) < 2:
        raise InputError("classes must name at least two classes.", why="There is nothing to predict.")
    return names


def _classes(target: Mapping[str, Any]) -> tuple[str, ...] | None:
    return as_names(target["classes"]) if "classes" in target else None


def _size(images: Mapping[str, Any]) -> tuple[int, int] | None:
    size = images.get("size")
    if size is None:
        return None
    if not isinstance(size, list) or len(size) != 2:
        raise InputError(f"images.size must be [height, width], got {size!r}.", fix="Write size = [32, 32].")
    return checks.count("images.size", size[0]), checks.count("images.size", size[1])


def _section(values: Mapping[str, Any], name: str, keys: Iterable[str]) -> Mapping[str, Any]:
    section = values.get(name, {})
    if not isinstance(section, Mapping):
        raise InputError(f"{name} must be a section.", fix=f"Write [{name}] and its keys below.")
    refuse_unknown(f"[{name}]", section, tuple(keys))
    return section
