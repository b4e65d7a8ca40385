"""``adadp plan`` as people and programs call it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from adadp.app import inputs, zoo
from adadp.app.cli import main
from adadp.app.cli.plan import plan as command
from adadp.app.cli.train import train
from adadp.app.config import TrainConfig

pytestmark = pytest.mark.slow


FIGURES = (
    "plan --data mnist --features none --method dpsgd --batch-size 600 --rho .78125"
    " --sampling reshuffle --accountant zcdp"
)
TABLE_II = {
    "uniform:s0=8": 100,
    "time:s0=10,k=0.05": 38,
    "step:s0=10,k=0.6,period=10": 31,
    "exp:s0=10,k=0.01": 71,
    "poly:s0=10,k=3,s_end=2,period=100": 44,
}
FIRST, *OTHERS = TABLE_II
BESIDE = f"--noise-schedule {FIRST} " + " ".join(f"--beside {schedule}" for schedule in OTHERS)
CANCER = "plan --data cancer --accountant rdp"
KEYS = {
    "schedule", "solved", "epochs", "steps", "epsilon", "delta", "rho", "accountant", "status", "neighbours", "private",
    "rehearsal", "reason", "released_before", "epsilon_before", "chosen_on_the_way", "plan", "config", "rows", "beside",
}  # fmt: skip
ROW = {"epoch", "steps", "batch_size", "noise_multiplier", "clip_norm", "lr", "epsilon", "rho"}


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    """There is no data, and whoever asks for it fails."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("planning has asked for data")

    monkeypatch.setattr(zoo, "load", refuse)
    monkeypatch.setattr(inputs, "load_own", refuse)
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "empty"))


def adadp(line: str) -> Result:
    result = CliRunner().invoke(main, line.split())
    assert "Traceback" not in result.output
    return result


def said(line: str) -> str:
    """What the command prints, without its rules and line breaks."""
    result = adadp(line)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.replace("─", "").split())


