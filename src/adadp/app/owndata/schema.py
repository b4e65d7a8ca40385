"""The schema: what is publicly known about a file before anyone looks at a value. TOML, checked when it is read.

budget = "people.budget"           the budget that every run on the data is counted in (adadp budget), beside the schema

[target]
column = "income"                  the column to predict; only for tables
classes = ["<=50K", ">50K"]        every class by name, or their number: 10 stands for "0" to "9"
kind = "number"                    in place of classes: a target that is a number, with low and high; or "count", with
                                   high alone
[targets.days]                     in place of [target]: several numbers or counts, each with kind, low and high

[columns.age]                      a table's columns, in the order of the features
kind = "number"                    with low and high, or bounds = "private"; missing = true, or a list of texts
bins = [4, 8, 16, 32]              into how many slots the range is divided, several times; [] for the position alone
log = true                         bins on a logarithmic scale, for amounts of which most are small
default = 40                       the value most records have: it makes no feature
outside = "refuse"                 a value beyond low or high is an error; "clamp" is the default
[columns.job]
kind = "category"                  with values = [...] or buckets = 64; missing = a list of texts
default = "clerk"                  as above
ordered = true                     values are steps of a scale
outside = "refuse"                 a text that is none of values is an error; "other" is the default
[columns.visit]
kind = "date"                      low, high = 2000-01-01, missing, bins, outside; format = "%d.%m.%Y" if it is not ISO
parts = ["month", "weekday"]       also "day" and "hour"
[columns.note]
kind = "text"                      hashed words, with buckets, ngrams, length, missing; or embedding = "wordllama"
[columns.id]
kind = "ignore"

[unit]
column = "patient_id"              whose rows are protected together; only for tables and arrays
[file]
delimiter = ";"                    for text that is not separated by commas
[images]
size = [32, 32]                    height and width all images are brought to
mode = "RGB"                       or "L"

given                                          becomes
=============================================  ====================================================================
an unknown section, key or kind                an error that names the nearest known one
a column without a kind                        an error that lists the kinds
low >= high, NaN or infinite bounds            an error: there is no range
low, high, bins, ... beside bounds = "private" an error: it means two things
a default that is none of values               an error: no cell could be it
values beside buckets, or neither              an error
a value twice, an empty one, spaces around it  an error: no cell could ever be it
a whole number as a value or class             its text: 3 is "3"
one class                                      an error: there is nothing to predict
a target that is also a column                 an error: the answer would be a feature
a part that the kind of data has no use for    an error: it would be ignored
several of these                               one error that lists them
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadp import checks
from adadp.app.owndata import moments, words
from adadp.app.owndata.columns import BINS, LOG_BINS, Category, Column, Hashed, Ignored, Number
from adadp.app.owndata.mistakes import Mistakes
from adadp.app.owndata.moments import Moment
from adadp.app.owndata.words import Embedded, Words
from adadp.app.targets import Target
from adadp.errors import InputError, within
from adadp.files import read_toml

MODES = {"L": 1, "RGB": 3}
"""How images may be read -> their channels."""

_KEYS = {
    "target": ("column", "classes", "kind", "low", "high"),
    "unit": ("column",),
    "file": ("delimiter",),
    "images": ("size", "mode"),
}
LARGEST_BUCKETS, LARGEST_NGRAMS, LARGEST_LENGTH = 65_536, 8, 4_096

LARGEST_BINS = 65_536

LARGEST_CLASSES = 100_000

_LARGEST = 1 << 24
"""Bytes of a schema."""

_COLUMN_KEYS = {
    "number": ("kind", "low", "high", "bounds", "missing", "bins", "log", "default", "outside"),
    "category": ("kind", "values", "buckets", "missing", "default", "ordered", "outside"),
    "date": ("kind", "low", "high", "missing", "bins", "parts", "format", "outside"),
    "text": ("kind", "buckets", "ngrams", "length", "embedding", "missing"),
    "ignore": ("kind",),
}
_KINDS = 'Write kind = "number" or "date" with low and high, "category" with values or buckets, "text", or "ignore".'
_USES = {
    "table": ("columns", "target", "classes", "targets", "unit", "delimiter", "budget"),
    "npz": ("classes", "unit", "budget"),
    "images": ("classes", "size", "mode", "budget"),
}


@dataclass(frozen=True)
class Schema:
    """What a schema declares; a part it leaves out is None, or no columns."""

    columns: tuple[tuple[str, Column], ...] = ()
    target: str | None = None
    classes: tuple[str, ...] | None = None
    targets: tuple[Target, ...] = ()
    """Those that are numbers; ``target`` is then the first of them."""
    delimiter: str | None = None
    size: tuple[int, int] | None = None
    mode: str | None = None
    unit: str | None = None
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


def load_schema(path: str | os.PathLike[str], mistakes: Mistakes | None = None) -> Schema:
    """The schema in the TOML file ``path``. With ``mistakes`` they are noted there, and what is right is returned."""
    try:
        values = read_toml(Path(path), _LARGEST)
    except OSError as error:
        raise InputError(
            f"The schema {path} cannot be read: {error.strerror or error}.", fix="Check the path."
        ) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise InputError(
            f"The schema {path} is not TOML: {error}.", fix='Write one declaration per line, like kind = "number".'
        ) from error
    with within(f"In the schema {path}"):
        return parse_schema(values, mistakes)


def parse_schema(values: Mapping[str, Any], mistakes: Mistakes | None = None) -> Schema:
    """The schema with the declarations ``values``, as TOML or JSON read them. With ``mistakes`` they are noted there;
    a column whose declaration is wrong is then one to ignore.
    """
    alone = mistakes is None
    mistakes = Mistakes("These declarations are wrong") if mistakes is None else mistakes
    with mistakes.noted():
        _refuse_unknown("the schema", values, (*_KEYS, "columns", "targets", "budget"))
    parts: dict[str, Mapping[str, Any]] = {name: {} for name in _KEYS}
    for name, keys in _KEYS.items():
        with mistakes.noted():
            parts[name] = _section(values, name, keys)
    declared = values.get("columns", {})
    if not isinstance(declared, Mapping):
        with mistakes.noted():
            raise InputError("columns must be a section.", fix="Write [columns.NAME] for each column.")
        declared = {}
    columns: dict[str, Column] = {str(name): Ignored() for name in declared}
    for name, column in declared.items():
        with mistakes.noted(), within(f"Column {name!r}"):
            columns[str(name)] = _column(column)
    delimiter, mode = parts["file"].get("delimiter"), parts["images"].get("mode")
    target = unit = classes = size = None
    targets: tuple[Target, ...] = ()
    with mistakes.noted():
        target = _named_column(parts, "target", "income")
    with mistakes.noted():
        unit = _named_column(parts, "unit", "patient_id")
    with mistakes.noted():
        targets = _targets(values, parts["target"])
        target = targets[0].name if targets else target
    with mistakes.noted():
        classes = as_names(parts["target"]["classes"]) if "classes" in parts["target"] else None
    with mistakes.noted():
        if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n '):
            raise InputError(f"file.delimiter must be one character, got {delimiter!r}.", fix='Write ";" or "\\t".')
    with mistakes.noted():
        if mode is not None and mode not in MODES:
            raise InputError(f"images.mode must be one of {', '.join(MODES)}, got {mode!r}.", fix='Write mode = "RGB".')
    with mistakes.noted():
        size = _size(parts["images"])
    budget = values.get("budget")
    with mistakes.noted():
        if budget is not None and (not isinstance(budget, str) or not budget.strip() or not budget.isprintable()):
            raise InputError(
                f"budget must be the path of a file, got {budget!r}.", fix='Write budget = "people.budget".'
            )
    if alone:
        mistakes.raise_any()
    return Schema(tuple(columns.items()), target, classes, targets, delimiter, size, mode, unit, budget)


def _targets(values: Mapping[str, Any], target: Mapping[str, Any]) -> tuple[Target, ...]:
    """The targets that are numbers: those of [targets], or that of [target] where it has a kind."""
    several = values.get("targets", {})
    about = {key for key in target if key != "column"}
    if not isinstance(several, Mapping):
        raise InputError("targets must be a section.", fix="Write [targets.NAME] for each target.")
    if several and target:
        raise InputError("Both [target] and [targets] are there.", why="They mean two things.", fix="Keep one of them.")
    if several:
        return tuple(_target(str(name), each) for name, each in several.items())
    if not about - {"classes"}:
        return ()
    if "classes" in about or "column" not in target:
        raise InputError(
            "target has classes, or a kind with low and high and the name of its column.",
            fix='Write column = "days", kind = "number", low = 0 and high = 30; or column and classes.',
        )
    return (_target(target["column"], {key: target[key] for key in about}),)


def _target(name: str, declared: object) -> Target:
    if not isinstance(declared, Mapping) or declared.get("kind") not in ("number", "count"):
        raise InputError(
            f"The target {name!r} has no kind.",
            fix='Write kind = "number" with low and high, or kind = "count" with high.',
        )
    with within(f"Target {name!r}"):
        count = declared["kind"] == "count"
        _refuse_unknown("the target", declared, ("kind", "high") if count else ("kind", "low", "high"))
        if "high" not in declared or ("low" not in declared and not count):
            raise InputError(
                "it has no range.",
                why="Numbers beyond it are clipped to it; taken from the data it would be a release.",
                fix="Write low and high from public knowledge (of a count high alone).",
            )
        low = 0.0 if count else _finite("low", declared["low"])
        return Target(name, low, _finite("high", declared["high"]), count=count, scaled=True)


def as_names(classes: object) -> tuple[str, ...]:
    """The names of ``classes``: a list of texts, or a number of classes, which are then called "0", "1", ..."""
    if isinstance(classes, int) and not isinstance(classes, bool):
        return tuple(map(str, range(_at_most("classes", checks.count("classes", classes, minimum=2), LARGEST_CLASSES))))
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


def _named_column(parts: Mapping[str, Mapping[str, Any]], section: str, example: str) -> str | None:
    column = parts[section].get("column")
    if column is not None and (not isinstance(column, str) or not column.strip()):
        raise InputError(
            f"{section}.column must be the name of a column, got {column!r}.", fix=f'Write column = "{example}".'
        )
    return column


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
    return _MADE[kind](values, _missing(values.get("missing", False)))


def _category(values: Mapping[str, Any], missing: tuple[str, ...]) -> Category | Hashed:
    if ("values" in values) == ("buckets" in values):
        raise InputError("a category needs values or buckets, and not both.", fix='Write values = ["a", "b"].')
    default = values.get("default")
    default = None if default is None else _different_texts("default", [default])[0]
    if "values" in values:
        listed = _different_texts("values", values["values"])
        if default is not None and default not in listed:
            raise InputError(f"default is {default!r}, which is none of values.", fix="Write one of them, or none.")
        strict = _strict(values, "other")
        return Category(listed, missing or ("",), _flag(values, "ordered"), default, strict)
    for key in ("ordered", "outside"):
        if key in values:
            raise InputError(f"{key} is given beside buckets.", why="It is about values.", fix="Take it out.")
    return Hashed(_at_most("buckets", values["buckets"], LARGEST_BUCKETS), missing or ("",), default)


def _number(values: Mapping[str, Any], missing: tuple[str, ...]) -> Number:
    if "bounds" in values:
        if values["bounds"] != "private" or set(values) - {"kind", "bounds", "missing"}:
            raise InputError(
                'a number has low and high, or bounds = "private", and with that nothing but missing.',
                fix="Keep the one of the two that is meant.",
            )
        return Number(missing=missing)
    low, high = (_finite(name, end) for name, end in zip(("low", "high"), _ends(values, 0, 100), strict=True))
    log = _flag(values, "log")
    default = None if "default" not in values else _finite("default", values["default"])
    return Number(low, high, missing, _bins(values, LOG_BINS if log else BINS), log, default, _strict(values, "clamp"))


def _date(values: Mapping[str, Any], missing: tuple[str, ...]) -> Moment:
    low, high = map(moments.as_text, _ends(values, "2000-01-01", "2030-12-31"))
    parts = values.get("parts", moments.USUAL)
    if not isinstance(parts, list | tuple) or not all(part in moments.PARTS for part in parts):
        raise InputError(f"parts is {parts!r}.", fix=f"List some of {', '.join(moments.PARTS)}, or none: parts = [].")
    form = values.get("format")
    if form is not None and (not isinstance(form, str) or "%" not in form):
        raise InputError(f"format is {form!r}.", fix='Write it as strptime reads it: format = "%d.%m.%Y".')
    return Moment(low, high, missing, tuple(dict.fromkeys(parts)), _bins(values, BINS), form, _strict(values, "clamp"))


def _text(values: Mapping[str, Any], missing: tuple[str, ...]) -> Words | Embedded:
    if "embedding" in values:
        if values["embedding"] != "wordllama" or set(values) - {"kind", "embedding", "missing"}:
            raise InputError(
                'a text has embedding = "wordllama", or words that are hashed.', fix="Keep the one that is meant."
            )
        return Embedded(missing or ("",))
    return Words(
        _at_most("buckets", values.get("buckets", words.BUCKETS), LARGEST_BUCKETS),
        _at_most("ngrams", values.get("ngrams", words.NGRAMS), LARGEST_NGRAMS),
        _at_most("length", values.get("length", words.LENGTH), LARGEST_LENGTH),
        missing or ("",),
    )


_MADE = {"number": _number, "category": _category, "date": _date, "text": _text}


def _ends(values: Mapping[str, Any], low: object, high: object) -> tuple[Any, Any]:
    if "low" not in values or "high" not in values:
        raise InputError(
            f"a {values['kind']} needs low and high.",
            why="Taken from the data they would be a release.",
            fix=f"Write low = {low} and high = {high} from public knowledge"
            + (', or bounds = "private" to release them privately.' if values["kind"] == "number" else "."),
        )
    return values["low"], values["high"]


def _bins(values: Mapping[str, Any], usual: tuple[int, ...]) -> tuple[int, ...]:
    bins = values.get("bins", usual)
    if not isinstance(bins, list | tuple):
        raise InputError(f"bins must be a list of numbers, got {bins!r}.", fix="Write bins = [8, 32], or bins = [].")
    found = tuple(checks.count("bins", each, minimum=2) for each in bins)
    if sum(found) > LARGEST_BINS:
        raise InputError(f"bins must be at most {LARGEST_BINS} together.", why="Each is a feature.", fix="Take fewer.")
    return found


def _at_most(name: str, value: object, largest: int) -> int:
    found = checks.count(name, value)
    if found > largest:
        raise InputError(f"{name} must be at most {largest}, got {found}.", why="Each takes memory for every record.")
    return found


def _flag(values: Mapping[str, Any], name: str) -> bool:
    value = values.get(name, False)
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false, got {value!r}.", fix=f"Write {name} = true.")
    return value


def _strict(values: Mapping[str, Any], usual: str) -> bool:
    """Whether what lies outside of the declaration is an error."""
    outside = values.get("outside", usual)
    if outside not in (usual, "refuse"):
        raise InputError(f"outside must be {usual!r} or 'refuse', got {outside!r}.", fix='Write outside = "refuse".')
    return bool(outside == "refuse")


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
    texts: dict[str, None] = {}
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
        texts[text] = None
    return tuple(texts)


def _refuse_unknown(where: str, values: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in values:
        if key not in keys:
            raise InputError(f"Unknown key {key!r} in {where}.", fix=checks.one_of(key, keys))
