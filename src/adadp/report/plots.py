"""Plots of planned privacy, drawn without touching any data."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

from adadp.accounting import Accountant, RunShape, Sampling, Status
from adadp.accounting.runs import steps_per_epoch
from adadp.errors import InputError
from adadp.schedules import Schedule

_STYLES = {Status.PROVED: "-", Status.ESTIMATE: "--", Status.AS_PUBLISHED: ":"}
_POINTS = 24


def plot_epsilon(
    path: str | Path,
    shape: RunShape,
    noise: Schedule | float,
    *,
    steps: int | None,
    epochs: int | None,
    delta: float,
    accountants: list[Accountant],
) -> Path:
    """Draw epsilon against epochs, one line per accountant (figure 2 of Abadi et al. 2016 and of Yu et al. 2019)."""
    target = Path(path)
    if target.suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise InputError(f"Cannot draw to {target.name!r}.", fix="Use a file name that ends in .png, .svg or .pdf.")
    by_step = epochs is None
    length = steps if steps is not None else epochs
    assert length is not None
    per_epoch = steps_per_epoch(shape.q) if by_step and shape.sampling is not Sampling.RESHUFFLE else 1
    places = sorted({max(1, round(length * k / _POINTS)) for k in range(1, _POINTS + 1)})
    figure, axes = plt.subplots(figsize=(8.4, 4.6), layout="constrained")
    ends: dict[str, float] = {}
    for each in accountants:
        values = [
            each.epsilon(shape.run(noise, steps=place) if by_step else shape.run(noise, epochs=place), delta).epsilon
            for place in places
        ]
        label = each.name if each.status is Status.PROVED else f"{each.name} ({each.status.value})"
        label = f"{label}: {values[-1]:.4g}"
        ends[label] = values[-1]
        axes.plot([place / per_epoch for place in places], values, _STYLES[each.status], label=label, linewidth=1.8)
    axes.set_xlabel("epochs")
    axes.set_ylabel(f"epsilon at delta = {delta:g}")
    if len(accountants) > 1:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    sigma = str(noise) if isinstance(noise, Schedule) else f"sigma = {noise:g}"
    rate = "" if shape.sampling is Sampling.RESHUFFLE else f", q = {shape.q:g}"
    axes.set_title(f"{shape.sampling.value} sampling{rate}, {sigma}, {shape.neighbours.value} neighbours", fontsize=10)
    axes.grid(alpha=0.3, which="both", linewidth=0.6)
    lines = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = sorted(ends, key=ends.__getitem__, reverse=True)
    axes.legend(
        [lines[label] for label in order],
        order,
        fontsize=9,
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
    )
    try:
        figure.savefig(target, dpi=150)
    except OSError as error:
        raise InputError(
            f"Cannot write {target}: {error.strerror}.", fix="Choose a folder that can be written."
        ) from error
    finally:
        plt.close(figure)
    return target
