"""Models that move, route, mask, remember or mix records: computed as plain autograd computes them, or refused."""

from collections import deque

import pytest
import torch
import torch.nn.functional as F
from agreement import compare, quiet
from moving_cases import built_or_refused, records
from torch import nn

from adadp.errors import InputError, MixedRecords
from adadp.gradients import GradientEngine

pytestmark = pytest.mark.slow


def sorted_by_length(m, x, n, mask):
    n, order = n.clamp(min=1).sort(descending=True)
    return m.h(torch.tanh(m.c(x[order]))[order.argsort()])


def sorted_by_mask(m, x, n, mask):
    order = mask.sum(1).argsort(stable=True)
    return m.h(torch.tanh(m.c(x.index_select(0, order))).index_select(0, order.argsort()))


def gathered_by_length(m, x, n, mask):
    order = n.argsort(stable=True)
    wide = order[:, None, None].expand_as(x)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    return m.h(torch.tanh(m.c(x.gather(0, wide)))[back])


def packed(m, x, n, mask):
    rows = nn.utils.rnn.pack_padded_sequence(m.c(x), n.clamp(1, 5), batch_first=True, enforce_sorted=False)
    return m.h(nn.utils.rnn.pad_packed_sequence(m.rnn(rows)[0], batch_first=True, total_length=5)[0])


def packed_by_hand(m, x, n, mask):
    """The positions that count, of all records one after the other."""
    out = torch.zeros_like(x)
    out[mask] = torch.tanh(m.c(x[mask]))
    return m.h(out)


def routed(m, x, n, mask):
    """Each record goes to one of two experts; with made-up lengths both may get equally many."""
    chosen = n % 2 == 0
    out = torch.zeros_like(x)
    out[chosen] = m.c(x[chosen])
    out[~chosen] = m.other(x[~chosen])
    return m.h(out)


def routed_by_count(m, x, n, mask):
    """The first half by rank goes to one expert: shapes do not depend on the records."""
    order = n.argsort(stable=True)
    half = len(order) // 2
    moved = torch.cat([m.c(x[order[:half]]), m.other(x[order[half:]])])
    return m.h(moved[order.argsort()])


def sorted_in_python(m, x, n, mask):
    order = sorted(range(len(n)), key=n.tolist().__getitem__)
    back = torch.tensor(order).argsort()
    return m.h(torch.tanh(m.c(x[order]))[back])


def flipped_on_a_branch(m, x, n, mask):
    if bool(n[0] > n[-1]):
        return m.h(torch.tanh(m.c(x.flip(0))).flip(0))
    return m.h(torch.tanh(m.c(x)))


def rolled_by_a_value(m, x, n, mask):
    shift = int(n.sum())
    return m.h(torch.tanh(m.c(x.roll(shift, 0))).roll(-shift, 0))


def cut_to_the_longest(m, x, n, mask):
    longest = int(n.clamp(1, 5).max())
    inside = (torch.arange(longest) < n[:, None]).unsqueeze(2)
    return (m.h(torch.tanh(m.c(x[:, :longest]))) * inside).sum(1)


def unique_rows(m, x, n, mask):
    """Every length is looked at once, however many records have it."""
    lengths, place = n.unique(return_inverse=True)
    return m.h(m.c(x) + m.c(lengths[:, None].expand(-1, 4).float())[place][:, None])


def put_into_slots(m, x, n, mask):
    order = n.argsort(stable=True)
    slots = torch.zeros_like(x).index_put((order,), x)
    return m.h(torch.tanh(m.c(slots))[order])


def token_for_another(m, x, n, mask):
    """A parameter repeated for every record, and then dealt in another order."""
    tokens = m.token.expand(len(x), 5, 4)[n.argsort(stable=True)]
    return m.h(torch.tanh(tokens * x))


def constants_for_another(m, x, n, mask):
    """A layer on constants, whose rows are used by other records than their place says."""
    rows = m.c(torch.linspace(0, 1, len(x))[:, None].expand(-1, 4))[n.argsort(stable=True).argsort()]
    return m.h(x + 0 * rows[:, None] + rows[:, None] / (1 + rows[:, None].detach()))


class Shifted(torch.autograd.Function):
    """Forward nothing happens; backward, gradients go to the neighbour where the last record is long."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(n)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (n,) = ctx.saved_tensors
        return grad if int(n[-1]) < 5 else grad.roll(1, 0), None


def backward_of_ones_own(m, x, n, mask):
    return m.h(Shifted.apply(torch.tanh(m.c(x)), n))


def first_rows_again(m, x, n, mask):
    """The same calls for every number of records, and rows that move from the fifth on."""
    rows = torch.arange(len(x)) % 4
    return m.h(m.c(x)[rows])


def far(x):
    """Whether some record is farther away than any that is made up, as a tensor."""
    return (x.abs().max() > 40).long()


def as_long_as_the_farthest(m, x, n, mask):
    places = torch.arange(far(x) + 5)
    return m.h(m.c(x)) * (places < 5).float().mean()


def row_of_a_table(m, x, n, mask):
    return m.h(m.c(x)) * torch.tensor([1.0, 3.0])[far(x)]


def narrowed_by_a_value(m, x, n, mask):
    return m.h(m.c(x)) * torch.tensor([1.0, 3.0]).narrow(0, far(x), 1)


def filled_with_a_value(m, x, n, mask):
    return m.h(m.c(x)) * torch.full((1,), far(x) + 1.0)


def factor_of_a_sum(m, x, n, mask):
    out = m.h(m.c(x))
    return torch.add(out, out, alpha=far(x))


def divided_by_the_larger(m, x, n, mask):
    """Python's ``max`` gives back the number for records that are not far away, and a tensor of all for others."""
    return m.h(m.c(x)) / max(x.abs().max(), 40.0)


