"""Figures against their definitions, computed slowly."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.app.figures import Groups, baseline, classes_figures, headline, lines, number_figures
from adadp.app.figures.scores import Ranking, brier, calibration, explained, log_loss
from adadp.app.report.html.figure_parts import figures_section, key_figures
from adadp.errors import InputError

pytestmark = pytest.mark.fast

SCORED = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), min_size=1, max_size=12)


def columns(scored):
    scores, positive, weights = zip(*scored, strict=True)
    return np.array(scores, float), np.array(positive), np.array(weights, float)


def repeated(scored):
    return [(score, positive) for score, positive, weight in scored for _ in range(weight)]


@given(SCORED)
def test_auroc_is_the_share_of_pairs_in_order(scored):
    records = repeated(scored)
    pairs = [
        (above > below) + (above == below) / 2
        for (above, _), (below, _) in itertools.product(
            [each for each in records if each[1]], [each for each in records if not each[1]]
        )
    ]
    scores, positive, weights = columns(scored)
    found = Ranking(scores, positive).auroc(weights)
    assert found == pytest.approx(sum(pairs) / len(pairs)) if pairs else found is None


@given(SCORED)
def test_auprc_is_the_mean_precision_at_the_positives(scored):
    records = repeated(scored)
    at_positives = []
    for score, positive in records:
        if positive:
            above = [each for each in records if each[0] >= score]
            at_positives.append(sum(each[1] for each in above) / len(above))
    scores, positive, weights = columns(scored)
    found = Ranking(scores, positive).auprc(weights)
    assert found == pytest.approx(sum(at_positives) / len(at_positives)) if at_positives else found is None


def test_log_loss_and_brier_of_a_few_records():
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [1.0, 0.0]])
    labels, once = np.array([0, 1, 0]), np.ones(3)
    assert log_loss(probabilities, labels, once) == pytest.approx(-(math.log(0.9) + math.log(0.8)) / 3)
    assert brier(probabilities, labels, once) == pytest.approx((0.01 + 0.04) / 3)
    of_three = np.array([[0.5, 0.25, 0.25]])
    assert brier(of_three, np.array([1]), np.ones(1)) == pytest.approx(0.25 + 0.5625 + 0.0625)
    assert log_loss(np.array([[1.0, 0.0]]), np.array([1]), np.ones(1)) == pytest.approx(-math.log(1e-12))


def test_calibration_has_a_row_for_each_bin_with_records():
    found = calibration(np.array([0.0, 0.05, 0.95, 1.0]), np.array([False, True, True, True]), 10)
    assert found == [[0.025, 0.5, 2], [0.975, 1.0, 2]]


def test_r_squared_of_the_mean_is_nothing_and_of_the_truth_is_one():
    targets, once = np.array([1.0, 2.0, 6.0]), np.ones(3)
    assert explained(targets, np.full(3, 3.0), once) == pytest.approx(0.0)
    assert explained(targets, targets, once) == 1.0
    assert explained(np.ones(3), targets, once) is None


def rare(size: int = 2000, share: float = 0.05, shift: float = 2.0, seed: int = 1, level: float = -4.0):
    """Scores of two classes, one of them rare, told apart by ``shift`` standard deviations."""
    generator = np.random.default_rng(seed)
    labels = (np.arange(size) < share * size).astype(np.int64)
    logits = generator.normal(size=size) + shift * labels + level
    positive = 1 / (1 + np.exp(-logits))
    return np.stack([1 - positive, positive], axis=1), labels


def test_a_rare_class_is_not_hidden_behind_an_accuracy():
    figures = classes_figures(*rare(level=-8.0), ("well", "ill"))
    assert figures["figures"]["accuracy"]["value"] == 0.95
    assert baseline(figures) == "no better than always answering well"
    assert headline(figures).startswith("no better than always answering well (AUROC 0.9")
    assert "95" not in headline(figures)
    assert "At threshold 0.5, 0.00 % of it is found" in lines(figures)[1]


def test_what_is_not_known_is_not_said_to_be_none():
    """A share of nothing is no share: it reads as "none of it is right" otherwise."""
    nobody = classes_figures(*rare(level=-30.0), ("well", "ill"))
    assert nobody["figures"]["precision"]["value"] is None
    assert lines(nobody)[1].endswith("0.00 % of it is found, and nothing is called so.")
    nobody["noisy"] = True
    assert lines(nobody)[1].endswith("and too little is called so to say how much of it is right.")
    nobody["figures"]["recall"] = {"value": 0.1, "low": 0.0, "high": 0.2}
    assert "10.00 % (0.00 % to 20.00 %) of class ill found" in headline(nobody)
    nobody["figures"]["recall"] = {"value": None}
    assert "an unknown share of class ill found" in headline(nobody)


def test_a_threshold_below_a_half_finds_more():
    probabilities, labels = rare()
    figures = classes_figures(probabilities, labels, ("well", "ill"), threshold=0.05)
    assert figures["figures"]["recall"]["value"] > 0.6
    called = probabilities[:, 1] > 0.05
    assert figures["figures"]["precision"]["value"] == pytest.approx(labels[called].mean())
    assert figures["figures"]["false_alarms"]["value"] == pytest.approx(called[labels == 0].mean())


def test_scores_that_tell_nothing_are_no_better_than_guessing():
    assert headline(classes_figures(*rare(shift=0.0), ("well", "ill"))).startswith("no better than guessing")


def test_balanced_classes_lead_with_the_accuracy():
    figures = classes_figures(*rare(share=0.5, shift=4.0), ("a", "b"))
    assert headline(figures).endswith("of the test set right")
    assert baseline(figures) is None


def test_intervals_hold_the_value_and_shrink_with_more_records():
    few, many = (classes_figures(*rare(size, shift=1.0), ("a", "b"))["figures"]["auroc"] for size in (400, 6400))
    assert few["low"] < few["value"] < few["high"]
    assert many["high"] - many["low"] < (few["high"] - few["low"]) / 2


def test_the_interval_of_a_share_is_that_of_the_binomial():
    """The standard error of a share p of n records is sqrt(p (1 - p) / n)."""
    probabilities, labels = rare(4000, share=0.5, shift=6.0)
    found = classes_figures(probabilities, labels, ("a", "b"))["figures"]["accuracy"]
    width = 2 * 1.96 * math.sqrt(found["value"] * (1 - found["value"]) / 4000)
    assert found["high"] - found["low"] == pytest.approx(width, rel=0.2)


def test_groups_have_their_own_figures_and_the_gap_is_between_the_extremes():
    probabilities, labels = rare(share=0.5, shift=2.0)
    groups = Groups.of("ward", ["a" if each % 4 else "b" for each in range(len(labels))])
    found = classes_figures(probabilities, labels, ("no", "yes"), threshold=0.05, groups=groups)["groups"]
    called = probabilities[:, 1] > 0.05
    of_b = called[(np.arange(len(labels)) % 4 == 0) & (labels == 1)].mean()
    rows = {row["group"]: row for row in found["rows"]}
    assert rows["b"]["recall"] == pytest.approx(of_b)
    assert found["gaps"]["recall"] == pytest.approx(abs(rows["a"]["recall"] - rows["b"]["recall"]))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.data())
def test_few_records_have_figures_that_can_be_worded(kinds, data):
    size = data.draw(st.integers(1, 4))
    labels = np.array(data.draw(st.lists(st.integers(0, kinds - 1), min_size=size, max_size=size)))
    probabilities = np.eye(kinds)[data.draw(st.lists(st.integers(0, kinds - 1), min_size=size, max_size=size))]
    groups = Groups.of("ward", data.draw(st.lists(st.sampled_from("ab"), min_size=size, max_size=size)))
    figures = classes_figures(probabilities, labels, tuple("abcd"[:kinds]), groups=groups)
    assert headline(figures)
    assert lines(figures)
    assert key_figures(figures)
    assert figures_section(figures, "title", "text", "")
    json.dumps(figures, allow_nan=False)


def test_groups_that_name_no_group_are_refused():
    with pytest.raises(InputError, match="do not fit"):
        Groups("ward", ("a",), np.array([0, 1]))


def test_more_classes_that_are_uneven_lead_with_the_balanced_accuracy():
    labels = np.array([0] * 90 + [1] * 5 + [2] * 5)
    probabilities = np.eye(3)[np.array([0] * 90 + [1] * 5 + [0] * 5)]
    figures = classes_figures(probabilities, labels, ("a", "b", "c"))
    assert headline(figures) == "balanced accuracy 66.67 %"
    assert "Never found, with the number of records: c (5)." in lines(figures)


def test_numbers_are_told_in_their_unit_and_beside_a_constant():
    targets = np.arange(10.0)[:, None]
    good = number_figures(targets, targets + 1, ("days",))
    assert headline(good) == "MAE 1 (R² 0.8788)"
    bad = number_figures(targets, np.zeros((10, 1)), ("days",))
    assert headline(bad).startswith("no better than always answering the mean (MAE 4.5")
    both = number_figures(np.hstack([targets, targets]), np.hstack([targets, targets * 0]), ("days", "cost"))
    assert headline(both).startswith("no better than always answering the mean of cost (MAE of days 0")
