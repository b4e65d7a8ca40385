"""benchmarks/suites.py: its pages print what was measured, its files can be run, and a run is measured and kept."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from matplotlib import pyplot as plt

from adadp.config import TrainConfig
from adadp.launch import resolved, training_records
from adadp.methods import parse_method
from adadp.plan import Plan
from adadp.train import plan_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
COLLECTIONS = ("schedules", "momentum", "methods")
FILES = {
    (collection, path.stem): tomllib.loads(path.read_text(encoding="utf-8"))
    for collection in COLLECTIONS
    for path in sorted((ROOT / "experiments" / collection).glob("*.toml"))
}
CASES = {
    (*file, case["name"]): content["base"] | case["set"] for file, content in FILES.items() for case in content["case"]
}
TINY = """
title = "A tiny one"
seeds = 2
picture = "curves"

[base]
data = "cancer"
model = "linear"
method = "dpsgd"
epsilon = 2.0
epochs = 3
lot = 140
evaluate_every = 1
accountant = "rdp"

[[case]]
name = "flat"
set = {}

[[case]]
name = "automatic"
printed = 0.9
set = { clip_rule = "automatic" }
"""


@pytest.fixture(scope="module")
def suites() -> Iterator[ModuleType]:
    """The script, which finds its helpers beside itself."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("suites")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def tiny(suites: ModuleType, tmp_path: Path):
    """A collection of one small file."""
    for folder in ("experiments/small", "benchmarks/results", "docs/papers", "docs/images"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "experiments/small/tiny.toml").write_text(TINY, encoding="utf-8")
    (tmp_path / "docs/papers/small.md").write_text("Before.\n<!-- results -->\n<!-- end of results -->\nAfter.\n")
    return suites.Collection("small", "papers/small.md", root=tmp_path)


def run_of(seed: int, accuracy: float = 0.9, **more: object) -> dict:
    return {"seed": seed, "test_accuracy": accuracy, "epochs": 3, "epsilon": 2.0, **more}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_the_page_is_what_was_measured(suites: ModuleType, name: str) -> None:
    collection = suites.COLLECTIONS[name]
    done = suites.measured_so_far(collection.results)
    page = collection.page.read_text(encoding="utf-8")
    printed = page.partition("<!-- results -->\n")[2].partition("\n<!-- end of results -->")[0]
    assert printed == suites.page_text(collection, done)
    for key, result in done.items():
        assert all(run["verified"] for run in result["runs"]), key
        seeds = [run["seed"] for run in result["runs"]]
        assert seeds == sorted(set(seeds))


@pytest.mark.parametrize("name", COLLECTIONS)
def test_every_result_belongs_to_a_case_and_its_command(suites: ModuleType, name: str) -> None:
    for key, result in suites.measured_so_far(suites.COLLECTIONS[name].results).items():
        assert result["command"] == TrainConfig.from_dict(CASES[(name, *key.split("/", 1))]).as_command(), key


@pytest.mark.parametrize("file", FILES, ids="/".join)
def test_a_file_says_what_its_table_and_picture_need(suites: ModuleType, file: tuple[str, str]) -> None:
    content = suites.COLLECTIONS[file[0]].suite(file[1])
    cases = content["case"]
    names = [case["name"] for case in cases]
    assert len(set(names)) == len(names)
    assert set(content) <= {"title", "seeds", "picture", "log", "base", "case"}
    for case in cases:
        assert set(case) <= {"name", "set", "x", "beside", "printed", "printed_epochs"}
        assert case.get("beside", names[0]) in names
        assert ("x" in case) == (content.get("picture", "bars") not in ("bars", "curves"))


@pytest.mark.parametrize("case", CASES, ids="/".join)
def test_a_case_is_a_configuration_with_a_method(case: tuple[str, str, str]) -> None:
    parse_method(TrainConfig.from_dict(CASES[case]).method)


