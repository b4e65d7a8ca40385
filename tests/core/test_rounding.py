"""Records made to abuse rounding, by neighbour replay: what one of them moves the sum by in fast and exact arithmetic.

In exact arithmetic the sums are compared as whole numbers, and the ratio to the bound is at most 1 whoever is removed.
In fast arithmetic nobody else moves while rows are free, and at most one other record when there are none.
"""

from __future__ import annotations

import math
import signal
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from clip_texts import rule_of
from torch import nn
from torch.utils.data import Dataset

from adadp import Ledger, Plan, PrivateGradients, fit
from adadp.app.accounting import RdpFilter
from adadp.app.losses import cross_entropy
from adadp.app.runs import RunFolder
from adadp.app.texts.methods import parse_method
from adadp.app.train import verify_run
from adadp.app.zoo.models import build_model
from adadp.clipping import Flat
from adadp.errors import InputError, Interrupted
from adadp.exact import SCORE_UNITS, ExactSums, WholeSum
from adadp.gradients import GradientEngine, loop_gradients
from adadp.ledger import PlannedBudget
from adadp.noise import GaussianMechanism, grid_of

pytestmark = pytest.mark.usefixtures("raw_records")  # huge numbers are the point

QUANTILE = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"


def squares(model, x, y):
    return (model(x) - y).square().sum(1)


def entropy(model, x, y):
    return F.cross_entropy(model(x), y.argmax(1), reduction="none")


class Case:
    """A network with known weights, its loss, and how records abuse it."""

    def __init__(self, build, loss, shape, outputs):
        self.build, self.loss, self.shape, self.outputs = build, loss, shape, outputs

    def model(self):
        torch.manual_seed(0)
        return self.build()

    def records(self, kind, count):
        """``count`` records of a kind, the last of them an ordinary one of a large gradient."""
        generator = torch.Generator().manual_seed(count)
        x = torch.randn(count, *self.shape, generator=generator)
        y = torch.randn(count, self.outputs, generator=generator)
        if kind == "edge":
            x[:-1], y[:-1] = self.at_overflow(), 0.0
        elif kind == "cancel":
            x[:-1] = self.unseen(x[:-1]) * self.sizes(7, 8, count - 1)
        elif kind == "corner":
            x[:-1] = self.on_corner()
        elif kind == "denormal":
            x[:-1] = x[:-1].sign() * 1e-42
        elif kind == "equal":
            x[:-1], y[:-1] = x[0].clone(), y[0].clone()
        elif kind == "huge":
            x[:-1] *= self.sizes(0, 38, count - 1)
        x[-1] *= 50
        y[-1] = -self.model()(x[-1:])[0].detach()
        return x, y

    def sizes(self, least, most, count):
        """Powers of ten, one for each of ``count`` records."""
        return torch.logspace(least, most, max(1, count))[:count].view(-1, *[1] * len(self.shape))

    def at_overflow(self):
        """A record whose squared norm overflows in some rows of a batch and not in others, if there is one."""
        model = self.model()
        zeros = torch.zeros(64, self.outputs)
        engine = GradientEngine(model, self.loss, (torch.zeros(1, *self.shape), zeros[:1]))
        generator = torch.Generator().manual_seed(1)
        found = torch.randn(self.shape, generator=generator) * 1e9
        for _ in range(40):
            ray = torch.randn(self.shape, generator=generator)
            norm = engine.capture((1e9 * ray[None], zeros[:1])).square_norms([engine.names]).sqrt().item()
            if not 0 < norm < math.inf:
                continue
            for ulps in range(-4, 5):
                found = ray * (1e9 * (1.8446743e19 / norm) ** 0.5) * (1 + ulps * 6e-8)
                rows = (found.expand(64, *self.shape).contiguous(), zeros)
                finite = engine.capture(rows).square_norms([engine.names]).isfinite()
                if finite.any() and not finite.all():
                    return found
        return found

    def first(self):
        return next(each for each in self.model().modules() if isinstance(each, (nn.Linear, nn.Conv2d)))

    def unseen(self, x):
        """What the first layer does not see of ``x``: its outputs are rounding."""
        layer = self.first()
        if not isinstance(layer, nn.Linear):
            return x - x.flatten(1).mean(1)[:, None, None, None]
        basis = torch.linalg.qr(layer.weight.detach().double().T)[0]
        return (x.double() - x.double() @ basis @ basis.T).float()

    def on_corner(self):
        """A record that the first layer maps to zeros."""
        layer = self.first()
        if not isinstance(layer, nn.Linear):
            return torch.zeros(self.shape)
        found = torch.linalg.lstsq(layer.weight.detach().double(), -layer.bias.detach().double()[:, None]).solution
        return found[:, 0].float()


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )


