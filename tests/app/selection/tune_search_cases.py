"""What the tests of tune search share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from torch import Tensor

from adadp.app import zoo
from adadp.app.accounting.repetitions import PoissonRepetitions, draw_count
from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.app.selection import SearchResult, grid, planned, publishing, searching
from adadp.app.selection.search_data import Material
from adadp.app.selection.searching import begin
from adadp.app.train import verify_run
from adadp.app.train.search_spec import Search
from adadp.randomness import SeededSource

BASE = TrainConfig("cancer", epsilon=3.0, delta=1e-4, steps=3, batch_size=460, threads=1, seed=16)
"""Every batch is all records that are trained on, for which the accountant is quick."""


SETTINGS = grid({"lr": [0.05, 1.0]})


LAW = PoissonRepetitions(3.0)


FINAL = {
    "certificate.json",
    "config.toml",
    "ledger.jsonl",
    "ledger.jsonl.lock",
    "metrics.jsonl",
    "report.html",
    "figures.json",
}
FINAL |= {"confusion.json", "model.safetensors", "search.json"}


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
