"""Methods side by side at equal budget: every case at every epsilon with every seed, each run verified.

spec.py        what is compared, from and to TOML.         planning.py   every run calibrated before the first begins.
running.py     runs in several processes.                  measuring.py  one run, trained or read, and verified.
statistics.py  means, paired gains, smallest epsilons.     privacy.py    what all runs cost together.
results.py     results.json and results.csv.               comparing.py  ``compare``: all of it in a folder.
"""

from adadp.lab.compare.comparing import Ended, Progress, compare
from adadp.lab.compare.spec import Case, Comparison, crossed, seeds_of, split_methods

__all__ = [
    "Case",
    "Comparison",
    "Ended",
    "Progress",
    "compare",
    "crossed",
    "seeds_of",
    "split_methods",
]
