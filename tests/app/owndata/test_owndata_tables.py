"""Tables: reading text and Parquet, what is wrong with a file, and the whole way from a file to tensors."""

import csv
import importlib.resources
import json
import re
import sys
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adadp.app import zoo
from adadp.app.cli import main
from adadp.app.config import TrainConfig
from adadp.app.features.private_bounds import Bounds
from adadp.app.owndata import (
    draft_schema,
    encoder_from_json,
    is_own,
    load_own,
    load_schema,
    private_positions,
    spool,
    tables,
    tabular,
)
from adadp.app.owndata.columns import BINS
from adadp.app.owndata.tables import open_table
from adadp.app.start import start
from adadp.errors import InputError
from adadp.records import Stored

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = """
[target]
column = "income"
classes = ["low", "high"]
[columns.age]
kind = "number"
low = 0
high = 100
bins = []
[columns.job]
kind = "category"
values = ["clerk"]
[columns.id]
kind = "ignore"
"""

PEOPLE = "id,age,job,income\n1,50,clerk,low\n2,100,cook,high\n3,0,,low\n"

MARKS = ["clump", "size", "shape", "adhesion", "epithelial", "nuclei", "chromatin", "nucleoli", "mitoses"]

cells = st.text(max_size=6)
names = st.text(min_size=1, max_size=6).map(str.strip).filter(bool)


@pytest.fixture
def people(tmp_path):
    """A function that writes a table and its schema and loads them."""

    def load(text=PEOPLE, *, schema=SCHEMA, name="people.csv", **options):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        (tmp_path / "people.toml").write_text(schema, encoding="utf-8")
        return load_own(f"table:{tmp_path / name}", schema=tmp_path / "people.toml", **options)

    return load


def of_length_one(*rows):
    return torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float32))


def test_a_table_becomes_features_and_labels(people):
    data = people()
    features, labels = data.train
    torch.testing.assert_close(features, of_length_one([0, 1, 0, 0, 1], [1, 0, 1, 0, 1], [-1, 0, 0, 1, 1]))
    assert (features.dtype, labels.dtype, labels.tolist()) == (torch.float32, torch.int64, [0, 1, 0])
    assert (data.class_names, data.test) == (("low", "high"), None)
    assert data.record == "one row of people.csv"
    assert data.disclosed == ()
    assert data.public == (
        "The classes are declared: low, high.",
        "Column age: a number, clamped to [0, 100], as declared.",
        "Column job: one of clerk, other or missing, as declared.",
        "Column id: not used, as declared.",
    )


def test_no_record_is_printed(people):
    assert "tensor" not in repr(people(schema=SCHEMA.replace("low = 0\nhigh = 100\nbins = []", 'bounds = "private"')))


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + PEOPLE,
        PEOPLE.replace("\n", "\r\n"),
        PEOPLE.replace("\n", "\n\n"),
        PEOPLE.replace(",", " , "),
        PEOPLE.rstrip("\n"),
        PEOPLE.replace("clerk", '"clerk"').replace("cook", '"a\n""cook"", in\nlines"'),
        "income,job,age\nlow,clerk,50\nhigh,cook,100\nlow,,0\n",
    ],
    ids=["byte order mark", "windows", "empty lines", "spaces", "no last newline", "quotes", "order, id left out"],
)
def test_the_same_table_written_otherwise(people, text):
    expected, found = people(), people(text)
    assert torch.equal(found.train[0], expected.train[0])
    assert torch.equal(found.train[1], expected.train[1])


