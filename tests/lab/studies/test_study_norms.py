"""The study of gradient norms: they are the norms of the records' own gradients, along plain SGD without noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from adadp.app import zoo
from adadp.app.cli import main
from adadp.app.losses import cross_entropy
from adadp.app.zoo.models import build_model
from adadp.errors import InputError
from adadp.gradients import loop_gradients
from adadp.lab.studies.keys import keyed
from adadp.lab.studies.norms import ModelNorms, NormLook, NormSettings, _standardised, study_norms
from adadp.lab.studies.plots import draw_study

pytestmark = pytest.mark.slow


RECORDS = len(zoo.load("cancer").train[1])
SMALL = NormSettings(data="cancer", models=("mlp:7",), epochs=2, q=0.2, lr=0.05, raw=True)
WHOLE = replace(SMALL, q=1.0, sample=RECORDS)
LINE = "study norms --data cancer --q .2 --epochs 2"


def looks_of(settings: NormSettings) -> tuple[NormLook, ...]:
    (found,) = study_norms(settings).models.values()
    return found.looks


def by_mean(*means: float) -> ModelNorms:
    return ModelNorms("m", tuple(NormLook(epoch, mean, 0, 0, 0, 0) for epoch, mean in enumerate(means)), 0.5)


class TestWhatIsLookedAt:
    def test_norms_are_those_of_the_oracle_along_plain_sgd(self):
        """With q = 1 an epoch is one step on all records, which can be repeated by hand."""
        values, labels = zoo.load("cancer").train
        model = build_model("mlp:7", input_shape=(9,), classes=2, seed=0).train()
        for look in looks_of(WHOLE):
            single = loop_gradients(model, cross_entropy, (values, labels), RECORDS)
            rows = torch.stack([torch.cat([part.flatten() for part in each.values()]) for each in single]).double()
            norms = rows.norm(dim=1)
            assert look.mean == pytest.approx(norms.mean().item(), rel=1e-4)
            assert look.median == pytest.approx(norms.quantile(0.5).item(), rel=1e-4)
            assert look.high == pytest.approx(norms.quantile(0.9).item(), rel=1e-4)
            assert look.of_mean == pytest.approx(rows.mean(0).norm().item(), rel=1e-3)
            loss = cross_entropy(model, values, labels).mean()
            assert look.loss == pytest.approx(loss.item(), rel=1e-5)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                torch._foreach_add_(list(model.parameters()), gradients, alpha=-WHOLE.lr)

    def test_before_training_the_convex_model_has_a_closed_form(self):
        """Its weights are 0, so both classes have 1/2: the gradient is (p - y) times (x, 1), and |x|^2 = 9."""
        first = looks_of(replace(SMALL, models=("convex",), raw=False))[0]
        expected = math.sqrt(2 * 0.5**2) * math.sqrt(9 + 1)
        assert (first.mean, first.median, first.high) == pytest.approx((expected,) * 3, rel=1e-5)
        assert first.of_mean < expected
        assert first.loss == pytest.approx(math.log(2))

    def test_an_epoch_meets_every_record_once_on_average(self):
        assert [replace(SMALL, q=q).steps_per_epoch for q in (1.0, 0.7, 0.2, 0.01)] == [1, 1, 5, 100]
        slow = looks_of(replace(SMALL, q=0.2, lr=1e-3, sample=RECORDS))
        whole = looks_of(replace(SMALL, q=1.0, lr=5e-3, sample=RECORDS))
        fall = [looks[0].loss - looks[-1].loss for looks in (slow, whole)]
        assert fall[0] == pytest.approx(fall[1], rel=0.25)
        assert fall[1] > 1e-3

    def test_the_sample_is_one_of_the_training_records(self):
        few = looks_of(replace(SMALL, sample=50))
        many = looks_of(replace(SMALL, sample=RECORDS))
        assert few[0].mean != many[0].mean
        assert few[0].mean == pytest.approx(many[0].mean, rel=0.2)

    def test_looking_at_fewer_does_not_change_the_run(self):
        few, many = (study_norms(replace(SMALL, sample=sample)).models["mlp-7"].accuracy for sample in (5, 400))
        assert few == many

    def test_the_seed_decides(self):
        one, two, other = (study_norms(replace(SMALL, seed=seed)).to_json()["models"] for seed in (0, 0, 1))
        assert one == two
        assert one != other

    def test_models_do_not_share_a_run(self):
        both = study_norms(replace(SMALL, models=("mlp:7", "linear"))).models
        assert both["linear"] == study_norms(replace(SMALL, models=("linear",))).models["linear"]

    def test_standardised_values(self):
        values = torch.rand(500, 2, 5, 5, generator=torch.Generator().manual_seed(0)) ** 3
        for part in _standardised(values, values[:20]):
            assert part.flatten(1).norm(dim=1) == pytest.approx(math.sqrt(50), rel=1e-5)
        train = _standardised(values, values)[0]
        assert train.mean((0, 2, 3)).abs().max() < 0.05
        assert train.std((0, 2, 3)) == pytest.approx([1, 1], abs=0.05)

    def test_epochs_are_told(self):
        told = []
        study_norms(replace(SMALL, models=("convex", "mlp:7")), watch=lambda *what: told.append(what))
        assert told == [("convex", 1, 2), ("convex", 2, 2), ("mlp-7", 1, 2), ("mlp-7", 2, 2)]


class TestAnswers:
    @pytest.mark.parametrize(
        ("means", "falls", "below_start", "highest"),
        [
            ((5, 4, 3), True, True, 0),
            ((1, 4, 3), True, False, 1),
            ((5, 3, 4), False, True, 0),
            ((1, 2, 3), False, False, 2),
            ((2, 2, 2), False, False, 0),
        ],
    )
    def test_falls(self, means, falls, below_start, highest):
        found = by_mean(*means)
        assert (found.falls, found.below_start, found.highest) == (falls, below_start, highest)

    def test_json(self):
        found = study_norms(replace(SMALL, models=("convex", "mlp:7")))
        numbers = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert list(numbers["models"]) == list(numbers["falls"]) == list(numbers["below_start"]) == ["convex", "mlp-7"]
        one = numbers["models"]["convex"]
        assert one["model"] == "mnist-convex"
        assert one["epochs"] == [0, 1, 2]
        assert one["mean"] == [look.mean for look in found.models["convex"].looks]
        assert all(len(one[name]) == 3 for name in ("mean", "median", "high", "of_mean", "loss"))
        assert 0.5 < one["test_accuracy"] <= 1


class TestEdges:
    @pytest.mark.parametrize("data", ["table:people.csv", "npz:arrays.npz", "images:folder"])
    def test_data_of_ones_own_is_refused(self, data):
        with pytest.raises(InputError, match="gradients as they are"):
            NormSettings(data=data)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"data": "nist"}, "There is no data set 'nist'"),
            ({"models": ()}, "No model is to be trained"),
            ({"epochs": 1}, "epochs must be at least 2.*A trend needs two"),
            ({"lr": 0.0}, "lr must be greater than 0"),
            ({"q": 0.0}, "q must be greater than 0.*Nothing would be trained"),
            ({"q": 1.5}, "q must lie in"),
            ({"sample": 0}, "sample must be at least 1"),
        ],
    )
    def test_bad_settings_are_refused(self, changed, message):
        with pytest.raises(InputError, match=message):
            replace(SMALL, **changed)

    def test_a_run_that_diverges_is_refused(self):
        with pytest.raises(InputError, match="not finite after 1 epochs"):
            study_norms(replace(SMALL, lr=1e30))

    def test_an_unknown_model_is_refused_before_any_is_trained(self):
        told = []
        with pytest.raises(InputError, match="There is no model 'mlq'"):
            study_norms(replace(SMALL, models=("mlp:7", "mlq")), watch=lambda *what: told.append(what))
        assert told == []

    def test_with_no_record_in_most_batches(self):
        """Six batches in ten are empty; an epoch still meets every record once on average."""
        few, usual = (looks_of(replace(SMALL, q=q, lr=q / 100, sample=RECORDS)) for q in (0.5 / RECORDS, 0.2))
        assert few[-1].loss == pytest.approx(usual[-1].loss, rel=0.01)
        assert few[-1].loss < few[0].loss - 1e-3

    def test_an_empty_batch_moves_no_network_of_the_paper(self):
        for name in ("mnist-cnn", "mnist-convex"):
            model = build_model(name, input_shape=(1, 28, 28), classes=10, seed=0)
            nothing = torch.zeros(0, dtype=torch.long)
            cross_entropy(model, torch.zeros(0, 1, 28, 28), nothing).sum().backward()
            assert not any(parameter.grad.any() for parameter in model.parameters())

    def test_a_sample_of_more_records_than_there_are(self):
        assert looks_of(replace(SMALL, sample=10**6)) == looks_of(replace(SMALL, sample=RECORDS))

    def test_a_model_asked_for_twice_is_trained_once(self):
        assert list(study_norms(replace(SMALL, models=("convex", "mnist-convex", "convex"))).models) == ["convex"]


class TestKeys:
    def test_known_and_unknown(self):
        known = {"conv": "mnist-cnn", "grid": "agd:grid=20"}
        assert keyed(("grid", "mnist-cnn", "mlp:7,7"), known) == {
            "grid": "agd:grid=20",
            "conv": "mnist-cnn",
            "mlp-7-7": "mlp:7,7",
        }

    def test_two_texts_of_one_key_are_refused(self):
        with pytest.raises(InputError, match="would both be called mlp-7-7"):
            keyed(("mlp:7,7", "mlp:7:7"), {})


def drawn(path: Path) -> bool:
    """Whether ``path`` is a picture with something on it."""
    with Image.open(path) as image:
        return image.width > 500 and image.height > 300 and np.asarray(image.convert("L")).std() > 5


@pytest.mark.parametrize("models", [("mlp:7",), ("mlp:7", "linear", "mlp:5")])
def test_any_number_of_models_can_be_drawn(models, tmp_path):
    assert all(map(drawn, draw_study("norms", tmp_path, study_norms(replace(SMALL, models=models)))))


def adadp(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


class TestCommand:
    def test_prints_a_row_per_epoch(self):
        result = adadp(f"{LINE} --model convex --model mlp:7")
        assert result.exit_code == 0, result.output
        rows = [line.split() for line in result.stdout.splitlines() if line.strip()]
        assert [row[0] for row in rows if len(row) == 6] == ["1", "2"] * 2
        assert sum(row[:2] == ["mnist-convex", "0"] for row in rows) == 1
        assert "mnist-convex: the mean norm falls, from" in result.stdout
        assert "public data only" in result.stdout

    def test_options_reach_the_run(self):
        found = json.loads(adadp(f"{LINE} --model linear --lr .3 --sample 70 --raw --seed 4 --json").stdout)
        assert found["settings"] == {
            "data": "cancer",
            "models": ["linear"],
            "epochs": 2,
            "lr": 0.3,
            "q": 0.2,
            "sample": 70,
            "raw": True,
            "seed": 4,
        }

    def test_defaults_of_the_command_are_those_of_the_library(self):
        defaults = {option.name: option.default for option in main.commands["study"].commands["norms"].params}
        expected = NormSettings().to_json()
        assert {name: defaults[name] for name in expected} == expected

    def test_out_writes_numbers_and_picture(self, tmp_path):
        result = adadp(f"{LINE} --model convex --out {tmp_path} --json")
        assert result.exit_code == 0, result.output
        assert json.loads((tmp_path / "norms.json").read_text()) == json.loads(result.stdout)
        assert drawn(tmp_path / "norms.png")

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("--data table:people.csv", "is data of your own"),
            ("--epochs 1", "A trend needs two"),
            ("--data cancer --model conv", "mnist-cnn cannot read records of shape (9,)"),
        ],
    )
    def test_bad_input_is_refused(self, line, message):
        result = adadp(f"study norms {line}")
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert result.stdout == ""
