"""Schedules of the noise: every file in experiments/schedules/, all its cases over seeds, each run verified.

It writes benchmarks/results/schedules.json after every run, and then the tables and plots of
docs/papers/yu-2019-schedules.md. A file is

    title, seeds    what it is, and how many seeds (0, 1, ...) every case is run with
    picture         a plot: "bars" (figure 5 of Yu et al. 2019), or for a sweep what ``x`` of the cases is
    [base]          settings of `adadp train`
    log             whether that axis is logarithmic
    [[case]]        ``name``; ``set``: its settings over those of the base; ``printed``, ``printed_epochs``: the paper's
                    figures; ``beside``: the case it is compared with, seed by seed (without it, the first one)

Nothing is tuned here: the numbers are those of the papers, or were fixed beforehand. With ``--missing`` what has been
measured stays; with ``--seeds`` and no seed nothing is run and the page is written from what there is.

    python benchmarks/schedules.py --missing --threads 1
    python benchmarks/schedules.py table2 --seeds 0 1
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib
import torch
from accuracy import ROOT, measured_so_far, one_run
from harness import table
from table1 import write_between_marks

from adadp.config import TrainConfig

matplotlib.use("Agg")
from matplotlib import pyplot as plt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RESULTS = ROOT / "benchmarks" / "results" / "schedules.json"
SUITES = ROOT / "experiments" / "schedules"
PAGE = ROOT / "docs" / "papers" / "yu-2019-schedules.md"
IMAGES = ROOT / "docs" / "images"
ORDER = ("table2", "table2-as-printed", "figure7", "figure8", "figure11a", "figure11b", "cancer", "poisson")
"""The order of the page; what is not named here comes after."""

Measured = dict[str, dict[str, Any]]
"""``file/case`` -> its command and its runs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="Some of the files, by name; all without.")
    parser.add_argument("--seeds", nargs="*", type=int, help="These seeds instead of the file's.")
    parser.add_argument("--missing", action="store_true", help="Only runs that have not been measured.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=RESULTS, help="The JSON file to read and write.")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.names or suites():
        measure(name, options.seeds, options.results, missing=options.missing)
    done = measured_so_far(options.results)
    for name in suites():
        content = suite(name)
        if "picture" in content and measured_cases(name, content, done):
            draw(image_of(name), name, content, done)
    write_between_marks(PAGE, page_text(done))


def page_text(done: Measured) -> str:
    """The tables of the page: one section per file of which something has been measured."""
    sections = [section(name, suite(name), done) for name in suites()]
    return "\n\n".join(each for each in sections if each)


def image_of(name: str) -> Path:
    return IMAGES / f"schedules-{name}.png"


def measured_cases(name: str, content: dict[str, Any], done: Measured) -> list[dict[str, Any]]:
    return [case for case in content["case"] if f"{name}/{case['name']}" in done]


def suites() -> list[str]:
    found = [path.stem for path in sorted(SUITES.glob("*.toml"))]
    return sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def suite(name: str) -> dict[str, Any]:
    return tomllib.loads((SUITES / f"{name}.toml").read_text(encoding="utf-8"))


def measure(name: str, seeds: list[int] | None, path: Path, *, missing: bool) -> None:
    """Run what is to be run. The file is written after every run, so a stop loses one."""
    content = suite(name)
    for seed in range(content["seeds"]) if seeds is None else seeds:
        for case in content["case"]:
            key = f"{name}/{case['name']}"
            known = measured_so_far(path).get(key, {"runs": []})["runs"]
            if missing and any(run["seed"] == seed for run in known):
                continue
            config = TrainConfig.from_dict(content["base"] | case["set"])
            run = one_run(config.replace(seed=seed))
            done = measured_so_far(path)  # another process may have written meanwhile
            others = [other for other in done.get(key, {"runs": []})["runs"] if other["seed"] != seed]
            runs = sorted([*others, run], key=lambda each: int(each["seed"]))
            done[key] = {"command": config.as_command(), "runs": runs}
            path.write_text(json.dumps(done, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def section(name: str, content: dict[str, Any], done: Measured) -> str:
    """The part of the page about one file: a table, and a plot if it asks for one."""
    cases = measured_cases(name, content, done)
    if not cases:
        return ""
    printed = any("printed" in case for case in cases)
    paper = ("printed",) if printed else ()
    head = ("", *paper, "test accuracy, %", "least to most", "gain", "epochs", "epsilon", "seeds")
    rows = [row(name, case, cases[0], done, printed=printed) for case in cases]
    lines = [f"## {content['title']}", "", f"    python benchmarks/schedules.py {name}", "", *table(head, rows)]
    if "picture" in content:
        lines += ["", f"![{content['title']}](../images/{image_of(name).name})"]
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
        f"{float(runs[0]['epsilon']):.3f}",
        str(len(runs)),
    )


def paired(runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """How much better than another case, seed by seed: mean and its standard error, in points."""
    theirs = {run["seed"]: float(run["test_accuracy"]) for run in others}
    gains = [100 * (float(run["test_accuracy"]) - theirs[run["seed"]]) for run in runs if run["seed"] in theirs]
    if len(gains) < 2:
        return ""
    return f"{statistics.mean(gains):+.2f} ± {statistics.stdev(gains) / len(gains) ** 0.5:.2f}"


def draw(target: Path, name: str, content: dict[str, Any], done: Measured) -> None:
    """Mean accuracy with bars from the least to the most; for a sweep also how long the runs were."""
    cases = measured_cases(name, content, done)
    found = [[100 * float(run["test_accuracy"]) for run in done[f"{name}/{case['name']}"]["runs"]] for case in cases]
    epochs = [statistics.mean(int(run["epochs"]) for run in done[f"{name}/{case['name']}"]["runs"]) for case in cases]
    means = [statistics.mean(each) for each in found]
    reach = [[mean - min(each) for mean, each in zip(means, found, strict=True)]]
    reach.append([max(each) - mean for mean, each in zip(means, found, strict=True)])
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    sweep = content["picture"] != "bars"
    where = [float(case["x"]) for case in cases] if sweep else [float(number) for number in range(len(cases))]
    axes.errorbar(where, means, yerr=reach, fmt="o-" if sweep else "o", capsize=4, color="tab:blue", label="accuracy")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)
    if sweep:
        axes.set_xlabel(content["picture"])
        axes.set_xscale("log" if content.get("log") else "linear")
        length = axes.twinx()
        length.plot(where, epochs, "s--", color="tab:orange", label="epochs")
        length.set_ylabel("epochs")
        length.set_ylim(bottom=0)
        figure.legend(loc="outside upper right", ncols=2, frameon=False)
    else:
        given = [(x, 100 * case["printed"]) for x, case in zip(where, cases, strict=True) if "printed" in case]
        axes.plot(*zip(*given, strict=True), "x", color="tab:red", label="printed")
        axes.set_xticks(
            where, [case["name"].replace(", ", ",\n") for case in cases], fontsize=8, rotation=30, ha="right"
        )
        axes.legend(frameon=False)
    figure.savefig(target, dpi=90)
    plt.close(figure)


if __name__ == "__main__":
    main()