CASES = {
    "linear": Case(lambda: nn.Linear(33, 8), squares, (33,), 8),
    "softmax": Case(lambda: nn.Linear(33, 8), entropy, (33,), 8),
    "relu": Case(lambda: nn.Sequential(nn.Linear(33, 16), nn.ReLU(), nn.Linear(16, 5)), entropy, (33,), 5),
    "convolution": Case(convolutional, entropy, (1, 12, 12), 5),
}
KINDS = ["edge", "cancel", "corner", "denormal", "equal", "huge"]


class Kept(GaussianMechanism):
    """Keeps what it releases, before the noise."""

    def __init__(self):
        self.totals, self.bounds = [], []

    def release(self, total, **given):
        self.totals.append(torch.cat([value.detach().double().reshape(-1) for value in total.values()]))
        self.bounds.append(given["l2_bound"])
        return super().release(total, **given)


def released(folder, case, data, arithmetic, *, rows, clip_norm="flat:1", method="dpsgd", steps=1, model=None, seed=0):
    """What a run of full batches releases before noise; ``rows`` is the public number of records."""
    plan = Plan.of_noise(noise=1.0, steps=steps, records=rows, batch_size=rows, clip_norm=rule_of(clip_norm))
    mechanism = Kept()
    with Ledger.create(folder / f"{len(list(folder.iterdir()))}.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        private = PrivateGradients(
            case.model() if model is None else model,
            data,
            case.loss,
            plan,
            ledger,
            method=parse_method(method),
            seed=seed,
            mechanism=mechanism,
            arithmetic=arithmetic,
        )
        for _ in range(steps):
            private.release()
    return mechanism


def ratio(one, other, number=0):
    """How far two releases lie apart, over the bound, in floating point."""
    return ((one.totals[number] - other.totals[number]).norm() / one.bounds[number]).item()


def exact_ratio(one, other, number=0):
    """The square of the same, in whole numbers: every total is a multiple of the grid, or the test fails."""
    bound = one.bounds[number]
    grid = grid_of(bound, len(one.totals[number]))
    numbers = [each.totals[number] / grid for each in (one, other)]
    assert all(torch.equal(each, each.round()) for each in numbers)
    apart = (numbers[0].long() - numbers[1].long()).tolist()
    return Fraction(sum(each * each for each in apart)) / (Fraction(bound) / Fraction(grid)) ** 2


def without(data, record):
    keep = torch.arange(len(data[0])) != record % len(data[0])
    return tuple(each[keep] for each in data)


