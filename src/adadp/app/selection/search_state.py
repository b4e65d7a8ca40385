"""What nobody may see during a search: how many runs there are, which settings they have, how they scored.

All of it lies in one folder inside that of the search, so that a search that was killed can resume, and is removed as a
whole in the end. A run that is known not to be published is removed at once.
"""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from adadp.app.runs.atomic import clean, write_atomic
from adadp.app.runs.tensors import read_tensors, write_tensors
from adadp.errors import RunError

_PLACES = "places"


@dataclass(frozen=True)
class Attempt:
    """One run of a search."""

    run: int
    setting: int
    folder: str
    value: float | None = None
    """Its score, or (by parts) its number of errors; None until it has finished."""
    tie: float = 0.0
    """A random number that decides between equal scores."""


@dataclass(frozen=True)
class State:
    """Where a search is: ``done`` of ``count`` runs, one perhaps begun, and those that may still be published."""

    count: int
    done: int = 0
    current: Attempt | None = None
    kept: tuple[Attempt, ...] = ()
    chosen: int | None = None
    """By parts: the number of the setting, once it is drawn, so that it is drawn once."""

    def begun(self, setting: int) -> State:
        """The next run, in a folder whose name tells nothing."""
        return replace(self, current=Attempt(self.done, setting, secrets.token_hex(8)))

    def over(self, kept: tuple[Attempt, ...]) -> State:
        """The run at hand is over, and ``kept`` may be published."""
        return replace(self, done=self.done + 1, current=None, kept=kept)


@dataclass(frozen=True)
class SecretFolder:
    """The folder of what must not be seen."""

    path: Path

    @property
    def _runs(self) -> Path:
        return self.path / "runs"

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def begin(self, state: State, places: Tensor) -> None:
        """Keep which part each record belongs to, and then the first state."""
        self._runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        write_tensors(self.path / "places.safetensors", {_PLACES: places}, {})
        self.write(state)

    def write(self, state: State) -> None:
        """Replace the state; runs that it does not name are removed."""
        write_atomic(self.path / "state.json", json.dumps(asdict(state)).encode())
        named = {each.folder for each in (*state.kept, *([state.current] if state.current else []))}
        for folder in self._runs.iterdir():
            if folder.name not in named:
                shutil.rmtree(folder)

    def read(self) -> tuple[State, Tensor] | None:
        """The state and the part of each record; None if the search has not begun its runs."""
        if not (self.path / "state.json").exists():
            return None
        clean(self.path)
        try:
            body: dict[str, Any] = json.loads((self.path / "state.json").read_bytes())
            current, kept = body.pop("current"), tuple(Attempt(**each) for each in body.pop("kept"))
            state = State(current=None if current is None else Attempt(**current), kept=kept, **body)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(f"The state of the search in {self.path.parent} cannot be read.") from error
        self.write(state)
        return state, read_tensors(self.path / "places.safetensors")[0][_PLACES]

    def folder_of(self, attempt: Attempt) -> Path:
        """Where ``attempt`` is trained."""
        return self._runs / attempt.folder
