"""Records made to abuse rounding, by neighbour replay: what one of them moves the sum by in fast and exact arithmetic.

In exact arithmetic the sums are compared as whole numbers, and the ratio to the bound is at most 1 whoever is removed.
In fast arithmetic nobody else moves while rows are free, and at most one other record when there are none.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from clip_texts import rule_of
from rounding_cases import CASES, KINDS, QUANTILE, Case, Kept, entropy, released, without
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.accounting import RdpFilter
from adadp.app.exact import SCORE_UNITS, ExactSums, WholeSum
from adadp.app.texts.methods import parse_method
from adadp.errors import InputError
from adadp.gradients import loop_gradients
from adadp.ledger import PlannedBudget
from adadp.noise import grid_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("raw_records")]  # huge numbers are the point


def exact_ratio(one, other, number=0):
    """The square of the same, in whole numbers: every total is a multiple of the grid, or the test fails."""
    bound = one.bounds[number]
    grid = grid_of(bound, len(one.totals[number]))
    numbers = [each.totals[number] / grid for each in (one, other)]
    assert all(torch.equal(each, each.round()) for each in numbers)
    apart = (numbers[0].long() - numbers[1].long()).tolist()
    return Fraction(sum(each * each for each in apart)) / (Fraction(bound) / Fraction(grid)) ** 2


# exact arithmetic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_exact_whoever_is_removed_moves_the_sum_by_at_most_the_bound(tmp_path, name, kind):
    case = CASES[name]
    for size in (2, 65):  # the data has one record more: a run needs two
        data = case.records(kind, size + 1)
        whole = released(tmp_path, case, data, "exact", rows=size)
        for record in (0, size // 2, -1):
            fewer = released(tmp_path, case, without(data, record), "exact", rows=size)
            assert exact_ratio(whole, fewer) <= 1
    assert exact_ratio(whole, fewer) > Fraction(1, 4)  # the last one is ordinary and does take part


@pytest.mark.parametrize("size", [257, 1025])
@pytest.mark.parametrize("kind", ["edge", "cancel"])
def test_exact_batches_of_any_size_keep_the_bound(tmp_path, kind, size):
    case = CASES["linear"]
    data = case.records(kind, size)
    whole, fewer = (released(tmp_path, case, each, "exact", rows=size) for each in (data, without(data, 0)))
    assert exact_ratio(whole, fewer) <= 1


@pytest.mark.parametrize(
    ("method", "clip_norm"),
    [
        ("dpsgd", "per-layer:0.3"),
        ("dpsgd", "per-layer-joint:0.5"),
        ("dpsgd", "automatic:0.5,gamma=0.01"),
        ("dpsgd", QUANTILE),
        ("adadp:start=1", "flat:0.5"),
        ("dpopt:start=1", "flat:0.5"),
        ("dpsgd-momentum", "flat:0.5"),
    ],
)
def test_exact_holds_for_every_rule_and_method(tmp_path, method, clip_norm):
    """Replayed: the second run releases what the first one did, so scales and bounds are the same at every step."""
    case = CASES["relu"]
    data = case.records("cancel", 12)
    purposes = 2 if clip_norm == QUANTILE else 1

    class Scripted(Kept):
        def release(self, total, **given):
            super().release(total, **given)
            return {name: value.clone() for name, value in script[len(self.totals) - 1].items()}

    class Scripting(Kept):
        def release(self, total, **given):
            found = super().release(total, **given)
            script.append({name: value.clone() for name, value in found.items()})
            return found

    script, kept = [], []
    for kind, each in ((Scripting, data), (Scripted, without(data, 3))):
        plan = Plan.of_noise(noise=1.0, steps=3, records=12, batch_size=12, clip_norm=rule_of(clip_norm))
        mechanism = kind()
        with Ledger.create(tmp_path / f"{kind.__name__}.jsonl", budget=PlannedBudget(plan.event())) as ledger:
            model = case.model()
            private = PrivateGradients(
                model, each, case.loss, plan, ledger, method=parse_method(method), seed=0, mechanism=mechanism,
                arithmetic="exact",
            )  # fmt: skip
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                private.release()
                optimizer.step()
        kept.append(mechanism)
    assert len(script) == 3 * purposes
    assert kept[0].bounds == kept[1].bounds
    shares = [exact_ratio(*kept, number) for number in range(len(script))]
    assert max(shares) <= 1
    assert max(shares) > 0


def test_exact_is_the_clipped_sum_of_plain_gradients(tmp_path):
    """What is added up is right, and not only bounded: against the loop oracle, to the grid."""
    case = CASES["convolution"]
    data = case.records("plain", 20)
    found = released(tmp_path, case, data, "exact", rows=20).totals[0]
    wanted = torch.zeros_like(found)
    for grads in loop_gradients(case.model(), case.loss, data, 20):
        vector = torch.cat([each.double().reshape(-1) for each in grads.values()])
        wanted += vector * min(1.0, (1 - 1e-5) / vector.norm().item())
    assert (found - wanted).norm() < 20 * 2**-14
    fast = released(tmp_path, case, data, "fast", rows=20).totals[0]
    assert (found - fast).norm() < 20 * 2**-14


def test_exact_does_not_depend_on_the_order_of_the_records(tmp_path):
    case = CASES["relu"]
    data = case.records("cancel", 65)
    order = torch.randperm(65, generator=torch.Generator().manual_seed(0))
    one, other = (
        released(tmp_path, case, each, "exact", rows=65) for each in (data, tuple(each[order] for each in data))
    )
    assert torch.equal(one.totals[0], other.totals[0])


def test_exact_dropout_of_a_record_is_its_own(tmp_path):
    """Without the last record the masks of all others are what they were, so that only its own part is missing."""
    case = Case(
        lambda: nn.Sequential(nn.Linear(33, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 5)), entropy, (33,), 5
    )
    data = case.records("equal", 33)
    whole, fewer = (released(tmp_path, case, each, "exact", rows=33) for each in (data, without(data, -1)))
    assert 0 < exact_ratio(whole, fewer) <= 1
    again = released(tmp_path, case, data, "exact", rows=33)
    other = released(tmp_path, case, data, "exact", rows=33, seed=1)
    assert torch.equal(whole.totals[0], again.totals[0])
    assert not torch.equal(whole.totals[0], other.totals[0])
    twice = released(tmp_path, case, tuple(each[:2] for each in data), "exact", rows=2)  # two equal records
    numbers = (twice.totals[0] / grid_of(twice.bounds[0], len(twice.totals[0]))).long()
    assert (numbers % 2 != 0).any(), "they have the same masks"
    secure = released(tmp_path, case, data, "exact", rows=33, seed=None)  # the first record is computed twice there too
    assert not torch.equal(secure.totals[0], whole.totals[0])


@pytest.mark.parametrize("score", ["gain", "loss"])
def test_exact_scores_of_a_line_search_are_whole_numbers_within_the_bound(tmp_path, score):
    """One record more adds between nothing and the bound to every score, exactly, and the others what they did."""
    case, method = CASES["relu"], parse_method(f"agd:score={score},c_obj=5")
    plan = Plan.of_noise(noise=2.0, steps=2, records=40, batch_size=40, clip_norm=1.0)
    budget = RdpFilter(epsilon=30.0, delta=1e-4, expected=plan.event())
    with Ledger.create(tmp_path / "l.jsonl", budget=budget) as ledger:
        private = PrivateGradients(
            case.model(), case.records("equal", 40), case.loss, plan.for_choices(method.choice), ledger,
            method=method, seed=0, arithmetic="exact",
        )  # fmt: skip
        private.release()
        private.release()
        direction = {name: torch.randn_like(value) for name, value in private.model.named_parameters()}
        scores = ExactSums(private._engine, private._records, private.source).scores
        query = private.query
        more, less = (
            scores(query.scores, torch.arange(start, 40), direction, query.lengths(), query.score_bound, 0)
            for start in (0, 1)
        )
    assert torch.equal(more, more.round())
    assert ((more - less >= 0) & (more - less <= SCORE_UNITS)).all()
    assert len(set((more - less).tolist())) > 1


@pytest.mark.parametrize("score", ["gain", "loss"])
def test_padding_has_no_part_in_scores(tmp_path, score):
    """The scores of a batch that leaves rows free: those of its records one by one."""
    case, method = CASES["relu"], parse_method(f"agd:score={score},c_obj=5")
    plan = Plan.of_noise(noise=2.0, steps=2, records=40, batch_size=40, clip_norm=1.0)
    found = []

    def noted(scores, *, bound, **_):
        found.append(scores / bound)
        return 1

    for arithmetic in ("fast", "exact"):
        budget = RdpFilter(epsilon=30.0, delta=1e-4, expected=plan.event())
        with (
            Ledger.create(tmp_path / f"{arithmetic}.jsonl", budget=budget) as ledger,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr("adadp.release.choose_least", noted)
            PrivateGradients(
                case.model(), case.records("equal", 30), case.loss, plan.for_choices(method.choice), ledger,
                method=method, seed=0, arithmetic=arithmetic,
            ).release()  # fmt: skip
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-2)


# what exact arithmetic refuses, and notices ---------------------------------------------------------------------


def test_exact_refuses_what_it_cannot_prove(tmp_path):
    case = CASES["linear"]
    data = case.records("plain", 8)
    plan = Plan.of_noise(noise=1.0, steps=1, records=8, batch_size=8, clip_norm=1.0)

    def start(name, **given):
        with Ledger.create(tmp_path / f"{name}.jsonl", budget=PlannedBudget(plan.event())) as ledger:
            PrivateGradients(case.model(), data, case.loss, given.pop("plan", plan), ledger, **given)

    with pytest.raises(InputError, match="not private"):
        start("a", method=parse_method("adadp-published"), allow_nonprivate=True, arithmetic="exact")
    quiet = Plan.of_noise(noise=0.0, steps=1, records=8, batch_size=8, clip_norm=1.0)
    with pytest.raises(InputError, match="no noise"):
        start("b", plan=quiet, arithmetic="exact")
    with pytest.raises(InputError, match="Unknown arithmetic"):
        start("c", arithmetic="precise")


class Remembering(nn.Module):
    """A broken twin: what it computes for a record hangs on the one before."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(33, 8)
        self.before = torch.zeros(1, 33)
        self.keeps = False

    def forward(self, x):
        out = self.layer(x + 0.1 * self.before[:1]) if self.keeps else self.layer(x)
        self.before = x.detach().clone()
        return out


