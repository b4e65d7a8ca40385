"""What a declared column makes of its cells, and what a schema may say."""

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadp.app.owndata import load_schema
from adadp.app.owndata.columns import BINS, LOG_BINS, BadCell, Category, Column, Hashed, Ignored, Number, class_numbers
from adadp.app.owndata.moments import PARTS, Moment
from adadp.app.owndata.schema import parse_schema
from adadp.app.owndata.words import Embedded, Words
from adadp.app.zoo import cache_folder
from adadp.errors import InputError

finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=6)
names = st.text(min_size=1, max_size=6).map(str.strip).filter(bool)


missings = st.sampled_from([(), ("",), ("", "?")])
bins = st.lists(st.integers(2, 40), max_size=3).map(tuple)


@st.composite
def numbers(draw):
    low, high = sorted(draw(st.tuples(finite, finite).filter(lambda pair: abs(pair[0] / 2 - pair[1] / 2) > 0)))
    log, default = draw(st.booleans()), draw(st.none() | finite)
    return Number(low, high, draw(missings), draw(bins), log, default)


@st.composite
def moments(draw):
    low, high = sorted(draw(st.tuples(dates, dates).filter(lambda pair: pair[0] < pair[1])))
    parts = draw(st.lists(st.sampled_from(list(PARTS)), unique=True).map(tuple))
    return Moment(low, high, draw(missings), parts, draw(bins))


dates = st.datetimes().map(lambda moment: moment.isoformat())
categories = st.builds(
    Category, st.lists(names, min_size=1, unique=True).map(tuple), ordered=st.booleans(), default=st.none() | names
).filter(lambda column: column.default is None or column.default in column.values)
hashed = st.builds(Hashed, st.integers(1, 100), st.sampled_from([("",), ("", "NA")]))
words = st.builds(Words, st.integers(1, 50), st.integers(1, 3), st.integers(1, 5))
columns = st.one_of(numbers(), st.just(Number(missing=("",))), categories, hashed, moments(), words, st.just(Ignored()))


def features(column: Column, *cells: str) -> np.ndarray:
    """By way of float32, as a table keeps what it has read."""
    out = np.zeros((len(cells), column.width), np.float32)
    with np.errstate(over="raise"):
        column.expand(column.parse(cells).astype(np.float64 if column.private else np.float32), out)
    return out


def plain(low, high, missing=()):
    return Number(low, high, missing, bins=())


WEEKDAYS = Moment("2024-01-01", "2025-01-01", parts=("weekday",), bins=(2,))


