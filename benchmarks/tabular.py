"""Tables beside peers: AUROC and log loss of AdaDP's defaults, DP-EBM and diffprivlib at equal budget.

    python benchmarks/tabular.py                             all that is not measured yet
    python benchmarks/tabular.py --seeds 0 --epsilons 1      some of it
    python benchmarks/tabular.py --page                      only writes the tables in docs/own-data.md again

Each seed splits the rows anew, four fifths to train and the rest to test; delta is 1e-6. AdaDP is given a schema and
nothing else: `plain` declares ranges and categories, `declared` also `log` for amounts of which most are zero and
`default` for the value of a category that is known to be the most common one. DP-EBM gets the same ranges, and its own
defaults; diffprivlib's logistic regression, which is pure epsilon, numbers scaled by the same ranges, one-hot
categories, the bound on the norm that follows, and C = .01. Peers: pip install "adadp[tabular]". What is measured stays
in benchmarks/results/tabular.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch

from adadp.app.config import TrainConfig
from adadp.app.owndata import load_own
from adadp.app.start import start
from adadp.app.zoo import fetch, find
from adadp.app.zoo.adult import CATEGORIES, NUMBERS
from adadp.app.zoo.covertype import BOUNDS

RESULTS = harness.RESULTS / "tabular.json"
PAGE = harness.ROOT / "docs" / "own-data.md"
BEGIN, END = "<!-- tabular -->", "<!-- end of tabular -->"
DELTA = 1e-6
EPSILONS = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, eq=False)
class Source:
    """A public table with the question asked of it: columns of text, ranges, categories, and what most values are.

    ``classes`` are two, or the ends of the range of a target that is a number.
    """

    rows: Callable[[], list[list[str]]]
    numbers: dict[str, tuple[float, float]]
    categories: dict[str, Sequence[str]]
    classes: tuple[str, str] | tuple[float, float]
    target: str
    names: tuple[str, ...]
    log: tuple[str, ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()

    @property
    def number(self) -> bool:
        """Whether the target is a number."""
        return not isinstance(self.classes[0], str)

    def schema(self, *, declared: bool) -> str:
        """What `adadp train --schema` is given."""
        low, high = self.classes
        about = (
            f'kind = "number"\nlow = {low}\nhigh = {high}' if self.number else f"classes = {json.dumps(self.classes)}"
        )
        lines = ["[target]", f"column = {json.dumps(self.target)}", about, ""]
        lines.append("[columns]")
        default = dict(self.defaults) if declared else {}
        for name, (low, high) in self.numbers.items():
            log = ", log = true" if declared and name in self.log else ""
            lines.append(f'{json.dumps(name)} = {{kind = "number", low = {low}, high = {high}{log}}}')
        for name, values in self.categories.items():
            usual = f", default = {json.dumps(default[name])}" if name in default else ""
            lines.append(f'{json.dumps(name)} = {{kind = "category", values = {json.dumps(values)}{usual}}}')
        return "\n".join(lines) + "\n"


def adult_rows() -> list[list[str]]:
    contents = fetch(find("adult")).contents
    lines = [line for content in contents.values() for line in content.decode("ascii").splitlines()]
    rows = [line.split(", ") for line in lines if line and not line.startswith("|")]
    return [[*row[:-1], row[-1].removesuffix(".")] for row in rows]


def covertype_rows() -> list[list[str]]:
    """Ten numbers, the wilderness area and the kind of soil by number, and whether the forest is lodgepole pine."""
    text = next(iter(fetch(find("covertype")).contents.values())).decode("ascii")
    table = np.fromstring(text.strip().replace("\n", ","), dtype=np.int16, sep=",").reshape(-1, 55)
    kinds = [table[:, 10:14].argmax(1) + 1, table[:, 14:54].argmax(1) + 1]
    pine = np.where(table[:, 54] == 2, "yes", "no")
    columns = [*(map(str, column) for column in [*table[:, :10].T.tolist(), *map(np.ndarray.tolist, kinds)]), pine]
    return [list(map(str, row)) for row in zip(*columns, strict=True)]


SOURCES = {
    "adult": Source(
        adult_rows,
        dict(NUMBERS.values()),
        {name: words.split(", ") for name, words in CATEGORIES.values()},
        ("<=50K", ">50K"),
        "income",
        (*(name for _, (name, _) in sorted({**NUMBERS, **CATEGORIES}.items())), "income"),
        log=("capital-gain", "capital-loss"),
        defaults=(
            ("native-country", "United-States"),
            ("race", "White"),
            ("workclass", "Private"),
            ("sex", "Male"),
        ),
    ),
    "adult-hours": Source(
        adult_rows,
        {name: ends for name, ends in NUMBERS.values() if name != "hours-per-week"},
        {name: words.split(", ") for name, words in CATEGORIES.values()} | {"income": ("<=50K", ">50K")},
        (1, 99),
        "hours-per-week",
        (*(name for _, (name, _) in sorted({**NUMBERS, **CATEGORIES}.items())), "income"),
        log=("capital-gain", "capital-loss"),
        defaults=(
            ("native-country", "United-States"),
            ("race", "White"),
            ("workclass", "Private"),
            ("sex", "Male"),
        ),
    ),
    "covertype": Source(
        covertype_rows,
        dict(BOUNDS),
        {"area": [str(number) for number in range(1, 5)], "soil": [str(number) for number in range(1, 41)]},
        ("no", "yes"),
        "lodgepole pine",
        (*BOUNDS, "area", "soil", "lodgepole pine"),
        log=(
            "horizontal distance to water (m)",
            "horizontal distance to a road (m)",
            "horizontal distance to a fire point (m)",
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(SOURCES), choices=list(SOURCES))
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--seeds", nargs="*", type=int, default=range(5))
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in () if asked.page else asked.data:
        source = SOURCES[name]
        rows = source.rows()
        for seed in asked.seeds:
            order = np.random.default_rng(seed).permutation(len(rows))
            with tempfile.TemporaryDirectory() as folder:
                halves = np.split(order, [len(rows) * 4 // 5])
                split = [[rows[place] for place in half] for half in halves]
                for part, chosen in zip(("train", "test"), split, strict=True):
                    with (Path(folder) / f"{part}.csv").open("w", encoding="utf-8", newline="") as file:
                        csv.writer(file).writerows([source.names, *chosen])
                for epsilon in asked.epsilons:
                    for system in asked.systems:
                        key = f"{name}/{system}/{epsilon:g}/{seed}"
                        if key not in measured_so_far():
                            began = time.process_time()
                            found = figures(*SYSTEMS[system](source, Path(folder), split, epsilon))
                            keep(key, found | {"cpu_seconds": round(time.process_time() - began, 1)})
    write_page()


def measured_so_far() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def keep(key: str, found: dict[str, float]) -> None:
    print(key, found, flush=True)
    about = harness.facts(["torch", "interpret-core", "diffprivlib", "scikit-learn"])
    done = measured_so_far() | {key: found, "about": about}
    RESULTS.write_text(json.dumps(done, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def figures(scores: Any, truth: Any) -> dict[str, float]:
    """AUROC (ties count half), log loss and accuracy of probabilities of the second class; of numbers RMSE and MAE."""
    if truth.dtype.kind == "f":
        error = scores - truth
        return {"rmse": round(float((error**2).mean() ** 0.5), 4), "mae": round(float(np.abs(error).mean()), 4)}
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
    ones = int(truth.sum())
    auroc = (rank[truth == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(truth) - ones))
    clipped = np.clip(scores, 1e-12, 1 - 1e-12)
    loss = -np.log(np.where(truth == 1, clipped, 1 - clipped)).mean()
    return {
        "auroc": round(float(auroc), 5),
        "log_loss": round(float(loss), 5),
        "accuracy": round(float(((scores > 0.5) == truth).mean()), 5),
    }


def adadp(source: Source, folder: Path, split: list[Any], epsilon: float, *, declared: bool) -> Any:
    del split
    (folder / "schema.toml").write_text(source.schema(declared=declared), encoding="utf-8")
    data, schema = f"table:{folder / 'train.csv'}", str(folder / "schema.toml")
    result = start(TrainConfig(data, schema=schema, epsilon=epsilon, delta=DELTA))
    encoder = load_own(f"table:{folder / 'test.csv'}", schema=schema).encoder
    values, labels = encoder.read_labelled(folder / "test.csv")
    if source.number:
        (target,) = encoder.targets
        with torch.inference_mode():
            outputs = torch.cat([result.model(part) for part in torch.split(values, 4096)])
        return target.meant(outputs.flatten()).numpy(), target.true(labels.flatten()).numpy()
    with torch.inference_mode():
        parts = [torch.softmax(result.model(part), dim=1)[:, 1] for part in torch.split(values, 4096)]
    return torch.cat(parts).double().numpy(), labels.numpy()


def columns_of(source: Source, rows: list[list[str]]) -> tuple[dict[str, list[str]], Any]:
    columns = dict(zip(source.names, map(list, zip(*rows, strict=True)), strict=True))
    labels = columns.pop(source.target)
    if source.number:
        return columns, np.array(labels, float)
    return columns, np.array([value == source.classes[1] for value in labels]).astype(int)


def dp_ebm(source: Source, folder: Path, split: list[Any], epsilon: float) -> Any:
    del folder
    from interpret.privacy import (  # noqa: PLC0415
        DPExplainableBoostingClassifier,
        DPExplainableBoostingRegressor,
    )

    def table(rows: list[list[str]]) -> Any:
        columns, labels = columns_of(source, rows)
        order = [*source.numbers, *source.categories]
        made = np.empty((len(rows), len(order)), dtype=object)
        for place, name in enumerate(order):
            made[:, place] = list(map(float, columns[name])) if name in source.numbers else columns[name]
        return made, labels

    train, test = map(table, split)
    bounds = {"privacy_target_min": source.classes[0], "privacy_target_max": source.classes[1]}
    kind = DPExplainableBoostingRegressor if source.number else DPExplainableBoostingClassifier
    model = kind(
        feature_names=[*source.numbers, *source.categories],
        feature_types=["continuous"] * len(source.numbers) + ["nominal"] * len(source.categories),
        epsilon=epsilon,
        delta=DELTA,
        n_jobs=1,
        privacy_bounds=dict(enumerate(source.numbers.values())),
        **(bounds if source.number else {}),
    )
    model.fit(*train)
    return (model.predict(test[0]) if source.number else model.predict_proba(test[0])[:, 1]), test[1]


def diffprivlib(source: Source, folder: Path, split: list[Any], epsilon: float) -> Any:
    del folder
    from diffprivlib.models import LinearRegression, LogisticRegression  # noqa: PLC0415

    def table(rows: list[list[str]]) -> Any:
        columns, labels = columns_of(source, rows)
        parts = []
        for name, (low, high) in source.numbers.items():
            parts.append(np.clip((np.array(columns[name], float) - low) / (high - low), 0, 1)[:, None])
        for name, values in source.categories.items():
            place = {value: number for number, value in enumerate(values)}
            parts.append(np.eye(len(values))[[place[value] for value in columns[name]]])
        return np.concatenate(parts, axis=1), labels

    train, test = map(table, split)
    if source.number:
        width = train[0].shape[1]
        model = LinearRegression(epsilon=epsilon, bounds_X=(np.zeros(width), np.ones(width)), bounds_y=source.classes)
        return model.fit(*train).predict(test[0]), test[1]
    norm = (len(source.numbers) + len(source.categories)) ** 0.5
    model = LogisticRegression(epsilon=epsilon, data_norm=norm, C=0.01, max_iter=1000)
    return model.fit(*train).predict_proba(test[0])[:, 1], test[1]


SYSTEMS: dict[str, Callable[..., Any]] = {
    "adadp, declared": lambda *given: adadp(*given, declared=True),
    "adadp, plain": lambda *given: adadp(*given, declared=False),
    "DP-EBM": dp_ebm,
    "diffprivlib": diffprivlib,
}


def write_page() -> None:
    done = measured_so_far()
    lines = []
    for name, source in SOURCES.items():
        metrics, said = (("rmse", "mae"), "RMSE / MAE") if source.number else (METRICS, "AUROC / log loss")
        lines += ["", f"| {name}: {said} (splits) | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " |"]
        lines.append("|---|" + "---|" * len(EPSILONS))
        for system in SYSTEMS:
            cells = []
            for epsilon in EPSILONS:
                found = [value for key, value in done.items() if key.startswith(f"{name}/{system}/{epsilon:g}/")]
                means = [statistics.mean(each[figure] for each in found) if found else 0 for figure in metrics]
                cells.append(" / ".join(f"{mean:.4f}" for mean in means) + f" ({len(found)})" if found else "")
            if any(cells):
                lines.append(f"| {system} | " + " | ".join(cells) + " |")
    about = done["about"]
    lines += ["", f"Measured {about['date']}, {harness.versions_text(about)}."]
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}", encoding="utf-8")


METRICS = ("auroc", "log_loss")


if __name__ == "__main__":
    main()
