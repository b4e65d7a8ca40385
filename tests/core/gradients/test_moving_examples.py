"""More tests of moving: moving examples."""

import pytest
import torch
import torch.nn.functional as F
from agreement import Made, compare, quiet, square
from moving_cases import built_or_refused, parts, records
from torch import nn

from adadp.errors import InputError
from adadp.gradients import GradientEngine
from adadp.gradients.attribution import attribute
from adadp.gradients.inspection import inspect
from adadp.gradients.owners import Owners
from adadp.gradients.probe_records import probe_records_for


def test_experts_by_gather_are_slow_and_right():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 3)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)) for _ in range(3))

        def forward(self, x):
            rows = x.reshape(-1, 4)
            weight, chosen = self.gate(rows).softmax(1).topk(2, 1)
            out = torch.zeros_like(rows)
            for number, expert in enumerate(self.experts):
                row, rank = (chosen == number).nonzero(as_tuple=True)
                out = out.index_add(0, row, expert(rows[row]) * weight[row, rank, None])
            return out.view_as(x)

    with quiet():
        engine = GradientEngine(Experts(), square, (torch.randn(3, 5, 4),))
    compare(engine, (torch.randn(6, 5, 4),), rtol=1e-3)


def usual_last_word(m, x, n, mask):
    return m.h(m.c(x)[torch.arange(len(x)), n.clamp(1, 5) - 1])


def usual_masked_mean(m, x, n, mask):
    hidden = torch.tanh(m.c(x)).masked_fill(~mask[:, :, None], 0)
    return m.h(hidden.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


def usual_sort_within_a_record(m, x, n, mask):
    return m.h(m.c(x).sort(1).values.flip(1).roll(1, 1))


def usual_buffer(m, x, n, mask):
    out = torch.zeros(len(x), 5, 4)
    for place in range(5):
        out[:, place] = m.c(x[:, place])
    return m.h(out)


def usual_one_hot(m, x, n, mask):
    return m.h(m.c(x) * F.one_hot(n.clamp(0, 3), 4)[:, None])


def usual_gather_within(m, x, n, mask):
    place = (n.clamp(1, 5) - 1)[:, None, None].expand(-1, 1, 4)
    return m.h(m.c(x).gather(1, place))


def usual_branch(m, x, n, mask):
    return m.h(m.c(x) * mask[:, :, None]) if bool(mask.any()) else m.h(m.c(x))


def usual_shared_keys(m, x, n, mask):
    """Attention with fewer keys than queries has heads."""
    hidden = m.c(x)
    heads, one = hidden.view(-1, 5, 2, 2).transpose(1, 2), hidden[:, None, :, :2]
    mixed = F.scaled_dot_product_attention(heads, one, one, enable_gqa=True)
    return m.h(mixed.transpose(1, 2).reshape(-1, 5, 4))


def usual_rotation(m, x, n, mask):
    """Rotary embeddings, by complex numbers."""
    turned = torch.view_as_complex(m.c(x).reshape(-1, 5, 2, 2)) * torch.polar(
        torch.ones(5, 1), torch.arange(5.0)[:, None]
    )
    return m.h(torch.view_as_real(turned).flatten(2))


@pytest.mark.parametrize(
    "forward",
    [usual_rotation, usual_shared_keys, usual_last_word, usual_masked_mean, usual_sort_within_a_record, usual_buffer,
     usual_one_hot, usual_gather_within, usual_branch],
)  # fmt: skip
def test_what_stays_inside_a_record_takes_the_fast_way(forward):
    engine = built_or_refused(forward, {})
    assert engine.notes == ()
    assert not engine._blueprint.all_alone
    for count in (1, 4, 9):
        compare(engine, records(count), rtol=1e-3)


def test_only_the_region_that_vmap_refuses_is_looped_over():
    class Refusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x.masked_fill(x > 1e9, 0) ** self.p if not bool((x > 1e9).any()) else x

    model = nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Softplus(), Refusing(), nn.Linear(4, 2))
    with quiet():
        engine = GradientEngine(model, square, (torch.randn(3, 4),))
    ways = {region.title: region.vectorised for region in engine._blueprint.regions}
    assert ways == {"1 (PReLU)": True, "3 (Refusing)": False}
    assert [("record by record" in note) for note in engine.notes] == [False, True]
    compare(engine, (torch.randn(5, 4),))


class Picky(nn.Module):
    """Takes sentences that end with the word 7 and no others."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, tokens):
        last = (tokens == 7).float()
        if not bool(last.any(1).all()):
            raise ValueError("a sentence does not end")
        return self.out((self.words(tokens) * last[:, :, None]).sum(1))


def sentences(count, seed):
    tokens = torch.randint(0, 7, (count, 5), generator=torch.Generator().manual_seed(seed))
    tokens[:, 4] = 7
    return tokens


def test_example_records_for_models_that_take_sensible_input_only():
    with pytest.raises(InputError, match="example="):
        GradientEngine(Picky(), square, (sentences(2, 0),))
    engine = GradientEngine(Picky(), square, (sentences(2, 0),), example=(sentences(6, 1),))
    assert engine.notes == ()
    compare(engine, (sentences(5, 2),))


@pytest.mark.parametrize(
    "example", [(sentences(1, 1),), (sentences(3, 1).float(),), (sentences(3, 1)[:, 1:],), (sentences(3, 1),) * 2]
)
def test_example_records_that_are_not_such_as_the_data_are_refused(example):
    with pytest.raises(InputError, match="example records"):
        GradientEngine(Picky(), square, (sentences(2, 0),), example=example)


def test_losses_along_a_direction_are_those_of_each_record_alone():
    """On a path that was not seen ahead the batch is not asked."""

    def leaning(m, x, n, mask):
        hidden = m.h(m.c(x))
        return hidden + x.mean(0)[:, :3] if bool((x > 50).any()) else hidden

    engine = built_or_refused(leaning, {})
    x, n, mask = records(6)
    x[2] += 100
    direction = {name: torch.ones_like(value) for name, value in engine.zeros().items()}
    found = engine.losses_along((x, n, mask), direction, [0.0, 0.1])
    alone = [
        engine.losses_along(tuple(each[i : i + 1] for each in (x, n, mask)), direction, [0.0, 0.1]) for i in range(6)
    ]
    torch.testing.assert_close(found, torch.cat(alone, 1))


def test_a_model_that_is_random_in_evaluation_too_is_refused_as_that():
    with pytest.raises(InputError, match="random numbers in evaluation mode"):
        built_or_refused(lambda m, x, n, mask: m.h(F.dropout(m.c(x), 0.5, training=True)), {})


def test_rows_that_nobody_owned_are_followed_to_who_uses_them():
    """A parameter repeated for every record and turned round by a constant; comparing gradients would find it too."""

    def turned(m, x, n, mask):
        return m.h(torch.tanh(m.token.expand(len(x), 5, 4).flip(0) * x))

    model, batch = Made(turned, **parts(token=torch.randn(1, 1, 4))), records(3)
    probes = probe_records_for(model, square, batch)
    found = attribute(model, square, probes.batch(3), inspect(model, square, probes=probes, demoted={}), Owners())
    assert "token" in found.astray
