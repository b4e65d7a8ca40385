"""What the tests of resume share."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn

from adadp.app import zoo
from adadp.app.train import fit
from adadp.errors import AdaDPError, Interrupted
from adadp.noise import GaussianMechanism

FEATURES, LABELS = zoo.load("cancer").train


BASE = {"noise_multiplier": 4.0, "delta": 1e-4, "steps": 44, "batch_size": 28, "checkpoint_every": 7}


QUICK = {"noise_multiplier": 0, "allow_nonprivate": True}
"""Without noise, where only charges and steps are counted: no accountant is asked."""


SEEDED = {**BASE, "seed": 5}


def network(dropout: bool = True) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Dropout(0.2 if dropout else 0.0), nn.Linear(8, 2))


def run(out: Path | None, *, model: nn.Module | None = None, **settings):
    return fit(network() if model is None else model, (FEATURES, LABELS), out=out, **settings)


def child(work, *, log: Path | None = None, after=None) -> int:
    """``work`` in a process of its own, with one thread; every value it releases is noted in ``log``.

    ``after`` is then called in that process, with how many it has released and the step.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    number = os.fork()
    if number:
        return number
    try:
        torch.set_num_threads(1)
        if log is not None:
            note_releases(log, after)
        work()
        os._exit(0)
    except AdaDPError:
        os._exit(3)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(number: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def note_releases(log: Path, after=None) -> None:
    release, made = GaussianMechanism.release, itertools.count(1)

    def noted(self, total, **options):
        released = release(self, total, **options)
        if options.get("purpose") != "count":
            text = b"".join(released[name].numpy().tobytes() for name in sorted(released))
            with log.open("a") as file:
                file.write(f"{options['step']} {hashlib.sha256(text).hexdigest()}\n")
            if after is not None:
                after(next(made), options["step"])
        return released

    GaussianMechanism.release = noted


def noted(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def ask_to_stop(status) -> None:
    os.kill(os.getpid(), signal.SIGINT)


# What is refused --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """A run of 20 steps, stopped cleanly after 9 of them."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Interrupted):
        run(out, watch=lambda s: ask_to_stop(s) if s.step == 9 else None, **SHORT)
    return out


SHORT = {**SEEDED, "steps": 20, "noise_multiplier": 0, "allow_nonprivate": True, "delta": None}


@pytest.fixture
def place(stopped, tmp_path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))
