"""A small language model of bytes: a decoder with attention to what came before, trained from scratch.

Pre-norm blocks (Xiong et al. 2020), learned positions, no dropout: noise in the gradients does its work. The last layer
starts at zero, so the first guess is that all 255 bytes are alike. No layer mixes records.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adadp.app.language import NextToken
from adadp.errors import InputError

VALUES = 255
"""What a byte of a text may be: all but 0, which says that the text has ended."""
_HEAD = 16
"""Width of one head of attention."""


class ByteDecoder(NextToken):
    """Rows of at most ``context`` bytes to scores for the byte after each of them."""

    unit = "byte"

    def __init__(self, context: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        if width % _HEAD:
            raise InputError(f"A width of {width} cannot be split into heads.", fix=f"Pass a multiple of {_HEAD}.")
        self.context = context
        self.bytes = nn.Embedding(VALUES + 1, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(_Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VALUES)
        for table in (self.bytes, self.positions):
            nn.init.normal_(table.weight, std=0.1)
        for value in self.head.parameters():
            nn.init.zeros_(value)

    def forward(self, rows: Tensor) -> Tensor:
        # Positions are looked up once per record, so that every layer's input has the records on its first axis.
        places = torch.arange(rows.shape[1], device=rows.device).expand(rows.shape)
        scores: Tensor = self.head(self.norm(self.blocks(self.bytes(rows) + self.positions(places))))
        return scores


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values: Tensor) -> Tensor:
        records, positions, width = values.shape
        heads = self.read(self.before(values)).reshape(records, positions, 3, -1, _HEAD)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.out(found.transpose(1, 2).reshape(records, positions, width))
        wider: Tensor = values + self.narrow(F.gelu(self.wide(self.between(values))))
        return wider
