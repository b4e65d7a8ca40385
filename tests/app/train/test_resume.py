"""A run that was killed goes on: bit for bit if it has a seed, and never beyond what was paid."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch
from resume_cases import (
    BASE,
    QUICK,
    SEEDED,
    ask_to_stop,
    child,
    ended,
    network,
    noted,
    place,  # noqa: F401
    run,
    stopped,  # noqa: F401
)
from torch import nn

from adadp.app.runs import RunFolder
from adadp.app.train import verify_run
from adadp.errors import InputError, Interrupted, LedgerError, RunError
from adadp.ledger import read_ledger
from adadp.step import PrivateGradients

pytestmark = pytest.mark.slow


QUANTILE = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=20,floor=0.01,ceiling=10"


VARIANTS = {
    "poisson, momentum, rates": {"momentum": 0.9, "lr": "exp:s0=0.5,k=0.3"},
    "fixed, adam, quantile, dropout": {"sampling": "fixed", "optimizer": "adam", "lr": 0.01, "clip_norm": QUANTILE},
    "reshuffle, adamw": {"sampling": "reshuffle", "optimizer": "adamw", "lr": 0.01},
    "reshuffle add-remove, own optimizer": {
        "sampling": "reshuffle",
        "neighbours": "add-remove",
        "optimizer": torch.optim.RMSprop,
        "lr": 0.01,
    },
}


@pytest.fixture(scope="module", autouse=True)
def everything_is_loaded() -> None:
    """A first run imports a batch: here once, and not in every process that is forked."""
    run(None, **{**SEEDED, "steps": 2, "checkpoint_every": None})


def charges(folder: Path) -> int:
    return sum(read_ledger(folder / "ledger.jsonl").charges.values())


def killed_on_the_way(out: Path, log: Path, chance: random.Random, settings: dict) -> None:
    """Run in ``out``, killed three times, each a random number of releases after it began and a little later.

    The process sets its own alarm, which ends it whatever it is doing. However slow the machine is, it never comes to
    the end of the run: that is 44 steps away, and after 14 releases or at the last step it is killed at once.
    """
    for _ in range(3):
        resume, releases, later = out.exists(), chance.randint(1, 8), chance.uniform(1e-4, 0.02)

        def die(made: int, step: int) -> None:
            if made == releases:  # noqa: B023
                signal.setitimer(signal.ITIMER_REAL, later)  # noqa: B023
            if made == 14 or step == settings["steps"] - 1:
                killed()

        number = child(lambda: run(out, resume=resume, **settings), log=log, after=die)  # noqa: B023
        assert ended(number) in {-signal.SIGALRM, -signal.SIGKILL}
    assert ended(child(lambda: run(out, resume=True, **settings), log=log)) == 0


# Seeded: bit for bit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_seeded_run_that_was_killed_again_and_again_ends_as_if_nothing_had_happened(variant, tmp_path):
    settings = {**SEEDED, **VARIANTS[variant]}
    assert ended(child(lambda: run(tmp_path / "whole", **settings), log=tmp_path / "whole.log")) == 0
    killed_on_the_way(tmp_path / "broken", tmp_path / "broken.log", random.Random(variant), settings)

    whole, broken = RunFolder.open(tmp_path / "whole"), RunFolder.open(tmp_path / "broken")
    expected, found = whole.load_model_tensors(), broken.load_model_tensors()
    assert set(expected) == set(found)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert all(check.passed for check in verify_run(broken))

    ones, others = whole.certificate(), broken.certificate()
    for name in ("epsilon", "charged", "steps_done", "steps_lost", "model_digest", "plan"):
        assert ones[name] == others[name]
    assert others["steps_lost"] == 0
    released = noted(tmp_path / "broken.log")
    assert set(map(tuple, released)) == set(map(tuple, noted(tmp_path / "whole.log")))  # repeated, never made anew
    assert len({step for step, _ in released}) == settings["steps"]
    assert logged(broken) == logged(whole)


def logged(folder: RunFolder) -> list[dict]:
    """What was logged, to the last bit, but for how long it took."""
    return [line | {"seconds": 0} for line in folder.metrics()]


def test_a_resumed_run_logs_what_it_would_have_logged(tmp_path):
    """Its ledger is ahead of its checkpoint: what was paid and is yet to be repeated is not spent at that epoch."""
    settings = {**SEEDED, "batch_size": 140, "steps": 12}  # four steps an epoch
    run(tmp_path / "whole", **settings)
    work = lambda: run(tmp_path / "broken", **settings)  # noqa: E731
    after = lambda _, step: killed() if step == 10 else None  # noqa: E731  # a checkpoint is at 7, an epoch ends at 8
    assert ended(child(work, log=tmp_path / "log", after=after)) == -signal.SIGKILL
    run(tmp_path / "broken", resume=True, **settings)
    whole, broken = RunFolder.open(tmp_path / "whole"), RunFolder.open(tmp_path / "broken")
    assert [line["step"] for line in whole.metrics()] == [4, 8, 12, 12]
    assert logged(broken) == logged(whole)


def test_a_checkpoint_holds_all_there_is_to_a_run(tmp_path):
    """Stopped after every single step, a run ends where it ends without a stop."""
    settings = {**SEEDED, **VARIANTS["fixed, adam, quantile, dropout"], "steps": 5}
    whole = run(tmp_path / "whole", **settings)
    model = None
    for _ in range(5):
        try:
            model = run(tmp_path / "steps", resume=model is not None, watch=ask_to_stop, **settings).model
        except Interrupted:
            model = network()
    assert all(map(torch.equal, whole.model.state_dict().values(), model.state_dict().values()))
    assert charges(tmp_path / "steps") == 5


# Secure: never beyond what was paid -------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", list(VARIANTS)[:3])
def test_a_secure_run_that_was_killed_goes_on_without_the_steps_it_lost(variant, tmp_path):
    settings = {**BASE, "noise_multiplier": None, "epsilon": 1.0, **VARIANTS[variant]}
    log, out = tmp_path / "log", tmp_path / "run"
    killed_on_the_way(out, log, random.Random(variant), settings)
    certificate = RunFolder.open(out).certificate()
    steps = [int(step) for step, _ in noted(log)]
    assert len(steps) == len(set(steps))  # no batch was released twice
    assert certificate["steps_done"] + certificate["steps_lost"] == settings["steps"]
    assert certificate["steps_done"] <= len(steps)
    assert certificate["epsilon"] <= 1
    per_charge = 20 if "reshuffle" in variant else 1
    assert charges(out) == -(-settings["steps"] // per_charge)
    assert len(steps) <= charges(out) * per_charge
    assert all(check.passed for check in verify_run(RunFolder.open(out)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_secure_run_that_was_asked_to_stop_loses_nothing(variant, tmp_path):
    settings = {**BASE, "steps": 44, **VARIANTS[variant], **QUICK}
    number = signal.SIGTERM if "own" in variant else signal.SIGINT

    def stop_at(step):
        return lambda status: os.kill(os.getpid(), number) if status.step == step else None

    log, out = tmp_path / "log", tmp_path / "run"

    def work():
        for step in (1, 23, 24, 40):
            with pytest.raises(Interrupted, match=f"after {step} of 44 steps. Everything is saved"):
                run(out, resume=step > 1, watch=stop_at(step), **settings)
        result = run(out, resume=True, **settings)
        assert (result.certificate["steps_done"], result.certificate["steps_lost"]) == (44, 0)

    assert ended(child(work, log=log)) == 0
    assert [int(step) for step, _ in noted(log)] == list(range(44))
    assert charges(out) == (3 if "reshuffle" in variant else 44)


def test_the_batches_of_a_reshuffled_epoch_survive_a_stop(tmp_path):
    """Each record is in one batch of an epoch, also when the epoch was stopped halfway."""
    settings = {**BASE, **QUICK, "sampling": "reshuffle", "steps": 20}
    met = Counter()
    placed = PrivateGradients._to_rows

    def counted(self, batch, step):
        met.update(batch.tolist())
        return placed(self, batch, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateGradients, "_to_rows", counted)
        with pytest.raises(Interrupted):
            run(tmp_path / "run", watch=lambda s: ask_to_stop(s) if s.step == 4 else None, **settings)
        run(tmp_path / "run", resume=True, **settings)
    assert met == Counter(range(560))


def test_an_epoch_that_was_stopped_resumed_and_killed_is_not_entered_again(tmp_path):
    settings = {**BASE, **QUICK, "sampling": "reshuffle", "steps": 40, "checkpoint_every": 100}
    log, out = tmp_path / "log", tmp_path / "run"
    stop = child(lambda: run(out, watch=lambda s: ask_to_stop(s) if s.step == 4 else None, **settings), log=log)
    assert ended(stop) == 3

    def die(status):
        if status.step == 6:
            killed()

    assert ended(child(lambda: run(out, resume=True, watch=die, **settings), log=log)) == -signal.SIGKILL
    assert ended(child(lambda: run(out, resume=True, **settings), log=log)) == 0
    assert [int(step) for step, _ in noted(log)] == [0, 1, 2, 3, 4, 5, *range(20, 40)]
    certificate = RunFolder.open(out).certificate()
    assert (certificate["steps_done"], certificate["steps_lost"]) == (24, 16)


# Killed at the worst moments --------------------------------------------------------------------------------------


def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


MOMENTS = {
    "between config and ledger": ("adadp.app.train.session.Ledger.create", 0),
    "before the first checkpoint": ("adadp.app.train.checkpoints.save", 0),
    "before the certificate": ("adadp.app.runs.RunFolder.write_certificate", 44),
    "between certificate and model": ("adadp.app.runs.RunFolder.save_model", 44),
    "before the page": ("adadp.app.train.run.write_report", 44),
    "between model and the end": ("adadp.app.train.run.TrainResult", 44),
}


@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_the_worst_moment_costs_nothing(moment, seed, tmp_path):
    place, charged = MOMENTS[moment]
    settings = {**BASE, **QUICK, "seed": seed, "evaluate": lambda model: 0.5}
    out, log = tmp_path / "run", tmp_path / "log"

    def work():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, killed)
            run(out, **settings)

    assert ended(child(work, log=log)) == -signal.SIGKILL
    assert (charges(out) if (out / "ledger.jsonl").exists() else 0) == charged
    if moment == "between model and the end":
        with pytest.raises(InputError, match="has finished"):
            run(out, resume=True, **settings)
    else:
        assert ended(child(lambda: run(out, resume=True, **settings), log=log)) == 0
    folder = RunFolder.open(out)
    assert all(check.passed for check in verify_run(folder))
    assert folder.certificate()["steps_done"] == 44
    assert charges(out) == 44
    assert len(noted(log)) == 44
    assert sum("final" in line for line in folder.metrics()) == 1
    assert not folder.checkpoint_path.exists()
    assert (out / "report.html").exists()


def test_a_model_that_was_saved_before_the_checkpoint_was_removed_is_saved_again(tmp_path):
    settings = {**SEEDED, "steps": 4}

    def work():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "unlink", killed)
            run(tmp_path / "run", **settings)

    assert ended(child(work)) == -signal.SIGKILL
    folder = RunFolder.open(tmp_path / "run")
    before = folder.certificate_path.read_bytes(), folder.model_metadata()
    assert folder.checkpoint_path.exists()
    run(tmp_path / "run", resume=True, **settings)
    assert (folder.certificate_path.read_bytes(), folder.model_metadata()) == before
    assert all(check.passed for check in verify_run(folder))


# A full disk ------------------------------------------------------------------------------------------------------


def limited(size: int, work):
    def inside():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        work()

    return inside


@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize("full", ["ledger", "checkpoint"])
def test_a_full_disk_stops_a_run_that_can_go_on_later(full, seed, tmp_path):
    settings = {**BASE, **QUICK, "seed": seed, "lr": 0.01, "optimizer": "adam" if full == "checkpoint" else "sgd"}
    out, log = tmp_path / "run", tmp_path / "log"
    model = (lambda: nn.Sequential(nn.Linear(9, 512), nn.Linear(512, 2))) if full == "checkpoint" else network
    torch.manual_seed(0)
    first = model()
    size = {"ledger": 3001, "checkpoint": 40_000}[full]

    def begin():
        errors = {"ledger": (LedgerError, "cannot be written"), "checkpoint": (RunError, "cannot be written")}
        kind, message = errors[full]
        with pytest.raises(kind, match=message):
            run(out, model=first, **settings)

    def probe(self, size=1):
        """The room for a trial file is not what is tried here."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "probe", probe)
        assert ended(child(limited(size, begin), log=log)) == 0
    spent = charges(out)
    assert 0 < spent < 44
    before = RunFolder.open(out).load_checkpoint()
    assert before is not None
    assert ended(child(lambda: run(out, model=first, resume=True, **settings), log=log)) == 0
    certificate = RunFolder.open(out).certificate()
    assert all(check.passed for check in verify_run(RunFolder.open(out)))
    assert charges(out) == 44
    assert len({step for step, _ in noted(log)}) <= 44
    torn = certificate["torn_charges"]
    if seed is None:
        assert certificate["steps_lost"] == (torn if full == "ledger" else 7)
    else:
        assert certificate["steps_lost"] == 0
