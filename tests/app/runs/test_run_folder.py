"""The folder of a run keeps every bit, loses nothing to errors and kills, and refuses what is damaged."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folder_cases import (
    CONFIG,
    HEAD,
    bits,
    run,  # noqa: F401
)
from safetensors.torch import load_file
from torch import nn

from adadp.app.runs import (
    Checkpoint,
    RunFolder,
)
from adadp.app.runs.atomic import clean, write_atomic
from adadp.errors import InputError, RunError

pytestmark = pytest.mark.slow


def names_in(folder: RunFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir()}


@contextmanager
def room_for(size):
    """A disk on which no file can grow past ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# The folder -------------------------------------------------------------------------------------------------------


def test_a_new_run_holds_its_configuration_and_opens_again(tmp_path):
    run = RunFolder.create(tmp_path / "deep" / "run", CONFIG)
    assert names_in(run) == {"config.toml"}
    assert run.config_path.read_text() == CONFIG.to_toml()
    assert RunFolder.open(str(run.path)) == run
    assert run.ledger_path == run.path / "ledger.jsonl"
    assert run.load_checkpoint() is None
    assert run.certificate() is None
    assert run.metrics() == []
    with pytest.raises(RunError, match="no model in"):
        run.load_model_tensors()
    with pytest.raises(RunError, match="no model in"):
        run.model_metadata()


def test_an_empty_folder_is_used_and_any_other_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty", CONFIG)
    with pytest.raises(InputError, match=r"not a new or empty folder.*never overwritten"):
        RunFolder.create(tmp_path / "empty", CONFIG)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="not a new or empty folder"):
        RunFolder.create(tmp_path / "file", CONFIG)
    assert (tmp_path / "file").is_file()


def test_of_two_that_begin_at_once_one_is_refused(tmp_path, monkeypatch):
    """Both passed the look into the empty folder: the name of the configuration decides."""
    outcomes = []
    barrier = threading.Barrier(2)
    monkeypatch.setattr("adadp.app.runs.folder.probe", lambda *_: barrier.wait(timeout=20))

    def begin(seed):
        try:
            outcomes.append(RunFolder.create(tmp_path / "run", CONFIG.replace(seed=seed)))
        except InputError:
            outcomes.append(None)

    (tmp_path / "run").mkdir()
    threads = [threading.Thread(target=begin, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    (winner,) = [outcome for outcome in outcomes if outcome is not None]
    assert len(outcomes) == 2
    assert RunFolder.open(tmp_path / "run").config.seed == winner.config.seed


def test_where_nothing_can_be_written_the_run_does_not_begin(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file/run cannot be written: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG)


@contextmanager
def read_only(folder):
    """``folder`` may be read and not written, not even by root, who for the time being is somebody else."""
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


def test_a_folder_that_may_only_be_read_begins_no_run_and_still_opens_one():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with read_only(folder):
            for place in (folder, folder / "run"):
                with pytest.raises(RunError, match="cannot be written: Permission denied"):
                    RunFolder.create(place, CONFIG)
        run = RunFolder.create(folder, CONFIG)
        run.save_checkpoint(1, {"w": torch.ones(1)}, {}, ledger_head=HEAD)
        (folder / ".adadp-0000.tmp").write_bytes(b"half")
        with read_only(folder):
            assert RunFolder.open(folder).load_checkpoint().step == 1
            with pytest.raises(RunError, match="cannot be written: Permission denied"):
                run.save_checkpoint(2, {}, {}, ledger_head=HEAD)
        assert run.load_checkpoint().step == 1


def test_a_configuration_that_cannot_be_written_leaves_no_folder(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="cannot be written: No space left"):
        RunFolder.create(tmp_path / "run", CONFIG)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("room", [0, 10, 2**20 - 1])
def test_a_full_disk_is_found_before_the_run_begins(tmp_path, room):
    (tmp_path / "empty").mkdir()
    with room_for(room):
        for name in ("new", "empty"):
            with pytest.raises(RunError, match="cannot be written: File too large"):
                RunFolder.create(tmp_path / name, CONFIG)
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "empty").iterdir()) == []
    with room_for(2**20):
        RunFolder.create(tmp_path / "empty", CONFIG)


