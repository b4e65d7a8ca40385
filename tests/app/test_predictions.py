"""Predictions for files: named rows, CSV, Parquet and JSON in and out, in parts; and for runs made by ``fit``."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from adadp import fit, load_model
from adadp.app.cli import main
from adadp.app.config import TrainConfig
from adadp.app.owndata.tables import CsvTable
from adadp.app.predictions import write_predictions
from adadp.app.start import start
from adadp.errors import InputError

pytestmark = pytest.mark.slow

SCHEMA = """
[target]
column = "arrival"
classes = ["early", "late"]
[columns.patient]
kind = "ignore"
[columns.age]
kind = "number"
low = 0
high = 100
[columns.size]
kind = "number"
low = 0
high = 3
missing = true
[columns.job]
kind = "category"
values = ["clerk", "cook"]
"""
ROWS = 2500
"""More than the rows of a part."""


def people(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"patient": rng.permutation(ROWS) + 10_000, "age": rng.integers(18, 90, ROWS)})
    frame["size"] = rng.uniform(1, 2, ROWS).round(3)
    frame.loc[::9, "size"] = np.nan
    return frame.assign(job=rng.choice(["clerk", "cook"], ROWS))


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output + result.stderr
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("people")
    frame = people()
    frame.assign(arrival=np.where(frame.age > 50, "late", "early")).to_csv(place / "train.csv", index=False)
    (place / "schema.toml").write_text(SCHEMA)
    people(1).to_csv(place / "new.csv", index=False)
    people(1).to_parquet(place / "new.parquet", index=False)
    config = TrainConfig(f"table:{place / 'train.csv'}", schema=str(place / "schema.toml"), epsilon=4.0, delta=1e-5)
    start(config.replace(epochs=12, threads=1, seed=0), place / "run")
    return place


class TestFiles:
    def test_rows_are_named_and_in_order_and_csv_and_parquet_say_the_same(self, place, tmp_path):
        run("predict", place / "run", "--input", place / "new.csv", "--id", "patient", "--output", tmp_path / "a.csv")
        words = ["--id", "patient", "--output", tmp_path / "a.parquet"]
        run("predict", place / "run", "--input", place / "new.parquet", *words)
        written, table = pd.read_csv(tmp_path / "a.csv"), pd.read_parquet(tmp_path / "a.parquet")
        assert list(written) == list(table) == ["patient", "class", "p(early)", "p(late)"]
        assert written["patient"].tolist() == table["patient"].tolist() == people(1)["patient"].tolist()
        assert table["patient"].dtype == np.int64
        assert written["class"].tolist() == table["class"].tolist()
        assert np.allclose(written["p(late)"], table["p(late)"], atol=1e-5)
        loaded = load_model(place / "run")
        expected = loaded.probabilities(loaded.read(place / "new.csv"))
        assert np.allclose(table[["p(early)", "p(late)"]], expected, atol=1e-6)
        assert set(written["class"]) == {"early", "late"}

    def test_the_class_alone_and_numbers_for_names(self, place, tmp_path):
        words = ["predict", place / "run", "--input", place / "new.csv", "--no-probabilities"]
        lines = run(*words).splitlines()
        assert lines[0] == "record,class"
        assert [line.split(",")[0] for line in lines[1:]] == [str(number) for number in range(ROWS)]
        run(*words, "--output", tmp_path / "a.parquet")
        assert parquet.read_schema(tmp_path / "a.parquet").names == ["record", "class"]
        assert pd.read_parquet(tmp_path / "a.parquet")["record"].tolist() == list(range(ROWS))
        first = json.loads(run(*words, "--id", "patient", "--json").splitlines()[0])
        assert first == {"patient": str(people(1)["patient"][0]), "class": first["class"]}

    def test_an_id_that_no_schema_declares_and_texts_in_parquet(self, place, tmp_path):
        names = [f"né {number}" if number % 3 else None for number in range(ROWS)]
        people(1).drop(columns="patient").assign(name=names).to_parquet(tmp_path / "new.parquet", index=False)
        words = ["--input", tmp_path / "new.parquet", "--id", "name", "--output", tmp_path / "a.parquet"]
        run("predict", place / "run", *words)
        assert parquet.read_table(tmp_path / "a.parquet")["name"].to_pylist() == names

    def test_an_id_may_be_a_column_of_the_model(self, place):
        lines = run("predict", place / "run", "--input", place / "new.csv", "--id", "age").splitlines()
        assert [int(line.split(",")[0]) for line in lines[1:]] == people(1)["age"].tolist()

    def test_parts_are_read_as_they_are_needed(self, place, monkeypatch):
        read = []
        chunks = CsvTable.chunks

        def counted(self, columns):
            for chunk in chunks(self, columns):
                read.append(len(chunk[0]))
                yield chunk

        monkeypatch.setattr(CsvTable, "chunks", counted)
        parts = load_model(place / "run").parts(place / "new.csv")
        records, _ = next(parts)
        assert len(read) == 1
        assert len(records) == read[0] < ROWS
        assert sum(len(part) for part, _ in parts) + len(records) == ROWS

    def test_a_file_that_is_replaced_stays_as_hidden_and_a_link_stays_a_link(self, place, tmp_path):
        (tmp_path / "a.csv").write_text("old")
        (tmp_path / "a.csv").chmod(0o600)
        (tmp_path / "link.csv").symlink_to(tmp_path / "a.csv")
        run("predict", place / "run", "--input", place / "new.csv", "--output", tmp_path / "link.csv")
        assert (tmp_path / "link.csv").is_symlink()
        assert len((tmp_path / "a.csv").read_text().splitlines()) == ROWS + 1
        assert (tmp_path / "a.csv").stat().st_mode & 0o777 == 0o600
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "link.csv"]

    def test_an_open_file_is_written_to(self, place):
        stream = io.StringIO()
        loaded = load_model(place / "run")
        assert write_predictions(loaded, place / "new.csv", stream, probabilities=False) == ROWS
        assert len(stream.getvalue().splitlines()) == ROWS + 1


class TestMistakes:
    def test_columns_that_are_missing_or_unknown_are_all_named(self, place, tmp_path):
        frame = people(1).rename(columns={"age": "Age", "size": "Size"})
        frame.to_csv(tmp_path / "new.csv", index=False)
        said = run("predict", place / "run", "--input", tmp_path / "new.csv", "--id", "person", code=2)
        for name in ("age", "size", "person", "Age", "Size"):
            assert f"'{name}'" in said
        assert "'job'" not in said

    def test_bad_cells_are_told_for_every_column_and_nothing_is_written(self, place, tmp_path):
        frame = people(1).astype(object)
        frame.loc[1500, "age"] = ""
        frame.loc[1600, "age"] = ""
        frame.loc[2400, "size"] = "tall"
        frame.to_csv(tmp_path / "new.csv", index=False)
        (tmp_path / "kept.csv").write_text("as it was")
        for output in ([], ["--output", tmp_path / "a.csv"], ["--output", tmp_path / "kept.csv"]):
            result = CliRunner().invoke(
                main, list(map(str, ["predict", place / "run", "--input", tmp_path / "new.csv", *output]))
            )
            assert result.exit_code == 2
            assert result.stdout == ""
            assert "line 1502, column 'age'" in result.stderr
            assert "line 2402, column 'size'" in result.stderr
            assert "1602" not in result.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.csv", "new.csv"]
        assert (tmp_path / "kept.csv").read_text() == "as it was"

    def test_unknown_values_and_numbers_outside_are_what_the_schema_makes_of_them(self, place, tmp_path):
        people(1).assign(job="spy", age=1000).to_csv(tmp_path / "new.csv", index=False)
        assert len(run("predict", place / "run", "--input", tmp_path / "new.csv").splitlines()) == ROWS + 1

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--id", "class"], "'class'"),
            (["--json", "--output", "a.parquet"], "Parquet file by its ending"),
            (["--model", "nets:small"], "says it itself"),
            (["--classes", "2"], "says it itself"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, place, tmp_path, monkeypatch, words, said):
        monkeypatch.chdir(tmp_path)
        np.savez("new.npz", x=np.zeros((1, 4)))
        people(1).assign(**{"class": 1}).to_csv("new.csv", index=False)
        source = "new.npz" if words[0] in ("--model", "--classes") else "new.csv"
        assert said in run("predict", place / "run", "--input", source, *words, code=2)

    def test_a_table_without_rows(self, place, tmp_path):
        people(1).head(0).to_csv(tmp_path / "new.csv", index=False)
        assert "no rows" in run("predict", place / "run", "--input", tmp_path / "new.csv", code=2)


NETS = """
from torch import nn

