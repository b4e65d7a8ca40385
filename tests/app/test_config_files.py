"""A configuration is refused when it is wrong, and survives TOML and the command line exactly: config files."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import settings_table
from config_cases import GOOD, NOISY
from hypothesis import assume, given
from hypothesis import strategies as st

from adadp.app import config as room
from adadp.app.cli.options import given_options, options_of
from adadp.app.config import OPTIMIZERS, SAMPLINGS, TrainConfig
from adadp.app.settings import setting, settings_of
from adadp.errors import InputError

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
        delta=draw(st.floats(2.3e-308, 1, exclude_max=True)),
        clip_rule=draw(names),
        optimizer=optimizer,
        momentum=draw(st.floats(0, 1, exclude_max=True)) if OPTIMIZERS[optimizer] else 0.0,
        weight_decay=draw(st.floats(0, 1e-6 if optimizer in room.MULTIPLYING else 1e6)),
        ema=draw(maybe(st.floats(0, 1, exclude_min=True, exclude_max=True))),
        sampling=draw(st.sampled_from(SAMPLINGS)),
        neighbours=None if "validation" in private else draw(maybe(st.sampled_from(room.NEIGHBOURS))),
        accountant=draw(st.sampled_from(["pld", "rdp", "zcdp", "package.module:Mine"])),
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


# TOML -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
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
