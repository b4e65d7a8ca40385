"""The files of experiments/: all of them can be run, and every table and figure of the papers has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from adadp.app import resolve
from adadp.app.train import plan_of
from adadp.errors import InputError
from adadp.lab.reproduce import chosen_items, experiments_folder, papers
from adadp.lab.reproduce.items import COMMAND, item_of

pytestmark = pytest.mark.slow


ROOT = Path(__file__).resolve().parents[3]
PAPERS = papers(ROOT / "experiments")
ITEMS = {item.path: item for paper in PAPERS.values() for item in paper.items}

EXPECTED = {
    "xu-2020": [
        "example-lemma1",
        "example-theorem1",
        "figure1",
        "table1",
        "figure2a",
        "figure2b",
        "figure2c",
        "figure3",
        "table2",
    ]
    + [f"figure4{part}" for part in ("a", "b", "cd")]
    + [f"figure5{part}" for part in "abcd"],
    "yu-2019": [
        "table2",
        *(f"figure{n}" for n in (1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16)),
        "figure11a",
        "figure11b",
    ],
    "yu-2018": ["figure1", "figure2-cnn", "figure2-convex", "figure3", "figure4-mnist", "figure4-covertype"],
    "abadi-2016": ["figure2", "figure3", "figure4", *(f"figure5-{n}" for n in range(1, 7)), "figure6"],
}
"""Figure 5 of Yu et al. 2019 shows the runs of its Table II, and is drawn there."""


@pytest.mark.parametrize("paper", sorted(EXPECTED))
def test_every_table_and_figure_has_a_file(paper):
    assert set(EXPECTED[paper]) <= {item.name for item in PAPERS[paper].items}


@pytest.mark.parametrize("path", sorted(ITEMS))
def test_every_file_says_what_where_and_how(path):
    item = ITEMS[path]
    assert item.title
    assert item.cases
    assert item.where or item.paper == "methods", "a reader must find it in the paper"
    full, quick = item.runs(), item.runs(quick=True)
    if item.kind != COMMAND:
        assert full
        assert 1 <= len(quick) <= 2, "a quick run takes a minute or two"
        assert item.seeds >= 1


@pytest.mark.parametrize("path", sorted(path for path, item in ITEMS.items() if item.kind != COMMAND))
def test_what_a_quick_run_would_train_can_be_planned(path):
    """Every default, check and calibration before a run is a reason to refuse it."""
    for spec in map(resolve.resolve, ITEMS[path].runs(quick=True).values()):
        assert plan_of(spec, resolve.public_records(spec.config)).steps > 0


def test_the_folder_is_found_beside_the_source():
    assert experiments_folder() == ROOT / "experiments"


def test_names_choose_items_once():
    found = chosen_items(PAPERS, ["xu-2020/table1", "xu-2020", "xu-2020/table1"])
    assert found[0].path == "xu-2020/table1"
    assert len(found) == len(PAPERS["xu-2020"].items)
    assert len(chosen_items(PAPERS, ["all"])) == len(ITEMS)


@pytest.mark.parametrize(("what", "says"), [("nobody-1999", "no paper"), ("xu-2020/figure99", "no item")])
def test_what_is_not_there_is_refused_with_what_is(what, says):
    with pytest.raises(InputError, match=says) as refused:
        chosen_items(PAPERS, [what])
    assert "xu-2020" in refused.value.fix or "table1" in refused.value.fix


GOOD = {"title": "T", "base": {"data": "cancer", "epsilon": 1.0, "delta": 1e-3}, "case": [{"name": "a"}, {"name": "b"}]}


A_GRID = {"name": "a", "epsilons": [1.0, 2.0]}


def test_a_good_file():
    item = item_of("p", "i", GOOD)
    assert [case.name for case in item.cases] == ["a", "b"]
    assert item.kind == "train"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"titel": "T"}, "titel"),
        ({"kind": "magic"}, "no kind"),
        ({"case": [{"name": "a"}, {"name": "a"}]}, "two cases"),
        ({"case": [{"name": "a", "colour": "red"}]}, "colour"),
        ({"case": [{"name": "a", "beside": "c"}]}, "does not have"),
        ({"claim": [{"says": "x", "of": "a", "over": "z"}]}, "does not have"),
        ({"claim": [{"says": "x", "best": ["z"]}]}, "does not have"),
        ({"quick": {"cases": ["z"]}}, "does not have"),
        ({"quick": {"sett": {}}}, "sett"),
        ({"case": [{"name": "a", "set": {"epsilon": -1.0}}]}, "epsilon"),
        ({"case": [{"name": "a", "set": {"colour": 1}}]}, "colour"),
        ({"picture": "curves"}, "curves"),
        ({"base": GOOD["base"] | {"data": "npz:mine.npz"}}, "data of your own"),
        ({"kind": "smallest", "marks": [0.9]}, "epsilons or along"),
        (
            {"kind": "smallest", "marks": [0.9], "case": [{"name": "a", "epsilons": [1.0], "printed": [1.0, 2.0]}]},
            "2 printed",
        ),
        ({"kind": "smallest", "marks": [0.9], "case": [{"name": "a", "along": "pld"}]}, "noise_multiplier, batch_size"),
        ({"kind": "command", "case": [{"name": "a", "run": "epsilon"}]}, "run and read"),
        ({"kind": "command", "picture": "bars", "case": []}, "draw"),
        ({"draw": [{"run": "epsilon"}]}, "draw"),
        ({"case": [{"name": "a"}, {"name": "b", "same_as": "a"}]}, "b is the same_as a"),
        ({"case": [{"name": "a"}, {"name": "b", "same_as": "a", "along": "pld"}]}, "b is the same_as a"),
        (
            {"kind": "smallest", "marks": [0.9], "case": [A_GRID, {"name": "b", "same_as": "a", "along": "pld"}]},
            "same_as a",
        ),
        ({"kind": "smallest", "marks": [0.9], "case": [A_GRID, A_GRID | {"name": "b", "same_as": "a"}]}, "same_as a"),
    ],
)
def test_a_bad_file_is_refused_by_name(change, says):
    with pytest.raises(InputError, match=says) as refused:
        item_of("p", "i", GOOD | change)
    assert "p/i.toml" in str(refused.value)


def test_a_quick_run_has_one_length():
    """Steps in place of epochs: both together would be refused."""
    content = GOOD | {"base": GOOD["base"] | {"epochs": 9}, "quick": {"cases": ["b"], "set": {"steps": 2}}}
    (config,) = item_of("p", "i", content).runs(quick=True).values()
    assert (config.steps, config.epochs) == (2, None)


def test_the_order_of_a_paper_names_files_that_exist(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "paper.toml").write_text('title = "P"\npage = "p.md"\norder = ["gone"]\n')
    with pytest.raises(InputError, match="gone"):
        papers(tmp_path)


def test_a_broken_file_is_refused_by_name(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "paper.toml").write_text("title = ")
    with pytest.raises(InputError, match=r"p/paper\.toml"):
        papers(tmp_path)
