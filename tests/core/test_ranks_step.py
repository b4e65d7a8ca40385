"""Private steps in several processes against the same in one, and what happens where something goes wrong."""

import errno
import os

import pytest
import ranks_cases as cases
import torch
from processes import Group
from ranks_cases import Case
from torch import nn

import adadp.noise.gaussian as gaussian
from adadp.app.audit.replay import neighbour_replay
from adadp.app.clipping.fixed import PerLayer
from adadp.app.texts.clip_rules import parse_clip_rule
from adadp.app.texts.schedules import parse_schedule
from adadp.ledger import Ledger, LedgerCopy
from adadp.randomness import RandomSource, SecureSource, SeededSource
from adadp.ranks import joined
from adadp.sampling import Batches, Timetable
from adadp.sampling.samplers import PoissonSampler
from adadp.step import PrivateGradients

pytestmark = pytest.mark.slow

QUANTILE = parse_clip_rule("quantile:initial=1,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100,follow=0")
SAME = {
    "poisson": Case(),
    "exact": Case(arithmetic="exact"),
    "exact-fixed": Case(arithmetic="exact", settings=(("sampling", "fixed"),)),
    "exact-reshuffled": Case(arithmetic="exact", steps=7, settings=(("sampling", "reshuffle"),)),
    "fixed": Case(settings=(("sampling", "fixed"),)),
    "reshuffled": Case(steps=7, settings=(("sampling", "reshuffle"),)),
    "per-layer": Case(clip=PerLayer((0.5, 0.4))),
    "automatic": Case(clip=parse_clip_rule("automatic:1")),
    "quantile": Case(clip=QUANTILE, steps=6),
    "exact-quantile": Case(clip=QUANTILE, steps=3, arithmetic="exact"),
    "schedules": Case(steps=9, settings=(("batch_size_schedule", parse_schedule("step:s0=30,k=0.5,period=1")),)),
    "three-records": Case(records=3, batch_size=1, steps=6),
    "exact-three-records": Case(records=3, batch_size=1, steps=6, arithmetic="exact"),
    "two-records": Case(records=2, batch_size=2, steps=3),
    "without-noise": Case(noise=0.0),
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", SAME)
def test_a_seeded_run_is_that_of_one_process(name, size, request, tmp_path):
    if size == 4 and name not in ("poisson", "exact", "three-records", "exact-three-records", "quantile"):
        pytest.skip("two processes have shown it")
    case = SAME[name]
    one = cases.alone(case, tmp_path / "one")
    found = request.getfixturevalue({2: "two", 4: "four"}[size]).run(cases.trained, case, str(tmp_path))
    for each in found:
        if name.startswith("exact"):
            assert each.parameters == one.parameters
            assert each.gradients == one.gradients
            assert each.clip_state == one.clip_state
        else:
            torch.testing.assert_close(torch.tensor(each.gradients), torch.tensor(one.gradients), rtol=1e-4, atol=1e-6)
            assert each.clip_state == pytest.approx(one.clip_state, rel=1e-4)
        assert each.parameters == found[0].parameters
        assert (each.charges, each.head) == (one.charges, found[0].head)
    assert cases.charged(tmp_path) == one.charges


def release_large(rank: int, folder: str, block: int) -> list[float]:
    """A release whose coordinates are more than several blocks of the noise, as sums of numbers of this process."""
    gaussian._BLOCK = block
    ranks = joined()
    total = {
        "a": torch.arange(37.0).double() + rank,
        "b": torch.full((5, 4), 2.0 * rank, dtype=torch.float64),
        "c": torch.tensor(1.0 + rank).double(),
        "empty": torch.empty(0, 3).double(),
        "single": torch.arange(3.0),
    }
    mechanism = gaussian.GaussianMechanism(overwrites=True)
    given = {"l2_bound": 1.0, "noise_multiplier": 2.0, "source": SeededSource(3), "step": 1, "ranks": ranks}
    released = mechanism.release(total, **given)
    assert [str(each.dtype) for each in released.values()] == ["torch.float64"] * 4 + ["torch.float32"]
    assert [tuple(each.shape) for each in released.values()] == [(37,), (5, 4), (), (0, 3), (3,)]
    return cases.flat(released.values()).tolist()


@pytest.mark.parametrize("block", [8, 16, 1 << 20])
@pytest.mark.parametrize("size", [2, 4])
def test_each_coordinate_has_the_noise_it_has_in_one_process(size, block, request, tmp_path, monkeypatch):
    group = request.getfixturevalue({2: "two", 4: "four"}[size])
    found = group.run(release_large, str(tmp_path), block)
    monkeypatch.setattr(gaussian, "_BLOCK", block)
    ranks = sum(range(size))
    total = {
        "a": torch.arange(37.0).double() * size + ranks,
        "b": torch.full((5, 4), 2.0 * ranks, dtype=torch.float64),
        "c": torch.tensor(1.0 * size + ranks).double(),
        "single": torch.arange(3.0) * size,
    }
    one = gaussian.GaussianMechanism().release(
        total, l2_bound=1.0, noise_multiplier=2.0, source=SeededSource(3), step=1
    )
    assert all(each == cases.flat(one.values()).tolist() for each in found)


def beyond_the_range(rank: int, folder: str) -> list[float]:
    """Sums that are in the range by themselves, and not exact together."""
    total = {"a": torch.full((8,), 0.9 * 2.0**52 * gaussian.grid_of(1.0, 8), dtype=torch.float64)}
    given = {"l2_bound": 1.0, "noise_multiplier": 2.0, "source": SeededSource(3), "step": 1, "ranks": joined()}
    with joined().guarded():
        return gaussian.GaussianMechanism().release(total, **given)["a"].tolist()


def test_sums_beyond_the_range_of_all_are_refused(four, tmp_path):
    for kind, text in four.failures(beyond_the_range, str(tmp_path)):
        assert (kind, "far beyond its bound" in text) == ("InputError", True)


def secure_noise(rank: int, folder: str, coordinates: int, block: int) -> list[float]:
    gaussian._BLOCK = block
    total = {"a": torch.zeros(coordinates, dtype=torch.float64)}
    released = gaussian.GaussianMechanism().release(
        total, l2_bound=1.0, noise_multiplier=3.0, source=SecureSource(), step=0, ranks=joined()
    )
    return released["a"].tolist()


def check_noise(found: list[list[float]], size: int) -> None:
    """The standard deviation is 3 in all, and the shares of the processes have nothing in common. By chance one of
    these fails in 10**8 runs.
    """
    noise = torch.tensor(found[0], dtype=torch.float64)
    assert all(each == found[0] for each in found), "processes have released different numbers"
    shares = torch.stack(noise.chunk(size))
    tolerance = 6 * (2 / shares.shape[1]) ** 0.5
    assert float((shares.square().mean(1) / 9 - 1).abs().max()) < tolerance, "the variance is wrong"
    common = (shares @ shares.T / shares.shape[1] / 9).fill_diagonal_(0)
    assert float(common.abs().max()) < 6 / shares.shape[1] ** 0.5, "shares have the same noise"


@pytest.mark.statistical
@pytest.mark.parametrize("block", [4096, 1 << 20])
def test_the_noise_of_all_together_is_that_of_one(four, tmp_path, block):
    check_noise(four.run(secure_noise, str(tmp_path), 40_000, block), 4)


def secure_batches(rank: int, probability: float, steps: int) -> list[list[int]]:
    run = Batches(Timetable.of(PoissonSampler(400, probability)), SecureSource(), joined())
    return [run.batch(step).tolist() for step in range(steps)]


def check_coins(found: list[list[list[int]]], records: int, probability: float) -> None:
    size, steps = len(found), len(found[0])
    coins = torch.zeros(size, steps, records // size)
    for rank, batches in enumerate(found):
        first = rank * records // size
        for step, batch in enumerate(batches):
            assert all(first <= each < first + records // size for each in batch), "not of its own records"
            coins[rank, step, [each - first for each in batch]] = 1
    spread = 6 * (probability * (1 - probability) / coins[0].numel()) ** 0.5
    assert float((coins.mean((1, 2)) - probability).abs().max()) < spread, "coins with another probability"
    centred = coins.flatten(1) - probability
    common = (centred @ centred.T / centred.shape[1] / (probability * (1 - probability))).fill_diagonal_(0)
    assert float(common.abs().max()) < 6 / centred.shape[1] ** 0.5, "processes toss the same coins"


@pytest.mark.statistical
@pytest.mark.parametrize("probability", [0.3, 0.02])
def test_coins_of_processes_are_independent(four, probability):
    check_coins(four.run(secure_batches, probability, 300), 400, probability)


def one_draw(rank: int, sampling: str, folder: str) -> list[list[int]]:
    case = Case(steps=5, settings=(("sampling", sampling),), seed=None)
    run = Batches(case.plan().timetable, SecureSource(), joined())
    return [run.batch(step).tolist() for step in range(5)]


@pytest.mark.parametrize("sampling", ["fixed", "reshuffle"])
def test_batches_of_a_size_are_drawn_once_for_all(two, sampling, tmp_path):
    first, second = two.run(one_draw, sampling, str(tmp_path))
    for one, other in zip(first, second, strict=True):
        assert len(one) + len(other) == 30
        assert all(each < 75 for each in one)
        assert all(each >= 75 for each in other)
    if sampling == "reshuffle":
        assert sorted(each for batch in first + second for each in batch) == list(range(150))


def replayed(rank: int, folder: str, extra: float, at: int) -> list[float]:
    case = Case(steps=3, batch_size=150, clip=0.05)  # all records are in every batch

    def runner(which: int):
        def go(steps, mechanism):
            values, labels = cases.records(150)
            if which:
                values = torch.cat([values[:at], torch.full((1, 6), extra), values[at:]])
                labels = torch.cat([labels[:at], torch.ones(1, dtype=torch.long), labels[at:]])
            place = f"{folder}/{which}"
            if rank == 0:
                os.makedirs(place)
            with cases.private(rank, case, place, data=(values, labels), mechanism=mechanism) as run:
                optimizer = torch.optim.SGD(run.model.parameters(), lr=0.5)
                for _ in range(steps):
                    run.release()
                    optimizer.step()

        return go

    return [each.share for each in neighbour_replay(runner(0), runner(1), case.steps)]


@pytest.mark.parametrize(("extra", "at"), [(-3.0, 150), (-3.0, 0), (-3.0, 75), (-3.0, 76)])
def test_a_record_moves_the_sum_of_all_processes_by_the_bound_at_most(two, tmp_path, extra, at):
    """Where it stands decides in which process it is, and which others are in another one than without it."""
    first, second = two.run(replayed, str(tmp_path), extra, at)
    assert first == second
    assert max(first) <= 1
    assert min(first) > 0.9


def unlike(rank: int, folder: str, what: str) -> None:
    case, given = Case(), {}
    values, labels = cases.records(150)
    if rank == 1:
        if what == "plan":
            case = cases.with_(case, steps=5)
        elif what == "seed":
            case = cases.with_(case, seed=8)
        elif what == "length":
            given["data"] = (values[:140], labels[:140])
        elif what == "order":
            order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
            given["data"] = (values[order], labels[order])
        elif what == "two places":
            order = torch.arange(150)
            order[[3, 8]] = order[[8, 3]]
            given["data"] = (values[order], labels[order])
    if rank == 1 and what == "version":
        import adadp.joining as joining
        from adadp.ranks import code_digest

        joining.code_digest = lambda: "another"
        try:
            cases.private(rank, case, folder)
        finally:
            joining.code_digest = code_digest
    if what == "model":
        PrivateGradients(nn.Linear(6, 2 + rank), (values, labels), cases.cross_entropy, case.plan(), f"{folder}/l")
    cases.private(rank, case, folder, **given)


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("plan", "configuration"),
        ("seed", "configuration"),
        ("length", "number of records"),
        ("order", "records in the same order"),
        ("two places", "records in the same order"),
        ("version", "version of AdaDP or of torch"),
        ("model", "model"),
    ],
)
def test_processes_that_differ_are_refused_before_anything_is_charged(two, tmp_path, what, named):
    for kind, text in two.failures(unlike, str(tmp_path), what):
        assert kind == "InputError"
        assert f"Process 1 of the run has not the same {named} as process 0." in text
        assert "150" not in text
        assert "140" not in text
    assert not list(tmp_path.iterdir())


class Copied(RandomSource):
    """A generator that every process has a copy of, and that says it cannot be repeated."""

    reproducible = False

    def __init__(self):
        self.words_drawn = 0

    def describe(self):
        return "copied"

    def _words(self, count, purpose, step):
        self.words_drawn += 1
        return SeededSource(1)._words(count, f"{self.words_drawn}", 0)


def copied(rank: int, folder: str) -> None:
    cases.private(rank, Case(), folder, seed=Copied())


def test_processes_with_the_same_random_numbers_are_refused(two, tmp_path):
    for kind, text in two.failures(copied, str(tmp_path)):
        assert kind == "InputError"
        assert "Several processes have the same random numbers." in text
    assert not list(tmp_path.iterdir())


def purposes(rank: int, folder: str) -> list[str]:
    with cases.private(rank, Case(), folder) as run:
        return [run._of(what, group) for what in ("places", "random layers") for group in range(3)]


def test_rows_and_masks_of_processes_come_from_different_numbers(four, tmp_path):
    found = four.run(purposes, str(tmp_path))
    assert len({each for names in found for each in names}) == 4 * 6
    assert found[0] == ["places", "places 1", "places 2", "random layers", "random layers 1", "random layers 2"]


def fails_at(rank: int, folder: str, what: str) -> tuple[int, bool]:
    """What is raised in a step; the ledger and the gradients are looked at afterwards."""
    write = Ledger._write
    with cases.private(rank, Case(), folder) as run:
        run.release()
        for each in run.model.parameters():
            each.grad = None
        try:
            if what == "disk" and rank == 0:

                def full(self, data, **_):
                    os_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    from adadp.errors import LedgerError

                    raise LedgerError("The ledger cannot be written.") from os_error

                Ledger._write = full
            if what == "model" and rank == 1:
                run._sum_of_batch = lambda *_, **__: 1 / 0
            if what == "drift" and rank == 1:
                with torch.no_grad():
                    next(run.model.parameters()).add_(1e-6)
                run.step = 100
            if what == "drift":
                run.step = 100
            run.release()
        finally:
            Ledger._write = write
            assert all(each.grad is None for each in run.model.parameters())
            assert sum(run.ledger.charges.values()) == 1
            assert isinstance(run.ledger, LedgerCopy if rank else Ledger)


@pytest.mark.parametrize(
    ("what", "kinds", "text"),
    [
        ("disk", ["LedgerError"] * 2, "cannot be written"),
        ("model", ["InputError"] * 2, "The model fails on a batch, for which nothing was charged: ZeroDivisionError"),
        ("drift", ["InputError"] * 2, "Process 1 of the run has not the same parameters after 100 steps"),
    ],
)
def test_what_fails_in_one_process_is_released_in_none(two, tmp_path, what, kinds, text):
    found = two.failures(fails_at, str(tmp_path), what)
    assert [each[0] for each in found] == kinds
    assert all(text in each[1] for each in found)
    assert cases.charged(tmp_path) == 1


def beyond(rank: int, folder: str) -> None:
    with cases.private(rank, Case(steps=1), folder) as run:
        run.release()
        run.release()


def test_a_spent_budget_stops_all(two, tmp_path):
    assert [each[0] for each in two.failures(beyond, str(tmp_path))] == ["BudgetExceeded"] * 2
    assert cases.charged(tmp_path) == 1


def opened_before(rank: int, folder: str) -> None:
    ledger = Ledger.create(f"{folder}/{rank}.jsonl")
    PrivateGradients(cases.network(0), cases.records(150), cases.cross_entropy, Case().plan(), ledger)


def wrapped(rank: int, folder: str) -> None:
    model = nn.parallel.DistributedDataParallel(cases.network(0))
    PrivateGradients(model, cases.records(150), cases.cross_entropy, Case().plan(), f"{folder}/l.jsonl")


def test_what_does_not_go_with_several_processes_is_refused(two, tmp_path):
    for kind, text in two.failures(opened_before, str(tmp_path)):
        assert (kind, "Pass its path" in text) == ("InputError", True)
    for kind, text in two.failures(wrapped, str(tmp_path)):
        assert (kind, "Pass the plain module" in text) == ("InputError", True)


def killed_at(rank: int, folder: str, who: int, where: str) -> list[object]:
    """Process ``who`` is killed in its second step; what the other has then."""
    from adadp.ranks import Ranks
    from adadp.release import Crossing

    run = cases.private(rank, Case(), folder)
    run.release()
    before = [each.grad.clone() for each in run.model.parameters()]
    places = {
        "before the sums": (PrivateGradients, "_sums", False),
        "before the charge": (Crossing, "pay", False),
        "after the charge": (Ledger, "charge", True),
        "before adding up": (Ranks, "scattered_sum", False),
        "after adding up": (Ranks, "scattered_sum", True),
        "before gathering": (Ranks, "gathered", False),
        "after gathering": (Ranks, "gathered", True),
    }
    if rank == who:
        owner, name, after = places[where]
        was = getattr(owner, name)

        def dies(*args, **given):
            if after:
                was(*args, **given)
            os._exit(9)

        setattr(owner, name, dies)
    try:
        for _ in range(2):
            run.release()
        return ["went on"]
    except Exception as error:
        same = all(torch.equal(a, b.grad) for a, b in zip(before, run.model.parameters(), strict=True))
        return [type(error).__name__, same, run.step]


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize(
    ("where", "charges"),
    [
        ("before the sums", 1),
        ("before the charge", 1),
        ("after the charge", 2),
        ("before adding up", 2),
        ("after adding up", 2),
        ("before gathering", 2),
        ("after gathering", 2),
    ],
)
def test_a_process_killed_anywhere_in_a_step_stops_the_others(tmp_path, who, where, charges):
    group = Group(2, timeout=10)
    group.start(killed_at, str(tmp_path), who, where)
    found = group.answers(1)[1 - who]
    group.close()
    assert found[0] == "RankError"
    if where != "after gathering":  # else this one may have the release, which is charged, and no further one
        assert found[1:] == [True, 1]
    assert found[2] <= 2
    assert cases.charged(tmp_path) == charges
