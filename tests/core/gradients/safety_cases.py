"""What the tests of safety share."""

import torch
import torch.nn.functional as F
from torch import nn


class Words(nn.Module):
    """Embedding, attention, normalisation, a bare parameter, a tied weight and one that has no rule."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.place = nn.Parameter(torch.randn(1, 5, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=dropout)
        self.bent = nn.PReLU(8)

    def forward(self, tokens):
        hidden = self.layer(self.words(tokens) + self.place)
        return F.linear(self.bent(hidden.mean(1)), self.words.weight)


def image_model():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, 9)
    )


def words():
    return torch.randint(0, 9, (6, 5)), torch.randint(0, 9, (6,))


def images():
    return torch.randn(6, 2, 4, 4), torch.randint(0, 9, (6,))


MODELS = {"words": (Words, words, ["bent.weight"]), "images": (image_model, images, [])}