def small(input_shape, classes):
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.Tanh(), nn.Linear(8, classes))

def single(input_shape, classes):
    return nn.Linear(input_shape[0], 1)
"""


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("python")
    torch.manual_seed(0)
    x = torch.randn(600, 4)
    y = (x[:, 0] + x[:, 1] > 0).long()
    (place / "nets.py").write_text(NETS)
    np.savez(place / "new.npz", x=100 * x.double().numpy(), y=y.numpy())
    settings = {"epsilon": 8, "delta": 1e-5, "batch_size": 100, "epochs": 10, "lr": 1.0, "input_bound": 2, "seed": 0}
    fit(small(), (100 * x, y), out=place / "fitted", **settings)
    fit(nn.Linear(4, 1), (100 * x, y), loss="binary-cross-entropy", out=place / "single", **settings)
    fit(small(), (x, y), features="pca:dim=4", out=place / "features", **{**settings, "input_bound": None})
    return place


class TestRunsOfFit:
    @pytest.fixture(autouse=True)
    def _here(self, python, monkeypatch):
        monkeypatch.chdir(python)

    @pytest.mark.parametrize(("out", "net"), [("fitted", "nets:small"), ("single", "nets:single")])
    def test_the_user_names_the_network_and_numbers_come_into_their_range(self, out, net):
        x, y = (np.load("new.npz")[name] for name in "xy")
        own = ["--model", net, "--classes", "2"]
        found = json.loads(run("evaluate", out, "--data", "new.npz", *own, "--json"))
        assert found["accuracy"] > 0.7  # of numbers beyond the range little but the sign is left
        lines = run("predict", out, "--input", "npz:new.npz", *own).splitlines()
        assert lines[0] == "record,class,p(0),p(1)"
        loaded = load_model(out, model=net, classes=["no", "yes"], input_shape=(4,))
        assert [line.split(",")[1] for line in lines[1:]] == [
            str(int(each)) for each in loaded.predict(loaded.read("new.npz"))
        ]
        share = np.mean([int(line.split(",")[1]) == label for line, label in zip(lines[1:], y, strict=True)])
        assert share == pytest.approx(found["accuracy"])
        network = small() if out == "fitted" else nn.Linear(4, 1)
        network.load_state_dict(loaded.network.state_dict())
        scores = network(torch.from_numpy(x).float().clamp(-2, 2)).detach()
        expected = torch.softmax(scores, 1)[:, 1] if out == "fitted" else torch.sigmoid(scores[:, 0])
        assert torch.allclose(loaded.probabilities(loaded.read("new.npz"))[:, 1], expected, atol=1e-6)

    def test_a_network_itself_with_features_that_were_released(self):
        loaded = load_model("features", model=small(), classes=2, input_shape=(4,))
        x, y = (torch.from_numpy(np.load("new.npz")[name]) for name in "xy")
        assert (loaded.predict(x.float() / 100) == y).double().mean() > 0.8

    def test_names_of_classes(self):
        words = ["--model", "nets:small", "--classes", "healthy,ill", "--no-probabilities"]
        classes = [line.split(",")[1] for line in run("predict", "fitted", "--input", "new.npz", *words).splitlines()]
        assert set(classes[1:]) == {"healthy", "ill"}

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ([], "--model"),
            (["--model", "nets:small"], "--classes"),
            (["--model", "nets:none", "--classes", "2"], "cannot be found"),
            (["--model", "nets:small", "--classes", "3"], "do not fit the network"),
            (["--model", "nets:small", "--classes", "one"], "at least two classes"),
            (["--model", "nets:small", "--classes", "2", "--id", "patient"], "no columns"),
        ],
    )
    def test_what_is_missing_or_does_not_fit_is_said(self, words, said):
        assert said in run("predict", "fitted", "--input", "new.npz", *words, code=2)

    def test_another_number_of_outputs_than_classes(self):
        loaded = load_model("single", model="nets:single", classes=3, input_shape=(4,))
        with pytest.raises(InputError, match="there are 3 classes"):
            loaded.probabilities(torch.zeros(2, 4))

    def test_an_evaluation_needs_labelled_records(self):
        assert "--data" in run("evaluate", "fitted", "--model", "nets:small", "--classes", "2", code=2)
        np.savez("wrong.npz", x=np.zeros((3, 4)), y=np.array([0, 1, 2]))
        words = ["--model", "nets:small", "--classes", "2", "--data", "wrong.npz"]
        assert "y of wrong.npz" in run("evaluate", "fitted", *words, code=2)
