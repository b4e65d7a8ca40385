"""Feature stages that are released: charged before the release, once, composed into epsilon, kept over a resume."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from adadp.accounting import accountant
from adadp.app import zoo
from adadp.app.audit import neighbour_replay
from adadp.app.features import parse_features
from adadp.app.features.pca import Pca
from adadp.app.losses import cross_entropy
from adadp.app.runs import RunFolder
from adadp.app.train import feature_release, fit, verify_run
from adadp.app.train.feature_release import Preparation
from adadp.errors import BudgetExceeded, InputError, Interrupted, RunError
from adadp.events import GaussianRelease, Neighbours, compose, flatten
from adadp.ledger import Ledger, PlannedBudget, read_ledger
from adadp.noise import GaussianMechanism
from adadp.plan import Plan
from adadp.step import PrivateGradients

pytestmark = pytest.mark.slow


TRAIN, TEST = zoo.load("cancer").train, zoo.load("cancer").test
PCA = "pca:dim=4,noise_multiplier=5"
CHARGE = GaussianRelease(5.0, Neighbours.ADD_REMOVE)
SETTINGS = {"features": PCA, "noise_multiplier": 3.0, "delta": 1e-4, "steps": 12, "batch_size": 56, "seed": 3}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def run(out: Path | None, model: nn.Module | None = None, **changes: object):
    settings = {**SETTINGS, "checkpoint_every": None if out is None else 4, **changes}
    return fit(network() if model is None else model, TRAIN, test=TEST, out=out, **settings)


def share(found: torch.Tensor, labels: torch.Tensor) -> float:
    return int((found == labels).sum()) / len(labels)


def failed(checks) -> list[str]:
    return [check.name for check in checks if not check.passed]


class TestAccounting:
    def test_epsilon_is_that_of_the_release_and_the_steps_together(self, tmp_path):
        result = run(tmp_path / "run", seed=None)
        steps = Plan.of_noise(noise=3.0, records=560, batch_size=56, steps=12).event()
        together = accountant("pld").epsilon(compose(CHARGE, steps), 1e-4)
        assert result.epsilon == pytest.approx(together.epsilon, rel=1e-6)
        assert result.epsilon > accountant("pld").epsilon(steps, 1e-4).epsilon * 1.1

    def test_a_target_epsilon_pays_for_it(self):
        with_it, without = (
            fit(model, TRAIN, epsilon=2.0, delta=1e-4, steps=12, batch_size=56, features=features)
            for model, features in ((network(), PCA), (nn.Linear(9, 2), None))
        )
        assert 1.999 < with_it.epsilon <= 2.0
        assert with_it.plan.noise_multiplier_at(0) > without.plan.noise_multiplier_at(0)

    def test_a_release_that_costs_everything_is_refused_before_anything_is_made(self, tmp_path):
        with pytest.raises(InputError, match="costs all of epsilon"):
            run(tmp_path / "run", noise_multiplier=None, epsilon=0.5)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("sampling", ["poisson", "fixed", "reshuffle"])
    def test_the_charge_has_the_relation_of_the_run(self, sampling):
        result = run(None, sampling=sampling)
        assert result.certificate["charged"][0]["event"]["neighbours"] == result.certificate["neighbours"]

    def test_one_release_is_planned_and_a_second_refused(self, tmp_path):
        plan = Plan.of_noise(noise=3.0, records=560, batch_size=56, steps=12, before=(5.0,))
        assert flatten(plan.event())[CHARGE] == 1
        with Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event())) as ledger:
            ledger.charge(CHARGE)
            with pytest.raises(BudgetExceeded):
                ledger.charge(CHARGE)

    def test_noise_of_zero_before_the_steps_is_no_plan(self):
        with pytest.raises(InputError, match="before"):
            Plan.of_noise(noise=3.0, records=560, batch_size=56, steps=12, before=(0.0,))


class TestTheRun:
    def test_it_is_charged_on_disk_before_it_is_released(self, tmp_path, monkeypatch):
        seen: list[tuple[str, dict[object, int]]] = []
        release = GaussianMechanism.release

        def watching(self, total, **options):
            noise = (options["purpose"], options["noise_multiplier"])
            seen.append((noise, dict(read_ledger(tmp_path / "run" / "ledger.jsonl").charges)))
            return release(self, total, **options)

        monkeypatch.setattr(GaussianMechanism, "release", watching)
        run(tmp_path / "run")
        assert seen[0] == (("features/0", CHARGE.noise_multiplier), {CHARGE: 1})
        assert sum(seen[1][1].values()) == 2

    def test_folder_certificate_and_verification(self, tmp_path):
        result = run(tmp_path / "run")
        folder = RunFolder.open(tmp_path / "run")
        features = result.certificate["features"]
        assert features["stages"] == features["released"] == ["pca:dim=4,noise_multiplier=5.0"]
        assert folder.load_features()["0.components"].shape == (9, 4)
        assert "Released privately and charged: pca" in result.describe()
        assert failed(verify_run(folder)) == []

    def test_other_features_than_certified_do_not_verify(self, tmp_path):
        run(tmp_path / "run")
        folder = RunFolder.open(tmp_path / "run")
        learned = folder.load_features()
        folder.save_features({"0.components": learned["0.components"] + 1})
        assert failed(verify_run(folder)) == ["statements"]

    def test_a_release_that_was_never_charged_does_not_verify(self, tmp_path, monkeypatch):
        honest = feature_release._released

        def unpaid(stage, records, private, charge, _paid, number):
            return honest(stage, records, private, charge, True, number)

        monkeypatch.setattr(feature_release, "_released", unpaid)
        run(tmp_path / "run")
        assert "charges" in failed(verify_run(RunFolder.open(tmp_path / "run")))

    def test_two_releases_of_equal_noise_are_two_charges(self, tmp_path, monkeypatch):
        twice = {"features": "pca:dim=6,noise_multiplier=5+pca:dim=4,noise_multiplier=5"}
        run(tmp_path / "run", **twice)
        assert read_ledger(tmp_path / "run" / "ledger.jsonl").charges[CHARGE] == 2
        assert failed(verify_run(RunFolder.open(tmp_path / "run"))) == []
        honest = feature_release._released

        def second_unpaid(stage, records, private, charge, paid, number):
            return honest(stage, records, private, charge, paid or number == 1, number)

        monkeypatch.setattr(feature_release, "_released", second_unpaid)
        run(tmp_path / "unpaid", **twice)
        assert "charges" in failed(verify_run(RunFolder.open(tmp_path / "unpaid")))

    def test_the_model_learns_through_them(self):
        assert run(None, noise_multiplier=1.0, steps=60, lr=1.0).test_accuracy > 0.9

    def test_the_test_records_go_through_what_was_released(self, tmp_path):
        result = run(tmp_path / "run")
        module = parse_features(PCA)[0].module(
            {"components": RunFolder.open(tmp_path / "run").load_features()["0.components"]}
        )
        with torch.no_grad():
            found = result.network(module(TEST[0])).argmax(1)
        assert result.test_accuracy == share(found, TEST[1])

    @pytest.mark.parametrize(
        "features",
        [
            PCA,
            "equalise:noise_multiplier=6",
            "standardise:noise_multiplier=20",
            "equalise:noise_multiplier=9+pca:dim=4,noise_multiplier=5",
        ],
    )
    def test_the_model_takes_rows_as_they_are_in_the_data(self, features, tmp_path):
        width = 4 if "pca" in features else 9
        bare = nn.Linear(width, 2)
        result = run(tmp_path / "run", model=bare, features=features, steps=40, lr=1.0)
        with torch.no_grad():
            scores = result.model(TEST[0])
            assert result.test_accuracy == share(scores.argmax(1), TEST[1])
        assert result.network is bare
        assert not result.model.training
        if width == 9:  # the network alone takes such rows too, and is wrong
            assert not torch.allclose(bare(TEST[0]), scores, atol=1e-3)
        saved = RunFolder.open(tmp_path / "run").load_model_tensors()
        assert all(torch.equal(saved[name], value) for name, value in bare.state_dict().items())

    def test_an_evaluation_is_given_a_model_that_takes_rows_as_they_are(self):
        seen = []

        def evaluate(model):
            with torch.no_grad():
                seen.append(share(model(TEST[0]).argmax(1), TEST[1]))
            return seen[-1]

        assert fit(network(), TRAIN, evaluate=evaluate, **SETTINGS).evaluation.value == run(None).test_accuracy
        assert len(seen) == 2

    @pytest.mark.parametrize("features", ["equalise", "pca:dim=4", "standardise"])
    @pytest.mark.parametrize("sampling", ["poisson", "fixed"])
    def test_the_noise_of_a_stage_is_a_share_of_epsilon(self, features, sampling, tmp_path):
        model = nn.Linear(4 if "pca" in features else 9, 2)
        settings = {"noise_multiplier": None, "epsilon": 2.0, "features": features, "sampling": sampling}
        result = run(tmp_path / "run", model=model, **settings)
        assert 1.99 < result.certificate["if_unseeded"]["epsilon"] <= 2.0
        stage = parse_features(RunFolder.open(tmp_path / "run").config.features)[0]
        assert stage.noise_multiplier is not None
        if sampling == "poisson":
            alone = (
                accountant("pld").epsilon(GaussianRelease(stage.noise_multiplier, Neighbours.ADD_REMOVE), 1e-4).epsilon
            )
            assert 0.99 * stage.budget_share * 2 < alone <= stage.budget_share * 2
        assert failed(verify_run(RunFolder.open(tmp_path / "run"))) == []

    def test_a_stage_without_noise_needs_an_epsilon(self, tmp_path):
        with pytest.raises(
            InputError, match=r"noise of equalise is not given.*equalise:noise_multiplier=16, or pass epsilon"
        ):
            run(tmp_path / "run", features="equalise")
        with pytest.raises(InputError, match="delta must be given"):
            run(tmp_path / "run", features="equalise", noise_multiplier=None, epsilon=2.0, delta=None)
        assert not (tmp_path / "run").exists()

    def test_data_that_is_no_tensors_is_refused(self):
        data = torch.utils.data.Subset(torch.utils.data.TensorDataset(*TRAIN), range(100))
        with pytest.raises(InputError, match="Features need the data as tensors"):
            fit(network(), data, **SETTINGS)


class TestFixedFeaturesFromPython:
    def images(self, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Stripes across or along."""
        labels = torch.arange(count) % 2
        wave = torch.sin(torch.arange(8) * 2.0).expand(8, 8)
        noise = 0.1 * torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        return torch.stack([wave if label else wave.T for label in labels])[:, None] + noise, labels

    def test_they_come_before_the_model_and_are_on_the_certificate(self, tmp_path):
        model = nn.Sequential(nn.Flatten(), nn.Linear(81 * 4, 2))
        result = fit(
            model,
            self.images(400, 0),
            test=self.images(100, 1),
            features="scatter",
            epsilon=8.0,
            delta=1e-4,
            steps=30,
            batch_size=40,
            clip_norm=0.5,
            lr=2.0,
            seed=0,
            out=tmp_path / "run",
        )
        assert result.test_accuracy > 0.9
        images, labels = self.images(100, 1)
        with torch.no_grad():
            assert result.test_accuracy == share(result.model(images).argmax(1), labels)
        assert result.certificate["features"]["stages"] == ["scatter"]
        assert result.certificate["features"]["released"] == []
        assert failed(verify_run(RunFolder.open(tmp_path / "run"))) == []

    def test_a_fixed_stage_may_come_before_a_released_one(self):
        result = fit(
            network(),
            self.images(400, 0),
            features="scatter+pca:dim=4,noise_multiplier=5",
            noise_multiplier=3.0,
            delta=1e-4,
            steps=3,
            batch_size=40,
        )
        assert result.certificate["features"]["released"] == ["pca:dim=4,noise_multiplier=5.0"]

    def test_records_that_are_no_images_are_refused(self):
        with pytest.raises(InputError, match="Scattering reads images"):
            fit(network(), TRAIN, **{**SETTINGS, "features": "scatter"})

    def test_data_that_is_no_tensors_is_refused(self):
        data = torch.utils.data.Subset(torch.utils.data.TensorDataset(*TRAIN), range(100))
        with pytest.raises(InputError, match="Features need the data as tensors"):
            fit(network(), data, **{**SETTINGS, "features": "scatter"})


