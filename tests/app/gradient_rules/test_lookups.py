"""Bags of words and weights chosen record by record, against plain autograd."""

import pytest
import torch
import torch.nn.functional as F
from agreement import Made, agrees, compare, quiet, square
from torch import nn

from adadp.gradients import GradientEngine

WORDS = torch.tensor([[1, 2, 2, 0], [4, 4, 4, 4], [0, 0, 0, 0]])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0, -5], ids=str)
def test_bags_of_words(mode, padding):
    model = Made(lambda self, x: self.out(self.bag(x)), bag=nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding))
    model.out = nn.Linear(3, 2)
    agrees(model, (WORDS,))


def test_the_function_is_read_as_the_module_is():
    model = Made(lambda self, x: F.embedding_bag(x, self.table, mode="sum"), table=torch.randn(5, 3))
    agrees(model, (WORDS,))


def test_words_with_weights_that_are_trained():
    def forward(self, words):
        return self.bag(words, per_sample_weights=self.importance(words).squeeze(2))

    model = Made(forward, bag=nn.EmbeddingBag(5, 3, mode="sum"), importance=nn.Embedding(5, 1))
    agrees(model, (WORDS,))


def test_bags_of_unequal_size_go_record_by_record():
    def forward(self, words, kept):
        return torch.stack(
            [self.bag(row[mask], torch.zeros(1, dtype=torch.long))[0] for row, mask in zip(words, kept, strict=True)]
        )

    kept = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]], dtype=torch.bool)
    model = Made(forward, bag=nn.EmbeddingBag(5, 3))
    agrees(model, (WORDS, kept), generic=["bag.weight"])


@pytest.mark.parametrize("chosen", [[0, 2, 2], [-1, 0, -3]], ids=str)
def test_matrices_chosen_by_every_record(chosen):
    def forward(self, x, expert):
        return torch.einsum("rio,ri->ro", self.weight[expert], x)

    model = Made(forward, weight=torch.randn(3, 4, 2))
    agrees(model, (torch.randn(3, 4), torch.tensor(chosen)))


class Experts(nn.Module):
    """Every record is sent to one expert, by a router that is trained; an expert may have no record at all."""

    def __init__(self, count=4):
        super().__init__()
        self.router = nn.Linear(3, count)
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(count))

    def forward(self, x):
        gates, chosen = self.router(x).softmax(1).max(1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(x[rows]))
        return out * gates.unsqueeze(1)


def test_experts_that_gather_their_records():
    torch.manual_seed(2)
    with quiet():
        engine = GradientEngine(Experts(), square, (torch.randn(6, 3),))
    for records in (6, 1):  # of one record, three experts have none
        compare(engine, (torch.randn(records, 3),), clamp=False)
