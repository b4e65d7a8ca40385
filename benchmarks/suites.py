"""Collections of experiments: every file in a folder of experiments/, all its cases over seeds, each run verified.

A collection has a folder, a page, its results and its pictures:

    schedules   docs/papers/yu-2019-schedules.md    noise that falls, Yu et al. 2019
    momentum    docs/papers/yu-2018-momentum.md     momentum and a falling clip bound, Yu et al. 2018
    methods     docs/methods/comparison.md          the methods, and what follows the release, at equal budget

It writes benchmarks/results/<collection>.json after every run, and then the tables of the page and
docs/images/<collection>-<file>.png. A file is

    title, seeds    what it is, and how many seeds (0, 1, ...) every case is run with
    picture         a plot: "bars" (figure 5 of Yu et al. 2019); "curves", accuracy by epoch, for which evaluate_every
                    is 1; or for a sweep what ``x`` of the cases is
    log             whether that axis is logarithmic
    [base]          settings of `adadp train`
    [[case]]        ``name``; ``set``: its settings over those of the base; ``printed``, ``printed_epochs``: the paper's
                    figures; ``beside``: the case it is compared with, seed by seed (without it, the first one)

Nothing is tuned here: the numbers are those of the papers, or were fixed beforehand. With ``--missing`` what has been
measured with the settings in the file stays; runs with other settings never stand beside new ones. With ``--seeds`` and
no seed nothing is run and the page is written from what there is. Several processes may measure at once.

    python benchmarks/suites.py schedules --missing --threads 1
    python benchmarks/suites.py momentum figure3 --seeds 0 1
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from accuracy import ROOT, measured_so_far, one_run
from filelock import FileLock
from harness import table
from table1 import write_between_marks

from adadp.config import TrainConfig

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Measured = dict[str, dict[str, Any]]
"""``file/case`` -> its command and its runs."""
Suite = dict[str, Any]
"""A file, as it is written."""


@dataclass(frozen=True)
class Collection:
    """A folder of experiments and where its results go."""

    name: str
    page_name: str
    """Below docs/, in a folder of it."""
    order: tuple[str, ...] = ()
    """The files in the order of the page; what is not named here comes after."""
    root: Path = ROOT

    @property
    def page(self) -> Path:
        return self.root / "docs" / self.page_name

    @property
    def results(self) -> Path:
        return self.root / "benchmarks" / "results" / f"{self.name}.json"

    def image(self, suite: str) -> Path:
        return self.root / "docs" / "images" / f"{self.name}-{suite}.png"

    @property
    def suites(self) -> list[str]:
        """The names of its files."""
        found = [path.stem for path in sorted(self._folder.glob("*.toml"))]
        return sorted(found, key=lambda name: (self.order.index(name) if name in self.order else len(self.order), name))

    def suite(self, name: str) -> Suite:
        content = tomllib.loads((self._folder / f"{name}.toml").read_text(encoding="utf-8"))
        if content.get("picture") == "curves" and content["base"].get("evaluate_every") != 1:
            raise SystemExit(f"{name} of {self.name} draws curves by epoch, so its base needs evaluate_every = 1.")
        return content

    @property
    def _folder(self) -> Path:
        return self.root / "experiments" / self.name


COLLECTIONS = {
    each.name: each
    for each in (
        Collection(
            "schedules",
            "papers/yu-2019-schedules.md",
            ("table2", "table2-as-printed", "figure7", "figure8", "figure11a", "figure11b", "cancer", "poisson"),
        ),
        Collection(
            "momentum", "papers/yu-2018-momentum.md", ("figure2-convex", "figure2-cnn", "figure3", "figure3-cnn")
        ),
        Collection("methods", "methods/comparison.md", ("mnist", "mnist-printed", "blocks")),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collection", choices=COLLECTIONS)
    parser.add_argument("names", nargs="*", help="Some of its files, by name; all without.")
    parser.add_argument("--seeds", nargs="*", type=int, help="These seeds instead of the file's.")
    parser.add_argument("--missing", action="store_true", help="Only runs that have not been measured.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, help="The JSON file to read and write.")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    collection = COLLECTIONS[options.collection]
    unknown = sorted(set(options.names) - set(collection.suites))
    if unknown:
        raise SystemExit(f"{collection.name} has no {', '.join(unknown)}. It has: {', '.join(collection.suites)}.")
    results = options.results or collection.results
    for name in options.names or collection.suites:
        measure(collection, name, options.seeds, results, missing=options.missing)
    write_page(collection, results)


def write_page(collection: Collection, results: Path) -> None:
    """The pictures and the tables, from what has been measured."""
    with locked(results):
        done = measured_so_far(results)
        for name in collection.suites:
            content = collection.suite(name)
            if "picture" in content and measured_cases(name, content, done):
                draw(collection.image(name), name, content, done)
        write_between_marks(collection.page, page_text(collection, done))


def page_text(collection: Collection, done: Measured) -> str:
    """The tables of the page: one section per file of which something has been measured."""
    sections = [section(collection, name, collection.suite(name), done) for name in collection.suites]
    return "\n\n".join(each for each in sections if each)


def measured_cases(name: str, content: Suite, done: Measured) -> list[dict[str, Any]]:
    return [case for case in content["case"] if f"{name}/{case['name']}" in done]


def config_of(content: Suite, case: dict[str, Any]) -> TrainConfig:
    return TrainConfig.from_dict(content["base"] | case["set"])


def measure(collection: Collection, name: str, seeds: list[int] | None, results: Path, *, missing: bool) -> None:
    """Run what is to be run. The file is written after every run, so a stop loses one."""
    content = collection.suite(name)
    for seed in range(content["seeds"]) if seeds is None else seeds:
        for case in content["case"]:
            key, config = f"{name}/{case['name']}", config_of(content, case)
            known = runs_with(config, measured_so_far(results).get(key))
            if not (missing and any(run["seed"] == seed for run in known)):
                keep(results, key, config, one_run(config.replace(seed=seed)))


def runs_with(config: TrainConfig, result: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The runs in ``result`` that had the settings of ``config``: all of them or, if the file has changed, none."""
    return result["runs"] if result and result["command"] == config.as_command() else []


