"""A run that was killed goes on: bit for bit if it has a seed, and never beyond what was paid."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from adadp.app import zoo
from adadp.app.config import TrainConfig
from adadp.app.losses import cross_entropy
from adadp.app.runs import RunFolder
from adadp.app.spec import RunSpec
from adadp.app.texts.schedules import parse_schedule
from adadp.app.train import fit, verify_run
from adadp.app.train.checkpoints import Paid
from adadp.app.train.run import Run
from adadp.errors import AdaDPError, InputError, Interrupted, LedgerBusy, LedgerCorrupt, LedgerError, RunError
from adadp.events import flatten
from adadp.ledger import Ledger, PlannedBudget, read_ledger
from adadp.noise import GaussianMechanism
from adadp.plan import Plan
from adadp.step import PrivateGradients

FEATURES, LABELS = zoo.load("cancer").train
BASE = {"noise_multiplier": 4.0, "delta": 1e-4, "steps": 44, "batch_size": 28, "checkpoint_every": 7}
QUICK = {"noise_multiplier": 0, "allow_nonprivate": True}
"""Without noise, where only charges and steps are counted: no accountant is asked."""
SEEDED = {**BASE, "seed": 5}
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


def network(dropout: bool = True) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Dropout(0.2 if dropout else 0.0), nn.Linear(8, 2))


def run(out: Path | None, *, model: nn.Module | None = None, **settings):
    return fit(network() if model is None else model, (FEATURES, LABELS), out=out, **settings)


@pytest.fixture(scope="module", autouse=True)
def everything_is_loaded() -> None:
    """A first run imports a batch: here once, and not in every process that is forked."""
    run(None, **{**SEEDED, "steps": 2, "checkpoint_every": None})


def child(work, *, log: Path | None = None, after=None) -> int:
    """``work`` in a process of its own, with one thread; every value it releases is noted in ``log``.

    ``after`` is then called in that process, with how many it has released and the step.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    number = os.fork()
    if number:
        return number
    try:
        torch.set_num_threads(1)
        if log is not None:
            note_releases(log, after)
        work()
        os._exit(0)
    except AdaDPError:
        os._exit(3)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(number: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def note_releases(log: Path, after=None) -> None:
    release, made = GaussianMechanism.release, itertools.count(1)

    def noted(self, total, **options):
        released = release(self, total, **options)
        if options.get("purpose") != "count":
            text = b"".join(released[name].numpy().tobytes() for name in sorted(released))
            with log.open("a") as file:
                file.write(f"{options['step']} {hashlib.sha256(text).hexdigest()}\n")
            if after is not None:
                after(next(made), options["step"])
        return released

    GaussianMechanism.release = noted


def noted(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


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
    strip = [{key: value for key, value in line.items() if key != "seconds"} for line in broken.metrics()]
    assert [line["step"] for line in strip] == [line["step"] for line in whole.metrics()]


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


def ask_to_stop(status) -> None:
    os.kill(os.getpid(), signal.SIGINT)


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


def test_an_error_in_the_middle_loses_no_step(tmp_path):
    """The model raises at the tenth step: what was released before is kept, by a secure run too."""
    settings = {**BASE, **QUICK, "checkpoint_every": 100}
    model = network()

    def stumble(status):
        if status.step == 10:
            model[0].weight.data = model[0].weight.data[:, :3]

    with pytest.raises(Exception, match=r"shape|size|match"):
        run(tmp_path / "run", model=model, watch=stumble, **settings)
    assert RunFolder.open(tmp_path / "run").load_checkpoint().step == 10
    with pytest.raises(InputError, match="does not fit the model"):
        run(tmp_path / "run", resume=True, **settings)


@pytest.mark.parametrize("seed", [5, None])
def test_an_error_of_whoever_watches_loses_no_step(seed, tmp_path):
    settings = {**BASE, **QUICK, "seed": seed, "sampling": "reshuffle", "checkpoint_every": 100}

    def stumble(status):
        if status.step == 10:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "run", watch=stumble, **settings)
    certificate = run(tmp_path / "run", resume=True, **settings).certificate
    assert (certificate["steps_done"], certificate["steps_lost"]) == (44, 0)


def test_an_error_within_the_optimizer_leaves_the_checkpoint_before_it(tmp_path):
    class Stumbling(torch.optim.SGD):
        def step(self, closure=None):
            self.param_groups[0]["params"][0].data.zero_()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "run", **{**BASE, **QUICK, "optimizer": lambda p: Stumbling(p, lr=1)})
    found = RunFolder.open(tmp_path / "run").load_checkpoint()
    assert found.step == 0
    assert found.tensors["model/0.weight"].abs().sum() > 0


# What is refused --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """A run of 20 steps, stopped cleanly after 9 of them."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Interrupted):
        run(out, watch=lambda s: ask_to_stop(s) if s.step == 9 else None, **SHORT)
    return out


SHORT = {**SEEDED, "steps": 20, "noise_multiplier": 0, "allow_nonprivate": True, "delta": None}


