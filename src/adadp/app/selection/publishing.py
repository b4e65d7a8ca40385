"""The end of a search: a new folder with the chosen run, certified with what the whole search cost.

What a folder was worked in tells how long that took: by the times of its files, those that nobody can set among them,
and by when its ledger began. How long a search took tells how many runs there were, which must not become known. So
what is published is made anew in the end, all of it at one moment, its ledger too, with the one charge of the search;
then it takes the place of the folder that was worked in, which is removed. Its page follows.

    killed                                           on resume
    while the new folder is made beside the other    it is made again
    between the two renames                          the new folder takes its place
    while the folder of the search is removed        the rest is removed
    before the page is there                         it is made
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from adadp.app.losses import cross_entropy
from adadp.app.report.certificate import make_certificate
from adadp.app.report.html import write_report
from adadp.app.report.wording import plain_words
from adadp.app.runs import RunFolder
from adadp.app.runs.atomic import cannot_write
from adadp.app.runs.folder import has_finished
from adadp.app.selection.search_data import Material
from adadp.app.spec import RunSpec
from adadp.app.train.evaluation import Asked, accuracy_on, share_right
from adadp.app.train.planning import measured_notes
from adadp.app.train.search_spec import Search
from adadp.certificate.make import model_metadata
from adadp.disk import force_folder
from adadp.errors import InputError
from adadp.ledger import Ledger, PlannedBudget, read_ledger
from adadp.randomness import source_of


@dataclass(frozen=True)
class SearchResult:
    """What a search publishes. Without a run (``search.chosen`` is None) there is no model."""

    search: Search
    certificate: dict[str, Any]
    test_accuracy: float | None
    out: Path

    @property
    def epsilon(self) -> float | None:
        """What the whole search cost; None of a rehearsal, which is a search with a seed."""
        epsilon: float | None = self.certificate["epsilon"]
        return epsilon

    @property
    def setting(self) -> dict[str, Any] | None:
        """What the chosen run changes in the base configuration."""
        return None if self.search.chosen is None else self.search.settings[self.search.chosen]

    def describe(self) -> str:
        """The certificate in plain words."""
        return plain_words(self.certificate)


def publish(
    out: Path,
    search: Search,
    material: Material,
    run: RunFolder | None,
    *,
    name: str,
    data_budget: Mapping[str, Any] | None = None,
) -> SearchResult:
    """Make the folder to publish of ``run``, the chosen one, beside ``out``, the folder of the search.

    Its ledger has the id ``name``, that of the search, under which ``data_budget`` counts it.

    What it is right about on the test records tells no more than the model, which is published, and those records,
    which are public.
    """
    config, event = search.candidates[0] if run is None else run.config, search.event()
    shutil.rmtree(_published(out), ignore_errors=True)
    folder = RunFolder.create(_published(out), config)
    seeded = config.seed is not None
    with Ledger.create(folder.ledger_path, budget=PlannedBudget(event), run=name, seeded=seeded) as ledger:
        ledger.charge(event)
    inputs = material.prepared(config).inputs
    tensors, learned, accuracy = {}, {}, None
    done: dict[str, Any] = {"steps_done": 0, "steps_lost": 0, "notes": list(inputs.notes)}
    if run is not None:
        tensors, learned, done = run.load_model_tensors(), run.load_features(), run.certificate() or done
        test = material.prepared(config).test
        if test is not None:
            model = material.model(config, run).to(config.device)
            asked = Asked(inputs.class_names, config.threshold, inputs.groups)
            device = torch.device(config.device)
            look = accuracy_on(test, cross_entropy, len(inputs.class_names), device, None, asked=asked)
            confusion, figures = look.look(model)
            accuracy = look(model) if confusion is None else share_right(confusion)
            if confusion is not None:
                folder.write_confusion(inputs.class_names, confusion)
            if figures is not None:
                folder.write_figures(figures)
    if learned:
        folder.save_features(learned)
    if inputs.encoder is not None:
        folder.write_encoder(inputs.encoder)
    folder.write_search(search.as_json())
    if run is not None:
        final = {"step": done["steps_done"], "final": True, "test_accuracy": accuracy, "score": search.score}
        folder.log({name: value for name, value in final.items() if value is not None})
    certificate = make_certificate(
        spec=RunSpec.of(config),
        plan=search.plans()[search.chosen or 0],
        ledger=read_ledger(folder.ledger_path),
        randomness=source_of(config.seed).describe(),
        model=tensors,
        steps_done=done["steps_done"],
        steps_lost=done["steps_lost"],
        record_unit=inputs.record,
        notes=[*done["notes"], *measured_notes(folder.figures())],
        learned=learned,
        encoder=inputs.encoder,
        search=search.statement(),
        searched=search.disclosed(),
        measured=folder.measured_digests(),
        data_budget=data_budget,
    )
    folder.write_certificate(certificate)
    folder.save_model(tensors, model_metadata(certificate))
    return SearchResult(search, certificate, accuracy, out)


def check_replaceable(out: Path) -> None:
    """Refuse, before anything is charged, a folder that could not be replaced in the end."""
    if os.path.ismount(out) or (out.parent.exists() and not os.access(out.parent, os.W_OK)):
        raise InputError(
            f"{out} cannot be replaced by another folder.",
            why="The folder of a search is made anew in the end: its times would tell how many runs there were.",
            fix="Choose a folder inside one that you may write to.",
        )


def put_in_place(out: Path) -> None:
    """Replace the folder of the search, ``out``, by the one that was made to be published. After a kill: go on."""
    new, old = _published(out), _searched(out)
    try:
        if new.exists():
            if out.exists():
                shutil.rmtree(old, ignore_errors=True)
                out.rename(old)  # all that is secret is gone from here at once
            new.rename(out)
            force_folder(out.parent)
        shutil.rmtree(old)
    except OSError as error:
        raise cannot_write(out, error) from error


def was_replaced(out: Path) -> bool:
    """Whether a kill came after the folder of the search in ``out`` had been moved away."""
    return _searched(out).exists() and (not out.exists() or has_finished(out))


def finish(out: Path) -> None:
    """What comes when nothing secret is left: the page, with the name of the folder on it, and one time for all."""
    folder = RunFolder.open(out)
    if not (out / "report.html").exists():
        write_report(out)
    folder.give_one_time(read_ledger(folder.ledger_path).began)


def _published(out: Path) -> Path:
    return out.with_name(f".{out.name}.published")


def _searched(out: Path) -> Path:
    return out.with_name(f".{out.name}.searched")
