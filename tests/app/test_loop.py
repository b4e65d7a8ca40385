"""A training loop of one's own: what it saves, what is certified of it, and what verify finds wrong."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import nn

import adadp
from adadp import Ledger, Plan, PrivateGradients, plan_for
from adadp.app.accounting import RdpFilter
from adadp.app.cli import main
from adadp.app.clipping.quantile import QuantileAdaptive
from adadp.app.schedules import ExponentialDecay
from adadp.app.verify import verify_run
from adadp.errors import BudgetExceeded, InputError, LedgerError
from adadp.events import GaussianRelease, Neighbours, compose
from adadp.ledger import PlannedBudget, read_ledger
from adadp.noise import GaussianMechanism
from adadp.schedules import Piecewise, Schedule

RECORDS = 400


def data(records: int = RECORDS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(records, 4, generator=generator)
    return features, (features[:, 0] > 0).long()


def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def planned(**changes) -> Plan:
    return plan_for(**{"epsilon": 2, "delta": 1e-5, "records": RECORDS, "batch_size": 100, "steps": 6} | changes)


def loop(plan, ledger, steps=None, **settings) -> PrivateGradients:
    model = nn.Linear(4, 2)
    private = PrivateGradients(model, data(), loss, plan, ledger, **settings)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(plan.steps if steps is None else steps):
        private.release()
        optimizer.step()
    return private


def failed(folder) -> dict[str, str]:
    return {check.name: check.detail for check in verify_run(folder) if not check.passed}


def certificate(folder) -> dict:
    return json.loads((folder / "certificate.json").read_text())


def test_a_loop_leaves_a_run_that_verifies(tmp_path):
    with loop(planned(), tmp_path / "ledger.jsonl") as private:
        run = private.save(tmp_path / "run", record="one visit", notes=["by hand"])
    stated = certificate(run.path)
    assert failed(run.path) == {}
    assert {check.name for check in verify_run(run.path)} >= {"configuration", "model", "epsilon", "page"}
    assert stated["private"]
    assert 1.9 < stated["epsilon"] <= 2
    assert (stated["delta"], stated["steps_done"], stated["steps_lost"], stated["record"]) == (1e-5, 6, 0, "one visit")
    assert "by hand" in stated["notes"]
    assert any("It was the user's own program" in each for each in stated["not_covered"])
    saved = load_file(run.model_path)
    assert all(torch.equal(saved[name], value) for name, value in private.model.state_dict().items())
    assert run.ledger_path.read_bytes() == (tmp_path / "ledger.jsonl").read_bytes()
    assert not list((tmp_path / "run").glob("checkpoint*"))
    assert private.certificate(record="one visit", notes=["by hand"]) == stated


def test_commands_take_the_folder(tmp_path):
    with loop(planned(), tmp_path / "ledger.jsonl") as private:
        private.save(tmp_path / "run")
    for words in (["verify", "run"], ["report", "run"], ["ledger", "show", "run/ledger.jsonl"]):
        done = CliRunner().invoke(main, [words[0], *words[1:-1], str(tmp_path / words[-1])])
        assert done.exit_code == 0, (words, done.output)
    assert "no command runs it again" in (tmp_path / "run" / "report.html").read_text()
    assert failed(tmp_path / "run") == {}


def test_a_run_cut_short_is_certified_as_planned(tmp_path):
    """When to stop may follow from what was released: then only the whole plan bounds what came out."""
    plan = planned()
    private = loop(plan, tmp_path / "ledger.jsonl", 2)
    first = private.save(tmp_path / "first")
    with private:
        for _ in range(4):  # a copy was completed, not the ledger of the run
            private.release()
        with pytest.raises(BudgetExceeded):
            private.release()
        second = private.save(tmp_path / "second")
    early, late = certificate(first.path), certificate(second.path)
    assert failed(first.path) == failed(second.path) == {}
    assert early["epsilon"] == late["epsilon"] == plan.epsilon(1e-5).epsilon
    assert (early["steps_done"], early["steps_lost"], late["steps_done"], late["steps_lost"]) == (2, 4, 6, 0)
    assert any("saved after 2 of 6 steps" in each for each in early["notes"])
    assert early["ledger"] != late["ledger"]


def test_nothing_released_yet_is_certified_as_planned_too(tmp_path):
    with loop(planned(), tmp_path / "ledger.jsonl", 0) as private:
        run = private.save(tmp_path / "run")
    assert failed(run.path) == {}
    assert certificate(run.path)["epsilon"] > 1.9


def test_saved_beside_its_ledger_the_run_has_ended(tmp_path):
    (tmp_path / "run").mkdir()
    private = loop(planned(), tmp_path / "run" / "ledger.jsonl", 3)
    run = private.save(tmp_path / "run")
    assert failed(run.path) == {}
    with pytest.raises(LedgerError, match="closed"):
        private.release()


def test_a_folder_in_use_is_refused(tmp_path):
    with loop(planned(), tmp_path / "ledger.jsonl") as private:
        private.save(tmp_path / "run")
        for place in (tmp_path / "run", tmp_path):
            with pytest.raises(InputError, match="not a new or empty folder"):
                private.save(place)
    assert failed(tmp_path / "run") == {}


def test_a_closed_loop_can_still_be_saved(tmp_path):
    with loop(planned(), tmp_path / "ledger.jsonl", 3) as private:
        pass
    assert failed(private.save(tmp_path / "run").path) == {}


def test_a_seeded_loop_is_a_rehearsal(tmp_path):
    with loop(planned(), tmp_path / "ledger.jsonl", seed=3) as private:
        run = private.save(tmp_path / "run")
    stated = certificate(run.path)
    assert failed(run.path) == {}
    assert (stated["private"], stated["rehearsal"], stated["epsilon"]) == (False, True, None)
    assert stated["if_unseeded"]["epsilon"] > 1.9
    assert read_ledger(tmp_path / "ledger.jsonl").seeded is True
    text = run.config_path.read_text()
    run.config_path.write_text(text.replace("seed = 3\n", ""))
    assert {"configuration", "ledger"} <= failed(run.path).keys()


def test_no_noise_is_not_private(tmp_path):
    plan = Plan.of_noise(noise=0, records=RECORDS, batch_size=100, steps=2)
    with loop(plan, tmp_path / "ledger.jsonl") as private:
        run = private.save(tmp_path / "run")
    assert failed(run.path) == {}
    assert certificate(run.path)["epsilon"] is None


@pytest.mark.slow
def test_an_edited_folder_does_not_verify(tmp_path):
    with loop(planned(), tmp_path / "ledger.jsonl") as private:
        for name in ("model", "ledger", "config", "certificate"):
            private.save(tmp_path / name)
    model = tmp_path / "model" / "model.safetensors"
    save_file({name: value + 1 for name, value in load_file(model).items()}, model)
    assert "model" in failed(tmp_path / "model")
    ledger = tmp_path / "ledger" / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    assert "ledger" in failed(tmp_path / "ledger")
    config = tmp_path / "config" / "config.toml"
    config.write_text(config.read_text().replace("steps = 6", "steps = 5"))
    assert "configuration" in failed(tmp_path / "config")
    path = tmp_path / "certificate" / "certificate.json"
    path.write_text(path.read_text().replace("It was the user's own program.", ""))
    assert {"model", "statements"} <= failed(tmp_path / "certificate").keys()


def test_delta_must_be_known(tmp_path):
    plan = Plan.of_noise(noise=2.0, records=RECORDS, batch_size=100, steps=3)
    with loop(plan, tmp_path / "ledger.jsonl") as private:
        with pytest.raises(InputError, match="delta must be given"):
            private.save(tmp_path / "run")
        assert not (tmp_path / "run").exists()
        run = private.save(tmp_path / "run", delta=1e-6, accountant="rdp")
    assert failed(run.path) == {}
    stated = certificate(run.path)
    assert (stated["delta"], stated["accountant"]) == (1e-6, "rdp")


@dataclass(frozen=True)
class Halving(Schedule):
    """A schedule of a user's own, whose text nobody else reads."""

    shape = "halving"
    _sizes = ("s0",)
    s0: float

    def _formula(self, epoch):
        return self.s0 / (1 + epoch)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": "reshuffle"},
        {"sampling": "fixed", "neighbours": "replace-one"},
        {"noise_shape": ExponentialDecay(1.0, 0.1)},
        {"noise_shape": Halving(1.0)},
        {"clip_norm_schedule": ExponentialDecay(0.5, 0.1), "keep_noise": True},
        {"batch_size_schedule": Piecewise(((0, 100), (1, 50)))},
        {"clip_norm": QuantileAdaptive(initial=1.0, count_noise_multiplier=10.0, floor=0.01, ceiling=100.0)},
    ],
    ids=lambda changes: next(iter(changes)),
)
@pytest.mark.parametrize("steps", [6, 3])
def test_every_plan_can_be_certified(tmp_path, changes, steps):
    with loop(planned(**changes), tmp_path / "ledger.jsonl", steps) as private:
        run = private.save(tmp_path / "run")
    assert failed(run.path) == {}
    assert 1.5 < certificate(run.path)["epsilon"] <= 2 * (1 + 1e-6)


