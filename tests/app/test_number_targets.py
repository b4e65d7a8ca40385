"""Targets that are numbers, and losses with weights and priors: against their definitions."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adadp.app.cli import main
from adadp.app.losses import ByClass, binary_cross_entropy, cross_entropy, find_loss, with_classes
from adadp.app.owndata.schema import parse_schema
from adadp.app.runs import RunFolder
from adadp.app.targets import Target
from adadp.app.train import fit
from adadp.app.verify import verify_run
from adadp.errors import InputError

IDENTITY = nn.Identity()


class TestTargets:
    pytestmark = pytest.mark.fast

    @given(st.floats(-1e6, 1e6), st.floats(1e-2, 1e6), st.floats(0, 1))
    def test_a_number_comes_back_from_what_is_learned_of_it(self, low, width, share):
        target = Target("y", low, low + width, scaled=True)
        value = torch.tensor([low + share * width], dtype=torch.float64)
        learned = target.learned(value)
        assert -1 <= float(learned) <= 1
        assert float(target.meant(learned)) == pytest.approx(float(value), abs=1e-6 * width + 1e-9 * abs(low))

    def test_values_and_outputs_beyond_the_range_are_clipped(self):
        target, count = Target("y", 0, 30, scaled=True), Target("n", 0, 9, count=True)
        wide = torch.tensor([-5.0, 99.0, math.nan])
        assert target.learned(wide).tolist() == [-1.0, 1.0, 0.0]
        assert target.meant(torch.tensor([-7.0, 7.0])).tolist() == [0.0, 30.0]
        assert count.learned(wide).tolist() == [0.0, 9.0, 4.5]
        assert count.meant(torch.tensor([math.log(2), 100.0])).tolist() == pytest.approx([2.0, 9.0])

    @pytest.mark.parametrize(
        ("declared", "said"),
        [
            ({"target": {"column": "y", "kind": "number", "low": 0}}, "no range"),
            ({"target": {"column": "y", "kind": "number", "low": 3, "high": 3}}, "low not below"),
            ({"target": {"column": "y", "kind": "count", "low": 0, "high": 3}}, "Unknown key 'low'"),
            ({"target": {"column": "y", "kind": "age", "high": 3}}, "no kind"),
            ({"target": {"column": "y", "classes": 2, "kind": "number", "low": 0, "high": 1}}, "classes, or a kind"),
            ({"target": {"kind": "count", "high": 3}}, "classes, or a kind"),
            ({"targets": {"y": {"high": 3}}}, "no kind"),
            (
                {"targets": {"y": {"kind": "count", "high": 3}}, "target": {"column": "z"}},
                "they mean two things|two th",
            ),
        ],
    )
    def test_declarations_that_mean_nothing_are_refused(self, declared, said):
        with pytest.raises(InputError, match=said):
            parse_schema({"columns": {"x": {"kind": "number", "low": 0, "high": 1}}, **declared})


class TestLosses:
    pytestmark = pytest.mark.fast

    def test_losses_of_numbers_are_those_of_torch(self):
        outputs, aims = torch.randn(5, 2), torch.randn(5, 2)
        rows = zip(outputs, aims, strict=True)
        expected = [(F.l1_loss(one, other), F.huber_loss(one, other, delta=0.3)) for one, other in rows]
        assert find_loss("mae")(IDENTITY, outputs, aims).tolist() == pytest.approx(
            [float(each[0]) for each in expected]
        )
        huber = find_loss("huber:0.3")(IDENTITY, outputs, aims)
        assert huber.tolist() == pytest.approx([float(each[1]) for each in expected])

    def test_counts_have_the_likelihood_of_poisson(self):
        logs, counts = torch.randn(6), torch.tensor([0.0, 1, 2, 3, 4, 5])
        expected = F.poisson_nll_loss(logs, counts, log_input=True, reduction="none")
        assert find_loss("poisson")(IDENTITY, logs, counts).tolist() == pytest.approx(expected.tolist())
        assert torch.isfinite(find_loss("poisson")(IDENTITY, torch.tensor([1e9]), counts[:1])).all()

    @pytest.mark.parametrize("text", ["huber:0", "huber:x", "mae:1", "poisson:2"])
    def test_options_that_mean_nothing_are_refused(self, text):
        with pytest.raises(InputError, match="Unknown loss"):
            find_loss(text)

    def test_weights_multiply_and_priors_shift(self):
        scores, labels = torch.randn(8, 2), torch.tensor([0, 1] * 4)
        plain = cross_entropy(IDENTITY, scores, labels)
        weighted = ByClass(cross_entropy, weights=(1.0, 7.0))(IDENTITY, scores, labels)
        assert (weighted / plain).tolist() == pytest.approx([1 / 7, 1.0] * 4)
        priors = (math.log(0.9), math.log(0.1))
        shifted = ByClass(cross_entropy, offsets=priors)(IDENTITY, scores, labels)
        assert torch.allclose(shifted, cross_entropy(IDENTITY, scores + torch.tensor(priors), labels))

    def test_one_score_is_shifted_as_the_difference_of_two(self):
        scores, labels, priors = torch.randn(6), torch.tensor([0, 1, 1, 0, 1, 0]), (math.log(0.8), math.log(0.2))
        one = ByClass(binary_cross_entropy, (1.0, 3.0), priors)(IDENTITY, scores, labels)
        both = torch.stack([torch.zeros(6), scores], dim=1)
        assert torch.allclose(one, ByClass(cross_entropy, (1.0, 3.0), priors)(IDENTITY, both, labels), atol=1e-6)

    def test_a_number_for_each_class_is_needed(self):
        with pytest.raises(InputError, match="2 numbers, and there are 3 classes"):
            with_classes(cross_entropy, weights=(1.0, 2.0), offsets=None, classes=3)
        with pytest.raises(InputError, match="not for classes"):
            with_classes(F.l1_loss, weights=(1.0, 2.0), offsets=None, classes=None)


def records() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(300, 3, generator=generator)
    return values, (values[:, 0] > 1).long()


@pytest.mark.slow
def test_a_weighted_run_is_that_of_a_weighted_loss():
    """To the last bit: the weight is in the loss of the record, before its gradient is clipped."""
    weights = torch.tensor([1.0, 5.0]) / 5.0

    def by_hand(model, values, labels):
        return F.cross_entropy(model(values), labels, reduction="none") * weights[labels]

    found = []
    for changes in ({"class_weights": "1,5"}, {"loss": by_hand}):
        torch.manual_seed(0)
        settings = {"noise_multiplier": 2.0, "delta": 1e-4, "steps": 5, "batch_size": 50, "lr": 0.5, "seed": 1}
        found.append(fit(nn.Linear(3, 2), records(), **settings, **changes).network.weight)
    assert torch.equal(*found)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["0.95", "1,-1", "a,b", ""])
def test_weights_that_are_none_are_refused(text):
    with pytest.raises(InputError, match="above 0 for each class"):
        fit(nn.Linear(3, 2), records(), batch_size=9, epsilon=1.0, delta=1e-4, steps=1, class_weights=text)


@pytest.mark.slow
def test_priors_that_are_no_shares_are_refused():
    with pytest.raises(InputError, match="shares that sum to 1"):
        fit(nn.Linear(3, 2), records(), batch_size=9, epsilon=1.0, delta=1e-4, steps=1, class_priors="1,19")


@pytest.mark.slow
@pytest.mark.parametrize("threshold", ["recall=0.8", 1.0, 0, "0.5"])
def test_a_threshold_is_a_public_number(threshold):
    """A rule would have to look at records, which is a release."""
    with pytest.raises(InputError, match="threshold"):
        fit(nn.Linear(3, 2), records(), batch_size=9, epsilon=1.0, delta=1e-4, steps=1, threshold=threshold)


COLUMNS = """
[columns.age]
kind = "number"
low = 0
high = 100
[columns.sex]
kind = "category"
values = ["f", "m"]
"""
TARGETS = {
    "days": '[target]\ncolumn = "days"\nkind = "number"\nlow = 0\nhigh = 30\n[columns.visits]\nkind = "ignore"\n',
    "visits": '[target]\ncolumn = "visits"\nkind = "count"\nhigh = 30\n[columns.days]\nkind = "ignore"\n',
    "both": '[targets.days]\nkind = "number"\nlow = 0\nhigh = 30\n'
    '[targets.visits]\nkind = "number"\nlow = 0\nhigh = 30\n',
}


def table(path: Path, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "sex", "days", "visits"])
        for age in (100 * torch.rand(size, generator=generator)).tolist():
            sex = "f" if torch.rand((), generator=generator) < 0.5 else "m"
            writer.writerow([f"{age:.1f}", sex, f"{age / 5 + 3 * (sex == 'f'):.2f}", round(age / 10)])


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_numbers_from_the_command_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "train.csv", 1200, 1)
    table(tmp_path / "test.csv", 300, 2)
    Path("schema.toml").write_text(TARGETS[name] + COLUMNS, encoding="utf-8")
    words = "train --data table:train.csv --schema schema.toml --test-data table:test.csv --groups sex --epochs 8"
    budget = "--noise-multiplier 1 --delta 1e-5 --holdout 20% --holdout-noise 2 --threads 1 --out run"
    done = CliRunner().invoke(main, f"{words} {budget}".split())
    assert done.exit_code == 0, done.output
    folder = RunFolder.open("run")
    figures = folder.figures()
    names = ["days", "visits"] if name == "both" else [name]
    assert [each["target"] for each in figures["targets"]] == names
    assert "MAE" in done.output
    assert [check for check in verify_run(folder) if not check.passed] == []
    assert {row["group"] for row in figures["groups"]["rows"]} == {"f", "m"}
    assert len(folder.holdout()["sums"]) == 1 + 4 * len(names)
    said = CliRunner().invoke(main, ["predict", "run", "--input", "test.csv"]).output.splitlines()
    assert said[0] == ",".join(["record", *names])
    with Path("test.csv").open(encoding="utf-8") as file:
        true = [float(row[names[0]]) for row in csv.DictReader(file)]
    found = [float(line.split(",")[1]) for line in said[1:]]
    mae = sum(abs(one - other) for one, other in zip(true, found, strict=True)) / len(true)
    assert mae == pytest.approx(figures["targets"][0]["figures"]["mae"]["value"], rel=1e-4)
    again = json.loads(CliRunner().invoke(main, ["evaluate", "run", "--json"]).output)
    assert again["figures"]["targets"] == figures["targets"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("days", "--loss poisson", "Use mse or mae or huber"),
        ("visits", "--loss mse", "Use poisson"),
        ("days", "--threshold 0.2", "targets are numbers"),
        ("days", "--class-weights 1,2", "not for classes"),
        ("days", "--groups age", "no column with declared values"),
    ],
)
def test_what_does_not_fit_the_targets_is_refused_before_anything_is_spent(tmp_path, monkeypatch, name, words, said):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "train.csv", 100, 1)
    table(tmp_path / "test.csv", 30, 2)
    Path("schema.toml").write_text(TARGETS[name] + COLUMNS, encoding="utf-8")
    common = "train --data table:train.csv --schema schema.toml --test-data table:test.csv --epsilon 1 --delta 1e-4"
    done = CliRunner().invoke(main, [*common.split(), "--out", "run", *words.split()])
    assert done.exit_code == 2
    assert said in done.output
    assert not Path("run").exists()
