"""What privacy rests on: a record's contribution is its own, broken records harm nobody, nothing is left behind."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from agreement import built, close, cross_entropy, quiet
from hypothesis import given, settings
from hypothesis import strategies as st
from safety_cases import MODELS, image_model, images
from torch import nn

from adadp.gradients import GradientEngine, loop_gradients
from adadp.gradients.rule import square_norm
from adadp.lab.methods.clamped import clamped_sums

pytestmark = pytest.mark.slow


def groups_of(engine):
    return [[name] for name in engine.names]


def results(engine, batch):
    """Norms, and the sum with fixed weights (0 for records that are not finite)."""
    capture = engine.capture(batch)
    groups = groups_of(engine)
    norms = capture.square_norms(groups)
    weights = torch.linspace(0.2, 1, norms.numel()).view(norms.shape)
    weights = torch.where(torch.isfinite(norms), weights, 0)
    bounds = {name: torch.full_like(value, 0.01) for name, value in engine.zeros().items()}
    return norms, capture.weighted_sums(weights, groups), clamped_sums(capture, bounds)


@pytest.mark.parametrize("kind", MODELS)
def test_changing_one_record_changes_only_its_own_contribution(kind):
    make, batch_of, generic = MODELS[kind]
    model, batch = make(), batch_of()
    engine = built(model, cross_entropy, batch, generic=generic)
    norms, sums, clamped = results(engine, batch)
    for record in (0, 3, 5):
        other = tuple(value.clone() for value in batch)
        for value, fresh in zip(other, batch_of(), strict=True):
            value[record] = fresh[record]
        changed_norms, changed_sums, changed_clamped = results(engine, other)
        kept = [i for i in range(6) if i != record]
        torch.testing.assert_close(changed_norms[kept], norms[kept], rtol=1e-6, atol=0)
        own, new = (
            loop_gradients(model, cross_entropy, tuple(value[record : record + 1] for value in each), 1)[0]
            for each in (batch, other)
        )
        weights = torch.linspace(0.2, 1, norms.numel()).view(norms.shape)[record]
        for index, name in enumerate(engine.names):
            close(changed_sums[name] - sums[name], weights[index] * (new[name] - own[name]), 1e-4, float(norms.max()))
            box = [torch.clamp(each[name], -0.01, 0.01) for each in (new, own)]
            close(changed_clamped[name] - clamped[name], box[0] - box[1], 1e-4, 1.0)


@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(0, 6), max_size=4), kind=st.sampled_from(sorted(MODELS)))
def test_chunks_add_up(cuts, kind):
    torch.manual_seed(0)
    make, batch_of, generic = MODELS[kind]
    model, batch = make(), batch_of()
    engine = built(model, cross_entropy, batch, generic=generic)
    groups = groups_of(engine)
    whole = engine.capture(batch)
    norms = whole.square_norms(groups)
    weights = 1 / (norms.sqrt() + 0.1)
    sums = whole.weighted_sums(weights, groups)
    bounds = {name: torch.full_like(value, 0.01) for name, value in engine.zeros().items()}
    clamped = clamped_sums(whole, bounds)
    total, boxed = engine.zeros(), engine.zeros()
    edges = [0, *sorted(cuts), 6]
    for start, stop in itertools.pairwise(edges):  # some of them empty
        part = engine.capture(tuple(value[start:stop] for value in batch))
        torch.testing.assert_close(part.square_norms(groups), norms[start:stop], rtol=1e-4, atol=1e-9)
        for name, value in part.weighted_sums(weights[start:stop], groups).items():
            total[name] += value
        for name, value in clamped_sums(part, bounds).items():
            boxed[name] += value
    for name in engine.names:
        close(total[name], sums[name], 1e-4)
        close(boxed[name], clamped[name], 1e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_no_records(kind):
    make, batch_of, generic = MODELS[kind]
    batch = batch_of()
    engine = built(make(), cross_entropy, batch, generic=generic)
    capture = engine.capture(tuple(value[:0] for value in batch))
    assert capture.square_norms(groups_of(engine)).shape == (0, len(engine.names))
    zeros = engine.zeros()
    for sums in (capture.weighted_sums(torch.zeros(0, 1), [engine.names]), clamped_sums(capture, zeros)):
        assert list(sums) == list(zeros)
        for name, value in sums.items():
            assert value.dtype == zeros[name].dtype
            assert torch.equal(value, zeros[name])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30, 1e38])
@pytest.mark.parametrize("asked", ["norms first", "sums at once"])
@pytest.mark.parametrize(
    "model",
    [
        image_model(),
        nn.Sequential(nn.Flatten(), nn.Linear(32, 9)),
        nn.Sequential(
            nn.Flatten(2), nn.Linear(16, 9), nn.LayerNorm(9), nn.Linear(9, 9), nn.Flatten(), nn.Linear(18, 9)
        ),
        nn.Sequential(nn.GRU(16, 9)),
    ],
    ids=["convolution", "linear", "positions", "generic"],
)
def test_a_broken_record_harms_nobody(model, value, asked):
    def loss(model, x, y):
        if not isinstance(model[0], nn.GRU):
            return cross_entropy(model, x, y)
        return F.cross_entropy(model(x.flatten(2).transpose(0, 1))[0][-1], y, reduction="none")

    x, y = images()
    with quiet():
        engine = GradientEngine(model, loss, (x, y))
    groups = groups_of(engine)
    fine = [0, 1, 3, 4, 5]
    healthy = engine.capture((x[fine], y[fine]))
    want = healthy.weighted_sums(torch.ones(5, len(groups)), groups)
    x[2, 1, 0, 0] = value
    capture = engine.capture((x, y))
    if asked == "norms first":
        norms = capture.square_norms(groups)
        torch.testing.assert_close(norms[fine], healthy.square_norms(groups), rtol=1e-4, atol=1e-9)
        assert torch.isfinite(norms[2]).all() or torch.isinf(norms[2]).all()
        assert torch.equal(capture.square_norms(groups), norms)
        broken = not bool(torch.isfinite(norms[2]).all())
        assert broken or abs(value) < 1e38 or isinstance(model[0], nn.GRU)  # which saturates
        assert bool(torch.isinf(capture.square_norms([engine.names])[2]).all()) == broken
    weights = torch.ones(6, len(groups))
    weights[2] = torch.nan
    for name, got in capture.weighted_sums(weights, groups).items():
        close(got, want[name], 1e-4)
    bounds = {name: torch.full_like(zero, 0.01) for name, zero in engine.zeros().items()}
    without = clamped_sums(healthy, bounds)
    for name, got in clamped_sums(capture, bounds).items():
        assert (got - without[name]).abs().max() <= 0.01 * (1 + 1e-3)


def test_a_huge_record_is_bounded_by_its_weight():
    """Finite norms just below overflow: norm and sum still belong together."""
    model = nn.Sequential(nn.Linear(4, 3))
    engine = built(model, lambda m, x: m(x).sum(1), (torch.randn(3, 4),))
    x = torch.randn(3, 4)
    x[1] *= 1e18
    capture = engine.capture((x,))
    norms = capture.square_norms([engine.names])
    assert torch.isfinite(norms).all()
    weights = 1 / norms.sqrt()
    for record in range(3):
        alone = torch.zeros_like(weights)
        alone[record] = weights[record]
        sums = capture.weighted_sums(alone, [engine.names])
        assert sum(float(value.square().sum()) for value in sums.values()) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("positions", [1, 2])
def test_squares_that_round_to_zero_do_not_make_a_norm_too_small(positions):
    model = nn.Linear(8, 8, bias=False)
    scale = 1.0
    engine = built(model, lambda m, x: (m(x) * scale).flatten(1).sum(1), (torch.randn(3, positions, 8),))
    scale = 1e-23
    x = 1e18 * torch.rand(3, positions, 8)
    norms = engine.capture((x,)).square_norms([engine.names])
    want = scale**2 * 8 * x.double().sum(1).square().sum(1)
    assert (norms[:, 0].double() >= want * (1 - 1e-5)).all()


class TokenTwice(nn.Module):
    """What a record's two values do to the row of its token cancels where one is minus the other."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 64)
        self.out = nn.Linear(64, 9)

    def forward(self, values):
        tokens = torch.zeros(values.shape, dtype=torch.int64)
        return self.out((self.table(tokens) * values.unsqueeze(2)).sum(1))


