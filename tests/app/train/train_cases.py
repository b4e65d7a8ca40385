"""What the tests of train share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from adadp.app import zoo
from adadp.app.train import fit

CANCER = zoo.load("cancer")


FEATURES, LABELS = CANCER.train


TEST = CANCER.test


SETTINGS = {"noise_multiplier": 2.0, "delta": 1e-4, "steps": 6, "batch_size": 56, "lr": 0.5, "seed": 0}


QUICK = {"noise_multiplier": 0, "allow_nonprivate": True}
"""Without noise, for what has nothing to do with it: no accountant is asked."""


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(9, 2)


def run(model=None, data=(FEATURES, LABELS), **settings):
    return fit(small() if model is None else model, data, **{**SETTINGS, **settings})


def values(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.parameters()]


def of_dict(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
