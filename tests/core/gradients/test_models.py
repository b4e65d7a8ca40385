"""Ways of using parameters and of building models, against plain autograd."""

import pytest
import torch
import torch.nn.functional as F
from agreement import Made, agrees, built, close, compare, cross_entropy, quiet, square
from torch import nn
from torch.utils.checkpoint import checkpoint

from adadp.errors import InputError
from adadp.gradients import GradientEngine, loop_gradients

LABELS = torch.tensor([0, 2, 1])


def rows(*shape):
    return torch.randn(3, *shape)


def added_in_place(m, x):
    x = torch.sin(m.f(x))
    x += m.p
    return x**2


BARE = {
    "class token by expand": (
        Made(lambda m, x: torch.cat([m.p.expand(x.shape[0], -1, -1), x], 1) ** 2, p=torch.randn(1, 1, 4)),
        (2, 4),
    ),
    "class token by repeat": (
        Made(lambda m, x: torch.cat([m.p.repeat(x.shape[0], 1, 1), x], 1) ** 2, p=torch.randn(1, 1, 4)),
        (2, 4),
    ),
    "position table added in place": (Made(added_in_place, p=torch.randn(1, 2, 4), f=nn.Linear(4, 4)), (2, 4)),
    "position table": (Made(lambda m, x: x + m.p, p=torch.randn(1, 2, 4)), (2, 4)),
    "position table without a dimension for the records": (Made(lambda m, x: m.p + x, p=torch.randn(2, 4)), (2, 4)),
    "torch.add with alpha": (Made(lambda m, x: torch.add(x, m.p, alpha=0.5), p=torch.randn(2, 4)), (2, 4)),
    "torch.add with alpha, parameter first": (
        Made(lambda m, x: torch.add(m.p, x, alpha=0.5), p=torch.randn(2, 4)),
        (2, 4),
    ),
    "layer scale": (Made(lambda m, x: torch.tanh(x) * m.p, p=torch.randn(4)), (2, 4)),
    "scale per channel": (Made(lambda m, x: m.p * x, p=torch.randn(1, 3, 1, 1)), (3, 2, 2)),
    "scalar": (Made(lambda m, x: x * m.p, p=torch.tensor(0.7)), (2, 4)),
    "matrix product": (Made(lambda m, x: x @ m.p, p=torch.randn(4, 5)), (4,)),
    "matrix product over positions": (Made(lambda m, x: torch.matmul(x, m.p), p=torch.randn(4, 5)), (2, 4)),
    "layer scale of zero": (Made(lambda m, x: x + m.p * m.f(x), p=torch.zeros(4), f=nn.Linear(4, 4)), (2, 4)),
}


@pytest.mark.parametrize("case", BARE)
def test_bare_parameters_with_a_rule(case):
    model, shape = BARE[case]
    agrees(model, (rows(*shape),))


GENERIC = {
    "prelu": (nn.PReLU(), (4,), ["weight"]),
    "bilinear": (Made(lambda m, x: m.f(x, x), f=nn.Bilinear(4, 4, 2)), (4,), ["f.weight", "f.bias"]),
    "a parameter on the left": (Made(lambda m, x: m.p @ x, p=torch.randn(5, 2)), (2, 4), ["p"]),
    "a parameter put to a power": (Made(lambda m, x: x**m.p, p=torch.tensor(2.0)), (2, 4), ["p"]),
    "positions before records": (
        Made(lambda m, x: m.f(x.transpose(0, 1).reshape(-1, 4)).view(2, -1, 3).transpose(0, 1), f=nn.Linear(4, 3)),
        (2, 4),
        ["f.weight", "f.bias"],
    ),
    "a function of the user's own": (Made(lambda m, x: Doubled.apply(x, m.p), p=torch.randn(4)), (4,), ["p"]),
}


class Doubled(torch.autograd.Function):
    """``2 x p``, invisible to functions that look at torch calls, and to vmap."""

    @staticmethod
    def forward(ctx, x, p):
        ctx.save_for_backward(x, p)
        return 2 * x * p

    @staticmethod
    def backward(ctx, grad):
        x, p = ctx.saved_tensors
        return 2 * grad * p, (2 * grad * x).sum(0)


@pytest.mark.parametrize("case", GENERIC)
def test_uses_without_a_rule_go_the_generic_way(case):
    model, shape, names = GENERIC[case]
    agrees(model, (rows(*shape).abs() + 0.1,), generic=names)


