"""Choosing a setting privately: a search among training runs, of which one is published.

settings.py what is compared.                 candidates.py configurations in full, with their noise.
score.py what runs are compared by.           parts.py disjoint parts, and the exponential mechanism.
searching.py the search as it goes on.        secret.py what nobody may see meanwhile.
material.py records, features and networks.   publishing.py the chosen run, certified.
tuning.py ``tune``, ``planned``, ``resume``.
"""

from adadp.app.selection.publishing import SearchResult
from adadp.app.selection.settings import grid, parse_grid, read_settings
from adadp.app.selection.tuning import cost_of, planned, resume, tune

__all__ = ["SearchResult", "cost_of", "grid", "parse_grid", "planned", "read_settings", "resume", "tune"]