def one_of_two_tensors(m, x, n, mask):
    return m.h(m.c(x)) * (torch.tensor(3.0) if bool(far(x)) else torch.tensor(1.0))


def truth_as_a_number(m, x, n, mask):
    return m.h(m.c(x)) * (1 + bool(far(x)))


@pytest.mark.parametrize("forward", [divided_by_the_larger, one_of_two_tensors, truth_as_a_number])
def test_another_truth_value_is_another_path(forward):
    """The calls are the same: what they are given depends on all records."""
    engine = built_or_refused(forward, {})
    assert not engine.notes
    rows, lengths, mask = records(7)
    compare(engine, (rows, lengths, mask), rtol=1e-3)
    rows[3] *= 100
    compare(engine, (rows, lengths, mask), rtol=1e-3)


PLAIN_NUMBERS = [
    as_long_as_the_farthest,
    row_of_a_table,
    narrowed_by_a_value,
    filled_with_a_value,
    factor_of_a_sum,
]


@pytest.mark.parametrize("forward", PLAIN_NUMBERS)
def test_values_that_torch_itself_reads_as_plain_numbers_are_seen(forward):
    """No made-up record is far away; among real ones that are not, one that is would change them all."""
    engine = built_or_refused(forward, {})
    assert forward.__name__ in engine.notes[0]
    rows, lengths, mask = records(7)
    rows[3] *= 100
    compare(engine, (rows, lengths, mask), rtol=1e-3)


@torch.jit.script
def moved_where_far(x, order):
    if bool(x.abs().max() > 40):
        return x[order]
    return x * 1


def test_scripted_code_is_slow_and_right():
    """What a script does cannot be followed: a branch of its own is no call that is seen."""

    def forward(m, x, n, mask):
        order = n.argsort()
        return m.h(moved_where_far(m.c(moved_where_far(x, order)), order.argsort()))

    engine = built_or_refused(forward, {"c": torch.jit.trace(nn.Linear(4, 4), torch.randn(2, 5, 4))})
    assert "called by no torch function" in engine.notes[0]
    assert engine._blueprint.all_alone
    rows, lengths, mask = records(7)
    rows[3] *= 100
    compare(engine, (rows, lengths, mask), rtol=1e-3)


class Queue:
    """What the last calls saw goes into the next, once there were more than it takes to look a model over."""

    def __init__(self, model_is_random=False):
        self.seen, self.random = deque(maxlen=40 * 32), model_is_random

    def __call__(self, m, x, n, mask):
        out = F.dropout(m.c(x), 0.1, m.training) if self.random else m.c(x)
        full = len(self.seen) == self.seen.maxlen
        self.seen.extend(x.detach().mean((1, 2)))
        return m.h(out) + torch.stack(tuple(self.seen)[-8:]).mean() if full else m.h(out)


class LargestNumber:
    """Larger at first than anything made up."""

    def __init__(self):
        self.largest = 40.0

    def __call__(self, m, x, n, mask):
        self.largest = max(self.largest, x.abs().max().item())
        return m.h(m.c(x) * 40 / self.largest)


@pytest.mark.parametrize("forward", [Queue(), Queue(model_is_random=True), LargestNumber()])
def test_a_model_that_remembers_one_record_at_a_time_is_stopped(forward):
    engine = built_or_refused(forward, {})
    rows, lengths, mask = records(32)
    rows[7] *= 1000

    def run():
        for step in range(80):  # batches are never the same
            order = torch.randperm(32, generator=torch.Generator().manual_seed(step))
            list(engine.captures((rows[order], lengths[order], mask[order]), torch.zeros(32, dtype=torch.bool)))

    with pytest.raises(MixedRecords, match="after other records were seen"):
        run()


def halves(m, x, n, mask):
    """By length, in two halves: with one record alone there is one."""
    order = n.argsort()
    first, second = m.c(x[order]).chunk(2)
    return m.h(torch.cat([first, second])[order.argsort()])


def test_what_cannot_be_run_one_record_at_a_time_is_refused_with_its_line():
    with pytest.raises(InputError, match=r"cannot be computed .*in halves.*not enough values"):
        built_or_refused(halves, {})


