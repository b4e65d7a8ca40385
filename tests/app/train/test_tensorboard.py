"""A run on TensorBoard: what metrics.jsonl has and what the plan says, each step once, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from adadp.app import zoo
from adadp.app.cli import main
from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.app.train import Evaluation, fit, tensorboard, verify_run
from adadp.errors import InputError, Interrupted, RunError

pytestmark = pytest.mark.slow


accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

CANCER = zoo.load("cancer")
BASE = {"noise_multiplier": 2.0, "delta": 1e-4, "steps": 25, "batch_size": 56, "lr": 0.5, "seed": 0}
BASE |= {"accountant": "rdp", "tensorboard": True}
"""Epochs of 10 steps: the last one is cut short."""
QUICK = {**BASE, "noise_multiplier": 0, "allow_nonprivate": True}


class Killed(BaseException):
    """The end of a process: nothing is saved after it."""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(9, 2)


def run(out: Path | None, **settings):
    return fit(network(), CANCER.train, test=CANCER.test, out=out, **{**BASE, **settings})


def reader(out: Path):
    return accumulators.EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0})


def scalars(found) -> dict[str, list[tuple[int, float]]]:
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def shown(out: Path) -> dict[str, list[tuple[int, float]]]:
    return scalars(reader(out).Reload())


def logged(out: Path) -> dict[str, list[tuple[int, float]]]:
    """The same from metrics.jsonl."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in RunFolder.open(out).metrics():
        for name in set(line) - {"step", "final"}:
            if line[name] is not None:
                found.setdefault(name, []).append((line["step"], pytest.approx(line[name], rel=1e-6)))
    return found


# What is shown ----------------------------------------------------------------------------------------------------


def test_it_shows_the_metrics_and_the_settings_of_the_plan_and_nothing_else(tmp_path):
    out = tmp_path / "run"
    settings = {"evaluate_every": 1, "lr": "exp:s0=0.5,k=0.3", "clip_norm": 2.0, "clip_norm_schedule": "exp:k=0.2"}
    settings |= {"batch_size": "piecewise:0=56,1=70", "seed": None}
    result = run(out, noise_schedule="exp:s0=2,k=0.1", noise_multiplier=None, **settings)
    found, metrics = shown(out), logged(out)
    assert set(metrics) == {"epoch", "epsilon", "test_accuracy", "seconds"}
    assert {name: found[name] for name in metrics} == metrics
    assert set(found) == {*metrics, "noise_multiplier", "lr", "clip_norm", "batch_size"}
    plan = result.plan
    steps = [line["step"] for line in RunFolder.open(out).metrics() if "epoch" in line]
    assert steps == [10, 18, 25]
    expected = {
        "noise_multiplier": [plan.noise_multiplier_at(step - 1) for step in steps],
        "batch_size": [56, 70, 70],
        "lr": [0.5 * 2.718281828459045 ** (-0.3 * epoch) for epoch in range(3)],
        "clip_norm": [2 * plan.clip_factor_at(step - 1) for step in steps],
    }
    for name, values in expected.items():
        assert found[name] == [(step, pytest.approx(value)) for step, value in zip(steps, values, strict=True)]
    assert expected["clip_norm"][0] == 2 > expected["clip_norm"][-1]


def test_it_does_not_show_when_an_epoch_ended(tmp_path):
    out = tmp_path / "run"
    run(out, evaluate_every=1, watch=lambda status: time.sleep(0.005), **QUICK)
    found = reader(out).Reload()
    times = {each.wall_time for tag in found.Tags()["scalars"] for each in found.Scalars(tag)}
    assert len(times | {each.wall_time for each in found.Tensors("config/text_summary")}) == 1


def test_an_evaluation_of_ones_own_is_shown_under_its_name(tmp_path):
    fit(network(), CANCER.train, evaluate=Evaluation(lambda model: 0.83, "AUC", 0, 1), out=tmp_path / "run", **BASE)
    assert [value for _, value in shown(tmp_path / "run")["evaluation/AUC"]] == [pytest.approx(0.83)]


