"""A configuration is refused when it is wrong, and survives TOML and the command line exactly."""

from __future__ import annotations

import re
import shlex
from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path

import click
import pytest
import settings_table
from hypothesis import assume, given
from hypothesis import strategies as st

from adadp.accounting import ACCOUNTANTS
from adadp.app import config as room
from adadp.app.cli.options import given_options, options_of
from adadp.app.config import OPTIMIZERS, SAMPLINGS, TrainConfig
from adadp.app.settings import setting, settings_of
from adadp.certificate.digests import json_digest
from adadp.errors import InputError
from adadp.events import Neighbours
from adadp.step import ARITHMETICS

GOOD = {"data": "mnist", "epsilon": 2.0, "delta": 1e-5}
LOOKS = "validation:s0=10,k=0.7"
NOISY = "validation:s0=10,k=0.7,look=20"

positives = st.floats(0, exclude_min=True, allow_infinity=False)
rates = st.floats(1e-12, 1e6)
counts = st.integers(1, 10**18)
names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)


def maybe(strategy):
    return st.none() | strategy


def beside(plain, schedule, numbers, open_text):
    """A number, a schedule in its place, or a number with a schedule that begins with it; or none of them."""
    return st.one_of(
        st.just({}),
        st.builds(lambda x: {plain: x}, numbers),
        st.builds(lambda x: {schedule: f"exp:s0={x!r},k=0.5"}, numbers),
        st.builds(lambda x: {plain: x, schedule: open_text}, numbers),
    )


VALIDATION = st.sampled_from(
    [
        {"noise_schedule": "validation:s0=10,k=0.7", "validation": 5, "validation_public": True},
        {"noise_schedule": "validation:s0=10,k=0.7,look=20", "validation": 5},
        {"noise_schedule": "validation:s0=10,k=0.7,look=20", "validation": 5, "validation_public": False},
        {"noise_schedule": "validation:s0=10,k=0.7", "validation_data": "other.csv"},
    ]
)


@st.composite
def privacy(draw) -> dict:
    """How private a run is, and how long."""
    budget = draw(st.sampled_from(["epsilon", "rho"]))
    length = draw(st.sampled_from(["epochs", "steps"]))
    kinds = {
        "budget": {budget: draw(positives), length: draw(counts)},
        "scaled": {budget: draw(positives), length: draw(counts), "noise_schedule": "exp:start=3,k=0.1"},
        "solved": {budget: draw(positives), length: draw(counts), "noise_schedule": "exp:s0=10"},
        "long": {budget: draw(positives), "epochs": "auto", "noise_schedule": "exp:s0=10,k=0.1"},
        "looks": {budget: draw(positives), **draw(VALIDATION)},
        "noise_multiplier": {"noise_multiplier": draw(positives | st.just(0.0)), length: draw(counts)},
        "multiplier first": {"noise_multiplier": draw(positives), length: draw(counts), "noise_schedule": "exp:k=0.1"},
        "noise": {length: draw(counts), "noise_schedule": "piecewise:0=10,20=5"},
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))]