def test_a_probe_asks_for_as_much_as_it_is_told_and_leaves_nothing(run):
    size = 3 * 2**20 + 5
    with room_for(size):
        run.probe(size)
        with pytest.raises(RunError, match="File too large"):
            run.probe(size + 1)
    assert names_in(run) == {"config.toml"}
    with pytest.raises(InputError, match="size must be at least 1"):
        run.probe(0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no run in"),
        (b"", "killed before it began"),
        (b"noise_multiplier =", "is not TOML"),
        (b'data="x"\nnoise_multiplied=1', "noise_multiplied"),
    ],
)
def test_a_folder_without_a_usable_configuration_is_not_a_run(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(InputError, match=message):
        RunFolder.open(tmp_path)


# Whole files or none ----------------------------------------------------------------------------------------------


def test_leftovers_of_dead_writers_are_removed_and_those_of_living_ones_are_not(run):
    dead = run.path / ".adadp-0000.tmp"
    living = run.path / ".adadp-1111.tmp"
    dead.write_bytes(b"half")
    with living.open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        RunFolder.open(run.path)
        assert names_in(run) == {"config.toml", living.name}
    RunFolder.open(run.path)
    assert names_in(run) == {"config.toml"}


def test_leftovers_do_not_stop_a_new_run(tmp_path):
    (tmp_path / ".adadp-0000.tmp").write_bytes(b"half")
    assert names_in(RunFolder.create(tmp_path, CONFIG)) == {"config.toml"}


def test_cleaning_all_the_time_never_disturbs_a_writer(tmp_path):
    done = threading.Event()

    def sweep():
        while not done.is_set():
            clean(tmp_path)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for number in range(300):
            write_atomic(tmp_path / "file", b"%d" % number)
            assert (tmp_path / "file").read_bytes() == b"%d" % number
    finally:
        done.set()
        sweeper.join()


def test_a_writer_whose_new_file_was_cleaned_away_before_it_was_locked_takes_another(tmp_path, monkeypatch):
    lock, quicker = fcntl.flock, []

    def late(file, operation):
        if not quicker:
            quicker.extend(tmp_path.glob("*.tmp"))
            quicker[0].unlink()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    write_atomic(tmp_path / "file", b"new")
    assert len(quicker) == 1
    assert (tmp_path / "file").read_bytes() == b"new"


def test_an_interrupt_while_writing_leaves_the_old_file(run, monkeypatch):
    run.write_certificate({"epsilon": 1.0})

    def interrupted(*_):
        raise KeyboardInterrupt

    for call in ("write", "fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.write_certificate({"epsilon": 2.0})
        assert run.certificate() == {"epsilon": 1.0}
        assert names_in(run) == {"config.toml", "certificate.json"}


def test_a_file_is_on_the_disk_before_it_gets_its_name_and_the_name_before_we_return(run, monkeypatch):
    calls = []
    for call in ("fsync", "replace"):
        real = getattr(os, call)

        def spy(*arguments, call=call, real=real):
            is_folder = call == "fsync" and os.path.isdir(f"/proc/self/fd/{arguments[0]}")
            calls.append("fsync folder" if is_folder else call)
            return real(*arguments)

        monkeypatch.setattr(os, call, spy)
    run.write_certificate({})
    assert calls == ["fsync", "replace", "fsync folder"]


def test_a_full_disk_loses_no_file_wherever_it_strikes(run):
    weights = {"w": torch.arange(2000.0)}
    run.save_checkpoint(1, weights, {"epoch": 1}, ledger_head=HEAD)
    run.save_model(weights, {"epsilon": "1"})
    run.write_certificate({"epsilon": 1.0, "text": "x" * 500})
    run.log({"step": 1})
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    larger = {"w": torch.arange(4000.0)}
    writes = [
        lambda: run.save_checkpoint(2, larger, {"epoch": 2}, ledger_head=HEAD),
        lambda: run.save_model(larger, {"epsilon": "2"}),
        lambda: run.write_certificate({"epsilon": 2.0, "text": "y" * 1000}),
        lambda: run.log({"step": 2, "text": "z" * 1000}),
    ]
    for room in (0, 1, 20, 500, 999):
        for write in writes:
            with (
                room_for(room),
                pytest.raises(RunError, match=r"cannot be written: File too large.*No file is left half"),
            ):
                write()
        assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before
    for write in writes:
        write()
    assert run.load_checkpoint().step == 2
    assert run.metrics()[-1]["step"] == 2


# Saves checkpoints without end in a child that is killed, over and over; everything a checkpoint holds says its step.
KILLED = """
import os, random, signal, sys, time
import torch
from adadp.app.runs import RunFolder
torch.set_num_threads(1)
moments = random.Random(7)
first = within = 0
for kill in range(120):
    if kill >= 12 and within:
        break
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        run = RunFolder.open(sys.argv[1])
        step = first
        while True:
            step += 1
            tensors = {"w": torch.full((moments.choice([10, 100_000]),), step), "b": torch.tensor(step)}
            run.save_checkpoint(step, tensors, {"step": step}, ledger_head=str(step))
            os.write(writer, b"%09d" % step)
    os.close(writer)
    saved = int(os.read(reader, 9))
    time.sleep(0.05 * moments.random())
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    while more := os.read(reader, 9):
        saved = int(more)
    leftovers = [name for name in os.listdir(sys.argv[1]) if name.endswith(".tmp")]
    run = RunFolder.open(sys.argv[1])
    assert sorted(os.listdir(sys.argv[1])) == ["checkpoint.safetensors", "config.toml"]
    found = run.load_checkpoint()
    assert saved <= found.step <= saved + 1, (saved, found.step)
    assert found.state == {"step": found.step} and found.ledger_head == str(found.step)
    assert all((tensor == found.step).all() for tensor in found.tensors.values())
    assert found.step > first
    first = found.step
    within += len(leftovers)
    print(len(leftovers))
"""


def test_a_kill_at_any_moment_leaves_the_last_checkpoint_or_the_one_before(run):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, run.path], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    counts = [int(line) for line in done.stdout.split()]
    assert len(counts) >= 12
    assert sum(counts) > 0, "no kill fell into a write: the test tested nothing"


# Checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_exactly(run):
    state = {"epoch": 3, "rate": 0.1, "none": None, "flag": True, "text": "é\n\ud800", "list": [1, [2.5e-300]], "d": {}}
    run.save_checkpoint(7, {"w": torch.ones(2)}, state, ledger_head=HEAD)
    found = run.load_checkpoint()
    assert isinstance(found, Checkpoint)
    assert (found.step, found.state, found.ledger_head) == (7, state, HEAD)
    run.save_checkpoint(0, {}, {}, ledger_head="")
    assert run.load_checkpoint() == Checkpoint(0, {}, {}, "")


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


tensor_names = st.text(st.characters(exclude_categories=["Cs"]))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_bit_of_every_tensor_survives(tmp_path_factory, data):
    run = RunFolder.create(tmp_path_factory.mktemp("runs") / "run", CONFIG)
    given_tensors = {}
    for name in data.draw(st.lists(tensor_names, unique=True, max_size=4)):
        dtype = data.draw(st.sampled_from(DTYPES))
        shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
        size = torch.Size(shape).numel() * dtype.itemsize
        raw = data.draw(st.binary(min_size=size, max_size=size))
        if dtype is torch.bool:
            raw = bytes(byte & 1 for byte in raw)
        tensor = (
            torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
        )
        given_tensors[name] = tensor.mT if tensor.ndim >= 2 and data.draw(st.booleans()) else tensor
    run.save_checkpoint(1, given_tensors, {}, ledger_head=HEAD)
    found = run.load_checkpoint().tensors
    assert {name: bits(tensor) for name, tensor in found.items()} == {
        name: bits(tensor) for name, tensor in given_tensors.items()
    }


def test_special_numbers_keep_their_bits(run):
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45, 0.1]).view(torch.int32)
    odd[0] = 0x7FA12345  # a NaN with a payload
    given_tensors = {
        "odd": odd.view(torch.float32),
        "b": torch.tensor(True),
        "h": torch.tensor(0.1, dtype=torch.bfloat16),
    }
    run.save_checkpoint(1, given_tensors, {}, ledger_head=HEAD)
    found = run.load_checkpoint().tensors
    assert {name: bits(found[name]) for name in found} == {name: bits(given_tensors[name]) for name in given_tensors}


