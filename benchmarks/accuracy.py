"""Accuracy at equal budget: every configuration in experiments/, over seeds, each run verified. `make results` runs it.

Writes benchmarks/results/accuracy.json and prints the table of the README. Nothing here is tuned on test data: the
configurations say in a comment how their numbers were chosen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import torch

from adadp import launch
from adadp.config import TrainConfig
from adadp.runs import RunFolder
from adadp.train.verify import verify_run

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "accuracy.json"
SEEDS = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="Some of the experiments, by file name; all without.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    done = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for path in sorted((ROOT / "experiments").glob("*.toml")):
        if not options.names or path.stem in options.names:
            done[path.stem] = measured(TrainConfig.from_toml(path))
            RESULTS.write_text(json.dumps(done, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(table(done))


def measured(config: TrainConfig) -> dict[str, object]:
    runs = [one_run(config.replace(seed=seed)) for seed in SEEDS]
    accuracies = [float(run["test_accuracy"]) for run in runs]
    return {
        "data": config.data,
        "model": config.model,
        "epsilon": config.epsilon,
        "delta": config.delta,
        "neighbours": runs[0]["neighbours"],
        "sampling": config.sampling,
        "mean": statistics.mean(accuracies),
        "spread": statistics.stdev(accuracies),
        "runs": runs,
    }


def one_run(config: TrainConfig) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        result = launch.start(config, Path(place) / "run")
        checks = verify_run(RunFolder.open(Path(place) / "run"))
    failed = [check.name for check in checks if not check.passed]
    if failed:
        raise SystemExit(f"{config.data} with seed {config.seed} does not verify: {', '.join(failed)}")
    certificate = result.certificate
    print(f"{config.data} {config.model} seed {config.seed}: {result.test_accuracy:.4f}", flush=True)
    return {
        "seed": config.seed,
        "test_accuracy": result.test_accuracy,
        "epsilon": certificate["epsilon"],
        "sigma": result.plan.noise_multiplier_at(0),
        "steps": certificate["steps_done"],
        "seconds": round(result.seconds, 1),
        "neighbours": certificate["neighbours"],
        "verified": True,
    }


def table(results: dict[str, dict[str, object]]) -> str:
    """The README's table: one row per experiment, mean and standard deviation over the seeds."""
    lines = ["| data | network | epsilon | delta | test accuracy |", "|---|---|---|---|---|"]
    for result in results.values():
        accuracy = f"{100 * float(result['mean']):.2f} ± {100 * float(result['spread']):.2f} %"
        row = (result["data"], result["model"], f"{result['epsilon']:g}", f"{result['delta']:g}", accuracy)
        lines.append("| " + " | ".join(str(cell) for cell in row) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
