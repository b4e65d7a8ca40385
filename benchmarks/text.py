"""Text over epsilon: reviews classified by public word vectors, and a language model of bytes from scratch.

It writes benchmarks/results/text.json and the tables in docs/text.md. The settings are the recipes of `adadp train`,
chosen on held-out training reviews (docs/text.md says among how many); the test reviews are looked at once a run. The
row without privacy has the same sizes, rate and network, the method dpsgd, and neither noise, clipping nor released
features. Nothing was tuned for it, so it is no upper bound of what training without privacy reaches.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from adadp.app.config import TrainConfig
from adadp.app.start import start

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "text.json"
PAGE = ROOT / "docs" / "text.md"
UNBOUNDED = 1e6
"""A clip norm that no gradient reaches."""

CASES: dict[str, tuple[dict[str, Any], tuple[float, ...], tuple[int, ...]]] = {
    "classifier": ({"data": "imdb"}, (0.5, 1.0, 3.0, 8.0), (0, 1, 2)),
    "language model": ({"data": "imdb", "model": "byte-decoder"}, (3.0, 8.0), (0,)),
}
"""Name -> settings, epsilons, seeds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"Some of: {', '.join(CASES)}; all without.")
    parser.add_argument("--table", action="store_true", help="Only write the tables of what was measured.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, (settings, epsilons, seeds) in CASES.items():
        if not options.table and (not options.names or name in options.names):
            for epsilon in (None, *epsilons):
                runs = [one_run(settings, epsilon, seed) for seed in seeds]
                done = measured_so_far() | {f"{name}@{'none' if epsilon is None else f'{epsilon:g}'}": runs}
                RESULTS.write_text(json.dumps(done, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for name in CASES:
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
        PAGE.write_text(f"{before}{begin}\n{table(name)}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def measured_so_far() -> dict[str, list[dict[str, Any]]]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def one_run(settings: dict[str, Any], epsilon: float | None, seed: int) -> dict[str, Any]:
    if epsilon is None:
        budget: dict[str, Any] = {"noise_multiplier": 0.0, "clip_norm": UNBOUNDED, "method": "dpsgd"}
        budget["allow_nonprivate"] = True
    else:
        budget = {"epsilon": epsilon}
    config = TrainConfig.from_dict(settings | budget | {"seed": seed})
    result = start(config)
    figure = result.test_accuracy if result.evaluation is None else result.evaluation.value
    print(f"{config.as_command()}: {figure:.4f} in {result.seconds} s", flush=True)
    return {
        "command": config.as_command(),
        "figure": figure,
        "name": "accuracy" if result.evaluation is None else result.evaluation.name,
        "epsilon": result.epsilon_if_unseeded,
        "delta": result.certificate["delta"],
        "neighbours": result.certificate["neighbours"],
        "sampling": result.certificate["sampling"],
        "steps": result.certificate["steps_done"],
        "seconds": result.seconds,
        "seed": seed,
    }


def table(name: str) -> str:
    """A row for each budget of the case ``name`` that was measured."""
    found = {key.partition("@")[2]: runs for key, runs in measured_so_far().items() if key.startswith(f"{name}@")}
    order = sorted(found, key=lambda budget: float("inf") if budget == "none" else float(budget))
    what = found[order[0]][0]["name"] if order else "figure"
    lines = [f"| epsilon | {what} on the test reviews | runs | seconds each |", "|---|---|---|---|"]
    for budget in order:
        figures = [float(run["figure"]) for run in found[budget]]
        said = "none: no noise, no clipping, not tuned" if budget == "none" else budget
        scale, unit = (100, " %") if what == "accuracy" else (1, "")
        spread = f" ± {scale * statistics.stdev(figures):.2f}" if len(figures) > 1 else ""
        shown = f"{scale * statistics.mean(figures):.2f}{spread}{unit}"
        if what != "accuracy":
            shown += f" (perplexity {2 ** statistics.mean(figures):.2f})"
        lines.append(f"| {said} | {shown} | {len(figures)} | {max(int(run['seconds']) for run in found[budget])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
