"""What the tests of run folder share."""

from __future__ import annotations

import pytest
import torch

from adadp.app.config import TrainConfig
from adadp.app.runs import (
    RunFolder,
)

CONFIG = TrainConfig("mnist", noise_multiplier=1.1, delta=1e-5, seed=3)


HEAD = "ab" * 32


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", CONFIG)


def bits(tensor: torch.Tensor) -> tuple:
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return tensor.dtype, tuple(tensor.shape), bytes(plain.reshape(-1).view(torch.uint8).tolist())
