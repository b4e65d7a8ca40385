"""A search on an executor: what it publishes and charges is that of one process, whoever dies and whoever is first."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from distributed import LocalCluster
from tune_search_cases import BASE, FINAL, SETTINGS, failed, finished, material, search, watched  # noqa: F401

from adadp.app.runs.tensors import read_tensors
from adadp.app.selection import publishing, resume, searching, tune
from adadp.app.selection.search_state import SecretFolder
from adadp.app.selection.searching import begin
from adadp.app.sweeps.executors import executor_named
from adadp.app.sweeps.processes import Processes
from adadp.errors import InputError, Interrupted, RunError
from adadp.ledger import read_ledger

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two workers, each a process with one thread."""
    place = str(tmp_path_factory.mktemp("dask"))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=place) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def assert_same(out: Path, other: Path) -> None:
    """The same was published and charged in both folders."""
    publishing.finish(out)
    assert failed(out) == set()
    assert {path.name for path in out.rglob("*")} == FINAL
    assert read_ledger(out / "ledger.jsonl").charges == read_ledger(other / "ledger.jsonl").charges
    for name in ("search.json", "config.toml", "metrics.jsonl", "confusion.json"):
        assert (out / name).read_bytes() == (other / name).read_bytes()
    ours, theirs = (read_tensors(place / "model.safetensors")[0] for place in (out, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_on_a_dask_cluster_it_comes_to_the_same(cluster, search, material, finished, tmp_path):
    with executor_named(f"dask:{cluster.scheduler_address}") as executor:
        begin(search, material, str(tmp_path / "run"), executor=executor)
    assert_same(tmp_path / "run", finished.out)
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


class Backwards(Executor):
    """Makes everything it was handed when the last of ``count`` has come, the last first."""

    def __init__(self, count: int) -> None:
        self.count, self.handed = count, []

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        if "_unseen" in str(fn):
            future.set_result(fn(*args, **kwargs))
            return future
        self.handed.append((future, fn, args))
        if len(self.handed) == self.count:
            for each, make, given in reversed(self.handed):
                each.set_result(make(*given))
        return future


def test_the_order_in_which_runs_are_made_changes_nothing(search, material, finished, tmp_path, monkeypatch):
    """All are valued, and in the order they were drawn in. What workers are handed tells neither setting nor score."""
    valued, score = [], searching.score_of

    def scores(*arguments, run, **options):
        valued.append(run)
        return score(*arguments, run=run, **options)

    monkeypatch.setattr(searching, "score_of", scores)
    executor = Backwards(3)
    begin(search, material, str(tmp_path / "run"), executor=executor)
    assert valued == [0, 1, 2]
    handed = [pickle.dumps(given) for _, _, given in executor.handed]
    assert len({len(each) for each in handed}) == 1
    assert not [word for word in (b"setting", b"lr", b"value", b"cancer") for each in handed if word in each]
    assert_same(tmp_path / "run", finished.out)


def test_by_parts_it_comes_to_the_same(tmp_path):
    base = BASE.replace(epsilon=2.0, steps=2, batch_size=186)
    for name, executor in (("here", None), ("there", ThreadPoolExecutor(2))):
        tune(base, SETTINGS, by="parts", out=tmp_path / name, executor=executor)
    assert (tmp_path / "here" / "search.json").read_bytes() == (tmp_path / "there" / "search.json").read_bytes()
    ours, theirs = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("here", "there"))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_a_worker_that_is_killed_costs_no_run_and_no_second_charge(search, material, finished, tmp_path, monkeypatch):
    """Its run goes on where it was, on another one."""
    out, deaths = tmp_path / "run", tmp_path / "deaths"
    monkeypatch.setattr(searching, "made_elsewhere", dying)
    monkeypatch.setenv("ADADP_TEST_DEATHS", str(deaths))
    deaths.write_text("1")
    with Processes(1) as executor:
        begin(search, material, str(out), executor=executor)
    assert deaths.read_text() == "0"
    assert_same(out, finished.out)


def test_a_run_that_fails_stops_the_search_and_no_other_run(search, material, finished, tmp_path, monkeypatch):
    """Nothing is published without it, and nothing drawn or charged once more when the search is resumed."""
    out, failing, names = tmp_path / "run", [True], list[str]()

    def elsewhere(out, name, *, watch):
        names.append(name)
        if failing and len(names) == 1:
            raise OSError("no device")
        real_elsewhere(out, name, watch=watch)

    monkeypatch.setattr(searching, "made_elsewhere", elsewhere)
    with pytest.raises(RunError, match=r"no device.*adadp tune --resume"):
        begin(search, material, str(out), executor=ThreadPoolExecutor(1))
    assert len(names) == 3
    assert read_ledger(out / "ledger.jsonl").charges == {search.event(): 1}
    assert [each.folder for each in SecretFolder(out / "secret").state().waiting] == names
    failing.clear()
    monkeypatch.setattr(SecretFolder, "begin", lambda *_: pytest.fail("its runs were drawn once more"))
    resume(out, executor=ThreadPoolExecutor(1))
    assert names[3:] == names[:3]
    assert_same(out, finished.out)


real_elsewhere = searching.made_elsewhere


def dying(out: Path, name: str, *, watch) -> None:
    """A run whose process dies after its second step, as long as there are deaths left in a file."""
    deaths = Path(os.environ["ADADP_TEST_DEATHS"])

    def deadly(status):
        left = int(deaths.read_text() or 0)
        if status.step == 2 and left:
            deaths.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        watch(status)

    real_elsewhere(out, name, watch=deadly)


class Blind(Executor):
    """A worker on another machine, where nothing is under the same path."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_result(fn(Path("/nowhere/probe"), *args[1:], **kwargs))
        return future


def test_workers_that_do_not_see_the_folder_are_refused_before_anything_is_charged(search, material, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(InputError, match="does not see"):
        begin(search, material, str(out), executor=Blind())
    assert list(tmp_path.iterdir()) == []


def test_a_stop_tells_nothing_and_it_goes_on(search, material, finished, tmp_path, monkeypatch):
    out = tmp_path / "run"
    real = searching.run_tasks

    def stopped(*arguments, **options):
        raise Interrupted("Stopped with 1 of 3 runs done in this call.")

    monkeypatch.setattr(searching, "run_tasks", stopped)
    with pytest.raises(Interrupted) as told:
        begin(search, material, str(out), executor=ThreadPoolExecutor(1))
    assert "1 of 3" not in str(told.value)
    assert told.value.__suppress_context__
    monkeypatch.setattr(searching, "run_tasks", real)
    resume(out, executor=ThreadPoolExecutor(2))
    assert_same(out, finished.out)


SCRIPT = """
import sys
from adadp.app.cli import main
if __name__ == "__main__":
    main(sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_the_command_and_its_processes_end(number, tmp_path):
    script = tmp_path / "adadp_command.py"
    script.write_text(SCRIPT)
    words = "tune --data cancer --epsilon 3 --delta 1e-4 --steps 20000 --batch-size 460 --grid lr=0.05,1 --threads 1"
    words += " --validation 100 --law tnb --runs 2 --executor processes:1 --accountant rdp"
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, str(script), *words.split(), "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 120
    while time.monotonic() < end and not list(out.glob("secret/runs/*/ledger.jsonl")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    os.killpg(process.pid, number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Resume it with: adadp tune --resume" in said
    assert " of " not in said.replace("How many runs it makes", "").split("The search was stopped.")[1]
    end = time.monotonic() + 30
    while time.monotonic() < end and is_there(process.pid):
        time.sleep(0.1)
    assert not is_there(process.pid)


def is_there(group: int) -> bool:
    """Whether any process of the group lives."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