@pytest.fixture
def place(stopped, tmp_path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def test_a_stopped_run_can_be_moved_and_resumed(place):
    assert run(place, resume=True, **SHORT).certificate["steps_done"] == 20
    with pytest.raises(InputError, match="has finished"):
        run(place, resume=True, **SHORT)


@pytest.mark.parametrize(
    "other",
    [{"lr": 0.3}, {"steps": 21}, {"batch_size": 57}, {"seed": 6}, {"seed": None}, {"optimizer": "adam"}],
    ids=str,
)
def test_a_run_does_not_go_on_with_other_arguments(place, other):
    with pytest.raises(InputError, match="has another configuration"):
        run(place, resume=True, **{**SHORT, **other})


def test_a_run_does_not_go_on_with_another_network(place):
    with pytest.raises(InputError, match="does not fit the model"):
        run(place, resume=True, model=nn.Linear(9, 2), **SHORT)


def cut(path: Path, lines: int) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-lines]))


def test_a_ledger_that_lost_lines_is_noticed(place):
    cut(place / "ledger.jsonl", 1)
    with pytest.raises(LedgerCorrupt, match="lines of it are missing"):
        run(place, resume=True, **SHORT)


def test_a_ledger_of_another_run_is_noticed(place, tmp_path):
    run(tmp_path / "other", **SHORT)
    shutil.copy(tmp_path / "other" / "ledger.jsonl", place)
    with pytest.raises(LedgerCorrupt, match="not the one its checkpoint was saved with"):
        run(place, resume=True, **SHORT)


def test_a_ledger_that_is_missing_is_not_begun_anew(place):
    (place / "ledger.jsonl").unlink()
    with pytest.raises(LedgerCorrupt, match=r"ledger of the run in .* is missing"):
        run(place, resume=True, **SHORT)
    assert not (place / "ledger.jsonl").exists()


def test_a_missing_checkpoint_is_noticed_when_something_was_charged(place):
    (place / "checkpoint.safetensors").unlink()
    with pytest.raises(RunError, match=r"no checkpoint in .*, and its ledger holds charges"):
        run(place, resume=True, **SHORT)
    with pytest.raises(InputError, match="not a new or empty folder"):
        run(place, **SHORT)


def test_a_second_process_is_refused_and_disturbs_nothing(tmp_path):
    out = tmp_path / "run"
    seen = []

    def second(status):
        if status.step == 5:
            for resume, kind in ((True, LedgerBusy), (False, InputError)):
                number = child(lambda: refused(kind, resume))  # noqa: B023
                seen.append(ended(number))

    def refused(kind, resume):
        with pytest.raises(kind):
            run(out, resume=resume, **SHORT)

    result = run(out, watch=second, **SHORT)
    assert seen == [0, 0]
    assert result.certificate["steps_done"] == 20
    assert all(check.passed for check in verify_run(RunFolder.open(out)))


# Which releases are paid ------------------------------------------------------------------------------------------


def two_noises(**options) -> Plan:
    """Two epochs of two steps, each epoch with a noise of its own."""
    return Plan.of_noise(
        noise=parse_schedule("step:s0=4,k=0.5,period=1"), records=560, batch_size=280, steps=4, **options
    )


def test_charges_are_told_apart_by_what_they_paid_for():
    plan = two_noises()
    first, second = flatten(plan.event())
    paid = Paid(plan, {first: 2, second: 1}, 1)
    assert [paid.take(plan.charge_at(step)) for step in range(1, 4)] == [True, True, False]
    assert not paid
    torn = Paid(plan, {first: 3, second: 1}, 3)  # a torn line counts for every event it could have been
    assert not torn.take(plan.charge_at(3))
    assert torn
    assert Paid(plan, {first: 2, second: 1}, 1).after(plan, 1, clean=False) == 3
    assert Paid(plan, {first: 2, second: 2}, 1).after(plan, 1, clean=False) == 4
    assert Paid(plan, {first: 1}, 1).after(plan, 1, clean=False) == 1
    with pytest.raises(LedgerCorrupt, match="fewer charges than the checkpoint has steps"):
        Paid(plan, {first: 1}, 2)
    with pytest.raises(LedgerCorrupt, match="fewer charges"):
        Paid(plan, {second: 3}, 1)


@pytest.mark.parametrize(
    ("step", "rounds", "clean", "expected"),
    [
        (0, 0, False, 0),
        (0, 1, False, 2),
        (1, 1, True, 1),
        (1, 1, False, 2),
        (1, 2, True, 4),
        (2, 1, False, 2),
        (2, 2, True, 4),
        (3, 2, False, 4),
    ],
)
def test_a_reshuffled_epoch_is_left_unless_nothing_was_released_since(step, rounds, clean, expected):
    plan = two_noises(sampling="reshuffle")
    events = list(flatten(plan.event()))
    assert Paid(plan, dict.fromkeys(events[:rounds], 1), step).after(plan, step, clean=clean) == expected


def test_a_run_ends_early_where_a_torn_line_has_spent_a_later_step(tmp_path):
    plan = two_noises()
    config = TrainConfig("python", noise_multiplier=4.0, delta=1e-4, steps=4, batch_size=280, clip_norm=1.0, lr=0.1)
    with Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        ledger.charge(plan.charge_at(3))
        model = network()
        private = PrivateGradients(model, (FEATURES, LABELS), cross_entropy, plan, ledger)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        going = Run(private, optimizer, RunSpec.of(config), folder=None, evaluate=None, watch=None)
        going.loop()
        result = going.finish(None)
    assert result.certificate["steps_done"] == 3
    assert result.epsilon == plan.epsilon(1e-4).epsilon
