import pytest
import torch

from adadp.gradients import boxes


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def without_compiler(request, monkeypatch):
    """Compiling takes seconds and is tested on its own."""
    if "compiled" not in request.fixturenames:
        monkeypatch.setattr(boxes, "_compiled_kernel", lambda: None)


@pytest.fixture
def compiled():
    """Asks for the compiled kernel."""
