"""``adadp train`` and ``adadp verify`` as people and programs call them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from cli_train_cases import (
    KEYS,
    QUICK,
    SHORT,
    finished,  # noqa: F401
    process,
    run,
)

from adadp.app.cli import main
from adadp.app.cli.train import train as command
from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder, coarse_seconds

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def threads_stay_as_they_were():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# What is printed --------------------------------------------------------------------------------------------------


def test_the_last_line_is_one_json_object_with_what_a_program_wants(tmp_path):
    result = run(
        "train", "--data", "cancer", "--epsilon", "2", "--delta", "1e-4", "--epochs", "2",
        "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == 1
    summary = json.loads(result.stdout.splitlines()[-1])
    assert set(summary) == KEYS
    certificate = RunFolder.open(tmp_path / "run").certificate()
    assert 0.5 < summary["test_accuracy"] <= 1
    assert 1.99 < summary["epsilon"] == certificate["epsilon"] <= 2
    assert (summary["delta"], summary["steps"], summary["method"]) == (1e-4, 20, "adadp")
    assert summary["noise_multiplier"] == certificate["charged"][0]["event"]["event"]["noise_multiplier"]
    assert summary["private"] is True
    assert (summary["rehearsal"], summary["epsilon_if_unseeded"]) == (False, None)
    assert isinstance(summary["seconds"], int)
    assert summary["seconds"] == coarse_seconds(summary["seconds"]) > 0
    assert Path(summary["out"]) == tmp_path / "run"


def test_a_rehearsal_says_so_first_to_people_and_to_programs(finished, tmp_path):
    text = run("train", *SHORT).stdout.splitlines()
    assert text[0].startswith("REHEARSAL, NOT FOR RELEASE. ")
    assert "whoever has the seed can compute the noise again" in text[0]
    assert not any(line.startswith("(") for line in text)
    summary = json.loads(run("train", *SHORT, "--json").stdout)
    assert set(summary) == KEYS
    assert list(summary)[:4] == ["private", "rehearsal", "epsilon", "epsilon_if_unseeded"]
    assert (summary["private"], summary["rehearsal"], summary["epsilon"]) == (False, True, None)
    assert summary["epsilon_if_unseeded"] > 0
    checked = run("verify", finished).stdout
    assert "REHEARSAL, NOT FOR RELEASE. " in checked
    assert "none, this is a rehearsal" in checked
    verified = json.loads(run("verify", finished, "--json").stdout)
    assert (verified["verified"], verified["private"], verified["rehearsal"]) == (True, False, True)
    assert (verified["epsilon"], verified["epsilon_if_unseeded"]) == (None, summary["epsilon_if_unseeded"])


def test_without_privacy_and_without_a_folder_the_keys_are_the_same():
    summary = json.loads(run("train", *QUICK, "--json").stdout)
    assert set(summary) == KEYS
    assert (summary["epsilon"], summary["delta"], summary["noise_multiplier"]) == (None, None, 0)
    assert (summary["private"], summary["out"], summary["steps"]) == (False, None, 4)


def test_people_get_words_and_a_pipe_gets_no_bar(finished, tmp_path):
    with process("train", *SHORT, "--out", tmp_path / "run") as started:
        out, err = started.communicate(timeout=120)
    assert started.returncode == 0
    assert err == ""
    assert "of the test set right" in out
    assert "-differentially private" in out
    assert f"adadp verify {tmp_path / 'run'}" in out
    assert "\x1b" not in out
    model = RunFolder.open(tmp_path / "run").load_model_tensors()
    again = RunFolder.open(finished).load_model_tensors()
    assert all(torch.equal(model[name], again[name]) for name in model | again)


def test_a_terminal_gets_a_bar(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run("train", *QUICK)
    assert "step" in result.stderr
    assert "no privacy" in result.stderr
    assert "NOT PRIVATE" in result.stdout
    assert not re.search(r"\d:\d\d", result.stderr), "a time"
    assert run("train", *QUICK, "--json").stderr == ""


def test_the_bar_does_not_move_with_every_step(monkeypatch):
    moved = []
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.progress.Progress.update", lambda *_, **told: moved.append(told))
    run("train", *SHORT[:-2], "--threads", "1")
    assert [told["completed"] for told in moved] == [1, 4]
    assert moved[0]["figures"].startswith("rehearsal, epsilon ")
    assert moved[-1]["figures"].endswith("about 1 s left")


def test_every_setting_has_an_option():
    options = {parameter.name for parameter in command.params}
    assert (
        set(TrainConfig.__dataclass_fields__)
        | {"out", "config_file", "resume", "moved", "trust_code", "as_json", "nproc"}
        == options
    )


# The configuration ------------------------------------------------------------------------------------------------


def test_a_run_is_repeated_from_its_own_file_and_flags_win(finished, tmp_path):
    config = finished / "config.toml"
    run("train", "--config", config, "--out", tmp_path / "again")
    one, two = (RunFolder.open(path).load_model_tensors() for path in (finished, tmp_path / "again"))
    assert all(torch.equal(one[name], two[name]) for name in one | two)
    run("train", "--config", config, "--epochs", "1", "--chunk-size", "9", "--out", tmp_path / "other")
    other = RunFolder.open(tmp_path / "other").config
    assert (other.epochs, other.steps, other.chunk_size) == (1, None, 9)


def test_every_device_that_the_help_names_is_one():
    (option,) = (each for each in main.commands["train"].params if each.name == "device")
    offered = re.findall(r"[a-z]+(?::\d+)?", option.help.partition("[")[0].replace(" or ", ", "))
    assert len(offered) > 1
    for device in offered:
        assert TrainConfig("cancer", noise_multiplier=1.0, delta=1e-4, device=device).device == device


def test_what_as_command_says_can_be_run(finished, tmp_path):
    words = RunFolder.open(finished).config.as_command().split()
    assert words[:2] == ["adadp", "train"]
    run(*words[1:], "--out", tmp_path / "again")
    assert RunFolder.open(tmp_path / "again").config == RunFolder.open(finished).config


def test_what_is_not_kept_is_said_and_never_bought_with_private_records(tmp_path):
    assert "Nothing of it was kept: pass --out" in run("train", *QUICK).output
    bare = run("train", "--data", "npz:people.npz", "--epsilon", "1", "--delta", "1e-5", code=2)
    assert "needs a folder" in bare.output
    assert "leave neither the model nor the record" in bare.output


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--data must be given"),
        (("--data", "cancer"), "None of --epsilon, --rho and --noise-multiplier"),
        (
            ("--data", "cancer", "--epsilon", "1", "--noise-multiplier", "1", "--delta", "1e-4"),
            "Both --epsilon and --noise-multiplier",
        ),
        (
            ("--data", "cancer", "--epsilon", "1", "--noise-multiplier", "2"),
            "Leave out --epsilon or --noise-multiplier.",
        ),
        (("--data", "cancer", "--epsilon", "0", "--delta", "1e-4"), "--epsilon must be greater than 0"),
        (("--data", "npz:none.npz", "--epsilon", "1"), "--delta must be given"),
        ((*SHORT, "--target", "x"), "--target was given, and cancer is a data set of the catalogue"),
        ((*SHORT, "--features", "wavelets"), "no features 'wavelets'"),
        ((*SHORT, "--features", "scatter"), "Scattering reads images"),
        ((*SHORT, "--features", "scatter"), "Give records of shape (channels"),
        ((*SHORT, "--lr", "1", "--lr-schedule", "exp:s0=1,k=0.1"), "Leave out --lr, or s0 in --lr-schedule: it then"),
        (("--data", "cancer", "--epsilon", "1", "--delta", "1"), "--delta must lie strictly between"),
        (("--data", "cancer", "--noise-multiplier", "0"), "--noise-multiplier is 0"),
        ((*SHORT, "--epochs", "2"), "Both --epochs and --steps"),
        ((*SHORT, "--data", "iris"), "no data set 'iris'"),
        ((*SHORT, "--model", "vgg"), "no model 'vgg'"),
        ((*SHORT, "--method", "magic"), "Unknown method 'magic'"),
        ((*SHORT, "--method", "adap"), "Did you mean adadp?"),
        ((*SHORT, "--data", "cancr"), "Did you mean cancer?"),
        ((*SHORT, "--data", "people.csv"), "named with its kind: table:people.csv."),
        ((*SHORT, "--clip-rule", "box"), "Unknown clip rule 'box'"),
        ((*SHORT, "--batch-size", "1000"), "Pass --batch-size <= 560"),
        (
            ("--data", "npz:none.npz", "--epsilon", "1", "--records", "500", "--delta", "0.002"),
            "delta = 0.002 is not below one over",
        ),
        (("--data", "npz:none.npz", "--epsilon", "1", "--delta", "1e-5"), "none.npz does not exist"),
        ((*SHORT, "--lr-schedule", "poly:s0=1"), "poly"),
        ((*SHORT, "--chunk-size", "many"), "--chunk-size must be a whole number or auto"),
        ((*SHORT, "--chunk-size", "0"), "--chunk-size must be at least 1"),
        ((*SHORT, "--accountant", "guess"), "accountant"),
        ((*SHORT, "--device", "cuda:99"), "device cuda:99 cannot be used"),
        ((*SHORT, "--device", "tpu"), "Unknown device 'tpu'"),
        ((*SHORT, "--sampling", "shuffle"), "--sampling"),
        ((*SHORT, "--seed", "-1"), "--seed must be at least 0"),
        (("--config", "nowhere.toml"), "cannot be read"),
        (("--optimizer", "python", *SHORT), "--optimizer"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_told_in_words_and_leaves_nothing_behind(flags, message, tmp_path):
    result = run("train", *flags, "--out", tmp_path / "run", "--json", code=2)
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []
