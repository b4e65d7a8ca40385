"""AGD: what a record can do to a score, what is drawn, averaged and charged, and whole runs held to their budget."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from adadp import Ledger, PrivateGradients
from adadp.app.accounting import RdpFilter
from adadp.app.config import TrainConfig
from adadp.app.losses import cross_entropy
from adadp.app.runs import RunFolder
from adadp.app.selection import grid, tune
from adadp.app.spec import RunSpec
from adadp.app.train import fit, verify_run
from adadp.app.train.planning import plan_of
from adadp.app.zoo import load
from adadp.clipping import Flat
from adadp.errors import InputError, Interrupted
from adadp.events import AdaptivelyChosen, GaussianRelease, PoissonSampled, Selection, flatten
from adadp.gradients import GradientEngine
from adadp.lab.methods.agd import Agd, AgdQuery
from adadp.ledger import read_ledger
from adadp.methods.base import GRADIENT
from adadp.noise import choose_least
from adadp.plan import Plan
from adadp.randomness import SeededSource

pytestmark = pytest.mark.slow


DATA, TEST = load("cancer").train, load("cancer").test
SETTINGS = {
    "delta": 1e-4,
    "batch_size": 56,
    "method": "agd:start=1.5,share=0.25",
    "epsilon": 3.0,
    "steps": 25,
    "clip_norm": 1.0,
}
FULL = {
    "delta": 1e-4,
    "batch_size": 560,
    "method": "agd:score=loss,c_obj=1,start=1.5,share=0.25",
    "rho": 0.2,
    "steps": 25,
    "clip_norm": 1.0,
}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(9, 2)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


ENGINE = GradientEngine(network(), cross_entropy, (DATA[0][:2], DATA[1][:2]))


def query_of(settings: Agd) -> AgdQuery:
    query = settings.query(ENGINE, Flat(1.0), 10)
    assert isinstance(query, AgdQuery)
    return query


# Scores and the choice --------------------------------------------------------------------------------------------

numbers = st.floats(-10, 10) | st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -1e30])


@pytest.mark.parametrize("score", ["gain", "loss"])
@given(losses=st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=1, max_size=5))
def test_one_record_more_moves_every_score_up_and_by_no_more_than_the_bound(score, losses):
    query = query_of(Agd(score=score, c_obj=0.3, grid=3))
    records = torch.tensor(losses, dtype=torch.float64).T
    moved = query.scores(records) - query.scores(records[:, :-1])
    assert bool((moved >= -1e-12).all())
    assert bool((moved <= query.score_bound + 1e-12).all())
    assert query.score_bound == (0.6 if score == "gain" else 0.3)


def test_scores_tell_better_lengths_from_worse():
    losses = torch.tensor([[1.0, 1.0], [0.9, 0.8], [1.2, 0.9]])
    gain = query_of(Agd(score="gain", c_obj=0.5)).scores(losses)
    torch.testing.assert_close(gain - gain[0], torch.tensor([0.0, -0.3, 0.1]))
    torch.testing.assert_close(query_of(Agd(score="loss", c_obj=1.0)).scores(losses), torch.tensor([2.0, 1.7, 1.9]))


def test_losses_along_a_direction_are_those_of_the_moved_model_which_comes_back_bit_for_bit():
    model = network()
    engine = GradientEngine(model, cross_entropy, (DATA[0][:2], DATA[1][:2]))
    rows = (DATA[0][:7], DATA[1][:7])
    before = weights(model).clone()
    direction = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    found = engine.losses_along(rows, direction, [0.0, 0.3, 2.0])
    assert torch.equal(weights(model), before)
    assert not found.requires_grad
    for row, length in zip(found, (0.0, 0.3, 2.0), strict=True):
        moved = network()
        with torch.no_grad():
            for name, value in moved.named_parameters():
                value.sub_(length * direction[name])
        torch.testing.assert_close(row, cross_entropy(moved, *rows).detach())

    def failing(*_):
        raise RuntimeError("no")

    engine.loss = failing
    with pytest.raises(RuntimeError):
        engine.losses_along(rows, direction, [5.0])
    assert torch.equal(weights(model), before)


def drawn(epsilon: float, losses: torch.Tensor, times: int = 4000) -> list[float]:
    source = SeededSource(3)
    counts = torch.zeros(len(losses))
    for step in range(times):
        counts[choose_least(losses, bound=2.0, epsilon=epsilon, source=source, step=step, purpose="choice")] += 1
    return (counts / times).tolist()


def test_a_choice_has_the_probabilities_of_the_exponential_mechanism_and_a_twin_is_caught():
    losses = torch.tensor([3.0, 1.0, 0.0, 5.0])
    exact = torch.softmax(-losses.double() * 1.5 / 2.0, 0).tolist()
    assert drawn(1.5, losses) == pytest.approx(exact, abs=0.025)
    assert drawn(0.75, losses) != pytest.approx(exact, abs=0.025)
    assert drawn(0.0, losses) == pytest.approx([0.25] * 4, abs=0.025)
    assert choose_least(losses, bound=1, epsilon=math.inf, source=SeededSource(0), step=0, purpose="choice") == 2


@pytest.mark.parametrize("losses", [[], [1.0, math.nan], [math.inf, 0.0]])
def test_a_choice_without_finite_losses_is_refused_without_telling_them(losses):
    with pytest.raises(InputError, match="nothing to choose from, or a loss is not finite"):
        choose_least(torch.tensor(losses), bound=1, epsilon=1, source=SeededSource(0), step=0, purpose="choice")


@pytest.mark.parametrize("score", ["gain", "loss"])
def test_a_loss_that_is_nan_scores_like_an_infinite_one(score):
    """Before a loss is NaN it is huge: where one turns into the other must not matter."""
    engine = GradientEngine(network(), cross_entropy, (DATA[0][:2], DATA[1][:2]))
    query = Agd(score=score).query(engine, Flat(1.0), 5)
    losses = torch.tensor([[0.3], [0.2], [0.4]], dtype=torch.float64)
    for rows in ([1], [0], [0, 1, 2]):
        scores = []
        for wrong in (math.nan, math.inf, 1e30):
            changed = losses.clone()
            changed[rows] = wrong
            scores.append(query.scores(changed))
        assert torch.equal(scores[0], scores[1])
        assert torch.equal(scores[0], scores[2])


def test_the_rounding_of_scores_stays_inside_its_allowance():
    """Other records' losses, computed in a batch with one record more and in another order, change a little."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 200), nn.ReLU(), nn.Linear(200, 10))
    x, y = torch.randn(1201, 60), torch.randint(0, 10, (1201,))
    engine = GradientEngine(model, cross_entropy, (x[:2], y[:2]))
    query = Agd().query(engine, Flat(1.0), 1200)
    direction = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    lengths = query.lengths()

    def scores(order: torch.Tensor) -> torch.Tensor:
        return query.scores(engine.losses_along((x[order], y[order]), direction, lengths).double())

    with_one = torch.randperm(1201)
    one = query.scores(engine.losses_along((x[1200:], y[1200:]), direction, lengths).double())
    moved = scores(with_one) - scores(torch.arange(1200)) - one
    assert 0 < float(moved.abs().max()) < 0.5 * query.score_bound * 1200 * 2.0**-20