def test_the_plans_are_those_of_table_2() -> None:
    for case in FILES["schedules", "table2"]["case"]:
        if "printed_epochs" in case and case["name"] != "validation":
            assert planned("schedules", "table2", case["name"]).epochs == case["printed_epochs"]


def test_the_clip_bound_of_figure_2_falls_to_a_half_and_the_noise_stays() -> None:
    plan = planned("momentum", "figure2-convex", "both")
    assert plan.epochs == 20
    for epoch in (0, 5, 19):
        rise = plan.noise_multiplier_at(100 * epoch) / plan.noise_multiplier_at(0)
        assert rise == pytest.approx(1 + epoch / 20)
    linear = planned("momentum", "figure2-convex", "both, clip falls linearly")
    assert linear.noise_multiplier_at(0) / linear.noise_multiplier_at(1000) == pytest.approx(0.75)
    kept = planned("momentum", "figure2-convex", "both, multiplier kept")
    assert kept.noise_multiplier_at(1999) == kept.noise_multiplier_at(0)


@pytest.mark.parametrize(("name", "records"), [("mnist", 60_000), ("covertype", 464_809)])
def test_the_setting_of_appendix_b(name: str, records: int) -> None:
    config = resolved(TrainConfig.from_dict(CASES["momentum", f"appendix-b-{name}", "both"]))
    plan = planned("momentum", f"appendix-b-{name}", "both")
    assert training_records(config) == records
    assert config.delta == pytest.approx(1 / records**2, rel=1e-5)
    assert config.lot == round({"mnist": 0.01, "covertype": 0.001}[name] * records)
    falling = {0: 1.0, 19: 1.0, 20: 0.98, 499: 0.52, 500: 0.5, 4999: 0.5}
    for step, share in falling.items():
        assert step >= plan.steps or plan.noise_multiplier_at(0) / plan.noise_multiplier_at(step) == pytest.approx(
            share
        )


def test_the_rates_of_the_blocks_are_that_of_the_default() -> None:
    first, *others = FILES["methods", "blocks"]["case"]
    rate = resolved(TrainConfig.from_dict(CASES["methods", "blocks", first["name"]])).lr_schedule
    given = {case["name"]: case["set"]["lr_schedule"] for case in others if "lr_schedule" in case["set"]}
    assert given["adamw"] == given["adambc"] == rate
    assert given["rms"].rpartition("period")[2] == rate.rpartition("period")[2]


def planned(collection: str, file: str, case: str) -> Plan:
    config = resolved(TrainConfig.from_dict(CASES[collection, file, case]))
    return plan_of(config, training_records(config))


def test_runs_are_trained_verified_and_drawn(suites: ModuleType, tiny) -> None:
    suites.measure(tiny, "tiny", None, tiny.results, missing=True)
    done = json.loads(tiny.results.read_text(encoding="utf-8"))
    assert set(done) == {"tiny/flat", "tiny/automatic"}
    for result in done.values():
        assert [run["seed"] for run in result["runs"]] == [0, 1]
        for run in result["runs"]:
            assert run["verified"]
            assert len(run["curve"]) == run["epochs"] == 3
            assert run["curve"][-1] == round(run["test_accuracy"], 4)
            assert all(value == round(value, 4) for value in run["curve"])
    suites.write_page(tiny, tiny.results)
    page = tiny.page.read_text(encoding="utf-8")
    assert page.startswith(
        "Before.\n<!-- results -->\n## A tiny one\n\n    python benchmarks/suites.py small tiny\n\n| "
    )
    assert page.endswith("![A tiny one](../images/small-tiny.png)\n<!-- end of results -->\nAfter.\n")
    assert tiny.image("tiny").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_looks_has_no_curve(suites: ModuleType, tiny) -> None:
    config = suites.config_of(tiny.suite("tiny"), {"set": {}})
    assert "curve" not in suites.one_run(config.replace(evaluate_every=None, seed=0))