def keep(results: Path, key: str, config: TrainConfig, run: dict[str, Any]) -> None:
    """Write ``run`` in place of an earlier one of its seed, whatever other processes write meanwhile."""
    with locked(results):
        done = measured_so_far(results)
        others = [other for other in runs_with(config, done.get(key)) if other["seed"] != run["seed"]]
        runs = sorted([*others, run], key=lambda each: int(each["seed"]))
        done[key] = {"command": config.as_command(), "runs": runs}
        partial = results.with_name(results.name + ".partial")
        partial.write_text(json.dumps(done, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(partial, results)


def locked(results: Path) -> FileLock:
    """One process at a time. The lock is no file beside the results, where it would be left behind."""
    name = hashlib.sha256(str(results.resolve()).encode()).hexdigest()[:16]
    return FileLock(Path(tempfile.gettempdir()) / f"adadp-results-{name}.lock")


def section(collection: Collection, name: str, content: Suite, done: Measured) -> str:
    """The part of the page about one file: a table, and a plot if it asks for one."""
    cases = measured_cases(name, content, done)
    if not cases:
        return ""
    printed = any("printed" in case for case in cases)
    paper = ("printed",) if printed else ()
    head = ("", *paper, "test accuracy, %", "least to most", "gain", "epochs", "epsilon", "seeds")
    rows = [row(name, case, cases[0], done, printed=printed) for case in cases]
    command = f"    python benchmarks/suites.py {collection.name} {name}"
    lines = [f"## {content['title']}", "", command, "", *table(head, rows)]
    if "picture" in content:
        lines += ["", f"![{content['title']}](../images/{collection.image(name).name})"]
    return "\n".join(lines)


def row(name: str, case: dict[str, Any], first: dict[str, Any], done: Measured, *, printed: bool) -> tuple[str, ...]:
    runs = done[f"{name}/{case['name']}"]["runs"]
    found = [100 * float(run["test_accuracy"]) for run in runs]
    spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    epochs = sorted({int(run["epochs"]) for run in runs})
    length = f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
    if "printed_epochs" in case:
        length += f" (printed {case['printed_epochs']})"
    other = case.get("beside", first["name"])
    gain = "" if other == case["name"] else paired(runs, done.get(f"{name}/{other}", {"runs": []})["runs"])
    paper = (f"{100 * case['printed']:.1f}" if "printed" in case else "",) if printed else ()
    return (
        case["name"],
        *paper,
        f"{statistics.mean(found):.2f}{spread}",
        f"{min(found):.2f} to {max(found):.2f}",
        gain,
        length,
        "none" if runs[0]["epsilon"] is None else f"{float(runs[0]['epsilon']):.3f}",
        str(len(runs)),
    )


def paired(runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """How much better than another case, seed by seed: mean and its standard error, in points."""
    theirs = {run["seed"]: float(run["test_accuracy"]) for run in others}
    gains = [100 * (float(run["test_accuracy"]) - theirs[run["seed"]]) for run in runs if run["seed"] in theirs]
    if len(gains) < 2:
        return ""
    return f"{statistics.mean(gains):+.2f} ± {statistics.stdev(gains) / len(gains) ** 0.5:.2f}"


def draw(target: Path, name: str, content: Suite, done: Measured) -> None:
    """The picture a file asks for, of the cases that have been measured."""
    cases = measured_cases(name, content, done)
    runs = [done[f"{name}/{case['name']}"]["runs"] for case in cases]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)
    if content["picture"] == "curves":
        draw_curves(axes, cases, runs)
    else:
        draw_points(axes, content, cases, runs)
    figure.savefig(target, dpi=90)
    plt.close(figure)


def draw_curves(axes: Axes, cases: list[dict[str, Any]], runs: list[list[dict[str, Any]]]) -> None:
    """Mean accuracy after every epoch, in a band from the least to the most, as long as all seeds went on."""
    for case, each in zip(cases, runs, strict=True):
        by_epoch = [[100 * value for value in values] for values in zip(*(run["curve"] for run in each), strict=False)]
        epochs = range(1, len(by_epoch) + 1)
        (line,) = axes.plot(epochs, [statistics.mean(values) for values in by_epoch], label=case["name"])
        least, most = [min(values) for values in by_epoch], [max(values) for values in by_epoch]
        axes.fill_between(epochs, least, most, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel("epochs")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def draw_points(axes: Axes, content: Suite, cases: list[dict[str, Any]], runs: list[list[dict[str, Any]]]) -> None:
    """Mean accuracy with bars from the least to the most; for a sweep also how long the runs were, if that differs."""
    found = [[100 * float(run["test_accuracy"]) for run in each] for each in runs]
    epochs = [statistics.mean(int(run["epochs"]) for run in each) for each in runs]
    means = [statistics.mean(each) for each in found]
    reach = [[mean - min(each) for mean, each in zip(means, found, strict=True)]]
    reach.append([max(each) - mean for mean, each in zip(means, found, strict=True)])
    sweep = content["picture"] != "bars"
    where = [float(case["x"]) for case in cases] if sweep else [float(number) for number in range(len(cases))]
    axes.errorbar(where, means, yerr=reach, fmt="o-" if sweep else "o", capsize=4, color="tab:blue", label="accuracy")
    if sweep:
        axes.set_xlabel(content["picture"])
        axes.set_xscale("log" if content.get("log") else "linear")
        if len(set(epochs)) > 1:
            length = axes.twinx()
            length.plot(where, epochs, "s--", color="tab:orange", label="epochs")
            length.set_ylabel("epochs")
            length.set_ylim(bottom=0)
            axes.figure.legend(loc="outside upper right", ncols=2, frameon=False)
        return
    given = [(x, 100 * case["printed"]) for x, case in zip(where, cases, strict=True) if "printed" in case]
    if given:
        axes.plot(*zip(*given, strict=True), "x", color="tab:red", label="printed")
    axes.set_xticks(where, [case["name"].replace(", ", ",\n") for case in cases], fontsize=8, rotation=30, ha="right")
    axes.legend(frameon=False)


if __name__ == "__main__":
    main()