# exact arithmetic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_exact_whoever_is_removed_moves_the_sum_by_at_most_the_bound(tmp_path, name, kind):
    case = CASES[name]
    for size in (2, 64, 65):  # the data has one record more: a run needs two
        data = case.records(kind, size + 1)
        whole = released(tmp_path, case, data, "exact", rows=size)
        for record in (0, size // 2, -1):
            fewer = released(tmp_path, case, without(data, record), "exact", rows=size)
            assert exact_ratio(whole, fewer) <= 1
    assert exact_ratio(whole, fewer) > Fraction(1, 4)  # the last one is ordinary and does take part


@pytest.mark.parametrize("size", [256, 257, 1025])
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


class Rows(Dataset):
    def __init__(self, data):
        self._data = data

    def __len__(self):
        return len(self._data[0])

    def __getitem__(self, index):
        return tuple(each[index] for each in self._data)


@pytest.mark.parametrize("arithmetic", ["fast", "exact"])
def test_a_data_set_of_single_records_is_the_same_run(tmp_path, arithmetic):
    case = CASES["relu"]
    data = case.records("plain", 30)
    one, other = (released(tmp_path, case, each, arithmetic, rows=25) for each in (data, Rows(data)))
    assert torch.equal(one.totals[0], other.totals[0])


def settings_of(**changes):
    given = {
        "noise_multiplier": 1.0, "delta": 1e-4, "steps": 6, "batch_size": 20, "loss": entropy, "lr": 0.1, "seed": 5,
        "arithmetic": "exact", "checkpoint_every": 2,
    }  # fmt: skip
    return given | changes


def test_exact_runs_resume_bit_for_bit_and_verify(tmp_path):
    case = CASES["relu"]
    data = case.records("plain", 60)
    whole = fit(case.model(), data, **settings_of(), out=tmp_path / "whole")

    def stop(status):
        if status.step == 3:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        fit(case.model(), data, **settings_of(), out=tmp_path / "cut", watch=stop)
    resumed = fit(case.model(), data, **settings_of(), out=tmp_path / "cut", resume=True)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    certificate = RunFolder.open(tmp_path / "cut").certificate()
    assert certificate["arithmetic"] == "exact"
    assert "rounding included" in certificate["caveats"][0]
    assert not any("Code of the model" in each for each in certificate["caveats"])  # each is computed alone
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "cut")))
    fast = fit(case.model(), data, **settings_of(arithmetic="fast", checkpoint_every=None))
    assert fast.certificate["arithmetic"] == "fast"
    assert "three times" in fast.certificate["caveats"][0]
    assert whole.certificate["if_unseeded"]["epsilon"] == fast.certificate["if_unseeded"]["epsilon"] > 0


def test_exact_refuses_private_looks():
    with pytest.raises(InputError, match="exact"):
        fit(
            CASES["relu"].model(), CASES["relu"].records("plain", 60), epsilon=2.0, delta=1e-3, batch_size=20, epochs=2,
            loss=entropy, noise_schedule="validation:s0=10,k=0.7,look=20", validation=20, arithmetic="exact",
        )  # fmt: skip


# fast arithmetic -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [65, 257, 1025])
def test_fast_overflow_is_not_decided_by_the_place(tmp_path, size):
    """Before weights faded, one record more moved the sum by 16, 64 and 256 times the bound: a quarter of the records
    stood where their squared norm overflowed, and without the first they stood elsewhere.
    """
    case = CASES["linear"]
    edge = case.at_overflow()
    for shift in range(4):
        x = torch.zeros(size, 33)
        x[1 + shift :: 4] = edge
        data = (x, torch.zeros(size, 8))
        whole, fewer = (released(tmp_path, case, each, "fast", rows=size) for each in (data, without(data, 0)))
        assert ratio(whole, fewer) <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_fast_nobody_else_moves_while_rows_are_free(tmp_path, name, kind):
    """However ill-conditioned the others are: they are computed in the same rows of batches of the same size."""
    case = CASES[name]
    for size in (64, 65, 257):
        data = case.records(kind, size)
        whole, fewer = (released(tmp_path, case, each, "fast", rows=size) for each in (data, without(data, -1)))
        assert ratio(whole, fewer) <= 1


@pytest.mark.parametrize("kind", ["cancel", "corner"])
@pytest.mark.parametrize("name", CASES)
def test_fast_one_other_moves_at_most_when_there_are_no_free_rows(tmp_path, name, kind):
    """Not covered by the noise, and bounded: the record itself, and one that may come out differently elsewhere."""
    case = CASES[name]
    for size in (65, 120):
        data = case.records(kind, size)
        for seed in range(3):
            whole, fewer = (
                released(tmp_path, case, each, "fast", rows=40, seed=seed) for each in (data, without(data, -1))
            )
            assert ratio(whole, fewer) <= 3


def test_fast_dropout_of_the_others_does_not_move(tmp_path):
    case = Case(
        lambda: nn.Sequential(nn.Linear(33, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 5)), entropy, (33,), 5
    )
    for size in (33, 65):
        data = case.records("equal", size)
        whole, fewer = (released(tmp_path, case, each, "fast", rows=size) for each in (data, without(data, -1)))
        assert 0.1 < ratio(whole, fewer) <= 1


