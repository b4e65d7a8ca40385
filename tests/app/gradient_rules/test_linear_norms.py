"""Norms from Gram matrices."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.app.gradient_rules.linear import gram_square_norm


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    positions=st.integers(2, 40),
    width=st.sampled_from([1, 3, 17, 200]),
    leftover=st.sampled_from([0.0, 1e-4, 1e-2, 1.0]),
)
def test_a_norm_from_gram_matrices_is_never_too_small(seed, positions, width, leftover):
    """Terms that cancel are where rounding could hurt."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(2, 1, width, generator=generator).expand(2, positions, width)
    a = a + leftover * torch.randn(2, positions, width, generator=generator)
    d = torch.randn(2, positions, width, generator=generator)
    d -= d.mean(1, keepdim=True) * (1 - leftover)
    got = gram_square_norm(a, d).double()
    want = torch.bmm(d.double().mT, a.double()).square().sum((1, 2))
    size = (a.double().norm(dim=2) * d.double().norm(dim=2)).sum(1).square()
    assert (got >= want * (1 - 1e-5)).all()
    assert (got <= want + 2e-6 * size).all()
