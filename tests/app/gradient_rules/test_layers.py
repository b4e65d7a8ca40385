"""Every kind of layer against plain autograd: norms, sums weighted by group, clamped sums."""

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from agreement import Made, agrees, quiet
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adadp.app.gradient_rules import convolution
from adadp.app.gradient_rules.attention import attention

pytestmark = pytest.mark.slow


BATCHES = st.sampled_from([1, 3, 4])
few = settings(max_examples=12, deadline=None)


@few
@given(
    records=BATCHES,
    positions=st.lists(st.integers(1, 4), max_size=2),
    inputs=st.integers(1, 9),
    outputs=st.integers(1, 9),
    bias=st.booleans(),
)
def test_linear(records, positions, inputs, outputs, bias):
    agrees(nn.Linear(inputs, outputs, bias=bias), (torch.randn(records, *positions, inputs),))


@pytest.mark.parametrize("positions", [1, 2, 40])
def test_linear_norms_by_gram_matrices_and_by_instances(positions):
    agrees(nn.Linear(20, 30), (torch.randn(3, positions, 20),))


CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def kernel_for_each_record(wanted):
    """Inside, small convolutions are computed as large ones are, record by record."""
    return patch.object(convolution, "_ONE_BY_ONE", 0 if wanted else convolution._ONE_BY_ONE)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_convolution(data):
    draw = data.draw
    dimensions = draw(st.integers(1, 3), label="dimensions")
    groups = draw(st.integers(1, 3), label="groups")
    mode = draw(st.sampled_from(["zeros", "circular", "reflect", "replicate"]), label="padding mode")
    padding = draw(st.sampled_from([0, 1, 2, "same", "valid"]), label="padding")
    layer = CONVOLUTIONS[dimensions](
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 3)),
        draw(st.integers(1, 3), label="kernel"),
        stride=1 if padding == "same" else draw(st.integers(1, 2), label="stride"),
        padding=padding,
        dilation=draw(st.integers(1, 2), label="dilation"),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=mode,
    )
    size = {1: 9, 2: 6, 3: 5}[dimensions]
    with kernel_for_each_record(draw(st.booleans(), label="a kernel for each record")):
        agrees(layer, (torch.randn(draw(BATCHES), layer.in_channels, *[size] * dimensions),))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_transposed_convolution(data):
    draw = data.draw
    dimensions = draw(st.integers(1, 3), label="dimensions")
    groups = draw(st.integers(1, 2), label="groups")
    stride = draw(st.integers(1, 3), label="stride")
    dilation = draw(st.integers(1, 2), label="dilation")
    layer = TRANSPOSED[dimensions](
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        draw(st.integers(1, 3), label="kernel"),
        stride=stride,
        padding=draw(st.integers(0, 1)),
        output_padding=draw(st.integers(0, max(stride, dilation) - 1)),
        groups=groups,
        dilation=dilation,
    )
    with kernel_for_each_record(draw(st.booleans(), label="a kernel for each record")):
        agrees(layer, (torch.randn(draw(BATCHES), layer.in_channels, *[4] * dimensions),))


def test_convolution_of_few_positions_and_many_weights():
    """The norm comes from Gram matrices here, from the gradients themselves elsewhere."""
    for layer in (nn.Conv2d(12, 16, 3, groups=2), nn.ConvTranspose2d(12, 16, 3)):
        agrees(layer, (torch.randn(3, 12, 3, 3),))


def test_a_large_convolution_and_channels_that_lie_together():
    agrees(nn.Conv2d(64, 64, 5, padding=2), (torch.randn(3, 64, 6, 6),))
    for layer in (nn.Conv2d(6, 4, 3), nn.Conv2d(6, 6, 3, groups=6)):
        agrees(layer, (torch.randn(3, 6, 5, 5).contiguous(memory_format=torch.channels_last),))