# One try ----------------------------------------------------------------------------------------------------------


def released(weight: torch.Tensor) -> dict:
    return {GRADIENT: {"weight": weight.reshape(2, 9), "bias": torch.zeros(2, dtype=torch.float64)}}


@pytest.mark.parametrize("score", ["gain", "loss"])
@given(
    losses=st.lists(st.lists(st.floats(0, 1e6), min_size=4, max_size=4), min_size=1, max_size=8),
    errors=st.lists(st.lists(st.floats(-1, 1), min_size=4, max_size=4), min_size=8, max_size=8),
)
@example(losses=[[29.0, 29.1, 28.9, 29.0]], errors=[[-1.0, 1.0, 1.0, 1.0]] * 8)
def test_an_error_in_proportion_to_a_loss_moves_scores_by_no_more_than_is_said(score, losses, errors):
    query, size = query_of(Agd(score=score, c_obj=0.3, grid=3)), 4 * 2.0**-24
    records = torch.tensor(losses, dtype=torch.float64).T
    moved = records * (1 + size * torch.tensor(errors[: len(losses)], dtype=torch.float64).T)
    change = (query.scores(moved) - query.scores(records)).abs().max().item()
    assert change <= 1.001 * len(losses) * 2.0**-20 * query.score_steepness * query.score_bound


