"""The study of time per iteration: what is measured and how it is told. How fast anything is, no test asks."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from adadp.app.cli import main
from adadp.app.texts.methods import parse_method
from adadp.errors import InputError
from adadp.lab.studies.plots import draw_study
from adadp.lab.studies.timing import CASES, METHODS, PRINTED, CaseTimes, TimeStudy, study_time

pytestmark = pytest.mark.slow


ROOT = Path(__file__).resolve().parents[3]
LINE = "study time --case mnist --rounds 1"


@pytest.fixture(scope="module")
def short() -> TimeStudy:
    """Every method, one round of one step each."""
    return study_time(["mnist"], rounds=1, seconds=1e-6)


def made_up(**ms: float) -> TimeStudy:
    """As if measured, in all cases."""
    names = {name.replace("_", "-"): value for name, value in ms.items()}
    return TimeStudy(
        3, {name: METHODS[name] for name in names}, tuple(CaseTimes(case, names) for case in CASES.values())
    )


class TestMeasuring:
    def test_every_method_of_the_table(self, short):
        assert short.methods == METHODS
        (times,) = short.cases
        assert list(times.ms) == list(METHODS)
        assert all(value > 0 for value in times.ms.values())
        assert times.over_dpsgd["dpsgd"] == 1

    def test_the_table_names_what_can_be_parsed_and_what_is_private(self, short):
        assert all(parse_method(text) for text in METHODS.values())
        assert short.not_private == ("adadp-published", "dpopt-raw", "dpopt-published")
        assert {name for case in PRINTED.values() for name in case} <= set(METHODS)
        assert set(PRINTED) <= set(CASES)

    def test_dpsgd_is_measured_all_the_same_and_methods_once(self):
        found = study_time(["mnist", "mnist"], ["adadp", "adadp:start=1", "agd:grid=3"], rounds=1, seconds=1e-6)
        assert found.methods == {"dpsgd": "dpsgd", "adadp": "adadp:start=1", "agd-grid-3": "agd:grid=3"}
        assert [each.case.name for each in found.cases] == ["mnist"]

    def test_threads_and_generator_are_left_as_they_were(self):
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(2)
            state = torch.random.get_rng_state()
            during = []
            study_time(
                ["mnist"], ["dpsgd"], rounds=1, seconds=1e-6, watch=lambda *_: during.append(torch.get_num_threads())
            )
            assert set(during) == {1}
            assert torch.get_num_threads() == 2
            assert torch.equal(torch.random.get_rng_state(), state)
            with pytest.raises(ZeroDivisionError):
                study_time(["mnist"], ["dpsgd"], rounds=1, seconds=1e-6, watch=lambda *_: 1 / 0)
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)

    def test_rounds_are_told(self):
        told = []
        study_time(["mnist"], ["dpsgd"], rounds=2, seconds=1e-6, watch=lambda *what: told.append(what))
        assert told == [("mnist", done, 4) for done in (1, 2, 3, 4)]

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            ({"cases": ["minst"]}, "There is no case 'minst' to time"),
            ({"methods": ["adadpp"]}, "Unknown method 'adadpp'"),
            ({"methods": ["agd:grit=5"]}, "has no option 'grit'"),
            ({"rounds": 0}, "rounds must be at least 1"),
            ({"seconds": 0.0}, "seconds must be greater than 0"),
        ],
    )
    def test_bad_input_is_refused_before_anything_is_measured(self, asked, message):
        told = []
        with pytest.raises(InputError, match=message):
            study_time(**{"cases": ["mnist"], "methods": ["dpsgd"], **asked}, watch=lambda *what: told.append(what))
        assert told == []


class TestNumbers:
    def test_ratios(self):
        found = made_up(dpsgd=2.0, adadp=3.0, agd=8.0)
        assert found.cases[0].over_dpsgd == {"dpsgd": 1.0, "adadp": 1.5, "agd": 4.0}
        assert found.cases[0].printed_over_dpsgd == pytest.approx({"dpsgd": 1, "agd": 40})
        assert found.cases[1].printed_over_dpsgd == pytest.approx({"dpsgd": 1, "agd": 23.7 / 0.9})
        assert found.cases[2].printed_over_dpsgd == {}

    def test_json_can_be_read_by_dotted_paths(self):
        numbers = json.loads(json.dumps(made_up(dpsgd=2.0, adadp_published=3.0).to_json(), allow_nan=False))
        assert numbers["cases"]["mnist"]["over_dpsgd"]["adadp-published"] == 1.5
        assert numbers["cases"]["mnist"]["batch_size"] == 120
        assert numbers["cases"]["cifar10"]["batch_size"] == 32
        assert numbers["printed"]["mnist"]["seconds"]["dpopt-published"] == 15.5
        assert numbers["printed"]["mnist"]["over_dpsgd"]["adadp-published"] == pytest.approx(5 / 3)
        assert list(numbers["printed"]) == ["mnist", "cifar10"]
        assert numbers["methods"] == {"dpsgd": "dpsgd", "adadp-published": "adadp-published:threshold=0"}
        assert numbers["rounds"] == 3
        assert not any("." in name or "," in name for name in (*METHODS, *CASES))


def drawn(path: Path) -> bool:
    """Whether ``path`` is a picture with something on it."""
    with Image.open(path) as image:
        return image.width > 500 and image.height > 300 and np.asarray(image.convert("L")).std() > 5


def test_anything_that_was_measured_can_be_drawn(tmp_path, short):
    assert all(map(drawn, draw_study("time", tmp_path, short)))
    assert all(map(drawn, draw_study("time", tmp_path, made_up(dpsgd=1.0))))


def test_the_page_has_a_row_per_method(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    script = importlib.import_module("method_time")
    found = made_up(dpsgd=2.0, adadp_published=3.0, dpopt_published=9.0)
    lines = script.rows(found)
    assert [line.split("|")[1].strip() for line in lines[2:]] == [f"`{text}`" for text in found.methods.values()]
    assert [line.split("|")[-2].strip() for line in lines] == ["printed (MNIST)", "---:", "", "1.7", "52"]
    assert lines[3].split("|")[2].strip() == "3.0 (1.50)"
    assert script.by_title(found)[CASES["cifar10"].title] == {
        "dpsgd": 2.0,
        "adadp-published:threshold=0": 3.0,
        "dpopt:source=raw,solver=projected,start=1": 9.0,
    }


def adadp(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


class TestCommand:
    def test_prints_a_row_per_method_and_writes(self, tmp_path):
        result = adadp(f"{LINE} --method adadp-published --out {tmp_path}")
        assert result.exit_code == 0, result.output
        rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
        assert rows["adadp-published"][0] == "adadp-published:threshold=0"
        assert rows["adadp-published"][-1] == "1.7"
        assert float(rows["dpsgd"][1]) > 0
        assert rows["dpsgd"][2] == "1.00"
        assert "Not private: adadp-published." in result.stdout
        numbers = json.loads((tmp_path / "time.json").read_text())
        assert list(numbers["cases"]["mnist"]["ms"]) == ["dpsgd", "adadp-published"]
        assert drawn(tmp_path / "time.png")

    def test_json(self):
        result = adadp(f"{LINE} --method agd:grid=2 --json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["methods"] == {"dpsgd": "dpsgd", "agd-grid-2": "agd:grid=2"}

    def test_the_help_names_the_cases(self):
        options = {option.name: option for option in main.commands["study"].commands["time"].params}
        assert all(name in options["cases"].help for name in CASES)
        assert options["rounds"].default == 25

    def test_bad_input_is_refused(self):
        result = adadp("study time --case nist")
        assert result.exit_code == 2, result.output
        assert "Choose one of: mnist, cifar10, mnist-1200" in result.stderr
        assert result.stdout == ""
