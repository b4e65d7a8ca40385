"""The names users import, and the README's example."""

from __future__ import annotations

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


def test_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README", "exec"), {})
    first, last = capsys.readouterr().out.splitlines()
    sigma, epsilon = map(float, first.split())
    promised_sigma, promised_epsilon = re.search(r"# ([\d.]+) ([\d.]+)", example).groups()
    assert sigma == pytest.approx(float(promised_sigma), abs=1e-5)
    assert epsilon == pytest.approx(float(promised_epsilon), abs=1e-6)
    assert 0 <= float(last) < epsilon


def test_readme_results_are_what_the_command_prints() -> None:
    run = adadp.Repeated(adadp.PoissonSampled(0.01, adadp.GaussianRelease(4.0)), 10_000)
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| (.+?) \|$", README.read_text(), re.MULTILINE)
    names = ("pld", "rdp", "moments", "strong", "zcdp", "zcdp-sampled", "strong-published", "theorem1")
    assert len(rows) == len(names)
    for name, (_, printed, _) in zip(names, rows, strict=True):
        decimals = len(printed.split(".")[1])
        assert float(printed) == round(adadp.accountant(name).epsilon(run, 1e-5).epsilon, decimals), name
