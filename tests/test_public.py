"""The names users import, and the README's example."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

import adadp
from adadp.events import GaussianRelease, PoissonSampled, Repeated
from adadp.ledger import read_ledger

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.parametrize("name", adadp.__all__)
def test_public_names_exist(name: str) -> None:
    assert getattr(adadp, name) is not None
    assert name in dir(adadp)


def test_lazy_names_are_the_public_names() -> None:
    assert {*adadp._HOMES} == {name for name in adadp.__all__ if name not in vars(adadp)}


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fit_everything'"):
        _ = adadp.fit_everything


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_readme_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (fit,) = examples()
    monkeypatch.chdir(tmp_path)
    exec(compile(fit, "README", "exec"), {})
    accuracy, guarantee, *_ = capsys.readouterr().out.splitlines()
    assert float(accuracy) > 0.85
    assert guarantee.startswith("Adding or removing one record of the training data changes the probability")
    assert guarantee in " ".join(README.read_text(encoding="utf-8").split())


def test_the_training_loop_in_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (README.parent / "docs" / "training.md").read_text(encoding="utf-8")
    (loop,) = re.findall(r"```python\n([^`]*PrivateGradients\([^`]*)```", page)
    monkeypatch.chdir(tmp_path)
    exec(compile(loop, "training.md", "exec"), {})
    run = read_ledger(tmp_path / "ledger.jsonl").event()
    assert 1.9 < adadp.accountant("pld").epsilon(run, 1e-5).epsilon <= 2


def test_readme_examples_are_short() -> None:
    assert all(len(example.splitlines()) <= 13 for example in examples())


def test_readme_results_are_the_measured_ones() -> None:
    """Its rows are some of those that `make results` printed; the file it wrote is committed beside it."""
    measured = json.loads((README.parent / "benchmarks" / "results" / "accuracy.json").read_text(encoding="utf-8"))
    tables = benchmark("accuracy")
    for run in (run for result in measured.values() for run in result["runs"]):
        assert run["verified"]
    for result in (result for result in measured.values() if result["epsilon"] is not None):
        assert all(run["epsilon"] <= result["epsilon"] for run in result["runs"])
    assert all(result["private"] == (result["runs"][0]["epsilon"] is not None) for result in measured.values())
    head, line, *rows = re.findall(r"^\|.*\|$", README.read_text(encoding="utf-8").partition("## Results")[2], re.M)[:7]
    assert {head, line, *rows} <= set(tables.table(measured, readme=True).splitlines())
    assert tables.table(measured) in (README.parent / "docs" / "results.md").read_text(encoding="utf-8")
    for result in measured.values():
        means = [run["test_accuracy"] for run in result["runs"]]
        assert len(means) == result["seeds"] + result["secure"] >= 3
        assert result["mean"] == pytest.approx(sum(means) / len(means))


def test_every_measured_result_has_its_experiment() -> None:
    measured = json.loads((README.parent / "benchmarks" / "results" / "accuracy.json").read_text(encoding="utf-8"))
    known = {
        name: config
        for path in (README.parent / "experiments").glob("*.toml")
        for name, config, _ in benchmark("accuracy").budgets(path)
    }
    assert set(measured) <= set(known)
    for name, result in measured.items():
        assert (result["data"], result["epsilon"]) == (known[name].data, known[name].epsilon)


def benchmark(name: str):
    """A program in benchmarks/, such as accuracy.py, which makes the tables."""
    folder = str(README.parent / "benchmarks")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def test_the_table_beside_the_leaderboard_is_that_of_the_measured_results() -> None:
    measured = json.loads((README.parent / "benchmarks" / "results" / "accuracy.json").read_text(encoding="utf-8"))
    leaderboard = benchmark("leaderboard")
    ours = leaderboard.best(measured)
    assert leaderboard.table(ours) in (README.parent / "docs" / "results.md").read_text(encoding="utf-8")
    assert leaderboard.SUBMISSION.read_text(encoding="utf-8") == leaderboard.submission(ours)
    for row in ours:
        others = [each for each in measured.values() if (each["data"], each["public"]) == (row["data"], row["public"])]
        same = [each for each in others if each["epsilon"] == row["epsilon"] and each["private"]]
        assert row["mean"] == max(each["mean"] for each in same)


def test_the_table_of_accountants_is_what_the_command_prints() -> None:
    run = Repeated(PoissonSampled(0.01, GaussianRelease(4.0)), 10_000)
    page = (README.parent / "docs" / "accounting.md").read_text(encoding="utf-8")
    table = page[page.index("| accountant | epsilon | status |") :].split("\n\n")[0]
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| (.+?) \|$", table, re.MULTILINE)
    names = ("pld", "rdp", "moments", "strong", "zcdp", "zcdp-sampled", "strong-published", "theorem1")
    assert len(rows) == len(names)
    for name, (_, printed, _) in zip(names, rows, strict=True):
        decimals = len(printed.split(".")[1])
        assert float(printed) == round(adadp.accountant(name).epsilon(run, 1e-5).epsilon, decimals), name
