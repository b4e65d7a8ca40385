"""A few of the real items, quickly: what `adadp reproduce ITEM --quick` does on a user's machine."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from adadp.app.cli import main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("item", "figures", "names"),
    [
        ("xu-2020/example-lemma1", 3, ["(17, 8.5), in proportion to s"]),
        ("xu-2020/figure5a", 2, ["0.0008", "0.001"]),
        ("yu-2019/figure14", 2, ["rho 0.02: uniform"]),
    ],
)
def test_quick(item, figures, names, tmp_path):
    answer = CliRunner().invoke(
        main, ["reproduce", item, "--quick", "--out", str(tmp_path), "--json", "--threads", "1"]
    )
    assert answer.exit_code == 0, answer.output
    (found,) = json.loads(answer.output.splitlines()[-1])
    assert found["item"] == item
    assert len(found["figures"]) == figures
    assert set(names) <= {figure["name"] for figure in found["figures"]}
    paper = item.partition("/")[0]
    page = (tmp_path / f"{paper}-quick.md").read_text(encoding="utf-8")
    assert f"adadp reproduce {item} --quick" in page
    for figure in found["figures"]:
        assert figure["ours"] in page
