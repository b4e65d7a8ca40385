"""The user's own data: ``table:FILE``, ``npz:FILE`` or ``images:DIR``, read whole and checked before anything is spent.

What is promised
    * Nothing that shapes features or model is inferred from a private value: types, ranges, vocabularies and classes
      are declared. What is taken from the data all the same (the size of images, the names of class folders) is listed
      in ``disclosed``; columns whose bounds are to be released stay raw until that was charged.
    * A bad cell is an error with file, row and column. It goes to the owner of the file, before any release.

What is not promised
    * The test data must be public. Accuracy on it is reported without noise. Nothing is cut off from private data.
    * A record is one row, entry or image, or all rows with one id (``unit``). Where a person has several records, the
      person is protected less.

    given                                              what happens
    =================================================  ================================================================
    a table without a schema                           an error that says how to write one
    a table without target or classes                  an error
    target and another target.column in the schema     an error: they mean two things
    target for arrays or images                        an error: those have no columns
    input_bound for a table or images                  an error: columns and pixels have a range already
    test data of another kind                          an error
    unit in an argument and another in the schema      an error: they mean two things
    unit for images                                    an error: a folder of images has no ids
    no column or array of ids, or ids missing in it    an error that names the column alone
    ids of the training data in the test data          an error that names the column alone
    test data without ids                              a note: whether it shares units is not known
    the training data as test data                     an error: accuracy on it would be an unpaid release
    test data, and x_test or DIR/test too              an error: it is not known which is meant
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from torch import Tensor

from adadp import checks
from adadp.app.owndata import tabular
from adadp.app.owndata.arrays import ArrayEncoder, check_features, declared_classes, read_arrays
from adadp.app.owndata.base import Encoder, OwnData, Path, Records
from adadp.app.owndata.images import ImageEncoder, image_encoder, split_folder
from adadp.app.owndata.mistakes import Mistakes
from adadp.app.owndata.schema import MODES, Schema, load_schema, parse_schema
from adadp.app.owndata.tabular import TableEncoder
from adadp.app.targets import Target
from adadp.app.units import NOT_COMPARED, Codes, Units, codes_of, record_of, refuse_shared
from adadp.errors import InputError
from adadp.input_bound import InputBound

KINDS = ("table", "npz", "images")


def is_own(data: str) -> bool:
    """Whether ``data`` names the user's own data, and not a data set of the catalogue."""
    return data.partition(":")[0] in KINDS and ":" in data


def load_own(
    data: str,
    *,
    target: str | None = None,
    schema: Path | None = None,
    test_data: str | None = None,
    input_bound: object = None,
    unit: str | None = None,
) -> OwnData:
    """The user's own ``data``, ``KIND:PATH``, every cell of it checked; ``test_data``, of the same kind, is public.

    ``unit`` is the column, or the array, of ids: rows with one id are one record.
    ``input_bound`` is the range that the numbers of arrays are brought into: B for [-B, B], or (low, high).
    """
    kind, path = _split(data)
    test_path = _test_path(test_data, kind, path)
    if target is not None and kind != "table":
        raise InputError(f"{data} has no columns, so `target` means nothing.", fix="Leave `target` out.")
    if input_bound is not None and kind != "npz":
        raise InputError(
            f"`input_bound` was given, and {data} needs none.",
            why="It would be ignored: columns have the low and high of the schema, and pixels lie between 0 and 1.",
            fix="Leave it out; for a table, write low and high into the schema.",
        )
    if kind == "table":
        return _load_table(path, test_path, with_unit(_table_schema(path, target, schema), unit))
    declared = with_unit((load_schema(schema) if schema is not None else Schema()).for_kind(kind), unit)
    if kind == "images":
        if declared.unit is not None:
            raise InputError(
                f"{data} has no ids, so `unit` means nothing.",
                why="An image is a record there.",
                fix="Save the images and their ids as arrays (npz), or leave `unit` out.",
            )
        return _load_images(path, test_path, declared)
    return _load_arrays(path, test_path, declared, InputBound.of(input_bound))


def check_table(
    data: Path, schema: Path, *, target: str | None = None, labelled: bool = True
) -> tuple[tuple[str, str], ...]:
    """What the columns of a table become, by name, if it fits its ``schema``; an error that lists all that is wrong.

    Not ``labelled``: a table to predict from, without the target.
    """
    path = own_path(data, "table")
    mistakes = Mistakes(f"The table {path} and the schema {schema} do not fit")
    declared = load_schema(schema, mistakes)
    with mistakes.noted():
        declared.for_kind("table")
    with mistakes.noted():
        declared = _with_target(declared, target, schema)
    classes = declared.classes
    with mistakes.noted():
        named = target or declared.target
        encoder = TableEncoder(
            declared.columns,
            named or "",
            classes or (),
            declared.delimiter,
            unit=declared.unit,
            targets=declared.targets,
        )
        told = named is not None and (classes is not None or bool(declared.targets))
        encoder.check(path, mistakes, labelled=labelled and told)
        if labelled and (codes := _units(path, encoder.unit, encoder.unit_codes(path), None, None)[0]) is not None:
            Units(codes)
    mistakes.raise_any()
    return tuple((name, column.describe()) for name, column in declared.columns)


