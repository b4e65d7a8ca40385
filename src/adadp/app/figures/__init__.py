"""Figures of a model on labelled records: what it finds, how often it is wrong, and which of them is said first.

``measured`` computes them on public records, ``released`` from noisy sums over private ones; ``headline`` words them.
docs/figures.md defines each.
"""

from adadp.app.figures.headline import baseline, headline, lines
from adadp.app.figures.measured import LEVEL, MOST_CLASSES, Groups, classes_figures, number_figures

__all__ = [
    "LEVEL",
    "MOST_CLASSES",
    "Groups",
    "baseline",
    "classes_figures",
    "headline",
    "lines",
    "number_figures",
]
