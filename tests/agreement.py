"""Comparing the engine with plain autograd, one record at a time."""

import contextlib
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from adadp.gradients import GradientEngine, loop_gradients
from adadp.lab.methods.clamped import clamped_sums, square_sums


class Made(nn.Module):
    """A module from parameters or modules and a function ``forward(self, *inputs)``."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, torch.Tensor) else part)
        self.run = forward

    def forward(self, *inputs):
        return self.run(self, *inputs)


def cross_entropy(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def square(model, *batch):
    """A loss for outputs of any shape and number: half the square of every number, weighted by its place."""
    total = 0
    for output in torch.utils._pytree.tree_flatten(model(*batch))[0]:
        flat = output.flatten(1)
        total = total + (flat.square() * torch.linspace(0.5, 1, flat.shape[1], dtype=flat.dtype)).sum(1) / 2
    return total


@contextlib.contextmanager
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def built(model, loss, batch, *, generic=()):
    """The engine; ``generic`` are the parameters that must go the generic way, all others by rules."""
    with quiet():
        engine = GradientEngine(model, loss, batch)
    assert engine._blueprint.generic == frozenset(generic)
    return engine


def agrees(model, batch, *, loss=square, generic=(), rtol=1e-4, clamp=True):
    """Norms, sums weighted by group and clamped sums equal those of plain autograd. Returns the engine."""
    engine = built(model, loss, batch, generic=generic)
    compare(engine, batch, rtol=rtol, clamp=clamp)
    return engine


def compare(engine, batch, *, rtol=1e-4, clamp=True, expected=None):
    model, loss = engine.model, engine.loss
    records = torch.utils._pytree.tree_flatten(batch)[0][0].shape[0]
    rows = loop_gradients(model, loss, batch, records) if expected is None else expected
    capture = engine.capture(batch)
    groups = [[name] for name in engine.names]
    norms = capture.square_norms(groups)
    want = torch.tensor(
        [[float(row[name].double().square().sum()) for name in engine.names] for row in rows], dtype=torch.float64
    )
    largest = float(want.max()) or 1.0
    torch.testing.assert_close(norms.double(), want, rtol=2 * rtol, atol=1e-12 + rtol * 1e-4 * largest)
    weights = torch.rand(records, len(groups), dtype=norms.dtype, generator=torch.Generator().manual_seed(1)) + 0.1
    parameters = dict(model.named_parameters())
    compare_scaled(capture, engine, rows, rtol)
    sums = capture.weighted_sums(weights, groups)
    for index, name in enumerate(engine.names):
        total = sum(weights[record, index] * row[name].double() for record, row in enumerate(rows))
        close(sums[name], total, rtol, largest)
        assert sums[name].shape == parameters[name].shape
    if clamp:
        bounds = {
            name: torch.rand_like(parameters[name], dtype=norms.dtype).detach() * (largest**0.5 / 10)
            for name in engine.names
        }
        clamped = clamped_sums(capture, bounds)
        for name in engine.names:
            close(
                clamped[name], sum(torch.clamp(row[name], -bounds[name], bounds[name]) for row in rows), rtol, largest
            )


def compare_scaled(capture, engine, rows, rtol):
    """Norms in scaled coordinates, for scales of every shape they may have, and sums of squares."""
    parameters = dict(engine.model.named_parameters())
    groups = [[name] for name in engine.names]
    dtype = capture.square_norms(groups).dtype
    generator = torch.Generator().manual_seed(2)
    ways = (
        lambda name: engine.scale_shapes[name],
        lambda name: (parameters[name].shape[0], *[1] * (parameters[name].dim() - 1)) if parameters[name].dim() else (),
        lambda name: (1,) * parameters[name].dim(),
        lambda name: tuple(parameters[name].shape),
    )
    for shape_of in ways:
        inverse = {
            name: torch.rand(shape_of(name), dtype=dtype, generator=generator) * 3 + 0.1 for name in engine.names
        }
        want = torch.tensor(
            [[float((row[name].double() * inverse[name]).square().sum()) for name in engine.names] for row in rows],
            dtype=torch.float64,
        )
        largest = float(want.max()) or 1.0
        got = capture.square_norms(groups, inverse).double()
        torch.testing.assert_close(got, want, rtol=2 * rtol, atol=1e-12 + rtol * 1e-4 * largest)
    squares = square_sums(capture)
    for name in engine.names:
        total = sum(row[name].double().square() for row in rows)
        close(squares[name], total, 2 * rtol, max(float(total.max()), 1e-30) ** 2)


def close(got, want, rtol, largest=1.0):
    error = float((got.double() - want.double()).norm())
    assert error <= rtol * float(want.double().norm()) + rtol * 1e-3 * largest**0.5 + 1e-12, error