@pytest.mark.parametrize(("delimiter", "name"), [(";", "people.csv"), ("\t", "people.tsv"), ("\t", "people.txt")])
def test_other_delimiters(people, delimiter, name):
    schema = SCHEMA if name.endswith("tsv") else f"{SCHEMA}[file]\ndelimiter = {json.dumps(delimiter)}\n"
    assert torch.equal(people(PEOPLE.replace(",", delimiter), schema=schema, name=name).train[0], people().train[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "people.csv is empty"),
        ("\n\n", "people.csv is empty"),
        ("id,age,job,income\n", "people.csv has no rows"),
        ("id,age,job,job,income\n", "two columns called 'job'.*no header"),
        ("id,age, job,job,income\n", "two columns called 'job'"),
        (",age,job,income\n0,1,a,low\n", "Column 1 of .*people.csv has no name.*index=False"),
        ("id,age,job\n1,2,a\n", "no column 'income', which is the target.*id, age, job"),
        ("id,ages,job,income\n1,2,a,low\n", "no column 'age', which is declared.*Did you mean ages"),
        ("id;age;job;income\n1;2;a;low\n", "no column 'age'.*delimiter"),
        ("id,age,job,town,income\n1,2,a,x,low\n", "has a column 'town', which the schema does not.*\"ignore\""),
        (PEOPLE + "4,5,clerk\n", "people.csv, line 5: 3 cells, and the header has 4"),
        (PEOPLE + "4,5,clerk,low,\n", "people.csv, line 5: 5 cells, and the header has 4"),
        (PEOPLE + '4,5,"cl\nerk",low\n5,6\n', "people.csv, line 7: 2 cells"),
        (PEOPLE + "4,old,clerk,low\n", "people.csv, line 5, column 'age': the cell is not a finite number"),
        (PEOPLE + '\n4,1,"\n\n",low\n5,old,clerk,low\n', "people.csv, line 9, column 'age'"),
        (PEOPLE + "4,,clerk,low\n", "line 5, column 'age': the cell is empty.*missing = true"),
        (PEOPLE + "4,5,clerk,medium\n", "line 5, column 'income': the cell is none of the classes low, high"),
        (PEOPLE + "4,5,clerk,\n", "line 5, column 'income': the cell is none of the classes"),
        (PEOPLE + '4,5,"clerk,low\n6,7,clerk,low\n', "line 5: the row that begins here cannot be read"),
        (PEOPLE + '4,5,"cl"erk,low\n', "line 5: the row that begins here cannot be read"),
        (PEOPLE.encode() + b"4,5,caf\xe9,low\n", "people.csv, line 5: not UTF-8"),
        (PEOPLE.encode("utf-16"), "people.csv, line 1: not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_table_is_named_with_its_place(people, text, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        people(text)


def test_the_line_is_right_far_into_a_file(people):
    rows = 3 * tables.ROWS_AT_ONCE
    text = "id,age,job,income\n" + "1,2,clerk,low\n" * rows
    assert len(people(text).train[1]) == rows
    with pytest.raises(InputError, match=f"line {rows + 2}, column 'age'"):
        people(text + "1,x,clerk,low\n")
    with pytest.raises(InputError, match=f"line {rows + 2}: 1 cells"):
        people(text + "1\n")


@given(st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=5), st.sampled_from([1, 2, 1024]))
def test_whatever_the_csv_module_writes_is_read_back(tmp_path_factory, rows, at_once):
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c"], *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "ROWS_AT_ONCE", at_once)
        table = open_table(path)
        read = [row for a, c in table.chunks(["a", "c"]) for row in zip(a, c, strict=True)]
    assert read == [(row[0], row[2]) for row in rows]


@pytest.mark.parametrize(("name", "message"), [("absent.csv", "does not exist"), (".", "is a folder")])
def test_a_table_that_is_not_there(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        open_table(tmp_path / name)


def test_a_table_needs_a_schema(tmp_path):
    with pytest.raises(InputError, match=r"needs a schema.*adadp data schema"):
        load_own(f"table:{tmp_path / 'people.csv'}")


def test_test_data_is_read_the_same_way(people, tmp_path):
    (tmp_path / "public.csv").write_text("income,age,job\nhigh,25,clerk\n", encoding="utf-8")
    features, labels = people(test_data=f"table:{tmp_path / 'public.csv'}").test
    torch.testing.assert_close(features, of_length_one([-0.5, 1, 0, 0, 1]))
    assert labels.tolist() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "age"}, "target is 'age', and the schema .* says 'income'"),
        ({"test_data": "npz:people.npz"}, "not of the kind table"),
        ({"test_data": "people.csv"}, "Unknown data 'people.csv'"),
        ({"test_data": "table:"}, "Unknown data"),
    ],
)
def test_options_that_mean_nothing_are_refused(people, options, message):
    with pytest.raises(InputError, match=message):
        people(**options)


def test_private_records_do_not_test(people, tmp_path):
    with pytest.raises(InputError, match=r"is the training data.*nobody pays"):
        people(test_data=f"table:{tmp_path / '.' / 'people.csv'}")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (SCHEMA.replace('column = "income"\n', ""), "no target.column"),
        (SCHEMA.replace('classes = ["low", "high"]\n', ""), "no target.classes"),
        (SCHEMA + '[columns.income]\nkind = "ignore"\n', "'income' is the target and one of the columns"),
        (SCHEMA[: SCHEMA.index("[columns.age]")], "no column that is used"),
    ],
)
def test_a_schema_that_a_table_cannot_use(people, schema, message):
    with pytest.raises(InputError, match=message):
        people(schema=schema)


