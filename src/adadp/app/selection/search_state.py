"""What nobody may see during a search: how many runs there are, which settings they have, how they scored.

All of it lies in one folder inside that of the search, so that a search that was killed can resume, and is removed as a
whole in the end. A run that is known not to be published is removed at once.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from adadp.app.runs.atomic import clean, write_atomic
from adadp.app.runs.tensors import read_tensors, write_tensors
from adadp.errors import RunError
from adadp.files import contents, json_of

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
    """Where a search is: the runs that are still to be made or valued, and those that may be published.

    All are drawn before the first is made, and valued in the order they were drawn in, whichever is made first.
    """

    waiting: tuple[Attempt, ...]
    kept: tuple[Attempt, ...] = ()
    chosen: int | None = None
    """By parts: the number of the setting, once it is drawn, so that it is drawn once."""

    @classmethod
    def drawn(cls, settings: Iterable[int]) -> State:
        """A run for each of ``settings``, in folders whose names tell nothing."""
        return cls(tuple(Attempt(run, setting, secrets.token_hex(8)) for run, setting in enumerate(settings)))

    def over(self, kept: tuple[Attempt, ...]) -> State:
        """The first of the runs that waited is over, and ``kept`` may be published."""
        return replace(self, waiting=self.waiting[1:], kept=kept)


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
        named = {each.folder for each in (*state.kept, *state.waiting)}
        for folder in self._runs.iterdir():
            if folder.name not in named:
                shutil.rmtree(folder)

    def read(self) -> tuple[State, Tensor] | None:
        """The state and the part of each record, to go on; None if the search has not begun its runs."""
        if not (self.path / "state.json").exists():
            return None
        clean(self.path)
        state = self.state()
        self.write(state)
        return state, self.places()

    def state(self) -> State:
        """The state, as it was written last."""
        try:
            body: dict[str, Any] = json_of(contents(self.path / "state.json"))
            waiting, kept = (tuple(Attempt(**each) for each in body.pop(name)) for name in ("waiting", "kept"))
            return State(waiting, kept, **body)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(f"The state of the search in {self.path.parent} cannot be read.") from error

    def places(self) -> Tensor:
        """The part of each record."""
        return read_tensors(self.path / "places.safetensors")[0][_PLACES]

    @property
    def marks(self) -> Path:
        """The folder through which runs that other processes make are watched and stopped."""
        return self.path / "marks"

    def folder_of(self, attempt: Attempt) -> Path:
        """Where ``attempt`` is trained."""
        return self._runs / attempt.folder