def test_what_was_released_before_the_steps_counts(tmp_path):
    plan = planned(before=(20.0,))
    with Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event()), seeded=False) as ledger:
        ledger.charge(GaussianRelease(20.0, Neighbours.ADD_REMOVE))
        run = loop(plan, ledger).save(tmp_path / "run")
    assert failed(run.path) == {}
    assert certificate(run.path)["plan"]["before"] == [20.0]


@pytest.mark.parametrize(
    ("budget", "seeded", "said"),
    [
        (None, False, "not begun with the plan"),
        (
            PlannedBudget(compose(planned().event(), GaussianRelease(9.0, Neighbours.ADD_REMOVE))),
            False,
            "not begun with the plan",
        ),
        (PlannedBudget(planned().event()), None, "does not say whether its noise has a seed"),
        (PlannedBudget(planned().event()), True, "says otherwise"),
        (RdpFilter(epsilon=2, delta=1e-5, expected=planned().event()), False, "not begun with the plan"),
    ],
)
def test_a_ledger_that_holds_to_no_plan_is_refused(tmp_path, budget, seeded, said):
    with Ledger.create(tmp_path / "ledger.jsonl", budget=budget, seeded=seeded) as ledger:
        private = loop(planned(), ledger, 1)
        with pytest.raises(InputError, match=said):
            private.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_noise_chosen_on_the_way_is_certified_by_its_filter(tmp_path):
    plan = planned().realised([3.0])
    budget = RdpFilter(epsilon=2, delta=1e-5, expected=plan.event())
    with Ledger.create(tmp_path / "ledger.jsonl", budget=budget, seeded=False) as ledger:
        private = loop(plan, ledger, 2)
        ledger.charge(GaussianRelease(50.0, Neighbours.ADD_REMOVE))  # somebody else's, within the same budget
        run = private.save(tmp_path / "run")
        with pytest.raises(InputError, match="the filter in the ledger is for"):
            private.save(tmp_path / "other", delta=1e-6)
    assert failed(run.path) == {}
    assert certificate(run.path)["epsilon"] == 2
    assert math.isclose(certificate(run.path)["delta"], 1e-5)


class Silent(GaussianMechanism):
    """What an audit passes to see sums without noise."""

    def release(self, total, **_):
        return dict(total)


def test_a_mechanism_of_an_audit_gets_no_certificate(tmp_path):
    private = loop(planned(), tmp_path / "ledger.jsonl", mechanism=Silent())
    with private, pytest.raises(InputError, match="audit"):
        private.certificate()


def test_the_public_name_has_it():
    assert adadp.PrivateGradients is PrivateGradients
    assert issubclass(PrivateGradients, adadp.app.loop.Gradients)


def test_a_collate_fn_makes_tensors_of_one_record(tmp_path):
    rows = [{"numbers": [float(at), 1.0], "label": at % 2} for at in range(20)]
    seen = set()

    def collate(records):
        seen.add(len(records))
        return torch.tensor([each["numbers"] for each in records]), torch.tensor([each["label"] for each in records])

    plan = plan_for(epsilon=4, delta=1e-3, records=20, batch_size=5, steps=2)
    private = PrivateGradients(nn.Linear(2, 2), rows, loss, plan, tmp_path / "ledger.jsonl", collate_fn=collate, seed=1)
    private.release()
    assert seen == {1}
