"""Runs of a small model that a test has made in several processes, and in one. What they return can be sent back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adadp.ledger import read_ledger
from adadp.methods import DpSgd
from adadp.plan import Plan
from adadp.step import PrivateGradients

RECORDS = 150


@dataclass(frozen=True)
class Case:
    """One run: ``settings`` are those of the plan."""

    steps: int = 4
    records: int = RECORDS
    batch_size: int = 30
    noise: float = 1.0
    arithmetic: str = "fast"
    seed: int | None = 7
    method: Any = field(default_factory=DpSgd)
    clip: Any = 1.0
    settings: tuple[tuple[str, Any], ...] = ()

    def plan(self) -> Plan:
        return Plan.of_noise(
            noise=self.noise,
            steps=self.steps,
            records=self.records,
            batch_size=self.batch_size,
            clip_norm=self.clip,
            **dict(self.settings),
        )


def records(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(count, 6, generator=generator)
    return values, (values[:, 0] > 0).long()


def network(rank: int) -> nn.Module:
    """A network that begins elsewhere in every process: the first one's parameters count."""
    generator = torch.Generator().manual_seed(100 + rank)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    with torch.no_grad():
        for each in model.parameters():
            each.normal_(generator=generator)
    return model


def cross_entropy(model: nn.Module, values: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(values), labels, reduction="none")


def private(rank: int, case: Case, folder: str, **given: Any) -> PrivateGradients:
    settings = {"method": case.method, "seed": case.seed, "arithmetic": case.arithmetic, "allow_nonprivate": True}
    data = given.pop("data", None) or records(case.records)
    ledger = str(Path(folder) / "ledger.jsonl")
    return PrivateGradients(network(rank), data, cross_entropy, case.plan(), ledger, **{**settings, **given})


@dataclass(frozen=True)
class Trained:
    """What is left of a run: lists, which travel between processes."""

    parameters: list[float]
    gradients: list[list[float]]
    charges: int
    head: str
    clip_state: dict[str, float]


def trained(rank: int, case: Case, folder: str) -> Trained:
    """Train, and say what came out."""
    gradients = []
    with private(rank, case, folder) as run:
        optimizer = torch.optim.SGD(run.model.parameters(), lr=0.5)
        for _ in range(case.steps):
            gradients.append(flat(run.release().values()).tolist())
            optimizer.step()
        parameters = flat(run.model.parameters()).tolist()
        return Trained(parameters, gradients, sum(run.ledger.charges.values()), run.ledger.head, dict(run.clip_state))


def flat(tensors: Any) -> Tensor:
    return torch.cat([each.detach().reshape(-1) for each in tensors])


def alone(case: Case, folder: Path) -> Trained:
    """The same in the process of the test."""
    folder.mkdir()
    return trained(0, case, str(folder))


def with_(case: Case, **changes: Any) -> Case:
    return replace(case, **changes)


def charged(folder: Path) -> int:
    return sum(read_ledger(folder / "ledger.jsonl").charges.values())
