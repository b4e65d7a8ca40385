"""Items are really run: training on real data, real commands, pages that say what came out."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib import pyplot as plt

from adadp.app.cli import main
from adadp.errors import InputError, RunError
from adadp.lab.reproduce import Store, measure, papers, write_inventory, write_paper
from adadp.lab.reproduce.items import item_of
from adadp.lab.reproduce.measuring import found_at
from adadp.lab.reproduce.pages import BEGIN, END, section, write_between_marks
from adadp.lab.reproduce.pictures import _sweep, draw

pytestmark = pytest.mark.slow


TINY = """
title = "A tiny figure"
where = "section 1"
seeds = 2
picture = "curves"
why = "Because it is tiny."

[base]
data = "cancer"
method = "dpsgd"
delta = 1e-3
batch_size = 56
epochs = 2
evaluate_every = 1

[[case]]
name = "slow"
printed = 0.65
tolerance = 0.5
set = { epsilon = 2.0, lr = 0.01, optimizer = "sgd" }

[[case]]
name = "open"
set = { noise_multiplier = 0.0, allow_nonprivate = true, lr = 0.01, optimizer = "sgd" }

[[claim]]
says = "One is better"
of = "slow"
over = "open"

[quick]
cases = ["slow"]
set = { steps = 3 }
"""
ASKED = """
title = "Asked"
where = "section 2"
kind = "command"

[[case]]
name = "moments"
run = "epsilon --q 0.01 --noise-multiplier 4 --steps 10000 --delta 1e-5 --accountant moments"
read = "epsilon"
printed = 1.26

