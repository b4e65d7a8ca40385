"""No argument of ``fit`` is silently ignored: a senseless value is refused before a charge, a sensible one has effect.

Both tables have a line for every keyword, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from adadp.app.clipping.fixed import Automatic
from adadp.app.schedules import ExponentialDecay
from adadp.app.train import checkpoints, fit
from adadp.app.train.fitting import SETTINGS as SETTINGS_TAKEN
from adadp.errors import InputError
from adadp.ledger import Ledger
from adadp.schedules import Uniform

pytestmark = pytest.mark.slow


torch.manual_seed(0)
X = 3 * torch.randn(200, 5)
Y = (X[:, 0] > 0).long()
TEST = (X[:60] + 0.5, Y[:60])
SETTINGS = {"noise_multiplier": 2.0, "delta": 1e-4, "epochs": 2, "batch_size": 50, "lr": 0.1, "seed": 0}
KEYWORDS = [name for name, each in inspect.signature(fit).parameters.items() if each.kind is each.KEYWORD_ONLY]
KEYWORDS += SETTINGS_TAKEN
FOLLOWING = {"noise_multiplier": None, "epsilon": 8.0, "noise_schedule": "validation:s0=3,k=0.7", "validation": TEST}


def run(out: Path | None, **settings):
    torch.manual_seed(0)
    data = settings.pop("data", (X, Y))
    return fit(nn.Linear(settings.pop("width", 5), 2), data, out=out, **{**SETTINGS, **settings})


IDS = [number // 2 for number in range(len(X))]
"""Two rows to a unit."""


def halved(optimizer, steps):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps // 2], gamma=0.5)


SENSELESS = {
    "epsilon": [
        {"epsilon": "2", "noise_multiplier": None},
        {"epsilon": -1.0, "noise_multiplier": None},
        {"epsilon": 1.0},
    ],
    "rho": [{"rho": -1.0, "noise_multiplier": None}, {"rho": 1.0}],
    "noise_multiplier": [
        {"noise_multiplier": -1.0},
        {"noise_multiplier": "2"},
        {"noise_multiplier": 0},
        {"noise_multiplier": 1e12},
    ],
    "noise_schedule": [
        {"noise_schedule": value, "noise_multiplier": None} for value in (5.0, 5, True, [1.0], "linear", object())
    ],
    "delta": [{"delta": 0}, {"delta": "1e-5"}],
    "method": [{"method": 5}, {"method": "sgd"}],
    "epochs": [{"epochs": 0}, {"epochs": "many"}, {"epochs": 1.5}],
    "steps": [{"steps": 3}, {"steps": -3, "epochs": None}],
    "batch_size": [{"batch_size": value} for value in (0, 0.5, True, "50", [50], 10**6)],
    "input_bound": [{"input_bound": value} for value in (0, "wide", (1, 2, 3), (2, 1), {})],
    "features": [{"features": 5}, {"features": "fourier"}, {"features": "equalise"}],
    "clip_norm": [{"clip_norm": value} for value in (0, -1.0, 1e300, True, [1.0], "box:1", None)],
    "clip_norm_schedule": [{"clip_norm_schedule": value} for value in (0.5, 1, True, [0.5], "linear", object())],
    "keep_noise": [{"keep_noise": True}, {"keep_noise": "yes", "clip_norm_schedule": "exp:k=0.1"}],
    "lr": [{"lr": value} for value in (0, -0.1, 1e308, 1e-320, float("nan"), float("inf"), "0.1", True, [0.1])],
    "optimizer": [{"optimizer": value} for value in ("lion", 5, torch.optim.SGD(nn.Linear(5, 2).parameters(), 0.1))],
    "scheduler": [{"scheduler": 5}, {"scheduler": lambda optimizer: optimizer}, {"scheduler": lambda *_: 5}]
    + [{"scheduler": halved, "lr": value} for value in ("exp:s0=0.1,k=0.1", lambda epoch: 0.1)],
    "collate_fn": [{"collate_fn": 5}],
    "momentum": [{"momentum": value} for value in (-0.1, 1.0, "0.9")] + [{"momentum": 0.9, "optimizer": "adam"}],
    "weight_decay": [{"weight_decay": value} for value in (-1, 1e308, 1e3, "0.1")],
    "ema": [{"ema": value} for value in (0, 1, -1, "0.9")],
    "loss": [{"loss": 5}, {"loss": "hinge"}, {"loss": None}],
    "example": [{"example": value} for value in (5, (X,), (X[:1], Y[:1]), (X[:, 1:], Y), (X.long(), Y))]
    + [{"example": (X, Y), "features": "standardise:noise_multiplier=9"}],
    "arithmetic": [{"arithmetic": value} for value in ("slow", 5, True)],
    "test": [{"test": value} for value in (5, "test", X, (X, Y[:-1]), (X,))],
    "groups": [{"groups": 5, "test": TEST}, {"groups": ["a"] * 60}, {"groups": ["a"], "test": TEST}],
    "class_weights": [{"class_weights": value} for value in (5, "1", "1,2,3", "a,b", (1, 0))],
    "class_priors": [{"class_priors": value} for value in (5, "1", "1,19", "0.2,0.3,0.5")],
    "threshold": [{"threshold": value, "test": TEST} for value in (0, 1, "0.5", "recall=0.9")] + [{"threshold": 0.3}],
    "holdout": [{"holdout": value, "holdout_noise": 5.0} for value in (0, 1, "ten", True, "100%", "99.9%")]
    + [{"holdout": "10%"}],
    "audit_canaries": [{"audit_canaries": value} for value in (0, 19, -1, 2.5, "many", True, 10**9)]
    + [{"audit_canaries": 20, "sampling": "fixed"}, {"audit_canaries": 20, "neighbours": "replace-one"}],
    "holdout_noise": [{"holdout_noise": 5.0}, {"holdout": "10%", "holdout_noise": -1.0}],
    "target_range": [{"target_range": "0,1"}]
    + [{"holdout": "10%", "holdout_noise": 5.0, "target_range": value} for value in ("1,0", "0", 5, "0,1")],
    "evaluate": [{"evaluate": 5}, {"evaluate": lambda model: None}],
    "validation": [
        {"validation": TEST},
        {**FOLLOWING, "validation": "test"},
        {**FOLLOWING, "validation": True},
        {**FOLLOWING, "validation": (X,)},
        {**FOLLOWING, "validation": X, "features": "pca:dim=3,noise_multiplier=9", "width": 3},
    ],
    "validation_public": [{"validation_public": True}, {**FOLLOWING, "validation": 20, "validation_public": 3}],
    "sampling": [{"sampling": 5}, {"sampling": "shuffle"}],
    "neighbours": [{"neighbours": 5}, {"neighbours": "next-door"}],
    "accountant": [{"accountant": 5}, {"accountant": "guess"}],
    "records": [{"records": value} for value in (0, "200", 49, 1.5)],
    "seed": [{"seed": value} for value in (-1, "0", 0.5, 2**63, True)],
    "chunk_size": [{"chunk_size": value} for value in (0, "big", 1.5)],
    "memory_limit_mb": [{"memory_limit_mb": value} for value in (0, "1", 1.5)],
    "device": [{"device": 5}, {"device": "tpu"}],
    "precision": [{"precision": "half"}, {"precision": 16}],
    "compile": [{"compile": "yes"}, {"compile": 1}],
    "out": [{"out": 5}, {"out": True}],
    "budget": [{"budget": 7}, {"budget": ""}, {"budget": "x.budget"}, {"budget": "x.budget", "seed": None}],
    "moved": [{"moved": "yes"}, {"moved": True}],
    "units": [{"units": value} for value in (5, "patient", [1] * len(X), list(range(len(X) - 1)))]
    + [{"units": [float("nan")] * len(X)}],
    "test_units": [{"test_units": [1, 2]}, {"units": IDS, "test_units": [1, 2]}]
    + [{"units": IDS, "test": TEST, "test_units": value} for value in ([-1], IDS[:60], 5)],
    "rows_per_unit": [{"rows_per_unit": 3}]
    + [{"units": IDS, "rows_per_unit": value} for value in (0, -1, 1.5, "many")],
    "resume": [{"resume": "yes"}, {"resume": 1}, {"resume": True}],
    "evaluate_every": [
        {"evaluate_every": 1},
        {"evaluate_every": 0, "test": TEST},
        {"evaluate_every": "1", "test": TEST},
    ],
    "checkpoint_every": [{"checkpoint_every": 0}, {"checkpoint_every": 1, "out": None}],
    "tensorboard": [{"tensorboard": "yes"}, {"tensorboard": True, "out": None}],
    "searched": [{"searched": -1}, {"searched": "3"}],
    "allow_nonprivate": [{"allow_nonprivate": "yes"}, {"allow_nonprivate": 1}],
    "watch": [{"watch": 5}, {"watch": "me"}],
}


@pytest.mark.parametrize("name", KEYWORDS)
def test_a_senseless_value_is_refused_before_there_is_a_folder_or_a_charge(name, tmp_path, monkeypatch):
    monkeypatch.setattr(Ledger, "charge", lambda *_: pytest.fail("charged"))
    for settings in SENSELESS[name]:
        with pytest.raises(InputError) as caught:
            run(**{"out": tmp_path / "run", **settings})
        assert caught.value.fix, (name, settings, caught.value)
        assert list(tmp_path.iterdir()) == []


def squared(model, x, y):
    return F.mse_loss(model(x)[:, 0], y.to(x.dtype), reduction="none")


EFFECT = {
    "epsilon": {"epsilon": 3.0, "noise_multiplier": None},
    "rho": {"rho": 0.2, "noise_multiplier": None, "sampling": "reshuffle"},
    "noise_multiplier": {"noise_multiplier": 3.0},
    "noise_schedule": {"noise_schedule": Uniform(4.0), "noise_multiplier": None},
    "delta": {"delta": 1e-5},
    "method": {"method": "dpsgd-momentum"},
    "epochs": {"epochs": 3},
    "steps": {"steps": 3, "epochs": None},
    "batch_size": {"batch_size": lambda epoch: 40 + 10 * epoch},
    "input_bound": {"input_bound": 0.5},
    "features": {"features": "standardise:noise_multiplier=9"},
    "clip_norm": {"clip_norm": Automatic(0.5)},
    "groups": {"groups": ["a", "b"] * 30, "test": TEST},
    "units": {"units": IDS},
    "rows_per_unit": {"units": IDS, "rows_per_unit": 1},
    "class_weights": {"class_weights": "1,5"},
    "class_priors": {"class_priors": "0.9,0.1"},
    "threshold": {"threshold": 0.9, "test": TEST},
    "holdout": {"holdout": "20%", "holdout_noise": 5.0},
    "audit_canaries": {"audit_canaries": 20},
    "holdout_noise": {"holdout_noise": 50.0, "holdout": "20%", "epsilon": 8.0, "noise_multiplier": None},
    "clip_norm_schedule": {"clip_norm_schedule": lambda epoch: 0.5**epoch},
    "keep_noise": {"clip_norm_schedule": ExponentialDecay(1.0, 0.5), "keep_noise": True},
    "lr": {"lr": lambda epoch: 0.1 / (1 + epoch)},
    "optimizer": {"optimizer": "adam"},
    "scheduler": {"scheduler": halved},
    "collate_fn": {"collate_fn": lambda records: (records[0][0][None] + 1, records[0][1][None])},
    "momentum": {"momentum": 0.5},
    "weight_decay": {"weight_decay": 0.1},
    "ema": {"ema": 0.5},
    "loss": {"loss": squared},
    "test": {"test": TEST},
    "evaluate": {"evaluate": lambda model: 0.25},
    "validation": FOLLOWING,
    "validation_public": {**FOLLOWING, "validation": 20, "validation_public": True},
    "sampling": {"sampling": "fixed"},
    "neighbours": {"neighbours": "zero-out"},
    "accountant": {"accountant": "rdp"},
    "records": {"records": 300},
    "seed": {"seed": 1},
    "arithmetic": {"arithmetic": "exact"},
    "precision": {"precision": "bf16"},
    "evaluate_every": {"test": TEST, "evaluate_every": 1},
    "checkpoint_every": {"checkpoint_every": 3},
    "searched": {"searched": 3},
    "allow_nonprivate": {"noise_multiplier": 0, "allow_nonprivate": True},
}
BESIDE = {"keep_noise", "evaluate_every", "groups", "threshold", "holdout_noise", "rows_per_unit"}
"""Arguments that mean something beside another one only."""

ELSEWHERE = {
    "target_range": "needs targets that are numbers: tests/app/train/test_holdout.py",
    "compile": "changes nothing but rounding: tests/app/test_compiled_passes.py",
    "chunk_size": "the result does not depend on it: tests/test_step.py",
    "memory_limit_mb": "the size of a chunk, on which the result does not depend",
    "device": "needs another one",
    "example": "what the model is looked over with does not change a result: tests/test_train.py",
    "out": "a folder or none: tests/test_train.py",
    "budget": "tests/app/budgets/test_counted_runs.py",
    "moved": "tests/app/runs/test_anchor.py",
    "test_units": "changes no result, or refuses it: tests/app/test_units.py",
    "resume": "tests/test_resume.py",
    "tensorboard": "tests/test_tensorboard.py",
    "watch": "tests/test_train.py",
}


def observed(out: Path, **settings) -> str:
    """Everything a run leaves, but for times and digests of the configuration."""
    saves: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        save = checkpoints.save
        patch.setattr(checkpoints, "save", lambda *args, **more: (saves.append(1), save(*args, **more)))
        result = run(out, **settings)
    named = {"config_digest", "model_digest", "ledger", "versions"}
    told = {name: value for name, value in result.certificate.items() if name not in named}
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    measured = [{name: value for name, value in line.items() if name != "seconds"} for line in lines]
    weights = [value.tolist() for value in result.network.state_dict().values()]
    return json.dumps([told, measured, weights, len(saves)], default=str)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> str:
    return observed(tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.parametrize("name", EFFECT)
def test_a_sensible_value_has_an_effect(name, plain, tmp_path):
    beside = {key: value for key, value in EFFECT[name].items() if key != name and name in BESIDE}
    before = observed(tmp_path / "before", **beside) if beside else plain
    assert observed(tmp_path / "run", **EFFECT[name]) != before


def test_the_tables_have_every_keyword():
    assert set(SENSELESS) == set(KEYWORDS)
    assert EFFECT.keys() | ELSEWHERE.keys() == set(KEYWORDS)


@pytest.mark.parametrize("name", ["noise_schedule", "clip_norm_schedule"])
def test_a_number_in_place_of_a_schedule_says_which_argument_it_is(name):
    plain = {"noise_schedule": "noise_multiplier", "clip_norm_schedule": "clip_norm"}[name]
    with pytest.raises(InputError, match=rf"{name} is 0.5, a number.*Pass {plain}=0.5"):
        run(None, **{name: 0.5})


@pytest.mark.parametrize(
    "value", ["exp:k=0.5", ExponentialDecay(1.0, 0.5), lambda epoch: float(torch.exp(torch.tensor(-0.5 * epoch)))]
)
def test_a_schedule_may_be_text_an_object_or_a_function(value):
    found = run(None, clip_norm_schedule=value).plan.clip_norm_schedule
    assert [found.value_at(epoch) for epoch in range(2)] == pytest.approx([1.0, 0.6065307])


@pytest.mark.parametrize(
    ("unknown", "meant"),
    [
        ("epsilom", "epsilon"),
        ("batch_sizes", "batch_size"),
        ("test_data", "test"),
        ("threads", ""),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest_name(unknown, meant):
    with pytest.raises(InputError, match=f"Unknown setting '{unknown}'.*{'Did you mean ' + meant if meant else ''}"):
        run(None, **{unknown: 1})