def test_a_module_vmap_cannot_run_is_run_record_by_record():
    model = Made(lambda m, x: m.p[0] * x if x.sum().item() > 1e9 else x @ m.p.t(), p=torch.randn(4, 4))
    with quiet():
        engine = GradientEngine(model, square, (rows(4),))
    assert "record by record" in engine.notes[0]
    compare(engine, (rows(4),))


class Tied(nn.Module):
    """A language model whose table of words is its last layer too."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 5, padding_idx=0)
        self.body = nn.Linear(5, 5)

    def forward(self, tokens):
        hidden = self.body(torch.tanh(self.body(self.words(tokens))))
        return F.linear(hidden, self.words.weight).mean(1)


def test_tied_weights_are_one_parameter():
    agrees(Tied(), (torch.randint(0, 7, (3, 4)), LABELS), loss=cross_entropy)


def test_a_layer_called_twice_and_a_parameter_in_two_modules():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), first)
    assert len(agrees(model, (rows(4),)).names) == 3
    agrees(model, (rows(2, 4),))


def test_a_convolution_and_a_normalisation_called_twice():
    layer, norm = nn.Conv1d(3, 3, 3, padding=1), nn.GroupNorm(1, 3)
    agrees(nn.Sequential(layer, norm, nn.Tanh(), layer, norm), (rows(3, 5),))


def test_a_parameter_used_with_and_without_a_rule():
    agrees(Made(lambda m, x: x @ m.p + x ** m.p.sum(), p=torch.rand(4, 4)), (rows(4).abs(),), generic=["p"])


def test_frozen_parameters_and_adapters():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(4, 3).requires_grad_(False)
            self.down = nn.Parameter(torch.randn(4, 2))
            self.up = nn.Parameter(torch.zeros(2, 3))
            self.head = nn.Linear(3, 3)
            self.head.bias.requires_grad_(False)

        def forward(self, x):
            return self.head(torch.tanh(self.base(x) + (x @ self.down) @ self.up * 0.5))

    for shape in ((4,), (5, 4)):
        engine = agrees(Adapted(), (rows(*shape),))
        assert engine.names == ("down", "up", "head.weight")


def test_a_head_of_zeros_does_not_hide_what_is_wrong_behind_it():
    """Positions before records cannot be attributed by their shape; with a head of zeros all gradients would agree."""
    model = Made(
        lambda m, x: m.h(m.f(x.transpose(0, 1).reshape(-1, 4)).view(2, -1, 3).transpose(0, 1)),
        f=nn.Linear(4, 3),
        h=nn.Linear(3, 2),
    )
    for parameter in model.h.parameters():
        nn.init.zeros_(parameter)
    agrees(model, (rows(2, 4), LABELS), loss=lambda m, x, y: cross_entropy(lambda x: m(x).sum(1), x, y % 2),
           generic=["f.weight", "f.bias"])  # fmt: skip


def test_activations_in_place():
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 4), nn.ELU(inplace=True), nn.Linear(4, 2)
    )
    agrees(model, (rows(2, 4, 4),))


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.GRUCell(4, 4)])
def test_an_input_changed_in_place_is_refused(layer):
    """Plain autograd notices because it reads what it has saved; the backward pass of the engine stops before that."""

    def forward(m, x):
        x = 2 * x
        y = m.layer(x)
        if m.spoil:
            x.add_(1)
        return y

    model = Made(forward, layer=layer)
    model.spoil = False
    with quiet():
        engine = GradientEngine(model, square, (rows(4),))
    model.spoil = True
    with pytest.raises(InputError, match="changed in place"):
        engine.capture((rows(4),))
    with pytest.raises(InputError, match="inplace operation"):
        GradientEngine(model, square, (rows(4),))


def test_several_inputs_nested_inputs_and_outputs():
    model = Made(
        lambda m, x, extra: {"a": m.f(x) + m.g(extra["z"][0]), "b": [m.g(extra["z"][1])]},
        f=nn.Linear(4, 3),
        g=nn.Linear(2, 3),
    )
    agrees(model, (rows(4), {"z": [rows(2), rows(2)], "name": "kept"}))


def test_a_loss_of_more_than_the_model():
    temperature = torch.tensor(2.0)

    def loss(model, x, y):
        return F.cross_entropy(model(x) / temperature, y, reduction="none") + model[0].weight.square().sum()

    agrees(nn.Sequential(nn.Linear(4, 3)), (rows(4), LABELS), loss=loss)


def test_unused_parameters_have_no_gradient():
    model = Made(lambda m, x: m.f(x), f=nn.Linear(4, 3), unused=nn.Linear(4, 3), dead=torch.randn(3))
    engine = agrees(model, (rows(4),))
    sums = engine.capture((rows(4),)).weighted_sums(torch.ones(3, 1), [engine.names])
    assert not sums["unused.weight"].any()
    assert not sums["dead"].any()


def test_records_in_dimension_1_as_many_as_positions():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0)
    agrees(Made(lambda m, x: m.f(x.transpose(0, 1)).transpose(0, 1), f=layer), (torch.randn(3, 3, 8),), rtol=1e-3)


def test_records_and_positions_flattened_together():
    model = Made(
        lambda m, x: m.g(torch.relu(m.n(m.f(x.reshape(-1, 4))))).view(x.shape[0], -1),
        f=nn.Linear(4, 5),
        n=nn.LayerNorm(5),
        g=nn.Linear(5, 2),
    )
    agrees(model, (rows(6, 4),))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_in_other_dtypes(dtype):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    x = rows(4).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    engine = agrees(model, (x,), rtol=1e-12 if dtype == torch.float64 else 3e-2)
    capture = engine.capture((x,))
    norms = capture.square_norms([engine.names])
    assert norms.dtype == wide
    assert {value.dtype for value in capture.weighted_sums(norms, [engine.names]).values()} == {wide}
    assert {value.dtype for value in engine.zeros().values()} == {wide}


@pytest.mark.parametrize("kind", ["linear", "attention", "generic"])
def test_autocast_inside_the_loss(kind):
    """The losses are float32 although the layers ran in half precision."""
    body = {
        "linear": nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)),
        "attention": nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, dropout=0.0),
        "generic": nn.Sequential(nn.Linear(8, 8), Made(lambda m, x: m.p @ x, p=torch.randn(4, 4))),
    }[kind]
    model = nn.Sequential(body, nn.Linear(8, 3))

    def loss(model, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(x).mean(1)
        return F.cross_entropy(output.float(), y, reduction="none")

    generic = ["0.1.p"] if kind == "generic" else []
    engine = agrees(model, (rows(4, 8), LABELS), loss=loss, generic=generic, rtol=3e-2)
    assert engine.capture((rows(4, 8), LABELS)).square_norms([engine.names]).dtype == torch.float32
    assert [note.split(":")[0] for note in engine.notes] == ["0.1 (Made)"] * len(generic)  # with autocast again


def test_autocast_around_the_engine_does_not_reach_norms_and_sums():
    model = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 3))
    engine = built(model, cross_entropy, (rows(2, 40).mean(1), LABELS))
    batch = (torch.randn(3, 40), LABELS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        capture = engine.capture(batch)
        norms = capture.square_norms([engine.names])
        ones = [capture.weighted_sums(torch.eye(3)[i].unsqueeze(1), [engine.names]) for i in range(3)]
    for record in range(3):
        assert sum(float(g.double().square().sum()) for g in ones[record].values()) == pytest.approx(
            float(norms[record]), rel=1e-5
        )


def test_inputs_in_unusual_memory():
    model = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 2, 2))
    engine = agrees(model, (rows(4, 6, 6).to(memory_format=torch.channels_last),))
    compare(engine, (rows(6, 6, 4).permute(0, 3, 1, 2),))
    compare(engine, (rows(4, 6, 12)[..., ::2],))
    compare(engine, (rows(4, 1, 6).expand(3, 4, 6, 6),))
    agrees(model.to(memory_format=torch.channels_last), (rows(4, 6, 6),))


@pytest.mark.parametrize("inside", ["rules", "generic"])
def test_gradient_checkpoints(inside):
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh() if inside == "rules" else nn.PReLU(4), nn.Linear(4, 4))
    model = Made(lambda m, x: m.head(checkpoint(m.block, x, use_reentrant=False)), block=block, head=nn.Linear(4, 2))
    agrees(model, (rows(4),), generic=[] if inside == "rules" else ["block.1.weight"])


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoints_are_refused():
    model = Made(
        lambda m, x: m.head(checkpoint(m.block, m.first(x), use_reentrant=True)),
        first=nn.Linear(4, 4),
        block=nn.Linear(4, 4),
        head=nn.Linear(4, 2),
    )
    with pytest.raises(InputError, match="use_reentrant=False"):
        GradientEngine(model, square, (rows(4),))


class Branching(nn.Module):
    def __init__(self, other):
        super().__init__()
        self.usual = nn.Linear(4, 4)
        self.other = other

    def forward(self, x):
        return self.other(self.usual(x)) if bool((x > 50).any()) else self.usual(x)


@pytest.mark.parametrize("other", [nn.Linear(4, 4), nn.PReLU(), nn.Identity(), nn.Tanh()])
def test_a_branch_not_seen_ahead_is_computed_one_record_at_a_time(other):
    engine = built(Branching(other), square, (rows(4),))
    compare(engine, (rows(4),))
    compare(engine, (torch.cat([rows(4), rows(4) + 100]),))


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.GRUCell(4, 4)])
def test_a_layer_called_more_often_than_seen_ahead_is_computed_one_record_at_a_time(layer):
    model = Made(lambda m, x: m.f(x), f=layer)
    with quiet():
        engine = GradientEngine(model, square, (rows(4),))
    model.run = lambda m, x: m.f(m.f(x))
    compare(engine, (rows(4),))


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.GRUCell(4, 4)])
def test_records_in_another_place_than_seen_ahead_are_computed_one_at_a_time(layer):
    model = Made(lambda m, x: m.f(x), f=layer)
    with quiet():
        engine = GradientEngine(model, square, (rows(4),))
    model.run = lambda m, x: m.f(x.repeat(2, 1))[: x.shape[0]]
    compare(engine, (rows(4),))


def dropped(*, generic):
    middle = nn.PReLU(6) if generic else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), middle, nn.Dropout(0.5), nn.Linear(6, 3))


@pytest.mark.parametrize("generic", [False, True])
def test_dropout_gives_the_gradient_of_the_draw_that_was_made(generic):
    model, x = dropped(generic=generic), rows(4)
    engine = built(model, square, (x,), generic=["2.weight"] if generic else [])
    torch.manual_seed(5)
    expected = torch.autograd.grad(square(model, x).sum(), list(model.parameters()))
    torch.manual_seed(5)
    capture = engine.capture((x,))
    capture.square_norms([engine.names])
    sums = capture.weighted_sums(torch.ones(3, 1), [engine.names])
    for value, want in zip(sums.values(), expected, strict=True):
        close(value, want, 1e-5)


def test_norm_and_sum_belong_to_one_draw_when_the_whole_loss_is_run_again():
    """Dropout inside the region: it cannot be run again with the same masks, so the whole loss is."""

    class Region(nn.Module):
        def __init__(self):
            super().__init__()
            self.power = nn.Parameter(torch.tensor(1.5))
            self.scale = nn.Linear(6, 6)

        def forward(self, x):
            return F.dropout(self.scale(x).abs() ** self.power, 0.5, self.training)

    model, x = nn.Sequential(nn.Linear(4, 6), Region()), rows(4)
    engine = built(model, square, (x,), generic=[name for name, _ in model.named_parameters()])
    assert engine.notes[0].startswith("the loss")
    assert "random numbers that all parameters must share" in engine.notes[0]
    names = list(engine.names)
    for _ in range(3):
        capture = engine.capture((x,))
        norms = capture.square_norms([[name] for name in names])
        for record in range(3):
            sums = capture.weighted_sums(torch.eye(3)[record].unsqueeze(1).expand(3, len(names)), [[n] for n in names])
            for index, name in enumerate(names):
                assert float(sums[name].square().sum()) == pytest.approx(
                    float(norms[record, index]), rel=1e-4, abs=1e-9
                )


def test_integers_of_any_legal_range():
    """Zeros and ones are tried first; then whatever runs."""
    agrees(Made(lambda m, t: m.e(t - 1), e=nn.Embedding(1, 3)), (torch.ones(3, 2, dtype=torch.long),))

    def packed(m, x, lengths):
        steps = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return m.r(steps)[1][0]

    model, batch = Made(packed, r=nn.GRU(3, 4)), (rows(5, 3), torch.tensor([5, 2, 3]))
    with quiet():
        engine = GradientEngine(model, square, batch)
    compare(engine, batch)
    assert len(loop_gradients(model, square, batch, 3)) == 3


def test_masks_that_hide_everything_are_not_made_up():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 3)

        def forward(self, x, shown):
            return (self.f(x) * shown.unsqueeze(2)).sum(1) / shown.sum(1, keepdim=True)

    agrees(Pooled(), (rows(5, 4), torch.rand(3, 5) > 0.2))