def test_what_is_measured_is_not_run_again_unless_asked(
    suites: ModuleType, tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, int]] = []

    def one_run(config: TrainConfig) -> dict:
        ran.append((config.clip_rule, config.seed))
        return run_of(config.seed)

    monkeypatch.setattr(suites, "one_run", one_run)
    suites.measure(tiny, "tiny", [1], tiny.results, missing=True)
    suites.measure(tiny, "tiny", None, tiny.results, missing=True)
    assert ran == [("flat", 1), ("automatic", 1), ("flat", 0), ("automatic", 0)]
    suites.measure(tiny, "tiny", [0], tiny.results, missing=False)
    assert ran[4:] == [("flat", 0), ("automatic", 0)]
    assert [run["seed"] for run in suites.measured_so_far(tiny.results)["tiny/flat"]["runs"]] == [0, 1]


def test_runs_with_other_settings_do_not_stay_beside_new_ones(
    suites: ModuleType, tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suites, "one_run", lambda config: run_of(config.seed))
    suites.measure(tiny, "tiny", None, tiny.results, missing=True)
    file = tiny.root / "experiments/small/tiny.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("set = {}", "set = { lr = 0.25 }"), encoding="utf-8")
    suites.measure(tiny, "tiny", [1], tiny.results, missing=True)
    done = suites.measured_so_far(tiny.results)
    assert "--lr 0.25" in done["tiny/flat"]["command"]
    assert [run["seed"] for run in done["tiny/flat"]["runs"]] == [1]
    assert [run["seed"] for run in done["tiny/automatic"]["runs"]] == [0, 1]


def test_processes_that_write_at_once_lose_nothing(suites: ModuleType, tiny) -> None:
    config = suites.config_of(tiny.suite("tiny"), {"set": {}})
    jobs = [(f"tiny/{number % 3}", number) for number in range(60)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: suites.keep(tiny.results, job[0], config, run_of(job[1])), jobs))
    done = suites.measured_so_far(tiny.results)
    assert sorted((key, run["seed"]) for key, result in done.items() for run in result["runs"]) == sorted(jobs)
    assert [path.name for path in tiny.results.parent.iterdir()] == ["small.json"]


def test_curves_are_means_in_a_band_from_the_least_to_the_most(suites: ModuleType) -> None:
    runs = [run_of(0, curve=[0.5, 0.75, 0.9]), run_of(1, curve=[0.7, 0.85])]
    figure, axes = plt.subplots()
    suites.draw_curves(axes, [{"name": "both"}], [runs])
    (line,) = axes.lines
    assert line.get_label() == "both"
    assert list(line.get_xdata()) == [1, 2]
    assert list(line.get_ydata()) == pytest.approx([60, 80])
    corners = {(float(x), round(float(y), 6)) for x, y in axes.collections[0].get_paths()[0].vertices}
    assert corners == {(1, 50), (1, 70), (2, 75), (2, 85)}
    plt.close(figure)


def test_curves_need_a_look_after_every_epoch(suites: ModuleType, tiny) -> None:
    file = tiny.root / "experiments/small/tiny.toml"
    file.write_text(TINY.replace("evaluate_every = 1", "evaluate_every = 2"), encoding="utf-8")
    with pytest.raises(SystemExit, match="evaluate_every = 1"):
        tiny.suite("tiny")


def test_a_run_that_is_not_private_has_no_epsilon(suites: ModuleType, tiny) -> None:
    case = tiny.suite("tiny")["case"][0]
    done = {"tiny/flat": {"command": "", "runs": [run_of(0, epsilon=None)]}}
    assert suites.row("tiny", case, case, done, printed=False)[-2] == "none"


def test_a_file_that_does_not_exist_is_refused(suites: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["suites.py", "momentum", "figure9", "--seeds"])
    with pytest.raises(SystemExit, match="momentum has no figure9"):
        suites.main()
