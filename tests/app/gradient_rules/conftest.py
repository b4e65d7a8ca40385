import pytest
import torch

from adadp.lab.methods import clamped


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    """The same numbers every time, and no compiler, which takes seconds and is tested on its own."""
    torch.manual_seed(0)
    monkeypatch.setattr(clamped, "_compiled_kernel", lambda: None)
