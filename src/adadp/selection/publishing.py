"""The end of a search: the chosen run becomes the run of its folder, certified with what the whole search cost."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from adadp.ledger import read_ledger
from adadp.losses import cross_entropy
from adadp.randomness import SecureSource, SeededSource
from adadp.report.certificate import make_certificate, model_metadata, plain_words
from adadp.report.html import write_report
from adadp.runs import RunFolder
from adadp.runs.atomic import write_atomic
from adadp.selection.material import Material
from adadp.train.evaluation import accuracy_on, share_right
from adadp.train.searched import Search


@dataclass(frozen=True)
class SearchResult:
    """What a search publishes. Without a run (``search.chosen`` is None) there is no model."""

    search: Search
    certificate: dict[str, Any]
    test_accuracy: float | None
    out: Path

    @property
    def epsilon(self) -> float:
        """What the whole search cost."""
        epsilon: float = self.certificate["epsilon"]
        return epsilon

    @property
    def setting(self) -> dict[str, Any] | None:
        """What the chosen run changes in the base configuration."""
        return None if self.search.chosen is None else self.search.settings[self.search.chosen]

    def describe(self) -> str:
        """The certificate in plain words."""
        return plain_words(self.certificate)


def publish(folder: RunFolder, search: Search, material: Material, run: RunFolder | None) -> SearchResult:
    """Put ``run``, the chosen one, into ``folder``. Done again after a kill, it writes the same files again.

    What it is right about on the test records tells no more than the model, which is published, and those records,
    which are public.
    """
    config = search.candidates[0] if run is None else run.config
    write_atomic(folder.config_path, config.to_toml().encode("utf-8"))
    folder = RunFolder(folder.path, config)
    inputs = material.prepared(config).inputs
    source = SecureSource() if config.seed is None else SeededSource(config.seed)
    tensors, learned, accuracy = {}, {}, None
    done: dict[str, Any] = {"steps_done": 0, "steps_lost": 0, "notes": list(inputs.notes)}
    if run is not None:
        tensors, learned, done = run.load_model_tensors(), run.load_features(), run.certificate() or done
        test = material.prepared(config).test
        if test is not None:
            model = material.model(config, run).to(config.device)
            look = accuracy_on(test, cross_entropy, inputs.classes, torch.device(config.device), None)
            confusion = look.confusion(model)
            accuracy = look(model) if confusion is None else share_right(confusion)
            if confusion is not None:
                folder.write_confusion(inputs.class_names, confusion)
    if learned:
        folder.save_features(learned)
    if inputs.encoder is not None:
        folder.write_encoder(inputs.encoder)
    folder.write_search(search.as_json())
    certificate = make_certificate(
        config=config,
        plan=search.plans()[search.chosen or 0],
        ledger=read_ledger(folder.ledger_path),
        randomness=source.describe(),
        model=tensors,
        steps_done=done["steps_done"],
        steps_lost=done["steps_lost"],
        record_unit=inputs.record,
        notes=done["notes"],
        learned=learned,
        encoder=inputs.encoder,
        search=search.statement(),
        searched=search.disclosed(),
    )
    if run is not None and not folder.metrics():
        final = {"step": done["steps_done"], "final": True, "test_accuracy": accuracy, "score": search.score}
        folder.log({name: value for name, value in final.items() if value is not None})
    folder.write_certificate(certificate)
    folder.save_model(tensors, model_metadata(certificate))
    return SearchResult(search, certificate, accuracy, folder.path)


def finish(folder: Path) -> None:
    """What comes when nothing secret is left: the page, and all files dated to when the search began.

    That stands in the ledger; when it ended would tell how many runs there were.
    """
    if not (folder / "report.html").exists():
        write_report(folder)
    began = datetime.fromisoformat(read_ledger(folder / "ledger.jsonl").created).timestamp()
    for path in (*folder.iterdir(), folder):
        os.utime(path, (began, began))