@st.composite
def configs(draw) -> TrainConfig:
    optimizer = draw(st.sampled_from(sorted(OPTIMIZERS)))
    private = draw(privacy())
    over_epochs = {
        **draw(beside("lr", "lr_schedule", rates, "poly:k=1,s_end=0.5,period=10")),
        **draw(beside("clip_norm", "clip_norm_schedule", positives, "exp:k=0.1,start=5,stop=9")),
        **draw(beside("batch_size", "batch_size_schedule", counts, "step:k=0.5,period=10")),
    }
    batch = over_epochs.get("batch_size")
    return TrainConfig(
        data=draw(names),
        model=draw(maybe(names)),
        method=draw(names),
        delta=draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        clip_rule=draw(names),
        optimizer=optimizer,
        momentum=draw(st.floats(0, 1, exclude_max=True)) if OPTIMIZERS[optimizer] else 0.0,
        weight_decay=draw(st.floats(0, 1e-6 if optimizer in room.MULTIPLYING else 1e6)),
        ema=draw(maybe(st.floats(0, 1, exclude_min=True, exclude_max=True))),
        sampling=draw(st.sampled_from(SAMPLINGS)),
        neighbours=None if "validation" in private else draw(maybe(st.sampled_from(room.NEIGHBOURS))),
        accountant=draw(st.sampled_from(room.ACCOUNTANTS)),
        seed=draw(maybe(st.integers(0, 2**63 - 1))),
        chunk_size=draw(st.just("auto") | counts),
        memory_limit_mb=draw(maybe(counts)),
        device=draw(st.sampled_from(["cpu", "cuda", "cuda:3"])),
        threads=draw(maybe(counts)),
        evaluate_every=draw(maybe(counts)),
        checkpoint_every=draw(maybe(counts)),
        records=None if batch is None else batch + draw(st.integers(0, 10**6)),
        allow_nonprivate=private.get("noise_multiplier") == 0 or draw(st.booleans()),
        searched=draw(st.integers(0, 10**6)),
        **private,
        **over_epochs,
    )


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
        ({"accountant": "prv"}, "Unknown accountant 'prv'.*pld"),
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
    assert set(room.ACCOUNTANTS) == set(ACCOUNTANTS)
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
        "arithmetic": "exact",
    }  # fmt: skip
    texts = ("data", "method", "clip_rule", "features", "target", "schema", "test_data", "validation_data")
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


# TOML -------------------------------------------------------------------------------------------------------------


@given(configs())
def test_toml_keeps_every_configuration(config):
    again = TrainConfig.from_toml(config.to_toml())
    assert again == config
    assert again.digest() == config.digest()


def test_none_is_left_out_of_toml():
    text = TrainConfig(**GOOD).to_toml()
    assert 'data = "mnist"' in text
    assert "noise_multiplier" not in text
    assert "None" not in text


