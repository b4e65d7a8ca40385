"""The command ``adadp compare``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from adadp.app import zoo
from adadp.errors import InputError
from adadp.lab.cli.compare import _time, compare
from adadp.lab.compare import Comparison
from adadp.lab.compare.formatting import cell, differences, percent, smallest

BASE = [
    "--data",
    "cancer",
    "--delta",
    "1e-4",
    "--steps",
    "2",
    "--batch-size",
    "100",
    "--model",
    "linear",
    "--threads",
    "1",
]
BASE += ["--accountant", "zcdp"]  # the quickest to calibrate


def run(*words: str):
    return CliRunner().invoke(compare, [*words])


def refused(*words: str) -> str:
    error = run(*words).exception
    assert isinstance(error, InputError), error
    return str(error)


@pytest.mark.usefixtures("in_this_process")
def test_two_methods_and_two_schedules(tmp_path):
    out = str(tmp_path / "out")
    words = [*BASE, "--methods", "dpsgd", "--epsilon", "2", "--seeds", "4,6", "--out", out]
    schedules = ["--noise-schedule", "uniform:; exp:k=0.1", "--accuracy", ".01"]
    done = run(*words, *schedules, "--workers", "1")
    assert done.exit_code == 0, done.output
    assert "4 of 4: dpsgd, exp:k=0.1, epsilon 2, seed 6: " in done.stderr
    said = ("No difference shown", "points above", "came to the same accuracy with every seed")
    assert any(words in done.stdout for words in said)
    assert "Smallest epsilon for 1.00 %: dpsgd, uniform: <= 2, dpsgd, exp:k=0.1 <= 2" in done.stdout
    assert "no model's guarantee" in done.stdout
    assert "nobody's privacy was spent" in done.stdout
    again = run(*words, *schedules, "--workers", "1", "--json")
    assert again.exit_code == 0, again.output
    found = json.loads(again.stdout.splitlines()[-1])
    assert again.stderr == ""
    assert [case["name"] for case in found["cases"]] == ["dpsgd, uniform:", "dpsgd, exp:k=0.1"]
    assert found["seeds"] == [4, 6]
    assert "--epsilon 2" in found["command"]
    assert "--noise-schedule 'uniform:; exp:k=0.1'" in found["command"]
    assert "another comparison" in refused(*words, "--seeds", "1")


@pytest.fixture
def no_data(monkeypatch):
    def read(*_, **__):
        raise AssertionError("data was read")

    monkeypatch.setattr(zoo, "load", read)


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--methods", "dpsgd", "--epsilon", "2"], "needs a folder"),
        (["--epsilon", "2", "--out", "OUT"], "no methods"),
        (["--methods", "dpsgd,sgdp", "--epsilon", "2", "--out", "OUT"], "Unknown method 'sgdp'"),
        (["--methods", "dpsgd,dpsgd", "--epsilon", "2", "--out", "OUT"], "dpsgd twice"),
        (["--methods", "dpsgd,", "--epsilon", "2", "--out", "OUT"], "empty place"),
        (["--methods", "dpsgd", "--epsilon", "2,x", "--out", "OUT"], "--epsilon must be numbers"),
        (["--methods", "dpsgd", "--epsilon", "2,-1", "--out", "OUT"], "greater than 0"),
        (["--methods", "dpsgd", "--epsilon", "2", "--seeds", "0", "--out", "OUT"], "seeds must be at least 1"),
        (["--methods", "dpsgd", "--epsilon", "2", "--seeds", "1.5", "--out", "OUT"], "--seeds must be numbers"),
        (["--methods", "dpsgd", "--out", "OUT"], "None of epsilon, rho and noise_multiplier"),
        (["--methods", "adan", "--epsilon", "2", "--out", "OUT"], "not private"),
        (["--methods", "dpsgd", "--epsilon", "2", "--refine", "1", "--out", "OUT"], "refine is given without"),
        (["--methods", "dpsgd", "--epsilon", "2", "--most-epsilon", ".01", "--out", "OUT"], "more than epsilon 0.01"),
        (["FILE", "--methods", "dpsgd", "--out", "OUT"], "--methods was given together with a file"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_read(words, says, tmp_path):
    out = tmp_path / "out"
    file = tmp_path / "file.toml"
    file.write_text('[[case]]\nname = "a"\n')
    assert says in refused(*BASE, *(str({"OUT": out, "FILE": file}.get(word, word)) for word in words))
    assert not out.exists()


def test_one_seed_belongs_to_no_comparison():
    assert "No such option" in run(*BASE, "--methods", "dpsgd", "--seed", "3").output


def test_files_and_flags(monkeypatch, tmp_path):
    """What a comparison would be, without making it."""
    asked = list[Comparison]()
    monkeypatch.setattr(
        "adadp.lab.compare.compare", lambda spec, out, **_: asked.append(spec) or {"failed": [], "cases": []}
    )
    config = tmp_path / "config.toml"
    config.write_text(
        'data = "cancer"\nnoise_multiplier = 2.0\nmethod = "agd"\nseed = 3\nbatch_size = 50\ndelta = 1e-4\n'
    )
    file = tmp_path / "file.toml"
    file.write_text('title = "t"\nseeds = 2\n[base]\ndata = "cancer"\nbatch_size = 50\n[[case]]\nname = "a"\n')
    out = ["--out", str(tmp_path / "out"), "--json"]
    for words in (
        ["--config", str(config), "--methods", "dpsgd", "--epsilon", "1,2", "--batch-size", "60"],
        ["--config", str(config), "--methods", "dpsgd"],
        [str(file), "--epsilon", "3", "--batch-size", "70", "--title", "other"],
    ):
        assert run(*words, *out).exit_code == 0
    first, second, third = asked
    assert first.base == {"data": "cancer", "batch_size": 60, "delta": 1e-4}
    assert (first.epsilons, first.seeds) == ((1.0, 2.0), (0, 1, 2))
    assert second.base["noise_multiplier"] == 2.0
    assert third.base == {"data": "cancer", "batch_size": 70}
    assert (third.epsilons, third.seeds, third.title) == ((3.0,), (0, 1), "other")


CASES = [{"name": "a", "not_private": None}, {"name": "b", "not_private": None}]


def test_gains_that_never_vary_are_told_apart_from_none():
    """There is no t-test for them, and they may be the largest."""
    results = {"public": True, "cases": CASES, "seeds": [0, 1]}
    assert differences({**results, "pairs": [pair(-0.26, None)]}) == [
        "epsilon 2: b is 26.00 points above a, by the same with every seed: there is no test for that."
    ]
    assert differences({**results, "pairs": [pair(0.0, None)]}) == [
        "epsilon 2: a and b came to the same accuracy with every seed."
    ]


def test_what_is_not_private_is_marked_in_every_line():
    cases = [{"name": "a", "not_private": "Raw gradients."}, {"name": "b", "not_private": None}]
    results = {"public": True, "cases": cases, "seeds": [0, 1], "pairs": [pair(0.01, 0.01)], "marks": [0.9]}
    assert "a (NOT private) is 1.00 points above b" in differences(results)[0]
    results["smallest"] = [{"name": name, "mark": 0.9, "text": "<= 1"} for name in "ab"]
    assert smallest(results)[0] == "Smallest epsilon for 90.00 %: a (NOT private) <= 1, b <= 1"


def pair(gain: float, p: float | None) -> dict:
    shown = {"low": gain - 0.001, "high": gain + 0.001}
    return {"epsilon": 2.0, "name": "a", "over": "b", "seeds": 3, "gain": gain, **shown, "p": p, "p_holm": p}


def test_differences_in_words():
    public = {"public": True, "cases": CASES}
    assert differences({**public, "seeds": [0], "pairs": []}) == ["With one seed no difference can be tested."]
    several = [pair(0.1, 0.06), pair(0.1, None)]
    assert "No difference shown" in differences({**public, "seeds": [0, 1], "pairs": several})[0]
    assert "No two cases" in differences({**public, "seeds": [0, 1], "pairs": []})[0]
    (text,) = differences({**public, "seeds": [0, 1, 2], "pairs": [pair(-0.01, 0.02)]})
    assert text == "epsilon 2: b is 1.00 points above a (0.90 to 1.10; p 0.02 after Holm, 3 seeds)"


def test_runs_on_own_data_have_no_seeds():
    own = {"public": False, "seeds": [0, 1, 2], "cases": CASES}
    (text,) = differences({**own, "pairs": [pair(-0.01, 0.02)]})
    assert text.endswith("after Holm, 3 runs each)")
    assert "seed" not in differences({**own, "seeds": [0], "pairs": []})[0]


def test_what_is_left_is_told_with_one_digit():
    assert [_time(seconds) for seconds in (0.2, 61.0, 734.0, 8000.1)] == ["0:01", "1:10", "13:20", "2:30:00"]


def test_cells():
    case = {"name": "a", "epsilon": 2.0, "mean": 0.97611, "spread": 0.0012, "runs": [1]}
    assert cell({"cases": [case], "seeds": [0]}, "a", 2.0) == "97.61 ± 0.12"
    assert cell({"cases": [case], "seeds": [0, 1]}, "a", 2.0) == "97.61 ± 0.12 (1 of 2)"
    assert cell({"cases": [case], "seeds": [0]}, "a", None) == ""
    assert percent(None, None) == ""
    assert smallest({"cases": [], "marks": [], "smallest": []}) == []


def test_the_examples_of_the_page_are_options_there_are():
    page = (Path(__file__).parents[3] / "docs" / "compare.md").read_text()
    known = {name for each in compare.params for name in (*each.opts, *each.secondary_opts)}
    lines = [line for line in page.splitlines() if "adadp compare " in line and line.startswith("    ")]
    used = {word.split("=")[0] for line in lines for word in line.split() if word.startswith("--")}
    assert used
    assert used <= known
