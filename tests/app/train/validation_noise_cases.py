"""What the tests of validation noise share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from adadp.app import zoo
from adadp.app.runs import RunFolder
from adadp.app.train import fit, verify_run
from adadp.events import GaussianRelease
from adadp.ledger import read_ledger

FEATURES, LABELS = zoo.load("cancer").train


BASE = {"delta": 1e-4, "method": "dpsgd", "lr": 0.5, "batch_size": 100, "validation": 60}


SHUFFLED = {**BASE, "sampling": "reshuffle", "rho": 0.25}
"""Epochs of 5 steps on 500 records."""


PUBLIC = {**SHUFFLED, "validation_public": True, "noise_schedule": "validation:s0=6,k=0.7,m=2,delta=0.02,period=2"}


PRIVATE = {**SHUFFLED, "noise_schedule": "validation:s0=6,k=0.8,m=1,delta=0.02,period=1,look=20"}


POISSON = {
    **BASE,
    "epsilon": 3.0,
    "epochs": 8,
    "noise_schedule": "validation:s0=3,k=0.8,m=1,delta=0.5,period=1,every=2,look=20",
}


FIXED = {**POISSON, "sampling": "fixed", "epsilon": 6.0}


FALLING = "validation:s0=6,k=0.8,m=1,delta=999,period=1"
"""No look rises by as much, with noise or without: the noise falls at every look, whatever is seen."""


KINDS = {"public reshuffled": PUBLIC, "private reshuffled": PRIVATE, "private poisson": POISSON, "private fixed": FIXED}


class Killed(BaseException):
    """The end of a process: nothing is saved after it."""


def network(width: int = 9) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, 2))


def run(out: Path | None, *, data=(FEATURES, LABELS), model: nn.Module | None = None, **settings):
    return fit(network() if model is None else model, data, out=out, **settings)


def kill_at(step: int):
    def watch(status) -> None:
        if status.step == step:
            raise Killed

    return watch


def stop_at(step: int):
    return lambda status: os.kill(os.getpid(), signal.SIGINT) if status.step == step else None


def charges(folder: Path) -> dict:
    return read_ledger(folder / "ledger.jsonl").charges


def looks_charged(folder: Path) -> int:
    return sum(count for event, count in charges(folder).items() if isinstance(event, GaussianRelease))


def failed(folder: Path) -> set[str]:
    return {check.name for check in verify_run(RunFolder.open(folder)) if not check.passed}


def same_models(one: Path, other: Path) -> bool:
    first, second = (RunFolder.open(each).load_model_tensors() for each in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that nobody interrupted, by kind, each made once."""
    folder, made = tmp_path_factory.mktemp("whole"), {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = folder / kind.replace(" ", "-")
            run(made[kind], seed=5, **KINDS[kind])
        return made[kind]

    return get


# Resume -----------------------------------------------------------------------------------------------------------


ENDS = {
    "within an epoch": [(kill_at, 7), (stop_at, 12)],
    "just after a look": [(kill_at, 10), (stop_at, 15)],
    "killed twice": [(stop_at, 10), (kill_at, 11), (kill_at, 14)],
    "around a look": [(stop_at, 9), (stop_at, 10), (stop_at, 11)],
}


INTERRUPTED = [
    *(("private reshuffled", ends) for ends in ENDS),
    ("public reshuffled", "around a look"),
    ("private poisson", "killed twice"),
    ("private poisson", "around a look"),
    ("private fixed", "just after a look"),
]
