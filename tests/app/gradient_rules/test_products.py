"""Products written in other ways than as a linear layer, and tables that are the last layer too."""

import pytest
import torch
import torch.nn.functional as F
from agreement import Made, agrees, built, cross_entropy, square
from torch import nn

from adadp.app.gradient_rules.embedding import EmbeddingRule, TiedPair, TiedRule
from adadp.app.gradient_rules.linear import LinearRule
from adadp.gradients.rule import Pair


def conv1d(m, x):
    """As GPT-2 multiplies."""
    return torch.addmm(m.b, x.view(-1, x.size(-1)), m.p).view(*x.shape[:-1], -1)


@pytest.mark.parametrize("positions", [(), (1,), (3,), (40,)])
@pytest.mark.parametrize("way", [conv1d, lambda m, x: m.b.addmm(x.reshape(-1, 4), m.p).view(*x.shape[:-1], -1)])
def test_addmm(positions, way):
    agrees(Made(way, p=torch.randn(4, 5), b=torch.randn(5)), (torch.randn(3, *positions, 4),))


def test_addmm_with_factors_goes_the_generic_way():
    model = Made(lambda m, x: torch.addmm(m.b, x, m.p, alpha=2), p=torch.randn(4, 5), b=torch.randn(5))
    agrees(model, (torch.randn(3, 4),), generic=["p", "b"])


@pytest.mark.parametrize(
    ("equation", "x", "weight"),
    [
        ("bd,de->be", (4,), (4, 5)),
        ("bsd,de->bse", (3, 4), (4, 5)),
        ("bsd, ed -> bse", (3, 4), (5, 4)),
        ("bld,dhk->blhk", (3, 4), (4, 2, 5)),
        ("bld,dhk->bhlk", (3, 4), (4, 2, 5)),
        ("bhld,hdm->blm", (2, 3, 4), (2, 4, 5)),
        ("...d,de->...e", (3, 2, 4), (4, 5)),
        ("bsd,d->bs", (3, 4), (4,)),
    ],
)
@pytest.mark.parametrize("weight_first", [False, True])
def test_einsum(equation, x, weight, weight_first):
    if weight_first:
        left, result = equation.split("->")
        equation = ",".join(left.split(",")[::-1]) + "->" + result

    def run(m, x):
        return torch.einsum(equation, m.p, x) if weight_first else torch.einsum(equation, [x, m.p])

    agrees(Made(run, p=torch.randn(weight)), (torch.randn(3, *x),))


@pytest.mark.parametrize(("equation", "weight"), [("bhd,hde->bhe", (3, 4, 5)), ("bhd,dd->bhd", (4, 4))])
def test_sums_that_are_no_matrix_product_go_the_generic_way(equation, weight):
    model = Made(lambda m, x: torch.einsum(equation, x, m.p), p=torch.randn(weight))
    agrees(model, (torch.randn(3, 3, 4),), generic=["p"])


class Tied(nn.Module):
    def __init__(self, words, padding=None):
        super().__init__()
        self.words = nn.Embedding(words, 5, padding_idx=padding)

    def forward(self, tokens):
        looked_up = self.words(tokens)
        hidden = torch.tanh(looked_up.cumsum(1)) + self.words(tokens.flip(1))
        first, second = F.linear(hidden, self.words.weight), F.linear(hidden.sin(), self.words.weight)
        return (first + second).mean(1)


@pytest.mark.parametrize("words", [7, 300])
@pytest.mark.parametrize("padding", [None, 2])
def test_a_tied_table_with_several_uses(words, padding):
    tokens, labels = torch.randint(0, 7, (3, 4)), torch.tensor([0, 2, 3])
    engine = agrees(Tied(words, padding), (tokens, labels), loss=cross_entropy)
    (piece,) = engine.capture((tokens, labels)).pieces
    assert (piece.closed_form is not None) is (words == 300)  # a small table is simply made


def tied(records, places, rows, width):
    looked_up = Pair(torch.randint(0, rows, (records, places)), torch.randn(records, places, width), ("weight",))
    product = Pair(torch.randn(records, places, width), torch.randn(records, places, rows), ("weight",))
    return TiedPair(None, product.output_grad, ("weight",), looked_up, product)


RULE = TiedRule(EmbeddingRule((50, 8)), LinearRule())


@pytest.mark.parametrize("left", [0.0, 1e-6, 1e-4, 1e-2, 1.0])
def test_the_norm_of_a_tied_table_is_never_too_small(left):
    """The last layer takes away what the lookups gave, but for a part ``left``: as ill-conditioned as can be."""
    pair = tied(40, 6, 50, 8)
    hot = F.one_hot(pair.looked_up.input, 50).float()
    product = Pair(-pair.looked_up.output_grad * (1 - left * torch.rand(40, 6, 1)), hot, ("weight",))
    pair = TiedPair(None, hot, ("weight",), pair.looked_up, product)
    doubled = TiedPair(
        None, hot.double(), ("weight",),
        Pair(pair.looked_up.input, pair.looked_up.output_grad.double(), ("weight",)),
        product.changed(lambda side: side.double()),
    )  # fmt: skip
    want = RULE.per_example(doubled)["weight"].flatten(1).square().sum(1)
    got = RULE.square_norms(pair)["weight"].double()
    assert (got >= want * (1 - 1e-6)).all()
    condition = 2 * pair.looked_up.output_grad.norm(dim=2).sum(1).double()
    assert (got - want <= 1e-5 * want + 2**-19 * condition.square()).all()


def test_closed_forms_of_a_tied_table_are_those_of_its_instances():
    pair = tied(5, 6, 50, 8)
    rows = RULE.per_example(pair)["weight"]
    torch.testing.assert_close(RULE.square_norms(pair)["weight"], rows.flatten(1).square().sum(1), rtol=1e-4, atol=0)
    weights = torch.rand(5)
    torch.testing.assert_close(
        RULE.weighted_sum(pair, weights)["weight"], torch.einsum("b,bij->ij", weights, rows), rtol=1e-4, atol=1e-5
    )
    few = pair.rows(1, 3)
    torch.testing.assert_close(RULE.per_example(few)["weight"], rows[1:3])


def test_a_wrong_tied_norm_is_demoted(monkeypatch):
    """A broken twin that forgets what the two uses have in common."""

    def apart(self, pair, inverse=None):
        first = self.layer.square_norms(pair.product, inverse)["weight"]
        return {"weight": first + self.table.square_norms(pair.looked_up, inverse)["weight"]}

    monkeypatch.setattr(TiedRule, "square_norms", apart)
    batch = torch.randint(0, 7, (3, 4)), torch.tensor([0, 2, 3])
    built(Tied(300), cross_entropy, batch, generic=["words.weight"])


def test_a_weight_that_is_also_scaled_is_added_up():
    model = Made(lambda m, x: F.linear(x, m.p) + F.linear(x.sin(), 2 * m.p), p=torch.randn(3, 4))
    agrees(model, (torch.randn(3, 2, 4),), loss=square)
