"""What a machine remembers of a run: folders that were copied, set back or given other records do not go on."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from adadp import Ledger
from adadp.app import zoo
from adadp.app.runs import anchor
from adadp.app.runs.anchor import Anchor
from adadp.app.train import fit, verify_run
from adadp.errors import InputError, Interrupted, LedgerBusy, LedgerError
from adadp.events import GaussianRelease

FEATURES, LABELS = zoo.load("cancer").train
SETTINGS = {"noise_multiplier": 4.0, "delta": 1e-4, "steps": 12, "batch_size": 28, "checkpoint_every": 3, "lr": 0.1}


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(anchor.FOLDER, str(tmp_path / "state"))
    return tmp_path / "state" / "runs"


def train(out, *, features=FEATURES, watch=None, **settings):
    torch.manual_seed(0)
    return fit(nn.Linear(9, 2), (features, LABELS), out=out, watch=watch, **{**SETTINGS, **settings})


def stopped(out, after=5, **settings):
    """A run that somebody stops after so many steps."""

    def stop(status):
        if status.step == after:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, Interrupted)):
        train(out, watch=stop, **settings)
    return out


def test_a_copy_does_not_go_on_after_the_original(tmp_path):
    original = stopped(tmp_path / "run")
    shutil.copytree(original, tmp_path / "copy")
    train(original, resume=True)
    charged = (tmp_path / "copy" / "ledger.jsonl").read_bytes()
    with pytest.raises(LedgerError, match="ends before what this machine has noted"):
        train(tmp_path / "copy", resume=True)
    assert (tmp_path / "copy" / "ledger.jsonl").read_bytes() == charged
    assert all(check.passed for check in verify_run(original))


def test_a_copy_goes_on_in_place_of_the_original_once(tmp_path):
    original = stopped(tmp_path / "run")
    shutil.copytree(original, tmp_path / "copy")
    train(tmp_path / "copy", resume=True)
    with pytest.raises(LedgerError, match="ends before"):
        train(original, resume=True)
    with pytest.raises(LedgerError, match="ends before"):
        train(original, resume=True, moved=True)


def test_a_ledger_that_was_cut_back_does_not_go_on(tmp_path):
    out = stopped(tmp_path / "run")
    lines = (out / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (out / "ledger.jsonl").write_bytes(b"".join(lines[:-2]))
    with pytest.raises(LedgerError, match="ends before"):
        train(out, resume=True)


def test_a_copy_does_not_go_on_beside_the_original(tmp_path):
    out = stopped(tmp_path / "run")
    shutil.copytree(out, tmp_path / "copy")

    def begin_the_copy(status):
        if status.step == 8:
            with pytest.raises(LedgerBusy, match="going on in another folder"):
                train(tmp_path / "copy", resume=True)

    train(out, resume=True, watch=begin_the_copy)


def test_a_run_goes_on_elsewhere_on_its_owners_word(tmp_path, notes, monkeypatch):
    out = stopped(tmp_path / "run")
    monkeypatch.setenv(anchor.FOLDER, str(tmp_path / "elsewhere"))
    with pytest.raises(LedgerError, match="no note of the run"):
        train(out, resume=True)
    stopped(out, after=8, resume=True, moved=True)
    train(out, resume=True)  # which has been told once
    assert any("no record of it" in note for note in json.loads((out / "certificate.json").read_text())["notes"])
    assert all(check.passed for check in verify_run(out))


@pytest.mark.parametrize("changed", [FEATURES.flip(0), FEATURES + 1e-3])
def test_other_records_do_not_go_on(tmp_path, changed):
    out = stopped(tmp_path / "run")
    before = (out / "ledger.jsonl").read_bytes()
    with pytest.raises(InputError, match="not those the run was begun with") as told:
        train(out, features=changed, resume=True)
    assert (out / "ledger.jsonl").read_bytes() == before
    assert not any(character.isdigit() for character in told.value.what)
    train(out, resume=True)


def test_the_key_of_the_fingerprint_is_not_in_the_folder(tmp_path, notes):
    out = stopped(tmp_path / "run")
    (note,) = (each for each in notes.iterdir() if each.suffix != ".lock")
    key = note.read_bytes()[anchor._KEYS : anchor._MOVED]
    assert len(set(key)) > 16
    for file in out.rglob("*"):
        content = file.read_bytes()
        assert key[:32] not in content
        assert key[32:] not in content
    assert note.stat().st_mode & 0o077 == 0


def test_what_protects_nothing_leaves_no_note(tmp_path, notes):
    train(tmp_path / "rehearsal", seed=3)
    train(None, checkpoint_every=None)
    with pytest.raises(InputError):
        train(tmp_path / "refused", lr=float("nan"))
    assert not notes.exists() or not [each for each in notes.iterdir() if each.suffix != ".lock"]


def charged(path, count=1):
    ledger = Ledger.create(path)
    found = Anchor.of(ledger, path.parent, moved=False)
    for _ in range(count):
        ledger.charge(GaussianRelease(1.0))
    return ledger, found


def test_every_line_is_noted_and_the_older_note_stands_while_one_is_written(tmp_path, notes):
    ledger, found = charged(tmp_path / "ledger", 3)
    assert max(found._noted(0), found._noted(1)) == (ledger.length, ledger.head)
    found.close()
    with found.path.open("r+b") as file:  # the last note is torn
        file.seek(ledger.length % 2 * anchor._SLOT + 10)
        file.write(b"\0\0\0")
    ledger.witness = None
    Anchor.of(ledger, tmp_path, moved=False).close()
    ledger.close()


def test_a_kill_between_ledger_and_note_does_not_matter(tmp_path):
    ledger, found = charged(tmp_path / "ledger")
    ledger.witness = None
    ledger.charge(GaussianRelease(1.0))
    found.close()
    Anchor.of(ledger, tmp_path, moved=False).close()
    ledger.close()


def test_what_cannot_be_noted_is_not_released(tmp_path, monkeypatch):
    ledger, found = charged(tmp_path / "ledger")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(anchor, "write_all", full)
    with pytest.raises(LedgerError, match="cannot be written: No space left"):
        ledger.charge(GaussianRelease(1.0))
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="did not finish"):
        ledger.charge(GaussianRelease(1.0))
    found.close()
    ledger.close()


def test_a_state_folder_that_cannot_be_made_is_told_before_anything_is_charged(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(anchor.FOLDER, str(tmp_path / "file"))
    with pytest.raises(LedgerError, match=anchor.FOLDER):
        train(tmp_path / "run")
    assert not (tmp_path / "run").exists()