def test_the_configuration_is_there_as_text(tmp_path):
    run(tmp_path / "run", **QUICK)
    found = reader(tmp_path / "run").Reload()
    (text,) = found.Tensors("config/text_summary")
    assert RunFolder.open(tmp_path / "run").config_path.read_bytes() in text.tensor_proto.string_val[0]


@pytest.mark.parametrize(
    ("settings", "absent", "present"),
    [
        ({"accountant": "zcdp-sampled", "noise_multiplier": 0.6}, {"epsilon"}, {"claimed_epsilon"}),
        (QUICK, {"epsilon", "claimed_epsilon"}, {"noise_multiplier"}),
        ({**QUICK, "optimizer": lambda values: torch.optim.SGD(values, lr=0.1), "lr": None}, {"lr"}, {"clip_norm"}),
        (
            {"clip_norm": "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=20,floor=0.01,ceiling=10"},
            {"clip_norm"},
            {"lr"},
        ),
        ({**QUICK, "clip_norm": "flat:inf"}, {"clip_norm"}, {"lr"}),
        ({"clip_norm": "per-layer:1"}, set(), {"clip_norm"}),
    ],
    ids=["not proved", "no noise", "own optimizer", "adaptive bound", "no bound", "per layer"],
)
def test_what_is_not_known_ahead_or_not_a_number_is_not_shown(tmp_path, settings, absent, present):
    run(tmp_path / "run", **settings)
    found = shown(tmp_path / "run")
    assert not absent & set(found)
    assert present <= set(found)
    assert found["test_accuracy"] == logged(tmp_path / "run")["test_accuracy"]


def test_it_changes_nothing_about_the_run(tmp_path):
    with_board, without = run(tmp_path / "one"), run(tmp_path / "other", tensorboard=None)
    assert all(map(torch.equal, with_board.model.parameters(), without.model.parameters()))
    assert with_board.epsilon_if_unseeded == without.epsilon_if_unseeded > 0
    assert not (tmp_path / "other" / "tensorboard").exists()
    for name in ("one", "other"):
        assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / name)))


# A run that goes on -----------------------------------------------------------------------------------------------


def stop_at(step):
    def watch(status):
        if status.step == step:
            signal.raise_signal(signal.SIGINT)

    return watch


def kill_at(step):
    def watch(status):
        if status.step == step:
            raise Killed

    return watch


LOOKS = {
    "noise_multiplier": None, "steps": None, "epsilon": 3.0, "epochs": 4, "batch_size": 100, "validation": 60,
    "noise_schedule": "validation:s0=3,k=0.8,m=1,delta=0.5,period=1,look=20",
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "end"),
    [(QUICK, stop_at(13)), (QUICK, kill_at(21)), ({**QUICK, "seed": None}, kill_at(21)), (LOOKS, kill_at(14))],
    ids=["stopped", "killed", "killed, secure", "killed, looks"],
)
def test_a_run_that_goes_on_shows_every_step_once(tmp_path, settings, end):
    out = tmp_path / "run"
    settings = {**settings, "checkpoint_every": 9, "evaluate_every": 1}
    with pytest.raises((Killed, Interrupted)):
        run(out, watch=end, **settings)
    open_already = reader(out).Reload()
    before = scalars(open_already)
    assert before["epoch"]
    run(out, resume=True, **settings)
    metrics = logged(out)
    for found in (shown(out), scalars(open_already.Reload())):
        assert {name: found[name] for name in metrics} == metrics
        for tag, points in found.items():
            steps = [step for step, _ in points]
            assert steps == sorted(set(steps)), tag
        if "validation" in settings:
            assert {"validation_accuracy", "budget_used", "noise_multiplier"} <= set(metrics)
            assert len({value for _, value in found["noise_multiplier"]}) > 1
    assert len(open_already.Tensors("config/text_summary")) == 1