class TableTwice(TokenTwice):
    def forward(self, values):
        tokens = torch.zeros(len(values), dtype=torch.int64)
        return self.out(self.table(tokens) * values[:, :1] + self.table(tokens) * values[:, 1:])


class ParameterTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(8))
        self.out = nn.Linear(8, 9)

    def forward(self, values):
        return self.out(values[:, :1] * self.shift + values[:, 1:] * self.shift)


class ConvolutionTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Conv1d(1, 8, 3)
        self.out = nn.Linear(8, 9)

    def forward(self, values):
        ones = torch.ones(len(values), 1, 8)
        return self.out((self.filter(ones * values[:, :1, None]) + self.filter(ones * values[:, 1:, None])).mean(2))


@pytest.mark.parametrize("kind", [TokenTwice, TableTwice, ParameterTwice, ConvolutionTwice])
@pytest.mark.parametrize("value", [1e7, 1e8, 1e9])
def test_terms_that_cancel_in_a_record_do_not_pass_its_bound(kind, value):
    torch.manual_seed(0)
    records = 256
    batch = (torch.tensor([[1.0, 0.0]]).repeat(records, 1), torch.zeros(records, dtype=torch.int64))
    batch[0][-1] = torch.tensor([value, -value])
    engine = built(kind(), cross_entropy, batch)
    groups = [list(engine.names)]

    def clipped_sum(count):
        capture = engine.capture(tuple(each[:count] for each in batch))
        return capture.weighted_sums(capture.square_norms(groups).rsqrt().clamp(max=1.0), groups)

    with_it, without = clipped_sum(records), clipped_sum(records - 1)
    moved = sum(float((with_it[name] - without[name]).double().square().sum()) for name in engine.names) ** 0.5
    assert moved <= 1 + records * 2.0**-20


@pytest.mark.parametrize("numbers", [1023, 1024, 1025, 10_000, 1_000_000])
@pytest.mark.parametrize("large", [1, 8, 32, 128])
def test_small_numbers_behind_large_ones_count_in_a_norm(numbers, large):
    """Alone each of them is lost in float32; clip rules allow for 9e-6."""
    row = torch.full((1, numbers), 2.0**-12.6)
    row[0, :large] = 1.0
    truth = float(row.double().norm())
    assert float(square_norm(row).double().sqrt()) == pytest.approx(truth, rel=4e-6)