def test_after_a_zero_the_noisy_gradients_are_averaged_by_their_precision():
    query = query_of(Agd(gamma=0.1))
    one, two = torch.randn(2, 18, dtype=torch.float64)
    assert query.noise_factor == 1
    direction = query.to_gradient(released(one), deviation=2.0)
    assert torch.linalg.vector_norm(direction["weight"]) == pytest.approx(1)
    still = query.chose(0, direction)
    assert float(still["weight"].abs().max()) == 0
    assert query.noise_factor == pytest.approx(math.sqrt(1 / 0.1))  # what is missing to 1.1 times the precision
    again = query.to_gradient(released(two), deviation=2.0 * query.noise_factor)
    expected = (one + 0.1 * two) / 1.1
    torch.testing.assert_close(again["weight"].flatten(), expected / expected.norm(), rtol=1e-12, atol=1e-14)
    query.chose(3, again)
    assert query.noise_factor == pytest.approx(1 / math.sqrt(1.1))
    fresh = query.to_gradient(released(two), deviation=1.0)
    torch.testing.assert_close(fresh["weight"].flatten(), two / two.norm(), rtol=1e-12, atol=1e-14)


def test_the_model_moves_by_the_length_that_was_chosen_and_the_grid_follows_the_longest():
    query = query_of(Agd(grid=4, longest=2.0, tau=3, eta=0.5))
    direction = query.to_gradient(released(torch.randn(18, dtype=torch.float64)), deviation=1.0)
    assert query.lengths() == [0.0, 0.5, 1.0, 1.5, 2.0]
    for number in (1, 3, 0, 2):
        move = query.chose(number, direction)
        assert math.hypot(*(float(value.norm()) for value in move.values())) == pytest.approx(0.5 * number)
    assert query.lengths()[-1] == pytest.approx(1.5 * 1.5)  # three steps were taken, the longest of 1.5


def test_without_noise_the_choice_is_the_best_one():
    result = fit(
        network(), DATA, noise_multiplier=0.0, steps=8, batch_size=560, method="agd", allow_nonprivate=True, test=TEST
    )
    assert result.certificate["private"] is False
    assert result.test_accuracy > 0.9


# Whole runs -------------------------------------------------------------------------------------------------------


def test_a_step_is_one_charge_of_gradient_and_choice_on_one_batch(tmp_path):
    result = fit(network(), DATA, seed=0, out=tmp_path / "run", test=TEST, **SETTINGS)
    assert result.epsilon_if_unseeded == 3.0
    assert result.certificate["accountant"] == "rdp-filter"
    charges = read_ledger(tmp_path / "run" / "ledger.jsonl").charges
    assert sum(charges.values()) == result.certificate["steps_done"] == 25
    first = result.plan.noise_multiplier_at(0)
    for event in charges:
        assert isinstance(event, AdaptivelyChosen)
        assert isinstance(event.event, PoissonSampled)
        gaussian, choice = event.event.event.events
        assert isinstance(gaussian, GaussianRelease)
        assert isinstance(choice, Selection)
        assert choice.epsilon == pytest.approx(2 * math.sqrt(0.25) / first)
    assert len(charges) > 1, "the noise never changed"
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))
    assert result.test_accuracy > 0.8


def test_direction_and_choice_look_at_the_same_records(monkeypatch):
    seen = []
    for name in ("captures", "losses_along"):
        whole = getattr(GradientEngine, name)

        def noting(self, rows, *rest, whole=whole, name=name, **more):
            seen.append((name, rows[0].clone()))
            return whole(self, rows, *rest, **more)

        monkeypatch.setattr(GradientEngine, name, noting)
    fit(network(), DATA, **{**SETTINGS, "steps": 4})  # secure randomness: a batch cannot be drawn a second time
    captured, tried = ([rows for name, rows in seen if name == each] for each in ("captures", "losses_along"))
    assert len(captured) >= 4  # one batch and, for a large batch, a short one behind it
    assert all(torch.equal(one, other) for one, other in zip(captured, tried, strict=True))


