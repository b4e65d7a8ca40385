"""What several tests of comparisons need."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from adadp.app.sweeps.handing import failure_of


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """A folder with a user's own records: train.csv, test.csv and schema.toml."""
    place = tmp_path_factory.mktemp("own")
    chance = random.Random(1)
    for name, rows in {"train": 200, "test": 40}.items():
        with (place / f"{name}.csv").open("w") as file:
            file.write("age,income\n")
            for _ in range(rows):
                age = chance.uniform(20, 70)
                file.write(f"{age:.1f},{'high' if age > 45 else 'low'}\n")
    (place / "schema.toml").write_text(
        '[target]\ncolumn = "income"\nclasses = ["low", "high"]\n[columns]\n'
        'age = {kind = "number", low = 0, high = 100}\n'
    )
    return place


@pytest.fixture
def in_this_process(monkeypatch) -> set[str]:
    """Runs are made here, where processes are not the point. Those whose folder's name is put into the set fail."""
    failing = set[str]()

    def run_tasks(tasks, executor, *, marks, finished, tick):
        for task in tasks:
            try:
                if task.name in failing:
                    raise RuntimeError("It was told to fail.")
                measured = task.make()
            except Exception as error:  # as a worker does
                finished(task, None, failure_of(error))
            else:
                finished(task, measured, None)

    monkeypatch.setattr("adadp.lab.compare.comparing.run_tasks", run_tasks)
    return failing