@pytest.mark.parametrize(
    ("column", "cell", "expected"),
    [
        (plain(0, 100), "50", [0]),
        (plain(0, 100), " 75 ", [0.5]),
        (plain(0, 100), "1e9", [1]),
        (plain(0, 100), "-3.5", [-1]),
        (plain(0, 100, ("",)), "", [0, 1]),
        (plain(0, 100, ("",)), "  ", [0, 1]),
        (plain(0, 100, ("",)), "0", [-1, 0]),
        (plain(0, 100, ("", "?", "-999", "nan")), "?", [0, 1]),
        (plain(0, 100, ("", "?", "-999", "nan")), "-999", [0, 1]),
        (plain(0, 100, ("", "?", "-999", "nan")), "nan", [0, 1]),
        (plain(-1.7e308, 1.7e308), "1.7e308", [1]),
        (plain(-1.7e308, -1.6e308), "1.7e308", [1]),
        (plain(1e16, 1e16 + 2), "10000000000000002", [1]),
        (Number(0, 100, bins=(2, 4)), "0", [-1, 1, 0, 1, 0, 0, 0]),
        (Number(0, 100, bins=(2, 4)), "50", [0, 0, 1, 0, 0, 1, 0]),
        (Number(0, 100, bins=(2, 4)), "100", [1, 0, 1, 0, 0, 0, 1]),
        (Number(0, 100, ("",), bins=(2,)), "", [0, 0, 0, 1]),
        (Number(0, 100, bins=(2,), default=40), "40.0", [0, 0, 0]),
        (Number(0, 1000, bins=(3,), log=True), "0", [0, 0, 0, 0, 0]),
        (Number(0, 1000, bins=(3,), log=True), "-5", [0, 0, 0, 0, 0]),
        (Number(0, 1000, bins=(3,), log=True), "0.5", [-1, 1, 0, 0, 1]),
        (Number(0, 1000, bins=(3,), log=True), "1000", [1, 0, 0, 1, 1]),
        (Number(0, 1000, ("",), bins=(3,), log=True), "", [0, 0, 0, 0, 0, 1]),
        (Number(missing=("",)), "5", [0] * 62),
        (Number(missing=("",)), "", [0] * 61 + [1]),
        (Category(("a", "b")), "a", [1, 0, 0, 0]),
        (Category(("a", "b")), " b", [0, 1, 0, 0]),
        (Category(("a", "b")), "c", [0, 0, 1, 0]),
        (Category(("a", "b")), "", [0, 0, 0, 1]),
        (Category(("a", "b"), ("", "NA")), "NA", [0, 0, 0, 1]),
        (Category(("a", "b"), default="a"), "a", [0, 0, 0, 0]),
        (Category(("a", "b", "c"), ordered=True), "a", [1, 0, 0, 0, 0, -1]),
        (Category(("a", "b", "c"), ordered=True), "b", [0, 1, 0, 0, 0, 0]),
        (Category(("a", "b", "c"), ordered=True), "d", [0, 0, 0, 1, 0, 0]),
        (Hashed(2), "", [0, 0, 1]),
        (Hashed(2, default="paris"), "paris", [0, 0, 0]),
        (WEEKDAYS, "2024-01-01", [-1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]),
        (WEEKDAYS, "2024-01-01T00:00Z", [-1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]),
        (WEEKDAYS, "2024-01-01 02:00+02:00", [-1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]),
        (Moment("2024-01-01", "2025-01-01", ("",), ("month",), ()), "", [0] * 15 + [1]),
        (Moment("2024-01-01", "2025-01-01", ("",), (), (2,), "%d.%m.%Y"), "31.12.2030", [1, 0, 1, 0]),
        (Words(1), "", [0, 1]),
        (Words(1), "one and two", [1, 0]),
        (Words(1), "?!", [0, 0]),
        (Ignored(), "anything", []),
    ],
)
def test_a_cell_becomes_features(column, cell, expected):
    assert features(column, cell).tolist() == [expected]


def test_a_bucket_is_where_sha256_says():
    """Written out, so that no version may move it: a saved model would read its features in other places."""
    assert sha256(b"paris").hexdigest().startswith("1670f2e42fefa504")
    assert features(Hashed(1000), "paris")[0].argmax() == 0x1670F2E42FEFA504 % 1000


def cells_of(column):
    if isinstance(column, Number):
        return st.floats(allow_nan=False, allow_infinity=False).map(repr)
    return dates if isinstance(column, Moment) else texts


@pytest.mark.slow
@given(columns, st.data())
def test_features_are_bounded_and_of_their_own_cell_alone(column, data):
    cells = data.draw(st.lists(cells_of(column), min_size=1))
    together = features(column, *cells)
    assert np.abs(together).max(initial=0) <= 1
    assert np.array_equal(together, np.concatenate([features(column, cell) for cell in cells]))


@given(st.one_of(categories, hashed), texts)
def test_a_category_fills_exactly_one_slot(column, cell):
    made = features(column, cell)[:, : column.slots]
    assert made.sum() == made.max() == (cell.strip() != column.default)


@given(numbers(), finite, finite)
def test_a_number_keeps_its_order(column, one, other):
    column = replace(column, default=None, log=False)
    low, high = features(column, *map(repr, sorted((one, other))))
    assert low[0] <= high[0]
    start = 1
    for count in column.bins:
        assert low[start : start + count].argmax() <= high[start : start + count].argmax()
        start += count