[[draw]]
run = "epsilon --q 0.01 --noise-multiplier 4 --steps 100 --delta 1e-5 --plot {file}"
"""


TINY_CONTENT = {
    "title": "A twin",
    "base": {
        "data": "cancer", "method": "dpsgd", "delta": 1e-3, "batch_size": 56, "epochs": 2,
        "evaluate_every": 1, "lr": 0.01,
        "optimizer": "sgd",
    },
    "case": [{"name": "slow", "set": {"epsilon": 2.0}}],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("experiments")
    (place / "small").mkdir()
    (place / "small" / "paper.toml").write_text(
        'title = "A small paper"\npage = "../elsewhere/small.md"\norder = ["tiny"]\n'
    )
    (place / "small" / "tiny.toml").write_text(TINY)
    (place / "small" / "asked.toml").write_text(ASKED)
    return place


@pytest.fixture(scope="module")
def done(folder, tmp_path_factory):
    """Everything of the small paper, by the command."""
    out = tmp_path_factory.mktemp("out")
    answer = CliRunner().invoke(
        main, ["reproduce", "small", "--experiments", str(folder), "--out", str(out), "--threads", "1"]
    )
    assert answer.exit_code == 0, answer.output
    return out, answer.output


def results(out: Path, name: str):
    return json.loads((out / "results" / "small" / name).read_text())


def test_every_case_is_trained_with_every_seed(done):
    out, said = done
    runs = results(out, "tiny.json")["runs"]
    assert {name: [run["seed"] for run in each["runs"]] for name, each in runs.items()} == {
        "slow": [0, 1],
        "open": [0, 1],
    }
    (first, _) = runs["slow"]["runs"]
    assert first["epsilon"] <= 2.0
    assert first["private"]
    assert [point["step"] for point in first["curve"]] == [10, 20]
    assert first["curve"][-1]["test_accuracy"] == first["test_accuracy"]
    assert runs["open"]["runs"][0]["epsilon"] is None
    assert "small/tiny: slow, seed 1" in said


def test_a_command_is_asked_and_draws(done):
    out, _ = done
    assert results(out, "asked.json")["answers"]["moments"]["value"] == pytest.approx(1.2586, abs=1e-3)
    assert (out / "images" / "small-asked-1.png").read_bytes()[:4] == b"\x89PNG"


def test_the_page_has_both_figures_the_gap_and_why(done):
    out, _ = done
    page = (out / "small-reproduced.md").read_text()
    accuracy = [100 * run["test_accuracy"] for run in results(out, "tiny.json")["runs"]["slow"]["runs"]]
    assert page.startswith(f"# A small paper\n\n{BEGIN}\n")
    assert f"| slow | 65.0 | {sum(accuracy) / 2:.2f} ± " in page
    assert "| open (**not private**) |" in page
    assert "Because it is tiny." in page
    assert "- One is better: " in page
    assert "adadp reproduce small/tiny" in page
    assert "| moments | 1.259 | 1.26 | -0.00143 | yes |" in page
    assert "](images/small-tiny.png)" in page
    assert (out / "images" / "small-tiny.png").exists()
    inventory = (out / "inventory.md").read_text()
    assert "| [small/asked](small-reproduced.md) | Asked | reproduced | 1 of 1 |  |" in inventory


def test_what_is_measured_is_not_measured_again(done, folder, monkeypatch):
    out, _ = done
    before = results(out, "tiny.json")
    monkeypatch.setattr("adadp.lab.reproduce.measuring.measured_run", lambda *_, **__: pytest.fail("it was measured"))
    monkeypatch.setattr("adadp.lab.reproduce.measuring._command", lambda *_: pytest.fail("it was asked"))
    for item in papers(folder)["small"].items:
        measure(Store(item, out))
    assert results(out, "tiny.json") == before


def test_a_run_that_another_item_has_is_not_made_again(done, folder, tmp_path, monkeypatch):
    out = Path(shutil.copytree(done[0], tmp_path / "out"))
    place = tmp_path / "experiments" / "other"
    place.mkdir(parents=True)
    (place / "paper.toml").write_text('title = "Another paper"\npage = "other.md"\norder = ["twin"]\n')
    (place / "twin.toml").write_text(
        TINY.replace('"slow"', '"the same"').replace("noise_multiplier = 0.0", "noise_multiplier = 9.0")
    )
    made = []

    def makes(config, _, **__):
        made.append((config.noise_multiplier, config.seed))
        raise KeyboardInterrupt

    monkeypatch.setattr("adadp.lab.reproduce.measuring.measured_run", makes)
    (item,) = papers(place.parent)["other"].items
    with pytest.raises(KeyboardInterrupt):
        measure(Store(item, out))
    assert made == [(9.0, 0)]
    assert Store(item, out).runs() == {"the same": results(out, "tiny.json")["runs"]["slow"]["runs"][:1]}
    made.clear()
    with pytest.raises(KeyboardInterrupt):
        measure(Store(item, out), again=True)
    assert made == [(None, 0)]


def test_a_stop_loses_one_run(folder, tmp_path, monkeypatch):
    item = next(item for item in papers(folder)["small"].items if item.name == "tiny")
    from adadp.lab.reproduce import measuring

    real, calls = measuring.measured_run, []

    def stopping(config, place, **more):
        calls.append(config.seed)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(config, place, **more)

    monkeypatch.setattr(measuring, "measured_run", stopping)
    with pytest.raises(KeyboardInterrupt):
        measure(Store(item, tmp_path))
    assert {name: len(runs) for name, runs in Store(item, tmp_path).runs().items()} == {"slow": 1}


def test_quick_is_short_and_kept_apart(done, folder, tmp_path):
    answer = CliRunner().invoke(
        main, ["reproduce", "small/tiny", "--quick", "--experiments", str(folder), "--out", str(tmp_path), "--json"]
    )
    assert answer.exit_code == 0, answer.output
    (row,) = json.loads(answer.output.splitlines()[-1])
    assert (row["item"], len(row["figures"])) == ("small/tiny", 1)
    (kept,) = json.loads((tmp_path / "results" / "small" / "tiny.quick.json").read_text())["runs"]["slow"]["runs"]
    assert kept["steps"] == 3
    assert not (tmp_path / "results" / "small" / "tiny.json").exists()
    assert (tmp_path / "small-quick.md").exists()
    assert not (tmp_path / "inventory.md").exists()


def test_without_a_name_all_are_listed_and_nothing_runs(folder, tmp_path):
    answer = CliRunner().invoke(main, ["reproduce", "--experiments", str(folder), "--out", str(tmp_path)])
    assert answer.exit_code == 0
    assert "small/tiny" in answer.output
    assert "not run" in answer.output
    assert list(tmp_path.iterdir()) == []


def test_seeds_may_be_more(done, folder, tmp_path):
    item = next(item for item in papers(folder)["small"].items if item.name == "tiny")
    store = Store(item, tmp_path, quick=True)
    measure(store, seeds=[3])
    assert [run["seed"] for run in store.runs()["slow"]] == [3]


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """What is asked, without where it draws to; commands answer with their length, and draw themselves."""
    calls = []

    def answers(text):
        words = shlex.split(text)
        if "--plot" in words:
            place = words.index("--plot") + 1
            Path(words[place]).write_text(text)
            words[place] = "FILE"
        if "--out" in words:
            place = words.index("--out") + 1
            for name in ("one.png", "other.png"):
                (Path(words[place]) / name).write_text(name)
            words[place] = "FOLDER"
        calls.append(" ".join(words))
        return json.dumps({"length": len(text)})

    monkeypatch.setattr("adadp.lab.reproduce.measuring._command", answers)
    return calls


def commands(*asks: str, draws=()):
    """An item whose cases run ``asks``, and that has the pictures ``draws``."""
    cases = [{"name": each, "run": each, "read": "length"} for each in asks]
    drawn = [each if isinstance(each, dict) else {"run": each} for each in draws]
    return item_of("p", "i", {"title": "T", "kind": "command", "case": cases, "draw": drawn})


def test_a_picture_of_another_command_is_not_shown_and_drawn_again(tmp_path, asked):
    old, new = (Store(commands("a", draws=[f"b {n} --plot {{file}}"]), tmp_path) for n in (1, 2))
    measure(old)
    assert asked == ["a --json", "b 1 --plot FILE"]
    (picture,) = old.pictures
    assert "](images/" in section(old, tmp_path)
    assert "](images/" not in section(new, tmp_path)
    asked.clear()
    measure(new)
    assert asked == ["b 2 --plot FILE"]
    assert "](images/" in section(new, tmp_path)
    assert picture.read_text().startswith("b 2 ")
    measure(new)
    assert asked == ["b 2 --plot FILE"]


def test_another_file_of_the_same_command_is_another_picture(tmp_path, asked):
    one, other = (
        Store(commands("a", draws=[{"run": "b --out {out}", "take": f"{name}.png"}]), tmp_path)
        for name in ("one", "other")
    )
    for store, name in ((one, "one.png"), (other, "other.png")):
        measure(store)
        assert store.pictures[0].read_text() == name
    assert asked == ["a --json", "b --out FOLDER", "b --out FOLDER"]


def test_a_quick_picture_is_drawn_by_the_quick_command(tmp_path, asked):
    item = commands("a", draws=[{"run": "b 10 --plot {file}", "quick": "b 1 --plot {file}"}])
    said = []
    measure(Store(item, tmp_path, quick=True), tell=said.append)
    measure(Store(item, tmp_path), tell=said.append)
    assert asked == ["a --json", "b 1 --plot FILE", "a --json", "b 10 --plot FILE"]
    assert said == ["adadp a", "adadp b 1", "adadp a", "adadp b 10"]


def test_a_picture_that_nobody_noted_is_drawn_again(tmp_path, asked):
    """Of files from before commands of pictures were noted."""
    store = Store(commands("a", draws=["b --plot {file}"]), tmp_path)
    measure(store)
    content = json.loads(store.path.read_text())
    del content["drawings"]
    store.path.write_text(json.dumps(content))
    assert store.current_pictures() == []
    measure(store)
    assert asked == ["a --json", "b --plot FILE", "b --plot FILE"]
    assert store.current_pictures() == store.pictures


@pytest.mark.parametrize("option", ["--plot {file}", "--out {out}"])
def test_a_command_that_answers_and_draws_runs_once(tmp_path, asked, option):
    drawing = {"run": f"a {option} --x 1"} | ({"take": "one.png"} if "out" in option else {})
    store, shown = Store(commands("a --x 1", "c", draws=[drawing]), tmp_path), option.replace("{file}", "FILE")
    shown = shown.replace("{out}", "FOLDER")
    measure(store)
    assert asked == [f"a {shown} --x 1 --json", "c --json"]
    assert set(store.answers()) == {"a --x 1", "c"}
    assert store.current_pictures() == store.pictures
    asked.clear()
    store.pictures[0].unlink()
    measure(store)
    assert asked == [f"a {shown} --x 1"]
    asked.clear()
    measure(store, again=True)
    assert asked == [f"a {shown} --x 1 --json", "c --json"]


def test_a_command_that_several_cases_ask_runs_once(tmp_path, asked):
    cases = [{"name": name, "run": "a", "read": "length"} for name in ("x", "y")]
    store = Store(item_of("p", "i", {"title": "T", "kind": "command", "case": cases}), tmp_path)
    measure(store)
    assert asked == ["a --json"]
    assert store.answers() == {"x": 8.0, "y": 8.0}


def test_a_stop_loses_one_command(tmp_path, asked, monkeypatch):
    from adadp.lab.reproduce import measuring

    fake = measuring._command

    def stopping(text):
        if text == "b --json":
            raise KeyboardInterrupt
        return fake(text)

    store = Store(commands("a", "b", "c", draws=["d --plot {file}"]), tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "_command", stopping)
        with pytest.raises(KeyboardInterrupt):
            measure(store)
    assert set(store.answers()) == {"a"}
    asked.clear()
    measure(store)
    assert asked == ["b --json", "c --json", "d --plot FILE"]


def test_a_picture_is_replaced_as_a_whole_or_not_at_all(done, folder, tmp_path, asked, monkeypatch):
    store = Store(commands("a", draws=["b --plot {file}"]), tmp_path)
    measure(store)
    drawn = Store(next(item for item in papers(folder)["small"].items if item.name == "tiny"), done[0])
    before = [each.read_bytes() for each in (store.pictures[0], drawn.pictures[0])]

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("adadp.app.runs.atomic.os.fsync", full)
    with pytest.raises(RunError, match="No space left"):
        measure(store, again=True)
    with pytest.raises(RunError, match="No space left"):
        draw(drawn.pictures[0], drawn)
    assert [each.read_bytes() for each in (store.pictures[0], drawn.pictures[0])] == before


def test_a_damaged_file_of_another_item_stops_nobody(done, folder, tmp_path):
    out = Path(shutil.copytree(done[0], tmp_path / "out"))
    for number, text in enumerate(["{", "[]", "{}", '{"runs": []}', '{"runs": {"slow": {}}}', '{"runs": {"slow": 1}}']):
        (out / "results" / "small" / f"a{number}.json").write_text(text)
    (out / "results" / "small" / "b.json").mkdir()
    twin = item_of("other", "twin", TINY_CONTENT)
    store = Store(twin, out)
    assert store.elsewhere(twin.runs()["slow"], 1) == results(out, "tiny.json")["runs"]["slow"]["runs"][1]
    assert store.elsewhere(twin.runs()["slow"], 7) is None


def test_a_command_that_fails_says_which(folder, tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "paper.toml").write_text('title = "P"\npage = "p.md"\n')
    (tmp_path / "p" / "bad.toml").write_text(
        ASKED.replace("--noise-multiplier 4 --steps 10000", "--noise-multiplier -4 --steps 10000")
    )
    (item,) = papers(tmp_path)["p"].items
    with pytest.raises(RunError, match="--noise-multiplier -4") as failed:
        measure(Store(item, tmp_path))
    assert "--noise-multiplier must be" in failed.value.why


@pytest.mark.parametrize(("path", "value"), [("a.0.b", 1.0), ("a.-1.b", 2.0), ("c", 1.0)])
def test_a_figure_is_found_in_an_answer(path, value):
    assert found_at({"a": [{"b": 1}, {"b": 2}], "c": True}, path) == value


@pytest.mark.parametrize("path", ["a.5.b", "a.x.b", "d", "c.e"])
def test_a_figure_that_is_not_there_is_named(path):
    with pytest.raises(InputError, match="has no"):
        found_at({"a": [{"b": 1}], "c": 1.0}, path)


def test_a_page_keeps_its_own_words(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n\nWords.\n\n{BEGIN}\nold\n{END}\n\nMore.\n")
    write_between_marks(page, "new", title="Other")
    assert page.read_text() == f"# Mine\n\nWords.\n\n{BEGIN}\nnew\n{END}\n\nMore.\n"
    page.write_text("# Mine\n")
    with pytest.raises(InputError, match="marks"):
        write_between_marks(page, "new", title="Other")


def test_a_damaged_result_is_not_overwritten(folder, tmp_path):
    item = papers(folder)["small"].items[0]
    store = Store(item, tmp_path)
    store.path.parent.mkdir(parents=True)
    store.path.write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        store.runs()
    assert store.path.read_text() == "{"


def test_pages_can_be_written_from_what_there_is(done, folder, tmp_path):
    out, _ = done
    page = (out / "small-reproduced.md").read_text()
    known = papers(folder)
    assert write_paper(known["small"], out, quick=False).read_text() == page
    inventory = (out / "inventory.md").read_text()
    assert write_inventory(known, out).read_text() == inventory


def test_nothing_is_written_outside_of_the_folder(done):
    out, _ = done
    assert not (out.parent / "elsewhere").exists()


def test_a_page_that_is_there_is_the_one(done, folder, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    page = tmp_path / "elsewhere" / "small.md"
    page.parent.mkdir()
    page.write_text(f"# Mine\n\n{BEGIN}\n{END}\n")
    assert write_paper(papers(folder)["small"], out, quick=False).resolve() == page
    assert page.read_text() == f"# Mine\n\n{BEGIN}\n\n{END}\n"


@pytest.mark.parametrize(("private", "said"), [(True, "test accuracy, %"), (False, "test accuracy, % (not private)")])
def test_a_sweep_of_what_is_not_private_is_marked(private, said):
    content = {"title": "T", "picture": "rate", "case": [{"name": "a", "x": 1.0}]}
    item = item_of("p", "i", content | {"base": {"data": "cancer", "noise_multiplier": 1.0, "delta": 1e-4}})
    axes = plt.figure().subplots()
    axes.set_ylabel("test accuracy, %")
    _sweep(axes, item, item.cases, [[{"private": private, "test_accuracy": 0.9, "epochs": 2}]])
    assert axes.get_ylabel() == said
    assert (axes.lines[0].get_linestyle() == "-") == private
    plt.close(axes.figure)
