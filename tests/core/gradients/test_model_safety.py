"""More tests of safety: model safety."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from agreement import built, compare, cross_entropy, quiet, square
from safety_cases import MODELS, Words, words
from torch import nn

from adadp.errors import InputError
from adadp.gradients import GradientEngine
from adadp.lab.methods.clamped import clamped_sums


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
        held = [weakref.ref(held) for held in capture.pieces]
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


def _replaced(model):
    model[1].weight = nn.Parameter(model[1].weight.detach().clone())


def _frozen(model):
    model[1].bias.requires_grad_(False)


def _thawed(model):
    model[0].weight.requires_grad_(True)


@pytest.mark.parametrize("change", [_replaced, _frozen, _thawed])
def test_parameters_that_are_others_than_when_the_engine_was_built_are_refused(change):
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    x = torch.randn(3, 4)
    engine = built(model, square, (x,))
    engine.capture((x,))
    change(model)
    with pytest.raises(InputError, match="were replaced, frozen or thawed"):
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


@pytest.mark.slow
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