def test_parameters_that_layers_share_in_part():
    """A weight with two biases; a bias that is also the one row of a weight; weight and bias used together twice."""
    mixed = Made(
        lambda m, x: F.linear(F.linear(x, m.weight, m.one) + F.linear(x * x, m.weight, m.other), m.one[None], m.last),
        weight=torch.randn(4, 3),
        one=torch.randn(4),
        other=torch.randn(4),
        last=torch.randn(1),
    )
    agrees(mixed, (torch.randn(3, 2, 3),))
    twice = Made(lambda m, x: m.layer(torch.tanh(m.layer(x))), layer=nn.Linear(4, 4))
    for positions in ((), (2,), (40,)):
        agrees(twice, (torch.randn(3, *positions, 4),))


@few
@given(records=BATCHES, length=st.integers(1, 6), padding_idx=st.sampled_from([None, 0, 2, -1]), sparse=st.booleans())
def test_embedding(records, length, padding_idx, sparse):
    """Few rows, so that records look up rows twice."""
    index = torch.randint(0, 4, (records, length))
    agrees(nn.Embedding(4, 3, padding_idx=padding_idx, sparse=sparse), (index,))


def test_embedding_of_one_index_per_record_and_of_index_tables():
    agrees(nn.Embedding(5, 3), (torch.randint(0, 5, (4,)),))
    agrees(nn.Embedding(5, 3), (torch.randint(0, 5, (4, 2, 3)),))
    agrees(nn.Embedding(5, 3), (torch.randint(0, 5, (4, 2), dtype=torch.int32),))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LayerNorm(6), (6,)),
        (nn.LayerNorm(6), (5, 6)),
        (nn.LayerNorm((5, 6)), (2, 5, 6)),
        (nn.LayerNorm((5, 6)), (5, 6)),
        (nn.LayerNorm(6, bias=False), (5, 6)),
        (nn.GroupNorm(2, 6), (6,)),
        (nn.GroupNorm(3, 6), (6, 4)),
        (nn.GroupNorm(3, 6, eps=0.1), (6, 4, 3)),
        (nn.InstanceNorm1d(3, affine=True), (3, 7)),
        (nn.InstanceNorm2d(3, affine=True), (3, 4, 5)),
        (nn.RMSNorm(6), (5, 6)),
        (nn.RMSNorm((5, 6), eps=0.1), (5, 6)),
    ],
    ids=str,
)
@pytest.mark.parametrize("records", [1, 3])
def test_normalisation(layer, shape, records):
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    agrees(layer, (torch.randn(records, *shape),))


class Attending(nn.Module):
    def __init__(self, *, self_attention, keyword=None, **settings):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **settings)
        self.self_attention = self_attention
        self.keyword = keyword or {}

    def forward(self, query, key, value):
        if self.self_attention:
            key = value = query
        if not self.attention.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
            if self.self_attention:
                key = value = query
        output, weights = self.attention(query, key, value, **self.keyword)
        output = output if self.attention.batch_first else output.transpose(0, 1)
        return output if weights is None else (output, weights)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("self_attention", [True, False])
@pytest.mark.parametrize(
    "settings_",
    [
        {},
        {"bias": False},
        {"add_bias_kv": True, "add_zero_attn": True},
        {"kdim": 5, "vdim": 6},
        {"keyword": {"need_weights": False}},
        {"keyword": {"average_attn_weights": False}},
    ],
    ids=str,
)
def test_attention(batch_first, self_attention, settings_):
    if self_attention:  # of one width
        settings_ = {name: value for name, value in settings_.items() if name not in ("kdim", "vdim")}
    widths = (8, settings_.get("kdim", 8), settings_.get("vdim", 8))
    lengths = (3, 4, 4)  # three queries for three records: the records are found all the same
    inputs = tuple(torch.randn(3, length, width) for length, width in zip(lengths, widths, strict=True))
    model = Attending(batch_first=batch_first, self_attention=self_attention, **settings_)
    agrees(model, inputs, rtol=1e-3)