def test_a_process_that_was_killed_leaves_files_that_can_be_gone_on_with(tmp_path):
    out, settings = tmp_path / "run", {**QUICK, "checkpoint_every": 9, "evaluate_every": 1}

    def die(status):
        if status.step == 21:
            os.kill(os.getpid(), signal.SIGKILL)

    number = os.fork()
    if not number:
        torch.set_num_threads(1)
        run(out, watch=die, **settings)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == -signal.SIGKILL
    (file,) = (out / "tensorboard").iterdir()
    with file.open("ab") as torn:
        torn.write(b"\x00\x01torn")
    assert [step for step, _ in shown(out)["epoch"]] == [10, 20]
    run(out, resume=True, **settings)
    found, metrics = shown(out), logged(out)
    assert {name: found[name] for name in metrics} == metrics
    assert [step for step, _ in found["lr"]] == [10, 20, 25]


@pytest.mark.parametrize("lost", ["shown", "certificate"])
def test_the_last_accuracy_is_shown_once_wherever_the_end_was_interrupted(tmp_path, monkeypatch, lost):
    def fail(self, record, *_):
        if lost == "certificate" or "final" in record:
            raise Killed
        show(self, record, *_)

    show, out = tensorboard.Board.show, tmp_path / "run"
    where = (tensorboard.Board, "show") if lost == "shown" else (RunFolder, "write_certificate")
    with monkeypatch.context() as patch:
        patch.setattr(*where, fail)
        with pytest.raises(Killed):
            run(out, **QUICK)
    run(out, resume=True, **QUICK)
    assert [step for step, _ in shown(out)["test_accuracy"]] == [25]
    assert shown(out)["test_accuracy"] == logged(out)["test_accuracy"]


# What is refused --------------------------------------------------------------------------------------------------


def test_a_run_without_a_folder_is_refused():
    with pytest.raises(InputError, match=r"tensorboard.*no folder.*out"):
        run(None)


def test_without_the_package_nothing_begins(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r'cannot be imported.*pip install "adadp\[tensorboard\]"'):
        run(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_told_in_words_and_the_run_can_go_on(tmp_path, monkeypatch):
    def full(self):
        raise OSError(28, "No space left on device")

    def fill(status):
        if status.step == 9:
            patch.setattr(writer, "flush", full)

    writer = tensorboard._writer_class()
    with monkeypatch.context() as patch, pytest.raises(RunError, match=r"tensorboard cannot be written: No space left"):
        run(tmp_path / "run", watch=fill, **QUICK)
    result = run(tmp_path / "run", resume=True, **QUICK)
    assert result.certificate["steps_lost"] == 0
    assert [step for step, _ in shown(tmp_path / "run")["epoch"]] == [10, 20, 25]


@pytest.mark.parametrize("value", [1, "yes", 0.0])
def test_it_is_true_or_false(value):
    with pytest.raises(InputError, match="tensorboard must be true or false"):
        TrainConfig("mnist", noise_multiplier=1.0, tensorboard=value)


# As a setting -----------------------------------------------------------------------------------------------------


def test_left_out_and_false_are_one_configuration_that_has_no_trace_of_it():
    plain, off, on = (TrainConfig("mnist", noise_multiplier=1.0, tensorboard=value) for value in (None, False, True))
    assert plain == off
    assert "tensorboard" not in plain.as_dict()
    assert on.digest() != plain.digest()
    assert TrainConfig.from_toml(on.to_toml()) == on
    assert on.as_command() == "adadp train --data mnist --noise-multiplier 1.0 --tensorboard"
    assert on.replace(tensorboard=False) == plain


def test_on_the_command_line(tmp_path):
    flags = [
        "--data",
        "cancer",
        "--noise-multiplier",
        "0",
        "--allow-nonprivate",
        "--steps",
        "4",
        "--seed",
        "0",
        "--json",
    ]
    result = CliRunner().invoke(main, ["train", *flags, "--tensorboard", "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    accuracy = json.loads(result.stdout.splitlines()[-1])["test_accuracy"]
    assert shown(tmp_path / "run")["test_accuracy"] == [(4, pytest.approx(accuracy))]
    again = ["train", "--config", str(tmp_path / "run" / "config.toml")]
    refused = CliRunner().invoke(main, again)
    assert refused.exit_code == 2
    assert "no folder" in refused.stderr
    assert CliRunner().invoke(main, [*again, "--no-tensorboard"]).exit_code == 0
