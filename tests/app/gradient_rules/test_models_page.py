"""The examples of docs/models.md run as printed."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "models.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs_the_fast_way(number, tmp_path, monkeypatch):
    for library in ("transformers", "peft"):
        if f"import {library}" in EXAMPLES[number] or f"from {library}" in EXAMPLES[number]:
            pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="(?s).*(no closed form|record by record|one at a time)")
        exec(compile(EXAMPLES[number], f"example {number}", "exec"), {"__name__": "example"})


def test_every_family_that_people_ask_for_has_an_example():
    whole = "\n".join(EXAMPLES)
    for part in ("BertForSequence", "GPT2LMHead", "LoraConfig", "nn.LSTM", "ViTForImage"):
        assert part in whole
