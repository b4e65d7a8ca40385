"""Runs by name: defaults filled in, names checked before anything is made, the same run again from its own file."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

from adadp.accounting import accountant
from adadp.app import zoo
from adadp.app.auto_size import auto_steps
from adadp.app.config import TrainConfig
from adadp.app.features import parse_features
from adadp.app.predict import load_model
from adadp.app.recipes import DEFAULT_FEATURES, DELTAS, NUMBERS, OWN, RECIPES, TABLE, recipe_for
from adadp.app.resolve import fitted, resolve
from adadp.app.runs import RunFolder
from adadp.app.start import resume, start
from adadp.app.train import fit, verify_run
from adadp.errors import AdaDPError, InputError, Interrupted
from adadp.events import GaussianRelease, Neighbours
from adadp.ledger import Ledger

SHORT = TrainConfig("cancer", noise_multiplier=2.0, delta=1e-4, steps=4, seed=0, threads=1)


@pytest.fixture(autouse=True)
def threads_stay_as_they_were():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_every_data_set_has_a_recipe_that_fits_it():
    assert {data for data, _ in RECIPES} - {OWN, TABLE, NUMBERS} <= set(zoo.DATA_SETS) == set(DELTAS)
    for name, entry in zoo.DATA_SETS.items():
        whole = resolve(TrainConfig(name, epsilon=1.0)).config
        features = DEFAULT_FEATURES.get(name)
        recipe = recipe_for(name, parse_features(features))
        assert (whole.clip_norm, whole.model, whole.optimizer) == (recipe.clip_norm, recipe.model, recipe.optimizer)
        sizes = (None, auto_steps(1.0)) if recipe.auto else (recipe.epochs, None)
        assert (whole.epochs, whole.steps) == sizes
        assert recipe.auto or whole.batch_size == recipe.batch_size
        assert whole.batch_size < entry.train_records
        assert recipe_for(name, ()).model == entry.default_model
        assert whole.delta == DELTAS[name] < 1 / entry.train_records
        stages = [stage.name for stage in parse_features(whole.features)]
        assert stages == ([] if features is None else [*(s.name for s in parse_features(features)), "equalise"])
        assert resolve(whole).config == whole


@pytest.mark.parametrize(("data", "kind"), RECIPES)
def test_every_recipe_trains_with_its_features(data, kind):
    named = {OWN: "npz:x.npz", TABLE: "table:x.csv", NUMBERS: "table:x.csv"}.get(data, data)
    loss = "mse" if data == NUMBERS else None
    whole = resolve(TrainConfig(named, epsilon=1.0, delta=1e-6, features=kind, loss=loss)).config
    assert whole.model == RECIPES[data, kind].model
    assert RECIPES[data, kind].auto or whole.batch_size == RECIPES[data, kind].batch_size
    assert whole.lr is not None or whole.lr_schedule is not None


def test_stages_that_shape_features_leave_them_their_recipe():
    plain = recipe_for("cifar10", parse_features("lite0-cifar100"))
    assert plain.model == "linear-no-bias"
    assert recipe_for("cifar10", parse_features("lite0-cifar100+centre+equalise")) is plain
    assert recipe_for("mnist", parse_features("centre")) is recipe_for("mnist", ())


def test_a_table_gets_a_tenth_of_its_records_in_a_batch():
    asked = TrainConfig("table:x.csv", epsilon=1.0, delta=1e-6)
    whole = resolve(asked.replace(records=39_000)).config
    assert (whole.model, whole.batch_size, whole.epochs) == ("linear-no-bias", 3_900, 32)
    assert whole.lr_schedule == "poly:s0=0.1,k=1,s_end=0.001,period=32"
    assert fitted(resolve(asked), asked, 39_000).config == whole.replace(records=None)
    few = fitted(resolve(asked), asked, 70).config
    assert (few.batch_size, few.epochs) == (7, 32)
    many = fitted(resolve(asked), asked, 10**6).config
    assert (many.batch_size, many.epochs, many.lr_schedule[-9:]) == (32_000, 10, "period=10")
    given = asked.replace(steps=50)
    assert fitted(resolve(given), given, 1_000).config.steps == 50
    other = asked.replace(model="mlp:100")
    assert (resolve(other).config.batch_size, fitted(resolve(other), other, 1_000).config.batch_size) == (512, 250)


def test_targets_that_are_numbers_have_a_rate_and_a_clip_norm_of_their_own(tmp_path):
    """Those for classes drown a length of stay in noise."""
    schema = tmp_path / "stays.toml"
    schema.write_text(
        '[target]\ncolumn = "days"\nkind = "number"\nlow = 0\nhigh = 60\n[columns]\njob = {kind = "text"}\n'
    )
    asked = TrainConfig("table:x.csv", schema=str(schema), epsilon=1.0, delta=1e-6)
    whole = resolve(asked).config
    assert (whole.lr_schedule, whole.clip_norm) == ("poly:s0=0.01,k=1,s_end=0.0001,period=32", 0.2)
    assert fitted(resolve(asked), asked, 500).config.batch_size == 50
    schema.write_text(schema.read_text().replace('kind = "number"\nlow = 0\nhigh = 60', "classes = 2"))
    assert resolve(asked).config.clip_norm == 0.7


def test_a_model_without_features_sees_the_records_as_they_are():
    assert resolve(TrainConfig("mnist", model="mlp:1000", epsilon=2.0)).config.features is None


def test_a_recipe_decays_its_rate_over_the_epochs_that_are_trained():
    whole = resolve(TrainConfig("mnist", epsilon=2.0, epochs=7)).config
    assert whole.lr is None
    assert "period=7" in str(whole.lr_schedule)


def test_momentum_and_average_come_with_the_rate_of_the_recipe():
    asked = TrainConfig("cifar10", epsilon=2.0, features="synthetic:leaves+patches+synthetic-pca+centre")
    whole = resolve(asked).config
    assert (whole.lr, whole.momentum, whole.ema) == (60.0, 0.9, 0.99)
    assert resolve(whole).config == whole
    own = resolve(asked.replace(lr=3.0)).config
    assert (own.lr, own.momentum, own.ema) == (3.0, 0.0, None)
    assert resolve(asked.replace(ema=0.9)).config.ema == 0.9
    other = resolve(asked.replace(optimizer="adam", lr=0.1)).config
    assert (other.momentum, other.ema) == (0.0, None)


def test_the_rate_of_another_optimizer_is_not_borrowed():
    with pytest.raises(InputError, match="needs a learning rate"):
        resolve(TrainConfig("mnist", epsilon=2.0, optimizer="sgd"))


def test_the_model_of_a_run_by_name_takes_records_as_they_are(tmp_path):
    result = start(SHORT.replace(features="pca:dim=4,noise_multiplier=5", steps=20), tmp_path / "run")
    records, labels = zoo.load("cancer").test
    with torch.no_grad():
        scores = result.model(records)
    assert result.test_accuracy == int((scores.argmax(1) == labels).sum()) / len(labels)
    assert torch.allclose(load_model(tmp_path / "run").model(records), scores, atol=1e-5)
    assert result.network.state_dict().keys() == RunFolder.open(tmp_path / "run").load_model_tensors().keys()


def test_pca_without_noise_gets_one_from_epsilon_that_alone_costs_its_share():
    whole = resolve(TrainConfig("mnist", epsilon=2.0, features="pca:dim=20")).config
    stage = parse_features(whole.features)[0]
    alone = accountant("pld").epsilon(GaussianRelease(stage.noise_multiplier, Neighbours.ADD_REMOVE), 1e-5).epsilon
    assert 0.98 * stage.budget_share * 2 < alone <= stage.budget_share * 2
    with pytest.raises(InputError, match="noise of pca"):
        resolve(TrainConfig("mnist", noise_multiplier=2.0, features="pca:dim=20"))


def test_what_is_given_is_kept():
    given = SHORT.replace(
        model="linear",
        optimizer="sgd",
        batch_size=9,
        lr_schedule="exp:s0=1,k=0.1",
        clip_rule="automatic:2,gamma=0.1",
        steps=3,
    )
    whole = resolve(given).config
    assert whole == given
    assert (whole.epochs, whole.lr, whole.clip_norm) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "iris"}, "no data set 'iris'"),
        ({"method": "magic"}, "Unknown method 'magic'.*adadp"),
        ({"model": "vgg"}, "no model 'vgg'"),
        ({"model": "cnn"}, "cnn cannot read records"),
        ({"clip_rule": "box"}, "Unknown clip rule 'box'"),
        ({"batch_size": 1000}, "batch_size must not exceed"),
        ({"data": "python"}, "run from Python.*adadp.fit"),
        ({"optimizer": "python"}, "run from Python"),
        ({"device": "cuda:99"}, "cannot be used"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_names_that_are_unknown_leave_no_folder_and_no_charge(change, message, tmp_path, monkeypatch):
    monkeypatch.setattr(Ledger, "charge", lambda *_: pytest.fail("charged"))
    with pytest.raises(InputError, match=f"(?s){message}"):
        start(SHORT.replace(**change), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_data_that_cannot_be_fetched_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ADADP_DATA", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:9")
    with pytest.raises(AdaDPError):
        start(SHORT.replace(data="mnist"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_is_repeated_by_its_own_configuration(tmp_path):
    first = start(SHORT, tmp_path / "one")
    again = start(TrainConfig.from_toml(tmp_path / "one" / "config.toml"), tmp_path / "two")
    one, two = RunFolder.open(tmp_path / "one"), RunFolder.open(tmp_path / "two")
    assert one.config_path.read_bytes() == two.config_path.read_bytes()
    assert one.config == resolve(SHORT).config
    assert first.certificate["model_digest"] == again.certificate["model_digest"]
    left, right = one.load_model_tensors(), two.load_model_tensors()
    assert all(torch.equal(left[name], right[name]) for name in left | right)
    assert first.test_accuracy == again.test_accuracy
    assert torch.get_num_threads() == 1
    assert first.certificate["record"] == zoo.find("cancer").record


@pytest.mark.slow
def test_where_the_weights_start_follows_the_seed_or_nothing():
    quick = SHORT.replace(noise_multiplier=0, allow_nonprivate=True, steps=1)
    digests = [start(quick.replace(seed=seed)).certificate["model_digest"] for seed in (1, 1, 2, None, None)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_a_finished_one_does_not(tmp_path):
    def stop(status):
        if status.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    quick = SHORT.replace(noise_multiplier=0, allow_nonprivate=True)
    whole = start(quick)
    with pytest.raises(Interrupted, match="adadp train --resume"):
        start(quick, tmp_path / "run", watch=stop)
    assert not all(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))
    seen = []
    result = resume(tmp_path / "run", watch=lambda status: seen.append(status.step))
    assert seen == [3, 4]
    assert result.certificate["model_digest"] == whole.certificate["model_digest"]
    with pytest.raises(InputError, match="has finished"):
        resume(tmp_path / "run")
    with pytest.raises(InputError, match="There is no run in"):
        resume(tmp_path / "nothing")


def test_a_run_from_python_is_resumed_from_python(tmp_path):
    def stop(status):
        os.kill(os.getpid(), signal.SIGINT)

    data = zoo.load("cancer").train
    with pytest.raises(Interrupted, match="Call fit again with resume=True"):
        fit(
            torch.nn.Linear(9, 2),
            data,
            noise_multiplier=2.0,
            delta=1e-4,
            steps=3,
            batch_size=56,
            out=tmp_path / "run",
            watch=stop,
        )
    with pytest.raises(InputError, match=r"run from Python.*resume=True"):
        resume(tmp_path / "run")


def test_data_is_loaded_before_there_is_a_folder(tmp_path, monkeypatch):
    def look(name):
        assert not (tmp_path / "run").exists()
        raise InputError("looked")

    monkeypatch.setattr(zoo, "load", look)
    with pytest.raises(InputError, match="looked"):
        start(SHORT, tmp_path / "run")


@pytest.mark.parametrize(("rows", "expected"), [(9, 2), (200, 50), (2047, 511), (2100, 512)])
def test_a_small_file_gets_a_batch_that_fits_it(rows, expected, tmp_path):
    features = torch.linspace(0, 1, rows)[:, None].numpy()
    np.savez(tmp_path / "own.npz", x=features, y=(features[:, 0] > 0.5).astype(int), classes=2)
    config = TrainConfig(f"npz:{tmp_path / 'own.npz'}", noise_multiplier=4.0, delta=1e-5, epochs=1, threads=1)
    result = start(config, tmp_path / "run")
    assert result.plan.batch_size == expected
    assert resolve(config.replace(records=rows)).config.batch_size == expected
    assert not [check for check in verify_run(RunFolder.open(tmp_path / "run")) if not check.passed]
    asked = resolve(config.replace(batch_size=rows))
    assert fitted(asked, config.replace(batch_size=rows), rows).config.batch_size == rows


@pytest.mark.slow
def test_a_delta_that_protects_nobody_is_refused_on_own_records(tmp_path):
    features = torch.linspace(0, 1, 200)[:, None]
    labels = (features[:, 0] > 0.5).long()
    np.savez(tmp_path / "own.npz", x=features.numpy(), y=labels.numpy(), classes=2)
    config = TrainConfig(f"npz:{tmp_path / 'own.npz'}", epsilon=1.0, delta=1 / 200, steps=2, batch_size=20, lr=0.1)
    with pytest.raises(InputError, match="not below one over the number of records, 200"):
        start(config, tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing was spent"
    with pytest.raises(InputError, match="not below one over the number of records, 1000"):
        resolve(config.replace(records=1000, delta=1e-3))
    with pytest.raises(InputError, match="not below one over the number of records, 200"):
        fit(torch.nn.Linear(1, 2), (features, labels), epsilon=1.0, delta=1 / 200, steps=2, batch_size=20, lr=0.1)
    start(config.replace(delta=1 / 201), tmp_path / "run")
    start(config.replace(epsilon=None, noise_multiplier=0.0, allow_nonprivate=True), tmp_path / "noiseless")


@pytest.mark.slow
def test_on_public_records_a_delta_that_protects_nobody_is_noted():
    """Table I of Xu et al. 2020 has such a delta."""
    config = TrainConfig("cancer", epsilon=1.0, delta=1 / 560, steps=2, batch_size=56)
    about = "delta = 0.00178571 is not below one over the number of records, 560."
    assert about in start(config).certificate["notes"]
    assert not any("delta" in note for note in start(config.replace(delta=1 / 561)).certificate["notes"])
