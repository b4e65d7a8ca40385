"""A folder that a stranger made: every command ends soon, in words, and imports nothing that the folder names."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import settings
from strangers import FILES, HOSTILE, places, replace, spoil

from adadp.app import state
from adadp.app.cli import main
from adadp.app.config import TrainConfig
from adadp.app.predict import load_model
from adadp.app.start import resume, start
from adadp.app.verify import verify_run
from adadp.errors import InputError

pytestmark = pytest.mark.slow

ALL = settings.get_current_profile_name() == "fuzz"
DRAWN = 25
"""Values that are put in places; by ``make fuzz`` many more, and others each time."""
SECONDS = 20
"""Far more than a command takes here, on a busy machine."""
SCHEMA = """
[target]
column = "rich"
classes = ["no", "yes"]
[columns]
age = {kind = "number", low = 18, high = 80}
colour = {kind = "category", values = ["red", "blue"]}
"""
EVIL = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\ndef boom(*_, **__): raise SystemExit('ran')\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table, two runs on it (``run`` has finished, ``half`` was stopped) and evil.py; we are in it."""
    place = tmp_path_factory.mktemp("strangers")
    (place / "evil.py").write_text(EVIL)
    chance = random.Random(0)
    rows = [(chance.randint(18, 80), chance.choice(["red", "blue"])) for _ in range(120)]
    lines = [f"{age},{colour},{'yes' if age > 50 else 'no'}" for age, colour in rows]
    (place / "people.csv").write_text("\n".join(["age,colour,rich", *lines]))
    (place / "people.toml").write_text(SCHEMA)
    config = TrainConfig(
        "table:people.csv",
        schema="people.toml",
        noise_multiplier=8.0,
        delta=1e-4,
        steps=2,
        batch_size=40,
        model="linear",
        lr=0.1,
        accountant="zcdp",
        threads=1,
        features="standardise:noise_multiplier=20",
        holdout="10%",
        holdout_noise=20.0,
        test_data="table:people.csv",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "path", [*sys.path])
        patch.setenv(state.FOLDER, str(place / "state"))
        start(config.replace(test_data=None), place / "run")

        def stop(status):
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            start(config.replace(test_data=None, seed=3), place / "half", watch=stop)
        yield place


COMMANDS = (
    ("verify", "{}"),
    ("predict", "{}", "--input", "people.csv"),
    ("evaluate", "{}", "--data", "people.csv"),
    ("report", "{}"),
    ("ledger", "show", "{}/ledger.jsonl"),
)


def _late(asked: list[str], *_: object) -> None:
    pytest.fail(f"{asked} does not end.")


def check(place: Path, folder: Path, *, commands=COMMANDS, how: str = "") -> None:
    """Every command ends with an answer, or with an error in words; nothing of the folder was imported."""
    for command in commands:
        asked = [word.format(folder) for word in command]
        previous = signal.signal(signal.SIGALRM, partial(_late, asked))
        signal.alarm(SECONDS)
        try:
            result = CliRunner().invoke(main, asked)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)
        said = result.exception
        assert said is None or isinstance(said, SystemExit), f"{how}{asked}: {said!r}"
        assert "\x1b" not in result.output
        assert "evil" not in sys.modules
        assert not (place / "ran").exists()


def copied(place: Path, tmp_path: Path, name: str = "run") -> Path:
    return Path(shutil.copytree(place / name, tmp_path / name))


def test_a_good_folder_is_read(place, tmp_path):
    folder = copied(place, tmp_path)
    for command in COMMANDS:
        assert CliRunner().invoke(main, [word.format(folder) for word in command]).exit_code == 0


@pytest.mark.parametrize("kind", FILES)
def test_whatever_lies_there_instead_of_a_file(place, tmp_path, kind):
    names = sorted(each.name for each in (place / "run").iterdir() if each.suffix != ".lock")
    for name in names if ALL else names[len(kind) % 3 :: 3]:
        folder = copied(place, tmp_path)
        replace(folder / name, FILES[kind])
        check(place, folder)
        shutil.rmtree(folder)


def test_whatever_value_stands_there_instead(place, tmp_path):
    found = [(*each, value) for each in places(place / "run") for value in (*HOSTILE, ...)]
    drawn = random.Random().sample(found, 1500) if ALL else random.Random(7).sample(found, DRAWN)
    for name, keys, value in drawn:
        folder = copied(place, tmp_path)
        if spoil(folder, name, keys, value):
            check(place, folder, how=f"{name} {keys} {value!r}: ")
        shutil.rmtree(folder)


NAMED = ("model", "method", "clip_rule", "features", "accountant", "loss", "optimizer", "noise_schedule", "data")
"""Settings of text, most of which may name code."""


@pytest.mark.parametrize("named", ["evil:boom", "evil.py:boom", "evil:boom:x=1", "synthetic:leaves&evil:boom"])
def test_code_is_imported_only_if_it_is_trusted(place, tmp_path, named):
    for setting in NAMED:
        for name in ("run", "half"):
            folder = copied(place, tmp_path, name)
            spoil(folder, "config.toml", (setting,), named)
            check(place, folder, commands=COMMANDS if name == "run" else (("train", "--resume", "{}"),))
            shutil.rmtree(folder)


def test_code_that_is_trusted_is_imported(place, tmp_path, monkeypatch):
    folder = copied(place, tmp_path)
    spoil(folder, "config.toml", ("model",), "evil:boom")
    with pytest.raises(InputError, match=r"The model evil:boom is named by where it is defined.*trust_code"):
        load_model(folder)
    refused = CliRunner().invoke(main, ["predict", str(folder), "--input", "people.csv"])
    assert refused.exit_code == 2
    assert "--trust-code" in refused.output
    try:
        trusted = CliRunner().invoke(main, ["predict", str(folder), "--input", "people.csv", "--trust-code"])
        assert "ran" in str(trusted.exception)
        assert (place / "ran").exists()
    finally:
        sys.modules.pop("evil", None)
        (place / "ran").unlink()
    half = copied(place, tmp_path, "half")
    spoil(half, "config.toml", ("model",), "evil:boom")
    with pytest.raises(InputError, match="named by where it is defined"):
        resume(half)
    assert not (place / "ran").exists()
    with pytest.raises(SystemExit, match="ran"):
        resume(half, trust_code=True)
    sys.modules.pop("evil", None)
    (place / "ran").unlink()


def test_verify_can_be_told_to_trust_code(place, tmp_path):
    folder = copied(place, tmp_path)
    spoil(folder, "config.toml", ("clip_rule",), "evil.py:boom")
    assert any("not checked" in each.detail for each in verify_run(folder))
    assert not (place / "ran").exists()
    verify_run(folder, trust_code=True)
    assert (place / "ran").exists()
    sys.modules.pop("evil", None)
    (place / "ran").unlink()


WORDS = (Path(__file__).parents[1] / "corpus" / "commands.txt").read_text().splitlines()
"""Commands that once hung, filled the memory or ended in a traceback."""


@pytest.mark.parametrize("line", WORDS)
def test_what_once_broke_is_one_clear_error(place, tmp_path, line):
    wide = tmp_path / "wide.csv"
    if "WIDE" in line:
        wide.write_text(",".join(f"c{number}" for number in range(100_000)) + "\n")
    words = line.replace("WIDE", str(wide)).replace("OUT", str(tmp_path / "out")).split()
    began = time.process_time()
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2, result.exception
    assert result.output.count("Error: ") == 1
    assert len(result.output) < 100_000
    assert time.process_time() - began < 10
    assert not os.path.exists(tmp_path / "out")
