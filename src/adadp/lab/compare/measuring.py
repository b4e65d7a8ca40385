"""One run of a comparison: trained or gone on with, verified, and what it came to as plain JSON.

a new folder                               the run is trained there
a folder in which the run was stopped      it goes on from its checkpoint
a folder in which the run has finished     it is verified and read, not trained again
a folder of a run with other settings      ``InputError``: results of different settings never stand together
a finished run that does not verify        ``RunError``: what cannot be checked is no result
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from adadp.app import start
from adadp.app.config import TrainConfig
from adadp.app.figures import baseline, headline
from adadp.app.resolve import resolve
from adadp.app.runs import RunFolder
from adadp.app.texts.schedules import parse_schedule
from adadp.app.train import Status, verify_run
from adadp.certificate.wording import stated
from adadp.errors import InputError, RunError

Measured = dict[str, Any]
"""What a run came to: the keys are those of :func:`measured_run`."""


def measured_run(config: TrainConfig, out: Path, *, watch: Callable[[Status], None] | None = None) -> Measured:
    """Train ``config`` in the folder ``out``, verify it, and return what it came to.

    ``curve`` has a point for each epoch that was logged, with the accuracy where it was looked at. ``epsilon`` is what
    is certified, None for a run that is not private or is a rehearsal; ``claimed`` is then what the paper of its
    method, or the accountant that proves nothing, would say, and ``epsilon_if_unseeded`` what a rehearsal would be
    certified with if it had no seed.
    """
    _train(config, out, watch)
    folder = RunFolder.open(out)
    failed = [check for check in verify_run(folder) if not check.passed]
    if failed:
        raise RunError(
            f"The run in {out} does not verify.",
            why="; ".join(f"{check.name}: {check.detail}" for check in failed),
            fix="Keep it: its ledger counts what was released. Choose another folder to run it again.",
        )
    certificate = folder.certificate()
    assert certificate is not None
    lines, figures = folder.metrics(), folder.figures()
    plan = certificate["plan"]
    return {
        "seed": config.seed,
        "test_accuracy": _final_accuracy(lines, out),
        "balanced_accuracy": None if (counts := folder.class_counts()) is None else counts.balanced_accuracy,
        "worse": None if figures is None or baseline(figures) is None else headline(figures),
        **stated(certificate),
        "claimed": certificate.get("claimed_by_paper", {}).get("epsilon", certificate.get("claimed_epsilon")),
        **{name: certificate[name] for name in ("delta", "neighbours", "sampling", "accountant")},
        "noise_multiplier": None if plan["noise"] == "none" else parse_schedule(plan["noise"]).value_of(0, 0),
        "noise": plan["noise"],
        "steps": certificate["steps_done"],
        "epochs": max((line["epoch"] for line in lines if "epoch" in line), default=0),
        "seconds": max((line["seconds"] for line in lines if "seconds" in line), default=0),
        "verified": True,
        "curve": [_point(line) for line in lines],
    }


def _train(config: TrainConfig, out: Path, watch: Callable[[Status], None] | None) -> None:
    began = out / "config.toml"
    if began.is_file() and began.stat().st_size == 0:
        began.unlink()
    if not began.is_file():
        start.start(config, out, watch=watch)
        return
    folder = RunFolder.open(out)
    if folder.config.digest() != resolve(config).config.digest():
        raise InputError(
            f"The run in {out} has other settings than those asked for.",
            why="Results of different settings must not stand beside each other.",
            fix="Choose another folder.",
        )
    if not folder.finished:
        start.resume(out, trust_code=True, watch=watch)  # it has the configuration that was asked for


def _final_accuracy(lines: list[dict[str, Any]], out: Path) -> float:
    found = [float(line["test_accuracy"]) for line in lines if line.get("final") and "test_accuracy" in line]
    if not found:
        raise InputError(
            f"The run in {out} has no test accuracy.",
            why="There are no test records to compare methods by.",
            fix="Give public test records (`test_data`).",
        )
    return found[-1]


def _point(line: dict[str, Any]) -> dict[str, Any]:
    names = ("step", "epoch", "epsilon", "epsilon_if_unseeded", "claimed_epsilon", "test_accuracy", "noise_multiplier")
    return {name: line[name] for name in names if name in line}
