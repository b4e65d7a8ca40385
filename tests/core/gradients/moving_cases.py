"""What the tests of moving share."""

import torch
from agreement import Made, quiet, square
from torch import nn

from adadp.gradients import GradientEngine


def parts(**more):
    return {"c": nn.Linear(4, 4), "h": nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)), **more}


def records(count=7):
    """Rows, lengths from 1 to 5 and masks of five places, different in every record."""
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, 6, (count,), generator=generator)
    mask = torch.arange(5) < lengths[:, None]
    return torch.randn(count, 5, 4, generator=generator), lengths, mask[:, torch.randperm(5, generator=generator)]


def built_or_refused(forward, more, loss=square):
    torch.manual_seed(0)
    with quiet():
        return GradientEngine(Made(forward, **parts(**more)), loss, records(2))
