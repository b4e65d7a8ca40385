"""``adadp train`` in several processes: by --nproc, and by launchers of torchrun that find one another."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from processes import free_port

from adadp.app.cli import main
from adadp.app.verify import verify_run
from adadp.ledger import read_ledger

pytestmark = pytest.mark.slow

RUN = ["train", "--data", "cancer", "--epsilon", "2", "--delta", "1e-4", "--epochs", "1"]
LONG = ["train", "--data", "cancer", "--noise-multiplier", "2", "--delta", "1e-4", "--steps", "100000"]
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment(**added: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in NAMES and not name.startswith("COV")}
    source = str(Path(__file__).resolve().parents[3] / "src")
    return kept | {"PYTHONPATH": source, "ADADP_RANK_TIMEOUT": "60", **added}


def begin(*arguments: str, module: str = "adadp", **added: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment(**added), **pipes)


def verified(folder: Path) -> None:
    assert [each for each in verify_run(folder) if not each.passed] == []
    assert "The run was computed by 2 processes." in (folder / "certificate.json").read_text()
    assert "computed by 2 processes" in (folder / "report.html").read_text()


def test_two_processes_of_this_machine_speak_once(tmp_path):
    run = begin(*RUN, "--nproc", "2", "--out", str(tmp_path / "run"), "--json")
    out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err
    assert len(out.splitlines()) == 1
    assert json.loads(out)["out"] == str(tmp_path / "run")
    verified(tmp_path / "run")


def test_two_launchers_find_one_another(tmp_path):
    endpoint = f"127.0.0.1:{free_port()}"
    launchers = [
        begin(
            *("--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"),
            *("--rdzv-backend", "c10d", "--rdzv-id", "test", "--rdzv-endpoint", endpoint),
            *("-m", "adadp", *RUN, "--out", str(tmp_path / f"node{node}")),
            module="torch.distributed.run",
        )
        for node in range(2)
    ]
    for each in launchers:
        _, err = each.communicate(timeout=200)
        assert each.returncode == 0, err
    ran = [node for node in range(2) if (tmp_path / f"node{node}").exists()]
    assert len(ran) == 1  # the folder of the process that is the first, wherever that is
    verified(tmp_path / f"node{ran[0]}")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--epsilon", "-1"], "--epsilon"),
        (["--batch-size", "100000"], "batch"),
    ],
)
def test_an_error_is_told_once_and_in_words(arguments, text, tmp_path):
    run = begin(*RUN, *arguments, "--nproc", "2")
    out, err = run.communicate(timeout=200)
    assert run.returncode == 2, err
    assert err.count("Error:") == 1, err
    assert text in err
    assert "Traceback" not in err + out


def wait_for_steps(folder: Path) -> None:
    ledger, deadline = folder / "ledger.jsonl", time.monotonic() + 100
    while not (ledger.exists() and len(ledger.read_bytes().splitlines()) > 10):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_stop_request_to_the_launcher_stops_all(tmp_path):
    folder = tmp_path / "run"
    run = begin(*LONG, "--nproc", "2", "--out", str(folder))
    wait_for_steps(folder)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert err.count("Everything is saved in") == 1, err
    assert "Traceback" not in err


def test_a_process_that_is_killed_is_named(tmp_path):
    folder = tmp_path / "run"
    run = begin(*LONG, "--nproc", "2", "--out", str(folder))
    wait_for_steps(folder)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    second = next(int(each) for each in children if b"\0RANK=1\0" in Path(f"/proc/{each}/environ").read_bytes())
    os.kill(second, signal.SIGKILL)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGKILL, err
    assert "Process 1 of the run was killed by signal 9." in err
    assert "Traceback" not in err
    assert read_ledger(folder / "ledger.jsonl").charges


def test_a_process_that_never_arrives_is_given_up(tmp_path):
    started = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    run = begin(*RUN, "--out", str(tmp_path / "run"), **started, MASTER_PORT=str(free_port()), ADADP_RANK_TIMEOUT="5")
    _, err = run.communicate(timeout=100)
    assert run.returncode == 2, err
    assert "The processes of the run cannot meet" in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["tune", "--data", "cancer"], ["compare", "--data", "cancer"]])
def test_other_commands_are_refused_in_several_processes(command):
    started = dict.fromkeys(NAMES, "1") | {"WORLD_SIZE": "2"}
    done = CliRunner().invoke(main, command, env=started)
    assert done.exit_code == 2
    assert f"adadp {command[0]} was started in several processes" in done.stderr
