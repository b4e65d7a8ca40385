"""Figures from noisy sums: what one record can move, that they find the truth, and that their intervals hold it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from figure_cases import scored
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.app.figures import classes_figures, headline, lines
from adadp.app.figures.released import (
    EDGES,
    bound_of_numbers,
    class_figures,
    class_sums,
    edges,
    number_figures,
    number_sums,
)
from adadp.app.report.html.figure_parts import figures_section, key_figures

pytestmark = pytest.mark.fast

PROBABILITY = st.one_of(st.sampled_from((0.0, 1.0, 0.5, *EDGES)), st.floats(0, 1))


@given(PROBABILITY, st.sampled_from([0, 1]), st.floats(0.001, 0.999))
def test_a_record_of_two_classes_adds_one_to_one_cell(probability, label, threshold):
    sums = class_sums(np.array([[1 - probability, probability]]), np.array([label]), threshold)
    assert sorted(sums)[-2:] == [0.0, 1.0]
    above = np.searchsorted(edges(threshold), threshold) + 1
    assert sums.reshape(2, -1)[label, above:].sum() == (probability > threshold)


@given(st.integers(3, 12), st.data())
def test_a_record_of_more_classes_adds_one_to_one_cell(kinds, data):
    probabilities = np.array([data.draw(st.lists(st.floats(0, 1), min_size=kinds, max_size=kinds))])
    sums = class_sums(probabilities, np.array([data.draw(st.integers(0, kinds - 1))]), 0.5)
    assert len(sums) == 2 * kinds
    assert sorted(sums)[-2:] == [0.0, 1.0]


@given(st.lists(st.tuples(st.floats(-50, 90), st.floats(-50, 90)), min_size=1, max_size=4))
def test_a_record_of_numbers_moves_the_sums_by_at_most_their_bound(values):
    ranges = [(-3.0, 30.0)] * len(values)
    true, said = (np.array([[pair[place] for pair in values]]) for place in (0, 1))
    moved = np.linalg.norm(number_sums(true, said, ranges) - number_sums(true[:0], said[:0], ranges))
    assert moved <= bound_of_numbers(len(values)) * (1 + 1e-12)


def test_some_record_of_numbers_reaches_the_bound():
    assert np.linalg.norm(number_sums(np.array([[30.0]]), np.array([[0.0]]), [(0, 30)])) == bound_of_numbers(1)


SUMS = st.lists(st.floats(-1e4, 1e5), min_size=24, max_size=24)


def worded(figures):
    """All that is said of figures; a run says it after its last charge, so nothing may fail here."""
    section = figures_section(figures, "title", "text", "held-")
    return headline(figures), lines(figures), key_figures(figures), section, json.dumps(figures, allow_nan=False)


@settings(max_examples=15, deadline=None)
@given(SUMS, st.floats(1e-3, 1e3), st.sampled_from([0.5, 0.02, 0.9]))
def test_whatever_the_noise_makes_of_the_sums_can_be_worded(sums, spread, threshold):
    assert worded(class_figures(sums, spread, ("no", "yes"), records=40, threshold=threshold))
    assert worded(class_figures(sums, spread, tuple(map(str, range(12))), records=40, threshold=0.5))
    targets = [(each, sums[:1] + sums[1 + 4 * each :][:4]) for each in range(2)]
    for _, each in targets:
        assert worded(number_figures(each, spread, ["days"], [(0, 30)], records=40))


def test_without_noise_they_are_the_figures_of_the_records():
    probabilities, labels = scored(20_000, np.random.default_rng(1))
    sums = class_sums(probabilities, labels, 0.3)
    found = class_figures(sums, 1e-9, ("no", "yes"), records=20_000, threshold=0.3)["figures"]
    true = classes_figures(probabilities, labels, ("no", "yes"), threshold=0.3)["figures"]
    for name in ("accuracy", "balanced_accuracy", "recall", "precision", "false_alarms"):
        assert found[name]["value"] == pytest.approx(true[name]["value"])
    assert true["auroc"]["value"] - 0.012 < found["auroc"]["value"] < true["auroc"]["value"]


def test_without_noise_they_are_the_errors_of_the_numbers():
    generator = np.random.default_rng(2)
    true = generator.uniform(0, 30, (5000, 1))
    said = np.clip(true + generator.normal(size=(5000, 1)) * 3, 0, 30)
    sums = number_sums(true, said, [(0, 30)])
    found = number_figures(sums, 1e-9, ["days"], [(0, 30)], records=5000)["targets"][0]["figures"]
    assert found["mae"]["value"] == pytest.approx(np.abs(true - said).mean())
    assert found["rmse"]["value"] == pytest.approx(np.sqrt(((true - said) ** 2).mean()))
    assert found["r2"]["value"] == pytest.approx(1 - ((true - said) ** 2).mean() / true.var())


def test_counts_that_drown_in_the_noise_give_no_figure():
    probabilities, labels = scored(60, np.random.default_rng(3))
    sums = class_sums(probabilities, labels, 0.5)
    figures = class_figures(sums, 20.0, ("no", "yes"), records=60, threshold=0.5)
    assert figures["figures"]["recall"]["value"] is None
    assert figures["figures"]["auroc"]["value"] is None
    assert headline(figures) == "too few records were kept aside for a figure"
