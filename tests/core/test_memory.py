"""How much memory a step of a large layer needs beside the model: counted allocation by allocation."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adadp.noise import gaussian
from adadp.plan import Plan
from adadp.step import PrivateGradients

WIDTH, RECORDS = 1500, 40
SMALL = 1 << 20
"""Bytes of tensors that are not counted: activations."""


class Allocated(TorchDispatchMode):
    """Counts the bytes of large tensors that are made inside and are still alive."""

    def __init__(self, before):
        super().__init__()
        self.known = {value.untyped_storage()._cdata for value in before}
        self.live, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                key = storage._cdata
                if storage.nbytes() > SMALL and key not in self.known and key not in self.live:
                    self.live[key] = storage.nbytes()
                    weakref.finalize(storage, self.live.pop, key)
                    self.peak = max(self.peak, sum(self.live.values()))
        return output


@pytest.mark.slow
def test_sums_and_noise_need_nothing_large_beside_the_gradient(tmp_path, monkeypatch):
    monkeypatch.setattr(gaussian, "_BLOCK", 1 << 14)  # noise is made in blocks, whose size is not what is measured
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    data = torch.randn(RECORDS, WIDTH), torch.arange(RECORDS) % 2
    plan = Plan.of_noise(noise=1.0, records=RECORDS, batch_size=10, steps=5, clip_norm=1.0)

    def losses(model, x, y):
        return F.cross_entropy(model(x), y, reduction="none")

    with PrivateGradients(model, data, losses, plan, tmp_path / "ledger", seed=0) as private:
        private.release()  # its check of single records is not what is measured
        model.zero_grad()
        private._checks = lambda step: False
        with Allocated(model.parameters()) as allocated:
            private.release()
    gradient = 4 * WIDTH**2  # of the layer that is not small
    assert gradient <= allocated.peak <= gradient + 2 * SMALL
