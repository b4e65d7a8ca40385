"""The non-uniform transform against the plain sum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adadp.accounting.nufft import nonuniform_transform


@pytest.mark.parametrize("frequencies", [1, 2, 17, 1000])
@pytest.mark.parametrize("points", [1, 3, 5000])
def test_it_is_the_plain_sum(points, frequencies):
    random = np.random.default_rng(points + frequencies)
    masses = random.random(points)
    places = random.uniform(-40.0, 40.0, points)  # many times around the circle, both ways
    expected = (masses[:, None] * np.exp(1j * places[:, None] * np.arange(frequencies))).sum(axis=0)
    (found,) = nonuniform_transform(masses[None], places[None], frequencies)
    assert found.shape == (frequencies,)
    rounding = 2.3e-16 * 40 * frequencies  # of the phases in the plain sum
    assert np.abs(found - expected).max() <= (1e-12 + rounding) * masses.sum()


def test_masses_of_very_different_size():
    masses = np.array([1.0, 1e-8, 1e-15])
    places = np.array([0.0, math.pi, -math.pi / 3])
    expected = (masses[:, None] * np.exp(1j * places[:, None] * np.arange(64))).sum(axis=0)
    assert np.abs(nonuniform_transform(masses[None], places[None], 64)[0] - expected).max() <= 1e-12


def test_frequency_zero_is_the_total_mass():
    masses = np.linspace(0, 1, 1001)
    found = nonuniform_transform(masses[None], np.linspace(-3, 3, 1001)[None], 8)[0, 0]
    assert found.real == pytest.approx(masses.sum(), rel=1e-13)
    assert abs(found.imag) < 1e-10
