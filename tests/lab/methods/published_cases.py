"""What the tests of published share."""

from __future__ import annotations

import itertools

import torch
from clip_texts import rule_of
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.losses import cross_entropy
from adadp.ledger import PlannedBudget

CLIP, SIGMA, RECORDS, LOT, SEED = 0.3, 0.5, 30, 12, 14


READINGS = [
    dict(zip(("clip", "square", "size", "gate"), reading, strict=True))
    for reading in itertools.product(
        ("example", "batch"), ("mean-of-squares", "square-of-mean"), ("model", "layer"), ("sqrt", "moment")
    )
]


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def pictures(records: int = RECORDS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(records, 1, 6, 6, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (records,), generator=generator)


def started(
    tmp_path,
    model,
    data,
    method,
    *,
    rule=f"flat:{CLIP}",
    batch_size=LOT,
    planned=None,
    noise_multiplier=SIGMA,
    **options,
):
    planned = len(data[0]) if planned is None else planned
    plan = Plan.of_noise(
        noise=noise_multiplier, steps=50, records=planned, batch_size=batch_size, clip_norm=rule_of(rule)
    )
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    ledger = Ledger.create(path, budget=PlannedBudget(plan.event()))
    return PrivateGradients(
        model, data, cross_entropy, plan, ledger, method=method, seed=SEED, allow_nonprivate=True, **options
    )


def flat(tensors) -> torch.Tensor:
    return torch.cat([each.detach().double().reshape(-1) for each in tensors])


# Why it is not private --------------------------------------------------------------------------------------------


def only_one_record_has_it() -> tuple[torch.Tensor, torch.Tensor]:
    """Forty records of nine numbers; the last number is 0 for all of them but the last record."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(40, 9, generator=generator)
    x[:, 8] = 0
    x[-1, 8] = 2
    return x, torch.randint(0, 2, (40,), generator=generator)


def linear() -> nn.Module:
    torch.manual_seed(7)
    return nn.Linear(9, 2)