def test_full_batches_are_held_to_rho(tmp_path):
    result = fit(network(), DATA, seed=0, out=tmp_path / "run", **FULL)
    assert result.certificate["accountant"] == "zcdp-filter"
    charges = read_ledger(tmp_path / "run" / "ledger.jsonl").charges
    spent = 0.0
    for event, count in charges.items():
        for leaf, times in flatten(event.event.event).items():
            own = 0.5 / leaf.noise_multiplier**2 if isinstance(leaf, GaussianRelease) else leaf.epsilon**2 / 8
            spent += count * times * own
    assert 0.3 * 0.2 < spent <= 0.2
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))


def test_the_run_stops_before_the_budget_is_passed(tmp_path):
    settings = {**FULL, "method": "agd:score=loss,c_obj=1,start=1,gamma=1", "steps": 40, "rho": 0.01}
    result = fit(network(), DATA, seed=0, out=tmp_path / "run", **settings)
    assert 0 < result.certificate["steps_done"] < 40
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))


EARLY = {**SETTINGS, "method": "agd:share=0.25,start=1.5,longest=40.0,grid=1"}
"""One length, which is too long: no move wins at least every other time, by step 15 in all but 2^-15 of the seeds."""


@pytest.mark.parametrize("settings", [EARLY, FULL], ids=["sampled", "full"])
def test_a_seeded_run_that_was_killed_ends_bit_for_bit_as_if_nothing_had_happened(tmp_path, settings):
    whole = fit(network(), DATA, seed=0, **settings)

    def kill(status) -> None:
        if status.step == 17:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, Interrupted)):
        fit(network(), DATA, seed=0, out=tmp_path / "run", watch=kill, checkpoint_every=5, **settings)
    again = fit(network(), DATA, seed=0, out=tmp_path / "run", resume=True, checkpoint_every=5, **settings)
    assert torch.equal(weights(whole.model), weights(again.model))
    assert str(whole.plan.noise) == str(again.plan.noise)
    assert settings is FULL or whole.plan.noise_multiplier_at(15) != whole.plan.noise_multiplier_at(0)
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))


def test_a_run_that_failed_at_a_choice_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch):
    """The gradient of that step is out, and not in the model: it must not be skipped."""
    asked = SETTINGS | {"seed": 4, "checkpoint_every": 4}
    whole = fit(network(), DATA, **asked, out=tmp_path / "whole")
    choices = []

    def fails(*arguments, **options):
        choices.append(choose_least(*arguments, **options))
        if len(choices) == 7:
            raise OSError("the seventh choice")
        return choices[-1]

    with monkeypatch.context() as patch:
        patch.setattr("adadp.release.choose_least", fails)
        with pytest.raises(InputError, match="OSError"):
            fit(network(), DATA, out=tmp_path / "run", **asked)
    found = fit(network(), DATA, out=tmp_path / "run", resume=True, **asked)
    assert torch.equal(weights(found.model), weights(whole.model))
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))


def test_a_secure_run_leaves_out_what_was_lost_and_stays_within_its_budget(tmp_path):
    def kill(status) -> None:
        if status.step == 9:
            raise SystemExit

    with pytest.raises(SystemExit):
        fit(network(), DATA, out=tmp_path / "run", watch=kill, checkpoint_every=5, **SETTINGS)
    again = fit(network(), DATA, out=tmp_path / "run", resume=True, checkpoint_every=5, **SETTINGS)
    assert again.certificate["steps_lost"] >= 4
    assert sum(read_ledger(tmp_path / "run" / "ledger.jsonl").charges.values()) == 25
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "run")))


