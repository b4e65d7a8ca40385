"""What a declared column makes of its cells, and what a schema may say."""

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadp.app.owndata import load_schema
from adadp.app.owndata.columns import BadCell, Category, Column, Hashed, Ignored, Number, class_numbers
from adadp.app.owndata.schema import parse_schema
from adadp.errors import InputError

finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=6)
names = st.text(min_size=1, max_size=6).map(str.strip).filter(bool)


@st.composite
def numbers(draw):
    low, high = sorted(draw(st.tuples(finite, finite).filter(lambda pair: abs(pair[0] / 2 - pair[1] / 2) > 0)))
    return Number(low, high, draw(st.sampled_from([(), ("",), ("", "?")])))


categories = st.builds(Category, st.lists(names, min_size=1, unique=True).map(tuple))
hashed = st.builds(Hashed, st.integers(1, 100), st.sampled_from([("",), ("", "NA")]))
columns = st.one_of(numbers(), st.just(Number(missing=("",))), categories, hashed, st.just(Ignored()))


def features(column: Column, *cells: str) -> np.ndarray:
    out = np.zeros((len(cells), column.width), np.float32)
    with np.errstate(over="raise"):
        column.fill(cells, out)
    return out


@pytest.mark.parametrize(
    ("column", "cell", "expected"),
    [
        (Number(0, 100), "50", [0]),
        (Number(0, 100), " 75 ", [0.5]),
        (Number(0, 100), "1e9", [1]),
        (Number(0, 100), "-3.5", [-1]),
        (Number(0, 100, ("",)), "", [0, 1]),
        (Number(0, 100, ("",)), "  ", [0, 1]),
        (Number(0, 100, ("",)), "0", [-1, 0]),
        (Number(0, 100, ("", "?", "-999", "nan")), "?", [0, 1]),
        (Number(0, 100, ("", "?", "-999", "nan")), "-999", [0, 1]),
        (Number(0, 100, ("", "?", "-999", "nan")), "nan", [0, 1]),
        (Number(-1.7e308, 1.7e308), "1.7e308", [1]),
        (Number(-1.7e308, -1.6e308), "1.7e308", [1]),
        (Number(1e16, 1e16 + 2), "10000000000000002", [1]),
        (Number(missing=("",)), "5", [0, 0]),
        (Number(missing=("",)), "", [0, 1]),
        (Category(("a", "b")), "a", [1, 0, 0, 0]),
        (Category(("a", "b")), " b", [0, 1, 0, 0]),
        (Category(("a", "b")), "c", [0, 0, 1, 0]),
        (Category(("a", "b")), "", [0, 0, 0, 1]),
        (Category(("a", "b"), ("", "NA")), "NA", [0, 0, 0, 1]),
        (Hashed(2), "", [0, 0, 1]),
        (Ignored(), "anything", []),
    ],
)
def test_a_cell_becomes_features(column, cell, expected):
    assert features(column, cell).tolist() == [expected]


def test_a_bucket_is_where_sha256_says():
    """Written out, so that no version may move it: a saved model would read its features in other places."""
    assert sha256(b"paris").hexdigest().startswith("1670f2e42fefa504")
    assert features(Hashed(1000), "paris")[0].argmax() == 0x1670F2E42FEFA504 % 1000


@pytest.mark.slow
@given(columns, st.data())
def test_features_are_bounded_and_of_their_own_cell_alone(column, data):
    cell = st.floats(allow_nan=False, allow_infinity=False).map(repr) if isinstance(column, Number) else texts
    cells = data.draw(st.lists(cell, min_size=1))
    together = features(column, *cells)
    assert np.abs(together).max(initial=0) <= 1
    assert np.array_equal(together, np.concatenate([features(column, cell) for cell in cells]))


@given(st.one_of(categories, hashed), texts)
def test_a_category_fills_exactly_one_slot(column, cell):
    made = features(column, cell)
    assert made.sum() == made.max() == 1


@given(numbers(), finite, finite)
def test_a_number_keeps_its_order(column, one, other):
    low, high = features(column, *map(repr, sorted((one, other))))[:, 0]
    assert low <= high


@pytest.mark.parametrize("cell", ["abc", "1,5", "", " ", "nan", "inf", "-inf", "1e999", "0x10", "?"])
@pytest.mark.parametrize("missing", [(), ("", "NA")])
def test_what_is_not_a_number_is_named_with_its_place(cell, missing):
    if not cell.strip() and missing:
        return
    with pytest.raises(BadCell) as caught:
        Number(0, 1, missing).numbers(["1", "2", cell, "3"])
    assert caught.value.index == 2
    assert ("empty" if not cell.strip() else repr(cell)) in caught.value.what


def test_classes_are_numbered_as_declared():
    assert class_numbers(["b", " a", "b "], ("a", "b")).tolist() == [1, 0, 1]


@pytest.mark.parametrize("cell", ["", "c", "A"])
def test_a_target_that_is_no_class_is_named_with_its_place(cell):
    with pytest.raises(BadCell, match="none of the classes a, b") as caught:
        class_numbers(["a", "b", cell, "x"], ("a", "b"))
    assert caught.value.index == 2


