"""ADADP as published: against a slow transcription of Algorithm 1, why it is not private, and what is certified."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from published_cases import (
    CLIP,
    LOT,
    READINGS,
    SEED,
    SIGMA,
    flat,
    linear,
    mlp,
    only_one_record_has_it,
    pictures,
    started,
)
from torch import nn

from adadp.app.optimizers.adaptive_rate import AdaptiveRate
from adadp.app.runs.optimizer_state import flatten_optimizer, restore_optimizer
from adadp.app.texts.methods import METHODS, parse_method
from adadp.lab.methods import clamped
from adadp.lab.methods.published import AdadpPublished, Adal, Adan
from adadp.randomness import SeededSource

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    """Compiling takes seconds, and has tests of its own."""
    monkeypatch.setattr(clamped, "_compiled_kernel", lambda: None)


def cnn() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)).double()


class Transcription:
    """Algorithm 1 of Xu et al. 2020, one line after another and one record after another.

    The batches are given and the noise is that of the seed. ``opened`` keeps which branch of line 7 every step took.
    """

    beta, keep, gamma, eps0 = 1.2, 0.9, 0.1, 1e-8

    def __init__(self, model, data, reading, rate, threshold):
        self.model, self.data, self.reading, self.rate, self.threshold = model, data, reading, rate, threshold
        named = list(model.named_parameters())
        self.m = sum(value.numel() for _, value in named)
        counts = {}
        for name, value in named:
            counts[name.split(".")[0]] = counts.get(name.split(".")[0], 0) + value.numel()
        sizes = [torch.full((value.numel(),), float(counts[name.split(".")[0]])) for name, value in named]
        self.sizes = torch.cat(sizes).double() if reading["size"] == "layer" else torch.full((self.m,), float(self.m))
        self.e = torch.zeros(self.m, dtype=torch.float64)
        self.e_prime = torch.zeros(self.m, dtype=torch.float64)
        self.opened = []

    def gradient(self, record):
        loss = F.cross_entropy(self.model(self.data[0][record : record + 1]), self.data[1][record : record + 1])
        return flat(torch.autograd.grad(loss, list(self.model.parameters())))

    def release(self, t, batch):
        """The released gradient, and the deviation of its noise in every coordinate."""
        gradients = [self.gradient(record) for record in batch.tolist()]  # lines 4 and 5
        raw = sum(gradients, torch.zeros(self.m, dtype=torch.float64))
        mean = raw / LOT
        judged = self.e_prime.sqrt() if self.reading["gate"] == "sqrt" else self.e_prime
        self.opened.append(bool(((judged - judged.mean()) ** 2).mean() > self.threshold))  # line 7
        if self.opened[-1]:
            s = self.beta * self.e_prime.sqrt()  # line 9
            if self.reading["clip"] == "example":  # line 10
                clipped = sum(torch.minimum(torch.maximum(g, -s), s) for g in gradients)
            else:
                clipped = LOT * torch.minimum(torch.maximum(mean, -s), s)
            deviation = self.beta * SIGMA * (self.sizes * self.e_prime).sqrt()  # line 12
        else:
            if self.reading["clip"] == "example":  # line 16
                clipped = sum(g / max(1.0, float(g.norm()) / CLIP) for g in gradients)
            else:
                clipped = LOT * mean / max(1.0, float(mean.norm()) / CLIP)
            deviation = torch.full((self.m,), CLIP * SIGMA)
        noise = SeededSource(SEED).normal(self.m, purpose="noise", step=t)
        noisy = (clipped + deviation * noise) / LOT  # lines 13 and 18
        squares = sum(g**2 for g in gradients) / LOT if "mean-of" in self.reading["square"] else (raw / LOT) ** 2
        self.e_prime = self.keep * self.e_prime + (1 - self.keep) * squares  # line 23
        return noisy, deviation / LOT

    @torch.no_grad()
    def move(self, noisy):
        self.e = (1 - self.gamma) * self.e + self.gamma * noisy**2  # line 22
        by = -self.rate * noisy / (self.e + self.eps0).sqrt()  # lines 25 and 26
        parameters = list(self.model.parameters())
        for value, part in zip(parameters, by.split([each.numel() for each in parameters]), strict=True):
            value.add_(part.view(value.shape))


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: ",".join(reading.values()))
@pytest.mark.parametrize("build", [mlp, cnn])
def test_every_reading_is_algorithm_1_line_by_line(tmp_path, build, reading):
    """Batches of changing size, in chunks. Both move by what was released: a coordinate near 0 moves by up to
    rate / sqrt(eps0) = 100 times its release, and so would the rounding of a release of each one's own.
    """
    data, model = pictures(), build()
    threshold = 1e-6 if reading["gate"] == "sqrt" else 1e-9
    twin = Transcription(copy.deepcopy(model), data, reading, 0.01, threshold)
    private = started(tmp_path, model, data, AdadpPublished(**reading, threshold=threshold), chunk_size=5)
    optimizer = AdaptiveRate(model.parameters(), 0.01)
    for t in range(6):
        wanted, deviation = twin.release(t, private.batches.batch(t))
        released = flat(private.release().values())
        assert ((released - wanted).abs() <= 2e-4 * (deviation + wanted.abs())).all()
        optimizer.step()
        twin.move(released)
        torch.testing.assert_close(flat(private.query.tensors().values()), twin.e_prime, rtol=1e-9, atol=1e-15)
        torch.testing.assert_close(flat(model.parameters()), flat(twin.model.parameters()), rtol=1e-6, atol=1e-6)
    assert twin.opened[0] is False
    assert twin.opened[-1] is True


@pytest.mark.parametrize("clip", ["example", "batch"])
def test_other_clip_rules_rule_while_the_gate_is_closed(tmp_path, clip):
    """per-layer:0.2: each layer of each gradient, or of the mean, is clipped on its own; the joint bound is noised."""
    data, model = pictures(), mlp()
    twin = Transcription(copy.deepcopy(model), data, READINGS[0], 0.01, 1e9)
    method = AdadpPublished(clip=clip, threshold=1e9)
    private = started(tmp_path, model, data, method, rule="per-layer:0.2", noise_multiplier=1e-6)
    batch = private.batches.batch(0)
    sizes = [36 * 7 + 7, 7 * 3 + 3]

    def clipped(vector):
        return torch.cat([part / max(1.0, float(part.norm()) / 0.2) for part in vector.split(sizes)])

    gradients = [twin.gradient(record) for record in batch.tolist()]
    wanted = sum(clipped(each) for each in gradients) / LOT if clip == "example" else clipped(sum(gradients) / LOT)
    torch.testing.assert_close(flat(private.release().values()), wanted, rtol=1e-3, atol=1e-6)
    assert private.query.l2_bounds() == {"noise": pytest.approx(0.2 * math.sqrt(2))}


@pytest.mark.parametrize("gate", ["sqrt", "moment"])
def test_the_gate_opens_above_the_threshold_and_not_at_it(tmp_path, gate):
    """The variance is that over all coordinates of the model, not an estimate of one and not a deviation."""
    private = started(tmp_path, mlp(), pictures(), AdadpPublished(gate=gate, threshold=1e9))
    private.release()
    squares = flat(private.query.tensors().values())
    variance = float((squares.sqrt() if gate == "sqrt" else squares).var(correction=0))
    opened = {}
    for share in (0.999, 1.001):
        method = AdadpPublished(gate=gate, threshold=share * variance)
        other = started(tmp_path, mlp(), pictures(), method)
        other.release()
        opened[share] = other.query.l2_bounds() != {"noise": CLIP}
    assert opened == {0.999: True, 1.001: False}


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: ",".join(reading.values()))
def test_one_look_at_a_release_tells_whether_a_record_is_there(tmp_path, reading):
    """The counter-example: a coordinate is released as exactly 0 without the record, and with noise with it."""
    data = only_one_record_has_it()
    seen = {}
    for name, neighbour in (("with", data), ("without", tuple(each[:-1] for each in data))):
        # Every record is in every batch: what differs is the record alone.
        private = started(tmp_path, linear(), neighbour, AdadpPublished(**reading), batch_size=39, planned=39)
        seen[name] = [private.release()["weight"] for _ in range(3)]
    for with_it, without in zip(seen["with"][1:], seen["without"][1:], strict=True):
        assert (without[:, 8] == 0).all()
        assert (with_it[:, 8] != 0).all()
        assert (without[:, :8] != 0).all()


@pytest.mark.parametrize("method", ["dpsgd", "adal", "adan:source=released", "adadp"])
def test_private_methods_pass_the_same_look(tmp_path, method):
    data = tuple(each[:-1] for each in only_one_record_has_it())
    private = started(tmp_path, linear(), data, parse_method(method), batch_size=39)
    assert all((private.release()["weight"][:, 8] != 0).all() for _ in range(3))


def test_the_reasons_are_said():
    assert "never released" in AdadpPublished().not_private
    assert "batch_size" not in AdadpPublished().not_private
    assert "factor of the batch size" in AdadpPublished(clip="batch").not_private
    assert "sqrt(K)" in AdadpPublished(size="layer").not_private
    assert Adan().not_private == AdadpPublished().not_private
    assert [parse_method(text).not_private for text in ("adal", "adan:source=released")] == [None, None]


# ADAL and ADAN ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [("adal", "dpsgd"), ("adan:source=released", "adadp"), ("adan", "adadp-published")],
)
def test_the_halves_release_what_their_whole_releases(tmp_path, one, other):
    data = pictures()
    released = []
    for text in (one, other):
        model = mlp()
        private = started(tmp_path, model, data, parse_method(text))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(25):
            released.append(flat(private.release().values()))
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(released[:25], released[25:], strict=True))


def test_defaults_are_those_of_the_paper():
    kinds = (AdadpPublished, Adal, Adan)
    found = [(kind.defaults.optimizer, kind.defaults.lr, kind.defaults.clip_norm) for kind in kinds]
    assert found == [("rms", 0.002, 4.0), ("rms", 0.001, 4.0), ("sgd", 0.1, 4.0)]
    assert (METHODS["dpsgd"].defaults.optimizer, METHODS["dpsgd"].defaults.lr) == (None, None)


# Checkpoints, options and edges -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["adadp-published", "adadp-published:clip=batch,square=square-of-mean", "adan", "adal"]
)
def test_a_run_goes_on_bit_for_bit(tmp_path, text):
    data, model = pictures(), mlp()
    private = started(tmp_path, model, data, parse_method(text))
    optimizer = AdaptiveRate(model.parameters(), 0.01)

    def steps(count):
        for _ in range(count):
            private.release()
            optimizer.step()

    steps(3)
    state, parameters = copy.deepcopy(private.state()), copy.deepcopy(model.state_dict())
    tensors, json = flatten_optimizer(optimizer)
    tensors = {name: value.clone() for name, value in tensors.items()}
    steps(3)
    wanted, kept = flat(model.parameters()), flat(private.state()["method"].values()) if "adal" not in text else None

    model = mlp()
    model.load_state_dict(parameters)
    private = started(tmp_path, model, data, parse_method(text))
    private.restore(state)
    optimizer = AdaptiveRate(model.parameters(), 0.01)
    restore_optimizer(optimizer, tensors, json)
    steps(3)
    assert torch.equal(flat(model.parameters()), wanted)
    assert kept is None or torch.equal(flat(private.state()["method"].values()), kept)
