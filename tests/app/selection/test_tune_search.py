"""A search by repeat, on real records: what it publishes, what it hides, and how it goes on after a kill."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import pytest
import torch
from torch import Tensor

from adadp.accounting import accountant
from adadp.app import zoo
from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import PoissonRepetitions, TruncatedNegativeBinomial, draw_count
from adadp.app.config import TrainConfig
from adadp.app.predict import evaluation, load_model
from adadp.app.runs import RunFolder
from adadp.app.runs.atomic import cannot_write
from adadp.app.runs.tensors import read_tensors
from adadp.app.selection import SearchResult, cost_of, grid, planned, publishing, resume, searching, tune
from adadp.app.selection.score import kept_aside, right_answers, score_of
from adadp.app.selection.search_data import Material
from adadp.app.selection.search_state import SecretFolder
from adadp.app.selection.searching import begin, seed_of_run
from adadp.app.train import verify_run
from adadp.app.train.search_spec import PRIVATE, PUBLIC, Scoring, Search
from adadp.errors import InputError, Interrupted, LedgerCorrupt, RunError
from adadp.events import Disjoint, GaussianRelease, Neighbours
from adadp.ledger import Ledger, read_ledger
from adadp.noise import GaussianMechanism
from adadp.randomness import SecureSource, SeededSource
from adadp.release import Crossing

BASE = TrainConfig("cancer", epsilon=3.0, delta=1e-4, steps=3, batch_size=460, threads=1, seed=16)
"""Every batch is all records that are trained on, for which the accountant is quick."""
SETTINGS = grid({"lr": [0.05, 1.0]})
LAW = PoissonRepetitions(3.0)
FINAL = {"certificate.json", "config.toml", "ledger.jsonl", "ledger.jsonl.lock", "metrics.jsonl", "report.html"}
FINAL |= {"confusion.json", "model.safetensors", "search.json"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def search() -> Search:
    """A search with private scores, three runs of which it makes."""

    def no_data(*_, **__):
        raise AssertionError("a plan read data")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo, "load", no_data)
        found = planned(BASE, SETTINGS, law=LAW, validation=100)
    assert runs_of(found) == 3
    return found


@pytest.fixture(scope="module")
def material(search) -> Material:
    return Material(search)


@dataclass
class Seen:
    """What who looks into the process sees of a search."""

    result: SearchResult | None = None
    scores: list[float] = field(default_factory=list)
    folders: list[int] = field(default_factory=list)
    trained: list[Tensor] = field(default_factory=list)
    scored: list[Tensor] = field(default_factory=list)


@pytest.fixture(scope="module")
def watched(search, material, tmp_path_factory) -> Seen:
    """A finished search, watched from inside."""
    seen, out = Seen(), tmp_path_factory.mktemp("search") / "run"
    run_on, count, score = searching.start.run_on, searching.right_answers, searching.score_of

    def trains(records, *arguments, **options):
        seen.trained.append(records.train[0])
        return run_on(records, *arguments, **options)

    def counts(model, values, *others):
        seen.scored.append(values)
        return count(model, values, *others)

    def scores(*arguments, **options):
        seen.folders.append(len(list((out / "secret" / "runs").iterdir())))
        seen.scores.append(score(*arguments, **options))
        return seen.scores[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching.start, "run_on", trains)
        patch.setattr(searching, "right_answers", counts)
        patch.setattr(searching, "score_of", scores)
        seen.result = begin(search, material, str(out))
    publishing.finish(out)
    return seen


@pytest.fixture(scope="module")
def finished(watched):
    return watched.result


def runs_of(search: Search) -> int:
    source = SeededSource(search.candidates[0].seed)
    return draw_count(search.repetitions, float(source.uniform(1, purpose="search/count", step=0)))


def seeded(search: Search, seed: int | None) -> Search:
    return replace(search, candidates=tuple(each.replace(seed=seed) for each in search.candidates))


def failed(folder: Path) -> set[str]:
    return {check.name for check in verify_run(RunFolder.open(folder)) if not check.passed}


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
    trained, scored = material.part(config, ~values), material.scored(config, values)
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


def test_a_secure_search(search, material, tmp_path):
    result = begin(seeded(search, None), material, str(tmp_path / "run"))
    assert failed(result.out) == set()
    assert 0.97 * 3.0 < result.epsilon <= 3.0
    assert result.certificate["randomness"].startswith("secure")
    assert RunFolder.open(result.out).config.seed is None


# What is found out ------------------------------------------------------------------------------------------------


def edited(finished, tmp_path: Path, **changes) -> Path:
    place = Path(shutil.copytree(finished.out, tmp_path / "run"))
    content = json.loads((place / "search.json").read_text())
    (place / "search.json").write_text(json.dumps(content | changes))
    return place


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"chosen": 0, "score": 0.5}, {"statements", "search"}),
        ({"score": 0.99}, {"statements"}),
        ({"records": 400}, {"search"}),
        ({"epsilon": 2.5}, {"search"}),
        ({"repetitions": {"law": "poisson", "mean": 2.0}}, {"charges", "plan", "statements"}),
        ({"candidates": []}, {"search", "plan"}),
        ({"by": "luck"}, {"search", "plan"}),
    ],
)
def test_another_search_is_noticed(finished, tmp_path, change, found):
    if change.get("chosen") == finished.search.chosen:
        change = {**change, "chosen": 1 - finished.search.chosen}
    assert found <= failed(edited(finished, tmp_path, **change))


def test_no_file_tells_how_long_the_search_took(tmp_path, monkeypatch):
    """That tells how many runs there were. The system's own times (of a change of name, of birth) cannot be set."""
    out, kept, published = tmp_path / "run", {}, publishing.publish

    def publishes(place, *arguments):
        kept["inode"] = place.stat().st_ino
        time.sleep(1.1)
        kept["moment"] = time.time()
        return published(place, *arguments)

    monkeypatch.setattr(searching, "publish", publishes)
    tune(BASE, SETTINGS, out=out, law=LAW, validation=100)
    files = [out, *out.iterdir()]
    began = datetime.fromisoformat(read_ledger(out / "ledger.jsonl").created).timestamp()
    assert began > kept["moment"] - 1, "when the folder was made anew, and not when the search began"
    assert all(abs(path.stat().st_mtime - began) < 1e-3 for path in files)
    assert all(path.stat().st_ctime >= kept["moment"] for path in files)
    assert out.stat().st_ino != kept["inode"], "another folder"
    assert list(tmp_path.iterdir()) == [out]


