"""How the scores of an audit lie apart, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adadp.app.audit.attack import Attack, Audit

_BINS = 40


def draw(audit: Audit, target: Path) -> Path:
    """Histograms of the chosen score with and without the record, the threshold, and what follows from it."""
    figure, axes = plt.subplots(
        1, len(audit.attacks), figsize=(6.2 * len(audit.attacks), 4.4), layout="constrained", squeeze=False
    )
    try:
        for panel, attack in zip(axes[0], audit.attacks, strict=True):
            _panel(panel, attack)
        claim = f"epsilon {audit.claimed.epsilon:.4g} claimed at delta {audit.claimed.delta:g}"
        proved = f"at least {audit.epsilon_low:.4g} proved (confidence {audit.confidence:.0%})"
        title = f"{audit.method}{': REFUTED' if audit.refuted else ''}"
        figure.suptitle(f"{title}\n{claim},\n{proved}", fontsize=10)
        figure.savefig(target, dpi=150)
    finally:
        plt.close(figure)
    return target


def _panel(panel: Axes, attack: Attack) -> None:
    bound = attack.bound
    inside, outside = (side[:, bound.score] for side in (attack.trials.scores_with, attack.trials.scores_without))
    edges = np.histogram_bin_edges(np.concatenate([inside, outside]), bins=_BINS).tolist()
    panel.hist(outside, edges, alpha=0.55, label=f"without the record ({len(outside)} runs)", color="tab:blue")
    panel.hist(inside, edges, alpha=0.55, label=f"with it ({len(inside)} runs)", color="tab:orange")
    side = ">" if bound.above else "<="
    label = f"score {side} {bound.threshold:.3g}: guess '{bound.guess}'"
    panel.axvline(bound.threshold, color="black", linestyle="--", linewidth=1, label=label)
    panel.set_xlabel(f"score: {attack.score}")
    panel.set_ylabel("runs")
    panel.set_title(
        f"{attack.name}: epsilon >= {bound.epsilon_low:.3g} (at most {bound.largest_possible:.3g} can be shown)",
        fontsize=10,
    )
    panel.legend(fontsize=8, frameon=False)
