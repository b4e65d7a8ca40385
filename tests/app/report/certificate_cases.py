"""What the tests of certificate share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from adadp.app import zoo
from adadp.app.config import TrainConfig
from adadp.app.report.certificate import make_certificate
from adadp.app.runs import RunFolder
from adadp.app.spec import RunSpec
from adadp.app.train import fit, verify_run
from adadp.ledger import Ledger, PlannedBudget, read_ledger
from adadp.plan import Plan

DATA, TEST = zoo.load("cancer").train, zoo.load("cancer").test


SETTINGS = {"epsilon": 2.0, "delta": 1e-4, "steps": 10, "batch_size": 56, "lr": 0.5}


def trained(out: Path, **settings) -> RunFolder:
    torch.manual_seed(0)
    fit(nn.Linear(9, 2), DATA, test=TEST, out=out, **{**SETTINGS, **settings})
    return RunFolder.open(out)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("rehearsal") / "run", seed=7)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("original") / "run")


@pytest.fixture
def run(original, tmp_path) -> RunFolder:
    return RunFolder.open(shutil.copytree(original.path, tmp_path / "run"))


def failed(folder: RunFolder) -> set[str]:
    return {check.name for check in verify_run(RunFolder.open(folder.path)) if not check.passed}


def certificate_of(tmp_path: Path, *, charged: int = 0, noise: float = 2.0, **config) -> dict:
    plan = Plan.of_noise(noise=noise, records=560, batch_size=56, steps=10)
    with Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        for step in range(charged):
            ledger.charge(plan.charge_at(step))
    return make_certificate(
        spec=RunSpec.of(
            TrainConfig("python", **{"noise_multiplier": noise, "delta": 1e-4, "clip_norm": 1.0, **config})
        ),
        plan=plan,
        ledger=read_ledger(tmp_path / "ledger.jsonl"),
        randomness="secure",
        model={},
        steps_done=charged,
    )
