"""A table of a paper made on an executor: the same results, and one run that fails takes no other along."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from adadp.app.cli import main
from adadp.errors import RunError
from adadp.lab.reproduce import Store, measure, measuring
from adadp.lab.reproduce.items import item_of

pytestmark = pytest.mark.slow

TINY = {
    "title": "A tiny figure",
    "where": "section 1",
    "seeds": 2,
    "base": {"data": "cancer", "method": "dpsgd", "delta": 1e-3, "batch_size": 56, "steps": 3, "threads": 1},
    "case": [{"name": name, "set": {"epsilon": 2.0, "lr": lr}} for name, lr in (("slow", 0.01), ("fast", 0.1))],
}


@pytest.fixture(scope="module")
def item():
    return item_of("small", "tiny", TINY)


def runs_in(out: Path) -> dict[str, list[dict[str, object]]]:
    runs = json.loads((out / "results" / "small" / "tiny.json").read_text())["runs"]
    return {
        name: [{key: value for key, value in run.items() if key != "seconds"} for run in each["runs"]]
        for name, each in runs.items()
    }


def test_it_comes_to_the_same(item, tmp_path):
    measure(Store(item, tmp_path / "here"))
    with ThreadPoolExecutor(2) as executor:
        measure(Store(item, tmp_path / "there"), executor=executor)
        measure(Store(item, tmp_path / "there"), executor=executor, tell=pytest.fail)
    assert runs_in(tmp_path / "there") == runs_in(tmp_path / "here")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["results"]


def test_a_run_that_fails_is_told_and_the_others_are_made(item, tmp_path, monkeypatch):
    real, said = measuring.measured_run, list[str]()

    def fails(config, out, **options):
        if (config.lr, config.seed) == (0.01, 1):
            raise OSError("no device")
        return real(config, out, **options)

    monkeypatch.setattr(measuring, "measured_run", fails)
    with ThreadPoolExecutor(1) as executor, pytest.raises(RunError, match="these runs failed: slow, seed 1"):
        measure(Store(item, tmp_path), executor=executor, tell=said.append)
    assert [line for line in said if "FAILED: OSError: no device" in line]
    assert {name: [run["seed"] for run in runs] for name, runs in runs_in(tmp_path).items()} == {
        "slow": [0],
        "fast": [0, 1],
    }


def test_threads_of_this_process_do_not_go_with_an_executor():
    done = CliRunner().invoke(main, ["reproduce", "--executor", "processes:2", "--threads", "1"])
    assert done.exit_code == 2
    assert "--threads was given with --executor" in done.output
