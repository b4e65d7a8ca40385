"""Whole runs in several processes: the folder, the certificate, features, looks, stops and resumes."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import adadp
from adadp.app.runs import RunFolder
from adadp.app.verify import verify_run
from adadp.errors import AdaDPError, RunError
from adadp.ledger import read_ledger

pytestmark = pytest.mark.slow

LOOKS = {"noise_schedule": "validation:s0=5,k=0.7,look=20,every=1", "validation": 60}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"checkpoint_every": 3, "evaluate_every": 1},
    "features": {"features": "pca:dim=3", "checkpoint_every": 5},
    "looks": LOOKS,
    "public looks": {"noise_schedule": "validation:s0=5,k=0.7,every=1", "validation": 60, "validation_public": True},
    "exact": {"arithmetic": "exact", "features": "pca:dim=3", "ema": 0.9, "epochs": 1},
    "board": {"tensorboard": True, "optimizer": "adam"},
    "reshuffled": {"sampling": "reshuffle", "clip_norm": "quantile:initial=1,count_noise=10,floor=0.01,ceiling=100"},
    "on disk": {"sampling": "fixed", "disk": True},
    "searching": {"method": "agd", "lr": 0.5},
    "kept aside": {"holdout": "20%", "checkpoint_every": 5},
}


def fitted(rank: int, out: str, name: str, /, **given: Any) -> tuple[Any, ...]:
    """A run; its parameters and results."""
    options = {"epsilon": 2.0, "delta": 1e-4, "epochs": 2, "seed": 7, "batch_size": 40, **RUNS[name], **given}
    stops = options.pop("stops", None)
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(400, 6, generator=generator)
    labels = (values[:, 0] > 0).long()
    data: Any = (values[:300], labels[:300])
    if options.pop("disk", False):
        data = (f"{out}-values{rank}.npy", f"{out}-labels{rank}.npy")
        np.save(data[0], values[:300].numpy())
        np.save(data[1], labels[:300].numpy())
    generator.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3 if "features" in options else 6, 5), nn.Tanh(), nn.Linear(5, 2))
    with torch.no_grad():
        for each in model.parameters():
            each.normal_(generator=generator)
    shown = []

    def watch(status: Any) -> None:
        shown.append(status.step)
        if status.step == stops:
            raise RunError("Stopped by the one who watches.")

    result = adadp.fit(
        model,
        data,
        test=(values[300:], labels[300:]),
        out=out,
        watch=watch,
        **options,
    )
    parameters = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).tolist()
    return parameters, result.certificate, result.test_accuracy, result.confusion, str(result.out), shown


def two_runs(rank: int, out: str, name: str) -> tuple[Any, ...]:
    return fitted(rank, out, name)


def verified(folder: Path) -> None:
    assert [each for each in verify_run(folder) if not each.passed] == []


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_two_processes_is_that_of_one(two, name, tmp_path):
    alone = fitted(0, str(tmp_path / "one"), name)
    found = two.run(two_runs, str(tmp_path / "two"), name)
    for parameters, certificate, *_ in found:
        if name == "exact":
            assert parameters == alone[0]
        torch.testing.assert_close(torch.tensor(parameters), torch.tensor(alone[0]), rtol=1e-3, atol=1e-5)
        assert certificate == found[0][1]
        assert certificate["charged"] == alone[1]["charged"]
        (note,) = [each for each in certificate["notes"] if each.startswith("The run was computed by 2 processes.")]
        assert ("limit of three times" in note) == (name not in ("exact", "reshuffled", "on disk"))
        assert not [each for each in alone[1]["notes"] if "processes" in each]
    assert found[0][2:5] == found[1][2:5]
    assert found[0][2:4] == alone[2:4]
    assert found[0][5] == alone[5]
    assert found[1][5] == []  # the first process shows the run
    verified(tmp_path / "two")
    ours, theirs = (RunFolder.open(tmp_path / each).metrics() for each in ("two", "one"))
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        looks = (each.get("validation_accuracy", 0.0) for each in (one, other))
        assert next(looks) == pytest.approx(next(looks), abs=1e-3)
    files = [sorted(path.name for path in (tmp_path / each).iterdir()) for each in ("one", "two")]
    assert files[0] == files[1]


def stopped(rank: int, out: str, name: str, how: str, resume: bool) -> tuple[Any, ...] | str:
    step = adadp.PrivateGradients.release
    released = 0

    def release(self, **given):
        nonlocal released
        released += 1
        if how == "signal" and rank == 1 and released == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, **given)

    from adadp.app.train.run import PrivateGradients

    step, PrivateGradients.release = PrivateGradients.release, release
    try:
        return fitted(rank, out, name, resume=resume, stops={"watch 4": 4, "watch 8": 8}.get(how))
    except AdaDPError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        PrivateGradients.release = step


@pytest.mark.parametrize("name", ["plain", "features", "looks", "reshuffled"])
def test_a_run_is_resumed_by_another_number_of_processes(two, four, name, tmp_path):
    alone = fitted(0, str(tmp_path / "one"), name)
    out = str(tmp_path / "run")
    assert all("Stopped by" in each for each in two.run(stopped, out, name, "watch 4", False))
    assert "Stopped by" in stopped(0, out, name, "watch 8", True)
    found = four.run(stopped, out, name, "", True)
    for parameters, certificate, *_ in found:
        torch.testing.assert_close(torch.tensor(parameters), torch.tensor(alone[0]), rtol=1e-3, atol=1e-5)
        assert certificate["charged"] == alone[1]["charged"]
        assert certificate["steps_lost"] == 0
        assert any("computed by 2, then 1, then 4 processes." in each for each in certificate["notes"])
    verified(tmp_path / "run")


def test_a_signal_to_one_process_stops_all_at_one_step(two, tmp_path):
    out = str(tmp_path / "run")
    found = two.run(stopped, out, "plain", "signal", False)
    assert all("Interrupted: Stopped after 3 of" in each for each in found)
    assert sum(read_ledger(Path(out) / "ledger.jsonl").charges.values()) == 3
    checkpoint = RunFolder.open(out).load_checkpoint()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.state["clean"]) == (3, True)
    resumed = two.run(stopped, out, "plain", "", True)
    alone = fitted(0, str(tmp_path / "one"), "plain")
    torch.testing.assert_close(torch.tensor(resumed[0][0]), torch.tensor(alone[0]), rtol=1e-3, atol=1e-5)


def secure(rank: int, out: str, name: str, how: str, resume: bool) -> tuple[Any, ...] | str:
    RUNS[name].setdefault("seed", None)
    return stopped(rank, out, name, how, resume)


@pytest.mark.parametrize("name", ["plain", "features", "looks", "reshuffled"])
def test_a_secure_run_is_resumed_by_another_number_of_processes(two, four, name, tmp_path):
    out = str(tmp_path / "run")
    assert all("Stopped by" in each for each in four.run(secure, out, name, "watch 4", False))
    found = two.run(secure, out, name, "", True)
    for parameters, certificate, *_ in found:
        assert parameters == found[0][0]
        assert certificate["steps_lost"] == 0
        assert certificate["epsilon"] <= 2
    verified(tmp_path / "run")


def on_a_full_disk(rank: int, out: str, what: str) -> str:
    def full(*_: Any, **__: Any) -> None:
        raise RunError("The disk is full.")

    was = getattr(RunFolder, what)
    try:
        if rank == 0:
            setattr(RunFolder, what, full)
        fitted(rank, out, "features")
    except AdaDPError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        setattr(RunFolder, what, was)
    return "went on"


@pytest.mark.parametrize("what", ["save_checkpoint", "save_features", "write_certificate", "create"])
def test_a_full_disk_of_the_first_process_stops_all(two, what, tmp_path):
    out = tmp_path / "run"
    assert two.run(on_a_full_disk, str(out), what) == ["RunError: The disk is full."] * 2
    if what in ("save_checkpoint", "create"):
        assert not out.exists()  # nothing was charged


def unlike(rank: int, out: str, **given: Any) -> str:
    try:
        fitted(rank, out, "plain", **({} if rank == 0 else given))
    except AdaDPError as error:
        return f"{type(error).__name__}: {error}"
    return "went on"


def other_epsilon(rank: int, out: str) -> str:
    return unlike(rank, out, epsilon=3.0)


def wrong_in_one(rank: int, out: str) -> str:
    return unlike(rank, out, epsilon=-3.0)


def resumes_in_one(rank: int, out: str) -> str:
    return unlike(rank, out, resume=True)


def test_processes_that_were_started_otherwise_are_refused(two, tmp_path):
    for each in two.run(other_epsilon, str(tmp_path / "run")):
        assert "Process 1 of the run has not the same configuration as process 0." in each
    first, second = two.run(wrong_in_one, str(tmp_path / "run"))
    assert first == second.replace("InputError: ", "InputError: In process 1 of the run: ")
    for each in two.run(resumes_in_one, str(tmp_path / "run")):
        assert "Process 1 of the run has not the same configuration as process 0." in each
    assert not (tmp_path / "run").exists()


def drifting(rank: int, out: str) -> str:
    from adadp.app.train.run import Run

    tell = Run.tell

    def told(self):
        tell(self)
        if rank == 1 and self.private.step == 2:
            with torch.no_grad():
                next(self.model.parameters()).mul_(1 + 1e-6)

    Run.tell = told
    try:
        return unlike(rank, out)
    finally:
        Run.tell = tell


def test_processes_that_drift_apart_are_found_at_a_checkpoint(two, tmp_path):
    for each in two.run(drifting, str(tmp_path / "run")):
        assert "Process 1 of the run has not the same parameters after 3 steps as process 0." in each


def loop(rank: int, folder: str) -> tuple[str, dict[str, Any]]:
    """A training loop of the user's own."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(200, 4, generator=generator)
    labels = (values[:, 0] > 0).long()
    model = nn.Linear(4, 2)
    plan = adadp.plan_for(records=200, batch_size=20, epochs=1, epsilon=2.0, delta=1e-4)

    def loss(model, values, labels):
        return nn.functional.cross_entropy(model(values), labels, reduction="none")

    with adadp.PrivateGradients(model, (values, labels), loss, plan, f"{folder}/ledger.jsonl") as private:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(plan.steps):
            private.release()
            optimizer.step()
        certificate = private.certificate()
        return str(private.save(f"{folder}/run").path), certificate


def test_a_loop_of_ones_own_is_certified(two, tmp_path):
    first, second = two.run(loop, str(tmp_path))
    assert first == second
    assert any("computed by 2 processes." in each for each in first[1]["notes"])
    verified(tmp_path / "run")


def tuned(rank: int) -> str:
    from adadp.app.config import TrainConfig
    from adadp.app.selection import resume, tune

    said = []
    for call in (
        lambda: tune(TrainConfig(data="cancer", epsilon=1.0), [{"lr": 0.1}, {"lr": 1.0}], out="x"),
        lambda: resume("x"),
    ):
        with pytest.raises(AdaDPError) as refused:
            call()
        said.append(refused.value.what)
    return " ".join(said)


def test_searches_are_refused(two):
    for each in two.run(tuned):
        assert each.count("A search was started in several processes.") == 2
