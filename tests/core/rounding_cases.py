"""What the tests of rounding share."""

from __future__ import annotations

import math
from functools import cached_property

import torch
import torch.nn.functional as F
from clip_texts import rule_of
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.texts.methods import parse_method
from adadp.gradients import GradientEngine
from adadp.ledger import PlannedBudget
from adadp.noise import GaussianMechanism

QUANTILE = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"


def squares(model, x, y):
    return (model(x) - y).square().sum(1)


def entropy(model, x, y):
    return F.cross_entropy(model(x), y.argmax(1), reduction="none")


class Case:
    """A network with known weights, its loss, and how records abuse it."""

    def __init__(self, build, loss, shape, outputs):
        self.build, self.loss, self.shape, self.outputs = build, loss, shape, outputs

    def model(self):
        torch.manual_seed(0)
        return self.build()

    def records(self, kind, count):
        """``count`` records of a kind, the last of them an ordinary one of a large gradient."""
        generator = torch.Generator().manual_seed(count)
        x = torch.randn(count, *self.shape, generator=generator)
        y = torch.randn(count, self.outputs, generator=generator)
        if kind == "edge":
            x[:-1], y[:-1] = self.at_overflow, 0.0
        elif kind == "cancel":
            x[:-1] = self.unseen(x[:-1]) * self.sizes(7, 8, count - 1)
        elif kind == "corner":
            x[:-1] = self.on_corner()
        elif kind == "denormal":
            x[:-1] = x[:-1].sign() * 1e-42
        elif kind == "equal":
            x[:-1], y[:-1] = x[0].clone(), y[0].clone()
        elif kind == "huge":
            x[:-1] *= self.sizes(0, 38, count - 1)
        x[-1] *= 50
        y[-1] = -self.model()(x[-1:])[0].detach()
        return x, y

    def sizes(self, least, most, count):
        """Powers of ten, one for each of ``count`` records."""
        return torch.logspace(least, most, max(1, count))[:count].view(-1, *[1] * len(self.shape))

    @cached_property
    def at_overflow(self):
        """A record whose squared norm overflows in some rows of a batch and not in others, if there is one."""
        model = self.model()
        zeros = torch.zeros(64, self.outputs)
        engine = GradientEngine(model, self.loss, (torch.zeros(1, *self.shape), zeros[:1]))
        generator = torch.Generator().manual_seed(1)
        found = torch.randn(self.shape, generator=generator) * 1e9
        for _ in range(40):
            ray = torch.randn(self.shape, generator=generator)
            norm = engine.capture((1e9 * ray[None], zeros[:1])).square_norms([engine.names]).sqrt().item()
            if not 0 < norm < math.inf:
                continue
            for ulps in range(-4, 5):
                found = ray * (1e9 * (1.8446743e19 / norm) ** 0.5) * (1 + ulps * 6e-8)
                rows = (found.expand(64, *self.shape).contiguous(), zeros)
                finite = engine.capture(rows).square_norms([engine.names]).isfinite()
                if finite.any() and not finite.all():
                    return found
        return found

    def first(self):
        return next(each for each in self.model().modules() if isinstance(each, (nn.Linear, nn.Conv2d)))

    def unseen(self, x):
        """What the first layer does not see of ``x``: its outputs are rounding."""
        layer = self.first()
        if not isinstance(layer, nn.Linear):
            return x - x.flatten(1).mean(1)[:, None, None, None]
        basis = torch.linalg.qr(layer.weight.detach().double().T)[0]
        return (x.double() - x.double() @ basis @ basis.T).float()

    def on_corner(self):
        """A record that the first layer maps to zeros."""
        layer = self.first()
        if not isinstance(layer, nn.Linear):
            return torch.zeros(self.shape)
        found = torch.linalg.lstsq(layer.weight.detach().double(), -layer.bias.detach().double()[:, None]).solution
        return found[:, 0].float()


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )


CASES = {
    "linear": Case(lambda: nn.Linear(33, 8), squares, (33,), 8),
    "softmax": Case(lambda: nn.Linear(33, 8), entropy, (33,), 8),
    "relu": Case(lambda: nn.Sequential(nn.Linear(33, 16), nn.ReLU(), nn.Linear(16, 5)), entropy, (33,), 5),
    "convolution": Case(convolutional, entropy, (1, 12, 12), 5),
}


KINDS = ["edge", "cancel", "corner", "denormal", "equal", "huge"]


class Kept(GaussianMechanism):
    """Keeps what it releases, before the noise."""

    def __init__(self):
        self.totals, self.bounds = [], []

    def release(self, total, **given):
        self.totals.append(torch.cat([value.detach().double().reshape(-1) for value in total.values()]))
        self.bounds.append(given["l2_bound"])
        return super().release(total, **given)


def released(folder, case, data, arithmetic, *, rows, clip_norm="flat:1", method="dpsgd", steps=1, model=None, seed=0):
    """What a run of full batches releases before noise; ``rows`` is the public number of records."""
    plan = Plan.of_noise(noise=1.0, steps=steps, records=rows, batch_size=rows, clip_norm=rule_of(clip_norm))
    mechanism = Kept()
    with Ledger.create(folder / f"{len(list(folder.iterdir()))}.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        private = PrivateGradients(
            case.model() if model is None else model,
            data,
            case.loss,
            plan,
            ledger,
            method=parse_method(method),
            seed=seed,
            mechanism=mechanism,
            arithmetic=arithmetic,
        )
        for _ in range(steps):
            private.release()
    return mechanism


def without(data, record):
    keep = torch.arange(len(data[0])) != record % len(data[0])
    return tuple(each[keep] for each in data)