def own_path(source: Path, kind: str) -> FilePath:
    """Where ``source`` is: a path, or ``KIND:PATH``, as data to train on is named, if that is of this ``kind``."""
    text = os.fspath(source)
    if not is_own(text) or FilePath(text).exists():
        return FilePath(text)
    named, path = _split(text)
    _same_kind(text, named, kind)
    return path


def private_positions(schema: Path) -> tuple[int, ...]:
    """Which features are the values of columns that the schema in the file ``schema`` wants private bounds for."""
    return tabular.private_positions(load_schema(schema).columns)


def encoder_from_json(values: Mapping[str, Any]) -> Encoder:
    """The encoder that ``Encoder.as_json`` wrote."""
    try:
        classes = tuple(_text(each) for each in values["classes"])
        if values["kind"] == "table":
            file = {} if values["delimiter"] is None else {"delimiter": values["delimiter"]}
            about = {"target": {"column": values["target"]}, "file": file}
            about |= {} if values.get("unit") is None else {"unit": {"column": values["unit"]}}
            schema = parse_schema({"columns": dict(values["columns"]), **about})
            targets = tuple(map(Target.from_json, values.get("targets", ())))
            target, unit = _text(values["target"]), schema.unit
            return TableEncoder(schema.columns, target, classes, schema.delimiter, unit=unit, targets=targets)
        if values["kind"] == "npz":
            low, high = values.get("bound", (-checks.LARGEST_INPUT, checks.LARGEST_INPUT))  # none in older files
            shape = tuple(checks.count("shape", each) for each in values["shape"])
            return ArrayEncoder(shape, bool(values["pixels"]), classes, checks.input_bound([low, high]))
        if values["kind"] == "images":
            height, width = (checks.count("size", each) for each in values["size"])
            mode, (resize, convert) = values["mode"], (bool(values[name]) for name in ("resize", "convert"))
            if mode not in MODES:
                raise ValueError(f"its mode is {mode!r}")
            return ImageEncoder((height, width), mode, classes, resize, convert)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"This is not an encoder of AdaDP: {error}.", fix="Use the file a run has saved.") from error
    raise InputError(f"Unknown kind of encoder {values['kind']!r}.", fix=f"This version reads {', '.join(KINDS)}.")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _load_table(path: FilePath, test_path: FilePath | None, schema: Schema) -> OwnData:
    assert schema.target is not None
    classes = schema.classes or ()
    encoder = TableEncoder(
        schema.columns, schema.target, classes, schema.delimiter, unit=schema.unit, targets=schema.targets
    )
    train = encoder.stored(path)
    test = encoder.read_labelled(test_path) if test_path is not None else None
    codes = encoder.unit_codes(path)
    units, notes = _units(path, schema.unit, codes, None if test_path is None else encoder.unit_codes(test_path), test)
    learned = [f"The classes are declared: {', '.join(classes)}."] if classes else []
    learned += [f"The target {each.name}: {each.describe()}, as declared." for each in schema.targets]
    columns = (f"Column {name}: {column.describe()}, as declared." for name, column in schema.columns)
    return OwnData(
        train=train,
        test=test,
        record=f"one row of {path.name}" if schema.unit is None else record_of(schema.unit, path.name),
        disclosed=notes,
        public=(*learned, *columns),
        encoder=encoder,
        units=units,
    )


def _load_arrays(path: FilePath, test_path: FilePath | None, schema: Schema, bound: InputBound) -> OwnData:
    unit, unit_test = schema.unit, f"{schema.unit}_test"
    more = () if unit is None else (unit, unit_test)
    arrays = read_arrays(path, ("x", "y"), ("classes", "x_test", "y_test", *more))
    classes = declared_classes(path, arrays, schema.classes)
    x = check_features(path, "x", arrays["x"])
    encoder = ArrayEncoder(x.shape[1:], x.dtype == "uint8", classes, (bound.low, bound.high))
    inside = [name for name in ("x_test", "y_test") if name in arrays]
    if len(inside) == 1:
        raise InputError(f"{path} has {inside[0]} alone.", fix="Save both x_test and y_test, or neither.")
    _one_test(test_path, f"{path} has {inside[0]}" if inside else None)
    test = encoder.read_labelled(test_path) if test_path is not None else None
    test = encoder.labelled(path, arrays, "_test") if inside else test
    test_ids = arrays.get(unit_test)
    if unit is not None and test_path is not None:
        test_ids = read_arrays(test_path, (), (unit,)).get(unit)
    codes, test_codes = (
        None if unit is None or ids is None else codes_of(ids, unit) for ids in (arrays.get(unit or ""), test_ids)
    )
    units, notes = _units(path, unit, codes, test_codes, test)
    return OwnData(
        train=encoder.labelled(path, arrays),
        test=test,
        record=f"one entry of the array x of {path.name}" if unit is None else record_of(unit, path.name),
        disclosed=(
            *notes,
            f"The shape {encoder.shape} and the type {x.dtype} of a record of {path.name}.",
        ),
        public=(
            f"The classes are declared: {', '.join(classes)}.",
            *(["Bytes are divided by 255."] if encoder.pixels else []),
            f"Every number of a record was brought into {bound.interval}; NaN and infinity are refused.",
        ),
        encoder=encoder,
        units=units,
    )


