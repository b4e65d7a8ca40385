"""A whole private step on "cuda" without one: fake tensors have shapes and devices and no numbers.

Mixing devices raises, and so does reading a number: what runs here waits for the device nowhere but in the one function
that is replaced, ``gaussian.farthest``. The engine is built on the processor, because its proof reads numbers.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from cuda_guard import install_guard
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from adadp.app.texts.clip_rules import parse_clip_rule
from adadp.app.texts.methods import parse_method
from adadp.gradients.inspection import trained_parameters
from adadp.noise import gaussian
from adadp.plan import Plan
from adadp.randomness import RandomSource
from adadp.step import PrivateGradients

RECORDS = 40
CUDA = torch.device("cuda:0")
"""With its number: torch asks the driver for the number of a device without one."""


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 3)

    def forward(self, tokens):
        return self.out(self.table(tokens).mean(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.positions = nn.Parameter(torch.randn(6, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.out(self.layer(self.table(tokens) + self.positions).mean(1))


def made(name):
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (RECORDS,))
    if name == "mlp":
        return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), (torch.randn(RECORDS, 5), labels)
    if name == "cnn":
        layers = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
        return nn.Sequential(*layers), (torch.randn(RECORDS, 1, 8, 8), labels)
    tokens = torch.randint(0, 20, (RECORDS, 6))
    return (Words() if name == "words" else Transformer()), (tokens, labels)


def losses(model, values, labels):
    return F.cross_entropy(model(values), labels, reduction="none")


class Copies(TorchDispatchMode):
    """Counts what is copied from the device to the processor: each copy waits for it, and fake tensors allow it."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        given = [each for each in args if isinstance(each, torch.Tensor)]
        results = output if isinstance(output, (tuple, list)) else [output]
        down = any(isinstance(each, torch.Tensor) and each.device.type == "cpu" for each in results)
        if down and any(each.device.type == "cuda" for each in given):
            self.found.append(str(func))
        return output


def moved(private, mode):
    """``private`` with its model, engine and query on the device that is not there."""
    with mode:
        for module in private.model.modules():
            for name, value in module._parameters.items():
                if value is not None:
                    module._parameters[name] = nn.Parameter(torch.empty(value.shape, device=CUDA))
    private._engine._parameters = trained_parameters(private.model)
    private._device = CUDA


def on_the_processor(function):
    def run(*args, **kwargs):
        with _disable_current_modes():
            return function(*args, **kwargs)

    return run


@pytest.fixture(autouse=True)
def autograd_on_cuda(monkeypatch):
    """A torch that was built without CUDA has no streams of it, on which autograd runs a backward pass. There the
    gradients are made of what the graph says of them: shape, dtype and device. All of AdaDP's own code runs.
    """

    def grad(_, edges, **__):
        found = [edge.node._input_metadata[edge.output_nr] for edge in edges]
        return tuple(torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in found)

    install_guard()
    run = torch.autograd.grad
    if not torch.cuda._is_compiled():

        def on_cuda(outputs, *rest, **more):
            return (grad if outputs.device.type == "cuda" else run)(outputs, *rest, **more)

        monkeypatch.setattr(torch.autograd, "grad", on_cuda)


def fake_step(monkeypatch, tmp_path, name, method="dpsgd", rule="flat:1", optimizer=torch.optim.SGD, steps=2):
    model, data = made(name)
    method = parse_method(method)
    plan = Plan.of_noise(noise=1.0, records=RECORDS, batch_size=12, steps=5, clip_norm=parse_clip_rule(rule))
    private = PrivateGradients(
        model, data, losses, plan, tmp_path / "ledger", method=method, seed=1, chunk_size=5, allow_nonprivate=True
    )
    mode, copies, reads = FakeTensorMode(), Copies(), []
    moved(private, mode)
    gathered = on_the_processor(private._tensors)

    def tensors(chunk, group):
        private._device = torch.device("cpu")
        batch, empty = gathered(chunk, group)
        private._device = CUDA
        return tuple(mode.from_tensor(leaf).to(CUDA) for leaf in batch), mode.from_tensor(empty)

    private._tensors = tensors
    private.batches.batch = on_the_processor(private.batches.batch)
    private._to_rows = on_the_processor(private._to_rows)
    private._checks = lambda step: False  # the comparison with single records reads numbers, in one of fifty steps
    private._engine.captures = with_one_capture(private)
    monkeypatch.setattr(RandomSource, "random_layers", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr("adadp.step.without_text", lambda _: contextlib.nullcontext())  # there is nothing to hide
    monkeypatch.setattr(gaussian, "farthest", lambda ends: reads.append(len(ends)) or 0.0)
    with mode, copies:
        private.query = method.query(private._engine, plan.clip_rule, plan.batch_size)
        stepping = optimizer(private.model.parameters(), lr=0.1)
        for _ in range(steps):
            released = private.release()
            stepping.step()
    private.close()
    assert {value.device.type for value in released.values()} == {"cuda"}
    assert {value.grad.device.type for value in private.model.parameters()} == {"cuda"}
    assert released.keys() == dict(private.model.named_parameters()).keys()
    assert copies.found == []
    assert len(reads) == steps
    return private


def with_one_capture(private):
    """``captures`` without ``nonzero`` of the padding, which is on the processor in a real run and fake here."""
    engine = private._engine

    def captures(batch, padding, *, checked=False):
        captured = engine.capture(batch)
        captured.padding = padding.to(CUDA)
        yield captured

    return captures


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "words", "transformer"])
def test_a_step_of_every_kind_of_model(monkeypatch, tmp_path, name):
    fake_step(monkeypatch, tmp_path, name)


@pytest.mark.parametrize("rule", ["per-layer:1", "per-layer-joint:1", "automatic:1"])
def test_a_step_of_every_clip_rule(monkeypatch, tmp_path, rule):
    fake_step(monkeypatch, tmp_path, "mlp", rule=rule)


@pytest.mark.parametrize("method", ["adadp", "dpsgd-momentum"])
def test_a_step_of_methods(monkeypatch, tmp_path, method):
    fake_step(monkeypatch, tmp_path, "words", method=method)


def test_a_step_of_adam(monkeypatch, tmp_path):
    fake_step(monkeypatch, tmp_path, "mlp", optimizer=torch.optim.Adam)


def test_a_wait_is_seen(monkeypatch, tmp_path):
    """The broken twin: a clip rule that asks for a norm."""
    from adadp.clipping.flat import Flat

    weights = Flat.weights
    monkeypatch.setattr(Flat, "weights", lambda self, norms, state: weights(self, norms * float(norms.max()), state))
    with pytest.raises(DataDependentOutputException):
        fake_step(monkeypatch, tmp_path, "mlp")


def test_a_mix_of_devices_is_seen(monkeypatch, tmp_path):
    from adadp.clipping.flat import Flat

    weights = Flat.weights
    monkeypatch.setattr(Flat, "weights", lambda self, norms, state: weights(self, norms, state) * torch.ones(5, 1))
    with pytest.raises(Exception, match="device"):
        fake_step(monkeypatch, tmp_path, "mlp")