def test_noise_that_the_ledger_does_not_hold_does_not_verify(tmp_path):
    fit(network(), DATA, seed=0, out=tmp_path / "run", **SETTINGS)
    path = tmp_path / "run" / "certificate.json"
    certificate = json.loads(path.read_text(encoding="utf-8"))
    noise = certificate["plan"]["noise"]
    for other in (noise.replace(",tick=1", ",24=1.234,tick=1"), noise.replace(",tick=1", ""), "uniform:s0=3"):
        certificate["plan"]["noise"] = other
        path.write_text(json.dumps(certificate), encoding="utf-8")
        failed = {each.name for each in verify_run(RunFolder.open(tmp_path / "run")) if not each.passed}
        assert "charges" in failed


def asked(**changes) -> TrainConfig:
    base = TrainConfig(
        "cancer", model="linear", method="agd", epsilon=1.0, delta=1e-5, steps=9, batch_size=60, clip_norm=1.0
    )
    return base.replace(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": 2.0}, "noise_multiplier is given, and agd finds its noise"),
        ({"noise_schedule": "exp:k=0.1"}, "noise_schedule is given, and agd finds its noise"),
        ({"rho": 0.1}, "batches are sampled"),
        ({"neighbours": "replace-one"}, "asked for replace-one neighbours"),
        ({"sampling": "fixed"}, "agd on fixed batches"),
        ({"sampling": "reshuffle"}, "agd on reshuffle batches"),
        ({"method": "agd:score=best"}, "score must be one of"),
        ({"method": "agd:gamma=0"}, "gamma must be"),
        ({"method": "agd:grid=0"}, "grid must be"),
    ],
)
def test_what_cannot_be_is_refused_ahead(changes, message):
    with pytest.raises(InputError, match=message):
        plan_of(RunSpec.of(asked(**changes)), 600)


def test_searches_refuse_it_with_a_reason(tmp_path):
    with pytest.raises(InputError, match="A search cannot set the noise of agd"):
        tune(asked(), grid({"method": ["agd", "dpsgd"]}), validation=60, out=tmp_path / "tuned")
    assert not (tmp_path / "tuned").exists()


def test_the_first_noise_leaves_room_for_less_of_it():
    lasting, begun = plan_of(RunSpec.of(asked()), 600), plan_of(RunSpec.of(asked(method="agd:start=1.5")), 600)
    assert begun.noise_multiplier_at(0) == pytest.approx(1.5 * lasting.noise_multiplier_at(0))
    assert begun.choice_epsilon == pytest.approx(lasting.choice_epsilon / 1.5)


def test_a_loop_of_ones_own_must_plan_for_choices(tmp_path):
    plan = Plan.of_noise(noise=2.0, records=560, batch_size=56, steps=5)
    opened = []
    with pytest.raises(InputError, match="the plan does not charge for it"):
        PrivateGradients(network(), DATA, cross_entropy, plan, lambda: opened.append(1), method=Agd())
    with pytest.raises(InputError, match="makes none"):
        PrivateGradients(network(), DATA, cross_entropy, plan.for_choices(0.1), lambda: opened.append(1))
    assert not opened
    budget = RdpFilter(epsilon=3.0, delta=1e-4, expected=plan.event())
    model, planned = network(), plan.for_choices(Agd().choice)
    before = weights(model).clone()
    with Ledger.create(tmp_path / "ledger.jsonl", budget=budget) as ledger:
        private = PrivateGradients(model, DATA, cross_entropy, planned, ledger, method=Agd(), seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(5):
            private.release()
            optimizer.step()
    assert 0 < budget.used < 1
    assert not torch.equal(weights(model), before)


def test_replacing_a_record_is_charged_twice_the_range_of_a_choice():
    plan = Plan(600, 600, 3, None, Flat(1.0), neighbours="replace-one", choice=0.25).with_noise(
        Plan.of_noise(noise=2.0, records=600, batch_size=600, steps=3).noise
    )
    assert plan.release_at(0).events[-1].epsilon == pytest.approx(2 * plan.choice_epsilon)


def test_noise_is_not_chosen_within_an_epoch_that_is_charged_once():
    plan = Plan.of_noise(noise=20.0, records=400, batch_size=20, steps=40, sampling="reshuffle", neighbours="zero-out")
    with pytest.raises(InputError, match="cannot be chosen step by step on reshuffle batches"):
        plan.for_choices(0.1)