MOVING = {
    "rows that move in larger batches": (first_rows_again, {}),
    "sort and unsort by length": (sorted_by_length, {}),
    "sort by mask": (sorted_by_mask, {}),
    "gather and scatter by length": (gathered_by_length, {}),
    "packed sequences": (packed, {"rnn": nn.GRU(4, 4, batch_first=True)}),
    "packed by hand": (packed_by_hand, {}),
    "routing": (routed, {"other": nn.Linear(4, 4)}),
    "sorted in Python": (sorted_in_python, {}),
    "a branch that flips": (flipped_on_a_branch, {}),
    "rolled by a value": (rolled_by_a_value, {}),
    "cut to the longest": (cut_to_the_longest, {}),
    "unique rows": (unique_rows, {}),
    "put into slots": (put_into_slots, {}),
    "a token for another record": (token_for_another, {"token": torch.randn(1, 1, 4)}),
}


@pytest.mark.parametrize("case", MOVING)
def test_a_model_that_moves_records_is_computed_right(case):
    forward, more = MOVING[case]
    engine = built_or_refused(forward, more)
    for count in (1, 2, 5, 8):
        compare(engine, records(count), rtol=1e-3)


@pytest.mark.parametrize("case", ["sort and unsort by length", "sort by mask", "packed by hand", "sorted in Python"])
def test_the_note_names_the_line_that_moves_records(case):
    engine = built_or_refused(*MOVING[case])
    assert "test_moving.py:" in engine.notes[0]
    assert MOVING[case][0].__name__ in engine.notes[0]


def batch_statistics(m, x, n, mask):
    return m.h(m.c((x - x.mean(0)) / (x.std(0, unbiased=False) + 1)))


def summed_before(m, x, n, mask):
    return m.h(m.c(x.cumsum(0)))


def attention_between_records(m, x, n, mask):
    rows = x.transpose(0, 1)
    return m.h(F.scaled_dot_product_attention(m.c(rows), rows, rows).transpose(0, 1))


def rows_of_labels(m, x, n, mask):
    return m.h(m.c(x)[n % len(n)])


def chosen_by_experts(m, x, n, mask):
    """The expert takes the two best records of the batch."""
    best = m.c(x).mean((1, 2)).topk(2).indices
    return m.h(m.c(x)).index_add(0, best, m.h(x[best]))


def longest_of_all(m, x, n, mask):
    return m.h(m.c(x * int(n.max())))


class Cache:
    """What an earlier call left behind goes into the next."""

    def __call__(self, m, x, n, mask):
        out = m.c(x)
        seen = getattr(m, "seen", None)
        m.seen = out.detach().mean()
        return m.h(out) if seen is None else m.h(out) + seen


class NumberCache:
    def __call__(self, m, x, n, mask):
        out = m.h(m.c(x)) * getattr(m, "seen", 1.0)
        m.seen = float(x.detach().abs().mean())
        return out


MIXING = {
    "batch statistics by hand": batch_statistics,
    "sums over earlier records": summed_before,
    "attention between records": attention_between_records,
    "rows of other records by label": rows_of_labels,
    "experts that choose records": chosen_by_experts,
    "routing with equal counts": routed_by_count,
    "scaled by the longest": longest_of_all,
    "a cached tensor": Cache(),
    "a cached number": NumberCache(),
    "a backward pass of one's own": backward_of_ones_own,
}


@pytest.mark.parametrize("case", MIXING)
def test_a_model_that_mixes_records_is_refused(case):
    with pytest.raises(
        InputError, match=r"other records of its batch|after another batch|cannot be computed"
    ) as caught:
        built_or_refused(MIXING[case], {"other": nn.Linear(4, 4)})
    if "cached" not in case:
        assert ("Shifted" if "backward" in case else f"in {MIXING[case].__name__}") in str(caught.value)


def test_in_batch_negatives_are_refused():
    def loss(model, x, n, mask):
        a, b = model(x, n, mask).flatten(1), x.flatten(1)[:, :15]
        return F.cross_entropy(a @ b.t(), torch.arange(len(x)), reduction="none")

    with pytest.raises(InputError, match="other records of its batch"):
        built_or_refused(lambda m, x, n, mask: m.h(m.c(x)), {}, loss)


class Words(nn.Module):
    """A masked language model whose head looks at the masked positions only."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.body = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.head = nn.Linear(8, 50)

    def forward(self, tokens, masked):
        return self.head(self.body(self.words(tokens))[masked])


def masked_loss(model, tokens, masked, targets):
    losses = F.cross_entropy(model(tokens, masked), targets[masked], reduction="none")
    owner = masked.nonzero()[:, 0]
    return torch.zeros(len(tokens)).index_add(0, owner, losses) / masked.sum(1).clamp(min=1)


def test_a_head_on_masked_positions_is_slow_and_right():
    tokens, targets = torch.randint(0, 50, (2, 6, 5))
    masked = torch.rand(6, 5) < 0.4
    masked[2] = False  # a record that takes no part
    with quiet():
        engine = GradientEngine(Words(), masked_loss, (tokens, masked, targets))
    assert "record by record" in engine.notes[0]
    compare(engine, (tokens, masked, targets), rtol=1e-3)
