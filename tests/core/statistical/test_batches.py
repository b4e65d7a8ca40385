"""Batches are drawn as they are accounted, and a sampler that draws otherwise is found out."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import pytest
import torch
from scipy.stats import binom, chisquare

from adadp.app.samplers import FixedSizeSampler, ReshuffledSampler
from adadp.events import Neighbours
from adadp.randomness import SecureSource, SeededSource
from adadp.sampling import Batches, PoissonSampler

pytestmark = pytest.mark.statistical


RECORDS, STEPS, Q = 200, 4000, 0.1
SOURCE = SeededSource(5)
each_source = pytest.mark.parametrize("source", [SOURCE, SecureSource()], ids=["seeded", "secure"])


def broken_poisson_laws(batches, q: float = Q) -> set[str]:
    """Which laws of independent coins of probability ``q`` the batches (lists of record numbers) break."""
    drawn = torch.zeros(len(batches), RECORDS, dtype=torch.float64)
    for row, batch in zip(drawn, batches, strict=True):
        row[batch] = 1
    z = (drawn - q) / math.sqrt(q * (1 - q))
    steps = len(batches)
    pairs = (z.T @ z / math.sqrt(steps)).fill_diagonal_(0.0)
    successive = (z[1:] * z[:-1]).mean() * math.sqrt(z[1:].numel())
    sizes = z.sum(1) / math.sqrt(RECORDS)
    excess = {
        "rate": (z.mean().abs().item() * math.sqrt(z.numel()), 5),
        "rate of a record": (z.mean(0).abs().max().item() * math.sqrt(steps), 6),
        "independence of two records": (pairs.abs().max().item(), 8),
        "binomial size": (abs(sizes.square().mean().item() - 1) * math.sqrt(steps / 2), 5),
        "independence of steps": (successive.abs().item(), 5),
    }
    return {law for law, (value, limit) in excess.items() if not value <= limit}


@each_source
@pytest.mark.parametrize("q", [Q, 0.05], ids=["tossed one by one", "found by blocks"])
def test_poisson_batches_are_independent_coins(source, q):
    drawn = PoissonSampler(RECORDS, q)
    assert broken_poisson_laws([drawn.draw(step, source) for step in range(STEPS)], q) == set()


@each_source
@pytest.mark.parametrize(("records", "q"), [(2048, 0.05), (3 * 256 * 1024, 0.05), (10**7, 1e-4)])
def test_poisson_batches_found_by_blocks_have_binomial_counts_and_uniform_places(source, records, q):
    """20 parts of the records, of each of which the number of heads is binomial: whole blocks, and cut ones."""
    drawn, ends, steps = (
        PoissonSampler(records, q),
        torch.linspace(0, records, 21).long(),
        2000 if records < 10**4 else 60,
    )
    batches = [drawn.draw(step, source) for step in range(steps)]
    counts = torch.stack([torch.searchsorted(batch, ends).diff() for batch in batches]).double()
    expected = ends.diff() * q
    z = (counts - expected) / (expected * (1 - q)).sqrt()
    assert abs(z.mean()) * math.sqrt(z.numel()) < 5
    assert abs(z.square().mean() - 1) * math.sqrt(z.numel() / 2) < 5
    together = (z.T @ z / math.sqrt(steps)).fill_diagonal_(0.0)
    assert together.abs().max() < 6
    assert chisquare(torch.histc(torch.cat(batches) % 256 + 0.5, bins=256, min=0, max=256).numpy()).pvalue > 1e-6


@each_source
def test_the_number_of_heads_of_a_block_is_binomial(source):
    """Chi-square over all numbers expected more than five times, for 12.8 heads in 256 coins and 8.2 in 2**16."""
    for records, q in ((256, 0.05), (2**16, 1 / 8000)):
        counts = Counter(len(PoissonSampler(records, q).draw(step, source)) for step in range(STEPS))
        law = [STEPS * binom.pmf(k, records, q) for k in range(40)]
        common = [k for k in range(40) if law[k] > 5]
        seen, wanted = [counts[k] for k in common], [law[k] for k in common]
        assert chisquare([*seen, STEPS - sum(seen)], [*wanted, STEPS - sum(wanted)]).pvalue > 1e-6


def pairs_together(step: int) -> torch.Tensor:
    """Records in pairs that share a coin."""
    pairs = PoissonSampler(RECORDS // 2, Q).draw(step, SOURCE)
    return torch.cat([2 * pairs, 2 * pairs + 1])


reshuffled = ReshuffledSampler(RECORDS, int(Q * RECORDS))
TWINS = {
    "1.05 of the rate": (PoissonSampler(RECORDS, 1.05 * Q), "rate"),
    "batches of fixed size": (FixedSizeSampler(RECORDS, int(Q * RECORDS)), "binomial size"),
    "reshuffled batches": (reshuffled, "independence of steps"),
    "batches drawn record by record": (
        ReshuffledSampler(RECORDS, int(Q * RECORDS), Neighbours.ADD_REMOVE),
        "independence of steps",
    ),
}


@pytest.mark.parametrize(("drawn", "law"), TWINS.values(), ids=TWINS)
def test_what_is_not_poisson_sampling_is_rejected(drawn, law):
    assert law in broken_poisson_laws([drawn.draw(step, SOURCE) for step in range(STEPS)])


def test_records_that_share_a_coin_are_rejected():
    assert "independence of two records" in broken_poisson_laws([pairs_together(step) for step in range(STEPS)])


def test_a_batch_kept_for_two_steps_is_rejected():
    drawn = PoissonSampler(RECORDS, Q)
    batches = [drawn.draw(step // 2, SOURCE) for step in range(STEPS)]
    assert "independence of steps" in broken_poisson_laws(batches)


@each_source
@pytest.mark.parametrize("q", [0.3, 0.06])
def test_small_poisson_batches_have_every_subset_with_its_probability(source, q):
    drawn = PoissonSampler(4, q)
    counts = Counter(tuple(drawn.draw(step, source).tolist()) for step in range(STEPS))
    subsets = [subset for size in range(5) for subset in combinations(range(4), size)]
    expected = [STEPS * q ** len(subset) * (1 - q) ** (4 - len(subset)) for subset in subsets]
    assert counts[()] > 0
    assert chisquare([counts[subset] for subset in subsets], expected).pvalue > 1e-6


@each_source
def test_fixed_size_batches_are_uniform_over_the_subsets(source):
    drawn = FixedSizeSampler(5, 2)
    counts = Counter(tuple(drawn.draw(step, source).tolist()) for step in range(STEPS))
    assert chisquare([counts[subset] for subset in combinations(range(5), 2)]).pvalue > 1e-6
    assert sum(counts.values()) == STEPS


@each_source
@pytest.mark.parametrize("neighbours", [Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE])
def test_every_record_is_in_every_batch_equally_often(source, neighbours):
    run = Batches(ReshuffledSampler(6, 2, neighbours), source)
    counts = torch.zeros(3, 6)
    for step in range(3 * 1500):
        counts[step % 3, run.batch(step)] += 1
    assert (counts.sum(0) == 1500).all()
    assert all(chisquare(column.numpy()).pvalue > 1e-6 for column in counts.T)


def test_uniforms_are_uniform():
    counts = torch.histc(SOURCE.uniform(100_000, purpose="test", step=0), bins=100, min=0, max=1)
    assert chisquare(counts.numpy()).pvalue > 1e-6


def test_permutations_are_uniform():
    counts = Counter(tuple(SOURCE.permutation(4, purpose="test", step=step).tolist()) for step in range(STEPS))
    assert len(counts) == 24
    assert chisquare(list(counts.values())).pvalue > 1e-6