class Counting(nn.Module):
    """Another: it counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(33, 8)
        self.register_buffer("calls", torch.zeros(()))
        self.keeps = False

    def forward(self, x):
        if self.keeps:
            self.calls += 1
        return self.layer(x)


@pytest.mark.parametrize("kind", [Remembering, Counting])
def test_exact_notices_a_model_that_remembers_and_charges_nothing(tmp_path, kind):
    case, model = CASES["linear"], kind()
    data = case.records("plain", 8)
    plan = Plan.of_noise(noise=1.0, steps=1, records=8, batch_size=8, clip_norm=1.0)
    with Ledger.create(tmp_path / "l.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        private = PrivateGradients(model, data, case.loss, plan, ledger, seed=0, arithmetic="exact")
        model.keeps = True
        with pytest.raises(InputError, match="came out differently"):
            private.release()
        assert not ledger.charges
        model.keeps = False
        private.release()


def test_whole_sums_keep_the_bound_in_whole_numbers():
    """Vectors a little too long, of huge and of tiny numbers, not finite: each ends within the bound, or is nothing."""
    generator = torch.Generator().manual_seed(0)
    for bound in (1.0, 0.3, 1e-9, 7e11):
        for size in (1, 2, 1000):
            like = {"a": torch.zeros(size), "b": torch.zeros(2)}
            total = WholeSum(bound, like)
            grid = grid_of(bound, size + 2)
            most = (Fraction(bound) / Fraction(grid)) ** 2
            for length in (0.0, 0.5, 1 - 1e-12, 1.0, 1 + 1e-12, 1.00001, 3.0, 1e30, 1e200, 1e-300):
                vector = torch.randn(size + 2, generator=generator, dtype=torch.float64)
                vector *= length * bound / vector.norm()
                numbers = total.whole({"a": vector[:size], "b": vector[size:]})
                assert sum(each * each for each in numbers.tolist()) <= most
                if 0.4 < length < 1e31:
                    kept = min(1.0, length) * bound
                    assert numbers.double().mul(grid).norm().item() == pytest.approx(kept, rel=1e-3)
                total.add(numbers)
            edge = torch.full((size + 2,), 0.5001 * grid, dtype=torch.float64)
            edge[0] = math.sqrt(float(most) - 0.2502 * (size + 1)) * grid  # inside, and outside if all is rounded up
            numbers = total.whole({"a": edge[:size], "b": edge[size:]})
            assert sum(each * each for each in numbers.tolist()) <= most
            assert numbers[0] > 0.99 * bound / grid
            for wrong in (math.nan, math.inf, -math.inf, 1e308):
                numbers = total.whole({"a": torch.full((size,), wrong, dtype=torch.float64), "b": torch.ones(2)})
                assert numbers.abs().sum() == 0 or wrong == 1e308
            found = total.tensors()
            assert [value.shape for value in found.values()] == [value.shape for value in like.values()]