@pytest.mark.parametrize(
    ("moment", "part", "slot"),
    [
        ("2024-02-01", "month", 1),
        ("2024-12-31T23:59:59.999999", "month", 11),
        ("2024-03-31", "day", 30),
        ("2024-03-01", "day", 0),
        ("2024-03-03", "weekday", 6),
        ("2024-03-03T23:59:59.999999", "weekday", 6),
        ("2024-03-03T07:00", "hour", 7),
        ("2024-03-03T06:59:59", "hour", 6),
    ],
)
def test_the_parts_of_a_date_have_slots(moment, part, slot):
    made = features(Moment("2000-01-01", "2030-01-01", parts=(part,), bins=()), moment)[0]
    assert made[3:].argmax() == slot
    assert made[3:].sum() == 1
    assert np.hypot(*made[1:3]) == pytest.approx(1)


@pytest.mark.parametrize("part", list(PARTS))
def test_every_value_of_a_part_begins_where_it_says(part):
    """The first moment of each, which float32 could round down into the one before."""
    column = Moment("2000-01-01", "2030-01-01", parts=(part,), bins=())
    each = {
        "month": [f"2024-{month:02}-01" for month in range(1, 13)],
        "day": [f"2024-01-{day:02}" for day in range(1, 32)],
        "weekday": [f"2024-01-{day:02}" for day in range(1, 8)],
        "hour": [f"2024-01-01T{hour:02}:00" for hour in range(24)],
    }[part]
    assert features(column, *each)[:, 3:].argmax(axis=1).tolist() == list(range(PARTS[part]))


def test_words_and_pairs_of_words_have_slots_and_length_one():
    made = features(Words(10_000, ngrams=2, length=3), "The cat; the CAT sat", "cat", "")
    assert [int((row > 0).sum()) for row in made] == [3, 1, 1]
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, rtol=1e-6)
    assert made[0] @ made[1] == pytest.approx(3**-0.5)
    assert made[2, -1] == 1


def test_public_word_vectors_bring_texts_together_that_say_the_same():
    if not (cache_folder() / "wordllama").exists():
        pytest.skip("the word vectors are not here")
    pytest.importorskip("tokenizers")
    cold, fever, invoice, gone = features(
        Embedded(), "high fever and a cough", "patient with raised temperature, coughing", "unpaid invoice", " "
    )
    assert cold @ fever > cold @ invoice + 0.1
    assert gone.tolist() == [0] * 256 + [1]


@pytest.mark.parametrize(
    ("column", "cell", "what"),
    [
        (Number(0, 1, strict=True), "1.5", "outside of the declared range"),
        (Number(0, 1, strict=True), "-0.5", "outside of the declared range"),
        (Category(("a",), strict=True), "secret", "none of the declared values"),
        (Moment("2000-01-01", "2001-01-01", strict=True), "2002-01-01", "outside of the declared range"),
        (Moment("2000-01-01", "2001-01-01"), "secret", "no date"),
        (Moment("2000-01-01", "2001-01-01"), "2000-02-30", "no date"),
        (Moment("2000-01-01", "2001-01-01"), "", "no date"),
        (Moment("2000-01-01", "2001-01-01", format="%d.%m.%Y"), "2000-02-03", "no date"),
        (Number(0, 1), "secret", "not a finite number"),
    ],
)
def test_what_a_column_refuses_is_named_without_its_text(column, cell, what):
    good = {Number: "0.5", Category: "a", Moment: "01.02.2000" if getattr(column, "format", None) else "2000-02-01"}
    with pytest.raises(BadCell, match=what) as caught:
        column.parse([good[type(column)], cell])
    assert caught.value.index == 1
    assert not cell or cell not in f"{caught.value.what} {caught.value.fix}"


