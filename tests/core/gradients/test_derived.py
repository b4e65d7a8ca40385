"""Parameters made of parameters: their uses are read by rules, and gradients are pulled back exactly."""

import copy

import pytest
import torch
import torch.nn.functional as F
from agreement import Made, agrees, built, compare, cross_entropy, quiet, square
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from adadp.gradients import GradientEngine, loop_gradients
from adadp.gradients.derived import Derived, PulledRule
from adadp.gradients.recorder import Recorder


def scaled(m, x):
    """As Gemma's norm does it."""
    normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return normed * (1.0 + m.p.float())


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def symmetric():
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


TABLE = torch.tensor([[0, 1, 1], [2, 0, 1]])

CASES = {
    "a slice": (Made(lambda m, x: x + m.p[:2], p=torch.randn(3, 4)), (2, 4)),
    "a row": (Made(lambda m, x: x * m.p[1], p=torch.randn(3, 4)), (2, 4)),
    "two slices that overlap": (Made(lambda m, x: x * m.p[:2] + m.p[1:], p=torch.randn(3, 4)), (2, 4)),
    "a transposed weight": (Made(lambda m, x: x @ m.p.t(), p=torch.randn(5, 4)), (4,)),
    "a transposed weight over positions": (Made(lambda m, x: F.linear(x, m.p.T), p=torch.randn(4, 5)), (3, 4)),
    "a weight and its transpose": (Made(lambda m, x: F.linear(x @ m.p, m.p.mT), p=torch.randn(4, 4)), (3, 4)),
    "a cast": (Made(lambda m, x: F.linear(x.double(), m.p.double()), p=torch.randn(5, 4)), (4,)),
    "one and a weight": (Made(scaled, p=torch.randn(4)), (3, 4)),
    "a product of weights": (
        Made(lambda m, x: F.linear(x, m.p @ m.q), p=torch.randn(5, 2), q=torch.randn(2, 4)),
        (4,),
    ),
    "a weight times itself": (Made(lambda m, x: x @ (m.p * m.p.t()), p=torch.randn(4, 4)), (2, 4)),
    "a weight and a bias of one parameter": (
        Made(lambda m, x: F.linear(x, m.p[:, 1:], m.p[:, 0]), p=torch.randn(3, 5)),
        (2, 4),
    ),
    "positions looked up": (
        Made(lambda m, x: m.f(x + m.e(torch.arange(x.shape[1]))), f=nn.Linear(4, 3), e=nn.Embedding(5, 4)),
        (2, 4),
    ),
    "positions looked up with a dimension for the records": (
        Made(lambda m, x: m.f(x + m.e(torch.arange(2)[None])), f=nn.Linear(4, 3), e=nn.Embedding(2, 4)),
        (2, 4),
    ),
    "positions looked up more than once": (
        Made(lambda m, x: x * m.e(TABLE).permute(2, 0, 1), e=nn.Embedding(3, 4)),
        (4, 2, 3),
    ),
    "a padded position": (Made(lambda m, x: x + m.e(torch.arange(3)), e=nn.Embedding(3, 4, padding_idx=0)), (3, 4)),
    "a table indexed": (Made(lambda m, x: x * m.p[TABLE.view(-1)].view(2, 3, -1), p=torch.randn(3, 4)), (2, 3, 4)),
    "a parameter repeated within a record": (Made(lambda m, x: x * m.p.repeat(1, 2), p=torch.randn(1, 2)), (4,)),
    "a class token": (
        Made(lambda m, x: torch.cat([m.p[None].expand(len(x), 1, 4), x], 1), p=torch.randn(1, 4)),
        (2, 4),
    ),
    "a mask of relative positions": (
        Made(lambda m, x: F.scaled_dot_product_attention(x, x, x, m.e(TABLE[:, :2]).permute(2, 0, 1)[None]),
             e=nn.Embedding(3, 2)),
        (2, 2, 4),
    ),
    "temperature": (Made(lambda m, x: x * m.p.exp(), p=torch.tensor(0.3)), (4,)),
    "weight norm": (nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 2)), (4,)),
    "weight norm of a convolution": (parametrizations.weight_norm(nn.Conv1d(4, 3, 2), dim=0), (4, 5)),
    "weight norm written out": (
        Made(lambda m, x: F.linear(x, m.g * m.v / m.v.norm(dim=1)[:, None]), g=torch.rand(3, 1), v=torch.randn(3, 4)),
        (2, 4),
    ),
    "a parametrisation": (symmetric(), (4,)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_derived_parameter_is_covered_by_rules(case):
    model, shape = CASES[case]
    agrees(copy.deepcopy(model), (torch.randn(3, *shape),))


def derived_of(model, x):
    with quiet():
        engine = GradientEngine(model, square, (x,))
    recorder = Recorder(dict(model.named_parameters()), derived=engine._blueprint.derived)
    with recorder:
        model(x)
    return [use.rule.derived for use in recorder.uses if isinstance(use.rule, PulledRule)]


@pytest.mark.parametrize(
    ("case", "isometric"),
    [
        ("a slice", True),
        ("a transposed weight", True),
        ("a transposed weight over positions", True),
        ("a cast", True),
        ("one and a weight", True),
        ("positions looked up", True),
        ("positions looked up more than once", False),
        ("a padded position", False),
        ("a table indexed", False),
        ("a product of weights", False),
        ("temperature", False),
    ],
)
def test_norms_are_taken_before_pulling_back_only_where_that_changes_nothing(case, isometric):
    model, shape = CASES[case]
    found = derived_of(copy.deepcopy(model), torch.randn(3, *shape))
    assert found
    assert {each.isometric for each in found} == {isometric}


def test_half_precision_is_not_pulled_back_in_half_precision():
    """A weight in bfloat16 next to one looked up: sums and norms are float32, and more exact than half precision."""
    model = Made(lambda m, x: x + m.e(torch.arange(4)), e=nn.Embedding(4, 64)).bfloat16()
    x = torch.randn(3, 4, 64).bfloat16()

    def loss(model, x):
        return (model(x).float() * torch.linspace(1, 2, 64)).sum((1, 2))

    engine = built(model, loss, (x,))
    sums = engine.capture((x,)).weighted_sums(torch.tensor([[1.0], [2**-9], [2**-12]]), [["e.weight"]])
    want = (1 + 2**-9 + 2**-12) * torch.linspace(1, 2, 64).bfloat16().float().expand(4, 64)
    torch.testing.assert_close(sums["e.weight"], want, rtol=1e-6, atol=0)


def test_what_depends_on_records_is_not_derived():
    """Shared by all records in its shape, but made of them: the model mixes records and is refused."""
    model = Made(lambda m, x: x + m.e(x.argmax(0)).sum(), e=nn.Embedding(9, 4))
    with pytest.raises(Exception, match="other records"):
        GradientEngine(model, square, (torch.randn(3, 4),))


def test_a_wrong_pullback_is_demoted(monkeypatch):
    """A broken twin: norms taken before pulling back although rows were looked up twice."""
    monkeypatch.setattr(Derived, "isometric", property(lambda self: True))
    model, shape = CASES["positions looked up more than once"]
    model, x = copy.deepcopy(model), torch.randn(3, *shape)
    compare(built(model, square, (x,), generic=["e.weight"]), (x,))


def test_a_random_mask_on_a_weight_goes_the_generic_way():
    """Running f once more would draw another mask."""
    model = Made(lambda m, x: F.linear(x, F.dropout(m.p, 0.5, m.training)), p=torch.randn(3, 4))
    engine = built(model, square, (torch.randn(3, 4),), generic=["p"])
    assert engine.notes


class Halves(nn.Module):
    """Weights on both sides of a dropout, and a power that no rule covers."""

    def __init__(self, power):
        super().__init__()
        self.before, self.after = nn.Parameter(torch.rand(40) + 1), nn.Parameter(torch.rand(40) + 1)
        self.power = nn.Parameter(torch.tensor(1.0)) if power else None

    def forward(self, x):
        hidden = F.dropout(x * self.before, 0.5, self.training)
        out = hidden * self.after
        return out if self.power is None else (out + 1) ** self.power


@pytest.mark.parametrize("power", [False, True])
def test_all_parameters_see_the_mask_of_one_draw(power):
    """Both gradients are zero where the mask is, and equal up to the known factors elsewhere."""
    model, x = Halves(power), torch.rand(6, 40) + 0.5

    def loss(model, x):
        return model(x).sum(1)

    names = [name for name, _ in model.named_parameters()]
    engine = built(model, loss, (x,), generic=names if power else [])
    assert ("random numbers" in "".join(engine.notes)) is power
    drawn = set()
    for _ in range(4):
        capture = engine.capture((x,))
        for record in range(6):
            sums = capture.weighted_sums(torch.eye(6)[:, record : record + 1], [names])
            torch.testing.assert_close(sums["before"] * model.before, sums["after"] * model.after)
            drawn.add(tuple((sums["after"] != 0).tolist()))
    assert len(drawn) == 24  # a mask of its own for every record and pass


def test_loss_with_a_penalty_on_the_weights():
    model = nn.Linear(4, 3)

    def loss(model, x, y):
        return cross_entropy(model, x, y) + 0.01 * model.weight.square().sum()

    x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    engine = agrees(model, (x, y), loss=loss)
    assert len(loop_gradients(model, loss, (x, y), 3)) == 3
    assert not engine.notes
