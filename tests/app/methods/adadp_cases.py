"""What the tests of adadp share."""

from __future__ import annotations

import torch
from clip_texts import rule_of
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.losses import cross_entropy
from adadp.app.methods.adadp import AdaDp
from adadp.app.zoo import load
from adadp.ledger import PlannedBudget

METHOD = AdaDp(power=0.5, start=3)


SEED = 11


QUANTILE = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"


class Generic(nn.Module):
    """A recurrent layer and a function of a parameter that no rule knows: both go the generic way."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(1, 3, batch_first=True)
        self.slope = nn.Parameter(torch.tensor(0.3))
        self.out = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x.unsqueeze(2))[0][:, -1]
        return self.out(torch.cat([torch.tanh(self.slope * x), h], 1))


class Tied(nn.Module):
    """One matrix looked up as a table of words and multiplied as the last layer, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.twice = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.twice(torch.tanh(self.twice(self.table(x).mean(1)))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 2))


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    model[2].requires_grad_(False)
    model[4].bias.requires_grad_(False)
    return model


def cnn() -> nn.Module:
    conv, norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
    return nn.Sequential(conv, norm, nn.Tanh(), nn.Conv2d(4, 3, 3, stride=2), nn.Flatten(), nn.Linear(12, 3))


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(15, 2))


def numbers(records: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Records of the cancer data. The last number is 0 for all of them but the last record, which has only that."""
    x, y = (each[:records].clone() for each in load("cancer").train)
    x[:, 8], x[-1] = 0, 0
    x[-1, 8] = 20
    return x, y


def pictures(records: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The second channel is black in all pictures but the last, the first channel in that one."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(records, 2, 6, 6, generator=generator)
    x[:-1, 1], x[-1, 0] = 0, 0
    return x, torch.randint(0, 3, (records,), generator=generator)


def sentences(records: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Only the last record has the word 6, and no other."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randint(0, 6, (records, 3), generator=generator)
    x[-1] = 6
    return x, torch.randint(0, 2, (records,), generator=generator)


MODELS = {
    "mlp": (mlp, numbers),
    "cnn": (cnn, pictures),
    "words": (words, sentences),
    "generic": (Generic, numbers),
    "tied": (Tied, sentences),
    "frozen": (frozen, numbers),
}


def made(name: str, records: int = 40):
    """A model, always the same, and its data."""
    build, data = MODELS[name]
    torch.manual_seed(3)
    return build(), data(records)


def started(
    folder,
    model,
    data,
    method=METHOD,
    *,
    rule="flat:0.5",
    batch_size=None,
    planned=None,
    noise_multiplier=1.0,
    steps=50,
    **more,
):
    records = len(data[0]) if planned is None else planned
    plan = Plan.of_noise(
        noise=noise_multiplier, steps=steps, records=records, batch_size=batch_size or records, clip_norm=rule_of(rule)
    )
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    ledger = Ledger.create(path, budget=PlannedBudget(plan.event()))
    return PrivateGradients(model, data, cross_entropy, plan, ledger, method=method, seed=SEED, **more)


def steps_of(private: PrivateGradients, count: int, lr: float = 0.1) -> list[torch.Tensor]:
    """What ``count`` steps of plain descent released."""
    optimizer = torch.optim.SGD([each for each in private.model.parameters() if each.requires_grad], lr=lr)
    released = []
    for _ in range(count):
        released.append(flat(private.release()))
        optimizer.step()
    return released


def flat(tensors) -> torch.Tensor:
    return torch.cat([each.detach().double().reshape(-1) for each in tensors.values()])


def inverse_of(private: PrivateGradients) -> dict[str, torch.Tensor]:
    """1 / k by parameter, as a checkpoint would keep it."""
    tensors = private.query.tensors()
    return {name.removeprefix("inverse/"): each for name, each in tensors.items() if name.startswith("inverse/")}