def test_tied_tensors_are_stored_once_and_come_back_tied(run):
    shared = torch.arange(50_000.0)
    whole = {"a": shared, "b": nn.Parameter(shared), "c": shared[:10], "d": shared.view(2, -1), "e": shared.clone()}
    run.save_checkpoint(1, whole, {}, ledger_head=HEAD)
    found = run.load_checkpoint().tensors
    assert set(found) == set(whole)
    assert all(torch.equal(found[name], whole[name]) for name in whole)
    assert found["a"] is found["b"]
    assert not any(found["a"].data_ptr() == found[name].data_ptr() for name in "cde")
    assert run.checkpoint_path.stat().st_size < 3.1 * shared.nbytes


def test_empty_tensors_are_not_taken_for_tied_ones(run):
    run.save_checkpoint(1, {"a": torch.empty(0), "b": torch.empty(0)}, {}, ledger_head=HEAD)
    assert set(load_file(run.checkpoint_path)) == {"a", "b"}


def test_views_that_read_the_same_memory_differently_are_not_tied(run):
    square = torch.arange(4.0).view(2, 2)
    wave = torch.tensor([1 + 2j])
    given_tensors = {"a": square, "b": square.mT, "c": square.view(torch.int32), "d": wave, "e": wave.conj()}
    given_tensors["f"] = wave.conj().imag  # negated lazily
    run.save_checkpoint(1, given_tensors, {}, ledger_head=HEAD)
    found = run.load_checkpoint().tensors
    assert {name: bits(found[name]) for name in found} == {name: bits(given_tensors[name]) for name in given_tensors}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"w": torch.eye(2).to_sparse()}, "'w' is sparse"),
        ({"w": torch.empty(2, device="meta")}, "'w' is on the meta device"),
        ({"w": torch.ones(1, dtype=torch.complex128)}, "cannot be written"),
        ({"w": [1.0]}, "'w' is list, not a tensor"),
        ({3: torch.ones(1)}, "3 is Tensor, not a tensor under a name"),
        ({"\ud800": torch.ones(1)}, "cannot be written"),
        ({"__metadata__": torch.ones(1)}, "No tensor can be called __metadata__"),
    ],
)
def test_what_is_no_plain_tensor_is_refused_and_nothing_is_lost(run, wrong, message):
    run.save_checkpoint(1, {"w": torch.ones(1)}, {}, ledger_head=HEAD)
    with pytest.raises(InputError, match=message):
        run.save_checkpoint(2, wrong, {}, ledger_head=HEAD)
    assert run.load_checkpoint().step == 1
