"""A run that was killed goes on: bit for bit if it has a seed, and never beyond what was paid: resume faults."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from resume_cases import (
    BASE,
    FEATURES,
    LABELS,
    QUICK,
    SEEDED,
    SHORT,
    child,
    ended,
    network,
    place,  # noqa: F401
    run,
    stopped,  # noqa: F401
)
from torch import nn

from adadp.app.config import TrainConfig
from adadp.app.losses import cross_entropy
from adadp.app.runs import RunFolder
from adadp.app.spec import RunSpec
from adadp.app.texts.schedules import parse_schedule
from adadp.app.train import verify_run
from adadp.app.train.checkpoints import Paid
from adadp.app.train.run import Run
from adadp.errors import InputError, LedgerBusy, LedgerCorrupt, RunError
from adadp.events import flatten
from adadp.ledger import Ledger, PlannedBudget
from adadp.plan import Plan
from adadp.step import PrivateGradients

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def everything_is_loaded() -> None:
    """A first run imports a batch: here once, and not in every process that is forked."""
    run(None, **{**SEEDED, "steps": 2, "checkpoint_every": None})


def test_an_error_in_the_middle_loses_no_step(tmp_path):
    """The model raises at the tenth step: what was released before is kept, by a secure run too."""
    settings = {**BASE, **QUICK, "checkpoint_every": 100}
    model = network()

    def stumble(status):
        if status.step == 10:
            model[0].weight.data = model[0].weight.data[:, :3]

    with pytest.raises(InputError, match="The model fails on a batch, for which nothing was charged: RuntimeError"):
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
