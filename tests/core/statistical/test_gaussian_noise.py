"""The noise of a release and the normals of a source are what they are said to be, and broken twins are found out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gaussian_checker import broken_laws
from scipy.stats import norm

from adadp.noise import GaussianMechanism
from adadp.noise.gaussian import grid_of
from adadp.randomness import SecureSource, SeededSource

pytestmark = pytest.mark.statistical


STEPS, COORDINATES = 500, 200
L2_BOUND, MULTIPLIER = 3.0, 1.5
SUM = {"weight": torch.linspace(-5, 5, COORDINATES - 8).reshape(-1, 4), "bias": torch.linspace(-1, 1, 8)}
FLAT = torch.cat([part.flatten() for part in SUM.values()]).double()
STD = MULTIPLIER * (L2_BOUND + grid_of(L2_BOUND, COORDINATES) * math.sqrt(COORDINATES))


def released(step: int, *, multiplier=MULTIPLIER, source=None, at=None) -> torch.Tensor:
    out = GaussianMechanism().release(
        SUM,
        l2_bound=L2_BOUND,
        noise_multiplier=multiplier,
        source=source or SeededSource(11),
        step=step if at is None else at,
    )
    return torch.cat([part.flatten() for part in out.values()]).double()


def broken(mechanism) -> set[str]:
    """The laws broken by the noise ``mechanism`` adds at each step."""
    return broken_laws(torch.stack([mechanism(step) - FLAT for step in range(STEPS)]), STD)


def fresh(step: int, kind: str = "other") -> torch.Tensor:
    return SeededSource(12).normal(COORDINATES, purpose=kind, step=step) * STD


def uniform_noise(step: int) -> torch.Tensor:
    return (SeededSource(12).uniform(COORDINATES, purpose="twin", step=step) - 0.5) * math.sqrt(12) * STD


def truncated(step: int) -> torch.Tensor:
    """Normal noise without its tails, stretched back to the right variance."""
    low, high = norm.cdf([-2.0, 2.0])
    uniforms = SeededSource(12).uniform(COORDINATES, purpose="twin", step=step).numpy()
    kept = 1 - 4 * norm.pdf(2.0) / (high - low)
    return torch.from_numpy(norm.ppf(low + (high - low) * uniforms) / np.sqrt(kept)) * STD


def one_without_noise(step: int) -> torch.Tensor:
    noisy = released(step)
    noisy[17] = FLAT[17]
    return noisy


def one_shifted(step: int) -> torch.Tensor:
    noisy = released(step)
    noisy[17] += 0.5 * STD
    return noisy


def one_louder(step: int) -> torch.Tensor:
    noisy = released(step)
    noisy[17] += 0.5 * (noisy[17] - FLAT[17])
    return noisy


def two_alike(step: int) -> torch.Tensor:
    noisy = released(step)
    noisy[17] = FLAT[17] + (noisy[31] - FLAT[31])
    return noisy


TWINS = {
    "0.9 of the noise": (lambda step: released(step, multiplier=0.9 * MULTIPLIER), "scale"),
    "1.1 of the noise": (lambda step: released(step, multiplier=1.1 * MULTIPLIER), "scale"),
    "0.98 of the noise": (lambda step: released(step, multiplier=0.98 * MULTIPLIER), "scale"),
    "no noise": (lambda step: FLAT, "scale"),
    "a wrong mean": (lambda step: released(step) + 0.03 * STD, "mean"),
    "one coordinate without noise": (one_without_noise, "scale of a coordinate"),
    "one coordinate shifted": (one_shifted, "mean of a coordinate"),
    "one coordinate too loud": (one_louder, "scale of a coordinate"),
    "two coordinates with the same noise": (two_alike, "correlation of two coordinates"),
    "one normal for all coordinates": (lambda step: FLAT + fresh(step)[0], "correlation of all coordinates"),
    "a common part in all coordinates": (
        lambda step: FLAT + math.sqrt(0.95) * fresh(step) + math.sqrt(0.05) * fresh(step, "common")[0],
        "correlation of all coordinates",
    ),
    "the same noise at every step": (lambda step: released(step, at=0), "correlation of all steps"),
    "the same noise at two steps": (lambda step: released(step, at=step // 2), "correlation of two steps"),
    "a part of the step before": (
        lambda step: FLAT + math.sqrt(0.99) * fresh(step) + math.sqrt(0.01) * fresh(step + 1),
        "correlation of two steps",
    ),
    "uniform noise of the right variance": (lambda step: FLAT + uniform_noise(step), "normality"),
    "noise cut off at two standard deviations": (lambda step: FLAT + truncated(step), "normality"),
}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_checker_accepts_the_mechanism(seed):
    assert broken(lambda step: released(step, source=SeededSource(seed))) == set()


def test_the_checker_accepts_the_mechanism_with_secure_noise():
    assert broken(lambda step: released(step, source=SecureSource())) == set()


@pytest.mark.parametrize(("mechanism", "law"), TWINS.values(), ids=TWINS)
def test_the_checker_rejects(mechanism, law):
    assert law in broken(mechanism)


@pytest.mark.parametrize("source", [SeededSource(3), SecureSource()], ids=["seeded", "secure"])
def test_the_normals_of_a_source(source):
    rows = [source.normal(COORDINATES, purpose="test", step=step) for step in range(STEPS)]
    assert broken_laws(torch.stack(rows), 1.0) == set()


def test_two_purposes_of_a_seed_are_independent():
    source = SeededSource(3)
    pairs = [
        torch.cat([source.normal(COORDINATES // 2, purpose=purpose, step=step) for purpose in ("noise", "count")])
        for step in range(STEPS)
    ]
    assert broken_laws(torch.stack(pairs), 1.0) == set()


def test_the_tail_has_its_mass():
    """Four million normals: the numbers beyond 3, 4 and 5 standard deviations, within five standard errors."""
    normals = SeededSource(3).normal(4_000_000, purpose="test", step=0).abs()
    for distance in (3, 4, 5):
        expected = 4_000_000 * 2 * norm.sf(distance)
        assert abs((normals > distance).sum().item() - expected) < 5 * math.sqrt(expected)
