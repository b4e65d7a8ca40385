"""Choose a setting privately: a search trains several runs and publishes one of them. ``tuning.py`` is the entry."""

from adadp.app.selection.publishing import SearchResult
from adadp.app.selection.settings import grid, parse_grid, read_settings
from adadp.app.selection.tuning import cost_of, planned, resume, tune

__all__ = ["SearchResult", "cost_of", "grid", "parse_grid", "planned", "read_settings", "resume", "tune"]
