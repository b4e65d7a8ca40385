"""What docs/papers/yu-2019-schedules.md prints is what was measured, and every experiment can be planned."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from adadp.config import TrainConfig
from adadp.launch import resolved, training_records
from adadp.train import plan_of

ROOT = Path(__file__).resolve().parents[1]
SUITES = sorted(path.stem for path in (ROOT / "experiments" / "schedules").glob("*.toml"))


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("schedules", "accuracy", "harness", "table1"):
        sys.modules.pop(name, None)
    import schedules

    return schedules


def test_the_page_is_what_was_measured(schedules: ModuleType) -> None:
    done = json.loads(schedules.RESULTS.read_text(encoding="utf-8"))
    page = schedules.PAGE.read_text(encoding="utf-8")
    assert schedules.page_text(done) in page
    for name, result in done.items():
        assert all(run["verified"] for run in result["runs"]), name
        seeds = [run["seed"] for run in result["runs"]]
        assert seeds == sorted(set(seeds))


def test_every_result_belongs_to_a_case_and_its_command(schedules: ModuleType) -> None:
    done = json.loads(schedules.RESULTS.read_text(encoding="utf-8"))
    commands = {
        f"{name}/{case['name']}": TrainConfig.from_dict(content["base"] | case["set"]).as_command()
        for name in SUITES
        for content in [schedules.suite(name)]
        for case in content["case"]
    }
    for key, result in done.items():
        assert result["command"] == commands[key]


def test_the_plans_are_those_of_the_paper(schedules: ModuleType) -> None:
    content = schedules.suite("table2")
    for case in content["case"]:
        config = resolved(TrainConfig.from_dict(content["base"] | case["set"]))
        if "printed_epochs" in case and case["name"] != "validation":
            assert plan_of(config, training_records(config)).epochs == case["printed_epochs"]
