"""What was measured of an item, in one JSON file: results/<paper>/<item>.json, and apart from it <item>.quick.json.

several processes at once              each adds its own: the file is locked while it is read and replaced
two items with a run in common         it is made once
an item whose settings have changed    what was measured with others is dropped, never shown beside new results
a picture that another command drew    not shown, and drawn again; a picture is there before its command is noted
a kill while it is written             the file as it was
a file of another item is damaged      it has no run to offer; an item with a damaged file itself is refused
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from adadp.app.config import TrainConfig
from adadp.app.runs.atomic import write_atomic
from adadp.errors import RunError
from adadp.lab.reproduce.items import Drawing, Item

Run = dict[str, Any]


@dataclass(frozen=True)
class Store:
    """The results of one item, quick or full."""

    item: Item
    out: Path
    quick: bool = False

    @property
    def path(self) -> Path:
        ending = ".quick.json" if self.quick else ".json"
        return self.out / "results" / self.item.paper / f"{self.item.name}{ending}"

    @property
    def pictures(self) -> list[Path]:
        """Where its pictures are or belong: the one drawn of its runs first, then those its commands draw."""
        name = f"{self.item.paper}-{self.item.name}{'-quick' if self.quick else ''}"
        drawn = [f"{name}.png"] if self.item.picture else []
        drawn += [f"{name}-{number}.png" for number, _ in enumerate(self.item.drawings, start=1)]
        return [self.out / "images" / each for each in drawn]

    def drawings(self) -> list[tuple[Drawing, Path]]:
        """The commands of the item that draw, each with where its picture belongs."""
        drawn = self.pictures[1:] if self.item.picture else self.pictures
        asked = [replace(each, run=each.quick) if self.quick and each.quick else each for each in self.item.drawings]
        return list(zip(asked, drawn, strict=True))

    def current_pictures(self) -> list[Path]:
        """The pictures that are there, without those that another command drew than the file has now."""
        known = self._content().get("drawings", {})
        stale = {target for drawing, target in self.drawings() if known.get(target.name) != _as_noted(drawing)}
        return [each for each in self.pictures if each not in stale and each.exists()]

    def runs(self) -> dict[str, list[Run]]:
        """What was trained, by the name of its configuration; only what has the settings of the file now."""
        content = self._content()["runs"]
        asked = self.item.runs(quick=self.quick)
        return {
            name: content[name]["runs"]
            for name, config in asked.items()
            if name in content and content[name]["command"] == config.as_command()
        }

    def answers(self) -> dict[str, float]:
        """What commands answered, by case."""
        content = self._content()["answers"]
        return {
            case.name: content[case.name]["value"]
            for case in self.item.cases
            if case.name in content and content[case.name]["command"] == self.item.command(case.name, quick=self.quick)
        }

    def elsewhere(self, config: TrainConfig, seed: int) -> Run | None:
        """The run with the same settings and ``seed`` that another item has; None if there is none."""
        command, ending = config.as_command(), ".quick.json"
        for path in sorted(self.out.glob("results/*/*.json")):
            if path == self.path or path.name.endswith(ending) != self.quick:
                continue
            try:
                for known in _read(path)["runs"].values():
                    if known["command"] == command:
                        for run in known["runs"]:
                            if run["seed"] == seed:
                                return dict(run)
            except (RunError, KeyError, TypeError, AttributeError):  # it has nothing to offer
                continue
        return None

    def keep_run(self, name: str, config: TrainConfig, run: Run) -> None:
        """Add ``run``, in place of an earlier one of its seed."""
        with self._locked():
            content, command = self._content(), config.as_command()
            known = content["runs"].get(name, {"command": command, "runs": []})
            others = [each for each in known["runs"] if each["seed"] != run["seed"]]
            runs = [run] if known["command"] != command else [*others, run]
            content["runs"][name] = {"command": command, "runs": sorted(runs, key=lambda each: int(each["seed"]))}
            self._write(content)

    def keep_answers(self, answers: Mapping[str, float]) -> None:
        """Add what the commands of some cases answered."""
        with self._locked():
            content = self._content()
            for name, value in answers.items():
                content["answers"][name] = {"command": self.item.command(name, quick=self.quick), "value": value}
            self._write(content)

    def keep_picture(self, drawing: Drawing, target: Path, picture: bytes) -> None:
        """Put ``picture`` in its place, and note what drew it."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            content = self._content()
            write_atomic(target, picture)
            content.setdefault("drawings", {})[target.name] = _as_noted(drawing)
            self._write(content)

    def _content(self) -> dict[str, Any]:
        if self.path.exists():
            return _read(self.path)
        return {"item": self.item.path, "quick": self.quick, "runs": {}, "answers": {}}

    def _write(self, content: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode("utf-8"))

    def _locked(self) -> FileLock:
        """One process at a time. The lock is no file beside the results, where it would be left behind."""
        name = hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:16]
        return FileLock(Path(tempfile.gettempdir()) / f"adadp-results-{name}.lock")


def _as_noted(drawing: Drawing) -> dict[str, Any]:
    return {"command": drawing.run, "take": drawing.take}


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}.", fix="Repair it, or remove it to start anew.") from error
    return found
