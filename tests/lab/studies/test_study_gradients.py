"""The study of E' and of the noise that follows it: what is looked at is what the method really uses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from adadp.app import zoo
from adadp.app.cli import main
from adadp.app.losses import cross_entropy
from adadp.app.optimizers.adaptive_rate import AdaptiveRate
from adadp.app.zoo.models import build_model
from adadp.errors import InputError
from adadp.lab.methods.published import AdadpPublished
from adadp.lab.studies.gradients import GradientSettings, Look, _projected, published_noise, study_gradients
from adadp.lab.studies.plots import draw_study
from adadp.ledger import Ledger
from adadp.methods import DpSgd
from adadp.plan import Plan
from adadp.step import PrivateGradients

pytestmark = pytest.mark.slow


SMALL = GradientSettings(data="cancer", looks=(2, 6), model="mlp:7", dim=0, batch_size=50)
SMALL_SIZE = 9 * 7 + 7 + 7 * 2 + 2
LINE = "study gradients --data cancer --model mlp:7 --dim 0 --batch-size 50"


def private_run(settings: GradientSettings, folder: Path) -> PrivateGradients:
    values, labels = zoo.load(settings.data).train
    model = build_model(settings.model, input_shape=tuple(values.shape[1:]), classes=2, seed=settings.seed).train()
    plan = Plan.of_noise(
        noise=settings.noise_multiplier,
        records=len(labels),
        batch_size=settings.batch_size,
        steps=20,
        clip_norm=settings.clip_norm,
    )
    ledger = Ledger.create(folder / "ledger.jsonl")
    return PrivateGradients(
        model,
        (values, labels),
        cross_entropy,
        plan,
        ledger,
        method=settings.method,
        seed=settings.seed,
        allow_nonprivate=True,
    )


def look(gradient: list[float], estimate: list[float], **other) -> Look:
    values = {"step": 1, "gate_open": True, "parameters": {"w": len(gradient)}, "noise": np.asarray(estimate)} | other
    return Look(gradient=np.asarray(gradient), estimate=np.asarray(estimate), **values)


class TestWhatIsLookedAt:
    def test_the_gradient_is_that_of_the_batch_the_step_uses(self, tmp_path):
        """Without noise, and with bounds nothing reaches, the method releases the mean gradient of its batch."""
        method = AdadpPublished(threshold=1e9)
        settings = replace(SMALL, noise_multiplier=0.0, clip_norm=1e6, method=method, looks=(1, 2, 3, 4))
        private = private_run(settings, tmp_path)
        optimizer = AdaptiveRate(private.model.parameters(), settings.rate)
        for each in study_gradients(settings).looks:
            released = torch.cat([value.flatten() for value in private.release().values()])
            optimizer.step()
            assert each.gradient == pytest.approx(released.abs().numpy(), rel=1e-4, abs=1e-7)
            assert each.gradient.max() > 1e-3
            assert not each.gate_open

    def test_the_estimate_is_made_of_the_steps_before(self):
        settings = replace(SMALL, method=AdadpPublished(square="square-of-mean"), looks=tuple(range(1, 6)))
        expected = np.zeros(SMALL_SIZE)
        for each in study_gradients(settings).looks:
            assert each.estimate == pytest.approx(np.sqrt(expected), rel=1e-3, abs=1e-6)
            expected = 0.9 * expected + 0.1 * each.gradient**2

    @pytest.mark.parametrize("size", ["model", "layer"])
    @pytest.mark.parametrize("gate", ["sqrt", "moment"])
    def test_the_noise_is_the_methods_own(self, size, gate, tmp_path):
        settings = replace(SMALL, method=AdadpPublished(size=size, gate=gate, threshold=1e-8))
        private = private_run(settings, tmp_path)
        assert published_noise(private.query.tensors(), settings) is None
        for _ in range(3):
            private.release()
        query = private.query
        own = [settings.noise_multiplier * query._box.deviations[name].flatten() for name in query.tensors()]
        assert published_noise(query.tensors(), settings).numpy() == pytest.approx(torch.cat(own).numpy(), rel=1e-5)

    def test_the_gate_is_judged_as_the_method_judges_it(self, tmp_path):
        private = private_run(SMALL, tmp_path)
        private.release()
        moments = private.query.tensors()
        for gate in ("sqrt", "moment"):
            flat = torch.cat([value.flatten() for value in moments.values()]).double()
            variance = (flat.sqrt() if gate == "sqrt" else flat).var(correction=0).item()
            for factor, is_open in ((0.99, True), (1.01, False)):
                method = AdadpPublished(gate=gate, threshold=factor * variance)
                assert (published_noise(moments, replace(SMALL, method=method)) is not None) is is_open

    def test_looking_does_not_change_the_run(self):
        both, last = study_gradients(SMALL), study_gradients(replace(SMALL, looks=(6,)))
        assert np.array_equal(both.looks[-1].gradient, last.looks[0].gradient)
        assert np.array_equal(both.looks[-1].noise, last.looks[0].noise)
        assert both.accuracy == last.accuracy

    def test_the_seed_decides(self):
        one, two, other = (study_gradients(replace(SMALL, looks=(2,), seed=seed)) for seed in (0, 0, 1))
        assert one.to_json() == two.to_json()
        assert not np.array_equal(one.looks[0].gradient, other.looks[0].gradient)

    def test_steps_are_told(self):
        told = []
        study_gradients(SMALL, watch=lambda done, steps: told.append((done, steps)))
        assert told == [(step, 5) for step in range(1, 6)]

    def test_the_projection_is_the_exact_one(self):
        values, test_values = (part[0] for part in (zoo.load("cancer").train, zoo.load("cancer").test))
        train, test = _projected(3, values, test_values)
        rows = torch.nn.functional.normalize(values.double())
        found = rows @ torch.linalg.svd(rows, full_matrices=False).Vh[:3].T
        expected = torch.nn.functional.normalize(found) * math.sqrt(3)
        assert torch.allclose(train.double().abs(), expected.abs(), atol=1e-5)
        assert test.shape == (len(test_values), 3)
        assert study_gradients(replace(SMALL, dim=3, looks=(1,))).looks[0].parameters["1.weight"] == 3 * 7


class TestEdges:
    def test_the_first_step_has_no_estimate(self):
        first = study_gradients(replace(SMALL, looks=(1,))).looks[0]
        assert not first.gate_open
        assert not first.estimate.any()
        assert (first.noise == SMALL.clip_norm * SMALL.noise_multiplier).all()
        assert first.correlation is first.ratio is None
        assert set(first.correlations.values()) == {None}

    def test_an_empty_batch(self):
        looks = study_gradients(replace(SMALL, batch_size=1, looks=tuple(range(2, 10)))).looks
        empty = [each for each in looks if not each.gradient.any()]
        assert 0 < len(empty) < len(looks)
        assert all(each.correlation is None and each.ratio is None for each in empty)
        assert all(each.estimate.any() for each in looks[4:])

    def test_without_noise(self):
        found = study_gradients(replace(SMALL, noise_multiplier=0.0))
        assert found.looks[-1].gate_open
        assert not found.looks[-1].noise.any()

    def test_a_run_that_diverges_is_refused(self):
        with pytest.raises(InputError, match="is not finite"):
            study_gradients(replace(SMALL, rate=1e30))

    def test_steps_are_sorted_and_looked_at_once(self):
        assert replace(SMALL, looks=(6, 2, 6)).looks == (2, 6)

    @pytest.mark.parametrize("data", ["table:people.csv", "npz:arrays.npz", "images:folder"])
    def test_data_of_ones_own_is_refused(self, data):
        with pytest.raises(InputError, match="gradients as they are"):
            GradientSettings(data=data)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"data": "nist"}, "There is no data set 'nist'"),
            ({"method": DpSgd()}, "has no E' to look at"),
            ({"looks": ()}, "No step is to be looked at"),
            ({"looks": (0, 5)}, "step must be at least 1"),
            ({"dim": -1}, "dim must be at least 0"),
            ({"rate": 0.0}, "rate must be greater than 0"),
        ],
    )
    def test_bad_settings_are_refused(self, changed, message):
        with pytest.raises(InputError, match=message):
            replace(SMALL, **changed)


class TestNumbers:
    def test_rank_correlation_sees_order_alone(self):
        assert look([1, 2, 3, 4], [1, 10, 100, 1000]).correlation == pytest.approx(1)
        assert look([4, 3, 2, 1], [1, 10, 100, 1000]).correlation == pytest.approx(-1)

    def test_within_a_parameter_layers_do_not_count(self):
        mixed = look([1, 2, 101, 102], [2, 1, 102, 101], parameters={"a": 2, "b": 2})
        assert mixed.correlation == pytest.approx(0.6)
        assert mixed.correlations == pytest.approx({"a": -1, "b": -1})

    def test_ratio_leaves_zeros_out(self):
        assert look([0, 1, 2, 3], [5, 2, 1, 0]).ratio == pytest.approx((0.5 + 2) / 2)

    def test_json_holds_quantiles_and_no_coordinates(self):
        found = json.loads(json.dumps(study_gradients(SMALL).to_json(), allow_nan=False))
        assert found["coordinates"] == SMALL_SIZE
        assert [each["step"] for each in found["looks"]] == [2, 6]
        for each in found["looks"]:
            for name in ("gradient", "estimate", "noise"):
                assert list(each[name]) == ["0.05", "0.25", "0.5", "0.75", "0.95"]
                assert all(one <= other for one, other in pairwise(each[name].values()))
            assert sum(each["noise_shares"].values()) == pytest.approx(1)
        assert found["settings"]["method"] == "adadp-published"

    def test_shares_of_noise(self):
        shares = look([1] * 5, [1] * 5, noise=np.asarray([5.0, 10.0, 20.0, 21.0, 99.0])).to_json()["noise_shares"]
        assert shares == pytest.approx({"<10": 0.2, "10-20": 0.4, ">20": 0.4})


def drawn(path: Path) -> bool:
    """Whether ``path`` is a picture with something on it."""
    with Image.open(path) as image:
        return image.width > 500 and image.height > 300 and np.asarray(image.convert("L")).std() > 5


@pytest.mark.parametrize("changed", [{"looks": (1,)}, {"noise_multiplier": 0.0, "looks": (1, 3)}, {"looks": (1, 2, 4)}])
def test_anything_that_was_looked_at_can_be_drawn(changed, tmp_path):
    found = study_gradients(replace(SMALL, **changed))
    gradients, noise = draw_study("gradients", tmp_path, found)
    assert drawn(gradients)
    assert noise.exists()


def adadp(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


class TestCommand:
    def test_prints_quantiles_and_correlations(self):
        result = adadp(f"{LINE} --step 1 --step 5")
        assert result.exit_code == 0, result.output
        rows = [line.split() for line in result.stdout.splitlines()]
        assert sum(row[:1] == ["sigma_i"] for row in rows) == 2
        assert "step 1: rank correlation -" in result.stdout
        assert "gate closed" in result.stdout
        correlation = study_gradients(replace(SMALL, looks=(5,))).looks[0].correlation
        assert f"step 5: rank correlation {correlation:.3g} (1.weight" in result.stdout
        assert "public data only" in result.stdout

    def test_options_reach_the_run(self):
        method = "adadp-published:clip=batch,beta=2.5"
        line = f"{LINE} --step 3 --method {method} --noise-multiplier 2 --clip-norm 3 --rate .01 --seed 4 --json"
        found = json.loads(adadp(line).stdout)
        assert found["settings"] == {
            "data": "cancer",
            "looks": [3],
            "method": method,
            "model": "mlp:7",
            "dim": 0,
            "batch_size": 50,
            "noise_multiplier": 2.0,
            "clip_norm": 3.0,
            "rate": 0.01,
            "seed": 4,
        }

    def test_defaults_of_the_command_are_those_of_the_library(self):
        defaults = {option.name: option.default for option in main.commands["study"].commands["gradients"].params}
        expected = GradientSettings().to_json()
        assert {name: defaults[name] for name in expected} == expected

    def test_out_writes_numbers_and_pictures(self, tmp_path):
        result = adadp(f"{LINE} --step 2 --step 6 --out {tmp_path} --json")
        assert result.exit_code == 0, result.output
        assert json.loads((tmp_path / "gradients.json").read_text()) == json.loads(result.stdout)
        assert drawn(tmp_path / "gradients.png")
        assert drawn(tmp_path / "noise.png")

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("--data table:people.csv", "is data of your own"),
            ("--method dpsgd", "has no E' to look at"),
            ("--step 0", "step must be at least 1"),
            ("--data cancer --dim 60", "pca has dim=60, and a record has 9 values"),
            ("--data cancer --dim 0 --batch-size 5000", "--batch-size must not exceed"),
        ],
    )
    def test_bad_input_is_refused(self, line, message):
        result = adadp(f"study gradients {line}")
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert result.stdout == ""
