"""The pages in docs/papers say what the committed results say, and the results belong to the files as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from adadp.lab.reproduce import Store, papers
from adadp.lab.reproduce.items import COMMAND
from adadp.lab.reproduce.pages import BEGIN, END, inventory_text, paper_text

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "docs" / "papers"
PAPERS = papers(ROOT / "experiments")
STORES = {name: [Store(item, OUT) for item in paper.items] for name, paper in PAPERS.items()}
RUN = [each for stores in STORES.values() for each in stores if each.path.exists()]


def between_marks(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_a_page_is_what_its_results_give(name):
    """If this fails: adadp reproduce --page --out docs/papers"""
    page = (OUT / PAPERS[name].page).resolve()
    assert between_marks(page) == paper_text(STORES[name], page.parent)


def test_the_inventory_is_what_the_results_give():
    assert between_marks(OUT / "inventory.md") == inventory_text(
        STORES, {name: paper.page for name, paper in PAPERS.items()}
    )


@pytest.mark.parametrize("store", RUN, ids=lambda each: each.item.path)
def test_no_result_is_of_other_settings(store):
    content = json.loads(store.path.read_text(encoding="utf-8"))
    assert set(content["runs"]) == set(store.runs())
    if store.item.kind == COMMAND:
        assert set(content["answers"]) == set(store.answers())
        assert store.current_pictures() == store.pictures
        assert set(content.get("drawings", {})) == {target.name for _, target in store.drawings()}
    for runs in store.runs().values():
        assert len({run["seed"] for run in runs}) == len(runs)


def test_every_file_of_results_has_an_item():
    known = {store.path for stores in STORES.values() for store in stores}
    assert set((OUT / "results").glob("*/*.json")) <= known


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_pictures_on_a_page_exist(name):
    page = (OUT / PAPERS[name].page).resolve()
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [each for each in pictures if not (page.parent / each).is_file()] == []