def test_a_file_is_read_by_its_path_with_or_without_a_byte_order_mark(tmp_path):
    for start in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "run.toml").write_bytes(start + b'data = "mnist"\nepsilon = 2\ndelta = 1e-5\n')
        assert TrainConfig.from_toml(tmp_path / "run.toml") == TrainConfig(**GOOD)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('data = "mnist"\nepsilom = 2', "Unknown setting 'epsilom'.*Did you mean epsilon"),
        ("lr-schedule = 1", "Unknown setting 'lr-schedule'.*Did you mean lr_schedule"),
        ("zzzzz = 1", "Unknown setting 'zzzzz'.*Use one of: data, epsilon"),
        ("[train]\nepsilon = 2", "Unknown setting 'train'"),
        ("epsilon = 2", "data must be given"),
        ('data = "mnist"\nepsilon = "two"\ndelta = 1e-5', "epsilon must be a number, got 'two'"),
        ('data = "mnist"\nepsilon = nan\ndelta = 1e-5', "epsilon must be finite"),
        (
            'data = "mnist"\nepsilon = 2\ndelta = 1e-5\nbatch_size = [1]',
            r"batch_size must be a whole number, got \[1\]",
        ),
        ('data = "mnist"\nepsilon = 2\ndelta = 1e-5\ndevice.kind = "cpu"', "device must be printable text"),
        ('data = "mnist"\nepsilon = 2024-01-01\ndelta = 1e-5', "epsilon must be a number"),
        ("run.toml", "is not TOML.*A file is given as a Path"),
        ("data = ", "is not TOML"),
    ],
)
def test_toml_that_is_wrong_is_refused_by_key(text, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        TrainConfig.from_toml(text)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml cannot be read: No such file"):
        TrainConfig.from_toml(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'data = "\xe9"')
    with pytest.raises(InputError, match=r"latin\.toml is not TOML"):
        TrainConfig.from_toml(Path(tmp_path / "latin.toml"))


# Flags ------------------------------------------------------------------------------------------------------------


def test_flags_win_over_the_file():
    file = TrainConfig("mnist", noise_multiplier=1.0, delta=1e-5, epochs=3, lr=0.1, batch_size=600)
    new = file.replace(epsilon=2.0, steps=9, lr_schedule="uniform:s0=1", batch_size=None)
    assert (new.epsilon, new.noise_multiplier, new.steps, new.epochs, new.lr, new.batch_size) == (
        2.0,
        None,
        9,
        None,
        None,
        None,
    )
    assert file.replace() == file
    assert file.replace(epochs=None).epochs is None


@pytest.mark.parametrize(
    ("schedule", "plain", "number"),
    [("lr_schedule", "lr", 0.1), ("clip_norm_schedule", "clip_norm", 0.5), ("batch_size_schedule", "batch_size", 60)],
)
def test_a_number_and_its_schedule_make_room_for_each_other(schedule, plain, number):
    numbered, scheduled = TrainConfig(**GOOD, **{plain: number}), TrainConfig(**GOOD, **{schedule: "exp:s0=9,k=0.1"})
    moved = numbered.replace(**{schedule: "exp:s0=9,k=0.1"})
    assert (getattr(moved, plain), getattr(moved, schedule)) == (None, "exp:s0=9,k=0.1")
    moved = scheduled.replace(**{plain: number})
    assert (getattr(moved, plain), getattr(moved, schedule)) == (number, None)
    kept = numbered.replace(**{schedule: "exp:k=0.1"})  # it begins with the number
    assert (getattr(kept, plain), getattr(kept, schedule)) == (number, "exp:k=0.1")
    assert kept.replace(**{plain: 2 * number}) == TrainConfig(**GOOD, **{plain: 2 * number, schedule: "exp:k=0.1"})
    with pytest.raises(InputError, match=f"Both {plain} and {schedule}"):
        numbered.replace(**{plain: number, schedule: "exp:s0=9,k=0.1"})


def test_budgets_and_noise_make_room_for_each_other():
    file = TrainConfig("mnist", noise_multiplier=1.0, delta=1e-5, epochs=3, noise_schedule="exp:k=0.1")
    assert file.replace(rho=0.5) == TrainConfig("mnist", rho=0.5, delta=1e-5, epochs=3, noise_schedule="exp:k=0.1")
    assert file.replace(rho=0.5).replace(epsilon=2.0).rho is None
    whole = file.replace(noise_schedule="exp:s0=4,k=0.1")
    assert (whole.noise_multiplier, whole.noise_schedule) == (None, "exp:s0=4,k=0.1")
    back = whole.replace(noise_multiplier=3.0)
    assert (back.noise_multiplier, back.noise_schedule) == (3.0, None)


def test_flags_win_over_a_file_that_is_wrong_without_them():
    text = 'data = "mnist"\nnoise_multiplier = 1\nlr = 0.1\nbatch_size_schedule = "uniform:s0=9"\n'
    new = TrainConfig.from_toml(text, epsilon=2.0, delta=1e-5, lr_schedule="exp:s0=1,k=0.5", batch_size=60)
    assert new == TrainConfig("mnist", epsilon=2.0, delta=1e-5, lr_schedule="exp:s0=1,k=0.5", batch_size=60)
    assert TrainConfig.from_toml("epsilon = 2", data="mnist") == TrainConfig("mnist", epsilon=2.0)
    with pytest.raises(InputError, match="Unknown setting 'epoch'"):
        TrainConfig.from_toml(text, epoch=3)


def test_a_schedule_has_one_spelling_also_where_it_is_open():
    loose, strict = (
        TrainConfig(**GOOD, lr=0.1, lr_schedule=text, noise_schedule=noise, validation=5)
        for text, noise in (
            ("poly:period=10, s_end=.5, k=1.0", "validation:look=20.0,k=0.7,s0=10,m=5"),
            ("poly:k=1,s_end=0.5,period=10", NOISY),
        )
    )
    assert loose == strict
    assert loose.digest() == strict.digest()


def test_validation_records_that_are_not_public_are_the_same_said_or_not():
    said, unsaid = (
        TrainConfig(**GOOD, noise_schedule=NOISY, validation=5, validation_public=each) for each in (False, None)
    )
    assert said == unsaid
    assert "--validation-public" not in said.as_command()


def test_overrides_are_checked_like_everything_else():
    file = TrainConfig(**GOOD)
    with pytest.raises(InputError, match="Both epsilon and noise_multiplier"):
        file.replace(epsilon=1.0, noise_multiplier=1.0)
    with pytest.raises(InputError, match=r"Unknown setting 'epoch'.*Did you mean epochs"):
        file.replace(epoch=3)
    with pytest.raises(InputError, match="None of epsilon, rho and noise_multiplier"):
        file.replace(epsilon=None)


def parse_command(command: str) -> TrainConfig:
    """Read ``command`` as a shell and click do."""
    program, verb, *arguments = shlex.split(command)
    assert (program, verb) == ("adadp", "train")
    given = click.Command("train", params=options_of(TrainConfig)).make_context("train", arguments).params
    return TrainConfig.from_dict(given_options(given))


@given(configs())
def test_the_command_line_keeps_every_configuration(config):
    assume(config.optimizer != "python")  # an object has no option
    assert parse_command(config.as_command()) == config


def test_the_command_says_what_differs_from_the_defaults():
    config = TrainConfig(
        "my data", noise_multiplier=0, allow_nonprivate=True, lr_schedule="exp:s0=1,k=0.5", chunk_size=8
    )
    assert config.as_command() == (
        "adadp train --data 'my data' --allow-nonprivate --noise-multiplier 0.0 --lr-schedule exp:s0=1,k=0.5"
        " --chunk-size 8"
    )


# Declared once ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wider(TrainConfig):
    warm_up: int | None = setting(None, group="Training", help="Steps before `lr` is reached.", unset="none")
    colour: str = setting("red", group="Running", help="Of the bar.", choices=("red", "blue"))


def test_a_new_option_is_one_edit():
    options = {each.opts[0]: each for each in options_of(Wider)}
    assert options["--warm-up"].help == "Steps before --lr is reached.  [default: none]"
    assert isinstance(options["--colour"].type, click.Choice)
    words = ["--data", "mnist", "--epsilon", "2", "--warm-up", "7", "--colour", "blue"]
    given = given_options(click.Command("train", params=options_of(Wider)).make_context("train", words).params)
    config = Wider.from_dict(given)
    assert (config.warm_up, config.colour) == (7, "blue")
    assert Wider.from_toml(config.to_toml()) == config
    assert config.as_command() == "adadp train --data mnist --epsilon 2.0 --warm-up 7 --colour blue"
    for wrong, message in [
        ({"warm_up": 0}, "warm_up must be at least 1, got 0. Steps before lr is reached. Pass warm_up >= 1."),
        ({"colour": "rde"}, "Unknown colour 'rde'. Did you mean red?"),
        ({"warmup": 3}, "Unknown setting 'warmup'.*Did you mean warm_up?"),
    ]:
        with pytest.raises(InputError, match=message):
            config.replace(**wrong)


@pytest.mark.parametrize("each", settings_of(TrainConfig).values(), ids=lambda each: each.name)
def test_every_setting_is_explained_grouped_and_checked(each):
    assert each.help.endswith((".", "..."))
    assert each.group in room.GROUPS
    assert each.kind in {str, int, float, bool}
    assert set(re.findall(r"`(\w+)`", each.help + each.unset)) <= settings_of(TrainConfig).keys()
    with pytest.raises(InputError, match=each.name):
        each.checked(object())
    for choice in each.choices:
        assert each.checked(choice) in {choice, None}


def test_the_most_used_settings_are_few():
    used = [each.name for each in settings_of(TrainConfig).values() if each.group == room.GROUPS[0]]
    assert used == ["data", "epsilon", "delta", "method", "model", "features", "epochs", "batch_size", "lr"]


def test_the_table_in_the_documentation_is_that_of_the_declarations():
    assert settings_table.PAGE.read_text(encoding="utf-8") == settings_table.page(), "run tests/settings_table.py"
