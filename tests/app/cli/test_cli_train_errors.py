"""``adadp train`` and ``adadp verify`` as people and programs call them: cli train errors."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
import tomli_w
import torch
from cli_train_cases import (
    KEYS,
    QUICK,
    SHORT,
    finished,  # noqa: F401
    process,
    run,
)
from click.testing import CliRunner

from adadp.app import start
from adadp.app.cli import main
from adadp.app.config import GROUPS, TrainConfig
from adadp.app.resolve import resolve
from adadp.app.runs import RunFolder
from adadp.app.settings import flag_of, settings_of
from adadp.errors import InputError
from adadp.ledger import read_ledger

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def threads_stay_as_they_were():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


SPOKEN = {
    ("batch_size", "0"): "{batch_size} must be at least 1, got 0. Expected records per step",
    ("epochs", "many"): "{epochs} must be a whole number or auto, got 'many'.",
    ("lr", "0"): "{lr} must be greater than 0, got 0. At 0 no parameter would move. Pass {lr} > 0.",
    ("weight_decay", "1e9"): "Pass a smaller {weight_decay}; 1e-6 to 0.1 is usual.",
    ("momentum", "1"): "{momentum} must be below 1, got 1.0. Pass a smaller {momentum}.",
    ("ema", "1"): "{ema} must be below 1",
    ("delta", "1"): "{delta} must lie strictly between 0 and 1, got 1.",
    ("rho", "1"): "Both {rho} and {noise_multiplier} are given.",
    ("epsilon", "1"): "Leave out {epsilon} or {noise_multiplier}.",
    ("epochs", "3"): "Both {epochs} and {steps} are given.",
    ("validation", "5"): "Pass {noise_schedule} like validation:s0=10,k=0.7, or leave them out.",
    ("lr_schedule", "linear"): "{lr_schedule}: Unknown schedule shape 'linear'.",
    ("lr_schedule", "exp:s0=1"): "{lr_schedule} leaves k open.",
    ("input_bound", "0"): "{input_bound} is '0', which is no range",
    ("evaluate_every", "0"): "{evaluate_every} must be at least 1, got 0. Epochs between evaluations on the test set.",
    ("method", "adadp:power=-1"): "adadp:power=-1: power must",
    ("features", "pca:dim=5,noise_multiplier=-1"): "pca:dim=5,noise_multiplier=-1: noise_multiplier must be greater",
}
"""A setting and a wrong value -> what is said, with the names of settings as they are spelled where it was given."""


@pytest.mark.parametrize(("name", "value"), SPOKEN)
def test_an_error_names_a_setting_as_the_user_spells_it(name, value, tmp_path):
    said, names = SPOKEN[name, value], {each: each for each in settings_of(TrainConfig)}
    given = {"data": "cancer", "noise_multiplier": 2.0, "delta": 1e-4, "steps": 6}
    kind = settings_of(TrainConfig)[name].kind
    typed = value if kind is str or not value.replace(".", "").replace("e", "").isdigit() else kind(float(value))
    with pytest.raises(InputError) as caught:  # in Python
        resolve(TrainConfig(**{**given, name: typed}))
    assert said.format(**names) in str(caught.value)

    flags = {each: flag_of(each) for each in names}
    words = [f"--{key.replace('_', '-')}={each}" for key, each in {**given, name: value}.items()]
    told = run("train", *words, "--out", tmp_path / "run", code=2).stderr
    assert said.format(**flags) in " ".join(told.split())

    (tmp_path / "run.toml").write_text(tomli_w.dumps({**given, name: typed}), encoding="utf-8")
    told = run("train", "--config", tmp_path / "run.toml", "--out", tmp_path / "run", code=2).stderr
    spelled = {each: each if each in {**given, name: typed} else flag_of(each) for each in names}
    assert said.format(**spelled) in " ".join(told.split())


@pytest.mark.parametrize("columns", [80, 120])
def test_help_has_the_most_used_options_first(columns):
    text = CliRunner().invoke(main, ["train", "--help"], terminal_width=columns, prog_name="adadp").output
    titles = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)
    assert titles == [*GROUPS, "Other"]
    first = text[text.index("Most used:") : text.index("Privacy:")]
    assert re.findall(r"^  --([a-z-]+)", first, re.MULTILINE) == [
        *("data", "epsilon", "delta", "method", "model", "features", "epochs", "batch-size", "lr"),
        *("out", "resume", "config", "moved", "trust-code"),
    ]  # fmt: skip
    assert "mps" not in text


def test_commands_are_shown_in_groups():
    text = CliRunner().invoke(main, ["--help"]).output
    titles = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)
    assert titles[:6] == ["Options", "Train", "Trust", "Budget", "Data", "Laboratory"]
    assert text.index("Trust:") < text.index("  verify") < text.index("Budget:") < text.index("  epsilon")


def test_sizes_that_nobody_called_auto_are_asked_for_by_name(tmp_path):
    own = ("--data", "npz:people.npz", "--features", "pca:dim=5", "--epsilon", "1", "--delta", "1e-5")
    text = run("train", *own, "--out", tmp_path / "run", code=2).stderr
    assert "(--batch-size and --steps) is to be chosen, and without --records" in text
    assert "Pass --records, or numbers as --batch-size and --steps." in text
    assert "auto" not in text
    text = run("train", *own, "--steps", "9", "--out", tmp_path / "run", code=2).stderr
    assert "Pass --records, or numbers as --batch-size." in text
    sized = (*own, "--batch-size", "10", "--steps", "9", "--out", tmp_path / "run")
    assert "people.npz does not exist" in run("train", *sized, code=2).stderr


NETWORK = """
import torch
def net(input_shape, classes):
    return torch.nn.Linear(input_shape[0], classes)
