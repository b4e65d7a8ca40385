"""The examples of docs/integrations.md run as printed, are short, and change few lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adadp.app.verify import verify_run

PAGE = Path(__file__).resolve().parents[3] / "docs" / "integrations.md"
FOLDERS = {"transformers": "bert/adadp", "lightning": "runs/lightning", "accelerate": "runs/accelerate"}


def example(library: str) -> str:
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [each for each in found if f"adadp.integrations.{library}" in each]
    return str(code)


@pytest.mark.slow
@pytest.mark.parametrize("library", FOLDERS)
def test_an_example_runs_and_verifies(library, tmp_path, monkeypatch):
    pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    exec(compile(example(library), f"{library} example", "exec"), {"__name__": "example"})
    assert [check.name for check in verify_run(tmp_path / FOLDERS[library]) if not check.passed] == []


@pytest.mark.parametrize("library", FOLDERS)
def test_an_example_changes_at_most_five_lines(library):
    lines = example(library).splitlines()
    assert sum("# private" in line for line in lines) <= 5
    assert sum(bool(line.strip()) for line in lines) <= 18
