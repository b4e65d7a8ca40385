"""Table I of Xu et al. 2020: the smallest epsilon, at delta 1e-4, at which an accuracy on MNIST's test set is reached.

Every side is trained at each epsilon of its grid, over seeds, each run verified. A side reaches a mark at the smallest
epsilon of the grid from which on the mean accuracy never falls below it again. Between that epsilon and the one before
it on the grid nothing was measured, so the true one may be smaller.

Reading off the smallest epsilon is a search over epsilon with the test set as its judge: the numbers compare methods,
as the paper's do, and none of them is the guarantee of a model that was chosen this way. The other settings are the
defaults of `adadp train`, chosen before on held-out training records (recipes.py); here nothing else is tried.

It writes benchmarks/results/table1.json after every run and the tables in docs/papers/xu-2020-table1.md. What has been
measured stays and is measured again only without ``--missing``.

    python benchmarks/table1.py --missing --threads 1
    python benchmarks/table1.py --only scatter --seeds 0
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accuracy import BEGIN, END, ROOT, SEEDS, measured_so_far, one_run
from harness import table

from adadp.config import TrainConfig

RESULTS = ROOT / "benchmarks" / "results" / "table1.json"
PAGE = ROOT / "docs" / "papers" / "xu-2020-table1.md"
DELTA = 1e-4
MARKS = (0.92, 0.94, 0.95, 0.96)
PRINTED: dict[str, tuple[float, ...]] = {
    "printed: ADADP, not private": (0.75, 0.78, 0.80, 1.40),
    "printed: DP-SGD": (1.10, 1.61, 1.96, 5.48),
}
"""Epsilon at each of ``MARKS``."""

Measured = dict[str, dict[str, Any]]
"""``side@epsilon`` -> what was measured there."""


@dataclass(frozen=True)
class Side:
    """One way to train, and the epsilons it is tried at."""

    name: str
    says: str
    settings: Mapping[str, Any]
    epsilons: tuple[float, ...]

    def key(self, epsilon: float) -> str:
        return f"{self.name}@{epsilon:g}"

    def config(self, epsilon: float) -> TrainConfig:
        return TrainConfig.from_dict({**self.settings, "epsilon": epsilon, "delta": DELTA})


_PAPER = {"data": "mnist", "features": "pca:dim=60,whiten=1", "model": "mnist-mlp"}
_PAPER_GRID = (0.2, 0.3, 0.5, 0.75, 1.0, 1.4, 2.0, 3.0)
SIDES = (
    Side(
        "scatter",
        "`adadp`, default features (equalised scattering)",
        {"data": "mnist", "method": "adadp"},
        (0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.14),
    ),
    Side("pca-adadp", "`adadp`, the paper's network on private PCA", {**_PAPER, "method": "adadp"}, _PAPER_GRID),
    Side("pca-dpsgd", "`dpsgd`, the same", {**_PAPER, "method": "dpsgd"}, _PAPER_GRID),
)


def main() -> None:
    names = [side.name for side in SIDES]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="Some of the sides; all without.")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--missing", action="store_true", help="Only runs that have not been measured.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=RESULTS, help="The JSON file to read and write.")
    parser.add_argument("--page", type=Path, default=PAGE, help="The page to write the tables to.")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = [side for side in SIDES if side.name in options.only]
    done = measure(chosen, options.seeds, options.results, missing=options.missing)
    text = "\n".join([*summary(SIDES, done), "", *details(SIDES, done)])
    write_between_marks(options.page, text)
    print(text)


def measure(sides: Iterable[Side], seeds: Sequence[int], path: Path, *, missing: bool) -> Measured:
    """Run what is to be run, and return all there is. The file is written after every run, so a stop loses one."""
    for side in sides:
        for epsilon in side.epsilons:
            for seed in seeds:
                if missing and seed in seeds_of(measured_so_far(path).get(side.key(epsilon))):
                    continue
                run = one_run(side.config(epsilon).replace(seed=seed))
                done = measured_so_far(path)  # another process may have written meanwhile
                done[side.key(epsilon)] = with_run(done.get(side.key(epsilon)), side, epsilon, run)
                path.write_text(json.dumps(done, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return measured_so_far(path)


def seeds_of(result: Mapping[str, Any] | None) -> set[int]:
    return {run["seed"] for run in result["runs"]} if result else set()


def with_run(result: Mapping[str, Any] | None, side: Side, epsilon: float, run: dict[str, Any]) -> dict[str, Any]:
    """``result`` with one more run, in place of an earlier one of the same seed."""
    others = [other for other in result["runs"] if other["seed"] != run["seed"]] if result else []
    runs = sorted([*others, run], key=lambda each: each["seed"])
    return {
        "side": side.name,
        "epsilon": epsilon,
        "delta": DELTA,
        "command": side.config(epsilon).as_command(),
        "mean": statistics.mean(each["test_accuracy"] for each in runs),
        "runs": runs,
    }


def means(side: Side, done: Measured) -> dict[float, float]:
    """Epsilon -> mean accuracy, where there is one, from the smallest on."""
    return {epsilon: done[side.key(epsilon)]["mean"] for epsilon in sorted(side.epsilons) if side.key(epsilon) in done}


def smallest(found: Mapping[float, float], mark: float) -> float | None:
    """The smallest epsilon from which on every measured mean is at least ``mark``; None if the last one is below."""
    reached = None
    for epsilon in sorted(found, reverse=True):
        if found[epsilon] < mark:
            break
        reached = epsilon
    return reached


def cell(side: Side, found: Mapping[float, float], mark: float) -> str:
    """The epsilon of ``side`` at ``mark`` as text, and what is not known about it."""
    if set(found) != set(side.epsilons):
        return "not measured"
    reached = smallest(found, mark)
    if reached is None:
        return f"> {max(found):g}"
    return f"<= {reached:g}" if reached == min(found) else f"{reached:g}"


def summary(sides: Sequence[Side], done: Measured) -> list[str]:
    """Table I: a row per side, a column per mark, and what was printed below."""
    rows = [(side.says, *(cell(side, means(side, done), mark) for mark in MARKS)) for side in sides]
    rows += [(name, *(f"{epsilon:.2f}" for epsilon in epsilons)) for name, epsilons in PRINTED.items()]
    note = (
        "Smallest epsilon of the grid, at delta 1e-4, from which on the mean test accuracy reaches the mark. Finding "
        "it is a search over epsilon judged by the test set: it compares methods, and is no model's guarantee."
    )
    return [note, "", *table(("", *(f"{mark:g}" for mark in MARKS)), rows)]


def details(sides: Sequence[Side], done: Measured) -> list[str]:
    """All that was measured: accuracy in percent, mean and standard deviation over the seeds."""
    rows = []
    for side in sides:
        for epsilon in means(side, done):
            result = done[side.key(epsilon)]
            accuracies = [100 * run["test_accuracy"] for run in result["runs"]]
            spread = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
            seconds = statistics.median(run["seconds"] for run in result["runs"])
            noise = f"{result['runs'][0]['sigma']:.3g}"
            accuracy = f"{statistics.mean(accuracies):.2f}{spread}"
            rows.append((side.says, f"{epsilon:g}", noise, accuracy, str(len(accuracies)), f"{seconds:.0f}"))
    return table(("", "epsilon", "noise multiplier", "test accuracy, %", "seeds", "seconds"), rows)


def write_between_marks(page: Path, text: str) -> None:
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    if not begin or END not in rest:
        raise SystemExit(f"{page} lacks the marks {BEGIN} and {END}.")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
