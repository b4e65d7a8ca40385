"""The schema: what is publicly known about a file before anyone looks at a value. TOML, checked when it is read.

budget = "people.budget"           the budget that every run on the data is counted in (adadp budget), beside the schema

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadp import checks
from adadp.app.owndata.columns import Category, Column, Hashed, Ignored, Number
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
LARGEST_BUCKETS = 65_536

_COLUMN_KEYS = {
    "number": ("kind", "low", "high", "bounds", "missing"),
    "category": ("kind", "values", "buckets", "missing"),
    "ignore": ("kind",),
}
_KINDS = 'Write kind = "number" with low and high, kind = "category" with values or buckets, or kind = "ignore".'
_USES = {
    "table": ("columns", "target", "classes", "delimiter", "budget"),
    "npz": ("classes", "budget"),
    "images": ("classes", "size", "mode", "budget"),
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
    budget: str | None = None
    """The file of the budget of the data, as it is written in the schema."""

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
    _refuse_unknown("the schema", values, (*_KEYS, "columns", "budget"))
    parts = {name: _section(values, name, keys) for name, keys in _KEYS.items()}
    declared = values.get("columns", {})
    if not isinstance(declared, Mapping):
        raise InputError("columns must be a section.", fix="Write [columns.NAME] for each column.")
    columns = []
    for name, column in declared.items():
        with within(f"Column {name!r}"):
            columns.append((str(name), _column(column)))
    target = parts["target"].get("column")
    if target is not None and (not isinstance(target, str) or not target.strip()):
        raise InputError(f"target.column must be the name of a column, got {target!r}.", fix='Write column = "income".')
    classes = as_names(parts["target"]["classes"]) if "classes" in parts["target"] else None
    delimiter = parts["file"].get("delimiter")
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n '):
        raise InputError(f"file.delimiter must be one character, got {delimiter!r}.", fix='Write ";" or "\\t".')
    mode = parts["images"].get("mode")
    if mode is not None and mode not in MODES:
        raise InputError(f"images.mode must be one of {', '.join(MODES)}, got {mode!r}.", fix='Write mode = "RGB".')
    budget = values.get("budget")
    if budget is not None and (not isinstance(budget, str) or not budget.strip() or not budget.isprintable()):
        raise InputError(f"budget must be the path of a file, got {budget!r}.", fix='Write budget = "people.budget".')
    return Schema(tuple(columns), target, classes, delimiter, _size(parts["images"]), mode, budget)


def as_names(classes: object) -> tuple[str, ...]:
    """The names of ``classes``: a list of texts, or a number of classes, which are then called "0", "1", ..."""
    if isinstance(classes, int) and not isinstance(classes, bool):
        return tuple(map(str, range(checks.count("classes", classes, minimum=2))))
    names = _different_texts("classes", classes)
    if len(names) < 2:
        raise InputError("classes must name at least two classes.", why="There is nothing to predict.")
    return names


def _size(images: Mapping[str, Any]) -> tuple[int, int] | None:
    size = images.get("size")
    if size is None:
        return None
    if not isinstance(size, list) or len(size) != 2:
        raise InputError(f"images.size must be [height, width], got {size!r}.", fix="Write size = [32, 32].")
    return checks.count("images.size", size[0]), checks.count("images.size", size[1])


def _section(values: Mapping[str, Any], name: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    section = values.get(name, {})
    if not isinstance(section, Mapping):
        raise InputError(f"{name} must be a section.", fix=f"Write [{name}] and its keys below.")
    _refuse_unknown(f"[{name}]", section, keys)
    return section


def _column(values: object) -> Column:
    if not isinstance(values, Mapping) or "kind" not in values:
        raise InputError("it has no kind.", why="What a cell becomes must be declared, not guessed.", fix=_KINDS)
    kind = values["kind"]
    if kind not in _COLUMN_KEYS:
        raise InputError(f"unknown kind {kind!r}.", fix=_KINDS)
    _refuse_unknown("the column", values, _COLUMN_KEYS[kind])
    if kind == "ignore":
        return Ignored()
    missing = _missing(values.get("missing", False))
    if kind == "number":
        return _number(values, missing)
    if ("values" in values) == ("buckets" in values):
        raise InputError("a category needs values or buckets, and not both.", fix='Write values = ["a", "b"].')
    if "values" in values:
        return Category(_different_texts("values", values["values"]), missing or ("",))
    buckets = checks.count("buckets", values["buckets"])
    if buckets > LARGEST_BUCKETS:
        raise InputError(f"buckets must be at most {LARGEST_BUCKETS}, got {buckets}.", why="Each is a feature.")
    return Hashed(buckets, missing or ("",))


def _number(values: Mapping[str, Any], missing: tuple[str, ...]) -> Number:
    if "bounds" in values:
        if values["bounds"] != "private" or "low" in values or "high" in values:
            raise InputError(
                'a number has low and high, or bounds = "private".', fix="Keep the one of the two that is meant."
            )
        return Number(missing=missing)
    if "low" not in values or "high" not in values:
        raise InputError(
            "a number needs low and high.",
            why="Taken from the data they would be a release.",
            fix='Write low = 0 and high = 100 from public knowledge, or bounds = "private" to release them privately.',
        )
    return Number(_finite("low", values["low"]), _finite("high", values["high"]), missing)


def _finite(name: str, value: object) -> float:
    """``value`` as a float of either sign."""
    if isinstance(value, int | float) and value < 0:
        return -checks.positive(name, -value)
    return checks.non_negative(name, value)


def _missing(value: object) -> tuple[str, ...]:
    """The texts that mean a missing value: none, the empty one, or the listed ones and the empty one."""
    if isinstance(value, bool):
        return ("",) if value else ()
    listed = [text for text in value if text != ""] if isinstance(value, list) else value
    return ("", *(_different_texts("missing", listed) if listed != [] else ()))


def _different_texts(name: str, values: object) -> tuple[str, ...]:
    """A list of different texts, none of them empty or with spaces around it; a whole number becomes its text."""
    if not isinstance(values, list | tuple) or not values:
        raise InputError(f"{name} must be a list of texts, got {values!r}.", fix=f'Write {name} = ["a", "b"].')
    texts: list[str] = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InputError(f"{value!r} in {name} is not a text.", fix=f'Write it in quotes: "{value}".')
        text = str(value)
        if text != text.strip() or not text:
            raise InputError(
                f"{text!r} in {name} is empty or has spaces around it.",
                why="Cells are compared without those, and an empty cell is always a missing one.",
                fix="Write the text alone.",
            )
        if text in texts:
            raise InputError(f"{text!r} is twice in {name}.", fix="Write it once.")
        texts.append(text)
    return tuple(texts)


def _refuse_unknown(where: str, values: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in values:
        if key not in keys:
            raise InputError(f"Unknown key {key!r} in {where}.", fix=checks.one_of(key, keys))
