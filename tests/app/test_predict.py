"""From a file of one's own, or a data set by name, to a model that is loaded again and used: the whole way."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from adadp.app import start, zoo
from adadp.app.cli import main
from adadp.app.cli.predict import was_trained_on
from adadp.app.config import TrainConfig
from adadp.app.predict import evaluation, load_model
from adadp.app.runs import RunFolder
from adadp.app.train import fit, verify_run
from adadp.errors import InputError, RunError
from adadp.step import PrivateGradients

pytestmark = pytest.mark.slow


MARKS = ("clump", "size", "shape", "adhesion", "single", "nuclei", "chromatin", "nucleoli", "mitoses")
SCHEMA = """
[target]
column = "diagnosis"
classes = ["benign", "malignant"]
"""


def write_table(path: Path, records: torch.Tensor, labels: torch.Tensor | None) -> Path:
    marks = (records * 4.5 + 5.5).round().int().tolist()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *MARKS, *(["diagnosis"] if labels is not None else [])])
        for number, row in enumerate(marks):
            name = [] if labels is None else [("benign", "malignant")[int(labels[number])]]
            writer.writerow([number, *row, *name])
    return path


def write_schema(path: Path, private: tuple[str, ...] = ()) -> Path:
    columns = [
        f'[columns.{name}]\nkind = "number"\n' + ('bounds = "private"\n' if name in private else "low = 1\nhigh = 10\n")
        for name in MARKS
    ]
    path.write_text(SCHEMA + '[columns.id]\nkind = "ignore"\n' + "".join(columns))
    return path


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("tables")
    data = zoo.load("cancer")
    write_table(place / "train.csv", *data.train)
    write_table(place / "test.csv", *data.test)
    write_table(place / "new.csv", data.test[0], None)
    write_schema(place / "schema.toml")
    write_schema(place / "private.toml", private=("size", "mitoses"))
    return place


def flags(tables: Path, out: Path, schema: str) -> list[object]:
    own = ["--data", f"table:{tables / 'train.csv'}", "--test-data", f"table:{tables / 'test.csv'}"]
    size = ["--batch-size", 56, "--epochs", 10, "--seed", 0, "--threads", 1]
    return [*own, "--schema", tables / schema, "--epsilon", 3, "--delta", "1e-4", *size, "--out", out]


def test_evaluation_needs_the_test_file_alone_and_says_where_it_looked(tables, tmp_path, monkeypatch):
    place = Path(shutil.copytree(tables, tmp_path / "here"))
    monkeypatch.chdir(place)
    own = ["--data", "table:train.csv", "--test-data", "table:test.csv", "--schema", "schema.toml"]
    run("train", *own, "--noise-multiplier", 5, "--delta", 1e-4, "--steps", 2, "--threads", 1, "--out", "out")
    for gone in ("train.csv", "schema.toml"):
        (place / gone).unlink()
    assert "on 123 records" in run("evaluate", "out")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"test\.csv is not here.*relative to where it was started"):
        evaluation(load_model("here/out"))
    assert "on 123 records" in run("evaluate", "here/out", "--data", "here/test.csv")


@pytest.fixture(scope="module", params=["schema.toml", "private.toml"])
def trained(request, tables, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    run("train", *flags(tables, out, request.param), "--json")
    return out


class TestATableOfOnesOwn:
    def test_it_learns_is_certified_and_verifies(self, trained):
        folder = RunFolder.open(trained)
        assert [check.name for check in verify_run(folder) if not check.passed] == []
        certificate = folder.certificate()
        assert certificate["rehearsal"] is True
        assert 2.99 < certificate["if_unseeded"]["epsilon"] <= 3
        assert certificate["record"] == "one row of train.csv"
        assert any("Column clump" in note and "[1, 10]" in note for note in certificate["notes"])

    def test_private_bounds_are_charged_and_declared_ones_are_not(self, trained):
        certificate = RunFolder.open(trained).certificate()
        private = "private" in str(RunFolder.open(trained).config.schema)
        charged = certificate["charged"]
        assert ("features" in certificate) == private
        assert len(charged) == 1 + private
        if private:
            assert certificate["features"]["released"][0].startswith("bounds:columns=61;488,noise_multiplier=")

    def test_another_encoder_than_certified_does_not_verify(self, trained, tmp_path):
        shutil.copytree(trained, tmp_path / "copy")
        content = json.loads((tmp_path / "copy" / "encoder.json").read_text())
        content["classes"].reverse()
        (tmp_path / "copy" / "encoder.json").write_text(json.dumps(content))
        wrong = [check.name for check in verify_run(RunFolder.open(tmp_path / "copy")) if not check.passed]
        assert wrong == ["statements"]

    def test_a_schema_that_changed_stops_a_resume(self, tables, tmp_path, monkeypatch):
        write_schema(tmp_path / "schema.toml")

        def stop(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        words = flags(tables, tmp_path / "run", "schema.toml")
        words[words.index("--schema") + 1] = tmp_path / "schema.toml"
        with monkeypatch.context() as patch:
            patch.setattr(PrivateGradients, "release", stop)
            run("train", *words, code=130)
        write_schema(tmp_path / "schema.toml", private=("size",))
        assert "schema" in CliRunner().invoke(main, ["train", "--resume", str(tmp_path / "run")]).stderr
        (tmp_path / "schema.toml").write_text((tables / "schema.toml").read_text().replace("high = 10", "high = 11"))
        result = CliRunner().invoke(main, ["train", "--resume", str(tmp_path / "run")])
        assert "has changed since it began" in result.stderr
        write_schema(tmp_path / "schema.toml")
        run("train", "--resume", tmp_path / "run")

    def test_predict_gives_what_evaluate_counts(self, trained, tables):
        found = json.loads(run("evaluate", trained, "--json"))
        assert found["records"] == 123
        assert found["accuracy"] > 0.85
        assert found["accuracy"] == RunFolder.open(trained).metrics()[-1]["test_accuracy"]
        rows = list(csv.DictReader(run("predict", trained, "--input", tables / "new.csv").splitlines()))
        labels = zoo.load("cancer").test[1]
        right = [row["class"] == ("benign", "malignant")[int(label)] for row, label in zip(rows, labels, strict=True)]
        assert sum(right) / len(right) == pytest.approx(found["accuracy"])
        assert all(abs(float(row["p(benign)"]) + float(row["p(malignant)"]) - 1) < 1e-4 for row in rows)
        assert found["by_class"]["malignant"]["records"] == int(labels.sum())

    def test_predict_writes_a_file_or_json_lines(self, trained, tables, tmp_path):
        run("predict", trained, "--input", tables / "new.csv", "--output", tmp_path / "classes.csv")
        assert len((tmp_path / "classes.csv").read_text().splitlines()) == 124
        lines = run("predict", trained, "--input", tables / "new.csv", "--json").splitlines()
        assert set(json.loads(lines[5])) == {"record", "class", "probabilities"}

    def test_predict_refuses_an_output_that_cannot_be_written_before_it_computes(self, tables, tmp_path):
        words = ["predict", tmp_path / "no run", "--input", tables / "new.csv", "--output"]
        result = CliRunner().invoke(main, [*map(str, words), str(tmp_path / "nowhere" / "x.csv")])
        assert result.exit_code == 2
        assert f"there is no folder {tmp_path / 'nowhere'}" in result.stderr
        (tmp_path / "x.csv").write_text("kept")
        (tmp_path / "x.csv").chmod(0o400)
        if not os.access(tmp_path / "x.csv", os.W_OK):  # root may write anything
            result = CliRunner().invoke(main, [*map(str, words), str(tmp_path / "x.csv")])
            assert "you may not write there" in result.stderr

    def test_records_may_be_named_with_their_kind(self, trained, tables, tmp_path, monkeypatch):
        monkeypatch.chdir(tables)
        bare = run("predict", trained, "--input", "new.csv")
        assert run("predict", trained, "--input", "table:new.csv") == bare
        assert torch.equal(load_model(trained).read("table:new.csv"), load_model(trained).read(Path("new.csv")))
        found = run("evaluate", trained, "--data", "table:test.csv", "--json")
        assert found == run("evaluate", trained, "--data", "test.csv", "--json")
        warned = CliRunner().invoke(main, ["evaluate", str(trained), "--data", "table:train.csv"])
        assert "must not be published" in warned.stderr
        result = CliRunner().invoke(main, ["predict", str(trained), "--input", "npz:new.npz"])
        assert result.exit_code == 2
        assert "npz:new.npz is not of the kind table" in result.stderr
        shutil.copy("new.csv", tmp_path / "table:odd.csv")
        monkeypatch.chdir(tmp_path)
        assert run("predict", trained, "--input", "table:odd.csv") == bare

    def test_evaluate_takes_other_labelled_records(self, trained, tables, tmp_path):
        shutil.copy(tables / "train.csv", tmp_path / "other.csv")
        done = CliRunner().invoke(main, ["evaluate", str(trained), "--data", str(tmp_path / "other.csv"), "--json"])
        assert json.loads(done.stdout)["records"] == 560
        assert done.stderr == ""

    def test_evaluate_says_what_the_accuracy_hides(self, trained, tables, tmp_path):
        found, labels = json.loads(run("evaluate", trained, "--json")), zoo.load("cancer").test[1]
        recalls = [each["accuracy"] for each in found["by_class"].values()]
        assert found["balanced_accuracy"] == pytest.approx(sum(recalls) / 2)
        assert found["balanced_accuracy"] == RunFolder.open(trained).class_counts().balanced_accuracy
        assert found["largest_class"] == "benign"
        assert found["largest_share"] == (123 - int(labels.sum())) / 123
        text = run("evaluate", trained)
        assert f"Balanced accuracy {found['balanced_accuracy']:.4f}" in text
        assert f"Always answering benign, the most frequent class: {found['largest_share']:.4f}." in text
        assert "No better" not in text
        lines = (tables / "test.csv").read_text().splitlines()
        wrong = {"benign": "malignant", "malignant": "benign"}
        turned = [f"{row.rpartition(',')[0]},{wrong[row.rpartition(',')[2]]}" for row in lines[1:]]
        (tmp_path / "turned.csv").write_text("\n".join([lines[0], *turned]))
        text = run("evaluate", trained, "--data", tmp_path / "turned.csv")
        assert "No better than always answering malignant, the most frequent class." in text

    @pytest.mark.parametrize("way", ["as it is", "by a link", "relative"])
    def test_evaluate_warns_of_the_records_the_run_was_trained_on(self, trained, tables, tmp_path, monkeypatch, way):
        place = tables / "train.csv"
        if way == "by a link":
            place = tmp_path / "link.csv"
            place.symlink_to(tables / "train.csv")
        elif way == "relative":
            monkeypatch.chdir(tables)
            place = Path("train.csv")
        done = CliRunner().invoke(main, ["evaluate", str(trained), "--data", str(place), "--json"])
        assert json.loads(done.stdout)["records"] == 560
        assert done.stderr.count("Warning") == 1
        assert "private records without noise" in done.stderr
        assert "must not be published" in done.stderr

    def test_nothing_of_a_private_table_is_cached(self, tables, tmp_path, monkeypatch):
        monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "cache"))
        run("train", *flags(tables, tmp_path / "run", "private.toml"), "--json")
        assert not (tmp_path / "cache").exists()

    def test_a_bad_cell_is_told_before_there_is_a_folder(self, tables, tmp_path):
        lines = (tables / "train.csv").read_text().splitlines()
        lines[7] = lines[7].replace(",", ",x", 1)
        (tmp_path / "bad.csv").write_text("\n".join(lines))
        words = flags(tables, tmp_path / "run", "schema.toml")
        words[1] = f"table:{tmp_path / 'bad.csv'}"
        result = CliRunner().invoke(main, ["train", *map(str, words)])
        assert result.exit_code == 2
        assert "line 8" in result.stderr.replace("row 8", "line 8")
        assert "clump" in result.stderr
        assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("named") / "run"
    config = TrainConfig(
        "cancer", features="pca:dim=4,noise_multiplier=4", model="mlp:8", epsilon=4.0, seed=0, threads=1
    )
    start.start(config.replace(optimizer="sgd", lr=0.5, batch_size=56, epochs=10, clip_norm=1.0), out)
    return out


@pytest.mark.parametrize("hidden", [False, True])
def test_progress_does_not_tell_a_number_of_records_that_is_to_stay_hidden(tmp_path, hidden):
    labels = np.arange(317) % 2
    images = np.zeros((317, 1, 8, 8), np.uint8)
    images[labels == 1, :, ::2] = 255
    np.savez(tmp_path / "images.npz", x=images, y=labels, classes=2)
    told: list[tuple[str, int, int]] = []
    config = TrainConfig(
        f"npz:{tmp_path / 'images.npz'}", features="scatter", noise_multiplier=5.0, delta=1e-4, steps=2, batch_size=30
    )
    config = config.replace(records=1000) if hidden else config
    start.start(config, tmp_path / "run", progress=lambda *each: told.append(each))
    assert bool(told) != hidden
    certificate = RunFolder.open(tmp_path / "run").certificate()
    facts = json.dumps([certificate[name] for name in ("plan", "disclosed", "notes", "protects", "record")])
    assert ("317" in facts) != hidden


@pytest.mark.parametrize(
    ("data", "source", "private"),
    [
        ("images:pictures", "pictures", True),
        ("images:pictures", "pictures/train", True),
        ("images:pictures", "pictures/test", False),
        ("npz:people.npz", "people.npz", True),
        ("npz:people.npz", "pictures", False),
        ("table:gone.csv", "people.npz", False),
        ("cancer", "people.npz", False),
    ],
)
def test_which_files_are_what_a_run_was_trained_on(tmp_path, monkeypatch, data, source, private):
    monkeypatch.chdir(tmp_path)
    for folder in ("train", "test"):
        (tmp_path / "pictures" / folder).mkdir(parents=True)
    (tmp_path / "people.npz").write_bytes(b"")
    assert was_trained_on(data, source) == private


class TestADataSetByName:
    def test_the_model_is_one_module_from_records_to_scores(self, out):
        trained = load_model(out)
        records, labels = zoo.load("cancer").test
        scores = trained.model(records)
        assert scores.shape == (123, 2)
        assert not scores.requires_grad
        assert torch.equal(scores.argmax(1), trained.predict(records))
        accuracy = float((trained.predict(records) == labels).double().mean())
        assert evaluation(trained)["accuracy"] == pytest.approx(accuracy)
        assert accuracy == RunFolder.open(out).metrics()[-1]["test_accuracy"]

    def test_records_come_from_a_file_of_arrays(self, out, tmp_path):
        np.savez(tmp_path / "records.npz", x=zoo.load("cancer").test[0].numpy())
        bare = run("predict", out, "--input", tmp_path / "records.npz")
        assert len(bare.splitlines()) == 124
        assert run("predict", out, "--input", f"npz:{tmp_path / 'records.npz'}") == bare

    @pytest.mark.parametrize("values", [np.array([["a"] * 9]), np.zeros((2, 8)), np.full((2, 9), np.nan), np.zeros(9)])
    def test_arrays_that_are_no_records_of_the_model_are_refused(self, out, tmp_path, values):
        np.savez(tmp_path / "records.npz", x=values)
        with pytest.raises(InputError, match="x of "):
            load_model(out).read(tmp_path / "records.npz")

    def test_the_network_is_used_without_adadp(self, out, tmp_path):
        """safetensors and torch are enough: the names and shapes are those of plain layers."""
        shutil.copy(out / "model.safetensors", tmp_path)
        shutil.copy(out / "features.safetensors", tmp_path)
        records = zoo.load("cancer").test[0]
        torch.save(records, tmp_path / "records.pt")
        program = (
            "import sys; sys.modules['adadp'] = None\n"
            "import torch\n"
            "from safetensors.torch import load_file\n"
            "from torch.nn import Flatten, Linear, ReLU, Sequential\n"
            "network = Sequential(Flatten(), Linear(4, 8), ReLU(), Linear(8, 2))\n"
            "network.load_state_dict(load_file('model.safetensors'))\n"
            "components = load_file('features.safetensors')['0.components']\n"
            "unit = torch.nn.functional.normalize\n"
            "features = 2 * unit(unit(torch.load('records.pt')) @ components)\n"
            "print(network(features).argmax(1).tolist())\n"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == load_model(out).predict(records).tolist()

    def test_records_of_another_shape_are_refused(self, out):
        with pytest.raises(InputError, match=r"takes \(9,\)"):
            load_model(out).predict(torch.zeros(3, 8))

    @pytest.mark.parametrize("content", [b"", b"nonsense", b"PK"])
    def test_a_file_that_is_no_array_is_refused(self, out, tmp_path, content):
        (tmp_path / "records.npz").write_bytes(content)
        with pytest.raises(InputError, match=r"is no \.npz file|cannot be read as a \.npz file"):
            load_model(out).read(tmp_path / "records.npz")

    def test_an_array_under_another_name_is_refused(self, out, tmp_path):
        np.savez(tmp_path / "records.npz", z=np.zeros((1, 9)))
        with pytest.raises(InputError, match=r"no array x.*numpy\.savez"):
            load_model(out).read(tmp_path / "records.npz")

    def test_missing_features_are_told(self, out, tmp_path):
        shutil.copytree(out, tmp_path / "copy")
        (tmp_path / "copy" / "features.safetensors").unlink()
        with pytest.raises(InputError, match="What pca has learned is missing"):
            load_model(tmp_path / "copy")

    def test_an_unfinished_run_is_refused(self, out, tmp_path):
        shutil.copytree(out, tmp_path / "copy")
        (tmp_path / "copy" / "certificate.json").unlink()
        with pytest.raises(RunError, match="has not finished"):
            load_model(tmp_path / "copy")


def test_a_run_from_python_says_how_it_is_loaded(tmp_path):
    fit(
        torch.nn.Linear(9, 2),
        zoo.load("cancer").train,
        noise_multiplier=5.0,
        delta=1e-4,
        steps=2,
        batch_size=50,
        out=tmp_path / "run",
    )
    with pytest.raises(InputError, match="load_state_dict"):
        load_model(tmp_path / "run")
