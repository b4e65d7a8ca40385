"""The intervals of released figures hold the truth about as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from figure_cases import scored

from adadp.app.figures import classes_figures
from adadp.app.figures.released import class_figures, class_sums, number_figures, number_sums

pytestmark = pytest.mark.statistical

TRIES, LEAST = 60, 51
"""Of 60 tries that hold with probability 0.95, 51 or fewer do with probability 0.003."""


def test_the_figures_of_a_classifier():
    """Of the population, from which the records are drawn anew each time."""
    names, noise = ("recall", "accuracy", "precision", "balanced_accuracy"), 6.0
    generator = np.random.default_rng(4)
    truth = classes_figures(*scored(100_000, generator), ("no", "yes"))["figures"]
    held = dict.fromkeys(names, 0)
    for _ in range(TRIES):
        sums = class_sums(*scored(3000, generator), 0.5)
        noisy = sums + noise * generator.normal(size=len(sums))
        found = class_figures(noisy, noise, ("no", "yes"), records=3000, threshold=0.5)["figures"]
        for name in names:
            held[name] += found[name]["low"] <= truth[name]["value"] <= found[name]["high"]
    assert min(held.values()) > LEAST, held


def test_a_mean_error():
    """Of clip(x + 2 z) for x uniform in [0, 10] and normal z; the truth by numerical integration."""
    x, z = np.linspace(0.005, 9.995, 1000)[:, None], np.linspace(-6, 6, 2001)[None]
    weight = np.exp(-(z**2) / 2)
    truth = (np.abs(np.clip(x + 2 * z, 0, 10) - x) * weight).sum() / weight.sum() / len(x)
    generator, noise, held = np.random.default_rng(5), 4.0 * math.sqrt(5), 0
    for _ in range(TRIES):
        true = generator.uniform(0, 10, (2000, 1))
        said = np.clip(true + generator.normal(size=(2000, 1)) * 2, 0, 10)
        sums = number_sums(true, said, [(0, 10)])
        noisy = sums + noise * generator.normal(size=len(sums))
        mae = number_figures(noisy, noise, ["y"], [(0, 10)], records=2000)["targets"][0]["figures"]["mae"]
        held += mae["low"] <= truth <= mae["high"]
    assert held > LEAST
