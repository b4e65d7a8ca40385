"""Private language models: the loss of a record, bits per byte or token on public texts, and texts drawn from a model.

A record is a row of whole numbers, 0 where the text has ended (rows of bytes, or of ``adadp.app.hub.token_rows``). The
model gives, at every position, one score for each of the values 1, 2, ... the next position may have. The first value
of a record is given and not guessed.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from adadp import checks
from adadp.app.features import WithFeatures
from adadp.app.losses import IGNORED, causal_lm
from adadp.app.text_rows import row_texts, text_rows
from adadp.app.train.evaluation import Evaluation
from adadp.errors import InputError

_AT_ONCE = 250


class NextToken(nn.Module):
    """A model of texts: (records, positions) to scores (records, positions, values), for what comes next."""

    unit: ClassVar[str]
    """What one position holds: a byte or a token."""
    context: int
    """How many positions it reads at most."""


def next_value_loss(model: nn.Module, rows: Tensor, *_: Tensor) -> Tensor:
    """Cross-entropy with the next value, in nats, averaged over the positions of a record that have a next value.

    A record without one has loss 0. Labels of records, if there are any, are not used.
    """
    return causal_lm(model, rows, _targets(rows))


def bits_on(rows: Tensor, unit: str) -> Evaluation:
    """Bits per ``unit`` on the public texts ``rows``: the mean over all positions together, not over texts.

    Perplexity is 2 to its power. ``rows`` have come through the features of the model, if it has any.
    """

    def measure(model: nn.Module) -> float:
        model = _network(model)
        device = next(model.parameters()).device
        nats, positions = 0.0, 0
        with torch.no_grad():
            for part in torch.split(rows, _AT_ONCE):
                targets = _targets(part).to(device)
                nats += float(causal_lm(model, part.to(device), targets, per="sequence").double().sum())
                positions += int((targets[:, 1:] != IGNORED).sum())
        return nats / math.log(2) / positions if positions else math.nan

    return Evaluation(measure, f"bits per {unit}", low=0.0)


def sample(model: nn.Module, start: str, *, length: int, temperature: float = 0.8, seed: int = 0) -> str:
    """A text of at most ``length`` bytes that a model of bytes makes of ``start``; it may be behind features.

    What a private model says is post-processing of what was released: it costs nothing, however often it is asked.
    """
    temperature = checks.positive("temperature", temperature)
    row = text_rows([start], checks.count("length", length)).long()
    written = int((row > 0).sum())
    if not written:
        raise InputError("`start` is empty.", fix="Pass a beginning: the first byte of a text is given, not guessed.")
    network = _network(model)
    if not isinstance(network, NextToken) or network.unit != "byte":
        raise InputError("The model is no language model of bytes.", fix="Pass the model of a run of byte-decoder.")
    generator = torch.Generator().manual_seed(seed)
    device = next(network.parameters()).device
    with torch.no_grad():
        for place in range(written, length):
            read = row[:, max(0, place - network.context) : place]
            scores = network(read.to(device))[0, -1].float().cpu()
            row[0, place] = 1 + int(torch.multinomial(torch.softmax(scores / temperature, 0), 1, generator=generator))
    return row_texts(row)[0]


def _network(model: nn.Module) -> nn.Module:
    return model.network if isinstance(model, WithFeatures) else model


def _targets(rows: Tensor) -> Tensor:
    """The class of every value, counted from 0, as the scores are; none where the text has ended."""
    return torch.where(rows > 0, rows.long() - 1, IGNORED)
