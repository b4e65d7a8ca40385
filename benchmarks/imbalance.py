"""What each way of treating a rare class gives: the table of docs/imbalance.md. Run it from the root of the project.

The records come from a public process, so that nothing has to be fetched and the truth is known: twelve normal
features, a logit that is linear in most of them and has one product and one square, and 5 % positives. All runs have
the same budget and differ in nothing but the way. A number is a mean over seeds, with the standard deviation behind it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from adadp.app.figures import classes_figures
from adadp.app.train import fit

TRAIN, TEST, FEATURES, SHARE = 40_000, 40_000, 12, 0.05
SETTINGS: dict[str, Any] = {"delta": 1e-6, "epochs": 10, "batch_size": 1000, "lr": 1.0, "clip_norm": 1.0}
WAYS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "`threshold` 0.05": {"threshold": 0.05},
    "`class_weights` 1,5": {"class_weights": "1,5"},
    "`class_weights` 1,19": {"class_weights": "1,19"},
    "`class_priors` 0.95,0.05": {"class_priors": "0.95,0.05"},
}
COLUMNS = ("auroc", "auprc", "log_loss", "accuracy", "recall", "precision", "balanced_accuracy")


def records(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Records of the process; the shift of the logit makes about 5 % of them positive."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, FEATURES, generator=generator)
    slopes = torch.tensor([1.5, -1.2, 1.0, 0.8, -0.6, 0.5, 0.4, -0.3, 0.2, 0.1, 0.0, 0.0])
    logits = values @ slopes + 0.8 * values[:, 0] * values[:, 1] + 0.5 * values[:, 2] ** 2 - 5.75
    return values, (torch.rand(size, generator=generator) < torch.sigmoid(logits)).long()


def network(seed: int) -> nn.Module:
    """Two layers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 2))


def measured(way: dict[str, Any], epsilon: float, seed: int) -> dict[str, float]:
    """The figures of one run on the test records."""
    training = {name: value for name, value in way.items() if name != "threshold"}
    found = fit(network(seed), records(TRAIN, 100 + seed), epsilon=epsilon, seed=seed, **SETTINGS, **training)
    values, labels = records(TEST, 7)
    with torch.no_grad():
        said = torch.softmax(found.model(values).double(), dim=1)
    figures = classes_figures(said.numpy(), labels.numpy(), ("no", "yes"), threshold=way.get("threshold", 0.5))
    return {name: figures["figures"][name]["value"] or 0.0 for name in COLUMNS}


def row(name: str, found: Sequence[dict[str, float]]) -> str:
    """A line of the table."""
    cells = [
        f"{fmean(each[column] for each in found):.3f} ± {stdev(each[column] for each in found):.3f}"
        for column in COLUMNS
    ]
    return f"| {name} | {' | '.join(cells)} |"


def main(seeds: int = 5) -> None:
    """Print the tables."""
    print(f"Positives: {records(TRAIN, 100)[1].double().mean():.4f} of the training records")
    for epsilon in (1.0,):
        print(f"\nepsilon {epsilon:g}\n\n| way | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
        for name, way in WAYS.items():
            print(row(name, [measured(way, epsilon, seed) for seed in range(seeds)]), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
