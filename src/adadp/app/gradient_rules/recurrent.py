"""Recurrent networks, written out step by step.

torch runs a whole LSTM, GRU or plain recurrent network as one call, which leaves no pair of input and output gradient
behind. Here the same call is made of linear layers, one over all steps for the inputs of a layer and one per step for
its state. The uses of a weight over the steps are one linear layer over all positions (``LinearRule.joined``). Masks of
dropout between layers are drawn once, for the loss and its gradients alike.

Packed sequences are not written out: packing sorts the records by their lengths, and what is moved by values of records
is computed one record at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adadp.gradients.readers import Reader, WrittenOut

State = tuple[Tensor, ...]
"""The hidden state of one layer, and for an LSTM that of its cell."""
Gates = Callable[[Tensor, Tensor, State], State]
"""Next state from the linear functions of the input and of the hidden state, and from the state."""


def _lstm_gates(given: Tensor, recurrent: Tensor, state: State) -> State:
    enter, forget, cell, leave = (given + recurrent).chunk(4, dim=-1)
    memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(cell)
    return torch.sigmoid(leave) * torch.tanh(memory), memory


def _gru_gates(given: Tensor, recurrent: Tensor, state: State) -> State:
    (reset, update, new), (reset_h, update_h, new_h) = given.chunk(3, dim=-1), recurrent.chunk(3, dim=-1)
    new = torch.tanh(new + torch.sigmoid(reset + reset_h) * new_h)
    return (new + torch.sigmoid(update + update_h) * (state[0] - new),)


def _tanh_gates(given: Tensor, recurrent: Tensor, state: State) -> State:  # noqa: ARG001 - as the others
    return (torch.tanh(given + recurrent),)


def _relu_gates(given: Tensor, recurrent: Tensor, state: State) -> State:  # noqa: ARG001 - as the others
    return (torch.relu(given + recurrent),)


def recurrent(  # noqa: PLR0917 - the signature is that of torch.gru
    gates: Gates,
    input: Tensor,
    hx: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    **_: Any,
) -> tuple[Tensor, ...]:
    """The outputs of the last layer, and the last states of all layers and directions."""
    states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)  # weights of one direction of one layer
    values = input.transpose(0, 1) if batch_first else input  # as torch has it: it draws the same masks
    last: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            weights = params[place * each : (place + 1) * each]
            state = tuple(part[place] for part in states)
            found, state = _direction(gates, values, state, weights, biases=has_biases, backwards=direction == 1)
            outputs.append(found)
            last.append(state)
        values = outputs[0] if directions == 1 else torch.cat(outputs, dim=-1)
        if dropout and layer < num_layers - 1:
            values = F.dropout(values, dropout, training=train)
    ends = [torch.stack(parts) for parts in zip(*last, strict=True)]
    return (values.transpose(0, 1) if batch_first else values, *ends)


def _direction(
    gates: Gates, values: Tensor, state: State, weights: Sequence[Tensor], *, biases: bool, backwards: bool
) -> tuple[Tensor, State]:
    """One layer in one direction over ``[steps, records, width]``."""
    of_input, of_state, *rest = weights
    bias, state_bias = (rest[0], rest[1]) if biases else (None, None)
    projection = rest[-1] if len(rest) % 2 else None  # an LSTM with proj_size has one weight more
    given = F.linear(values, of_input, bias).unbind(0)
    steps = range(len(given))
    outputs = []
    for step in reversed(steps) if backwards else steps:
        hidden, *memory = gates(given[step], F.linear(state[0], of_state, state_bias), state)
        state = (hidden if projection is None else F.linear(hidden, projection), *memory)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


def _layers(gates: Gates) -> Reader:
    def read(input: Tensor, hx: Any, params: Any, *settings: Any, **named: Any) -> WrittenOut | None:
        if isinstance(params, Tensor) or input.dim() != 3:  # torch's other signature: a packed sequence
            return None
        return WrittenOut(lambda part: recurrent(gates, input, hx, params, *settings, **named))  # noqa: ARG005

    return read


def _cell(gates: Gates) -> Reader:
    def run(  # noqa: PLR0917 - the signature is that of torch.gru_cell
        input: Tensor,
        hx: Tensor | Sequence[Tensor],
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
        **_: Any,
    ) -> Tensor | State:
        state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        found = gates(F.linear(input, w_ih, b_ih), F.linear(state[0], w_hh, b_hh), state)
        return found[0] if isinstance(hx, Tensor) else found

    return lambda *args, **kwargs: WrittenOut(partial(run, *args, **kwargs))


READERS: dict[Callable[..., Any], Reader] = {
    torch.lstm: _layers(_lstm_gates),
    torch.gru: _layers(_gru_gates),
    torch.rnn_tanh: _layers(_tanh_gates),
    torch.rnn_relu: _layers(_relu_gates),
    torch.lstm_cell: _cell(_lstm_gates),
    torch.gru_cell: _cell(_gru_gates),
    torch.rnn_tanh_cell: _cell(_tanh_gates),
    torch.rnn_relu_cell: _cell(_relu_gates),
}
