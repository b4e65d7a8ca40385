"""The names users import, and the README's example."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import adadp

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.parametrize("name", adadp.__all__)
def test_public_names_exist(name: str) -> None:
    assert getattr(adadp, name) is not None
    assert name in dir(adadp)


def test_lazy_names_are_the_public_names() -> None:
    assert {*adadp._HOME_OF, "__version__"} == set(adadp.__all__)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fit_everything'"):
        _ = adadp.fit_everything


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_readme_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fit, step_by_step = examples()
    monkeypatch.chdir(tmp_path)
    exec(compile(fit, "README", "exec"), {})
    accuracy, guarantee, *_ = capsys.readouterr().out.splitlines()
    assert float(accuracy) > 0.85
    assert guarantee.startswith("(2, 0.0001)-differentially private")
    exec(compile(step_by_step, "README", "exec"), {})
    run = adadp.read_ledger(tmp_path / "ledger.jsonl").event()
    assert 1.9 < adadp.accountant("pld").epsilon(run, 1e-5).epsilon <= 2


def test_readme_examples_are_short() -> None:
    assert all(len(example.splitlines()) <= 13 for example in examples())


def test_readme_results_are_the_measured_ones() -> None:
    """The table is what `make results` printed; the file it wrote is committed beside it."""
    measured = json.loads((README.parent / "benchmarks" / "results" / "accuracy.json").read_text(encoding="utf-8"))
    rows = re.findall(
        r"^\| (\w+) \| (\S+) \| \S+ \| \S+ \| ([\d.]+) ± ([\d.]+) % \|$", README.read_text(), re.MULTILINE
    )
    assert len(rows) == len(measured)
    for (data, model, mean, spread), result in zip(rows, measured.values(), strict=True):
        assert (data, model) == (result["data"], result["model"])
        assert (float(mean), float(spread)) == (round(100 * result["mean"], 2), round(100 * result["spread"], 2))
        assert all(run["verified"] and run["epsilon"] <= result["epsilon"] for run in result["runs"])


def test_the_table_of_accountants_is_what_the_command_prints() -> None:
    run = adadp.Repeated(adadp.PoissonSampled(0.01, adadp.GaussianRelease(4.0)), 10_000)
    page = (README.parent / "docs" / "accounting.md").read_text(encoding="utf-8")
    table = page[page.index("| accountant | epsilon | status |") :].split("\n\n")[0]
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| (.+?) \|$", table, re.MULTILINE)
    names = ("pld", "rdp", "moments", "strong", "zcdp", "zcdp-sampled", "strong-published", "theorem1")
    assert len(rows) == len(names)
    for name, (_, printed, _) in zip(names, rows, strict=True):
        decimals = len(printed.split(".")[1])
        assert float(printed) == round(adadp.accountant(name).epsilon(run, 1e-5).epsilon, decimals), name