def _load_images(path: FilePath, test_path: FilePath | None, schema: Schema) -> OwnData:
    folder, test_folder = split_folder(path)
    encoder = image_encoder(folder, schema)
    _one_test(test_path, f"{test_folder} exists" if test_folder is not None else None)
    if test_path is not None:
        _refuse_same(folder, test_path)
    test_folder = test_folder or test_path
    height, width = encoder.size
    facts = (
        (schema.classes is not None, f"The classes are {', '.join(encoder.class_names)}."),
        (encoder.resize, f"Images are {height} x {width} (height x width)."),
        (encoder.convert, f"Images are of mode {encoder.mode}."),
    )
    return OwnData(
        train=encoder.read_labelled(folder),
        test=encoder.read_labelled(test_folder) if test_folder is not None else None,
        record=f"one image of {path.resolve().name}",
        disclosed=tuple(f"{text} Taken from the folder, not declared." for declared, text in facts if not declared),
        public=(*(f"{text} Declared." for declared, text in facts if declared), "Pixels are divided by 255."),
        encoder=encoder,
    )


def with_unit(schema: Schema, unit: str | None) -> Schema:
    """``schema`` with the ``unit``; an error if it names another one."""
    if unit is not None and schema.unit not in (None, unit):
        raise InputError(
            f"`unit` is {unit!r}, and the schema says {schema.unit!r}.",
            why="The guarantee is about one of the two.",
            fix="Leave one of them out.",
        )
    return replace(schema, unit=unit or schema.unit)


def _units(
    path: FilePath, unit: str | None, codes: Codes | None, test_codes: Codes | None, test: Records | None
) -> tuple[Tensor | None, tuple[str, ...]]:
    """The unit of each row, and what must be said about those of the test data."""
    if unit is None:
        return None, ()
    if codes is None:
        raise InputError(
            f"{path} has no column {unit!r}, which `unit` names.",
            why="It says which rows belong together.",
            fix="Name the column that holds the ids.",
        )
    numbers, known = codes
    if test is None:
        return numbers, ()
    if test_codes is None:
        return numbers, (NOT_COMPARED,)
    refuse_shared(known, test_codes[1], unit)
    return numbers, ()


def _table_schema(path: FilePath, target: str | None, file: Path | None) -> Schema:
    if file is None:
        raise InputError(
            f"The table {path} needs a schema.",
            why="What columns mean, their ranges and the classes must be declared; read from the data they would be a "
            "release.",
            fix=f"Run adadp data schema {path} > schema.toml, fill it in, and pass it as `schema`.",
        )
    return _with_target(load_schema(file).for_kind("table"), target, file)


def _with_target(schema: Schema, target: str | None, file: Path) -> Schema:
    if target is not None and schema.target not in (None, target):
        raise InputError(
            f"`target` is {target!r}, and the schema {file} says {schema.target!r}.",
            why="Its classes belong to one of the two.",
            fix="Leave one of them out.",
        )
    named = target or schema.target
    if named is None or (schema.classes is None and not schema.targets):
        absent = "target.column" if named is None else "target.classes"
        raise InputError(
            f"The schema {file} has no {absent}.",
            why="What is predicted, and its classes, are not guessed from the data.",
            fix='Write [target] with column = "income" and classes = ["<=50K", ">50K"], every class there may be; or '
            'with kind = "number", low and high.',
        )
    return replace(schema, target=named)


def _split(data: str) -> tuple[str, FilePath]:
    kind, _, path = data.partition(":")
    if kind not in KINDS or not path:
        raise InputError(f"Unknown data {data!r}.", fix="Write table:FILE, npz:FILE or images:DIR.")
    return kind, FilePath(path)


def _test_path(test_data: str | None, kind: str, path: FilePath) -> FilePath | None:
    if test_data is None:
        return None
    test_kind, test_path = _split(test_data)
    _same_kind(test_data, test_kind, kind)
    _refuse_same(path, test_path)
    return test_path


def _refuse_same(path: FilePath, test_path: FilePath) -> None:
    if test_path.exists() and path.exists() and os.path.samefile(path, test_path):
        raise InputError(
            f"The test data {test_path} is the training data.",
            why="Accuracy is reported without noise: on private records it would be a release nobody pays for.",
            fix="Give public test data, or none.",
        )


def _same_kind(data: str, kind: str, expected: str) -> None:
    if kind != expected:
        raise InputError(f"{data} is not of the kind {expected}, which is needed here.", fix=f"Use {expected}:PATH.")


def _one_test(test_path: FilePath | None, inside: str | None) -> None:
    if test_path is not None and inside is not None:
        raise InputError(
            f"There are two test sets: {inside}, and {test_path} is given.",
            why="It is not known which is meant.",
            fix="Leave `test_data` out, or take the other one away.",
        )
