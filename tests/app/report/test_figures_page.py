"""The page, the terminal and the certificate of runs whose accuracy would mislead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from adadp.app.cli import main
from adadp.app.report.html import render, run_page
from adadp.app.report.html.page import Table
from adadp.app.runs import RunFolder
from adadp.app.train import fit, verify_run
from adadp.errors import RunError

pytestmark = pytest.mark.slow


def records(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One in twenty or so is positive."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, 4, generator=generator)
    return values, (torch.rand(size, generator=generator) < torch.sigmoid(2 * values[:, 0] - 4.3)).long()


def run(out: Path, outputs: int = 2, data=None, test=None, **changes) -> RunFolder:
    torch.manual_seed(0)
    settings = {"noise_multiplier": 1.0, "delta": 1e-4, "steps": 30, "batch_size": 100, "lr": 1.0, "seed": 1, **changes}
    fit(nn.Linear(4, outputs), data or records(1000, 1), test=test or records(1000, 2), out=out, **settings)
    return RunFolder.open(out)


def test_an_accuracy_of_ninety_five_percent_is_no_headline(tmp_path):
    folder = run(tmp_path / "run", seed=None, noise_multiplier=0.3, steps=150)  # whatever is drawn, it learns
    page = run_page(folder)
    assert folder.metrics()[-1]["test_accuracy"] > 0.9
    for said in (page.headline, CliRunner().invoke(main, ["report", str(folder.path)]).output):
        assert "AUROC" in said
        assert "of the test set right" not in said
    assert [each.label for each in page.figures.figures][:2] == ["AUROC", "Recall at threshold 0.5"]
    assert any("outside of the guarantee" in note and "AUROC" in note for note in folder.certificate()["notes"])
    assert {"roc", "precision", "calibration"} <= {chart.name for chart in page.charts()}
    assert [check for check in verify_run(folder) if not check.passed] == []


def test_a_model_that_finds_nobody_says_it_first(tmp_path):
    page = run_page(run(tmp_path / "run", lr=1e-9, class_priors="0.5,0.5", data=records(1000, 3), threshold=0.999))
    assert page.headline.startswith(("Rehearsal: no better than always answering 0", "Rehearsal: no better than guess"))


def test_groups_and_records_kept_aside_have_their_tables(tmp_path):
    groups = ["north" if each % 3 else "south" for each in range(1000)]
    folder = run(tmp_path / "run", groups=groups, holdout="30%", holdout_noise=1.0)
    page = run_page(folder)
    titles = [section.title for section in page.sections]
    assert "How good the model is" in titles
    assert "On records that were kept aside" in titles
    tables = [part for section in page.sections for part in section.parts if isinstance(part, Table)]
    (by_group,) = [each for each in tables if each.columns[0] == "group"]
    assert [row[0] for row in by_group.rows] == ["north", "south", "Largest gap"]
    assert render(page)


def test_without_test_data_the_headline_is_that_of_records_kept_aside(tmp_path):
    torch.manual_seed(0)
    settings = {"noise_multiplier": 1.0, "delta": 1e-4, "steps": 30, "batch_size": 100, "lr": 1.0, "seed": 1}
    result = fit(nn.Linear(4, 2), records(4000, 1), holdout="30%", holdout_noise=1.0, out=tmp_path / "run", **settings)
    page = run_page(RunFolder.open(tmp_path / "run"))
    assert result.headline in page.headline
    assert " to " in result.headline  # the error bar
    assert result.figures is None


def test_numbers_have_their_errors_and_no_percent(tmp_path):
    data, test = ((values, values[:, 0] * 2 + 1) for values, _ in (records(1000, 1), records(500, 2)))
    page = run_page(run(tmp_path / "run", 1, data, test, loss="huber:1"))
    assert "MAE" in page.headline
    assert "%" not in page.headline
    assert [each.label for each in page.figures.figures][:2] == ["MAE", "R²"]


@pytest.mark.parametrize("content", ["[]", "{}", '{"kind": "binary"}', '{"kind": "numbers", "targets": [{}]}'])
def test_broken_figures_are_an_error_of_the_folder(tmp_path, content):
    folder = run(tmp_path / "run")
    folder.figures_path.write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match="does not hold figures"):
        run_page(folder)
    assert {"measurements", "page"} <= {check.name for check in verify_run(folder) if not check.passed}


def test_released_sums_that_no_run_can_have_do_not_verify(tmp_path):
    folder = run(tmp_path / "run", holdout="30%", holdout_noise=1.0, seed=None)
    released = folder.holdout()
    for change in ({"sums": []}, {"noise_multiplier": 0.0}, {"kind": "numbers", "targets": [{"low": 1, "high": 1}]}):
        folder.write_holdout({**released, **change})
        assert "measurements" in {check.name for check in verify_run(folder) if not check.passed}
