"""Where this machine keeps what it remembers of runs and budgets apart from their files."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from adadp.errors import InputError

FOLDER = "ADADP_STATE"
"""The environment variable with the folder of the notes, in place of the user's state folder."""


def state_folder() -> Path:
    """Where notes are kept: public numbers, and keys that must not leave the machine."""
    given = os.environ.get(FOLDER)
    if given and not os.path.isabs(given):
        raise InputError(
            f"{FOLDER} is {given}, which is not a full path.",
            why="Notes would lie in another place for every folder that a command is started in, and find nothing.",
            fix="Begin it with the root of the disk.",
        )
    return Path(given) if given else platformdirs.user_state_path("adadp", appauthor=False)
