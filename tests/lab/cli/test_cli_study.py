"""``adadp study`` as programs and people use it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from adadp.app.cli import main
from adadp.lab.studies.functions import LANDSCAPES


def adadp(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


def answer(line: str) -> dict:
    result = adadp(line + " --json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(line: str) -> str:
    result = adadp(line)
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    return result.stderr


def drawn(path: Path) -> bool:
    """Whether ``path`` is a picture with something on it."""
    with Image.open(path) as image:
        return image.width > 500 and image.height > 300 and np.asarray(image.convert("L")).std() > 5


def test_the_group_lists_its_commands():
    listed = adadp("study --help").output
    assert "cosine" in listed
    assert "functions" in listed


class TestMomentum:
    def test_prints_the_factor_of_the_paper(self):
        result = adadp("study momentum")
        assert result.exit_code == 0, result.output
        rows = {
            line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()[:2] in ("0", "0.")
        }
        assert rows["0.9"] == ["5.263", "10", "0.229"]
        assert rows["0.6"][0] == "1.562"

    def test_after_some_steps_as_json(self):
        assert answer("study momentum --c 0.6 --steps 2") == [
            {"c": 0.6, "variance_factor": pytest.approx(1.36), "signal_factor": pytest.approx(1.6)}
        ]

    def test_a_wrong_coefficient_is_refused(self):
        assert "c must be below 1" in refusal("study momentum --c 1")


class TestCosine:
    def test_prints_what_is_printed_and_what_comes_out(self):
        result = adadp("study cosine --draws 1000")
        assert result.exit_code == 0, result.output
        row = next(line for line in result.stdout.splitlines() if "(13.5, 13.5)" in line)
        assert {"0.4780", "0.36", "0.9877", "yes"} <= set(row.split())
        assert "is not better than equal noise" in result.stdout
        assert all(len(line) <= 80 for line in result.stdout.splitlines() if "(1" in line)

    def test_json_holds_choices_and_curve(self):
        found = answer("study cosine --draws 1000 --seed 3")
        assert [choice["printed"] for choice in found["choices"]] == [0.52, 0.36, 0.28]
        assert found["best"]["similarity"] == pytest.approx(0.4908, abs=1e-4)
        assert found["seed"] == 3
        assert len(found["curve"]) > 100

    def test_the_same_seed_gives_the_same_numbers(self):
        one, two, other = (answer(f"study cosine --draws 100 --seed {seed}") for seed in (1, 1, 2))
        assert one == two
        assert one["choices"][0]["sampled"] != other["choices"][0]["sampled"]

    def test_the_example_can_be_changed(self):
        found = answer("study cosine --draws 10 --sensitivity 1 2 --query 3 4 --noise 5 6 --noise 1 1 --sigma-star .5")
        assert [choice["noise"] for choice in found["choices"]] == [[5, 6], [1, 1]]
        assert [choice["allowed"] for choice in found["choices"]] == [True, False]
        assert (found["sensitivity"], found["query"], found["sigma_star"]) == ([1, 2], [3, 4], 0.5)

    def test_out_writes_numbers_and_picture(self, tmp_path):
        out = tmp_path / "a" / "b"
        result = adadp(f"study cosine --draws 1000 --out {out} --json")
        assert result.exit_code == 0, result.output
        assert json.loads((out / "cosine.json").read_text()) == json.loads(result.stdout)
        assert drawn(out / "cosine.png")
        assert re.findall(r"wrote \S+/(\S+)", result.stderr) == ["cosine.json", "cosine.png"]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("--query 0 0", "query must be finite and not zero"),
            ("--noise 0 1", "noise_1 must be greater than 0"),
            ("--draws 0", "draws must be at least 2"),
            ("--seed -1", "seed must be at least 0"),
            ("--noise 1", "requires 2 arguments"),
        ],
    )
    def test_bad_input_is_refused(self, line, message):
        assert message in refusal(f"study cosine {line}")

    def test_a_folder_that_cannot_be_made_is_refused(self, tmp_path):
        (tmp_path / "file").write_text("")
        result = adadp(f"study cosine --draws 2 --json --out {tmp_path}/file/folder")
        assert result.exit_code == 2
        assert "Cannot write" in result.stderr


class TestFunctions:
    def test_prints_a_row_per_method(self):
        result = adadp("study functions beale --runs 5 --steps 20")
        assert result.exit_code == 0, result.output
        rows = [line.split() for line in result.stdout.splitlines() if "adadp " in line or "dpsgd " in line]
        assert rows[0][:2] == ["beale", "adadp"]
        assert "0.21" in rows[0]
        assert "0.90" in rows[1]
        assert "from (1, 1)" in result.stdout
        assert '"clip_norm": 4.0' in result.stdout

    def test_all_functions_unless_named(self):
        rows = answer("study functions --runs 2 --steps 3")["rows"]
        assert [row["function"] for row in rows[::3]] == list(LANDSCAPES)
        assert [row["method"] for row in rows[:3]] == ["adadp", "adal", "dpsgd"]

    def test_a_function_named_twice_is_drawn_once(self):
        assert len(answer("study functions sphere booth sphere --runs 2 --steps 3")["rows"]) == 6

    def test_options_reach_the_walk(self):
        line = "study functions beale --runs 3 --steps 9 --noise-multiplier 0 --clip-norm 2 --rate .1"
        line += " --adaptive-rate .2 --beta 3"
        found = answer(line + " --start 2 -1 --seed 5")
        assert found["settings"] == {
            "noise_multiplier": 0,
            "clip_norm": 2,
            "rate": 0.1,
            "adaptive_rate": 0.2,
            "beta": 3,
            "steps": 9,
            "runs": 3,
            "seed": 5,
        }
        assert {row["distance"] for row in found["rows"]} == {0.0}
        assert found["rows"][0]["start"] == [2, -1]

    def test_defaults_of_the_command_are_those_of_the_library(self):
        from dataclasses import asdict

        from adadp.lab.studies.descent import Settings

        found = answer("study functions sphere --runs 2")["settings"]
        assert found == asdict(Settings()) | {"runs": 2, "seed": 0}

    def test_out_writes_numbers_and_pictures(self, tmp_path):
        result = adadp(f"study functions beale-printed himmelblau --runs 5 --steps 30 --out {tmp_path} --json")
        assert result.exit_code == 0, result.output
        assert json.loads((tmp_path / "functions.json").read_text()) == json.loads(result.stdout)
        pictures = sorted(path.name for path in tmp_path.glob("*.png"))
        assert pictures == ["functions.png", "paths-beale-printed.png", "paths-himmelblau.png"]
        assert all(drawn(tmp_path / name) for name in pictures)

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("bale", "Unknown test function 'bale'"),
            ("beale --runs 1", "--runs must be at least 2"),
            ("beale --steps 0", "--steps must be at least 1"),
            ("beale --clip-norm 0", "--clip-norm must be greater than 0"),
            ("beale --noise-multiplier -1", "--noise-multiplier must not be negative"),
            ("beale --start 1e200 1", "left the range of numbers"),
        ],
    )
    def test_bad_input_is_refused(self, line, message):
        assert message in refusal(f"study functions {line}")
