"""What a comparison makes of what it finds: results to refine by, runs that failed, ledgers that do not hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from adadp.app.runs import RunFolder
from adadp.app.runs.folder import has_finished
from adadp.app.train.run import Run
from adadp.errors import InputError, Interrupted
from adadp.lab.compare import Case, Comparison, compare
from adadp.lab.compare.planning import plan_all
from adadp.lab.compare.privacy import ahead, charged, total_of
from adadp.ledger import read_ledger

pytestmark = pytest.mark.slow


BASE = {"data": "cancer", "delta": 1e-4, "batch_size": 100, "model": "linear", "threads": 1, "accountant": "zcdp"}
TWO = Comparison(
    "Two rates", BASE | {"steps": 3, "epsilon": 2.0}, (Case("slow", {"lr": 0.01}), Case("fast", {"lr": 0.1})), (0,)
)
SEARCH = Comparison(
    "Noisy",
    BASE | {"steps": 15, "optimizer": "sgd", "lr": 1.0},
    (Case("noisy", {}),),
    seeds=(2,),
    epsilons=(0.005, 8.0),
    marks=(0.75,),
    refine=2,
)
FIRST_FOUND = 0.2
"""The geometric mean of the two epsilons."""


def test_marks_are_refined_by_further_runs(tmp_path, in_this_process):
    """The accuracy that lies between those of two budgets is looked for at their geometric mean, and so on."""
    results = compare(SEARCH, tmp_path / "out")
    *first, last = [case["epsilon"] for case in results["cases"]]
    assert first == [0.005, 8.0, FIRST_FOUND]
    assert 0.005 < last < 8.0
    assert [case["refined"] for case in results["cases"]] == [False, False, True, True]
    (found,) = results["smallest"]
    assert found["above"] < found["epsilon"]
    assert {found["above"], found["epsilon"]} & {FIRST_FOUND, last}
    assert results["total"]["runs"] == 4
    in_this_process.add(f"noisy-{FIRST_FOUND}-seed2")  # whose epsilon is then neither reached nor missed
    (tmp_path / "out" / "report.html").unlink()
    results = compare(SEARCH, tmp_path / "out")
    assert [case["epsilon"] for case in results["cases"]] == [0.005, 8.0, FIRST_FOUND]
    assert [each["epsilon"] for each in results["failed"]] == [FIRST_FOUND]
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.usefixtures("in_this_process")
def test_a_refinement_that_costs_too_much_leaves_what_was_run(tmp_path):
    asked = SEARCH.replace(refine=1)
    enough = total_of(ahead(plan_all(asked), 1), public=True)["epsilon"]
    out = tmp_path / "out"
    with pytest.raises(InputError, match="would cost more than"):
        compare(asked, out, most_epsilon=1.0000001 * enough)
    results = json.loads((out / "results.json").read_text())
    assert [len(case["runs"]) for case in results["cases"]] == [1, 1]
    assert results["total"] == total_of(charged(plan_all(asked), (2,), out), public=True)
    assert "Noisy" in (out / "report.html").read_text()


@pytest.mark.usefixtures("in_this_process")
def test_a_comparison_goes_on_with_more_seeds_and_other_marks(tmp_path):
    asked, out = SEARCH.replace(refine=0), tmp_path / "out"
    compare(asked, out)
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/model.safetensors")}
    more = asked.replace(title="More", seeds=(0, 2), marks=(0.6, 0.9))
    results = compare(more, out)
    assert (results["title"], results["seeds"], results["marks"]) == ("More", [0, 2], [0.6, 0.9])
    assert [len(case["runs"]) for case in results["cases"]] == [2, 2]
    assert all(path.stat().st_mtime_ns == when for path, when in before.items()), "nothing is trained again"
    assert Comparison.from_toml(out / "comparison.toml") == more
    with pytest.raises(InputError, match="has another comparison: seeds differs"):
        compare(asked, out)
    with pytest.raises(InputError, match="has another comparison: epsilons, lr differ"):
        compare(more.replace(epsilons=(8.0,), base={**more.base, "lr": 0.5}), out)


@pytest.fixture
def finished(tmp_path, in_this_process) -> Path:
    """The folder of a comparison in which all is well."""
    compare(TWO, tmp_path / "out")
    return tmp_path / "out"


def test_a_run_has_finished_when_all_of_it_is_there_and_nothing_to_go_on_from(finished, tmp_path):
    folder = RunFolder.open(finished / "runs" / "slow-2-seed0")
    assert folder.finished
    for path, there in ((folder.certificate_path, False), (folder.model_path, False), (folder.checkpoint_path, True)):
        other = tmp_path / path.stem
        shutil.copytree(folder.path, other)
        (other / path.name).write_bytes(b"") if there else (other / path.name).unlink()
        assert not RunFolder.open(other).finished
        assert not has_finished(other)
    assert not has_finished(tmp_path / "nowhere")


def cut_in_the_header(ledger: Path) -> None:
    ledger.write_bytes(ledger.read_bytes()[:40])


def cut_after_a_line(ledger: Path) -> None:
    """Such a ledger can be read; what it says is too little."""
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("harmed", [cut_in_the_header, cut_after_a_line, Path.unlink])
def test_a_ledger_that_does_not_hold_counts_as_all_that_was_planned(finished, harmed):
    whole = json.loads((finished / "results.json").read_text())["total"]
    harmed(finished / "runs" / "slow-2-seed0" / "ledger.jsonl")
    for _ in range(2):
        results = compare(TWO, finished)
        assert [len(case["runs"]) for case in results["cases"]] == [0, 1]
        assert [(each["name"], each["seed"]) for each in results["failed"]] == [("slow", 0)]
        assert results["total"]["epsilon"] == pytest.approx(whole["epsilon"], rel=1e-6)
        assert results["total"]["runs"] == 2
        assert "1 of them as planned: not finished, or their ledger is gone" in results["total"]["text"]


def test_such_a_ledger_is_told_even_if_its_run_was_not_come_to(finished, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    cut_in_the_header(finished / "runs" / "slow-2-seed0" / "ledger.jsonl")
    monkeypatch.setattr("adadp.lab.compare.comparing.run_tasks", stopped)
    with pytest.raises(Interrupted, match=r"0 of 2 runs done\. The runs .* as they were saved last"):
        compare(TWO, finished)
    (failed,) = json.loads((finished / "results.json").read_text())["failed"]
    assert "stops inside its header" in failed["error"]


def own_comparison(table: Path, **case) -> Comparison:
    files = {"data": f"table:{table / 'train.csv'}", "test_data": f"table:{table / 'test.csv'}"}
    base = BASE | files | {"schema": str(table / "schema.toml"), "records": 200, "steps": 2, "epsilon": 2.0}
    return Comparison("Own", base, (Case("one", case),), (0,))


def test_what_an_error_says_about_own_records_is_not_kept(table, tmp_path, in_this_process):
    in_this_process.add("one-2-seed0")
    results = compare(own_comparison(table), tmp_path / "out")
    (failed,) = results["failed"]
    assert failed["error"].startswith("RuntimeError. What it said is not kept")
    assert "that it failed is not covered by the total" in failed["error"]
    for file in (tmp_path / "out").iterdir():
        assert file.is_dir() or b"It was told to fail" not in file.read_bytes()


@pytest.mark.usefixtures("in_this_process")
def test_a_run_that_has_begun_and_not_finished_counts_as_planned(table, tmp_path, monkeypatch):
    """It may have stopped because of what it released: then the charges until there are no bound."""
    asked, step = own_comparison(table), Run.step

    def once(run: Run) -> bool:
        if run.private.step:
            raise OSError("the disk is full")
        return step(run)

    monkeypatch.setattr(Run, "step", once)
    results = compare(asked, tmp_path / "out")
    planned = total_of(ahead(plan_all(asked), 1), public=False)["epsilon"]
    ledger = read_ledger(tmp_path / "out" / "runs" / "one-2-seed0" / "ledger.jsonl")
    assert sum(ledger.charges.values()) == 1
    assert results["total"]["epsilon"] == planned
    assert "1 of them as planned" in results["total"]["text"]


@pytest.mark.usefixtures("in_this_process")
def test_on_own_records_no_run_is_added_after_a_look_at_the_others(table, tmp_path):
    asked = own_comparison(table)
    compare(asked, tmp_path / "out")
    with pytest.raises(InputError, match="has another comparison: seeds differs"):
        compare(asked.replace(seeds=(0, 1)), tmp_path / "out")


@pytest.mark.usefixtures("in_this_process")
def test_a_run_whose_folder_was_removed_still_counts(table, tmp_path):
    asked, out = own_comparison(table), tmp_path / "out"
    one = compare(asked, out)["total"]
    for runs in (2, 3):
        shutil.rmtree(out / "runs" / "one-2-seed0")
        total = compare(asked, out)["total"]
        assert total["runs"] == runs
        assert total["epsilon"] > one["epsilon"]
        assert f"{runs - 1} of them as planned" in total["text"]
    assert compare(asked, out)["total"] == total
    with pytest.raises(InputError, match="would cost more than"):
        compare(asked, out, most_epsilon=1.01 * one["epsilon"])


@pytest.mark.usefixtures("in_this_process")
def test_a_release_that_was_paid_and_lost_on_own_data_stays_charged_and_failed(table, tmp_path, monkeypatch):
    """Its folder holds the charge: nothing may say that it should be removed."""
    out = tmp_path / "out"
    asked = own_comparison(table, features="pca:dim=1,noise_multiplier=5")

    def killed(*_, **__):
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_features", killed)
        compare(asked, out)
    results = compare(asked, out)
    (failed,) = results["failed"]
    assert "pca was paid" in failed["error"]
    assert "Leave its folder where it is" in failed["error"]
    assert "do without this run, or compare in another folder" in failed["error"]
    assert not {"remove", "delete"} & set(failed["error"].lower().split())
    assert 0 < results["total"]["epsilon"] < 2.0
    assert results["total"]["runs"] == 1
