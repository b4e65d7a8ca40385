"""The folder of one run: what lies in it, and how each file is written and read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from adadp import checks
from adadp.app.config import TrainConfig
from adadp.app.runs import metrics
from adadp.app.runs.atomic import cannot_write, clean, probe, write_atomic, write_new
from adadp.app.runs.confusion import ClassCounts
from adadp.app.runs.tensors import read_metadata, read_tensors, write_tensors
from adadp.certificate.digests import json_digest
from adadp.errors import InputError, RunError
from adadp.files import contents, json_of

_PROBE = 2**20


@dataclass(frozen=True)
class Checkpoint:
    """Where a run can go on: after ``step`` steps, when ``ledger_head`` was the head of its ledger."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    ledger_head: str


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run; get it from :meth:`create` or :meth:`open`. Holds no open file and needs no closing.

    ==============================================  ===============================================================
    ``create`` on a folder with anything in it      ``InputError``: a run is never overwritten
    ``create`` where nothing can be written         ``RunError`` before the run begins; nothing is left behind
    two ``create`` at the same time                 one of them is refused
    ``open`` without, or with a broken, config      ``InputError``
    an error or a kill while a file is written      the previous file, whole
    a damaged checkpoint or model                   ``RunError``: it is never read halfway
    a checkpoint of another configuration           ``RunError``
    no checkpoint, certificate or metrics yet       ``None``, ``None``, ``[]``
    no confusion matrix                             ``None``
    ==============================================  ===============================================================
    """

    path: Path
    config: TrainConfig

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: TrainConfig, *, beside_ledger: bool = False) -> RunFolder:
        """Begin a run in a new or empty folder. The folder was really written to when this returns.

        ``beside_ledger``: the ledger of this very run may be there already.
        """
        folder = cls(Path(path).absolute(), config)
        try:
            fresh = not folder.path.exists()
            folder.path.mkdir(parents=True, exist_ok=True)
            clean(folder.path)
            ledger = {folder.ledger_path.name, f"{folder.ledger_path.name}.lock"} if beside_ledger else set()
            if any(each.name not in ledger for each in folder.path.iterdir()):
                raise _occupied(folder.path)
            try:
                folder.probe()
                write_new(folder.config_path, config.to_toml().encode("utf-8"))
            except BaseException:
                if fresh:
                    with suppress(OSError):  # another writer got in between: the folder is theirs
                        folder.path.rmdir()
                raise
        except FileExistsError as error:
            raise _occupied(folder.path) from error
        except OSError as error:
            raise cannot_write(folder.path, error) from error
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The run in the folder ``path``, to go on with it or to read it. Removes what a crash left half-written."""
        place = Path(path).absolute()
        if not (place / "config.toml").is_file():
            raise InputError(
                f"There is no run in {place}.",
                why="It has no config.toml.",
                fix="Check the path, or begin a run there.",
            )
        clean(place)
        if not (place / "config.toml").stat().st_size:  # ``write_new`` takes the name first
            raise InputError(
                f"The run in {place} was killed before it began.",
                why="Its config.toml is empty, so nothing was released.",
                fix="Remove the folder, and begin the run again.",
            )
        return cls(place, TrainConfig.from_toml(place / "config.toml"))

    @property
    def config_path(self) -> Path:
        return self.path / "config.toml"

    @property
    def ledger_path(self) -> Path:
        """Where the ledger belongs, which the ledger itself writes."""
        return self.path / "ledger.jsonl"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def certificate_path(self) -> Path:
        return self.path / "certificate.json"

    @property
    def checkpoint_path(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def model_path(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def features_path(self) -> Path:
        return self.path / "features.safetensors"

    @property
    def encoder_path(self) -> Path:
        return self.path / "encoder.json"

    @property
    def search_path(self) -> Path:
        return self.path / "search.json"

    @property
    def confusion_path(self) -> Path:
        return self.path / "confusion.json"

    @property
    def figures_path(self) -> Path:
        return self.path / "figures.json"

    @property
    def holdout_path(self) -> Path:
        return self.path / "holdout.json"

    @property
    def canaries_path(self) -> Path:
        return self.path / "canaries.json"

    @property
    def finished(self) -> bool:
        """Whether the run has ended and everything of it is there."""
        return has_finished(self.path)

    def probe(self, size: int = _PROBE) -> None:
        """Really write ``size`` bytes and remove them, so that a full disk is found before anything is charged.

        While a checkpoint or a model is replaced, both versions exist: a run needs room for two of the larger.
        """
        probe(self.path, checks.count("size", size, minimum=1))

    def save_checkpoint(
        self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any], *, ledger_head: str
    ) -> None:
        """Replace the checkpoint by this one. ``state`` is JSON that reads back as exactly what was given."""
        step = checks.count("step", step, minimum=0)
        text = json.dumps(_plain(state))
        head = {"step": str(step), "ledger_head": ledger_head, "config": self.config.digest()}
        write_tensors(self.checkpoint_path, tensors, {**head, "state": text})

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint; ``None`` if there is none yet."""
        if not self.checkpoint_path.exists():
            return None
        tensors, text = read_tensors(self.checkpoint_path)
        try:
            step, state = int(text["step"]), json.loads(text["state"])
            head, config = text["ledger_head"], text["config"]
        except (KeyError, ValueError, RecursionError) as error:
            raise RunError(
                f"{self.checkpoint_path} is whole, but it is not a checkpoint.", fix="Put the run's own file back."
            ) from error
        if config != self.config.digest():
            raise RunError(
                f"The checkpoint in {self.path} was saved under another configuration than config.toml has now.",
                why="The plan, and with it the guarantee, belongs to the configuration the run began with.",
                fix="Put config.toml back as it was, or begin a new run in another folder.",
            )
        return Checkpoint(step, tensors, state, head)

    def log(self, record: dict[str, Any]) -> None:
        """Add one line, with its ``step``, to the metrics; a NaN or an infinity becomes null."""
        metrics.append(self.metrics_path, record)

    def metrics(self) -> list[dict[str, Any]]:
        """What was logged so far."""
        return metrics.read(self.metrics_path)

    def rewind_metrics(self, step: int) -> None:
        """Drop the lines of steps after ``step``, from which a run is about to resume."""
        metrics.rewind(self.metrics_path, step)

    def write_certificate(self, certificate: Mapping[str, Any]) -> None:
        """Replace the certificate; keys are sorted, so that equal certificates are equal files."""
        _write_json(self.certificate_path, certificate, indent=2, sort_keys=True, end="\n")

    def certificate(self) -> dict[str, Any] | None:
        """The certificate; ``None`` if there is none yet."""
        try:
            content: dict[str, Any] = json_of(contents(self.certificate_path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self.certificate_path} cannot be read: {error}.",
                fix="Put the run's own file back. A run that had not finished writes it anew when it goes on: "
                f"adadp train --resume {self.path}.",
            ) from error
        return content

    def save_model(self, state_dict: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Replace the model by this one; ``metadata`` is what a reader of the file alone learns about it."""
        write_tensors(self.model_path, state_dict, metadata)

    def load_model_tensors(self) -> dict[str, Tensor]:
        """The model's tensors under all their names, for ``load_state_dict``."""
        return read_tensors(self._existing_model())[0]

    def model_metadata(self) -> dict[str, str]:
        """What was given to ``save_model`` as metadata."""
        return read_metadata(self._existing_model())

    def save_features(self, learned: Mapping[str, Tensor]) -> None:
        """Replace what the released feature stages have learned."""
        write_tensors(self.features_path, learned, {"features": self.config.features or ""})

    def load_features(self) -> dict[str, Tensor]:
        """What the released feature stages have learned; nothing if there is nothing yet."""
        return read_tensors(self.features_path)[0] if self.features_path.exists() else {}

    def write_encoder(self, encoder: Mapping[str, Any]) -> None:
        """Keep how files of a user's own become records, for ``adadp predict``."""
        _write_json(self.encoder_path, encoder, indent=2)

    def encoder(self) -> dict[str, Any] | None:
        """What ``write_encoder`` was given; None if the data has none."""
        return _read_json(self.encoder_path)

    def write_search(self, search: Mapping[str, Any]) -> None:
        """Keep what the settings were that this run was chosen among, and how."""
        _write_json(self.search_path, search, indent=2)

    def search(self) -> dict[str, Any] | None:
        """What ``write_search`` was given; None if the run was not chosen by a search."""
        return _read_json(self.search_path)

    def write_signature(self, name: str, envelope: Mapping[str, Any]) -> None:
        """Replace the signature over the other files."""
        _write_json(self.path / name, envelope, indent=2, end="\n")

    def write_confusion(self, labels: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
        """Replace the confusion matrix of the test records: a row for a true class, a column for what it is taken for.

        ``labels`` are the names of the classes, in the order of both.
        """
        content = {"labels": list(labels), "counts": [list(row) for row in counts]}
        _write_json(self.confusion_path, content, separators=(",", ":"), end="\n")

    def confusion(self) -> dict[str, Any] | None:
        """``labels`` and ``counts`` of the confusion matrix; None if there is none."""
        return _read_json(self.confusion_path)

    def write_figures(self, figures: Mapping[str, Any]) -> None:
        """Replace the figures of the model on public test records."""
        _write_json(self.figures_path, figures, indent=1, end="\n")

    def figures(self) -> dict[str, Any] | None:
        """What ``write_figures`` was given; None if there are none."""
        return _read_json(self.figures_path)

    def write_holdout(self, released: Mapping[str, Any]) -> None:
        """Keep what was released of the records that were kept aside, with its figures."""
        _write_json(self.holdout_path, released, indent=1, end="\n")

    def holdout(self) -> dict[str, Any] | None:
        """What ``write_holdout`` was given; None if there is nothing."""
        return _read_json(self.holdout_path)

    def write_canaries(self, content: Mapping[str, Any]) -> None:
        """Keep which canaries the run trains on, and their losses as far as they are known."""
        _write_json(self.canaries_path, content, separators=(",", ":"), end="\n")

    def canaries(self) -> dict[str, Any] | None:
        """What ``write_canaries`` was given; None if the run has none."""
        return _read_json(self.canaries_path)

    def class_counts(self) -> ClassCounts | None:
        """What the confusion matrix says about every class; None if there is none."""
        found = self.confusion()
        try:
            return None if found is None else ClassCounts.of(found["counts"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise RunError(
                f"{self.confusion_path} is no confusion matrix: {error}.", fix="Put the run's own file back."
            ) from error

    def measured_digests(self) -> dict[str, str]:
        """SHA-256 of each file with what was measured on public data or released of held-out records.

        They are on the disk then: a certificate that names them must not outlive one of them in a power failure.
        """
        metrics.sync(self.metrics_path)
        files = (self.metrics_path, self.confusion_path, self.figures_path, self.holdout_path, self.canaries_path)
        return {path.name: hashlib.sha256(contents(path)).hexdigest() for path in files if path.exists()}

    def give_one_time(self, moment: float) -> None:
        """Date every file to ``moment``, so that they do not tell when which was written.

        The system keeps further times that nobody can set (of the last change of a name, of birth). A copy has none.
        """
        for path in (*self.path.rglob("*"), self.path):
            os.utime(path, (moment, moment))

    def _existing_model(self) -> Path:
        if not self.model_path.exists():
            raise RunError(f"There is no model in {self.path} yet.", fix="Finish the run, or resume its checkpoint.")
        return self.model_path


def has_finished(path: Path) -> bool:
    """Whether there is a run in ``path`` that has ended: certified, saved, and with nothing left to go on from."""
    there = (path / "certificate.json").exists() and (path / "model.safetensors").exists()
    return there and not (path / "checkpoint.safetensors").exists()


def certificate_digest(certificate: Mapping[str, Any]) -> str:
    """SHA-256 of the certificate's content, however it is laid out: its name in the model's metadata."""
    return json_digest(_plain(certificate))


def _occupied(path: Path) -> InputError:
    return InputError(
        f"{path} is not a new or empty folder.",
        why="A run is never overwritten: its ledger counts what has been released.",
        fix="Choose another folder, or resume the run that is there.",
    )


def _write_json(path: Path, content: Mapping[str, Any], *, end: str = "", **layout: Any) -> None:
    write_atomic(path, (json.dumps(_plain(content), ensure_ascii=False, **layout) + end).encode("utf-8"))


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json_of(contents(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}.", fix="Put the run's own file back.") from error
    return content


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """``value`` if JSON can hold it without changing it; tuples, keys that are no text and NaN are refused."""
    try:
        plain: dict[str, Any] = dict(value)
        same = json.loads(json.dumps(plain, allow_nan=False)) == plain
        reason = "it would come back changed (a tuple as a list, a number as a key as text)"
    except (TypeError, ValueError, RecursionError) as error:
        same, reason = False, str(error)
    if not same:
        raise InputError(
            f"This cannot be kept as JSON: {reason}.",
            why="What is read back must be what was given.",
            fix="Use only dicts with text as keys, lists, text, finite numbers, booleans and None.",
        )
    return plain