class TestResume:
    """The process ends right after the charge, or right after the features were saved."""

    def stopped(self, tmp_path: Path, monkeypatch, where: str, **changes) -> Path:
        def stop(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        target: tuple[object, str] = {
            "after the charge": (RunFolder, "save_features"),
            "after the features": (PrivateGradients, "release"),
        }[where]
        with monkeypatch.context() as patch:
            patch.setattr(*target, stop)
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path / "run", **changes)
        return tmp_path / "run"

    @pytest.mark.parametrize("where", ["after the charge", "after the features"])
    def test_a_seeded_run_ends_as_if_nothing_had_happened(self, tmp_path, monkeypatch, where):
        whole = run(tmp_path / "whole")
        out = self.stopped(tmp_path, monkeypatch, where)
        assert read_ledger(out / "ledger.jsonl").charges == {CHARGE: 1}
        again = run(out, resume=True)
        assert again.certificate["model_digest"] == whole.certificate["model_digest"]
        assert again.certificate["features"] == whole.certificate["features"]
        assert read_ledger(out / "ledger.jsonl").charges == read_ledger(tmp_path / "whole" / "ledger.jsonl").charges
        assert failed(verify_run(RunFolder.open(out))) == []

    def test_a_secure_run_does_not_release_twice_for_one_charge(self, tmp_path, monkeypatch):
        out = self.stopped(tmp_path, monkeypatch, "after the charge", seed=None)
        with pytest.raises(RunError, match="pca was paid"):
            run(out, resume=True, seed=None)
        assert read_ledger(out / "ledger.jsonl").charges == {CHARGE: 1}

    def test_a_secure_run_keeps_the_features_it_saved(self, tmp_path, monkeypatch):
        out = self.stopped(tmp_path, monkeypatch, "after the features", seed=None)
        saved = RunFolder.open(out).load_features()["0.components"]
        result = run(out, resume=True, seed=None)
        assert torch.equal(RunFolder.open(out).load_features()["0.components"], saved)
        assert (result.certificate["steps_done"], result.certificate["steps_lost"]) == (12, 0)
        assert read_ledger(out / "ledger.jsonl").charges[CHARGE] == 1
        assert failed(verify_run(RunFolder.open(out))) == []

    def test_a_request_to_stop_waits_until_a_paid_release_is_saved(self, tmp_path, monkeypatch):
        learned = Pca.learned

        def interrupted(self, released, shape):
            os.kill(os.getpid(), signal.SIGINT)
            return learned(self, released, shape)

        with monkeypatch.context() as patch:
            patch.setattr(Pca, "learned", interrupted)
            with pytest.raises(Interrupted, match="Stopped after 0 of 12 steps"):
                run(tmp_path / "run", seed=None)
        result = run(tmp_path / "run", resume=True, seed=None)
        assert (result.certificate["steps_done"], result.certificate["steps_lost"]) == (12, 0)
        assert read_ledger(tmp_path / "run" / "ledger.jsonl").charges[CHARGE] == 1

    def test_a_secure_run_stopped_within_an_epoch_loses_nothing_because_of_them(self, tmp_path):
        """A reshuffled epoch is charged once; the charge of the projection must not pass for one of an epoch."""
        secure = {"seed": None, "sampling": "reshuffle"}

        def stop(status):
            if status.step == 4:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Interrupted):
            run(tmp_path / "run", watch=stop, **secure)
        result = run(tmp_path / "run", resume=True, **secure)
        assert (result.certificate["steps_done"], result.certificate["steps_lost"]) == (12, 0)


