"""The command line as programs and people use it: keys, exit codes, messages, files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adadp.accounting import ACCOUNTANTS, accountant
from adadp.app.cli import main
from adadp.events import GaussianRelease, PoissonSampled, Repeated
from adadp.ledger import Ledger

KEYS = {"epsilon", "epsilon_low", "epsilon_high", "delta", "accountant", "status", "neighbours", "sampling"}
RUN = "--q .01 --noise-multiplier 4 --steps 10000"


def adadp(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


def answer(line: str) -> dict:
    result = adadp(line + " --json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(line: str) -> str:
    """The message of a command that must end with exit code 2, without a traceback and without an answer."""
    result = adadp(line)
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


class TestEpsilon:
    def test_answers_with_the_keys_of_the_contract(self) -> None:
        found = answer(f"epsilon {RUN} --delta 1e-5")
        assert set(found) >= KEYS
        assert found["epsilon"] == pytest.approx(0.947, abs=5e-4)
        assert found["epsilon_low"] <= found["epsilon"] == found["epsilon_high"]
        assert (found["delta"], found["accountant"], found["status"]) == (1e-5, "pld", "proved")
        assert (found["neighbours"], found["sampling"]) == ("add-remove", "poisson")

    def test_is_what_the_library_answers(self) -> None:
        run = Repeated(PoissonSampled(0.02, GaussianRelease(1.5)), 300)
        found = answer("epsilon --q .02 --noise-multiplier 1.5 --steps 300 --delta 1e-6 --accountant rdp")
        assert found["epsilon"] == accountant("rdp").epsilon(run, 1e-6).epsilon

    def test_all_is_a_list_with_every_accountant(self) -> None:
        rows = answer(f"epsilon {RUN} --delta 1e-5 --accountant all")
        assert [row["accountant"] for row in rows] == list(ACCOUNTANTS)
        assert all(set(row) >= KEYS and row["epsilon"] > 0 for row in rows)
        status = {row["accountant"]: row["status"] for row in rows}
        assert status["zcdp-sampled"] == "estimate"
        assert status["strong-published"] == status["theorem1"] == "as-published"

    def test_all_says_who_cannot_answer_and_why(self) -> None:
        rows = {
            row["accountant"]: row
            for row in answer(
                "epsilon --sampling reshuffle --noise-multiplier 6 --epochs 400 --delta 1e-5 --accountant all"
            )
        }
        assert rows["zcdp"]["epsilon"] == pytest.approx(21.55, abs=0.01)
        assert rows["theorem1"]["epsilon"] is None
        assert "equation 7" in rows["theorem1"]["reason"]
        assert {row["neighbours"] for row in rows.values()} == {"zero-out"}

    @pytest.mark.parametrize(
        ("sampling", "usual"), [("poisson", "add-remove"), ("fixed", "replace-one"), ("reshuffle", "zero-out")]
    )
    def test_neighbours_follow_the_sampling_unless_given(self, sampling: str, usual: str) -> None:
        line = f"epsilon --q .01 --noise-multiplier 2 --epochs 2 --delta 1e-5 --sampling {sampling} --accountant rdp"
        assert answer(line)["neighbours"] == usual
        chosen = answer(f"{line} --neighbours replace-one")
        assert chosen["neighbours"] == "replace-one"
        assert chosen["epsilon"] >= answer(line)["epsilon"]

    def test_epochs_are_one_over_q_steps(self) -> None:
        by_epochs = answer("epsilon --q .01 --noise-multiplier 4 --epochs 3 --delta 1e-5")
        by_steps = answer("epsilon --q .01 --noise-multiplier 4 --steps 300 --delta 1e-5")
        assert by_epochs["epsilon"] == by_steps["epsilon"]

    def test_schedule(self) -> None:
        found = answer("epsilon --q .01 --schedule exp:s0=10,k=0.01 --epochs 100 --delta 1e-5")
        assert found["epsilon"] == pytest.approx(0.648, abs=1e-3)

    def test_an_infinite_epsilon_is_null_with_the_reason(self) -> None:
        found = answer("epsilon --q .5 --noise-multiplier .001 --steps 1000000 --delta 1e-12 --accountant strong")
        assert found["epsilon"] is None
        assert found["reason"] == "epsilon is infinite"

    def test_table_for_people(self) -> None:
        text = adadp(f"epsilon {RUN} --delta 1e-5 --accountant all").stdout
        assert "0.946873" in text
        assert "as-published" in text
        assert "not a bound" in " ".join(text.split())

    def test_table_says_cannot_answer(self) -> None:
        text = adadp(
            "epsilon --sampling reshuffle --noise-multiplier 6 --epochs 4 --delta 1e-5 --accountant all"
        ).stdout
        assert "cannot answer" in text


class TestDelta:
    def test_is_the_way_back(self) -> None:
        epsilon = answer(f"epsilon {RUN} --delta 1e-5")["epsilon"]
        found = answer(f"delta {RUN} --epsilon {epsilon!r}")
        assert set(found) >= KEYS
        assert found["delta"] <= 1e-5
        assert found["delta"] == pytest.approx(1e-5, rel=1e-3)

    def test_all(self) -> None:
        assert len(answer(f"delta {RUN} --epsilon 1 --accountant all")) == len(ACCOUNTANTS)


class TestCalibrate:
    def test_sigma(self) -> None:
        found = answer("calibrate --epsilon 2 --delta 1e-5 --q .01 --steps 10000")
        assert set(found) >= KEYS | {"noise_multiplier", "steps"}
        assert found["noise_multiplier"] == pytest.approx(2.1274, abs=1e-4)
        assert found["epsilon"] <= 2
        back = answer(f"epsilon --q .01 --noise-multiplier {found['noise_multiplier']!r} --steps 10000 --delta 1e-5")
        assert back["epsilon"] <= 2
        less = answer(
            f"epsilon --q .01 --noise-multiplier {found['noise_multiplier'] * (1 - 1e-5)!r} --steps 10000 --delta 1e-5"
        )
        assert less["epsilon"] > 2

    def test_scale_of_a_schedule(self) -> None:
        found = answer(
            "calibrate --epsilon 3 --delta 1e-5 --q .05 --epochs 5 --schedule exp:s0=2,k=0.1 --accountant rdp"
        )
        assert found["schedule"].startswith("exp:s0=")
        assert found["noise_multiplier"] == pytest.approx(2 * found["scale"])
        line = f"epsilon --q .05 --epochs 5 --schedule {found['schedule']} --delta 1e-5 --accountant rdp"
        assert answer(line)["epsilon"] <= 3

    def test_steps(self) -> None:
        found = answer("calibrate --solve steps --noise-multiplier 4 --epsilon 2 --delta 1e-5 --q .01 --accountant rdp")
        line = "epsilon --q .01 --noise-multiplier 4 --delta 1e-5 --accountant rdp --steps"
        assert answer(f"{line} {found['steps']}")["epsilon"] <= 2 < answer(f"{line} {found['steps'] + 1}")["epsilon"]

    @pytest.mark.parametrize(
        ("schedule", "epochs"),
        [
            ("uniform:s0=8", 100),
            ("time:s0=10,k=0.05", 38),
            ("step:s0=10,k=0.6,period=10", 31),
            ("exp:s0=10,k=0.01", 71),
            ("poly:s0=10,k=3,s_end=2,period=100", 44),
        ],
    )
    def test_epochs_within_rho_as_in_table_2_of_yu_2019(self, schedule: str, epochs: int) -> None:
        found = answer(f"calibrate --solve epochs --rho .78125 --schedule {schedule} --sampling reshuffle")
        assert found["epochs"] == epochs
        assert found["rho"] <= 0.78125

    def test_epochs_within_rho_says_epsilon_when_delta_is_given(self) -> None:
        found = answer("calibrate --solve epochs --rho .78125 --noise-multiplier 8 --sampling reshuffle --delta 1e-5")
        assert found["epochs"] == 100
        assert found["epsilon"] == pytest.approx(0.78125 + 2 * (0.78125 * 11.512925464970229) ** 0.5)

    def test_epochs_within_epsilon(self) -> None:
        found = answer(
            "calibrate --solve epochs --epsilon 2 --delta 1e-5 --noise-multiplier 4 --q .02 --accountant rdp"
        )
        line = "epsilon --q .02 --noise-multiplier 4 --delta 1e-5 --accountant rdp --epochs"
        assert answer(f"{line} {found['epochs']}")["epsilon"] <= 2 < answer(f"{line} {found['epochs'] + 1}")["epsilon"]

    def test_table_for_people(self) -> None:
        text = adadp("calibrate --epsilon 2 --delta 1e-5 --q .01 --steps 100 --accountant rdp").stdout
        assert "noise_multiplier" in text
        assert "epsilon_low" not in text

    def test_unreachable_target_is_refused_with_the_reachable_value(self) -> None:
        message = refusal("calibrate --solve steps --noise-multiplier 0.5 --epsilon 0.1 --delta 1e-5 --q .5")
        reachable = float(re.search(r"it costs ([\d.]+)", message)[1])
        assert reachable == pytest.approx(
            answer("epsilon --noise-multiplier .5 --q .5 --steps 1 --delta 1e-5")["epsilon"], rel=1e-4
        )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("epsilon --q 0 --noise-multiplier 4 --steps 10 --delta 1e-5", "q must be greater than 0"),
        ("epsilon --q 1.5 --noise-multiplier 4 --steps 10 --delta 1e-5", "[0, 1]"),
        ("epsilon --q .01 --noise-multiplier 0 --steps 10 --delta 1e-5", "--noise-multiplier must be greater than 0"),
        ("epsilon --q .01 --noise-multiplier -1 --steps 10 --delta 1e-5", "--noise-multiplier must be greater than 0"),
        ("epsilon --q .01 --noise-multiplier nan --steps 10 --delta 1e-5", "finite"),
        ("epsilon --q .01 --noise-multiplier 4 --steps 0 --delta 1e-5", "steps must be at least 1"),
        ("epsilon --q .01 --noise-multiplier 4 --steps 10 --delta 1", "strictly between 0 and 1"),
        ("epsilon --q .01 --noise-multiplier 4 --steps 10 --delta 0", "strictly between 0 and 1"),
        ("epsilon --q .01 --noise-multiplier 4 --steps ten --delta 1e-5", "not a valid integer"),
        ("epsilon --q .01 --noise-multiplier 4 --steps 10", "Missing option '--delta'"),
        ("epsilon --q .01 --noise-multiplier 4 --delta 1e-5", "length of the run"),
        (
            "epsilon --q .01 --noise-multiplier 4 --steps 10 --epochs 2 --delta 1e-5",
            "exactly one of --steps and --epochs",
        ),
        ("epsilon --noise-multiplier 4 --steps 10 --delta 1e-5", "needs --q"),
        ("epsilon --q .01 --steps 10 --delta 1e-5", "Neither --noise-multiplier nor --schedule"),
        ("epsilon --q .01 --noise-multiplier 4 --schedule exp:s0=1,k=1 --steps 10 --delta 1e-5", "both set the noise"),
        ("epsilon --q .01 --schedule wave:s0=1 --steps 10 --delta 1e-5", "wave"),
        ("epsilon --q .01 --noise-multiplier 4 --steps 10 --delta 1e-5 --accountant gdp", "Unknown accountant 'gdp'"),
        ("epsilon --q .01 --noise-multiplier 4 --steps 10 --delta 1e-5 --sampling often", "often"),
        ("epsilon --noise-multiplier 4 --steps 10 --delta 1e-5 --sampling reshuffle", "counted in epochs"),
        (
            "epsilon --q .01 --noise-multiplier 4 --steps 9 --delta 1e-5 --sampling fixed --neighbours add-remove",
            "add-remove",
        ),
        (
            "epsilon --noise-multiplier 4 --epochs 9 --delta 1e-5 --sampling reshuffle --neighbours add-remove",
            "add-remove",
        ),
        ("epsilon --q .5 --noise-multiplier 4 --steps 10 --delta 1e-5 --accountant zcdp-sampled", "q <= 1/(16 sigma)"),
        ("delta --q .01 --noise-multiplier 4 --steps 10 --epsilon -1", "--epsilon must not be negative"),
        ("calibrate --delta 1e-5 --q .01 --steps 10", "needs --epsilon"),
        ("calibrate --epsilon 0 --delta 1e-5 --q .01 --steps 10", "--epsilon must be greater than 0"),
        (
            "calibrate --epsilon 1 --delta 1e-5 --q .01 --steps 10 --noise-multiplier 2",
            "--noise-multiplier cannot be given",
        ),
        ("calibrate --solve steps --epsilon 1 --delta 1e-5 --q .01", "needs --noise-multiplier"),
        (
            "calibrate --solve steps --epsilon 1 --delta 1e-5 --noise-multiplier 1 --sampling reshuffle",
            "--solve epochs",
        ),
        ("calibrate --solve epochs --noise-multiplier 1 --sampling reshuffle", "needs --epsilon"),
        ("calibrate --solve epochs --noise-multiplier 1 --sampling reshuffle --rho .001", "Not even one epoch"),
        ("ledger show nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_bad_input_is_refused_with_a_message(line: str, says: str) -> None:
    assert says in " ".join(refusal(line).split())


class TestPlot:
    @pytest.mark.slow
    @pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
    def test_draws(self, tmp_path: Path, suffix: str) -> None:
        target = tmp_path / f"epsilon.{suffix}"
        line = f"epsilon --q .02 --noise-multiplier 2 --steps 100 --delta 1e-5 --accountant rdp --plot {target}"
        assert adadp(line).exit_code == 0
        assert target.stat().st_size > 1000

    def test_one_line_per_accountant_that_can_answer(self, tmp_path: Path) -> None:
        target = tmp_path / "epsilon.svg"
        asked = "epsilon --sampling reshuffle --noise-multiplier 6 --epochs 40 --delta 1e-5"
        line = f"{asked} --accountant all --plot {target}"
        assert adadp(line).exit_code == 0
        drawn = target.read_text()
        assert "zcdp: 5.6" in drawn
        assert "strong-published (as-published)" in drawn
        assert "theorem1" not in drawn

    @pytest.mark.parametrize("target", ["epsilon.txt", "missing-folder/epsilon.png"])
    def test_refuses_what_it_cannot_write(self, target: str) -> None:
        result = adadp(f"epsilon --q .02 --noise-multiplier 2 --steps 10 --delta 1e-5 --accountant rdp --plot {target}")
        assert result.exit_code == 2
        assert target in result.stderr


def test_ledger_show_answers_with_the_real_accountant(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    step = PoissonSampled(0.01, GaussianRelease(4.0))
    with Ledger.create(path) as ledger:
        for _ in range(3):
            ledger.charge(step)
    found = answer(f"ledger show {path} --delta 1e-9")
    assert found["epsilon"] == accountant("pld").epsilon(Repeated(step, 3), 1e-9).epsilon > 0


def test_module_and_version() -> None:
    done = subprocess.run([sys.executable, "-m", "adadp", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("adadp, version ")