def test_a_folder_that_could_not_be_made_anew_is_refused_before_anything_is_charged(search, material, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with pytest.raises(InputError, match="cannot be replaced"):
        begin(search, material, "somewhere")
    assert not Path("somewhere").exists()


def test_less_noise_is_noticed(finished, tmp_path):
    place = Path(shutil.copytree(finished.out, tmp_path / "run"))
    content = json.loads((place / "search.json").read_text())
    for candidate in content["candidates"]:
        candidate["noise_multiplier"] *= 2
    (place / "search.json").write_text(json.dumps(content))
    assert {"plan", "charges", "search"} <= failed(place)


def test_a_search_without_its_record_or_charge_is_noticed(finished, tmp_path):
    place = Path(shutil.copytree(finished.out, tmp_path / "run"))
    (place / "search.json").unlink()
    assert {"plan", "statements"} <= failed(place)
    other = Path(shutil.copytree(finished.out, tmp_path / "other"))
    lines = (other / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (other / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    assert "ledger" in failed(other)


# How it goes on ---------------------------------------------------------------------------------------------------


def dies(work, owner, name: str, call: int, *, last=None) -> None:
    """``work`` in a process that is gone, without a word, before the ``call``-th call of ``owner.name``.

    ``last``: what is done of that call all the same.
    """
    number = os.fork()
    if not number:
        original, left = getattr(owner, name), [call]

        def deadly(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                if last is not None:
                    last(*arguments, **options)
                os._exit(9)
            return original(*arguments, **options)

        torch.set_num_threads(1)
        setattr(owner, name, deadly)
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 9


KILLS = [
    (SecretFolder, "write", 1),  # charged, and nothing drawn that is kept
    (GaussianMechanism, "release", 2),  # in the first run
    (SecretFolder, "write", 2),  # it is scored, and the score not kept
    (searching, "score_of", 2),  # the second run is over, and has no score
    (RunFolder, "write_certificate", 2),  # the third is over, and the chosen one about to be certified
    (RunFolder, "save_model", 1),  # certified, and not there yet
    (Path, "rename", 1),  # all is there to be published, and so are the secrets
]


@pytest.mark.parametrize("seed", [16, None])
def test_a_killed_search_goes_on(search, material, finished, tmp_path, seed):
    out, mine = tmp_path / "run", seeded(search, seed)
    if seed is None:  # its number of runs is drawn anew each time: by this law at least one, which can be killed
        mine = seeded(planned(BASE, SETTINGS, law=TruncatedNegativeBinomial(1.0, 0.5), validation=100), None)
    kills = KILLS if seed is not None else KILLS[:2]
    for number, (owner, name, call) in enumerate(kills):
        if number:
            dies(lambda: resume(out), owner, name, call)
        else:
            dies(lambda: begin(mine, material, str(out)), owner, name, call)
        assert sum(read_ledger(out / "ledger.jsonl").charges.values()) == 1
    result = resume(out)
    assert failed(out) == set()
    assert {path.name for path in out.rglob("*")} == FINAL
    if seed is not None:
        for name in ("search.json", "config.toml", "metrics.jsonl"):
            assert (out / name).read_bytes() == (finished.out / name).read_bytes()
        ours, theirs = (read_tensors(place / "model.safetensors")[0] for place in (out, finished.out))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        assert result.search == finished.search


def dates(folder: Path) -> set[float]:
    return {path.stat().st_mtime for path in (folder, *folder.iterdir())}


def half_removed(parent: Path) -> None:
    """The beginning of removing the folder of the search."""
    (parent / ".run.searched" / "secret" / "state.json").unlink()


@pytest.mark.parametrize(
    ("owner", "name", "call", "last"),
    [
        (Path, "rename", 2, None),  # the folder of the search is away, and nothing in its place
        (publishing, "sync_folder", 1, half_removed),  # the new one is in its place
    ],
    ids=["between the renames", "while the other is removed"],
)
def test_a_search_killed_while_its_folder_is_replaced_is_not_made_again(
    search, material, tmp_path, owner, name, call, last
):
    """Without its state it looks like one that has not begun: it would draw, train and publish once more."""
    out = tmp_path / "run"
    dies(lambda: begin(seeded(search, None), material, str(out)), owner, name, call, last=last)
    (model,) = (path.read_bytes() for path in tmp_path.glob("*/model.safetensors"))
    with pytest.raises(InputError, match="has finished"):
        resume(out)
    assert {path.name for path in out.rglob("*")} <= FINAL
    assert (out / "model.safetensors").read_bytes() == model
    assert len(dates(out)) == 1
    assert list(tmp_path.iterdir()) == [out]


def test_a_search_killed_before_its_times_are_hidden_hides_them_when_asked_again(finished, tmp_path):
    out = Path(shutil.copytree(finished.out, tmp_path / "run"))
    began = dates(out)
    os.utime(out / "model.safetensors", (1e9, 1e9))
    for _ in range(2):
        with pytest.raises(InputError, match="has finished"):
            resume(out)
        assert dates(out) == began


@pytest.fixture(scope="module")
def killed_in_a_run(search, material, tmp_path_factory) -> Path:
    """A search that was killed in its first run, after two of three steps."""
    out = tmp_path_factory.mktemp("killed") / "run"
    dies(lambda: begin(search, material, str(out)), GaussianMechanism, "release", 3)
    return out


def run_in(search_folder: Path) -> Path:
    (run,) = (search_folder / "secret" / "runs").iterdir()
    return run


BROKEN = {
    "no checkpoint": lambda run: (run / "checkpoint.safetensors").unlink(),
    "no configuration": lambda run: (run / "config.toml").unlink(),
    "no ledger": lambda run: (run / "ledger.jsonl").unlink(),
    "a damaged checkpoint": lambda run: (run / "checkpoint.safetensors").write_bytes(b"x" * 99),
    "a damaged ledger": lambda run: (run / "ledger.jsonl").write_bytes(b"x\n" * 99),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_run_that_cannot_go_on_begins_anew(how, killed_in_a_run, finished, tmp_path):
    out = Path(shutil.copytree(killed_in_a_run, tmp_path / "run"))
    BROKEN[how](run_in(out))
    assert resume(out).search == finished.search
    assert failed(out) == set()
    ours, theirs = (read_tensors(place / "model.safetensors")[0] for place in (out, finished.out))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def full_disk(*_, **__):
    error = OSError(28, "No space left on device")
    raise cannot_write(Path("checkpoint.safetensors"), error) from error


def no_device(*_, **__):
    raise InputError("The device cuda cannot be used.")


@pytest.mark.parametrize(
    ("owner", "name", "trouble", "error"),
    [(RunFolder, "save_checkpoint", full_disk, RunError), (searching.start, "run_on", no_device, InputError)],
    ids=["a full disk", "a device that is gone"],
)
def test_a_run_that_can_go_on_later_is_not_thrown_away(owner, name, trouble, error, killed_in_a_run, tmp_path):
    out = Path(shutil.copytree(killed_in_a_run, tmp_path / "run"))
    kept = ("checkpoint.safetensors", "ledger.jsonl")
    before = [(run_in(out) / name).read_bytes() for name in kept]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, trouble)
        with pytest.raises(error):
            resume(out)
    assert [(run_in(out) / name).read_bytes() for name in kept] == before
    assert resume(out)
    assert failed(out) == set()


def test_a_search_that_is_stopped_tells_nothing(search, material, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise Interrupted("Stopped after 2 of 3 steps.", fix="Go on with the run in secret/runs/7.")

    monkeypatch.setattr(searching.start, "run_on", stop)
    with pytest.raises(Interrupted, match="The search was stopped") as caught:
        begin(search, material, str(tmp_path / "run"))
    assert "of 3 steps" not in str(caught.value)
    assert "secret/runs" not in str(caught.value)
    assert (tmp_path / "run" / "secret").stat().st_mode & 0o077 == 0
    (tmp_path / "run" / "ledger.jsonl").unlink()
    with pytest.raises(LedgerCorrupt, match="is missing"):
        resume(tmp_path / "run")


def test_there_must_be_a_search_to_go_on_with(tmp_path):
    RunFolder.create(tmp_path / "run", BASE)
    with pytest.raises(InputError, match="no search in"):
        resume(tmp_path / "run")


def test_right_answers_are_counted():
    model = torch.nn.Linear(2, 2, bias=False)
    model.weight.data = torch.eye(2)
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    assert right_answers(model, values, torch.tensor([0, 1, 0]), "cpu") == 2
    assert right_answers(model, values[:0], torch.tensor([], dtype=torch.long), "cpu") == 0