@pytest.mark.parametrize("cell", ["abc", "1,5", "", " ", "nan", "inf", "-inf", "1e999", "0x10", "?"])
@pytest.mark.parametrize("missing", [(), ("", "NA")])
def test_what_is_not_a_number_is_named_with_its_place(cell, missing):
    if not cell.strip() and missing:
        return
    with pytest.raises(BadCell) as caught:
        Number(0, 1, missing).numbers(["1", "2", cell, "3"])
    assert caught.value.index == 2
    assert caught.value.what == ("is empty" if not cell.strip() else "is not a finite number")


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
[columns.capital]
kind = "number"
low = -1
high = 10
log = true
default = 0
outside = "refuse"
[columns.size]
kind = "category"
values = ["S", "M"]
ordered = true
default = "M"
outside = "refuse"
[columns.born]
kind = "date"
low = 1900-01-01
high = "2030-01-01"
parts = ["month"]
bins = [8]
[columns.note]
kind = "text"
buckets = 16
[columns.said]
kind = "text"
embedding = "wordllama"
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
        ("age", Number(0.0, 100.0, ("",), BINS)),
        ("wealth", Number()),
        ("job", Category(("a", "3"))),
        ("city", Hashed(64, ("", "NA"))),
        ("capital", Number(-1.0, 10.0, (), LOG_BINS, log=True, default=0.0, strict=True)),
        ("size", Category(("S", "M"), ordered=True, default="M", strict=True)),
        ("born", Moment("1900-01-01", "2030-01-01", (), ("month",), (8,))),
        ("note", Words(16)),
        ("said", Embedded()),
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
        (column(kind="number", low=0, high=1, bins=8), "bins must be a list"),
        (column(kind="number", low=0, high=1, bins=[1]), "bins must be at least 2"),
        (column(kind="number", low=0, high=1, bins=[65_537]), "bins must be at most"),
        (column(kind="number", low=0, high=1, log="yes"), "log must be true or false"),
        (column(kind="number", low=0, high=1, default="x"), "default must be a number"),
        (column(kind="number", low=0, high=1, outside="drop"), "outside must be 'clamp' or 'refuse'"),
        (column(kind="number", bounds="private", bins=[8]), "nothing but missing"),
        (column(kind="category", values=["a"], default="b"), "default is 'b', which is none of values"),
        (column(kind="category", values=["a"], outside="clamp"), "outside must be 'other' or 'refuse'"),
        (column(kind="category", buckets=3, ordered=True), "ordered is given beside buckets"),
        (column(kind="date"), "a date needs low and high"),
        (column(kind="date", low="2000-01-01", high="1999-01-01"), "low must be a date before high"),
        (column(kind="date", low="then", high="2000-01-01"), "low must be a date before high"),
        (column(kind="date", low="2000-01-01", high="2001-01-01", parts=["year"]), "parts is"),
        (column(kind="date", low="2000-01-01", high="2001-01-01", format="ISO"), "format is 'ISO'"),
        (column(kind="text", embedding="mine"), "embedding"),
        (column(kind="text", embedding="wordllama", buckets=3), "the one that is meant"),
        (column(kind="text", ngrams=0), "ngrams must be at least 1"),
        (column(kind="text", ngrams=9), "ngrams must be at most 8"),
        (column(kind="text", length=10**9), "length must be at most"),
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


def test_all_mistakes_of_a_schema_are_said_at_once():
    wrong = {
        "columns": {"age": {"kind": "number"}, "job": {"kind": "category"}, "id": {}, "ok": {"kind": "ignore"}},
        "target": {"column": 3, "classes": ["a"]},
        "file": {"delimiter": ",,"},
        "colums": {},
    }
    with pytest.raises(InputError) as caught:
        parse_schema(wrong)
    lines = str(caught.value).split("\n- ")[1:]
    said = ["Unknown key 'colums'", "'age': a number", "'job': a category", "'id': it has no", "target.column"]
    assert len(lines) == len(said) + 2
    assert all(text in line for text, line in zip(said, lines, strict=False))
    assert "'ok'" not in str(caught.value)


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