def test_the_target_may_be_given_apart(people):
    schema = SCHEMA.replace('column = "income"\n', "")
    assert torch.equal(people(schema=schema, target="income").train[1], people(target="income").train[1])


def test_the_cancer_data_read_as_a_users_table_is_that_of_the_zoo(tmp_path):
    """The rows without a missing mark are the same, and a missing mark has a feature of its own."""
    raw = importlib.resources.files(zoo).joinpath("files/breast-cancer-wisconsin.data").read_text(encoding="ascii")
    (tmp_path / "cancer.csv").write_text(",".join(["id", *MARKS, "class"]) + "\n" + raw, encoding="ascii")
    kind = '{kind = "number", low = 1, high = 10, bins = [], missing = ["?"]}'
    marks = "".join(f"{mark} = {kind}\n" for mark in MARKS)
    schema = f'[target]\ncolumn = "class"\nclasses = [2, 4]\n[columns]\nid = {{kind = "ignore"}}\n{marks}'
    (tmp_path / "cancer.toml").write_text(schema, encoding="ascii")
    features, labels = load_own(f"table:{tmp_path / 'cancer.csv'}", schema=tmp_path / "cancer.toml").train
    features = (features[:, :-1] / features[:, -1:]).round(decimals=5)  # of a length of their own again
    whole = features[:, 1::2].sum(dim=1) == 0
    assert (len(features), int((~whole).sum())) == (699, 16)
    mine = torch.cat([features[whole, ::2], labels[whole, None]], dim=1)
    data = zoo.load("cancer")
    theirs = torch.cat([torch.cat([records[0], records[1][:, None]], dim=1) for records in (data.train, data.test)])
    rows = [np.array(sorted(table.tolist())) for table in (mine, theirs)]
    np.testing.assert_allclose(*rows, atol=1e-5)


PRIVATE = SCHEMA.replace("low = 0\nhigh = 100\nbins = []", 'bounds = "private"\nmissing = true')


def test_columns_with_private_bounds_stay_raw_behind_the_features(people, tmp_path):
    (tmp_path / "public.csv").write_text("income,age,job\nhigh,75,clerk\nlow,,clerk\n", encoding="utf-8")
    data = people(PEOPLE + "4,,clerk,low\n", schema=PRIVATE, test_data=f"table:{tmp_path / 'public.csv'}")
    assert data.encoder.private_columns == ("age",)
    values = data.train[0]
    assert (values.dtype, data.encoder.shape) == (torch.float64, (67,))
    assert values[:, :61].tolist() == [[0] * 61] * 4
    assert values[:3, -1].tolist() == [50, 100, 0]
    assert values[3, -1].isnan()
    assert "Column age: a number, clamped to its bounds, which are released privately" in data.public[1]
    expected = [[0, 1, 0, 0, 1, 75], [1, 1, 0, 0, 1, -1]]
    for records in (data.encoder.read(tmp_path / "public.csv"), data.test[0]):
        assert records[:, 61:].nan_to_num(-1).tolist() == expected
    assert private_positions(tmp_path / "people.toml") == (0,)


COLUMNS = [
    '{kind = "ignore"}',
    '{kind = "number", low = 0, high = 1}',
    '{kind = "number", low = 0, high = 1, missing = true}',
    '{kind = "number", bounds = "private"}',
    '{kind = "number", bounds = "private", missing = true}',
    '{kind = "category", values = ["a", "b", "c"]}',
    '{kind = "category", buckets = 5}',
    '{kind = "date", low = 2000-01-01, high = 2001-01-01, missing = ["0.25", "7"]}',
]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(COLUMNS), max_size=6), st.floats(-100, 100), st.floats(0.1, 100))
def test_released_bounds_do_what_declared_ones_do(people, kinds, low, width):
    """Columns in any order: the stage makes of raw values what the same bounds make of them when they are declared."""
    kinds = [*kinds, COLUMNS[3]]
    header = ",".join(["income", *(f"c{number}" for number in range(len(kinds)))])
    text = f"{header}\nlow{',0.25' * len(kinds)}\nhigh{',7' * len(kinds)}\n"
    target = '[target]\ncolumn = "income"\nclasses = ["low", "high"]\n[columns]\n'
    lines = [f"c{number} = {kind}" for number, kind in enumerate(kinds)]
    pending = people(text, schema=target + "\n".join(lines))
    declared = people(
        text, schema=target + "\n".join(lines).replace('bounds = "private"', f"low = {low}, high = {low + width}")
    )
    private = pending.encoder.private_columns
    assert pending.encoder.shape == (declared.train[0].shape[1] + len(private),)
    ranges = torch.tensor([[low, low + width]] * len(private), dtype=torch.float64)
    stage = Bounds(tabular.private_positions(pending.encoder.columns), bins=BINS, unit=True)
    scaled = stage.apply(pending.train[0], {"ranges": ranges})
    torch.testing.assert_close(scaled, declared.train[0], rtol=0, atol=1e-6)


