"""What privacy rests on: a record's contribution is its own, broken records harm nobody, nothing is left behind."""

import gc
import itertools
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from agreement import built, close, compare, cross_entropy, quiet, square
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adadp.errors import InputError
from adadp.gradients import GradientEngine, loop_gradients
from adadp.gradients.rule import square_norm
from adadp.lab.methods.clamped import clamped_sums


class Words(nn.Module):
    """Embedding, attention, normalisation, a bare parameter, a tied weight and one that has no rule."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.place = nn.Parameter(torch.randn(1, 5, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=dropout)
        self.bent = nn.PReLU(8)

    def forward(self, tokens):
        hidden = self.layer(self.words(tokens) + self.place)
        return F.linear(self.bent(hidden.mean(1)), self.words.weight)


def image_model():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, 9)
    )


def words():
    return torch.randint(0, 9, (6, 5)), torch.randint(0, 9, (6,))


def images():
    return torch.randn(6, 2, 4, 4), torch.randint(0, 9, (6,))


MODELS = {"words": (Words, words, ["bent.weight"]), "images": (image_model, images, [])}


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


def state_of(model):
    return {
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "trained": [value.requires_grad for value in model.parameters()],
        "objects": [id(value) for value in (*model.parameters(), *model.buffers())],
        "memory": [value.data_ptr() for value in (*model.parameters(), *model.buffers())],
        "grads": [None if value.grad is None else value.grad.clone() for value in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "hooks": [
            [len(getattr(module, name)) for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")]
            for module in model.modules()
        ],
        "attributes": [sorted(vars(module)) for module in model.modules()],
    }


def same_state(first, second):
    for name in first["state"]:
        assert torch.equal(first["state"][name], second["state"][name])
    for name in ("trained", "objects", "memory", "modes", "hooks", "attributes"):
        assert first[name] == second[name]
    for one, two in zip(first["grads"], second["grads"], strict=True):
        assert (one is None) == (two is None)
        assert one is None or torch.equal(one, two)


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


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_model_and_the_random_state_are_left_alone(dropout):
    model, batch = Words(dropout), words()
    model.register_buffer("constant", torch.randn(3))
    model.layer.norm1.eval()
    model.place.requires_grad_(False)
    model.bent.weight.grad = torch.ones(8)
    model.register_forward_hook(lambda *_: None)
    before, random = state_of(model), torch.get_rng_state()
    engine = built(model, cross_entropy, batch, generic=["bent.weight"])
    same_state(before, state_of(model))
    assert torch.equal(random, torch.get_rng_state())
    capture = engine.capture(batch)
    capture.weighted_sums(capture.square_norms([engine.names]), [engine.names])
    same_state(before, state_of(model))
    assert dropout or torch.equal(random, torch.get_rng_state())


def test_a_model_that_is_refused_is_left_alone_too():
    model = nn.Sequential(nn.Embedding(3, 4, max_norm=0.1), Mean())
    before = state_of(model)
    with pytest.raises(InputError):
        GradientEngine(model, square, (torch.randint(0, 3, (3, 2)),))
    same_state(before, state_of(model))


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_keeps_the_graph_alive(kind):
    make, batch_of, generic = MODELS[kind]
    batch = batch_of()
    seen = []

    def loss(model, *batch):
        output = model(*batch[:-1])
        losses = F.cross_entropy(output, batch[-1], reduction="none")
        seen.extend([weakref.ref(output), weakref.ref(losses)])
        return losses

    engine = built(make(), loss, batch, generic=generic)
    gc.disable()
    try:
        capture = engine.capture(batch)
        assert all(each() is None for each in seen)
        held = [weakref.ref(held) for held in capture._pieces]
        del capture
        assert all(each() is None for each in held)
    finally:
        gc.enable()


# What is refused


class Mean(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class SubtleMean(nn.Module):
    def forward(self, x):
        return x + 1e-3 * x.mean(0)


class MeanInTraining(nn.Module):
    def forward(self, x):
        return x - x.mean(0) if self.training else x


class Neighbour(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.roll(x, 1, 0)


class DetachedMean(nn.Module):
    """The gradient of another record does not flow here, its values do."""

    def forward(self, x):
        return x * x.mean(0).detach()


@pytest.mark.parametrize("mixing", [Mean(), SubtleMean(), Neighbour(), DetachedMean(), MeanInTraining()])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("tokens", [False, True])
def test_models_that_mix_records_are_refused(mixing, dropout, tokens):
    first = nn.Sequential(nn.Embedding(5, 4), nn.Flatten()) if tokens else nn.Linear(6, 12)
    batch = (torch.randint(0, 5, (4, 3)) if tokens else torch.randn(4, 6),)
    with quiet(), pytest.raises(InputError, match="mixes records"):
        GradientEngine(nn.Sequential(first, mixing, nn.Dropout(dropout), nn.Linear(12, 3)), square, batch)


BATCHNORMS = [
    (nn.BatchNorm1d(3), (3,)),
    (nn.BatchNorm2d(3), (3, 2, 2)),
    (nn.BatchNorm3d(3), (3, 2, 2, 2)),
    (nn.SyncBatchNorm(3), (3, 2)),
    (nn.BatchNorm1d(3, affine=False), (3,)),
    (nn.BatchNorm1d(3, track_running_stats=False), (3,)),
    (nn.BatchNorm1d(3, track_running_stats=False).eval(), (3,)),
    (nn.LazyBatchNorm1d(), (3,)),
]


@pytest.mark.parametrize(("layer", "shape"), BATCHNORMS)
def test_batch_normalisation_is_refused_by_name(layer, shape):
    model = nn.Sequential()
    model.add_module("first", nn.Conv1d(3, 3, 1))
    model.add_module("inner", nn.Sequential(layer))
    with pytest.raises(InputError, match=r"inner\.0.*replace_batchnorm"):
        GradientEngine(model, square, (torch.randn(4, *shape),))


def test_frozen_batch_normalisation_is_no_batch_statistic():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3).eval(), nn.Linear(3, 2))
    x = torch.randn(3, 4)
    engine = built(model, square, (x,), generic=["1.weight", "1.bias"])
    compare(engine, (x,))
    model.train()
    with pytest.raises(InputError, match="BatchNorm1d is in another mode"):
        engine.capture((x,))


def test_instance_normalisation_with_running_statistics_is_refused():
    model = nn.Sequential(nn.Conv1d(3, 3, 1), nn.InstanceNorm1d(3, track_running_stats=True))
    with pytest.raises(InputError, match=r"running statistics: 1\."):
        GradientEngine(model, square, (torch.randn(4, 3, 5),))


class Remembering(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.how = how
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        with torch.no_grad():
            if self.how == "in place":
                self.seen += x.mean(0)
            elif self.how == "replaced":
                self.seen = 0.9 * self.seen + x.mean(0)
            elif self.how == "new" and "later" not in self._buffers:
                self.register_buffer("later", x.mean(0))
            elif self.how == "later":
                self.layer.bias += x.mean()
        return self.layer(x)


@pytest.mark.parametrize(
    ("how", "name"), [("in place", "seen"), ("replaced", "seen"), ("new", "later"), ("later", "layer.bias")]
)
def test_models_that_remember_records_are_refused(how, name):
    model = Remembering(how)
    before = state_of(model)
    with pytest.raises(InputError, match=f"writes to {name}"):
        GradientEngine(model, square, (torch.randn(3, 4),))
    same_state(before, state_of(model))


def test_a_buffer_of_nan_is_not_taken_for_a_memory():
    model = Remembering("not at all")
    model.seen.fill_(torch.nan)
    compare(built(model, square, (torch.randn(3, 4),)), (torch.randn(3, 4),))


@pytest.mark.parametrize(
    "loss",
    [
        lambda m, x: m(x).mean(),
        lambda m, x: m(x).mean(1, keepdim=True),
        lambda m, x: m(x),
        lambda m, x: m(x).mean(1).tolist(),
        lambda m, x: m(x).mean(0)[: x.shape[0]],
    ],
)
def test_a_loss_that_is_not_one_number_per_record_is_refused(loss):
    with pytest.raises(InputError, match=r"one number per record|mixes records"):
        GradientEngine(nn.Linear(4, 3), loss, (torch.randn(5, 4),))


def test_a_loss_without_gradient_and_a_model_without_parameters_are_refused():
    with pytest.raises(InputError, match="does not depend on any trained parameter"):
        GradientEngine(nn.Linear(4, 3), lambda m, x: m(x).detach().sum(1), (torch.randn(5, 4),))
    with pytest.raises(InputError, match="no trained parameter"):
        GradientEngine(nn.Linear(4, 3).requires_grad_(False), square, (torch.randn(5, 4),))


@pytest.mark.parametrize("setting", ["max_norm", "scale_grad_by_freq"])
def test_embeddings_that_look_at_other_records_are_refused(setting):
    model = nn.Sequential(nn.Embedding(5, 4, **{setting: True}))
    before = model[0].weight.clone()
    with pytest.raises(InputError, match=setting):
        GradientEngine(model, square, (torch.randint(0, 5, (3, 2)),))
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("batch", [("no tensor",), (), (torch.tensor(1.0),), (torch.randn(3, 4), torch.randn(2))])
def test_batches_without_records_in_dimension_0_are_refused(batch):
    with pytest.raises(InputError, match="dimension 0"):
        GradientEngine(nn.Linear(4, 3), lambda m, x, *_: m(x).sum(1), batch)


def test_a_loss_that_fails_is_refused_with_its_own_words():
    with pytest.raises(InputError, match="shapes cannot be multiplied"):
        GradientEngine(nn.Linear(4, 3), square, (torch.randn(3, 5),))


def test_questions_that_make_no_sense_are_refused():
    engine = built(nn.Linear(4, 3), square, (torch.randn(3, 4),))
    capture = engine.capture((torch.randn(3, 4),))
    for groups in ([["weight"]], [["weight", "bias"], ["bias"]], [["weight"], ["bias"], ["other"]], []):
        with pytest.raises(InputError, match="partition"):
            capture.square_norms(groups)
    with pytest.raises(InputError, match="weights have shape"):
        capture.weighted_sums(torch.ones(3), [engine.names])
    with pytest.raises(InputError, match="bounds of shape"):
        clamped_sums(capture, {"weight": torch.ones(3, 4)})
    with pytest.raises(InputError, match="limit_bytes"):
        engine.chunk_size(0)
    assert engine.chunk_size(1) == 1


NEW_SWITCHES = pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="torch before 2.9")
TF32 = """
import torch
from adadp.gradients.capture import without_tf32
products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
{set}
before = {read}
with without_tf32():
    assert (products.allow_tf32, convolutions.allow_tf32) == (False, False)
assert {read} == before, {read}
"""
OLD = "(products.allow_tf32, convolutions.allow_tf32)"


@pytest.mark.parametrize(
    ("switched", "read"),
    [
        ("products.allow_tf32 = True", OLD),
        pytest.param(
            "products.fp32_precision, convolutions.conv.fp32_precision = 'tf32', 'ieee'",
            "(products.fp32_precision, convolutions.conv.fp32_precision, convolutions.rnn.fp32_precision)",
            marks=NEW_SWITCHES,
        ),
    ],
)
def test_tf32_is_off_for_norms_and_sums_and_as_before_afterwards(switched, read):
    """In a process of its own: torch's switches forget nothing. What they do can be seen on a GPU only."""
    done = subprocess.run(
        [sys.executable, "-c", TF32.format(set=switched, read=read)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
