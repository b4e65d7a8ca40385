"""Layers without a rule: by torch.func, or record by record."""

import pytest
import torch
from agreement import agrees, square
from torch import nn

from adadp.gradients import GradientEngine


class Recurrent(nn.Module):
    def __init__(self, kind, **settings_):
        super().__init__()
        self.layer = kind(3, 4, **settings_)
        self.out = nn.Linear(4 * (2 if self.layer.bidirectional else 1), 2)

    def forward(self, x):
        outputs, _ = self.layer(x if self.layer.batch_first else x.transpose(0, 1))
        return self.out(outputs[:, -1] if self.layer.batch_first else outputs[-1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("settings_", [{"batch_first": True}, {}, {"bidirectional": True, "num_layers": 2}], ids=str)
def test_recurrent_layers_go_the_generic_way(kind, settings_):
    model = Recurrent(kind, **settings_)
    agrees(model, (torch.randn(3, 3, 3),), generic=[f"layer.{name}" for name, _ in model.layer.named_parameters()])


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)

    def forward(self, x):
        state = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return state[0]


def test_a_cell_called_step_by_step():
    agrees(Cell(), (torch.randn(3, 4, 3),), generic=[f"cell.{name}" for name, _ in Cell().cell.named_parameters()])


def test_notes_say_what_goes_the_generic_way():
    with pytest.warns(UserWarning, match=r"layer \(LSTM\): no closed form for lstm") as caught:
        engine = GradientEngine(Recurrent(nn.LSTM), square, (torch.randn(3, 3, 3),))
    assert [str(each.message) for each in caught] == list(engine.notes)
    assert caught[0].filename == __file__