def answered(line: str) -> dict:
    result = adadp(f"{line} --json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(line: str) -> str:
    result = adadp(line)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return " ".join(result.stderr.split())


def test_it_takes_every_option_of_a_run():
    own = {"out", "config_file", "resume", "moved", "trust_code", "as_json", "nproc"}
    options = {option.name for option in train.params} - own
    assert options == {option.name for option in command.params} - {*own, "beside", "every", "plot"}
    assert options == set(TrainConfig.__dataclass_fields__)


def test_the_schedules_of_table_2_beside_one_another(tmp_path):
    path = tmp_path / "figures.png"
    result = adadp(f"{FIGURES} {BESIDE} --json --plot {path}")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    runs = [found, *found["beside"]]
    assert {run["schedule"]: run["epochs"] for run in runs} == TABLE_II
    assert all(run["rho"] <= 0.78125 for run in runs)
    assert "wrote" in result.stderr
    with Image.open(path) as picture:
        assert picture.width > picture.height > 500


def test_the_table_of_a_run_and_the_one_that_compares():
    text = said(f"{FIGURES} --noise-schedule uniform:s0=8 --beside exp:s0=10,k=0.01")
    assert "100 epochs, 10000 steps (as long as the budget lasts)" in text
    assert "60000 records, batches of 600 (q = 0.01), reshuffle sampling, zero-out neighbours, method dpsgd" in text
    assert "epoch steps so far noise lr epsilon so far rho so far" in text
    assert "100 10000 8 4 6.779 0.7812" in text
    assert "20 of 100 epochs; --all shows every one." in text
    assert "schedule epochs first noise last noise epsilon rho" in text
    assert "exp:s0=10,k=0.01 71 10 4.966" in text


def test_a_run_with_a_seed_is_planned_as_a_rehearsal():
    asked = f"{CANCER} --epsilon 2 --epochs 4"
    assert "a rehearsal, as it has a seed: nothing will be protected" in said(f"{asked} --seed 0")
    assert "rehearsal" not in said(asked)
    found = answered(f"{asked} --seed 0")
    assert (found["private"], found["rehearsal"]) == (False, True)


def test_json_has_everything_for_programs():
    found = answered(f"{CANCER} --epsilon 2 --epochs 4 --noise-schedule exp:k=0.1")
    assert set(found) == KEYS
    assert (found["private"], found["rehearsal"]) == (True, False)
    assert [set(row) for row in found["rows"]] == [ROW] * 4
    assert found["solved"]["name"] == "sigma_0"
    assert found["solved"]["value"] == found["rows"][0]["noise_multiplier"]
    assert 1.99 < found["epsilon"] == found["rows"][-1]["epsilon"] <= 2
    assert (found["delta"], found["private"], found["beside"]) == (1e-4, True, [])
    assert TrainConfig.from_dict(found["config"]).noise_schedule == "exp:k=0.1"


def test_columns_are_shown_where_they_change():
    plain = said(f"{CANCER} --noise-multiplier 2 --epochs 2")
    assert "epoch steps so far noise lr epsilon so far 1 " in plain
    full = said(
        f"{CANCER} --noise-multiplier 2 --epochs 2 --batch-size-schedule piecewise:0=56,1=112"
        " --clip-norm-schedule step:k=0.5,period=1"
    )
    assert "epoch steps so far batch noise clip bound lr epsilon so far 1 " in full
    assert " 2 15 112 2 0.5 0.5 " in full
    factors = said(
        f"{CANCER} --noise-multiplier 2 --epochs 2 --clip-rule automatic:3,gamma=0.01"
        " --clip-norm-schedule step:k=0.5,period=1"
    )
    assert "clip factor" in factors


def test_all_shows_every_epoch():
    line = f"{FIGURES} --noise-schedule time:s0=10,k=0.05"
    assert len(answered(line)["rows"]) == 20
    assert len(answered(f"{line} --all")["rows"]) == 38
    assert "--all" not in said(f"{line} --all")


def test_noise_that_follows_looks_is_not_made_up():
    line = (
        f"{CANCER} --epsilon 2 --noise-schedule validation:s0=10,k=0.7 --validation 100 --validation-public "
        "--epochs 5 --beside uniform:"
    )
    text = said(line)
    assert "noise multiplier begins with 10 and will be chosen during the run" in text
    assert "at most epsilon 2 at delta 0.0001: the budget of the rdp-filter" in text
    assert "so far" not in text
    assert "validation:s0=10,k=0.7 at most 5 10 - 2 " in text
    assert "uniform:s0=" in text


def test_a_configuration_file_is_read_and_flags_win(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('data = "cancer"\nnoise_multiplier = 2.0\nepochs = 3\naccountant = "rdp"\n')
    assert answered(f"plan --config {file}")["epochs"] == 3
    assert answered(f"plan --config {file} --epochs 2")["epochs"] == 2


def test_data_of_ones_own_needs_a_public_number_of_records():
    line = "plan --data npz:people.npz --epsilon 1 --delta 1e-5 --accountant rdp --epochs 2"
    text = refusal(line)
    assert "The number of records in npz:people.npz is not given." in text
    assert "Pass --records" in text
    assert answered(f"{line} --records 5000")["plan"]["records"] == 5000


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"{CANCER} --epochs 2", "None of --epsilon, --rho and --noise-multiplier is given"),
        (f"{CANCER} --epsilon 2 --epochs 2 --noise-schedule bogus:k=1", "Unknown schedule shape 'bogus'"),
        (f"{CANCER} --epsilon 2 --epochs 2 --beside exp:s0=10,k=0.01", "the length and the budget are all given"),
        (f"{CANCER} --noise-multiplier 2 --epochs 2 --plot plan.txt", "Cannot draw to 'plan.txt'"),
        (f"{CANCER} --rho 1 --epochs 2", "rho is given, and batches are sampled"),
        ("plan --data nonsense --epsilon 1", "There is no data set 'nonsense'"),
        ("plan --config nowhere.toml", "cannot be read"),
    ],
)
def test_errors_say_what_to_mend(line, expected):
    assert expected in refusal(line)


@pytest.mark.parametrize(
    ("budget", "cost"),
    [
        ("--epsilon 2 --steps 30", "at most epsilon 2 at delta 0.0001: the budget of the rdp-filter"),
        ("--rho 0.05 --batch-size 560 --steps 30", "rho 0.05: the budget of the zcdp-filter"),
    ],
)
def test_a_method_that_chooses_its_noise_is_held_by_its_budget(budget, cost):
    """No accountant may say what its first noise would cost, kept to the end: it will not be."""
    text = said(f"{CANCER} --method agd {budget}")
    assert cost in text
    assert "noise multiplier begins with" in text
    assert "epsilon so far" not in text