class Both(nn.Module):
    """One attention used for self- and for cross-attention: its packed projection is used whole and in parts."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, y):
        x = self.attention(x, x, x)[0]
        return self.attention(x, y, y)[0]


def test_attention_called_with_its_projection_whole_and_in_parts():
    packed = ["attention.in_proj_weight", "attention.in_proj_bias"]
    agrees(Both(), (torch.randn(3, 4, 8), torch.randn(3, 5, 8)), generic=packed, rtol=1e-3)


MASKS = {
    "none": {},
    "bool": {"attn_mask": torch.rand(3, 4) < 0.4},
    "float": {"attn_mask": torch.randn(3, 4)},
    "bool per head": {"attn_mask": torch.rand(2 * 2, 3, 4) < 0.4},
    "float per head": {"attn_mask": torch.randn(2 * 2, 3, 4)},
    "padding": {"key_padding_mask": torch.tensor([[False, True, False, True], [False, False, False, True]])},
    "float padding": {"key_padding_mask": torch.randn(2, 4)},
}
MASKS |= {
    f"{name} and padding": {**MASKS[name], "key_padding_mask": MASKS["padding"]["key_padding_mask"]}
    for name in ("bool", "bool per head")
}
MASKS["float per head and padding"] = {**MASKS["float per head"], **MASKS["float padding"]}
for each in MASKS.values():  # everybody may look somewhere: an empty row is NaN
    if "attn_mask" in each and each["attn_mask"].dtype == torch.bool:
        each["attn_mask"][..., 0] = False


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("settings_", [{}, {"add_bias_kv": True, "add_zero_attn": True}, {"bias": False}], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_attention_written_out_equals_torchs(mask, need_weights, settings_, dropout, monkeypatch):
    module = nn.MultiheadAttention(8, 2, dropout=dropout, **settings_)
    query, key, value = torch.randn(3, 2, 8), torch.randn(4, 2, 8), torch.randn(4, 2, 8)
    options = {"need_weights": need_weights, "average_attn_weights": False, **MASKS[mask]}
    with quiet():  # torch warns about masks of two kinds
        torch.manual_seed(1)
        want = module(query, key, value, **options)
        monkeypatch.setattr(
            F,
            "multi_head_attention_forward",
            lambda *args, **kwargs: attention(*args, **kwargs, part=lambda whole, start, stop: whole[start:stop]),
        )
        torch.manual_seed(1)
        got = module(query, key, value, **options)
    torch.testing.assert_close(got[0], want[0])
    assert (got[1] is None) == (want[1] is None)
    if got[1] is not None:
        torch.testing.assert_close(got[1], want[1])


class Causal(nn.Module):
    def __init__(self, need_weights):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x, padding):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.attention(
            x, x, x, attn_mask=mask, is_causal=True, key_padding_mask=padding, need_weights=self.need_weights
        )[0]


@pytest.mark.parametrize("need_weights", [True, False])
def test_causal_attention_with_padding(need_weights):
    padding = torch.tensor([[0.0, 0, 0, 0], [0, 0, 0, -torch.inf], [0, 0, -torch.inf, -torch.inf]])
    agrees(Causal(need_weights), (torch.randn(3, 4, 8), padding), rtol=1e-3)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_layers(batch_first, norm_first):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            settings_ = {"dropout": 0.0, "batch_first": batch_first, "norm_first": norm_first}
            self.encoder = nn.TransformerEncoderLayer(8, 2, 12, activation="gelu", **settings_)
            self.decoder = nn.TransformerDecoderLayer(8, 2, 12, **settings_)

        def forward(self, x, y):
            if batch_first:
                return self.decoder(y, self.encoder(x))
            x, y = x.transpose(0, 1), y.transpose(0, 1)
            return self.decoder(y, self.encoder(x)).transpose(0, 1)

    agrees(Model(), (torch.randn(4, 4, 8), torch.randn(4, 3, 8)), rtol=1e-3)
