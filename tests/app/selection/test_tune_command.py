"""The command ``adadp tune``."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from adadp.app import zoo
from adadp.app.cli import main
from adadp.app.runs import RunFolder

BASE = ["tune", "--data", "cancer", "--epsilon", "3", "--delta", "1e-4", "--steps", "2", "--batch-size", "180"]
GRID = ["--grid", "lr=0.05,1", "--threads", "1"]
SCORED = ["--validation", "100", "--runs", "2", "--law", "tnb"]


def run(*words: str):
    return CliRunner().invoke(main, words)


@pytest.fixture
def no_data(monkeypatch):
    def read(*_, **__):
        raise AssertionError("data was read")

    monkeypatch.setattr(zoo, "load", read)


@pytest.mark.slow
def test_a_search_and_its_check(tmp_path):
    out = str(tmp_path / "run")
    done = run(*BASE, *GRID, *SCORED, "--seed", "3", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.output.splitlines()[-1])
    assert summary["setting"] in ({"lr": 0.05}, {"lr": 1.0})
    assert (summary["private"], summary["rehearsal"], summary["epsilon"]) == (False, True, None)
    assert 0.97 * 3 < summary["epsilon_if_unseeded"] <= 3
    assert "seconds" not in summary
    checked = run("verify", out)
    assert checked.exit_code == 0, checked.output
    assert "Best of a random number of runs" in checked.output
    assert "REHEARSAL, NOT FOR RELEASE" in checked.output
    assert run("evaluate", out).exit_code == 0
    kept = RunFolder.open(out).confusion()
    assert kept["labels"] == ["0", "1"]
    right = sum(row[place] for place, row in enumerate(kept["counts"]))
    assert right / sum(map(sum, kept["counts"])) == summary["test_accuracy"]
    assert "Which classes are confused" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    for words in (["--resume", out], [*BASE[1:], *GRID, *SCORED, "--out", out]):
        again = run("tune", *words)
        assert again.exit_code == 2
        assert "has finished" in again.output or "not a new or empty folder" in again.output
        assert "Searching" not in again.output


@pytest.mark.slow
def test_what_a_search_says_in_the_end(tmp_path):
    """Every batch is all records that are trained on, for which the accountant is quick."""
    whole = ["--batch-size", "460", "--epsilon", "3", "--delta", "1e-4", "--steps", "2", "--seed", "3"]
    done = run("tune", "--data", "cancer", *whole, *GRID, *SCORED, "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("Searching. How many runs it makes must not become known")
    assert done.stdout.startswith("REHEARSAL, NOT FOR RELEASE. ")
    assert "Chosen: lr=" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert f"Everything is in {tmp_path / 'run'}, with a page to read: report.html." in last


@pytest.mark.usefixtures("no_data")
def test_a_plan_reads_no_data():
    done = run(*BASE, *GRID, *SCORED, "--plan")
    assert done.exit_code == 0, done.output
    assert "1  lr=0.05: noise multiplier" in done.output
    assert "of 460 records" in done.output
    assert "3 was asked for" in done.output


@pytest.mark.usefixtures("no_data")
def test_a_plan_by_parts_for_programs():
    done = run(*BASE, *GRID, "--by", "parts", "--plan", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output.splitlines()[-1])
    assert found["by"] == "parts"
    assert found["cost"] <= 3


@pytest.mark.slow
@pytest.mark.usefixtures("no_data")
def test_gupta_gives_numbers_and_never_trains(tmp_path):
    done = run(*BASE, *GRID, "--by", "gupta", "--json")
    assert done.exit_code == 0, done.output
    numbers = json.loads(done.output.splitlines()[-1])
    assert numbers["claimed_epsilon"] == 3 + 8 * 0.5
    assert numbers["status"] == "as-published"
    assert numbers["runs"] > 1000
    assert numbers["repeat_epsilon"] > 3
    asked = run(*BASE, *GRID, "--by", "gupta", "--out", str(tmp_path / "run"))
    assert asked.exit_code == 2
    assert "does not train" in asked.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*BASE, *SCORED, "--out", "x"], "must be given once"),
        ([*BASE, *GRID, *SCORED], "needs a folder"),
        ([*BASE, *GRID, "--validation", "100", "--eta", "1", "--out", "x"], "without --law tnb"),
        ([*BASE, *GRID, "--out", "x"], "needs records to compare"),
        ([*BASE, *GRID, "--by", "parts", "--runs", "3", "--out", "x"], "would be ignored"),
        (["tune", "--resume", "x", *GRID], "nothing about it can change"),
        (["tune", "--resume", "x", "--runs", "3"], "nothing about it can change"),
    ],
)
@pytest.mark.usefixtures("no_data")
def test_what_is_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert "Searching" not in done.output
    assert list(tmp_path.iterdir()) == []