def test_prediction_needs_no_target_and_keeps_the_features(people, tmp_path):
    data = people()
    text = json.dumps(data.encoder.as_json(), sort_keys=True)
    encoder = encoder_from_json(json.loads(text))
    assert encoder == data.encoder
    path = tmp_path / "new.csv"
    path.write_text("job,age\ncook,100\n", encoding="utf-8")
    torch.testing.assert_close(encoder.read(path), of_length_one([1, 0, 1, 0, 1]))
    with pytest.raises(InputError, match="no column 'income'"):
        encoder.read_labelled(path)
    path.write_text("job,age,income\ncook,100,unheard of\n", encoding="utf-8")
    assert torch.equal(encoder.read(path), encoder.read(path)), "the target is not looked at"


@pytest.mark.parametrize("values", [{}, {"kind": "table", "classes": []}, {"kind": "npz", "classes": 3}])
def test_what_is_no_encoder_is_refused(values):
    with pytest.raises(InputError, match="not an encoder"):
        encoder_from_json(values)
    with pytest.raises(InputError, match="Unknown kind of encoder 'audio'"):
        encoder_from_json({"kind": "audio", "classes": []})


def test_own_data_is_told_apart():
    assert all(is_own(data) for data in ("table:a.csv", "npz:a:b", "images:."))
    assert not any(is_own(data) for data in ("mnist", "table", "csv:a", ""))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(names, min_size=2, max_size=5, unique=True))
def test_a_draft_names_the_columns_and_becomes_a_schema(tmp_path, header):
    path = tmp_path / "drafted.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow(header)
    draft = draft_schema(path)
    assert list(tomllib.loads(draft)["columns"]) == header
    assert len(draft.split("\n[columns]\n")[1].rstrip("\n").split("\n")) == len(header)
    chosen = draft.replace('{kind = ""}', '{kind = "ignore"}').replace('column = ""\n', "").replace("classes = []", "")
    (tmp_path / "drafted.toml").write_bytes(re.sub('(?m)^column = "".*$', "", chosen).encode())
    assert [name for name, _ in load_schema(tmp_path / "drafted.toml").columns] == header


def test_a_draft_looks_at_no_value(tmp_path):
    """Not even far enough to see that the rows cannot be read."""
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE + '1,"2"3\n1,"2', encoding="utf-8")
    with_rows = draft_schema(path)
    path.write_text(PEOPLE.splitlines()[0], encoding="utf-8")
    assert with_rows == draft_schema(path)
    assert "clerk" not in with_rows


def test_a_draft_finds_the_delimiter_in_the_header(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE.replace(",", ";"), encoding="utf-8")
    assert 'delimiter = ";"' in draft_schema(path)
    assert "\nage = " in draft_schema(path)


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "people.parquet"
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"needs pyarrow.*adadp\[table\]"):
        open_table(path)