SCHEMA = """
[target]
column = "income"
classes = ["<=50K", ">50K"]
[columns.age]
kind = "number"
low = 0
high = 100
missing = true
[columns.wealth]
kind = "number"
bounds = "private"
[columns.job]
kind = "category"
values = ["a", 3]
[columns.city]
kind = "category"
buckets = 64
missing = ["NA", ""]
[columns.id]
kind = "ignore"
[file]
delimiter = ";"
"""


def test_a_schema_is_read(tmp_path):
    path = tmp_path / "people.toml"
    path.write_text("\ufeff" + SCHEMA, encoding="utf-8")
    schema = load_schema(path)
    assert schema.columns == (
        ("age", Number(0.0, 100.0, ("",))),
        ("wealth", Number()),
        ("job", Category(("a", "3"))),
        ("city", Hashed(64, ("", "NA"))),
        ("id", Ignored()),
    )
    assert (schema.target, schema.classes, schema.delimiter) == ("income", ("<=50K", ">50K"), ";")


@pytest.mark.slow
@given(st.dictionaries(texts, columns))
def test_declarations_are_read_back(declared):
    written = {name: column.as_dict() for name, column in declared.items()}
    assert parse_schema({"columns": written}).columns == tuple(declared.items())


def test_the_number_of_classes_names_them():
    assert parse_schema({"target": {"classes": 3}}).classes == ("0", "1", "2")


def column(**declared):
    return {"columns": {"age": declared}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"colums": {}}, "Unknown key 'colums'.*Did you mean columns"),
        ({"target": {"clases": 2}}, "Unknown key 'clases'.*classes"),
        ({"target": 3}, "target must be a section"),
        ({"columns": 3}, "columns must be a section"),
        ({"columns": {"age": 3}}, "'age': it has no kind"),
        (column(), "'age': it has no kind.*Write kind"),
        (column(kind="integer"), "unknown kind 'integer'.*Write kind"),
        (column(kind="number", low=0), "needs low and high.*private"),
        (column(kind="number", low=1, high=1), "low must be less than high"),
        (column(kind="number", low=2, high=1), "low must be less than high"),
        (column(kind="number", low=0, high=5e-324), "low must be less than high"),
        (column(kind="number", low=0, high=float("nan")), "high must be finite"),
        (column(kind="number", low=float("-inf"), high=0), "low must be finite"),
        (column(kind="number", low=0, high=10**400), "high must be finite"),
        (column(kind="number", low="0", high=1), "low must be a number"),
        (column(kind="number", low=False, high=1), "low must be a number"),
        (column(kind="number", bounds="auto"), "low and high, or bounds"),
        (column(kind="number", bounds="private", low=0), "low and high, or bounds"),
        (column(kind="number", low=0, high=1, values=["a"]), "Unknown key 'values'"),
        (column(kind="number", low=0, high=1, missing="?"), "missing must be a list"),
        (column(kind="category"), "values or buckets"),
        (column(kind="category", values=["a"], buckets=3), "values or buckets"),
        (column(kind="category", values=[]), "values must be a list"),
        (column(kind="category", values=["a", "a"]), "'a' is twice"),
        (column(kind="category", values=["3", 3]), "'3' is twice"),
        (column(kind="category", values=[" a"]), "spaces around"),
        (column(kind="category", values=[""]), "empty"),
        (column(kind="category", values=[1.5]), "not a text"),
        (column(kind="category", values=[True]), "not a text"),
        (column(kind="category", buckets=0), "buckets must be at least 1"),
        (column(kind="category", buckets=10**6), "buckets must be at most"),
        (column(kind="ignore", low=0), "Unknown key 'low'"),
        ({"target": {"classes": ["a"]}}, "at least two"),
        ({"target": {"classes": 1}}, "at least 2"),
        ({"target": {"classes": "ab"}}, "classes must be a list"),
        ({"target": {"column": " "}}, "target.column"),
        ({"file": {"delimiter": ",,"}}, "one character"),
        ({"images": {"size": [32]}}, "images.size"),
        ({"images": {"size": [32, 0]}}, "images.size must be at least 1"),
        ({"images": {"mode": "RGBA"}}, "images.mode"),
    ],
)
def test_a_wrong_schema_is_explained(values, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        parse_schema(values)


def test_an_error_in_a_schema_names_its_file(tmp_path):
    path = tmp_path / "people.toml"
    with pytest.raises(InputError, match=r"people\.toml cannot be read"):
        load_schema(path)
    path.write_text("[columns", encoding="utf-8")
    with pytest.raises(InputError, match=r"people\.toml is not TOML"):
        load_schema(path)
    path.write_text("[columns.age]\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"In the schema .*people\.toml: Column 'age'"):
        load_schema(path)


@pytest.mark.parametrize(
    ("values", "kind", "unused"),
    [
        ({"images": {"size": [2, 2]}}, "table", "size"),
        ({"columns": {"a": {"kind": "ignore"}}}, "npz", "columns"),
        ({"target": {"column": "a"}}, "images", "target"),
    ],
)
def test_a_part_that_is_not_used_is_refused(values, kind, unused):
    with pytest.raises(InputError, match=f"declares {unused}, which {kind} data has no use for"):
        parse_schema(values).for_kind(kind)
