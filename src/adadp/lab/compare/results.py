"""The results of a comparison as plain JSON and as a table of runs, rewritten as a whole after every run."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from adadp import __version__
from adadp.app.runs.atomic import write_atomic
from adadp.lab.compare.measuring import Measured
from adadp.lab.compare.planning import PlannedCase, is_public
from adadp.lab.compare.spec import Comparison
from adadp.lab.compare.statistics import holm, mean_of, paired_gain, smallest_epsilon, spread_of

FORMAT = 2
JSON_NAME, CSV_NAME = "results.json", "results.csv"
_COLUMNS = (
    *("name", "asked_epsilon", "method", "private", "rehearsal"),
    *("seed", "test_accuracy", "balanced_accuracy", "epsilon", "epsilon_if_unseeded", "claimed", "delta"),
    *("neighbours", "sampling", "accountant", "noise_multiplier", "noise", "steps", "epochs", "seconds", "folder"),
)

Results = dict[str, Any]
"""Of format ``FORMAT``; docs/compare.md names the keys."""


@dataclass
class Board:
    """All that is known about a comparison so far. Runs are known by their folder."""

    spec: Comparison
    planned: list[PlannedCase]
    command: str
    measured: dict[str, Measured] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def runs_of(self, case: PlannedCase) -> list[Measured]:
        """The runs of ``case`` that are finished, by seed in the order asked for."""
        return [self.measured[name] for seed in self.spec.seeds if (name := case.folder(seed)) in self.measured]

    def means(self, name: str) -> dict[float, float]:
        """Epsilon -> mean accuracy of the case called ``name``, where all its runs have been finished."""
        found = {}
        for case in self.planned:
            runs = self.runs_of(case)
            if case.name == name and case.epsilon is not None and len(runs) == len(self.spec.seeds):
                found[case.epsilon] = sum(run["test_accuracy"] for run in runs) / len(runs)
        return found

    def results(self, total: Mapping[str, Any]) -> Results:
        """Everything as JSON; ``total`` says what all runs cost together."""
        spec, configs = self.spec, [case.config for case in self.planned]
        cases = [self._case(case) for case in self.planned]
        return {
            "format": FORMAT,
            "title": spec.title,
            "command": self.command,
            "made_with": f"adadp {__version__}",
            "data": configs[0].data,
            "public": is_public(self.planned),
            "rehearsal": is_public(self.planned),
            "delta": _shared([config.delta for config in configs]),
            "neighbours": _shared([case.plan.neighbours.value for case in self.planned if case.plan.neighbours]),
            "sampling": _shared([case.plan.sampling for case in self.planned]),
            "seeds": list(spec.seeds),
            "marks": list(spec.marks),
            "cases": cases,
            "misleading": [said for case in cases for said in _misleading(case)],
            "pairs": self._pairs(),
            "smallest": [
                {"name": case.name, "mark": mark, "epsilon": found.epsilon, "above": found.above, "text": found.text}
                for case in spec.cases
                if not case.has_budget
                for mark in spec.marks
                for found in [smallest_epsilon(self.means(case.name), mark)]
            ],
            "total": dict(total),
            "failed": [
                {"name": case.name, "epsilon": case.epsilon, "seed": seed, "error": self.failed[case.folder(seed)]}
                for case in self.planned
                for seed in spec.seeds
                if case.folder(seed) in self.failed
            ],
        }

    def _case(self, case: PlannedCase) -> dict[str, Any]:
        runs = self.runs_of(case)
        accuracies = [run["test_accuracy"] for run in runs]
        return {
            "name": case.name,
            "epsilon": case.epsilon,
            "method": case.config.method,
            "private": case.not_private is None and not is_public(self.planned),
            "not_private": case.not_private,
            "features": case.config.features,
            "model": case.config.model,
            "command": case.asked.as_command(),
            "refined": case.refined,
            "mean": mean_of(accuracies),
            "spread": spread_of(accuracies),
            "seconds": mean_of([run["seconds"] for run in runs]),
            "runs": [run | {"folder": case.folder(run["seed"])} for run in runs],
        }

    def _pairs(self) -> list[dict[str, Any]]:
        """Every two cases of one budget that was asked for; epsilons found by refining are no tests planned ahead."""
        found = []
        for one, other in combinations([case for case in self.planned if not case.refined], 2):
            gain = paired_gain(*(self._by_seed(case) for case in (one, other))) if one.budget == other.budget else None
            if gain is not None:
                found.append({"epsilon": one.epsilon, "name": one.name, "over": other.name, **vars(gain)})
        adjusted = holm([pair["p"] for pair in found])
        return [pair | {"p_holm": p} for pair, p in zip(found, adjusted, strict=True)]

    def _by_seed(self, case: PlannedCase) -> dict[int, float]:
        return {run["seed"]: run["test_accuracy"] for run in self.runs_of(case)}


def write_results(results: Results, out: Path) -> None:
    """Rewrite both files in ``out``, each as a whole."""
    text = json.dumps(results, indent=1, allow_nan=False, ensure_ascii=False)
    write_atomic(out / JSON_NAME, text.encode("utf-8") + b"\n")
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for case in results["cases"]:
        about = {"name": case["name"], "asked_epsilon": case["epsilon"], "method": case["method"]}
        writer.writerows({**run, **about} for run in case["runs"])
    write_atomic(out / CSV_NAME, table.getvalue().encode("utf-8"))


def _misleading(case: dict[str, Any]) -> list[str]:
    """That a case is no better than a constant answer, which its accuracy does not say."""
    runs = case["runs"]
    worse = [run["worse"] for run in runs if run.get("worse")]
    where = f"{case['name']} at " + ("its own budget" if case["epsilon"] is None else f"epsilon {case['epsilon']:g}")
    return [f"{where} is, in {len(worse)} of {len(runs)} runs, {worse[0]}."] if worse else []


def _shared(values: Sequence[Any]) -> Any:
    """The value all have, None where they differ."""
    return values[0] if all(value == values[0] for value in values) else None
