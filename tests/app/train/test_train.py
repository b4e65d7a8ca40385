"""``fit``: what it takes, what it refuses before anything is charged, and what comes out."""

from __future__ import annotations

import json
import math
from datetime import datetime
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset
from train_cases import FEATURES, LABELS, QUICK, TEST, of_dict, run, small, values

from adadp.app.clipping.fixed import Automatic
from adadp.app.report.html import render, run_page
from adadp.app.runs import Evaluated, RunFolder, coarse_seconds
from adadp.app.train import Evaluation, verify_run
from adadp.errors import InputError
from adadp.ledger import read_ledger
from adadp.schedules import Uniform

pytestmark = pytest.mark.slow


def same(left: nn.Module, right: nn.Module) -> bool:
    return all(map(torch.equal, values(left), values(right)))


# What it takes ----------------------------------------------------------------------------------------------------


def test_a_model_learns_within_the_budget_and_says_so(tmp_path):
    budget = {"noise_multiplier": None, "epsilon": 2.0, "steps": None, "epochs": 6, "seed": None}
    result = run(**budget, test=TEST, out=tmp_path / "run", evaluate_every=2)
    assert result.test_accuracy > 0.85
    assert 1.9 < result.epsilon <= 2
    assert result.out == tmp_path / "run"
    assert result.plan.steps == 60
    assert not result.model.training
    assert "-differentially private" in result.describe()
    assert all(check.passed for check in verify_run(RunFolder.open(result.out)))
    lines = RunFolder.open(result.out).metrics()
    assert [line["epoch"] for line in lines[:-1]] == [1, 2, 3, 4, 5, 6]
    assert [line["epoch"] for line in lines if "test_accuracy" in line and "final" not in line] == [2, 4]
    final = {"step": 60, "final": True, "test_accuracy": result.test_accuracy, "seconds": result.seconds}
    assert lines[-1] == final
    assert [line["epsilon"] for line in lines[:-1]] == sorted(line["epsilon"] for line in lines[:-1])
    assert lines[-2]["epsilon"] == result.epsilon


def test_metrics_hold_public_numbers_only(tmp_path):
    run(test=TEST, out=tmp_path / "run", steps=20, evaluate_every=1, seed=None)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    *epochs, final = lines
    assert set().union(*epochs) == {"step", "epoch", "epsilon", "test_accuracy"}
    assert set(final) == {"step", "final", "test_accuracy", "seconds"}


@pytest.mark.parametrize(
    ("taken", "told"),
    [(0.0, 1), (0.31, 1), (1.0, 1), (1.2, 2), (9.0, 9), (9.1, 10), (10.4, 20), (99.0, 100), (101.0, 200), (3599, 4000)],
)
def test_times_are_told_with_one_digit(taken, told):
    assert coarse_seconds(taken) == told


def test_nothing_in_a_folder_tells_how_long_which_part_of_a_run_took(tmp_path, monkeypatch):
    clock = iter(1000 * number for number in range(10**6))
    monkeypatch.setattr("adadp.app.train.run.time.perf_counter", lambda: next(clock) + 0.123)
    result = run(test=TEST, out=tmp_path / "run", steps=20, evaluate_every=1, **QUICK)
    lines = RunFolder.open(result.out).metrics()
    assert [line["seconds"] for line in lines if "seconds" in line] == [result.seconds]
    assert result.seconds == coarse_seconds(result.seconds) > 1000
    began = datetime.fromisoformat(read_ledger(result.out / "ledger.jsonl").created).timestamp()
    assert {path.stat().st_mtime for path in (result.out, *result.out.iterdir())} == {began}


def test_a_seed_makes_a_run_repeatable_and_its_absence_does_not():
    assert same(run().model, run().model)
    assert not same(run().model, run(seed=1).model)
    assert not same(run(seed=None).model, run(seed=None).model)


def test_without_a_folder_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert run(**QUICK).out is None
    assert list(tmp_path.iterdir()) == []


class Listed(Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]


