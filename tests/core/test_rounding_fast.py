"""More tests of rounding: rounding fast."""

from __future__ import annotations

import signal

import pytest
import torch
from rounding_cases import CASES, KINDS, QUANTILE, Case, entropy, released, without
from torch import nn
from torch.utils.data import Dataset

from adadp import Ledger, Plan, PrivateGradients, fit
from adadp.app.losses import cross_entropy
from adadp.app.runs import RunFolder
from adadp.app.texts.methods import parse_method
from adadp.app.train import verify_run
from adadp.app.zoo.models import build_model
from adadp.clipping import Flat
from adadp.errors import InputError, Interrupted
from adadp.gradients import GradientEngine
from adadp.ledger import PlannedBudget

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("raw_records")]  # huge numbers are the point


def ratio(one, other, number=0):
    """How far two releases lie apart, over the bound, in floating point."""
    return ((one.totals[number] - other.totals[number]).norm() / one.bounds[number]).item()


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
    edge = case.at_overflow
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
    for size in (65, 257):
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
        return torch.cat([value.double().reshape(-1) for value in private._sum_of_batch(batch, 0)["noise"].values()])

    for rows in (301, 280):
        plan = Plan.of_noise(noise=1.0, steps=1, records=rows, batch_size=rows, clip_norm=1.0)
        with Ledger.create(tmp_path / f"{rows}.jsonl", budget=PlannedBudget(plan.event())) as ledger:
            private = PrivateGradients(model, (x, y), cross_entropy, plan, ledger, seed=0)
        whole, fewer = (private._to_rows(torch.arange(count), 0) for count in (301, 300))
        only = [[chunk.where(chunk == 300, -1) for chunk in chunks] for chunks in whole]
        moved = (summed(whole) - summed(fewer) - summed(only)).norm().item()
        assert moved < 2 * 2.0**-24 * 301 < (private._with_rounding(1.0) - 1) / 7
