"""Recurrent networks against plain autograd, record by record, and their outputs against torch's own kernels."""

import pytest
import torch
import torch.nn.functional as F
from agreement import Made, agrees, compare, quiet, square
from torch import nn

from adadp.app.gradient_rules import recurrent
from adadp.gradients import GradientEngine
from adadp.gradients.recorder import Recorder

SIGHT = 5e-5
"""In double precision: a norm has an allowance for rounding, a few 2^-20 of its condition, added to it."""
SETTINGS = [
    {"batch_first": True},
    {},
    {"bias": False},
    {"bidirectional": True, "num_layers": 2},
    {"num_layers": 3, "bias": False, "batch_first": True},
]


class Recurrent(nn.Module):
    """All outputs and the last states, records first; the first states may be given."""

    def __init__(self, kind, **settings):
        super().__init__()
        self.layer = kind(3, 4, **settings)

    def forward(self, x, *first):
        layer = self.layer
        first = [each.transpose(0, 1).contiguous() for each in first]
        given = None if not first else tuple(first) if isinstance(layer, nn.LSTM) else first[0]
        outputs, last = layer(x if layer.batch_first else x.transpose(0, 1), given)
        last = last if isinstance(last, tuple) else (last,)
        return (outputs if layer.batch_first else outputs.transpose(0, 1), *(each.transpose(0, 1) for each in last))


def written_out(model, *batch):
    """What the model gives while its calls are written out; it must have been written out."""
    with Recorder(dict(model.named_parameters())) as recorder:
        output = model(*batch)
    assert recorder.uses
    assert not recorder.others
    return output


def same_values(model, *batch):
    with torch.no_grad():
        expected = model(*batch)
    torch.testing.assert_close(written_out(model, *batch), expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gradients_and_outputs(kind, settings):
    model, x = Recurrent(kind, **settings).double(), torch.randn(3, 5, 3, dtype=torch.float64)
    same_values(model, x)
    assert not agrees(model, (x,), rtol=SIGHT, clamp=False).notes


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (nn.RNN, {"nonlinearity": "relu"}),
        (nn.LSTM, {"proj_size": 2}),
        (nn.LSTM, {"proj_size": 2, "bias": False}),
        (nn.LSTM, {"proj_size": 2, "num_layers": 2, "bidirectional": True, "batch_first": True}),
    ],
    ids=str,
)
def test_other_cells(kind, settings):
    model, x = Recurrent(kind, **settings).double(), torch.randn(3, 4, 3, dtype=torch.float64)
    same_values(model, x)
    assert not agrees(model, (x,), rtol=SIGHT, clamp=False).notes


@pytest.mark.parametrize(("kind", "settings"), [(nn.LSTM, {}), (nn.LSTM, {"proj_size": 2}), (nn.GRU, {}), (nn.RNN, {})])
def test_first_states_that_are_computed_by_a_trained_layer(kind, settings):
    """Their gradients reach that layer through the first step."""

    def forward(m, x, h, c):
        return m.inner(x, m.first(h), *([m.second(c)] if kind is nn.LSTM else []))

    width = settings.get("proj_size", 4)
    model = Made(forward, inner=Recurrent(kind, **settings), first=nn.Linear(3, width), second=nn.Linear(2, 4)).double()
    model.second.requires_grad_(kind is nn.LSTM)
    batch = torch.randn(3, 5, 3).double(), torch.randn(3, 1, 3).double(), torch.randn(3, 1, 2).double()
    with quiet():
        engine = GradientEngine(model, square, batch)
    assert not engine.notes
    trained = [each for each in model.parameters() if each.requires_grad]
    rows = [torch.autograd.grad(square(model, *(each[i : i + 1] for each in batch)).sum(), trained) for i in range(3)]
    capture = engine.capture(batch)
    for i, row in enumerate(rows):
        got = capture.weighted_sums(torch.eye(3, dtype=torch.float64)[:, [i]], [list(engine.names)])
        for name, value in zip(engine.names, row, strict=True):
            torch.testing.assert_close(got[name], value)


@pytest.mark.parametrize("frozen", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "weight_hr_l0"])
def test_frozen_weights(frozen):
    model = Recurrent(nn.LSTM, proj_size=2).double()
    model.layer.get_parameter(frozen).requires_grad_(False)
    batch = (torch.randn(3, 4, 3, dtype=torch.float64),)
    with quiet():
        engine = GradientEngine(model, square, batch)
    assert not engine.notes
    assert f"layer.{frozen}" not in engine.names
    names = [f"layer.{name}" for name, value in model.layer.named_parameters() if value.requires_grad]
    capture = engine.capture(batch)
    for i in range(3):
        alone = torch.autograd.grad(square(model, batch[0][i : i + 1]).sum(), [model.get_parameter(n) for n in names])
        got = capture.weighted_sums(torch.eye(3, dtype=torch.float64)[:, [i]], [names])
        for name, value in zip(names, alone, strict=True):
            torch.testing.assert_close(got[name], value)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_called_step_by_step(kind, bias):
    def forward(m, x):
        state = None
        for step in range(x.shape[1]):
            state = m.cell(x[:, step], state)
        return state

    model, x = Made(forward, cell=kind(3, 4, bias=bias)).double(), torch.randn(3, 4, 3, dtype=torch.float64)
    same_values(model, x)
    assert not agrees(model, (x,), rtol=SIGHT, clamp=False).notes