def test_data_may_come_in_many_forms_and_gives_the_same_model():
    expected = run(**QUICK).model
    rows = [(FEATURES[i], LABELS[i]) for i in range(len(LABELS))]
    named = [{"x": x, "y": y} for x, y in rows]
    for data in ([FEATURES, LABELS], TensorDataset(FEATURES, LABELS), Listed(rows), (FEATURES.double(), LABELS.int())):
        assert same(run(data=data, **QUICK).model, expected)
    for data in ({"x": FEATURES, "y": LABELS}, Listed(named)):
        assert same(run(data=data, loss=of_dict, **QUICK).model, expected)


def test_a_model_in_float64_takes_float64_records_as_they_are():
    result = run(small().double(), (FEATURES.double(), LABELS), test=(TEST[0].double(), TEST[1]), **QUICK)
    assert {value.dtype for value in values(result.model)} == {torch.float64}


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(4, 1), nn.Linear(5, 1)

    def forward(self, left, right):
        return self.left(left) + self.right(right)


def test_several_inputs_a_loss_and_an_evaluation_of_ones_own():
    def loss(model, left, right, target):
        return F.l1_loss(model(left, right).squeeze(1), target, reduction="none")

    looks = []

    def evaluate(model):
        looks.append(model.training)
        return torch.tensor(0.25)

    data = (FEATURES[:, :4], FEATURES[:, 4:], LABELS.float())
    model = TwoInputs()
    before = values(model)
    result = run(model, data, loss=loss, evaluate=evaluate, steps=20, evaluate_every=1, **QUICK)
    assert result.test_accuracy is None
    assert result.evaluation == Evaluated("evaluate", 0.25)
    assert type(result.evaluation.value) is float
    assert looks == [False] * 3  # once ahead, after the first epoch of two, and in the end
    assert result.model is model
    assert not all(map(torch.equal, before, values(model)))


def test_an_evaluation_leaves_every_module_in_its_mode():
    model = nn.Sequential(nn.Linear(9, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    modes = []

    def watch(status):
        modes.append(model[1].training)

    run(model, steps=20, evaluate_every=1, test=TEST, watch=watch, **QUICK)
    assert modes == [True] * 20


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "reshuffle"])
def test_every_sampling_is_certified_as_what_it_is(sampling, tmp_path):
    result = run(sampling=sampling, steps=12, out=tmp_path / "run")
    kinds = {each["event"]["kind"] for each in result.certificate["charged"]}
    counts = [each["count"] for each in result.certificate["charged"]]
    expected = {"poisson": "poisson-sampled", "fixed": "fixed-size-sampled", "reshuffle": "reshuffled-epoch"}
    assert kinds == {expected[sampling]}
    assert counts == [2 if sampling == "reshuffle" else 12]
    assert result.certificate["neighbours"] == {"poisson": "add-remove", "fixed": "replace-one"}.get(
        sampling, "zero-out"
    )
    assert all(check.passed for check in verify_run(RunFolder.open(result.out)))


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"optimizer": "adam", "lr": 0.01},
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.3},
        {"clip_norm": Automatic(1.0)},
        {"clip_norm": "quantile:initial=1,count_noise=10,floor=0.01,ceiling=100"},
        {"clip_norm": 0.5},
        {"lr": "exp:s0=1,k=0.1"},
        {"lr": Uniform(0.7)},
        {"chunk_size": 7},
    ],
    ids=str,
)
def test_settings_change_the_model_and_nothing_but_it(settings):
    plain, other = run(**QUICK), run(**QUICK, **settings)
    pairs = zip(values(plain.model), values(other.model), strict=True)
    close = all(torch.allclose(left, right, atol=1e-5) for left, right in pairs)
    assert close == ("chunk_size" in settings)
    if "quantile" not in str(settings):
        assert other.certificate["charged"] == plain.certificate["charged"]


