"""Real small runs, and a real small comparison, for the tests of pages."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy import stats

from adadp.app import start
from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.lab.compare.measuring import measured_run

SMALL: dict[str, Any] = {"delta": 1e-4, "epochs": 4, "batch_size": 50, "threads": 1, "evaluate_every": 1}
QUICK: dict[str, Any] = {"accountant": "rdp", "epochs": 2}
"""What makes the runs of a comparison, each of them calibrated and verified, short."""


def small_run(out: Path, **fields: Any) -> RunFolder:
    """A finished run on the cancer data; with sigma 4 unless ``fields`` say otherwise, as calibrating takes a while."""
    noise = {} if {"noise_multiplier", "noise_schedule"} & set(fields) else {"noise_multiplier": 4.0}
    start.start(TrainConfig("cancer", **noise, **{**SMALL, **fields}), out)
    return RunFolder.open(out)


def small_comparison(out: Path) -> dict[str, Any]:
    """Results of two methods at two budgets over two seeds, in the folder ``out`` too."""
    cases = [_case(out, method, epsilon) for method in ("adadp", "dpsgd") for epsilon in (0.5, 4.0)]
    results = {
        "format": 2,
        "title": "Two methods on cancer",
        "command": "adadp compare --data cancer --methods adadp,dpsgd --epsilon 0.5,4 --seeds 2 --out runs/cancer",
        "made_with": "adadp 0.1.0",
        "data": "cancer",
        "public": True,
        "rehearsal": True,
        "delta": 1e-4,
        "neighbours": "add-remove",
        "sampling": "poisson",
        "seeds": [0, 1],
        "marks": [0.9],
        "cases": cases,
        "pairs": [_pair(cases, epsilon) for epsilon in (0.5, 4.0)],
        "smallest": [
            {"name": name, "mark": 0.9, "epsilon": None, "above": None, "text": "> 4"} for name in ("adadp", "dpsgd")
        ],
        "total": {"runs": 8, "epsilon": None, "delta": 1e-4, "text": "The data set is public."},
        "failed": [],
    }
    (out / "results.json").write_text(json.dumps(results))
    return results


def _case(out: Path, method: str, epsilon: float) -> dict[str, Any]:
    runs = []
    for seed in (0, 1):
        folder = f"runs/{method}-{epsilon:g}-seed{seed}"
        (out / "runs").mkdir(parents=True, exist_ok=True)
        config = TrainConfig("cancer", method=method, epsilon=epsilon, **{**SMALL, **QUICK, "seed": seed})
        runs.append(measured_run(config, out / folder) | {"folder": folder})
    reached = [run["test_accuracy"] for run in runs]
    return {
        "name": method,
        "epsilon": epsilon,
        "method": method,
        "private": False,
        "not_private": None,
        "features": "none",
        "model": "linear",
        "command": f"adadp train --data cancer --method {method} --epsilon {epsilon:g}",
        "mean": fmean(reached),
        "spread": stdev(reached),
        "seconds": fmean(run["seconds"] for run in runs),
        "runs": runs,
    }


def _pair(cases: list[dict[str, Any]], epsilon: float) -> dict[str, Any]:
    first, second = ([run["test_accuracy"] for run in case["runs"]] for case in cases if case["epsilon"] == epsilon)
    gains = [a - b for a, b in zip(first, second, strict=True)]
    pair = {"epsilon": epsilon, "name": "adadp", "over": "dpsgd", "seeds": 2, "gain": fmean(gains)}
    nothing = {"low": None, "high": None, "p": None, "p_holm": None}
    if len(set(gains)) == 1:
        return pair | nothing
    test = stats.ttest_1samp(gains, 0.0)
    low, high = test.confidence_interval()
    p = float(test.pvalue)
    return pair | {"low": float(low), "high": float(high), "p": p, "p_holm": min(1.0, 2 * p)}