def test_a_layer_that_runs_twice():
    model = Made(lambda m, x: m.layer(m.layer(x)[0])[0], layer=nn.GRU(3, 3, batch_first=True)).double()
    assert not agrees(model, (torch.randn(3, 4, 3, dtype=torch.float64),), rtol=SIGHT, clamp=False).notes


@pytest.mark.slow
def test_dropout_between_layers_is_drawn_once():
    """With the random numbers of the capture, plain autograd over the written-out model has the same gradients."""
    model, x = Recurrent(nn.LSTM, num_layers=2, dropout=0.5), torch.randn(3, 5, 3)
    with quiet():
        engine = GradientEngine(model, square, (x,))
    assert not engine.notes
    torch.manual_seed(7)
    got = engine.capture((x,)).weighted_sums(torch.ones(3, 1), [list(engine.names)])
    torch.manual_seed(7)
    with Recorder(dict(model.named_parameters())):
        losses = square(model, x)
    other = torch.autograd.grad(losses.sum(), list(model.parameters()))
    for value, expected in zip(got.values(), other, strict=True):
        torch.testing.assert_close(value, expected)
    torch.manual_seed(8)
    again = engine.capture((x,)).weighted_sums(torch.ones(3, 1), [list(engine.names)])
    assert not torch.allclose(again["layer.weight_ih_l1"], got["layer.weight_ih_l1"])


def test_no_dropout_in_evaluation_mode_and_none_after_the_last_layer():
    x = torch.randn(3, 5, 3)
    same_values(Recurrent(nn.GRU, num_layers=2, dropout=0.9).eval(), x)
    model = Recurrent(nn.LSTM, num_layers=2, dropout=0.5)
    before = torch.get_rng_state()
    output = written_out(model, x)[0]
    assert not torch.equal(before, torch.get_rng_state())
    assert bool((output != 0).all())


def test_records_of_unequal_length_with_a_mask():
    """The last valid state by gather, and a mean over valid steps; what comes after a record's end does not matter."""

    def forward(m, x, lengths):
        outputs, _ = m.layer(x)
        last = outputs.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, 4)).squeeze(1)
        valid = (torch.arange(x.shape[1]) < lengths.unsqueeze(1)).unsqueeze(2)
        return torch.cat([last, (outputs * valid).sum(1) / lengths.unsqueeze(1)], 1)

    model = Made(forward, layer=nn.LSTM(3, 4, batch_first=True)).double()
    x, lengths = torch.randn(3, 5, 3, dtype=torch.float64), torch.tensor([5, 2, 3])
    engine = agrees(model, (x, lengths), rtol=SIGHT, clamp=False)
    assert not engine.notes
    cut = x[1:2, :2], lengths[1:2]
    alone = torch.autograd.grad(square(model, *cut).sum(), list(model.parameters()))
    got = engine.capture((x, lengths)).weighted_sums(torch.tensor([[0.0], [1.0], [0.0]]).double(), [list(engine.names)])
    for value, expected in zip(got.values(), alone, strict=True):
        torch.testing.assert_close(value, expected)


def test_a_model_that_passes_states_between_records_is_not_taken_apart():
    """The state of one record starts the next: written out or not, that is mixing."""

    def forward(m, x):
        _, h = m.layer(x)
        return m.layer(x, h.roll(1, 1))[0]

    model = Made(forward, layer=nn.GRU(3, 4, batch_first=True))
    with pytest.raises(Exception, match="other records of its batch"), quiet():
        GradientEngine(model, square, (torch.randn(3, 4, 3),))


def test_a_record_that_is_not_finite_leaves_the_others_alone():
    model, x = Recurrent(nn.RNN, nonlinearity="relu"), torch.randn(3, 4, 3)
    with quiet():
        engine = GradientEngine(model, square, (x,))
    names = [list(engine.names)]
    weights = torch.tensor([[1.0], [0.0], [1.0]])
    want = engine.capture((x,)).weighted_sums(weights, names)
    x[1] = torch.inf
    capture = engine.capture((x,))
    assert capture.square_norms(names).isinf().squeeze(1).tolist() == [False, True, False]
    got = capture.weighted_sums(torch.ones(3, 1), names)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value)


def test_packed_sequences_go_record_by_record():
    """Packing sorts records by their lengths, which cannot be followed; see docs/models.md for what to do instead."""

    def forward(m, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return m.layer(packed)[1].squeeze(0)

    model = Made(forward, layer=nn.GRU(3, 4, batch_first=True))
    batch = torch.randn(3, 5, 3), torch.tensor([5, 2, 3])
    with quiet():
        engine = GradientEngine(model, square, batch)
    assert engine.notes
    compare(engine, batch, clamp=False)


def test_half_precision_by_autocast():
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        model, x = Recurrent(kind, num_layers=2), torch.randn(3, 5, 3)
        exact = [each.detach() for each in model(x)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for got, want in zip(written_out(model, x), exact, strict=True):
                torch.testing.assert_close(got.float(), want, atol=0.03, rtol=0.03)


def test_every_function_of_torch_is_known_by_its_name():
    """``nn.LSTM`` calls ``torch._VF.lstm``: the same object must come to the reader."""
    assert {function.__name__ for function in recurrent.READERS} == {
        f"{kind}{cell}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for cell in ("", "_cell")
    }
    assert F.linear not in recurrent.READERS
