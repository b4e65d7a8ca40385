"""What the tests of clipping share."""

import math

import torch
from hypothesis import strategies as st
from torch import Tensor

from adadp.app.clipping.fixed import Automatic, PerLayer, PerLayerJoint
from adadp.app.clipping.quantile import QuantileAdaptive
from adadp.clipping import ClipRule, Flat

NAMES = ("conv.weight", "conv.bias", "fc1.weight", "fc1.bias", "out.weight")


LAYERS = 3


NAN, INF = math.nan, math.inf


bounds = st.floats(1e-12, 1e12)


@st.composite
def quantiles(draw, sizes=bounds):
    floor, initial, ceiling = sorted(draw(st.lists(sizes, min_size=3, max_size=3, unique=True)))
    return QuantileAdaptive(
        initial=initial,
        quantile=draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        learning_rate=draw(st.floats(1e-3, 10)),
        count_noise_multiplier=draw(st.floats(1e-3, 1e3)),
        floor=floor,
        ceiling=ceiling,
    )


SAMPLES = [
    Flat(1.0),
    PerLayer(4.0),
    PerLayer((3.0, 6.0, 0.1)),
    PerLayerJoint(4.0),
    Automatic(1.0),
    QuantileAdaptive(initial=1.0, count_noise_multiplier=10, floor=0.01, ceiling=100),
]


edges = [0.0, 1e-45, 1.2e-38, 1e-20, 0.9999, 1.0, 1.0001, 16.0, 1e38, 3.4e38, INF, -INF, NAN, -1e-7]


squares = st.one_of(st.sampled_from(edges), st.floats(0, width=32, allow_infinity=False), st.floats(0, 100, width=32))


batches = st.lists(st.lists(squares, min_size=LAYERS, max_size=LAYERS), max_size=5)


def batch_for(rule: ClipRule, rows: list[list[float]], dtype: torch.dtype = torch.float32) -> Tensor:
    """Square norms in as many columns as the rule asks for; rows are cut where it wants fewer."""
    groups = len(rule.groups(NAMES))
    return torch.tensor(rows, dtype=dtype).reshape(-1, LAYERS)[:, :groups]
