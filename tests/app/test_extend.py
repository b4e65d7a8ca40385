"""Parts of a user's own: the method and the clip rule of docs/extend.md, wherever ours work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import adadp
from adadp.app.cli import main
from adadp.app.runs import RunFolder
from adadp.app.train import verify_run
from adadp.errors import Interrupted
from adadp.methods import GRADIENT, ClippedSum, DpSgd
from adadp.testing import check_clip_rule, check_method

pytestmark = pytest.mark.slow


PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
METHOD, CHECK, RULE = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
FLAGS = ["--data", "cancer", "--model", "cancer-mlp", "--epsilon", "4", "--delta", "1e-4", "--steps", "6"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the two files of the page, and a package that offers them by entry points."""
    place = tmp_path_factory.mktemp("own")
    (place / "my_method.py").write_text(METHOD, encoding="utf-8")
    (place / "my_rule.py").write_text(RULE, encoding="utf-8")
    return place


@pytest.fixture
def here(folder, monkeypatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def ran(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def lines(code: str) -> int:
    return sum(1 for line in code.splitlines() if line.strip())


def test_a_method_takes_30_lines_and_a_clip_rule_20():
    assert lines(METHOD) <= 30
    assert lines(RULE) <= 20


def test_the_page_checks_its_own_method_and_rule(here):
    exec(CHECK, {})
    check_clip_rule(import_module("my_rule").Smooth(1.0))


@pytest.mark.parametrize("place", ["my_method.py:SignMomentum:memory=0.8", "my_method:SignMomentum:memory=0.8"])
def test_a_method_by_its_place_trains_resumes_verifies_and_reports(here, tmp_path, place):
    out = tmp_path / "run"
    ran("train", *FLAGS, "--method", place, "--clip-rule", "my_rule.py:Smooth:0.5", "--out", out)
    assert json.loads(ran("verify", out, "--json"))["verified"]
    certificate = RunFolder.open(out).certificate()
    assert "SignMomentum" in json.dumps(certificate)
    assert "Smooth" in json.dumps(certificate)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "SignMomentum" in page
    ran("report", out)
    ran("evaluate", out)


def test_a_folder_that_names_a_strangers_method_verifies_without_it(here, tmp_path):
    """Verifying runs no code that a folder names."""
    out = tmp_path / "run"
    ran("train", *FLAGS, "--method", "my_method.py:SignMomentum", "--out", out)
    script = f"import sys; from adadp.app.cli import main; main(['verify', {str(out)!r}])"
    environment = {**os.environ, "PYTHONPATH": str(Path(adadp.__file__).parents[1])}

    found = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_comparison_takes_it_beside_ours(here, tmp_path):
    methods = "dpsgd,my_method.py:SignMomentum"
    ran("compare", *FLAGS, "--methods", methods, "--seeds", "1", "--out", tmp_path / "compared")
    results = json.loads((tmp_path / "compared" / "results.json").read_text(encoding="utf-8"))
    assert len(results["cases"]) == 2
    assert results["failed"] == []


def test_objects_in_fit_stop_resume_and_verify(here, tmp_path):
    method, rule = import_module("my_method").SignMomentum(memory=0.7), import_module("my_rule").Smooth(0.5)
    data = (torch.randn(200, 4), torch.randint(0, 2, (200,)))
    asked = {
        "epsilon": 8.0, "delta": 1e-4, "steps": 6, "batch_size": 20, "lr": 0.01, "seed": 1, "method": method,
        "clip_norm": rule, "checkpoint_every": 2,
    }  # fmt: skip

    def network() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Linear(4, 2)

    def stop(status) -> None:
        if status.step == 3:
            raise Interrupted("stopped")

    whole = adadp.fit(network(), data, **asked | {"checkpoint_every": None})
    with pytest.raises(Interrupted):
        adadp.fit(network(), data, out=tmp_path / "run", watch=stop, **asked)
    again = adadp.fit(network(), data, out=tmp_path / "run", resume=True, **asked)
    assert torch.equal(whole.network.weight, again.network.weight)
    assert [check.name for check in verify_run(RunFolder.open(tmp_path / "run")) if not check.passed] == []


def test_entry_points_make_a_name(here, tmp_path):
    info = tmp_path / "own_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[adadp.methods]\nsign-momentum = my_method:SignMomentum\n"
        "[adadp.clip_rules]\nsmooth = my_rule:Smooth\n"
        "[adadp.accountants]\ntwice = my_accountant:Twice\n"
        "[adadp.commands]\nhello = my_command:hello\n",
        encoding="utf-8",
    )
    (tmp_path / "my_accountant.py").write_text(
        "from adadp.accounting import Status\n"
        "from adadp.accounting.pld import PldAccountant\n"
        "class Twice(PldAccountant):\n    name = 'twice'\n",
        encoding="utf-8",
    )
    (tmp_path / "my_command.py").write_text(
        "import click\n@click.command()\ndef hello():\n    'Greet.'\n    click.echo('hello')\n", encoding="utf-8"
    )
    script = (
        "from adadp.app.cli import main; import sys;"
        f"main(['train', *{FLAGS!r}, '--method', 'sign-momentum:memory=0.5', '--clip-rule', 'smooth',"
        " '--clip-norm', '0.5',"
        f" '--accountant', 'twice', '--out', {str(tmp_path / 'run')!r}], standalone_mode=False);"
        "main(['hello'], standalone_mode=False); main(['--help'])"
    )
    places = [str(tmp_path), str(here), str(Path(adadp.__file__).parents[1])]

    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "hello" in found.stdout
    assert "sign-momentum" in (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")


# Broken twins -----------------------------------------------------------------------------------------------------


class TooLoose(ClippedSum):
    def l2_bounds(self):
        return {name: bound / 2 for name, bound in super().l2_bounds().items()}


class Forgetful(ClippedSum):
    def to_gradient(self, released, deviation):
        self.steps = getattr(self, "steps", 0) + 1
        return {name: value / self.steps for name, value in super().to_gradient(released, deviation).items()}


class KeepsTheSize(ClippedSum):
    """Divides by how many records were drawn, which nobody has released."""

    def contribution(self, capture):
        self.drawn = int((~capture.padding).sum())
        return super().contribution(capture)

    def to_gradient(self, released, deviation):
        found = super().to_gradient(released, deviation)
        return {name: value / (1 + getattr(self, "drawn", 0)) for name, value in found.items()}


class OnTheProcessor(ClippedSum):
    def to_gradient(self, released, deviation):
        found = super().to_gradient(released, deviation)
        return {name: value + torch.ones(value.shape, device="cpu") for name, value in found.items()}


class ClipsTheSum(ClippedSum):
    """Shortens the sum of a batch, which several processes do with the sum of each."""

    def finalize(self, total):
        parts = super().finalize(total)
        return parts | {GRADIENT: {name: value.clamp(-0.5, 0.5) for name, value in parts[GRADIENT].items()}}


class NotEmpty(ClippedSum):
    def finalize(self, total):
        parts = super().finalize(total)
        return parts | {GRADIENT: {name: value + 1 for name, value in parts[GRADIENT].items()}}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (TooLoose, "times the bound"),
        (KeepsTheSize, "records that were not released"),
        (Forgetful, "does not hold all that changes"),
        (OnTheProcessor, "mixes devices"),
        (NotEmpty, "not 0 for an empty batch"),
        (ClipsTheSum, "finalize of two sums"),
    ],
)
def test_a_broken_method_is_found(query, message, monkeypatch):
    monkeypatch.setattr(DpSgd, "query", lambda self, engine, rule, batch_size: query(engine, rule, batch_size))
    with pytest.raises(AssertionError, match=message):
        check_method(DpSgd())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (lambda rule, squares, state: torch.ones_like(squares), "times the bound"),
        (lambda rule, squares, state: (0.5 / squares.sqrt()).clamp(max=1.0), "1e15 or more|NaN or infinite"),
        (lambda rule, squares, state: (0.5 / squares.sqrt().amax()).expand_as(squares), "."),
    ],
)
def test_a_broken_clip_rule_is_found(here, code, message, monkeypatch):
    rule = import_module("my_rule").Smooth(1.0)
    monkeypatch.setattr(type(rule), "weights", code)
    with pytest.raises(AssertionError, match=message):
        check_clip_rule(rule)