def test_parquet_is_read_as_the_same_table(people, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    text = "age,job,income,id\n50,3,low,x\n,,high,y\n0.5,4,low,z\n"
    schema = SCHEMA.replace("high = 100", "high = 100\nmissing = true").replace('"clerk"', '"3"')
    expected = people(text, schema=schema)
    columns = {
        "age": pyarrow.array([50.0, float("nan"), 0.5]),
        "job": pyarrow.array([3.0, None, 4.0]),
        "income": pyarrow.array(["low", "high", "low"]).dictionary_encode(),
        "id": pyarrow.array([b"x", b"y", b"z"]),
    }
    path = tmp_path / "people.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    found = load_own(f"table:{path}", schema=tmp_path / "people.toml")
    assert torch.equal(found.train[0], expected.train[0])
    assert torch.equal(found.train[1], expected.train[1])
    kinds = {name: column["kind"] for name, column in tomllib.loads(draft_schema(path))["columns"].items()}
    assert kinds == {"age": "number", "job": "number", "income": "", "id": ""}

    parquet.write_table(pyarrow.table(columns | {"age": ["1", "2", "old"]}), path)
    with pytest.raises(InputError, match=r"people\.parquet, row 3, column 'age': the cell is not a finite number"):
        load_own(f"table:{path}", schema=tmp_path / "people.toml")
    parquet.write_table(pyarrow.table(columns | {"age": [[1], [2], [3]]}), path)
    with pytest.raises(InputError, match=r"'age' of .* is of type list"):
        load_own(f"table:{path}", schema=tmp_path / "people.toml")
    path.write_bytes(b"age,job\n")
    with pytest.raises(InputError, match="is not a Parquet file"):
        load_own(f"table:{path}", schema=tmp_path / "people.toml")


SECRETS = """id,age,job,income,visit
1,50,clerk,low,2024-01-31
2,S3CRET,cook,high,2024-02-01
3,-77,clerk,low,2024-02-02
4,,S3CRET,medium,S3CRET
"""

STRICT = """
[target]
column = "income"
classes = ["low", "high"]
[columns]
age = {kind = "number", low = 0, high = 100, outside = "refuse"}
job = {kind = "category", values = ["clerk", "cook"], outside = "refuse"}
visit = {kind = "date", low = 2024-01-01, high = 2025-01-01}
id = {kind = "ignore"}
"""


def test_all_that_is_wrong_with_the_cells_is_said_at_once_and_no_cell_is_shown(people):
    with pytest.raises(InputError) as caught:
        people(SECRETS, schema=STRICT)
    said = str(caught.value)
    assert [line for line in said.splitlines() if line.startswith("- ")] == [
        line for line in said.splitlines() if ", line " in line
    ]
    for place in ("line 3, column 'age'", "line 5, column 'job'", "line 5, column 'visit'", "line 5, column 'income'"):
        assert place in said
    assert not any(private in said for private in ("S3CRET", "-77", "medium", "50"))


def test_all_that_is_wrong_with_a_schema_and_its_table_is_checked_at_once(tmp_path):
    (tmp_path / "people.csv").write_text(SECRETS.replace("visit", "arrival"), encoding="utf-8")
    schema = STRICT.replace("high = 100", "high = 0").replace('"low", "high"]', '"low"]')
    (tmp_path / "people.toml").write_text(schema, encoding="utf-8")
    result = CliRunner().invoke(main, ["data", "check", str(tmp_path / "people.csv"), *schema_of(tmp_path)])
    assert result.exit_code != 0
    for text in (
        "Column 'age': low must be less than high",
        "classes must name at least two",
        "no target.classes",
        "no column 'visit'",
        "a column 'arrival', which the schema does not declare",
        "line 5, column 'job': the cell is none of the declared values",
    ):
        assert text in " ".join(result.output.split()), text
    assert "S3CRET" not in result.output


def schema_of(folder):
    return ["--schema", str(folder / "people.toml")]


def test_a_table_that_fits_is_described_without_its_values(tmp_path):
    (tmp_path / "people.csv").write_text(PEOPLE, encoding="utf-8")
    (tmp_path / "people.toml").write_text(SCHEMA, encoding="utf-8")
    command = ["data", "check", f"table:{tmp_path / 'people.csv'}", *schema_of(tmp_path)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[:2] == [
        "age: a number, clamped to [0, 100]",
        "job: one of clerk, other or missing",
    ]
    (tmp_path / "people.csv").write_text(PEOPLE + "9,1,cook,high\n" * 70, encoding="utf-8")
    assert CliRunner().invoke(main, command).output == result.output, "it tells how many rows there are"
    (tmp_path / "people.csv").write_text("age,job\n1,cook\n", encoding="utf-8")
    assert CliRunner().invoke(main, command).exit_code != 0
    assert CliRunner().invoke(main, [*command, "--no-target"]).exit_code == 0


KINDS = """
[target]
column = "income"
classes = ["low", "high"]
[columns]
age = {kind = "number", low = 0, high = 100, missing = true}
wealth = {kind = "number", low = -10, high = 1000, log = true, default = 3}
job = {kind = "category", values = ["1", "2"], ordered = true}
town = {kind = "category", buckets = 8}
seen = {kind = "date", low = 2000-01-01, high = 2030-01-01, missing = true, parts = ["month", "hour"]}
note = {kind = "text", buckets = 16}
"""


@pytest.mark.parametrize("missing", [0, 3])
def test_parquet_columns_of_any_type_become_what_their_text_becomes(people, tmp_path, missing):
    """With and without empty cells, over several chunks; whole numbers beyond 2^53 keep their digits as categories."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    random = np.random.default_rng(1)
    rows = 50
    start = datetime(2020, 1, 1, 5)
    columns = {
        "age": random.uniform(-5, 120, rows).round(3).tolist(),
        "wealth": random.integers(-20, 2000, rows).tolist(),
        "job": random.integers(0, 4, rows).tolist(),
        "town": random.integers(2**60, 2**62, rows).tolist(),
        "seen": [start + timedelta(hours=int(hours)) for hours in random.integers(0, 50_000, rows)],
        "note": [" ".join(random.choice(["yes", "no", "perhaps"], size)) for size in random.integers(0, 5, rows)],
        "income": random.choice(["low", "high"], rows).tolist(),
    }
    for name in ("age", "job", "town", "seen", "note"):
        columns[name][:missing] = [None] * missing
    with (tmp_path / "all.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    expected = people((tmp_path / "all.csv").read_text(encoding="utf-8"), schema=KINDS).train
    parquet.write_table(pyarrow.table(columns), tmp_path / "all.parquet", row_group_size=7)
    for at_once in (1 << 15, 9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "_PARQUET_ROWS_AT_ONCE", at_once)
            found = load_own(f"table:{tmp_path / 'all.parquet'}", schema=tmp_path / "people.toml").train
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


def test_a_large_table_waits_on_disk_and_gives_the_same_records(people, monkeypatch):
    rows = "".join(f"{row},{row % 100},clerk,{'high' if row % 3 else 'low'}\n" for row in range(5000))
    text = f"id,age,job,income\n{rows}"
    values, labels = people(text).train
    monkeypatch.setattr(tabular, "IN_MEMORY", 0)
    monkeypatch.setattr(spool, "IN_MEMORY", 1000)
    stored = people(text).train
    assert all(isinstance(part, Stored) for part in stored)
    assert isinstance(stored[0]._rows._parts[0], np.memmap)
    places = torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:777]
    assert torch.equal(stored[0].rows(places), values[places])
    assert torch.equal(stored[1].rows(places), labels[places])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["declared", "private"])
def test_a_table_on_disk_trains_the_same_model_as_one_in_memory(tmp_path, monkeypatch, kind):
    """Through the whole of ``adadp train`` with nothing but a schema and a budget, and with a check for copies."""
    random = np.random.default_rng(0)
    age, job = random.integers(0, 100, 1000), random.choice(["clerk", "cook"], 1000)
    income = np.where((age > 60) | (job == "cook"), "high", "low")
    rows = [f"{number},{a},{j},{i}\n" for number, (a, j, i) in enumerate(zip(age, job, income, strict=True))]
    for name, part in (("train", rows[:800]), ("test", rows[800:])):
        (tmp_path / f"{name}.csv").write_text("id,age,job,income\n" + "".join(part), encoding="utf-8")
    schema = SCHEMA if kind == "declared" else PRIVATE
    (tmp_path / "schema.toml").write_text(schema.replace("bins = []", ""), encoding="utf-8")
    config = TrainConfig(
        f"table:{tmp_path / 'train.csv'}",
        schema=str(tmp_path / "schema.toml"),
        test_data=f"table:{tmp_path / 'test.csv'}",
        epsilon=8.0,
        delta=1e-5,
        seed=3,
    )
    in_memory = start(config)
    assert in_memory.plan.batch_size == 80
    assert in_memory.test_accuracy > 0.8
    monkeypatch.setattr(tabular, "IN_MEMORY", 0)
    monkeypatch.setattr(spool, "IN_MEMORY", 0)
    on_disk = start(config)
    assert torch.equal(on_disk.network[1].weight, in_memory.network[1].weight)
    assert on_disk.test_accuracy == in_memory.test_accuracy
    (tmp_path / "test.csv").write_bytes((tmp_path / "train.csv").read_bytes())
    with pytest.raises(InputError, match="test records are training records"):
        start(config)
