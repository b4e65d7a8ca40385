"""A search by parts: every record in one part, the choice by the exponential mechanism, the worst part as the cost."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from adadp.accounting import accountant
from adadp.app.accounting.repetitions import TruncatedNegativeBinomial
from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.app.selection import cost_of, planned, tune
from adadp.app.selection.disjoint import draw_choice, part_size, parts_of
from adadp.app.train import verify_run
from adadp.app.train.search_spec import Search
from adadp.errors import InputError
from adadp.events import Disjoint, Neighbours, Selection
from adadp.ledger import Ledger, read_ledger
from adadp.randomness import SeededSource
from adadp.release import Crossing

BASE = TrainConfig("cancer", epsilon=2.0, delta=1e-4, steps=2, batch_size=186, threads=1, seed=1)
SETTINGS = ({"lr": 0.05}, {"lr": 1.0})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return tune(BASE, SETTINGS, by="parts", out=tmp_path_factory.mktemp("parts") / "run")


@pytest.mark.slow
def test_a_finished_search_by_parts_verifies(finished):
    assert [check.name for check in verify_run(RunFolder.open(finished.out)) if not check.passed] == []
    assert 0.97 * 2 < finished.certificate["if_unseeded"]["epsilon"] <= 2
    assert finished.certificate["accountant"] == "pld"
    assert "epsilon is that of the worst part" in finished.describe()
    assert finished.search.score is None
    assert not (finished.out / "secret").exists()
    assert len(list(finished.out.rglob("*.safetensors"))) == 1


def test_the_event_is_one_part_per_setting_and_the_choice(finished):
    (event,) = read_ledger(finished.out / "ledger.jsonl").charges
    assert isinstance(event, Disjoint)
    assert event == Search.from_json(RunFolder.open(finished.out).search()).event()
    assert event.parts[-1] == Selection(2.0)
    assert len(event.parts) == 3
    assert finished.search.records == 560 // 3
    worst = max(accountant("pld").epsilon(part, 1e-4).epsilon for part in event.parts)
    assert finished.certificate["if_unseeded"]["epsilon"] == worst


def test_a_choice_that_costs_too_much_is_refused():
    with pytest.raises(InputError, match="was asked for"):
        planned(BASE, SETTINGS, by="parts", select_epsilon=2.5)
    assert cost_of(planned(BASE, SETTINGS, by="parts", select_epsilon=0.1)) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "by"), [("fixed", "parts"), ("reshuffle", "repeat")])
def test_samplings_of_a_public_number_of_records(sampling, by, tmp_path):
    base = BASE.replace(sampling=sampling, batch_size=100)
    options = {"law": TruncatedNegativeBinomial(1.0, 0.5), "validation": 100} if by == "repeat" else {}
    result = tune(base, SETTINGS, by=by, out=tmp_path / "run", **options)
    assert [check.name for check in verify_run(RunFolder.open(result.out)) if not check.passed] == []
    assert 0.97 * 2 < result.certificate["if_unseeded"]["epsilon"] <= 2
    assert result.certificate["neighbours"] != "add-remove"
    assert "The exact number of all records" in result.describe()


def test_reshuffled_batches_of_parts_that_records_draw_are_refused():
    with pytest.raises(InputError, match="how many remain"):
        planned(BASE.replace(sampling="reshuffle", neighbours="add-remove"), SETTINGS, by="parts")


@pytest.mark.parametrize("option", [{"validation": 10}, {"score_noise_multiplier": 3.0}, {"validation_data": "x"}])
def test_options_of_the_other_way_are_refused(option):
    with pytest.raises(InputError, match="would be ignored"):
        planned(BASE, SETTINGS, by="parts", **option)


def test_an_accountant_without_a_proof_is_refused():
    with pytest.raises(InputError, match="gives no bound"):
        planned(BASE.replace(accountant="theorem1"), SETTINGS, by="parts")


@pytest.mark.parametrize("relation", list(Neighbours))
def test_every_record_is_in_one_part(relation):
    part = parts_of(9001, 2, size=3000, neighbours=relation, source=SeededSource(3))
    sizes = Counter(part.tolist())
    assert sorted(sizes) == [0, 1, 2]
    assert sum(sizes.values()) == 9001
    if relation is Neighbours.ADD_REMOVE:
        assert all(abs(size - 3000) < 5 * 45 for size in sizes.values())
    else:
        assert (sizes[0], sizes[1], sizes[2]) == (3000, 3000, 3001)


def test_one_record_more_moves_no_other():
    few, many = (
        parts_of(size, 4, size=100, neighbours=Neighbours.ADD_REMOVE, source=SeededSource(3)) for size in (500, 501)
    )
    assert torch.equal(few, many[:-1])


def test_parts_of_exact_size_are_at_random():
    part = parts_of(10_000, 1, size=5_000, neighbours=Neighbours.REPLACE_ONE, source=SeededSource(3))
    assert abs(int(part[:5_000].sum()) - 2_500) < 5 * 25


def test_too_few_records_for_the_parts():
    assert part_size(9, 2) == 3
    with pytest.raises(InputError, match="too few"):
        part_size(9, 8)


def test_the_choice_has_the_probabilities_of_the_exponential_mechanism(tmp_path):
    errors, epsilon, draws = [10, 12, 11, 30], 1.0, 4_000
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.charge(Selection(epsilon))
        crossings = (Crossing(ledger, SeededSource(seed)) for seed in range(draws))
        counts = Counter(draw_choice(errors, epsilon, Neighbours.ADD_REMOVE, each) for each in crossings)
    weights = [math.exp(-epsilon * each / 2) for each in errors]
    for number, weight in enumerate(weights):
        chance = weight / sum(weights)
        assert abs(counts[number] - draws * chance) < 5 * math.sqrt(draws * chance * (1 - chance)) + 1


def test_a_choice_that_was_not_charged_is_not_made(tmp_path):
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.charge(Selection(0.5))
        with pytest.raises(InputError, match="was not charged"):
            draw_choice([5, 5, 5], 1.0, Neighbours.ADD_REMOVE, Crossing(ledger, SeededSource(1)))
