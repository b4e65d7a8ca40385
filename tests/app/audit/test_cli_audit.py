"""``adadp audit`` as people and programs use it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from adadp.app.cli import main
from adadp.app.cli.audit import audit

pytestmark = pytest.mark.slow


SMALL = "--trials 40 --records 40 --batch-size 20 --steps 4"


@pytest.fixture(scope="module")
def commands():
    """The group of all commands, which turns errors into messages."""
    group = type(main)("adadp")
    group.add_command(audit)
    return group


def run(commands, line):
    return CliRunner().invoke(commands, ["audit", *line.split()])


def test_a_private_method_is_not_refuted(commands):
    result = run(commands, f"dpsgd {SMALL} --epsilon 1 --delta 1e-2")
    assert result.exit_code == 0, result.output
    assert "certified epsilon 1.0000 (pld)" in result.stdout
    assert "canary: epsilon at least" in result.stdout
    assert "dirac: epsilon at least" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Not refuted")


def test_a_published_one_is_with_an_exit_code_and_files(commands, tmp_path):
    result = run(commands, f"adadp-published {SMALL} --noise-multiplier 8 --attack canary --out {tmp_path / 'found'}")
    assert result.exit_code == 1, result.output
    assert "claimed epsilon" in result.stdout
    assert "Not private: Line 23" in result.stdout
    assert "REFUTED" in result.stdout
    assert (tmp_path / "found" / "audit.png").is_file()
    assert json.loads((tmp_path / "found" / "audit.json").read_text())["refuted"] is True


def test_json_is_one_object(commands):
    result = run(
        commands,
        "adadp:start=2 --trials 4 --steps 3 --records 20 --batch-size 10 --noise-multiplier 1 --attack dirac --json",
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found) >= {
        "method",
        "claimed_epsilon",
        "certified",
        "epsilon_low",
        "refuted",
        "verdict",
        "delta",
        "plan",
    }
    assert (found["method"], found["certified"], found["attacks"][0]["attack"]) == ("adadp:start=2", True, "dirac")
    assert found["attacks"][0]["trials"] == 4


def test_a_clip_rule_can_be_named(commands):
    result = run(
        commands,
        "dpsgd --trials 2 --steps 1 --noise-multiplier 1 --attack dirac --clip-rule automatic:0.5,gamma=0.01 --json",
    )
    assert json.loads(result.stdout)["plan"]["clip_norm"] == "automatic:0.5,gamma=0.01"


def test_other_kinds_of_runs_can_be_named(commands):
    line = "dpsgd --trials 2 --steps 2 --records 12 --batch-size 6 --noise-multiplier 1 --attack loss"
    plan = json.loads(run(commands, f"{line} --sampling reshuffle --neighbours zero-out --json").stdout)["plan"]
    assert (plan["sampling"], plan["neighbours"]) == ("reshuffle", "zero-out")
    shown = run(commands, f"{line} --best-of 2 --rows 2")
    assert "(rdp)" in shown.stdout
    assert "features: epsilon at least" in run(commands, "pca:dim=2 --trials 2 --delta 0.1").stdout


@pytest.mark.parametrize(
    "line",
    [
        "sgd",
        "dpsgd --noise-multiplier 1 --epsilon 1",
        "dpsgd --noise-multiplier 0",
        "dpsgd --records 5000",
        "dpsgd --clip-rule round",
    ],
)
def test_mistakes_are_told_without_a_traceback(commands, line):
    result = run(commands, f"{line} --trials 2 --steps 1")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error" in result.stderr
