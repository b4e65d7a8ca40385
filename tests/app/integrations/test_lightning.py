"""Lightning's Trainer, with automatic optimisation."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("lightning")

from adadp.app.verify import verify_run  # noqa: E402
from adadp.errors import InputError  # noqa: E402
from adadp.integrations.lightning import Private  # noqa: E402
from adadp.ledger import read_ledger  # noqa: E402


class Net(lightning.LightningModule):
    def __init__(self, *, logs=False, mean=False):
        super().__init__()
        self.layer, self.logs, self.mean = nn.Linear(4, 2), logs, mean

    def training_step(self, batch, batch_idx):
        x, y = batch
        losses = F.cross_entropy(self.layer(x), y, reduction="mean" if self.mean else "none")
        if self.logs:
            self.log("train_loss", losses.mean())
        return losses

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("right", (self.layer(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.5)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def loader(records=200, seed=0):
    x = torch.randn(records, 4, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=50)


def callback(folder, **settings):
    return Private(loader(), folder, **({"epsilon": 2, "delta": 1e-4} | settings))


def trainer(folder, *callbacks, **settings):
    usual = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    usual |= {"enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": folder}
    return lightning.Trainer(callbacks=list(callbacks), **(usual | settings))


def failed(folder):
    return [f"{check.name}: {check.detail}" for check in verify_run(folder) if not check.passed]


def test_a_fit_leaves_a_certified_run(tmp_path):
    private, net = callback(tmp_path / "run", record="one visit"), Net()
    before = net.layer.weight.detach().clone()
    leader = trainer(tmp_path, private)
    leader.fit(net, private.batches, loader(40, seed=1))
    assert failed(tmp_path / "run") == []
    stated = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert 1.9 < stated["epsilon"] <= 2
    assert (stated["steps_done"], stated["record"], leader.global_step) == (8, "one visit", 8)
    assert not torch.equal(before, net.layer.weight)
    assert {*leader.callback_metrics} == {"right", "epsilon"}
    assert leader.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.125)
    assert "training_step" not in vars(net)
    assert "log" not in vars(net)


def test_a_step_is_the_mean_of_clipped_gradients(tmp_path):
    """All records in the batch, and an epsilon so large that the noise is nothing: the step is known."""
    everything, net = DataLoader(loader().dataset, batch_size=200), Net()
    private = Private(everything, tmp_path / "run", epsilon=1e9, delta=1e-4, clip_norm=0.1)
    ((x, y),) = everything
    before = net.layer.weight.detach().clone()
    one_hot = F.one_hot(y, 2) - net.layer(x).softmax(1).detach()
    weights = -one_hot.unsqueeze(2) * x.unsqueeze(1)  # of cross-entropy, by record
    norms = torch.sqrt((weights**2).sum((1, 2)) + (one_hot**2).sum(1))
    expected = (weights * (0.1 / norms).clamp(max=1)[:, None, None]).mean(0)
    trainer(tmp_path, private, max_epochs=1).fit(net, private.batches)
    torch.testing.assert_close(before - net.layer.weight.detach(), 0.5 * expected, rtol=0.01, atol=1e-5)


def test_a_log_of_private_values_is_refused_before_anything_is_charged(tmp_path):
    private = callback(tmp_path / "run")
    with pytest.raises(InputError, match="a log is a release without noise"):
        trainer(tmp_path, private).fit(Net(logs=True), private.batches)
    assert not (tmp_path / "run").exists()


def test_a_mean_loss_is_refused_before_anything_is_charged(tmp_path):
    private = callback(tmp_path / "run")
    with pytest.raises(InputError, match=r"per record|each record|one loss"):
        trainer(tmp_path, private).fit(Net(mean=True), private.batches)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches"),
        ({"precision": "bf16-mixed"}, "precision bf16-mixed"),
        ({"max_epochs": -1}, "without an end"),
    ],
)
def test_what_it_cannot_do_is_refused(tmp_path, settings, said):
    private = callback(tmp_path / "run")
    with pytest.raises(InputError, match=said):
        trainer(tmp_path, private, **settings).fit(Net(), private.batches)
    assert not (tmp_path / "run").exists()


def test_other_batches_are_refused(tmp_path):
    """The user's own loader would hand private batches to every callback."""
    private = callback(tmp_path / "run")
    with pytest.raises(InputError, match=r"pass private\.batches"):
        trainer(tmp_path, private).fit(Net(), loader())


@pytest.mark.slow
def test_a_stopped_fit_goes_on_with_its_ledger(tmp_path):
    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 6:
                raise RuntimeError("power cut")

    private = callback(tmp_path / "run")
    keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "kept", every_n_epochs=1, save_on_train_epoch_end=True)
    with pytest.raises(RuntimeError, match="power cut"):
        trainer(tmp_path, private, keep, Stop(), enable_checkpointing=True).fit(Net(), private.batches)
    private = callback(tmp_path / "run")
    trainer(tmp_path, private).fit(Net(), private.batches, ckpt_path=tmp_path / "kept.ckpt")
    assert failed(tmp_path / "run") == []
    stated = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert (stated["steps_done"], stated["steps_lost"]) == (6, 2)  # two steps after the checkpoint were paid and lost
    assert sum(read_ledger(tmp_path / "run" / "ledger.jsonl").charges.values()) == 8