def test_neighbouring_data_moves_the_release_by_its_bound_and_no_more(tmp_path):
    def runner(records: torch.Tensor, labels: torch.Tensor, name: str) -> Callable[[int, GaussianMechanism], None]:
        def go(steps: int, mechanism: GaussianMechanism) -> None:
            plan = Plan.of_noise(noise=3.0, records=560, batch_size=56, steps=steps, before=(5.0,))
            with Ledger.create(tmp_path / name) as ledger:
                preparation = Preparation(parse_features(PCA), records, None)
                private = PrivateGradients(
                    network(), (preparation.train, labels), cross_entropy, plan, ledger, seed=0, mechanism=mechanism
                )
                preparation.run(private, None)
                for _ in range(steps):
                    private.release()

        return go

    found = neighbour_replay(runner(*TRAIN, "all"), runner(TRAIN[0][:-1], TRAIN[1][:-1], "one-less"), 20)
    assert [each.purpose for each in found[:2]] == ["features/0", "noise"]
    assert 0.99 < found[0].share <= 1
    assert found[0].noise_multiplier == CHARGE.noise_multiplier
    assert max(each.share for each in found) <= 1


def test_what_is_saved_says_which_features_it_belongs_to(tmp_path):
    run(tmp_path / "run")
    with safe_open(tmp_path / "run" / "features.safetensors", framework="pt") as file:
        assert file.metadata()["features"] == PCA
