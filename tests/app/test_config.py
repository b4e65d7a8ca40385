"""A configuration is refused when it is wrong, and survives TOML and the command line exactly."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest
from config_cases import GOOD, NOISY

from adadp.app import config as room
from adadp.app.config import TrainConfig
from adadp.certificate.digests import json_digest
from adadp.errors import InputError
from adadp.events import Neighbours
from adadp.step import ARITHMETICS

LOOKS = "validation:s0=10,k=0.7"


# What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0}, "epsilon must be greater than 0"),
        ({"epsilon": -1.0}, "epsilon must be greater than 0"),
        ({"epsilon": float("inf")}, "epsilon must be finite"),
        ({"epsilon": float("nan")}, "epsilon must be finite"),
        ({"epsilon": "2"}, "epsilon must be a number"),
        ({"epsilon": True}, "epsilon must be a number"),
        ({"epsilon": None}, "None of epsilon, rho and noise_multiplier"),
        ({"noise_multiplier": 1.1}, "Both epsilon and noise_multiplier"),
        ({"epsilon": None, "noise_multiplier": 0}, "noise_multiplier is 0.*not private.*allow_nonprivate"),
        ({"epsilon": None, "noise_multiplier": -0.5}, "noise_multiplier must not be negative"),
        ({"delta": 0}, "delta must lie strictly between"),
        ({"delta": 1.0}, "delta must lie strictly between"),
        ({"delta": 2}, "delta must lie strictly between"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"epochs": 10, "steps": 100}, "Both epochs and steps"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 11, "records": 10}, "batch_size must be at most records"),
        ({"records": 0}, "records must be at least 1"),
        ({"clip_norm": 0.0}, "clip_norm must be greater than 0"),
        ({"lr": 0}, "lr must be greater than 0"),
        ({"lr": 1e308}, "lr must lie between 1e-12 and 1e\\+06"),
        ({"lr": 1e-320}, "lr must lie between 1e-12 and 1e\\+06"),
        ({"lr": float("nan")}, "lr must be finite"),
        ({"lr_schedule": "piecewise:0=0.1,7=1e308"}, "lr_schedule must lie between.*got 1e\\+308"),
        ({"lr": 0.1, "lr_schedule": "poly:k=1,s_end=1e9,period=4"}, "lr_schedule must lie between.*got 1e\\+08"),
        ({"weight_decay": 1e308}, "weight_decay must be at most 1e\\+06"),
        ({"weight_decay": 100, "lr": 0.1, "optimizer": "sgd"}, "times weight_decay is 10, above 1"),
        ({"weight_decay": 3, "lr_schedule": "exp:s0=1,k=1", "optimizer": "adamw"}, "times weight_decay is 3, above 1"),
        ({"lr": 0.1, "lr_schedule": "exp:s0=1,k=1"}, "Both lr and lr_schedule"),
        ({"lr_schedule": "linear:s0=1"}, "Unknown schedule shape 'linear'"),
        ({"lr_schedule": 0.1}, "A schedule must be text"),
        ({"lr_schedule": "exp:s0=1"}, "lr_schedule leaves k open"),
        ({"lr_schedule": "validation:s0=1,k=0.5"}, "Unknown schedule shape 'validation'"),
        ({"lr": 0.1, "lr_schedule": "piecewise:0=1"}, "Both lr and lr_schedule"),
        ({"clip_norm": 0.1, "clip_norm_schedule": "exp:s0=1,k=1"}, "Both clip_norm and clip_norm_schedule"),
        ({"clip_norm_schedule": "exp:s0=1"}, "clip_norm_schedule leaves k open"),
        ({"batch_size": 10, "batch_size_schedule": "exp:s0=1,k=1"}, "Both batch_size and batch_size_schedule"),
        ({"batch_size_schedule": "exp:s0=1"}, "batch_size_schedule leaves k open"),
        ({"rho": 0}, "rho must be greater than 0"),
        ({"rho": 1.0}, "Both epsilon and rho"),
        ({"epsilon": None, "rho": 1.0, "noise_multiplier": 1.0}, "Both rho and noise_multiplier"),
        ({"epsilon": None, "noise_schedule": "exp:k=1"}, "None of epsilon, rho and noise_multiplier"),
        (
            {"epsilon": None, "noise_multiplier": 1.0, "noise_schedule": "exp:s0=1,k=1"},
            "Both noise_multiplier and noise_schedule",
        ),
        (
            {"epsilon": None, "noise_multiplier": 1.0, "noise_schedule": LOOKS},
            "Both noise_multiplier and noise_schedule",
        ),
        (
            {"epsilon": None, "noise_multiplier": 0, "allow_nonprivate": True, "noise_schedule": "exp:k=1"},
            "noise_multiplier is 0, and noise_schedule is given",
        ),
        ({"epsilon": None, "noise_schedule": "exp:s0=10"}, "leaves k open, and there is no budget"),
        ({"epochs": 5, "noise_schedule": "exp:s0=10,k=0.1"}, "the length and the budget are all given"),
        ({"steps": 5, "noise_schedule": "exp:s0=10,k=0.1"}, "the length and the budget are all given"),
        ({"epsilon": None, "noise_schedule": LOOKS}, "without a budget"),
        ({"validation": 5}, "kept aside for nothing"),
        ({"validation_data": "other.csv"}, "kept aside for nothing"),
        ({"validation_public": True}, "kept aside for nothing"),
        ({"noise_schedule": "exp:k=0.1", "validation": 5}, "kept aside for nothing"),
        ({"noise_schedule": LOOKS, "validation": 5}, "5 private records are to be looked at without noise"),
        ({"noise_schedule": LOOKS, "validation": 5, "validation_public": False}, "looked at without noise"),
        ({"noise_schedule": LOOKS, "validation": 0}, "validation must be at least 1"),
        ({"noise_schedule": LOOKS, "validation_public": 1}, "validation_public must be true or false"),
        ({"noise_schedule": LOOKS, "validation": 5, "validation_data": "a"}, "Both validation and validation_data"),
        (
            {"noise_schedule": NOISY, "validation": 5, "validation_public": True},
            "look gives noise for private ones.*ignored",
        ),
        ({"noise_schedule": NOISY, "validation_data": "a"}, "look gives noise for private ones"),
        (
            {"noise_schedule": NOISY, "validation": 5, "sampling": "reshuffle", "neighbours": "add-remove"},
            "by a coin of its own",
        ),
        ({"validation_data": ""}, "validation_data must be printable text"),
        ({"epochs": "many"}, "epochs must be a whole number"),
        ({"optimizer": "sdg"}, "Unknown optimizer 'sdg'.*Did you mean sgd"),
        ({"momentum": 1.0}, "momentum must be below 1"),
        ({"momentum": -0.1}, "momentum must not be negative"),
        ({"momentum": 0.9, "optimizer": "adam"}, "the optimizer adam takes none"),
        ({"momentum": None}, "momentum must be a number"),
        ({"weight_decay": -1}, "weight_decay must not be negative"),
        ({"sampling": "shuffle"}, "Unknown sampling 'shuffle'.*Did you mean reshuffle"),
        ({"neighbours": "add"}, "Unknown neighbours 'add'.*add-remove"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**63}, "seed must be below"),
        ({"chunk_size": 0}, "chunk_size must be at least 1"),
        ({"chunk_size": "big"}, "chunk_size must be a whole number or auto"),
        ({"chunk_size": None}, "chunk_size must be a whole number"),
        ({"memory_limit_mb": 0}, "memory_limit_mb must be at least 1"),
        ({"device": "gpu"}, "Unknown device 'gpu'.*cuda"),
        ({"device": "cuda:"}, "Unknown device"),
        ({"device": "mps"}, "mps has no double precision"),
        ({"device": 0}, "device must be printable text"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1"),
        ({"allow_nonprivate": 1}, "allow_nonprivate must be true or false"),
        ({"searched": -1}, "searched must be at least 0"),
        ({"data": ""}, "data must be printable text"),
        ({"data": None}, "data must be printable text"),
        ({"model": " "}, "model must be printable text"),
        ({"features": ""}, "features must be printable text"),
        ({"method": "a\nb"}, "method must be printable text"),
        ({"clip_rule": "\ud800"}, "clip_rule must be printable text"),
    ],
)
def test_what_is_wrong_is_refused_by_name(change, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        TrainConfig(**{**GOOD, **change})


def test_a_run_without_noise_needs_leave_and_then_no_delta():
    free = TrainConfig("mnist", noise_multiplier=0, allow_nonprivate=True)
    assert (free.noise_multiplier, free.delta) == (0.0, None)
    room.require_delta(free)
    with pytest.raises(InputError, match="delta must be given"):
        room.require_delta(TrainConfig("mnist", noise_multiplier=0.1, allow_nonprivate=True))


def test_the_plain_configuration_is_accepted_and_frozen():
    plain = TrainConfig(**GOOD)
    assert (plain.sampling, plain.accountant, plain.chunk_size) == ("poisson", "pld", "auto")
    assert (plain.seed, plain.optimizer, plain.features) == (None, None, None)
    with pytest.raises(FrozenInstanceError):
        plain.epsilon = 3.0


def test_names_are_those_of_the_rooms_that_own_them():
    assert room.ARITHMETICS == ARITHMETICS
    assert set(room.NEIGHBOURS) == {relation.value for relation in Neighbours}


# One spelling -----------------------------------------------------------------------------------------------------


def test_equal_settings_have_one_spelling_and_one_digest():
    loose = TrainConfig(
        "mnist", epsilon=2, delta=1e-5, batch_size=600.0, weight_decay=-0.0, lr_schedule="exp:k=1e-2, s0=1.0"
    )
    strict = TrainConfig(
        "mnist", epsilon=2.0, delta=1e-5, batch_size=600, weight_decay=0.0, lr_schedule="exp:s0=1,k=0.01"
    )
    assert loose == strict
    assert repr(loose) == repr(strict)
    assert loose.digest() == strict.digest()
    assert loose.to_toml() == strict.to_toml()
    assert strict.replace(arithmetic="fast") == strict


@pytest.mark.parametrize("name", [field.name for field in fields(TrainConfig)])
def test_every_field_counts_for_the_digest(name):
    base = TrainConfig("mnist", noise_multiplier=1.0, delta=1e-5, epochs=1, lr=0.1)
    looking = TrainConfig("mnist", epsilon=1.0, delta=1e-5, noise_schedule=NOISY, validation=5)
    public = TrainConfig("mnist", epsilon=1.0, delta=1e-5, noise_schedule=LOOKS)
    bases = {"validation": looking, "validation_public": public, "validation_data": public}
    others = {
        "model": "cnn", "epsilon": 1.0, "rho": 1.0, "steps": 3, "batch_size": 2, "clip_norm": 1.0,
        "lr_schedule": "uniform:s0=1",
        "noise_schedule": "exp:k=0.1", "batch_size_schedule": "uniform:s0=9", "clip_norm_schedule": "uniform:s0=1",
        "seed": 0,
        "optimizer": "adam", "momentum": 0.5, "sampling": "fixed", "neighbours": "zero-out", "accountant": "rdp",
        "device": "cuda", "records": 9, "allow_nonprivate": True, "noise_multiplier": 2.0, "validation_public": True,
        "delta": 1e-6, "lr": 0.2, "weight_decay": 0.1, "keep_noise": True, "ema": 0.5, "tensorboard": True,
        "arithmetic": "exact", "precision": "bf16", "compile": True,
    }  # fmt: skip
    texts = ("data", "method", "clip_rule", "features", "target", "schema", "test_data", "validation_data", "budget")
    base = bases.get(name, base)
    changed = base.replace(**{name: others.get(name, "other" if name in texts else 7)})
    assert getattr(changed, name) != getattr(base, name)
    assert changed.digest() != base.digest()


def test_the_digest_is_pinned():
    """It names the configuration in checkpoints, so that it must not change between releases unnoticed."""
    assert TrainConfig(**GOOD, optimizer="sgd").digest() == json_digest(
        {
            "data": "mnist", "method": "adadp", "epsilon": 2.0, "delta": 1e-5, "clip_rule": "flat", "optimizer": "sgd",
            "momentum": 0.0, "weight_decay": 0.0, "sampling": "poisson", "accountant": "pld", "chunk_size": "auto",
            "device": "cpu", "allow_nonprivate": False, "searched": 0,
        }
    )  # fmt: skip
    assert json_digest({"b": 1, "a": [1.0, None]}) == "8075c44d7e50dec3f8149d7f772adea8115e4fbda82f803233dd0535ecda45db"
