"""What the tests of dpopt share."""

from __future__ import annotations

from dataclasses import replace

import torch
from clip_texts import rule_of
from hypothesis import strategies as st
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.audit import neighbour_replay
from adadp.app.losses import cross_entropy
from adadp.lab.methods.dpopt import DpOpt
from adadp.ledger import PlannedBudget

METHOD = DpOpt(start=3, memory=0.8, lowest=0.1, highest=10.0)


RAW = replace(METHOD, source="raw")


PROJECTED = replace(METHOD, solver="projected")


QUANTILE = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"


SEED = 11


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 2))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 3, 3)), nn.Conv2d(1, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))


BUILD = {"mlp": mlp, "cnn": cnn}


def made(name: str = "mlp") -> nn.Module:
    torch.manual_seed(3)
    return BUILD[name]()


def numbers(records: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns of very different sizes. The last number is 0 for all records but the last, which has only that."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(records, 9, generator=generator) * 10 ** torch.linspace(-2, 1, 9)
    y = (x[:, :8].sum(1) > 0).long()
    x[:, 8], x[-1] = 0, 0
    x[-1, 8] = 5
    return x, y


def started(
    folder, model, data, method=METHOD, *, rule="flat:0.5", batch_size=None, planned=None, noise_multiplier=1.0, **more
):
    records = len(data[0]) if planned is None else planned
    plan = Plan.of_noise(
        noise=noise_multiplier, steps=50, records=records, batch_size=batch_size or records, clip_norm=rule_of(rule)
    )
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    ledger = Ledger.create(path, budget=PlannedBudget(plan.event()))
    more = {"allow_nonprivate": method.not_private is not None} | more
    return PrivateGradients(model, data, cross_entropy, plan, ledger, method=method, seed=SEED, **more)


def flat(tensors) -> torch.Tensor:
    return torch.cat([each.detach().double().reshape(-1) for each in tensors.values()])


def steps_of(private: PrivateGradients, count: int, lr: float = 0.1) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(private.model.parameters(), lr=lr)
    released = []
    for _ in range(count):
        released.append(flat(private.release()))
        optimizer.step()
    return released


# Scales -----------------------------------------------------------------------------------------------------------

LAYERS = {
    "weight": ((4, 3), (1, 3)),
    "bias": ((4,), (1,)),
    "conv": ((2, 2, 2, 2), (1, 2, 2, 2)),
    "table": ((5, 2), (5, 1)),
    "scalar": ((), ()),
}
"""Name -> shape of the parameter, shape of its scales."""


def drawn(seed: int, layers=LAYERS, *, steady: float = 1.0, noise: float = 0.0) -> dict[str, torch.Tensor]:
    """In every column something that stays, something that changes, each of a size of its own, and noise."""
    fixed, fresh = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed + 1)
    found = {}
    for name, (shape, columns) in layers.items():
        sizes = [torch.exp(torch.randn(columns, generator=fixed)) for _ in range(2)]
        stays, changes, rest = (torch.randn(shape, generator=each) for each in (fixed, fresh, fresh))
        found[name] = (steady * sizes[0] * stays + sizes[1] * changes + noise * rest).double()
    return found


OPTIONS = st.builds(
    DpOpt,
    memory=st.floats(0, 0.999),
    start=st.integers(1, 4),
    lowest=st.floats(0.05, 0.95),
    highest=st.floats(1.05, 20),
    solver=st.sampled_from(["closed", "projected"]),
)


# Privacy ----------------------------------------------------------------------------------------------------------


def replay(folder, name="mlp", *, rule="flat:0.5", method=METHOD, records=60, lr=0.1, noise_multiplier=5.0, kept=None):
    """All records in every batch, with and without the last one, which is alone with what it has.

    The others have one label, so that their gradients add up.
    """

    def runner(cut):
        def run(count, mechanism):
            data = numbers(records)[0][:cut], (torch.arange(records) < records - 1).long()[:cut]
            options = {
                "rule": rule,
                "planned": records,
                "batch_size": records,
                "noise_multiplier": noise_multiplier,
                "mechanism": mechanism,
            }
            private = started(folder, made(name), data, method, **options)
            for _ in range(count):
                steps_of(private, 1, lr)
                if kept is not None:
                    kept.append(private.query.tensors())

        return run

    return neighbour_replay(runner(records), runner(records - 1), 10)