def alone(inputs):
    return net(inputs, 2)
def broken(input_shape, classes):
    return torch.nn.Linear(input_shape[0], "two")
"""


def test_a_network_of_ones_own_lies_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "net_beside.py").write_text(NETWORK)
    # The installed command has its own folder on the path, not the current one.
    started = "import sys; sys.path.remove(''); from adadp.app.cli import main; main(sys.argv[1:])"
    line = [sys.executable, "-c", started, "train", *QUICK, "--model", "net_beside:net", "--json"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.chdir(tmp_path)
    text = run("train", *QUICK, "--model", "net_beside:alone", code=2).stderr
    assert "net_beside:alone(inputs) cannot be called as net_beside:alone(input_shape, classes)" in text
    with pytest.raises(TypeError) as told:  # a bug of the network's: with its traceback
        main(["train", *QUICK, "--model", "net_beside:broken"])
    assert '"two"' in "".join(traceback.format_exception(told.value))


def test_a_second_try_finds_the_folder_free(tmp_path):
    run("train", *QUICK, "--model", "resnet", "--out", tmp_path / "run", code=2)
    run("train", *QUICK, "--out", tmp_path / "run")
    assert "not a new or empty folder" in run("train", *QUICK, "--out", tmp_path / "run", code=2).stderr


def test_resume_says_what_it_cannot_do(finished, tmp_path):
    assert "There is no run in" in run("train", "--resume", tmp_path / "nothing", code=2).stderr
    assert "has finished" in run("train", "--resume", finished, code=2).stderr
    text = run("train", "--resume", finished, "--lr", "0.1", "--out", tmp_path / "x", code=2).stderr
    assert "--resume was given together with --lr, --out" in text


# Stopping ---------------------------------------------------------------------------------------------------------


def started_run(out: Path, *flags: object, **options) -> subprocess.Popen:
    """A run that would take long, once it has charged a few steps."""
    started = process(
        "train", "--data", "cancer", "--noise-multiplier", "0", "--allow-nonprivate", "--steps", "100000",
        *flags, "--out", out,
        "--json", **options,
    )  # fmt: skip
    ledger = out / "ledger.jsonl"
    deadline = time.monotonic() + 100
    while (not ledger.exists() or ledger.read_bytes().count(b"\n") < 5) and time.monotonic() < deadline:
        assert started.poll() is None, started.communicate()
        time.sleep(0.02)
    return started


def test_ctrl_c_saves_the_run_says_so_and_it_goes_on(tmp_path):
    out = tmp_path / "run"
    with started_run(out) as started:
        started.send_signal(signal.SIGINT)
        stdout, stderr = started.communicate(timeout=100)
    assert started.returncode == 130
    assert stdout == ""
    assert "of 100000 steps. Everything is saved" in stderr
    assert f"adadp train --resume {out}" in stderr
    assert "Traceback" not in stderr
    charged = sum(read_ledger(out / "ledger.jsonl").charges.values())
    assert RunFolder.open(out).load_checkpoint().step == charged
    with process("train", "--resume", out) as resumed:
        while sum(read_ledger(out / "ledger.jsonl").charges.values()) <= charged:
            assert resumed.poll() is None, resumed.communicate()
            time.sleep(0.02)
        assert "is being written by another process" in run("train", "--resume", out, code=2).stderr
        resumed.send_signal(signal.SIGTERM)
        resumed.communicate(timeout=100)
    assert resumed.returncode == 130
    assert RunFolder.open(out).load_checkpoint().step > charged


def test_an_impatient_ctrl_c_ends_at_once_without_a_traceback(monkeypatch, tmp_path):
    def impatient(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("adadp.app.start.start", impatient)
    result = run("train", *SHORT, "--out", tmp_path / "run", code=130)
    assert f"adadp train --resume {tmp_path / 'run'}" in result.stderr


def test_a_stopped_run_is_finished_by_resume(tmp_path, monkeypatch):
    monkeypatch.setattr("adadp.app.start.start", _stopping(monkeypatch))
    text = run("train", *QUICK, "--out", tmp_path / "run", code=130).stderr
    assert "Stopped after 2 of 4 steps." in text
    summary = json.loads(run("train", "--resume", tmp_path / "run", "--json").stdout)
    assert set(summary) == KEYS
    assert summary["steps"] == 4
    run("verify", tmp_path / "run")


def _stopping(monkeypatch):

    begin = start.start

    def stopping(config, out, *, watch, progress):
        def stop(status):
            if status.step == 2:
                os.kill(os.getpid(), signal.SIGINT)

        return begin(config, out, watch=stop, progress=progress)

    return stopping


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs limits on the files of another process")
def test_a_full_disk_is_told_in_words(tmp_path):
    with started_run(tmp_path / "run", "--checkpoint-every", "100000") as started:
        size = (tmp_path / "run" / "ledger.jsonl").stat().st_size + 2000
        resource.prlimit(started.pid, resource.RLIMIT_FSIZE, (size, size))
        stdout, stderr = started.communicate(timeout=100)
    assert started.returncode == 2
    assert "cannot be written: File too large" in stderr
    assert "Traceback" not in stderr
    assert stdout == ""


# Verify -----------------------------------------------------------------------------------------------------------


def test_verify_says_what_it_checked(finished):
    text = run("verify", finished).stdout
    assert text.count("ok  ") == 9
    assert "-differentially private" in text
    answer = json.loads(run("verify", finished, "--json").stdout)
    assert answer["verified"] is True
    assert all(check["passed"] for check in answer["checks"])


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("certificate.json", b'"epsilon": 0.', b'"epsilon": 0.0'),
        ("config.toml", b"batch_size = 56", b"batch_size = 57"),
        ("config.toml", b"batch_size = 56", b"batch_size = -1"),
        ("config.toml", b"noise_multiplier = 2.0", b"noise_multiplier = 2.1"),
        ("ledger.jsonl", b'"seq":2', b'"seq":1'),
        ("model.safetensors", b"F32", b"I32"),
    ],
)
def test_verify_fails_on_any_edit(finished, tmp_path, name, old, new):
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    data = (folder / name).read_bytes()
    assert old in data
    (folder / name).write_bytes(data.replace(old, new, 1))
    result = run("verify", folder, code=1)
    assert "FAIL" in result.stdout
    assert "does NOT verify" in result.stdout
    assert json.loads(run("verify", folder, "--json", code=1).stdout)["verified"] is False


def test_verify_of_nothing_and_of_an_unfinished_run(finished, tmp_path):
    assert "There is no run in" in run("verify", tmp_path, code=2).stderr
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    (folder / "certificate.json").unlink()
    assert "has not finished" in run("verify", folder, code=1).stdout


def test_exact_arithmetic_is_certified_and_verified(tmp_path):
    run("train", *SHORT, "--arithmetic", "exact", "--batch-size", "20", "--out", tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    assert folder.config.arithmetic == "exact"
    assert folder.certificate()["arithmetic"] == "exact"
    assert "Arithmetic: exact" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    run("verify", tmp_path / "run")
    edited = folder.certificate() | {"arithmetic": "fast"}
    (tmp_path / "run" / "certificate.json").write_text(json.dumps(edited), encoding="utf-8")
    run("verify", tmp_path / "run", code=1)


def test_exact_arithmetic_is_refused_without_noise_before_anything_is_written(tmp_path):
    refused = run("train", *QUICK, "--arithmetic", "exact", "--out", tmp_path / "run", code=2)
    assert "no noise" in " ".join(refused.output.split())
    assert not (tmp_path / "run").exists()
