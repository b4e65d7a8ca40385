"""A search by repeat, on real records: what it publishes, what it hides, and how it goes on after a kill."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tune_search_cases import BASE, FINAL, LAW, SETTINGS, failed, finished, material, runs_of, search, seeded, watched  # noqa: F401

from adadp.accounting import accountant
from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import PoissonRepetitions, TruncatedNegativeBinomial
from adadp.app.predict import evaluation, load_model
from adadp.app.runs import RunFolder
from adadp.app.selection import cost_of, planned, resume, searching, tune
from adadp.app.selection.score import kept_aside, score_of
from adadp.app.selection.search_data import part_of
from adadp.app.selection.searching import begin, seed_of_run
from adadp.app.train import verify_run
from adadp.app.train.search_spec import PRIVATE, PUBLIC, Scoring, Search
from adadp.errors import InputError
from adadp.events import Disjoint, GaussianRelease, Neighbours
from adadp.ledger import Ledger, read_ledger
from adadp.randomness import SecureSource, SeededSource
from adadp.release import Crossing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# What is planned --------------------------------------------------------------------------------------------------


def test_the_noise_meets_the_target_and_hardly_more(search):
    assert 0.97 * 3.0 < cost_of(search) <= 3.0
    assert all(candidate.epsilon is None and candidate.accountant == "rdp" for candidate in search.candidates)
    assert [candidate.lr for candidate in search.candidates] == [0.05, 1.0]


def test_the_score_is_in_the_event(search):
    trained, scored = search.event().parts
    assert isinstance(search.event(), Disjoint)
    assert trained == BestOf(tuple(plan.event() for plan in search.plans()), LAW)
    assert scored == BestOf((GaussianRelease(search.scoring.noise_multiplier),), LAW)
    for part in (trained, scored):  # neither is for free, and neither passes the target
        assert 0.97 * 3.0 < accountant("rdp").epsilon(part, 1e-4).epsilon <= 3.0


def test_candidates_of_different_cost_share_the_target():
    settings = [{"steps": 2}, {"noise_schedule": "exp:k=0.2"}, {"noise_schedule": "piecewise:0=2,1=1"}]
    law = TruncatedNegativeBinomial(1.0, 0.2)
    found = planned(BASE, [*settings, {"steps": 2, "lr": 9}], law=law, validation=100, validation_public=True)
    assert 0.97 * 3.0 < cost_of(found) <= 3.0
    assert isinstance(found.event(), BestOf)
    first, falling, pieces, like_first = found.candidates
    assert like_first.noise_multiplier == first.noise_multiplier
    assert first.noise_schedule is None
    assert falling.noise_schedule.startswith("exp:s0=")
    assert falling.noise_multiplier is pieces.noise_multiplier is None
    values = found.plans()[2].noise
    assert values.value_at(0) == pytest.approx(2 * values.value_at(1))


def test_features_that_are_released_have_their_noise_written_out():
    settings = [{"features": "pca:dim=4", "model": "linear"}]
    found = planned(BASE, settings, law=LAW, validation=100, validation_public=True)
    assert "noise_multiplier=" in found.candidates[0].features
    assert len(found.plans()[0].before) == 1
    assert 0.97 * 3.0 < cost_of(found) <= 3.0


def test_a_search_goes_through_json(search):
    for each in (search, replace(search, chosen=1, score=0.5), replace(search, scoring=Scoring("file", file="x.csv"))):
        assert Search.from_json(json.loads(json.dumps(each.as_json()))) == each


REFUSED = {
    "no epsilon": (BASE.replace(noise_multiplier=2.0), SETTINGS, {}, "needs epsilon"),
    "evaluate": (BASE.replace(evaluate_every=1), SETTINGS, {}, "evaluate_every"),
    "tensorboard": (BASE.replace(tensorboard=True), SETTINGS, {}, "tensorboard"),
    "accountant": (BASE.replace(accountant="zcdp"), SETTINGS, {}, "accounted for by rdp"),
    "equal": (BASE.replace(lr=0.1), [{}, {"lr": 0.1}], {}, "are the same run"),
    "twice": (BASE, [{"lr": 0.1}, {"lr": 0.1}], {}, "there twice"),
    "shared": (BASE, [{"seed": 3}], {}, "seed cannot differ"),
    "not private": (BASE, [{"method": "adadp-published"}], {}, "is not private"),
    "exact": (BASE.replace(arithmetic="exact"), SETTINGS, {}, "arithmetic of a search is exact"),
    "validation schedule": (BASE, [{"noise_schedule": "validation:s0=9,k=0.7"}], {}, "cannot set the noise"),
    "fixed noise": (BASE, [{"noise_schedule": "uniform:s0=9"}], {}, "cannot set the noise|all given"),
    "open k": (BASE, [{"noise_schedule": "exp:s0=9"}], {}, "cannot set the noise"),
    "no records to score on": (BASE, SETTINGS, {"validation": None}, "needs records to compare"),
    "too many of them": (BASE, SETTINGS, {"validation": 559}, "kept aside"),
    "noise for public ones": (BASE, SETTINGS, {"validation_public": True, "score_noise_multiplier": 3.0}, "are public"),
    "score too sharp": (BASE, SETTINGS, {"score_noise_multiplier": 0.5}, "needs at least"),
    "parts' option": (BASE, SETTINGS, {"select_epsilon": 1.0}, "would be ignored"),
    "way": (BASE, SETTINGS, {"by": "luck"}, "Unknown way"),
    "network": (BASE, [{"model": "cnn-tanh"}], {"validation_public": True}, "cnn-tanh|shape"),
    "clip rule": (BASE, [{"clip_rule": "per-layer:1,2,3"}], {"validation_public": True}, "3 bounds for"),
    "file": (BASE, SETTINGS, {"validation": None, "validation_data": "x.csv"}, "of the catalogue"),
    "reshuffled": (
        BASE.replace(sampling="reshuffle", neighbours="add-remove"),
        SETTINGS,
        {},
        "how many remain|reshuffled",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_before_anything_is_charged(case, tmp_path):
    base, settings, options, match = REFUSED[case]
    with pytest.raises(InputError, match=match):
        tune(base, settings, out=tmp_path / "run", **{"law": LAW, "validation": 100, **options})
    assert not (tmp_path / "run").exists()


# What is scored ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", list(Neighbours))
def test_private_records_are_kept_aside_by_coins_or_exactly(relation):
    held = kept_aside(20_000, Scoring(PRIVATE, 5_000, 1.0), public=20_000, neighbours=relation, source=SeededSource(1))
    if relation is Neighbours.ADD_REMOVE:
        assert held.sum() != 5_000
        assert abs(int(held.sum()) - 5_000) < 5 * 61.3
        one_more = kept_aside(
            20_001, Scoring(PRIVATE, 5_000, 1.0), public=20_000, neighbours=relation, source=SeededSource(1)
        )
        assert torch.equal(one_more[:-1], held)
    else:
        assert held.sum() == 5_000
    assert 0.2 < float(held[:10_000].double().mean()) < 0.3


def test_public_records_are_the_last():
    held = kept_aside(10, Scoring(PUBLIC, 3), public=10, neighbours=Neighbours.ADD_REMOVE, source=SecureSource())
    assert held.tolist() == [False] * 7 + [True] * 3


def test_private_scores_are_noisy_and_public_ones_are_not(tmp_path):
    scoring = Scoring(PRIVATE, 200, 6.0)
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.charge(GaussianRelease(6.0))
        where = {"neighbours": Neighbours.ADD_REMOVE, "crossing": Crossing(ledger, SeededSource(4))}
        scores = torch.tensor([score_of(150, 190, scoring, run=run, **where) for run in range(4000)])
        assert score_of(150, 200, Scoring(PUBLIC, 200), run=0, **where) == 0.75
        with pytest.raises(InputError, match="was not charged"):
            score_of(150, 190, Scoring(PRIVATE, 200, 5.0), run=0, **where)
    assert float(scores.mean()) == pytest.approx(150 / 200, abs=5 * 6 / 200 / 4000**0.5)
    assert float(scores.std()) == pytest.approx(6 / 200, rel=0.06)


def test_no_record_of_a_score_is_trained_on(watched, material, search):
    values = material.prepared(search.candidates[0]).train[0]
    held = kept_aside(
        len(values), search.scoring, public=560, neighbours=Neighbours.ADD_REMOVE, source=SeededSource(16)
    )
    assert 60 < int(held.sum()) < 140
    assert len(watched.trained) == len(watched.scored) == 3
    assert all(torch.equal(each, values[~held]) for each in watched.trained)
    assert all(torch.equal(each, values[held]) for each in watched.scored)


def test_a_run_that_has_lost_is_removed_at_once(watched):
    assert watched.folders == [1, 2, 2]  # the one at hand, and the best so far


def test_records_are_told_apart(search, material):
    values = torch.arange(material.size) % 3 == 0
    config = search.candidates[0]
    trained, scored = part_of(material.prepared(config), ~values), material.scored(config, values)
    assert len(trained.train[0]) + len(scored[1]) == material.size
    assert torch.equal(scored[0], material.prepared(config).train[0][values])
    assert trained.test is None


# What is published ------------------------------------------------------------------------------------------------


def test_a_finished_search_is_a_run_that_verifies(finished):
    assert failed(finished.out) == set()
    assert "search" in {check.name for check in verify_run(RunFolder.open(finished.out))}
    assert finished.epsilon is None, "a rehearsal"
    assert 0.97 * 3.0 < finished.certificate["if_unseeded"]["epsilon"] <= 3.0
    assert finished.certificate["accountant"] == "rdp"
    text = finished.describe()
    assert "Best of a random number of runs, about 3 on average, over 2 settings" in text
    assert "How long the search took" in text


def test_the_ledger_holds_one_charge_of_the_whole_search(finished, search):
    record = read_ledger(finished.out / "ledger.jsonl")
    assert record.charges == {search.event(): 1}


def test_only_the_best_run_is_left(finished):
    assert {path.name for path in finished.out.rglob("*")} == FINAL
    assert len((finished.out / "metrics.jsonl").read_text().splitlines()) == 1
    text = b"".join(path.read_bytes() for path in finished.out.iterdir())
    assert not [word for word in (b'"kept"', b'"tie"', b'"done"', b'"seconds"') if word in text]
    assert len({path.stat().st_mtime for path in (*finished.out.iterdir(), finished.out)}) == 1


def test_the_folder_can_be_used_like_any_run(finished):
    trained = load_model(finished.out)
    assert trained.config == finished.search.configuration(trained.config.seed)
    assert evaluation(trained)["accuracy"] == finished.test_accuracy
    assert finished.setting in SETTINGS
    with pytest.raises(InputError, match="has finished"):
        resume(finished.out)


def test_the_best_of_all_runs_is_published_and_no_other(watched):
    result, scores = watched.result, watched.scores
    assert len(set(scores)) == 3
    assert result.search.score == max(scores)
    text = b"".join(path.read_bytes() for path in result.out.iterdir())
    assert repr(max(scores)).encode() in text
    assert not any(repr(score).encode() in text for score in scores if score != max(scores))


def test_equal_scores_are_decided_by_chance(search, material, tmp_path, monkeypatch):
    monkeypatch.setattr(searching, "score_of", lambda *_, **__: 0.5)
    result = begin(search, material, str(tmp_path / "run"))
    source = SeededSource(16)
    ties = [float(source.uniform(1, purpose="search/tie", step=run)) for run in range(3)]
    settings = [int(float(source.uniform(1, purpose="search/setting", step=run)) * 2) for run in range(3)]
    best = ties.index(max(ties))
    assert result.search.chosen == settings[best]
    assert RunFolder.open(result.out).config.seed == seed_of_run(16, best)


def test_seeds_of_runs_differ():
    seeds = {seed_of_run(seed, run) for seed in range(20) for run in range(200)}
    assert len(seeds) == 4000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of_run(None, 3) is None


def test_settings_are_drawn_uniformly(search, material, tmp_path):
    """The third of three settings, by the draws a search makes."""
    three = replace(search, candidates=search.candidates * 2, settings=search.settings * 2)
    going = searching.Searching(RunFolder(tmp_path, search.candidates[0]), three, material)
    drawn = Counter(going._setting(run) for run in range(4000))
    assert set(drawn) == {0, 1, 2, 3}
    assert all(abs(count - 1000) < 5 * 27.4 for count in drawn.values())


def test_no_run_at_all(search, material, tmp_path):
    once = replace(search, repetitions=PoissonRepetitions(1.0))
    seed = next(seed for seed in range(100) if runs_of(seeded(once, seed)) == 0)
    result = begin(seeded(once, seed), material, str(tmp_path / "run"))
    assert result.setting is None
    assert result.test_accuracy is None
    assert "nothing was trained, and there is no model" in result.describe()
    assert failed(result.out) == set()
    assert RunFolder.open(result.out).load_model_tensors() == {}
    assert not (result.out / "secret").exists()