@pytest.mark.parametrize("clip_norm", ["flat:1", "per-layer:0.3", "automatic:0.5,gamma=0.01", QUANTILE])
@pytest.mark.parametrize("name", CASES)
def test_padding_has_no_part_in_a_sum_or_a_count(tmp_path, name, clip_norm):
    """Batches that leave rows free, and batches that need another batch: the same sum as of the records one by one."""
    case = CASES[name]
    for count, rows in ((30, 30), (30, 41), (30, 7), (2, 30)):
        data = case.records("plain", count)
        fast, exact = (
            released(tmp_path, case, data, each, rows=rows, clip_norm=clip_norm) for each in ("fast", "exact")
        )
        for number, bound in enumerate(exact.bounds):
            assert (fast.totals[number] - exact.totals[number]).norm() < 2**-13 * count * bound


@pytest.mark.parametrize("method", ["adadp-published:threshold=0", "dpopt:source=raw,start=1", "adan"])
def test_padding_has_no_part_in_what_published_methods_do(tmp_path, method):
    """Their clamped sums and sums of squares have no weights: with free rows they are what they are without."""
    case, found = CASES["relu"], []
    data = case.records("plain", 30)
    for rows in (30, 41):
        plan = Plan.of_noise(noise=1e-9, steps=3, records=rows, batch_size=rows, clip_norm=1.0)
        with Ledger.create(tmp_path / f"{rows}.jsonl", budget=PlannedBudget(plan.event())) as ledger:
            private = PrivateGradients(
                case.model(), data, case.loss, plan, ledger, method=parse_method(method), seed=0, allow_nonprivate=True
            )
            sums = [{name: value * rows for name, value in private.release().items()} for _ in range(1)]
            kept = {name: value.clone() for name, value in private.query.tensors().items()}
        found.append((sums[0], {name: value * rows for name, value in kept.items() if name != "steps"}))
    for one, other in zip(*found, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5)


