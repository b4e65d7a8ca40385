"""What a search costs by the law of its number of runs, and the plot of docs/selection.md.

One run is 10,000 Poisson batches at q = .01 with noise such that it is (1, 1e-5)-DP. Reads no data, takes some seconds.
"""

from __future__ import annotations

import argparse
import json
import math

import matplotlib
from harness import RESULTS, ROOT

from adadp.accounting import accountant
from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.calibrate import smallest_noise
from adadp.app.accounting.repetitions import repetitions_for
from adadp.errors import InputError
from adadp.events import Event, GaussianRelease, PoissonSampled, Repeated

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DELTA, EPSILON = 1e-5, 1.0
MEANS = (1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
LAWS = {"Poisson": math.inf, "eta = 1": 1.0, "eta = 0": 0.0, "eta = -0.5": -0.5}


def one_run(noise_multiplier: float) -> Event:
    return Repeated(PoissonSampled(0.01, GaussianRelease(noise_multiplier)), 10_000)


def costs() -> dict[str, dict[str, float]]:
    """Law -> mean number of runs -> epsilon of the whole search."""
    noise_multiplier = smallest_noise(one_run, epsilon=EPSILON, delta=DELTA, accountant=accountant("pld")).value
    found: dict[str, dict[str, float]] = {name: {} for name in (*LAWS, "all runs published")}
    for mean in MEANS:
        for name, eta in LAWS.items():
            try:
                search = BestOf((one_run(noise_multiplier),), repetitions_for(mean, eta))
            except InputError:  # no such law has so small a mean
                continue
            found[name][f"{mean:g}"] = accountant("rdp").epsilon(search, DELTA).epsilon
        if mean == round(mean):
            every = Repeated(one_run(noise_multiplier), int(mean))
            found["all runs published"][f"{mean:g}"] = accountant("pld").epsilon(every, DELTA).epsilon
    return found


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    found = costs()
    (RESULTS / "selection.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
    for name, values in found.items():
        style = "--" if name not in LAWS else "-"
        axes.plot([float(mean) for mean in values], list(values.values()), style, marker="o", markersize=3, label=name)
    axes.axhline(EPSILON, color="grey", linewidth=0.8, linestyle=":", label="one run")
    axes.set(xscale="log", xlabel="mean number of runs", ylabel=f"epsilon at delta = {DELTA:g}", ylim=(0, 8))
    axes.set_xticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(ROOT / "docs" / "images" / "selection-cost.png", dpi=90)


if __name__ == "__main__":
    main()
