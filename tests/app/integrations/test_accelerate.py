"""A loop led by accelerate."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerate = pytest.importorskip("accelerate")

from adadp.app.verify import verify_run  # noqa: E402
from adadp.errors import BudgetExceeded, InputError, LedgerError  # noqa: E402
from adadp.integrations.accelerate import prepare  # noqa: E402


def loss(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def loader(**settings):
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), **({"batch_size": 50, "shuffle": True} | settings))


def prepared(folder, *, accelerator=None, data=None, **settings):
    model = nn.Linear(4, 2)
    return prepare(
        accelerate.Accelerator(cpu=True) if accelerator is None else accelerator,
        model,
        torch.optim.SGD(model.parameters(), 0.5),
        loader() if data is None else data,
        loss,
        folder=folder,
        **({"epsilon": 2, "delta": 1e-4, "epochs": 2} | settings),
    )


def failed(folder):
    return [check.name for check in verify_run(folder) if not check.passed]


def test_a_loop_leaves_a_certified_run(tmp_path):
    model, optimizer, private = prepared(tmp_path / "run", clip_norm=0.5)
    before = model.weight.detach().clone()
    assert private.plan.steps == 8
    for _ in range(private.plan.steps):
        private.release()
        optimizer.step()
    with pytest.raises(BudgetExceeded):
        private.release()
    private.save(tmp_path / "run")
    assert failed(tmp_path / "run") == []
    assert not torch.equal(before, model.weight)
    stated = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert 1.9 < stated["epsilon"] <= 2
    assert stated["plan"]["clip_norm"] == "flat:0.5"


def test_a_stopped_loop_goes_on_with_its_ledger(tmp_path):
    _, _, private = prepared(tmp_path / "run")
    for _ in range(3):
        private.release()
    private.close()
    _, _, private = prepared(tmp_path / "run", resumed_at=2)
    for _ in range(5):
        private.release()
    with pytest.raises(BudgetExceeded):
        private.release()
    private.save(tmp_path / "run")
    stated = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert failed(tmp_path / "run") == []
    assert (stated["steps_done"], stated["steps_lost"]) == (7, 1)


@pytest.mark.slow
def test_only_the_same_run_is_resumed(tmp_path):
    _, _, private = prepared(tmp_path / "run")
    private.release()
    private.close()
    with pytest.raises(InputError, match="fewer steps than the checkpoint"):
        prepared(tmp_path / "run", resumed_at=2)
    with pytest.raises(InputError, match="other randomness"):
        prepared(tmp_path / "run", resumed_at=1, seed=3)
    with pytest.raises(LedgerError, match="created with the budget"):
        prepared(tmp_path / "run", resumed_at=1, epochs=3)
    with pytest.raises(LedgerError, match="already a file"):
        prepared(tmp_path / "run")


def test_a_seed_makes_a_rehearsal(tmp_path):
    _, _, private = prepared(tmp_path / "run", seed=1)
    private.release()
    private.save(tmp_path / "run")
    assert failed(tmp_path / "run") == []
    assert json.loads((tmp_path / "run" / "certificate.json").read_text())["rehearsal"]


def test_several_processes_are_refused(tmp_path):
    """What an accelerator of two processes says of itself; launching two takes longer than all other tests here."""
    two = SimpleNamespace(num_processes=2, gradient_accumulation_steps=1, mixed_precision="no")
    with pytest.raises(InputError, match="2 processes"):
        prepared(tmp_path / "run", accelerator=two)
    with pytest.raises(InputError, match="accumulates gradients"):
        prepared(tmp_path / "run", accelerator=accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (loader(batch_size=None), "batch sampler"),
        (loader(batch_size=500), "fewer training records"),
        ([1, 2], "DataLoader is meant"),
    ],
)
def test_loaders_that_cannot_be_sampled_are_refused(tmp_path, data, said):
    with pytest.raises(InputError, match=said):
        prepared(tmp_path / "run", data=data)
    assert not (tmp_path / "run").exists()
