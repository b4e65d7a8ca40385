"""``fit``: what it takes, what it refuses before anything is charged, and what comes out: train checks."""

from __future__ import annotations

import os
import re
import signal
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from train_cases import FEATURES, LABELS, QUICK, TEST, of_dict, run, small, values

import adadp
from adadp.app.clipping.fixed import Automatic
from adadp.app.config import TrainConfig
from adadp.app.runs import RunFolder
from adadp.app.spec import RunSpec
from adadp.app.train import fit, plan_of, train, verify_run
from adadp.errors import AccountingError, InputError, Interrupted, RunError
from adadp.ledger import Ledger

pytestmark = pytest.mark.slow


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def test_the_learning_rate_of_abadi_et_al_2016_falls_over_ten_epochs_and_stays():
    rates = []

    class Spy(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            super().step(closure)

    run(optimizer=lambda p: Spy(p, lr=1), lr="poly:s0=0.1,k=1,s_end=0.052,period=10", steps=None, epochs=12, **QUICK)
    expected = [0.1 - 0.0048 * min(epoch, 10) for epoch in range(12) for _ in range(10)]
    assert rates == pytest.approx(expected, rel=1e-12)


def test_progress_is_reported_step_by_step():
    seen = []
    run(watch=lambda status: seen.append((status.step, status.steps, status.epsilon_so_far())))
    assert [step for step, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    epsilons = [epsilon for _, _, epsilon in seen]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == run().epsilon_if_unseeded == run(seed=None).epsilon
    assert run().epsilon is None


# No privacy, and no bound -----------------------------------------------------------------------------------------


def test_a_run_without_noise_goes_the_same_way_and_promises_nothing(tmp_path):
    settings = {"noise_multiplier": 0, "delta": None, "allow_nonprivate": True, "steps": 30}
    result = run(**settings, test=TEST, out=tmp_path / "run")
    assert result.epsilon is None
    assert result.certificate["private"] is False
    assert "no noise" in result.certificate["reason"]
    assert result.describe().startswith("NOT PRIVATE")
    assert result.test_accuracy > 0.9
    assert RunFolder.open(result.out).model_metadata()["private"] == "false"
    assert all(check.passed for check in verify_run(RunFolder.open(result.out)))
    assert {line.get("epsilon") for line in RunFolder.open(result.out).metrics()} == {None}
    with pytest.raises(InputError, match="noise_multiplier is 0"):
        run(noise_multiplier=0)


def test_a_figure_that_is_no_bound_is_claimed_and_not_certified(tmp_path):
    settings = {"accountant": "theorem1", "sampling": "fixed", "noise_multiplier": 8.0, "steps": 12}
    result = run(**settings, out=tmp_path / "run")
    assert result.certificate["private"] is False
    assert result.epsilon is None
    assert result.certificate["claimed_epsilon"] > 0
    assert "theorem1 gives no bound" in result.certificate["reason"]
    folder = RunFolder.open(result.out)
    assert folder.model_metadata()["private"] == "false"
    assert all("epsilon" not in line for line in folder.metrics())
    claimed = [line["claimed_epsilon"] for line in folder.metrics() if "epoch" in line]
    assert claimed[-1] == result.certificate["claimed_epsilon"]
    assert all(check.passed for check in verify_run(folder))


# Bad records ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30])
@pytest.mark.parametrize("clip_norm", [1.0, "automatic:1", "quantile:initial=1,count_noise=10,floor=0.01,ceiling=100"])
@pytest.mark.parametrize("bounded", [True, False])
def test_records_that_are_not_finite_never_reach_a_parameter(bad, clip_norm, bounded, request):
    if not bounded:
        request.getfixturevalue("raw_records")
    features = FEATURES.clone()
    features[::7] = bad
    features[3, 2] = bad
    result = run(data=(features, LABELS), optimizer="adam", clip_norm=clip_norm)
    assert all(torch.isfinite(value).all() for value in values(result.model))


@pytest.mark.usefixtures("raw_records")
def test_records_may_all_be_bad():
    result = run(data=(torch.full_like(FEATURES, torch.nan), LABELS))
    assert all(torch.isfinite(value).all() for value in values(result.model))


# What is refused, before anything is charged ----------------------------------------------------------------------


def batch_mean(model, features, labels):
    return F.cross_entropy(model(features), labels)


REFUSED = {
    "one record": ({"data": (FEATURES[:1], LABELS[:1])}, r"has 1 record\."),
    "different lengths": ({"data": (FEATURES, LABELS[:-1])}, "different lengths"),
    "a stream": ({"data": DataLoader(Stream())}, "is Stream, whose records cannot be counted"),
    "labels": ({"data": (FEATURES, LABELS + 1)}, "training labels must lie between 0 and 1"),
    "labels of a data set": ({"data": TensorDataset(FEATURES, LABELS - 1)}, "training labels"),
    "test labels": ({"test": (TEST[0], TEST[1] + 1)}, "test labels must lie between 0 and 1"),
    "test lengths": ({"test": (TEST[0], TEST[1][:-1])}, "pair of tensors.*of the same length"),
    "test shapes": ({"test": (TEST[0][:, :3], TEST[1])}, "cannot be tried on the test data"),
    "no test records": ({"test": (TEST[0][:0], TEST[1][:0])}, "length above 0"),
    "test that is no pair": ({"test": TEST[0]}, "pair of tensors"),
    "test and evaluate": ({"test": TEST, "evaluate": lambda model: 1.0}, "Both test and evaluate"),
    "test of a loss": ({"test": TEST, "loss": of_dict, "data": {"x": FEATURES, "y": LABELS}}, "losses with a name"),
    "evaluate that fails": ({"evaluate": lambda model: "good"}, "evaluate returned str"),
    "batch_size": ({"batch_size": 561}, "batch_size must not exceed"),
    "no batch": ({"batch_size": None}, "batch_size must be a whole number"),
    "epsilon": ({"epsilon": 0, "noise_multiplier": None}, "epsilon must be greater than 0"),
    "negative epsilon": ({"epsilon": -1, "noise_multiplier": None}, "epsilon must be greater than 0"),
    "delta": ({"delta": 1.0}, "delta must lie strictly between 0 and 1"),
    "no delta": ({"delta": None}, "delta must be given"),
    "both": ({"epsilon": 1}, "Both epsilon and noise_multiplier"),
    "neither": ({"noise_multiplier": None}, "None of epsilon, rho and noise_multiplier"),
    "clip rule": ({"clip_norm": "box:1"}, "Unknown clip rule 'box'"),
    "clip without a bound": ({"clip_norm": "automatic"}, "has no bound"),
    "clip of wrong layers": ({"clip_norm": "per-layer:1,2,3"}, "3"),
    "clip_norm": ({"clip_norm": True}, "clip_norm must be a number"),
    "loss": ({"loss": "hinge"}, "Unknown loss"),
    "a mean": ({"loss": batch_mean}, "one number per record"),
    "batch norm": ({"model": nn.Sequential(nn.Linear(9, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))}, "normalisation: 1"),
    "input": ({"model": nn.Linear(8, 2)}, "cannot read the records"),
    "nothing to train": ({"model": small().requires_grad_(False)}, "no trained parameter"),
    "sampling": ({"sampling": "shuffle"}, "sampling"),
    "neighbours": ({"sampling": "fixed", "neighbours": "add-remove"}, "add-remove neighbours"),
    "accountant": ({"accountant": "guess"}, "accountant"),
    "optimizer": ({"optimizer": "lion"}, "optimizer"),
    "no optimizer": ({"optimizer": lambda p: p}, "made list, not a torch.optim.Optimizer"),
    "another's parameters": ({"optimizer": lambda p: torch.optim.SGD(small().parameters(), lr=1)}, "not the trained"),
    "a closure": ({"optimizer": torch.optim.LBFGS, "lr": None}, "LBFGS evaluates the loss as often"),
    "momentum": ({"optimizer": torch.optim.RMSprop, "momentum": 0.9}, "takes none"),
    "weight decay": ({"optimizer": torch.optim.RMSprop, "weight_decay": 0.1}, "weight_decay is given together"),
    "both lengths": ({"epochs": 3}, "Both epochs and steps"),
    "no length": ({"steps": None}, "exactly one of steps and epochs"),
    "chunk size": ({"chunk_size": "big"}, "chunk_size"),
    "device": ({"device": "cuda:99"}, "device cuda:99 cannot be used"),
    "hidden size": ({"sampling": "fixed", "records": 600}, "plan is for 600 records"),
    "resume without a folder": ({"resume": True, "out": None}, "resume=True needs out"),
    "resume of nothing": ({"resume": True}, "There is no run in"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_before_there_is_a_folder_or_a_charge(case, tmp_path, monkeypatch):
    settings, message = REFUSED[case]
    monkeypatch.setattr(Ledger, "charge", lambda *_: pytest.fail("charged"))
    with pytest.raises(InputError, match=f"(?s){message}"):
        run(**{"out": tmp_path / "run", **settings})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"noise_multiplier": 1e-3, "accountant": "strong"}, InputError),
        ({"accountant": "zcdp-sampled", "sampling": "fixed"}, AccountingError),
        ({"epsilon": 1e-9, "noise_multiplier": None, "delta": 1e-12, "steps": 10**6}, AccountingError),
    ],
    ids=["too little noise", "no theorem", "out of reach"],
)
def test_a_run_no_accountant_can_certify_does_not_begin(settings, error, tmp_path, monkeypatch):
    monkeypatch.setattr(Ledger, "charge", lambda *_: pytest.fail("charged"))
    with pytest.raises(error):
        run(**settings, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_an_evaluation_that_raises_does_so_before_anything_is_charged(tmp_path):
    def evaluate(model):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(evaluate=evaluate, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_occupied_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="not a new or empty folder"):
        run(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_is_taken_back_when_the_run_cannot_begin(tmp_path, monkeypatch, there):
    if there:
        (tmp_path / "run").mkdir()
    monkeypatch.setattr("adadp.app.train.checkpoints.save", _full_disk)
    with pytest.raises(RunError, match="no space"):
        run(out=tmp_path / "run")
    assert [path.name for path in tmp_path.rglob("*")] == (["run"] if there else [])
    monkeypatch.undo()
    run(out=tmp_path / "run")


def _full_disk(*_, **__):
    raise RunError("no space")


def test_a_train_configuration_without_what_it_needs_is_refused():
    config = TrainConfig("python", noise_multiplier=2.0, delta=1e-4, steps=2, batch_size=56, clip_norm=1.0)
    with pytest.raises(InputError, match="No learning rate"):
        train(small(), (FEATURES, LABELS), RunSpec.of(config))
    with pytest.raises(InputError, match="'python', and no function makes it"):
        train(small(), (FEATURES, LABELS), RunSpec.of(config.replace(optimizer="python")))
    with pytest.raises(InputError, match="'sgd', and a function makes it"):
        train(small(), (FEATURES, LABELS), RunSpec.of(config.replace(lr=0.1)), optimizer=torch.optim.RMSprop)


# What stays hidden ------------------------------------------------------------------------------------------------


def test_the_true_number_of_records_can_stay_hidden(tmp_path):
    hidden = 557
    data = (FEATURES[:hidden], LABELS[:hidden])
    result = run(data=data, records=600, batch_size=60, steps=10, out=tmp_path / "run", test=TEST)
    assert result.plan.records == 600
    assert result.plan.sampler.sampling_probability == 0.1
    assert not any("exact number" in line for line in result.certificate["disclosed"])
    whole = re.compile(r"(?<![\w.])557(?!\w)")  # not within a checksum or a fraction
    assert whole.search('{"records": 557}')
    texts = {path.name: path.read_text() for path in (tmp_path / "run").iterdir() if path.suffix != ".safetensors"}
    assert {"certificate.json", "config.toml", "ledger.jsonl", "metrics.jsonl"} <= set(texts)
    assert [name for name, text in texts.items() if whole.search(text)] == []
    assert all(check.passed for check in verify_run(RunFolder.open(result.out)))


def test_without_a_public_number_the_certificate_says_that_it_discloses_the_true_one():
    assert any("exact number of training records, 560" in line for line in run().certificate["disclosed"])


def test_a_plan_can_be_made_without_any_data():
    config = TrainConfig(
        "python", epsilon=2.0, delta=1e-4, epochs=3, batch_size=56, clip_norm=1.0, clip_rule="automatic"
    )
    plan = plan_of(RunSpec.of(config), 560)
    assert (plan.steps, str(plan.clip_rule)) == (30, str(Automatic(1.0)))
    assert plan.epsilon(1e-4).epsilon <= 2
    assert plan_of(RunSpec.of(config.replace(records=1120)), 560).steps == 60


# Random layers ----------------------------------------------------------------------------------------------------


def masks(seed, steps=3):
    """What dropout drops in a run in which nothing else is random."""
    seen = []

    class Watched(nn.Dropout):
        def forward(self, value):
            out = super().forward(value)
            if value.shape[0] == 560:
                seen.append((out == 0).float().mean(0))
            return out

    model = nn.Sequential(Watched(0.5), small())
    torch.manual_seed(7)
    state = torch.get_rng_state()
    run(model, seed=seed, steps=steps, batch_size=560, **QUICK)
    assert torch.equal(torch.get_rng_state(), state)
    return torch.stack(seen)


def test_dropout_follows_the_seed_and_without_one_nobody_can_foresee_it():
    assert torch.equal(masks(3), masks(3))
    assert not torch.equal(masks(3), masks(4))
    one, other = masks(None), masks(None)
    assert not torch.equal(one, other)
    assert not torch.equal(one[0], one[1])


# Stopping ---------------------------------------------------------------------------------------------------------


def test_a_run_without_a_folder_stops_and_says_that_it_cannot_be_resumed():
    def watch(status):
        if status.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"(?s)after 2 of 6 steps.*cannot be resumed"):
        run(watch=watch)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_in_a_thread_touches_no_signal():
    found = []
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(
        target=run, kwargs={**QUICK, "watch": lambda status: found.append(signal.getsignal(signal.SIGINT))}
    )
    thread.start()
    thread.join()
    assert found == [before] * 6


def test_the_package_offers_fit():
    assert adadp.fit is fit


class Ending(nn.Module):
    """Takes sentences that end with the word 7 only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(8, 4), nn.Linear(4, 2)

    def forward(self, tokens):
        if not bool((tokens[:, -1] == 7).all()):
            raise ValueError("a sentence does not end")
        return self.out(self.words(tokens).mean(1))


def test_example_records_are_what_a_model_is_looked_over_with(tmp_path):
    tokens = torch.randint(0, 7, (300, 5), generator=torch.Generator().manual_seed(1))
    tokens[:, -1] = 7
    labels = tokens[:, 0] % 2
    settings = {"noise_multiplier": 1.0, "delta": 1e-5, "steps": 3, "batch_size": 50, "seed": 0}
    with pytest.raises(InputError, match="example="):
        fit(Ending(), (tokens, labels), **settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    public = (tokens[:4].clone().roll(1, 0), labels[:4])
    result = fit(Ending(), (tokens, labels), **settings, example=public)
    assert all(value.isfinite().all() for value in result.network.parameters())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(9, 2, device="meta"), "is on the meta device"),
        (
            nn.Sequential(nn.Unflatten(1, (9, 1, 1)), nn.GroupNorm(9, 9), nn.Flatten(), nn.Linear(9, 2)),
            "normalises a single number.*fewer groups",
        ),
    ],
)
def test_models_that_torch_fails_on_are_named(model, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        fit(model, (torch.randn(60, 9), torch.arange(60) % 2), epsilon=2, delta=1e-4, steps=2, batch_size=10, lr=0.1)
