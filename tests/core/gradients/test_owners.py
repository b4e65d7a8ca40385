"""Whose values a number is made of: no number may depend on a record that its owner does not name.

Every rule is tried on real kernels. One number of one argument is marked as a record's; what changes when it changes
must be owned by that record. Kernels without a rule are tried too: they join everything.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from adadp.gradients import owner_rules
from adadp.gradients.layout import Layout
from adadp.gradients.owner_rules import MIXED, NOBODY, join, over
from adadp.gradients.owners import Owners, pattern

X, Y = (3, 4, 6), (3, 6, 4)


torch.manual_seed(0)
LSTM, GRU = nn.LSTM(6, 5).requires_grad_(False), nn.GRU(6, 5).requires_grad_(False)


def whole(*shape, top=3):
    return ("whole", shape, top)


def filled(write):
    def call(x, *more):
        out = x.clone()
        write(out, *more)
        return out

    return call


def masked(x, y):
    out = x.clone()
    out[x > 0] = 0.5
    return out + 0 * y.transpose(1, 2)


CALLS = {
    "pointwise": (lambda x, y: torch.relu(x) * y.transpose(1, 2) + 1, X, Y),
    "where": (lambda x, y: torch.where(x > 0, x, y.transpose(1, 2)), X, Y),
    "views": (lambda x: x.transpose(0, 1).reshape(-1, 6)[1::2].t().contiguous().view(2, 3, -1).unfold(1, 2, 1), X),
    "in-place view": (lambda x: x.clone().transpose_(0, 1).squeeze_(), X),
    "sum": (lambda x: x.sum(1), X),
    "sum of all": (lambda x: x.sum(), X),
    "mean kept": (lambda x: x.mean((0, 2), keepdim=True), X),
    "max": (lambda x: x.max(2), X),
    "argmax": (lambda x: x.argmax(1), X),
    "amax": (lambda x: x.amax((1, 2)), X),
    "aminmax": (lambda x: torch.aminmax(x, dim=1), X),
    "any": (lambda x: (x > 0).any(1), X),
    "std": (lambda x: torch.std_mean(x, 2), X),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=(0, 1)), X),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), X),
    "prod": (lambda x: x.prod(0), X),
    "median": (lambda x: x.median(1), X),
    "softmax": (lambda x: x.softmax(0), X),
    "log_softmax": (lambda x: x.log_softmax(-1), X),
    "cumsum": (lambda x: x.cumsum(1), X),
    "cummax": (lambda x: x.cummax(2), X),
    "sort": (lambda x: x.sort(1), X),
    "argsort": (lambda x: x.argsort(0), X),
    "topk": (lambda x: x.topk(2, 2), X),
    "kthvalue": (lambda x: x.kthvalue(2, 1), X),
    "glu": (lambda x: F.glu(x, 1), X),
    "two parts": (lambda x, y: torch.view_as_real(torch.complex(x, y.transpose(1, 2)) * torch.polar(x.abs(), x)), X, Y),
    "rfft": (lambda x: torch.fft.rfft(x, dim=1).abs(), X),
    "layer_norm": (lambda x: F.layer_norm(x, (4, 6)), X),
    "rms_norm": (lambda x: F.rms_norm(x, (6,)), X),
    "group_norm": (lambda x: F.group_norm(x, 2), X),
    "instance_norm": (F.instance_norm, X),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), X),
    "batch_norm in evaluation": (lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)), X),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), X, (5, 4, 3)),
    "conv2d": (lambda x, w: F.conv2d(x[None], w, groups=1), X, (5, 3, 2, 2)),
    "conv_transpose1d": (F.conv_transpose1d, X, (4, 5, 3)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), X),
    "max_pool2d": (lambda x: F.max_pool2d(x[:, None], 2, return_indices=True), X),
    "avg_pool2d": (lambda x: F.avg_pool2d(x[:, None], 2), X),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x[:, None], 2), X),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x[:, None], 2), X),
    "reflection_pad": (lambda x: F.pad(x, (1, 1), mode="reflect"), X),
    "replication_pad": (lambda x: F.pad(x[None], (1, 1, 1, 1), mode="replicate"), X),
    "constant_pad": (lambda x: F.pad(x, (1, 0, 2, 1)), X),
    "unfold": (lambda x: F.unfold(x[:, None], 2), X),
    "fold": (lambda x: F.fold(x, (3, 4), (2, 2)), (3, 4, 6)),
    "interpolate": (lambda x: F.interpolate(x[:, None], scale_factor=2, mode="bilinear"), X),
    "interpolate nearest": (lambda x: F.interpolate(x, scale_factor=2), X),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x[:, :, None], 2), X),
    "grid_sample": (lambda x, g: F.grid_sample(x[:, None], g.tanh(), align_corners=False), X, (3, 2, 2, 2)),
    "affine_grid": (lambda t: F.affine_grid(t, (3, 1, 2, 2), align_corners=False), (3, 2, 3)),
    "attention": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True), X),
    "attention with mask": (
        lambda x, m: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], m[:, None]), X, (3, 4, 4)),
    "attention of more heads than keys": (
        lambda x, y: F.scaled_dot_product_attention(
            y.reshape(3, 4, 2, 3), x.reshape(3, 2, 4, 3), x.reshape(3, 2, 4, 3), enable_gqa=True), X, Y),
    "mm": (lambda x, y: x[0] @ y[0], X, Y),
    "bmm": (lambda x, y: x @ y, X, Y),
    "mv": (lambda x, y: x[0] @ y[0, :, 0], X, Y),
    "addmv": (lambda x, y, z: torch.addmv(z[0, :, 0], x[0], y[0, :, 0]), X, Y, X),
    "addmm": (lambda x, y, z: torch.addmm(z[0, :, :4], x[0], y[0]), X, Y, X),
    "baddbmm": (lambda x, y, z: torch.baddbmm(z[:, :, :4], x, y), X, Y, X),
    "linear": (F.linear, X, (5, 6), (5,)),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bik", x, y), X, Y),
    "bilinear": (lambda x, w: F.bilinear(x, x, w), X, (2, 6, 6)),
    "mse": (lambda x, y: F.mse_loss(x, y.transpose(1, 2), reduction="none"), X, Y),
    "mse of all": (lambda x, y: F.mse_loss(x, y.transpose(1, 2)), X, Y),
    "huber": (lambda x, y: F.huber_loss(x, y.transpose(1, 2), reduction="none"), X, Y),
    "smooth_l1": (lambda x, y: F.smooth_l1_loss(x, y.transpose(1, 2), reduction="none"), X, Y),
    "binary cross entropy": (
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.transpose(1, 2).sigmoid(), reduction="none"), X, Y),
    "binary cross entropy of logits": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.transpose(1, 2), reduction="none"), X, Y),
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y, reduction="none"), X, whole(3, 6, top=4)),
    "cross_entropy smoothed": (
        lambda x, y: F.cross_entropy(x[0], y, reduction="none", label_smoothing=0.1), X, whole(4, top=6)),
    "cross_entropy mean": (lambda x, y: F.cross_entropy(x[0], y), X, whole(4, top=6)),
    "lstm": (lambda x, h: LSTM(x, (h, h)), X, (1, 4, 5)),
    "gru": (GRU, X),
    "cat": (lambda x, y: torch.cat([x, y.transpose(1, 2)], 1), X, Y),
    "stack": (lambda x, y: torch.stack([x, y.transpose(1, 2)], 1), X, Y),
    "flip": (lambda x: x.flip(0, 2), X),
    "roll": (lambda x: x.roll((1, 2), (0, 1)), X),
    "roll of all": (lambda x: x.roll(3), X),
    "repeat": (lambda x: x.repeat(2, 1, 2), X),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), X),
    "index by constants": (lambda x: x[torch.tensor([2, 0]), :, torch.tensor([1, 5])], X),
    "index": (lambda x, i: x[i], X, whole(5, top=3)),
    "index apart": (lambda x, i, j: x[i, :, j], X, whole(5, top=3), whole(5, top=6)),
    "index of the last dimension": (lambda x, i: x[:, :, i], X, whole(2, 2, top=6)),
    "gather": (lambda x, i: x.gather(1, i), X, whole(3, 2, 6, top=4)),
    "index_select": (lambda x, i: x.index_select(2, i), X, whole(4, top=6)),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), X, whole(3, 4, 6, top=4), X),
    "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), X, whole(3, 2, 6, top=4), (3, 2, 6)),
    "one_hot": (lambda i: F.one_hot(i, 4), whole(5, top=4)),
    "index_put at constants": (
        filled(lambda out, s: out.__setitem__((slice(None), torch.tensor([1, 3])), s)), X, (3, 2, 6)),
    "index_put where true": (masked, X, Y),
    "index_add": (lambda x, i, s: x.index_add(0, i, s), X, whole(2, top=3), (2, 4, 6)),
    "slices written": (filled(lambda out, s: out[:, 1:3].copy_(s)), X, (3, 2, 6)),
    "added in place": (filled(lambda out, s: out[:, 1:3].add_(s)), X, (3, 2, 6)),
    "slice_scatter": (lambda x, s: x.slice_scatter(s, 1, 1, 3), X, (3, 2, 6)),
    "select_scatter": (lambda x, s: x.select_scatter(s, 1, 1), X, (3, 6)),
    "embedding": (lambda w, i: F.embedding(i, w), (5, 4), whole(3, 2, top=5)),
    "masked_fill": (lambda x, y: x.masked_fill(y.transpose(1, 2) > 0, 0), X, Y),
    "tril": (lambda x: x.tril(), X),
    "prelu": (F.prelu, X, (4,)),
    "likes": (lambda x: torch.zeros_like(x) + x.new_ones(4, 6), X),
    "cdist": (lambda x, y: torch.cdist(x, y.transpose(1, 2)), X, Y),
    "inverse": (lambda x: torch.linalg.inv(x[:, :, :4]), X),
    "dropout": (F.dropout, X),
    "complex": (lambda x: torch.view_as_real(torch.view_as_complex(x.view(3, 4, 3, 2)) * 1j), X),
    "normalize": (lambda x: F.normalize(x, dim=1), X),
    "cosine": (lambda x, y: F.cosine_similarity(x, y.transpose(1, 2), dim=2), X, Y),
    "diff": (lambda x: x.diff(dim=1), X),
    "kron": (lambda x, y: torch.kron(x[0], y[0]), X, Y),
    "native_dropout": (lambda x: torch.native_dropout(x, 0.5, True), X),
    "multinomial": (lambda x: torch.multinomial(x[0].exp(), 2), X),
    "filled": (filled(lambda out, v: (out[0].zero_(), out[1].fill_(v[0]), out[2].normal_())), X, (2,)),
    "bucketize": (lambda x: torch.bucketize(x, torch.arange(3.0)), X),
}  # fmt: skip


def made(argument, generator):
    if argument[0] == "whole":
        return torch.randint(0, argument[2], argument[1], generator=generator)
    return torch.randn(argument, generator=generator)


def changed(value, place, top, generator):
    other = value.clone()
    if other.is_floating_point():
        other.view(-1)[place] += 3 * torch.randn((), generator=generator)
    else:
        other.view(-1)[place] = (other.view(-1)[place] + 1) % top
    return other


@pytest.mark.parametrize("case", CALLS)
def test_what_a_record_changes_is_owned_by_it(case):
    call, *wanted = CALLS[case]
    generator = torch.Generator().manual_seed(1)
    for argument, _ in itertools.product(range(len(wanted)), range(4)):
        given = [made(each, generator) for each in wanted]
        place = int(torch.randint(given[argument].numel(), (), generator=generator))
        mark = torch.full((given[argument].numel(),), NOBODY, dtype=torch.int16)
        mark[place] = 0
        owners = Owners()
        owners._put(given[argument], mark.view(given[argument].shape))
        torch.manual_seed(3)
        with owners:
            before = [leaf for leaf in tree_leaves(call(*given)) if isinstance(leaf, torch.Tensor)]
        assert owners.lost is None
        found = [owners.of(leaf).clone() for leaf in before]
        before = [leaf.clone() for leaf in before]
        for _ in range(3):
            top = wanted[argument][2] if wanted[argument][0] == "whole" else 0
            other = [changed(each, place, top, generator) if i == argument else each for i, each in enumerate(given)]
            torch.manual_seed(3)
            after = [leaf for leaf in tree_leaves(call(*other)) if isinstance(leaf, torch.Tensor)]
            for one, two, owner in zip(before, after, found, strict=True):
                differs = ~((one == two) | (one.isnan() & two.isnan()))
                assert not bool((differs & (owner == NOBODY)).any())


def test_every_rule_is_tried(monkeypatch):
    seen = set()
    plain = owner_rules.rule_for

    def noted(name, func):
        seen.add(name)
        seen.add(name.removesuffix("_"))
        return plain(name, func)

    monkeypatch.setattr("adadp.gradients.owners.rule_for", noted)
    generator = torch.Generator().manual_seed(1)
    for call, *wanted in CALLS.values():
        for argument in range(len(wanted)):
            given = [made(each, generator) for each in wanted]
            owners = Owners()
            owners._put(given[argument], torch.zeros(given[argument].shape, dtype=torch.int16))
            with owners:
                call(*given)
    rules = {rule: [name for name, each in owner_rules._RULES.items() if each is rule] for rule in
             owner_rules._RULES.values()}  # fmt: skip
    untried = [names for names in rules.values() if not seen & set(names)]
    assert untried == [["_thnn_fused_lstm_cell"], ["_thnn_fused_gru_cell"]]  # on GPUs only


@pytest.mark.parametrize("layout", [Layout(0), Layout(1), Layout(2)])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.masked_fill(x > 0, 1),
        lambda x: x.relu() * 2 + 1,
        lambda x: x.flip(0).flip(0),
        lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        lambda x: x.repeat(1, 1, 1).clone(),
    ],
)
def test_rows_stay_their_records_where_nothing_mixes_them(layout, call):
    """A rule that joins too much would send every model the slow way."""
    x = torch.randn(3, 3, 3)
    owners = Owners()
    owners._put(x, pattern(layout, x.shape, 3))
    with owners:
        out = call(x)
    assert owners.belongs(out, layout, 3)


def test_values_that_leave_torch_and_sizes_that_tell_are_lost():
    from adadp.gradients.recorder import Recorder

    class Watching(Recorder):
        def __init__(self, owners):
            super().__init__({})
            self.owners = owners

        def _answered(self, func, given, output):
            self.owners.watch_answer(func, given, output)
            return output

    def lost(call, x):
        owners = Owners()
        owners.give((x,))
        with owners, Watching(owners):
            call(x)
        return owners.lost is not None

    x, i = torch.rand(4, 3), torch.randint(0, 3, (4,))
    leaves = [lambda x: x.tolist(), lambda x: float(x.sum()), lambda x: x.sum().item(), lambda x: x.numpy(),
              lambda x: x.nonzero(), lambda x: x[x > 0.5], lambda x: x.masked_select(x > 0.5), lambda x: x.unique(),
              lambda x: int(x.argmax()), lambda x: x.to_sparse(), lambda x: torch.tensor([x.max(), x.min()]),
                  lambda x: torch.as_tensor([[x.max()]]), lambda x: x.new_tensor([x.max()]),
                  lambda x: torch.arange(x.argmax()), lambda x: torch.ones(13)[x.argmax()],
                  lambda x: torch.ones(13)[: x.argmax()], lambda x: torch.zeros(13).__setitem__(x.argmax(), 1.0),
                  lambda x: torch.add(x, x, alpha=x.sum()), lambda x: F.leaky_relu(x, x.sum())]  # fmt: skip
    assert all(lost(call, x) for call in leaves)
    assert lost(F.one_hot, i)
    assert lost(lambda i: torch.arange(12).tensor_split(i.sort().values), i)
    stays = [lambda x: x.shape, lambda x: bool((x > 2).any()), len, lambda x: torch.equal(x, x + 1),
             lambda x: x.is_contiguous(), lambda x: x.dtype]  # fmt: skip
    assert not any(lost(call, x) for call in stays)
    assert not lost(lambda i: F.one_hot(i, 3), i)


def test_what_an_earlier_batch_left_is_mixed_with_the_next():
    owners = Owners()
    first, second = torch.rand(2, 3), torch.rand(2, 3)
    owners.give((first,))
    with owners:
        kept = first * 2
    owners.next_pass()
    owners.give((second,))
    with owners:
        out = second + kept
    assert bool((owners.of(out) == MIXED).all())


def test_memory_that_was_resized_is_mixed():
    owners = Owners()
    x = torch.rand(2, 3)
    owners.give((x,))
    with owners:
        out = torch.empty(0)
        torch.mul(x, 2, out=out)
        grown = x.clone()
        grown.resize_(4, 3)
    assert owners.known(out)
    assert bool((owners.of(grown) == MIXED).all())


def test_parts_of_complex_numbers_have_owners_of_their_own():
    owners = Owners()
    x = torch.rand(3, 2)
    owners.give((x,))
    with owners:
        whole = torch.view_as_complex(x)
        made = torch.complex(x[:, 0], x[:, 1])
        crossed = torch.view_as_complex(torch.stack([x[:, 0], x[:, 1].flip(0)], dim=1))
        parts = torch.view_as_real(made)
        parts[:, 1] = x[1, 0]
    assert owners.of(whole).tolist() == [0, 1, 2]
    assert owners.of(crossed).tolist() == [MIXED, 1, MIXED]
    assert owners.of(parts).tolist() == [[0, 1], [1, 1], [2, 1]]
    assert owners.of(made).tolist() == [MIXED, 1, MIXED]
    assert bool((owners.of(x.view(torch.uint8)) == MIXED).all())


def test_joins():
    nobody, one, two = (torch.tensor(each, dtype=torch.int16) for each in (NOBODY, 1, 2))
    assert [int(join(a, b)) for a, b in ((nobody, one), (one, nobody), (one, one), (one, two), (nobody, nobody))] == [
        1, 1, 1, MIXED, NOBODY]  # fmt: skip
    rows = torch.tensor([[0, NOBODY, 0], [0, 1, 1], [NOBODY, NOBODY, NOBODY]], dtype=torch.int16)
    assert over(rows, [1]).squeeze(1).tolist() == [0, MIXED, NOBODY]
    assert over(rows, [0]).squeeze(0).tolist() == [0, 1, MIXED]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: x[i],
        lambda x, i: x[i, torch.arange(3)],
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.gather(0, i[:, None].expand(3, 4)),
        lambda x, i: torch.zeros(3, 4).index_put((i,), x),
        lambda x, i: torch.zeros(3, 4).scatter(0, i[:, None].expand(3, 4), x),
        lambda x, i: torch.zeros(3, 4).index_add(0, i, x),
        lambda x, i: F.embedding(i, x),
    ],
)
def test_an_index_of_records_mixes_them_although_it_moves_nothing_today(call):
    """Record i picks row i. Another day it picks another: owners do not go by values."""
    x, i = torch.rand(3, 4), torch.arange(3)
    owners = Owners()
    owners.give((x, i))
    with owners:
        out = call(x, i)
    assert bool((owners.of(out) == MIXED).any())