def test_an_optimizer_may_be_made_by_the_caller_and_keeps_its_rate():
    made = []

    def make(parameters):
        made.append(torch.optim.SGD(parameters, lr=0.5))
        return made[-1]

    model, by_name = small(), run(**QUICK).model
    assert same(run(model, optimizer=make, lr=None, **QUICK).model, by_name)
    assert made[0].param_groups[0]["lr"] == 0.5
    assert {id(value) for value in made[0].param_groups[0]["params"]} == {id(value) for value in model.parameters()}
    assert same(run(optimizer=lambda p: torch.optim.SGD(p, lr=9), lr=0.5, **QUICK).model, by_name)
    for kind in (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam):
        assert torch.isfinite(values(run(optimizer=kind, lr=None, **QUICK).model)[0]).all()


def test_frozen_parameters_stay_where_they_are():
    model = nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    before = values(model)
    after = values(run(model, **QUICK).model)
    assert [torch.equal(left, right) for left, right in zip(before, after, strict=True)] == [True, True, False, False]


def auc(model):
    return 0.83


def test_an_evaluation_that_is_no_accuracy_has_its_own_name_and_range_everywhere(tmp_path):
    result = run(evaluate=Evaluation(auc, "AUC", 0, 1), evaluate_every=1, steps=20, out=tmp_path / "run")
    assert str(result.evaluation) == "AUC 0.83 (from 0 to 1)"
    assert result.test_accuracy is None
    lines = RunFolder.open(result.out).metrics()
    told = {"name": "AUC", "value": 0.83, "low": 0, "high": 1}
    assert [line.get("evaluation") for line in lines] == [told, None, told]
    assert not any("test_accuracy" in line for line in lines)
    page = run_page(RunFolder.open(result.out))
    assert "AUC 0.83 (from 0 to 1)" in page.headline
    charts = {chart.name: chart for chart in page.charts()}
    for name in ("evaluation", "trade"):
        assert (charts[name].y.label, charts[name].y.percent) == ("AUC, from 0 to 1", False)
    assert charts["evaluation"].series[0].y == (0.83, 0.83)
    figures = {figure.label: (figure.value, figure.note) for figure in page.figures.figures}
    assert figures["AUC"] == ("0.83", "from 0 to 1")
    text = render(page)
    assert "83.00 %" not in text
    assert "of the test set right" not in text
    assert "ccuracy" not in text.partition("<main")[2].partition("</main")[0]


def test_a_function_without_a_name_of_its_own_is_no_accuracy(tmp_path):
    result = run(evaluate=auc, out=tmp_path / "run", **QUICK)
    assert str(result.evaluation) == "auc 0.83"
    assert "auc 0.83" in run_page(RunFolder.open(result.out)).headline
    assert str(run(evaluate=lambda model: 1.7, **QUICK).evaluation) == "evaluation 1.7"
    assert str(run(evaluate=partial(auc), **QUICK).evaluation) == "auc 0.83"
    assert str(run(evaluate=lambda model: math.nan, **QUICK).evaluation) == "evaluation unknown"


@pytest.mark.parametrize(
    ("low", "high", "span"), [(None, None, ""), (0, None, " (at least 0)"), (None, 1, " (at most 1)")]
)
def test_a_range_may_be_open(low, high, span):
    assert str(run(evaluate=Evaluation(auc, "AUC", low, high), **QUICK).evaluation) == f"AUC 0.83{span}"


@pytest.mark.parametrize(
    ("name", "low", "high", "text"),
    [
        ("AUC", 0, 0.5, "evaluate returned 0.83, and the range of AUC is from 0 to 0.5"),
        ("AUC", 0.9, None, "range of AUC is at least 0.9"),
        ("AUC", 1, 0, "no range"),
        ("AUC", 0, math.inf, "no range"),
        ("", None, None, "no name"),
        ("two\nlines", None, None, "no name"),
    ],
)
def test_an_evaluation_that_is_not_what_it_says_is_refused_before_anything_is_charged(tmp_path, name, low, high, text):
    with pytest.raises(InputError, match=text):
        run(evaluate=Evaluation(auc, name, low, high), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
