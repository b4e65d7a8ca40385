"""The page of a run that a search chose: no training repeats it, and the search only where all of it is known."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from click.testing import CliRunner

from adadp.app.accounting.repetitions import PoissonRepetitions, TruncatedNegativeBinomial
from adadp.app.cli import main
from adadp.app.config import TrainConfig
from adadp.app.report.html import run_page
from adadp.app.report.html.page import Command, Words
from adadp.app.report.html.searches import search_command
from adadp.app.runs import RunFolder
from adadp.app.selection import grid, planned, tune

LAW = TruncatedNegativeBinomial(1.0, 0.4)
BASE = {"epsilon": 3.0, "delta": 1e-4, "steps": 2, "batch_size": 460, "threads": 1}
"""Every batch is all records that are trained on, for which the accountant is quick."""


def search(settings, base=None, **options):
    asked = {"validation": 100, "law": LAW} if options.get("by") != "parts" else {}
    return planned(TrainConfig("cancer", **{**BASE, **(base or {})}), settings, **{**asked, **options})


def planned_by(command: str) -> dict:
    """What the command would do, as JSON; it reads no data."""
    program, *words = shlex.split(command)
    assert (program, words[0]) == ("adadp", "tune")
    done = CliRunner().invoke(main, [*words, "--plan", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output.splitlines()[-1])
    found.pop("cost")
    return found


@pytest.mark.parametrize(
    ("settings", "base", "options"),
    [
        (grid({"lr": [0.05, 1.0], "clip_norm": [0.5, 1]}), {"seed": 3, "momentum": 0.5}, {}),
        (grid({"lr": [0.1, 0.5]}), {"records": 560}, {"law": PoissonRepetitions(3.5), "validation_public": True}),
        (grid({"lr": [0.1, 0.5]}), {"model": "linear"}, {"score_noise_multiplier": 9.0}),
        (grid({"lr": [0.5], "noise_schedule": ["exp:k=0.1", "uniform:"]}), {}, {}),
        (grid({"noise_schedule": ["exp:k=0.1,start=2"]}), {"lr": 0.5}, {}),
        (grid({"lr": [0.1, 0.5]}), {"batch_size": 180}, {"by": "parts", "select_epsilon": 2.0}),
    ],
)
def test_the_command_makes_the_same_search(settings, base, options):
    found = search(settings, base, **options).as_json()
    command = search_command(found, "again")
    assert command is not None
    assert command.endswith(" --out again")
    again = planned_by(command)
    law, same = found.pop("repetitions"), again.pop("repetitions")
    assert again == found
    assert law is same is None or {**law, **same, "law": 0} == pytest.approx({**same, **law, "law": 0}, rel=1e-9)
    assert (law or {}).get("law") == (same or {}).get("law")


@pytest.mark.parametrize(
    ("settings", "base", "options"),
    [
        ([{"lr": 0.1}, {"lr": 0.5, "clip_norm": 2.0}], {}, {}),
        ([{"lr": 0.1, "clip_norm": 1.0}, {"lr": 0.5, "clip_norm": 2.0}], {}, {}),
        ([{}], {}, {}),
        (grid({"lr": [0.1, 0.5]}), {"noise_schedule": "exp:k=0.1"}, {}),
    ],
)
def test_what_the_file_does_not_hold_gives_no_command(settings, base, options):
    assert search_command(search(settings, base, **options).as_json(), "again") is None


def test_defaults_that_differ_and_files_of_others_give_no_command():
    found = search(grid({"lr": [0.1, 0.5]})).as_json()
    assert search_command(found, "again") is not None
    differing = [{**each, "model": name} for each, name in zip(found["candidates"], ("a", "b"), strict=True)]
    for change in (
        {"candidates": differing},
        {"settings": []},
        {"repetitions": {"law": "other"}},
        {"by": "parts", "exact": False},
    ):
        assert search_command({**found, **change}, "again") is None
    assert search_command({}, "again") is None


def test_public_records_in_a_file_are_named():
    found = search(grid({"lr": [0.1, 0.5]})).as_json()
    scoring = {"records_are": "file", "size": None, "noise_multiplier": None, "file": "table:my people.csv"}
    command = search_command({**found, "scoring": scoring}, "again")
    assert command is not None
    assert "--validation-data 'table:my people.csv' --out" in command
    assert "--validation " not in command


@pytest.fixture(scope="module")
def chosen(tmp_path_factory) -> RunFolder:
    out = tmp_path_factory.mktemp("searches") / "tuned"
    base = TrainConfig("cancer", **BASE, seed=3)
    tune(base, grid({"lr": [0.05, 1.0]}), validation=100, law=LAW, out=out)
    return RunFolder.open(out)


def parts_of(folder: RunFolder):
    section = run_page(folder).sections[-1]
    commands = [part.text for part in section.parts if isinstance(part, Command)]
    return commands, " ".join(line for part in section.parts if isinstance(part, Words) for line in part.lines)


@pytest.mark.slow
def test_no_train_command_is_offered_for_a_run_that_a_search_chose(chosen, tmp_path):
    commands, words = parts_of(chosen)
    assert [command.split()[1] for command in commands] == ["tune", "verify"]
    assert "no adadp train command repeats it" in words
    assert "--evaluate-every" not in str(run_page(chosen).sections)
    held = json.loads(chosen.search_path.read_text())
    other = replace(chosen, path=tmp_path / "tuned")
    other.path.mkdir()
    for path in chosen.path.iterdir():
        (other.path / path.name).write_bytes(path.read_bytes())
    other.search_path.write_text(json.dumps({**held, "settings": [{"lr": 0.05}, {"lr": 1.0, "clip_norm": 1.0}]}))
    commands, words = parts_of(other)
    assert [command.split()[1] for command in commands] == ["verify"]
    assert "no adadp train command repeats it" in words


def test_a_search_that_was_stopped_goes_on_as_a_search(chosen, tmp_path):
    folder = RunFolder.create(tmp_path / "stopped", chosen.config)
    folder.write_search(chosen.search())
    assert parts_of(folder)[0] == ["adadp tune --resume stopped"]