def test_a_batch_is_in_batches_of_public_sizes_with_every_record_in_a_random_row(tmp_path, monkeypatch):
    case = CASES["linear"]
    data = (torch.arange(1.0, 401)[:, None].expand(400, 33).contiguous(), torch.zeros(400, 8))
    plan = Plan.of_noise(noise=1.0, steps=60, records=400, batch_size=40, clip_norm=1.0)
    seen, captures = [], GradientEngine.captures

    def noting(self, rows, padding, **more):
        seen.append((rows[0][:, 0].clone(), padding.clone()))
        return captures(self, rows, padding, **more)

    with Ledger.create(tmp_path / "l.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        private = PrivateGradients(case.model(), data, case.loss, plan, ledger, seed=1, chunk_size=30)
        monkeypatch.setattr(GradientEngine, "captures", noting)
        batches = []
        for step in range(60):
            batches.append(private.batches.batch(step))
            private.release()
    wanted = [[23, 23, *[14] * -(-max(0, len(batch) - 46) // 14)] for batch in batches]  # 40 + 6 rows in two batches
    assert [len(rows) for rows, _ in seen] == [rows for batch in wanted for rows in batch]
    assert len({len(batch) for batch in batches}) > 5
    assert 3 < sum(map(len, wanted)) - 2 * len(batches) < 20
    records = torch.cat([rows[~padding] for rows, padding in seen])
    assert torch.equal(records.sort().values, torch.cat(batches).add(1).float().sort().values)
    made_up = torch.cat([rows[padding] for rows, padding in seen])
    assert len(made_up)
    assert not set(made_up.tolist()) & set(data[0][:, 0].tolist())
    assert not torch.equal(seen[0][0][~seen[0][1]].sort().values, seen[0][0][~seen[0][1]])


def papers_networks():
    yield "mlp-60", build_model("mlp", input_shape=(60,), classes=10, seed=0), (60,)
    yield "mlp-784", build_model("mlp", input_shape=(784,), classes=10, seed=0), (784,)
    yield "mnist-cnn", build_model("cnn", input_shape=(1, 28, 28), classes=10, seed=0), (1, 28, 28)
    yield "cancer", build_model("cancer-mlp", input_shape=(9,), classes=10, seed=0), (9,)


def named(each):
    return each if isinstance(each, str) else ""


@pytest.mark.parametrize(("name", "model", "shape"), papers_networks(), ids=named)
@pytest.mark.parametrize("rows", [7, 64, 105])
def test_a_row_is_computed_from_itself_bit_for_bit(name, model, shape, rows):
    """What fast arithmetic assumes of the kernels, on the papers' networks: in the same row of a batch of the same size
    a record has the same norm and the same gradient to the last bit, whatever is in the other rows.
    """
    generator = torch.Generator().manual_seed(len(name))
    one, other = (
        (torch.randn(rows, *shape, generator=generator), torch.randint(10, (rows,), generator=generator))
        for _ in range(2)
    )
    engine = GradientEngine(model, cross_entropy, (one[0][:1], one[1][:1]))
    for row in (0, 1, rows // 2, rows - 1):
        mixed = tuple(value.clone() for value in other)
        for value, source in zip(mixed, one, strict=True):
            value[row] = source[row]
        alone = torch.zeros(rows, 1)
        alone[row] = 1
        found = []
        for batch in (one, mixed):
            capture = engine.capture(batch)
            norm = capture.square_norms([engine.names])[row]
            found.append([norm, *capture.weighted_sums(alone, [engine.names]).values()])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("positions", [1, 3])
def test_a_huge_side_of_a_product_takes_its_record_out_smoothly(positions):
    """|a|^2 overflows where the gradient |a||d| is far from it: its last bit must not decide whether it counts."""
    model = nn.Linear(4, 4, bias=False)

    def loss(model, x, d):
        return (model(x).sum(2) * d).sum(1)

    shapes = (torch.ones(1, positions, 4), torch.ones(1, positions))
    engine, rule = GradientEngine(model, loss, shapes), Flat(1.0)
    huge = torch.logspace(6, 19.5, 3000, dtype=torch.float64)
    small = torch.full((3000, positions), 1e-9)
    for sides in ((huge, small), (small[:, 0].double(), huge[:, None].expand(-1, positions).float())):
        x, d = sides[0].float()[:, None, None].expand(-1, positions, 4).contiguous(), sides[1].float().contiguous()
        capture = engine.capture((x, d))
        norms = 4 * positions * x[:, 0, 0].double() * d[:, 0].double()
        sizes = rule.weights(capture.square_norms([engine.names]), {})[:, 0].double() * norms
        assert sizes.max() == pytest.approx(1, rel=1e-2)
        assert sizes[-1] == 0
        assert (sizes[1:] - sizes[:-1]).abs().max() < 0.05


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize(("name", "model", "shape"), papers_networks(), ids=named)
def test_fast_what_rounding_does_to_the_others_is_far_inside_its_allowance(tmp_path, name, model, shape, equal):
    """The sum of 301 records less that of 300 less what the last one contributes in its row; 16 * 2**-24 per record is
    allowed for. With free rows, and with none, where another record moves.
    """
    generator = torch.Generator().manual_seed(len(name))
    x, y = torch.randn(301, *shape, generator=generator), torch.randint(10, (301,), generator=generator)
    if equal:
        x, y = x[:1].expand(301, *shape).contiguous(), y[:1].expand(301).contiguous()

    def summed(batch):
        return torch.cat([value.double().reshape(-1) for value in private._sum_of_batch(batch)["noise"].values()])

    for rows in (301, 280):
        plan = Plan.of_noise(noise=1.0, steps=1, records=rows, batch_size=rows, clip_norm=1.0)
        with Ledger.create(tmp_path / f"{rows}.jsonl", budget=PlannedBudget(plan.event())) as ledger:
            private = PrivateGradients(model, (x, y), cross_entropy, plan, ledger, seed=0)
        whole, fewer = (private._to_rows(torch.arange(count), 0) for count in (301, 300))
        only = [chunk.where(chunk == 300, -1) for chunk in whole]
        moved = (summed(whole) - summed(fewer) - summed(only)).norm().item()
        assert moved < 2 * 2.0**-24 * 301 < (private._with_rounding(1.0) - 1) / 7
