"""The private ADADP in real runs: what it releases, that its scales see releases only, and neighbour replay."""

from __future__ import annotations

import copy
import os
import signal

import pytest
import torch
from clip_texts import rule_of
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.app.audit import neighbour_replay
from adadp.app.losses import cross_entropy
from adadp.app.methods.adadp import AdaDp
from adadp.app.runs import RunFolder
from adadp.app.train import fit, verify_run
from adadp.app.zoo import load
from adadp.clipping.base import SLACK
from adadp.errors import BudgetExceeded, Interrupted
from adadp.gradients import Capture, loop_gradients
from adadp.ledger import PlannedBudget
from adadp.methods import DpSgd
from adadp.noise import GaussianMechanism
from adadp.randomness import SeededSource

pytestmark = pytest.mark.filterwarnings("ignore:.*no closed form")

METHOD = AdaDp(power=0.5, start=3)
SEED = 11
QUANTILE = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"


class Generic(nn.Module):
    """A recurrent layer and a function of a parameter that no rule knows: both go the generic way."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(1, 3, batch_first=True)
        self.slope = nn.Parameter(torch.tensor(0.3))
        self.out = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x.unsqueeze(2))[0][:, -1]
        return self.out(torch.cat([torch.tanh(self.slope * x), h], 1))


class Tied(nn.Module):
    """One matrix looked up as a table of words and multiplied as the last layer, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.twice = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.twice(torch.tanh(self.twice(self.table(x).mean(1)))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 2))


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    model[2].requires_grad_(False)
    model[4].bias.requires_grad_(False)
    return model


def cnn() -> nn.Module:
    conv, norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
    return nn.Sequential(conv, norm, nn.Tanh(), nn.Conv2d(4, 3, 3, stride=2), nn.Flatten(), nn.Linear(12, 3))


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(15, 2))


def numbers(records: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Records of the cancer data. The last number is 0 for all of them but the last record, which has only that."""
    x, y = (each[:records].clone() for each in load("cancer").train)
    x[:, 8], x[-1] = 0, 0
    x[-1, 8] = 20
    return x, y


def pictures(records: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The second channel is black in all pictures but the last, the first channel in that one."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(records, 2, 6, 6, generator=generator)
    x[:-1, 1], x[-1, 0] = 0, 0
    return x, torch.randint(0, 3, (records,), generator=generator)


def sentences(records: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Only the last record has the word 6, and no other."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randint(0, 6, (records, 3), generator=generator)
    x[-1] = 6
    return x, torch.randint(0, 2, (records,), generator=generator)


MODELS = {
    "mlp": (mlp, numbers),
    "cnn": (cnn, pictures),
    "words": (words, sentences),
    "generic": (Generic, numbers),
    "tied": (Tied, sentences),
    "frozen": (frozen, numbers),
}


def made(name: str, records: int = 40):
    """A model, always the same, and its data."""
    build, data = MODELS[name]
    torch.manual_seed(3)
    return build(), data(records)


def started(
    folder,
    model,
    data,
    method=METHOD,
    *,
    rule="flat:0.5",
    batch_size=None,
    planned=None,
    noise_multiplier=1.0,
    steps=50,
    **more,
):
    records = len(data[0]) if planned is None else planned
    plan = Plan.of_noise(
        noise=noise_multiplier, steps=steps, records=records, batch_size=batch_size or records, clip_norm=rule_of(rule)
    )
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    ledger = Ledger.create(path, budget=PlannedBudget(plan.event()))
    return PrivateGradients(model, data, cross_entropy, plan, ledger, method=method, seed=SEED, **more)


def steps_of(private: PrivateGradients, count: int, lr: float = 0.1) -> list[torch.Tensor]:
    """What ``count`` steps of plain descent released."""
    optimizer = torch.optim.SGD([each for each in private.model.parameters() if each.requires_grad], lr=lr)
    released = []
    for _ in range(count):
        released.append(flat(private.release()))
        optimizer.step()
    return released


def flat(tensors) -> torch.Tensor:
    return torch.cat([each.detach().double().reshape(-1) for each in tensors.values()])


def inverse_of(private: PrivateGradients) -> dict[str, torch.Tensor]:
    """1 / k by parameter, as a checkpoint would keep it."""
    tensors = private.query.tensors()
    return {name.removeprefix("inverse/"): each for name, each in tensors.items() if name.startswith("inverse/")}


# What is released -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_release_is_the_clipped_scaled_sum_plus_noise_scaled_back(tmp_path, name, double):
    """Against one backward pass per record: D (sum of clip(D g) + noise) / L, with D of the step at hand."""
    model, data = made(name)
    if double:
        model, data = model.double(), tuple(each.double() if each.is_floating_point() else each for each in data)
    private = started(tmp_path, model, data, rule="flat:0.1", batch_size=30, noise_multiplier=0.5)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    moved = False
    for step in range(5):
        inverse = {name: each.double() for name, each in inverse_of(private).items()}
        moved = moved or any((each != 1).any() for each in inverse.values())
        drawn = tuple(each[private.batches.batch(step)] for each in data)
        total = {name: torch.zeros_like(dict(model.named_parameters())[name]).double() for name in inverse}
        for gradient in loop_gradients(model, cross_entropy, drawn, len(drawn[0])):
            scaled = {name: gradient[name].double() * inverse[name] for name in inverse}
            weight = min(1.0, 0.1 * (1 - SLACK) / float(flat(scaled).norm()))
            total = {name: value + weight * scaled[name] for name, value in total.items()}
        sizes = [value.numel() for value in total.values()]
        noise = SeededSource(SEED).normal(sum(sizes), purpose="noise", step=step).split(sizes)
        released = private.release()
        assert list(released) == [name for name, value in model.named_parameters() if value.requires_grad]
        for (name, value), each in zip(total.items(), noise, strict=True):
            wanted = inverse[name] * (value + 0.05 * each.view(value.shape)) / 30
            torch.testing.assert_close(released[name].double(), wanted, rtol=1e-4, atol=1e-6)
        optimizer.step()
    assert moved


@pytest.mark.parametrize(
    ("rule", "noise_multiplier"), [("flat:0.5", 1.0), ("flat:0.5", 0.0), ("per-layer:0.3", 1.0), (QUANTILE, 1.0)]
)
def test_power_zero_is_dpsgd_bit_for_bit(tmp_path, rule, noise_multiplier):
    runs = []
    for method in (AdaDp(power=0.0, start=2), DpSgd(), AdaDp(power=0.5, start=2)):
        private = started(tmp_path, *made("mlp"), method, rule=rule, noise_multiplier=noise_multiplier, batch_size=20)
        runs.append(steps_of(private, 6))
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    same = [torch.equal(a, b) for a, b in zip(runs[1], runs[2], strict=True)]
    assert same == [True, True, False, False, False, False]


def test_without_noise_it_is_the_limit_of_little_noise(tmp_path):
    runs = [
        steps_of(started(tmp_path, *made("mlp"), noise_multiplier=noise_multiplier, batch_size=20), 8)
        for noise_multiplier in (0.0, 1e-9)
    ]
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("noise_multiplier", [1.0, 0.0])
def test_gradients_that_are_all_zero(tmp_path, noise_multiplier):
    """Released is noise alone, or nothing at all: scales stay finite and bounded, and are 1 in the second case."""
    model, data = made("mlp")
    private = started(tmp_path, model, data, batch_size=20, noise_multiplier=noise_multiplier)
    private.query.contribution = lambda capture: {
        "noise": {name: torch.zeros_like(each) for name, each in model.named_parameters()}
    }
    released = steps_of(private, 8)
    found = flat(inverse_of(private))
    assert all(each.isfinite().all() for each in released)
    assert found.isfinite().all()
    assert found.max() / found.min() <= (METHOD.highest / METHOD.lowest) ** 0.5 * (1 + 1e-6)
    if not noise_multiplier:
        assert not any(each.any() for each in released)
        assert (found == 1).all()


def test_a_dead_input_gets_less_noise(tmp_path):
    """A number that is 0 for every record: no signal, the smallest scale of its layer, and noise that is as small."""
    model, (x, y) = made("mlp", 200)
    private = started(tmp_path, model, (x[:-1], y[:-1]), batch_size=199, noise_multiplier=1.0, rule="flat:0.5")
    steps_of(private, 30, lr=0.5)
    inverse = inverse_of(private)["0.weight"][0]
    assert inverse.isfinite().all()
    assert inverse[8] == inverse.max()
    assert inverse[8] > 2 * inverse.min()


@pytest.mark.parametrize("method", [METHOD, DpSgd()], ids=str)
@pytest.mark.parametrize("rule", ["flat:0.5", QUANTILE])
def test_an_empty_batch_releases_noise_and_teaches_nothing_but_noise(tmp_path, method, rule):
    model, data = made("mlp")
    private = started(tmp_path, model, data, method, rule=rule, planned=10**9, batch_size=1)
    for step in range(5):
        assert len(private.batches.batch(step)) == 0
        assert all(value.isfinite().all() and value.any() for value in private.release().values())


class Watching(GaussianMechanism):
    """Keeps the types of what it is to release, and of what was."""

    def __init__(self) -> None:
        self.types = []

    def release(self, total, **given):
        released = super().release(total, **given)
        self.types.append({each.dtype for each in (*total.values(), *released.values())})
        return released


@pytest.mark.parametrize("method", [METHOD, DpSgd()], ids=str)
def test_the_precision_of_a_release_does_not_tell_how_many_chunks_a_batch_had(tmp_path, method):
    """How finely a released number is rounded is public; the number of records that were drawn is not."""
    for planned, chunk in ((10**9, 40), (40, 40), (40, 39), (40, 1)):
        mechanism = Watching()
        batch = 1 if planned > 40 else 40
        steps_of(
            started(
                tmp_path, *made("mlp"), method, planned=planned, batch_size=batch, chunk_size=chunk, mechanism=mechanism
            ),
            2,
        )
        assert mechanism.types == [{torch.float64}] * 2


@pytest.mark.parametrize("name", ["mlp", "cnn", "words", "tied"])
def test_several_chunks_are_one_chunk_to_rounding(tmp_path, name):
    runs = []
    for chunk in (7, 40):
        private = started(tmp_path, *made(name), batch_size=30, chunk_size=chunk)
        runs.append((torch.cat(steps_of(private, 6)), flat(inverse_of(private))))
    for released, inverse in runs[1:]:
        torch.testing.assert_close(released, runs[0][0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(inverse, runs[0][1], rtol=1e-3, atol=1e-5)
    assert (runs[0][1] != 1).any()


def test_frozen_parameters_have_no_scales_and_do_not_move(tmp_path):
    model, data = made("frozen")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    private = started(tmp_path, model, data)
    steps_of(private, 5)
    trained = ["0.weight", "0.bias", "4.weight"]
    assert list(inverse_of(private)) == trained
    moved = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert moved == trained


def test_a_tied_matrix_is_one_parameter_with_one_scale(tmp_path):
    """As a table it would have a scale per row, as a layer one per column: they disagree."""
    model, data = made("tied")
    private = started(tmp_path, model, data)
    steps_of(private, 5)
    shapes = {name: tuple(each.shape) for name, each in inverse_of(private).items()}
    assert shapes == {"table.weight": (1, 1), "twice.weight": (1, 4), "twice.bias": (1,)}
    assert model.out.weight is model.table.weight


def test_half_precision_models_have_finite_scales(tmp_path):
    model, (x, y) = made("mlp")
    private = started(tmp_path, model.bfloat16(), (x.bfloat16(), y))
    released = steps_of(private, 6)
    assert all(each.isfinite().all() for each in released)
    assert all(value.grad.dtype == torch.bfloat16 for value in model.parameters())
    assert (flat(inverse_of(private)) != 1).any()


def test_a_refusal_leaves_the_scales_as_they_are(tmp_path):
    private = started(tmp_path, *made("mlp"), steps=4)
    steps_of(private, 4)
    before = flat(private.query.tensors())
    with pytest.raises(BudgetExceeded):
        private.release()
    assert torch.equal(flat(private.query.tensors()), before)


# Scales see releases only -----------------------------------------------------------------------------------------


class Scripted(GaussianMechanism):
    """Releases what the step and the shapes say, whatever the data."""

    def __init__(self) -> None:
        self.totals = []

    def release(self, total, *, step, **given):
        del given
        self.totals.append(flat(total))
        generator = torch.Generator().manual_seed(step)
        return {
            name: (index + 1) * torch.randn(each.shape, generator=generator, dtype=torch.float64)
            for index, (name, each) in enumerate(total.items())
        }


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *((name, "flat:0.5") for name in ("mlp", "cnn", "words", "generic")),
        *(("mlp", rule) for rule in ("per-layer:0.3", "automatic:0.5,gamma=0.01", QUANTILE)),
    ],
)
def test_other_data_with_the_same_releases_has_the_same_scales(tmp_path, name, rule):
    """Bit for bit after every step, with batches of other sizes in another number of chunks."""
    seen, totals = [], []
    for records, chunk in ((40, 9), (25, 30)):
        model, data = made(name)
        other = tuple(each.flip(0)[:records] for each in data)
        mechanism = Scripted()
        private = started(
            tmp_path, model, other, rule=rule, planned=40, batch_size=30, chunk_size=chunk, mechanism=mechanism
        )
        kept = []
        for _ in range(6):
            steps_of(private, 1)
            kept.append(flat(private.query.tensors()))
        seen.append(kept)
        totals.append(mechanism.totals)
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(*totals, strict=True))
    assert len({tuple(each.tolist()) for each in seen[0]}) == 6


# Neighbour replay -------------------------------------------------------------------------------------------------


def replay(
    folder,
    name,
    *,
    rule="flat:0.5",
    steps=12,
    noise_multiplier=1.0,
    records=60,
    method=METHOD,
    kept=None,
    only_first=False,
):
    """All records in every batch, with and without the last one, which is alone with what it has.

    The others have one label, so that their gradients add up and the columns they use move more than the others.
    ``only_first``: nothing but the weight of the first layer is trained.
    """

    def runner(cut):
        def run(count, mechanism):
            model, data = made(name, records)
            data = data[0][:cut], (torch.arange(records) < records - 1).long()[:cut]
            for index, parameter in enumerate(model.parameters()):
                parameter.requires_grad_(parameter.requires_grad and not (only_first and index))
            private = started(
                folder,
                model,
                data,
                method,
                rule=rule,
                planned=records,
                batch_size=records,
                noise_multiplier=noise_multiplier,
                mechanism=mechanism,
            )
            for _ in range(count):
                steps_of(private, 1)
                if kept is not None:
                    kept.append(inverse_of(private))

        return run

    return neighbour_replay(runner(records), runner(records - 1), steps)


@pytest.mark.parametrize("name", MODELS)
def test_a_record_moves_no_release_by_more_than_the_bound(tmp_path, name):
    kept = []
    distances = replay(tmp_path, name, kept=kept)
    assert len(distances) == 12
    assert max(each.share for each in distances) <= 1
    assert max(each.share for each in distances[:3]) > 0.5
    assert max(each.share for each in distances[3:]) > 0.5
    assert all((flat(each) == 1).all() for each in (*kept[:2], *kept[12:14]))
    assert all((flat(each) != 1).any() for each in (*kept[2:12], *kept[14:]))
    assert all(torch.equal(flat(a), flat(b)) for a, b in zip(kept[:12], kept[12:], strict=True))


@pytest.mark.parametrize(
    "rule", ["per-layer:0.3", "per-layer-joint:0.5", "automatic:0.5,gamma=0.01", QUANTILE, "flat:1000"]
)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_other_clip_rules_keep_their_bound_in_scaled_coordinates(tmp_path, name, rule):
    distances = replay(tmp_path, name, rule=rule)
    assert len(distances) == 12 * (2 if rule == QUANTILE else 1)
    assert max(each.share for each in distances) <= 1
    late = [each.share for each in distances if each.purpose == "noise" and each.step >= 3]
    assert max(late) > (0.5 if rule != "flat:1000" else 0)


@pytest.mark.parametrize("power", [1.0, 3.0])
def test_steep_scales_keep_the_bound(tmp_path, power):
    distances = replay(tmp_path, "mlp", method=AdaDp(start=3, power=power))
    assert 0.5 < max(each.share for each in distances[3:]) <= 1


@pytest.mark.parametrize("name", ["mlp", "cnn", "words"])
def test_the_replay_notices_norms_that_are_taken_unscaled(tmp_path, name, monkeypatch):
    """A broken twin: each gradient is clipped as it is, and the sum is scaled. The odd record's columns are those in
    which little else happens, so they are enlarged, and with them what it contributes.
    """
    assert max(each.share for each in replay(tmp_path, name, only_first=True)) <= 1
    honest = Capture.square_norms
    monkeypatch.setattr(Capture, "square_norms", lambda self, groups, inverse=None: honest(self, groups))
    distances = replay(tmp_path, name, only_first=True)
    assert max(each.share for each in distances[:3]) <= 1
    assert max(each.share for each in distances[3:]) > 1.15


# Checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [2, 3, 5])
@pytest.mark.parametrize("rule", ["flat:0.5", QUANTILE])
def test_a_run_goes_on_bit_for_bit_from_its_state(tmp_path, rule, stop):
    """Before the scales begin, when they begin and after. The state is taken once and not copied."""
    model, data = made("mlp")
    private = started(tmp_path, model, data, rule=rule, batch_size=20)
    steps_of(private, stop)
    state, parameters = private.state(), copy.deepcopy(model.state_dict())
    wanted, end = steps_of(private, 5), flat(private.query.tensors())

    fresh, data = made("mlp")
    other = started(tmp_path, fresh, data, rule=rule, batch_size=20)
    for again in (other, private):
        again.model.load_state_dict(parameters)
        again.restore(state)
        assert again.step == stop
        assert all(torch.equal(a, b) for a, b in zip(steps_of(again, 5), wanted, strict=True))
        assert torch.equal(flat(again.query.tensors()), end)


@pytest.mark.parametrize("stop", [2, 7])
def test_a_run_in_a_folder_that_was_stopped_ends_as_one_that_was_not(tmp_path, stop):
    settings = {
        "method": "adadp:power=0.5,start=4",
        "noise_multiplier": 2.0,
        "delta": 1e-4,
        "steps": 12,
        "batch_size": 28,
        "seed": 5,
    }

    def run(out, **more):
        model, _ = made("mlp")
        return fit(model, load("cancer").train, out=tmp_path / out, lr=0.5, momentum=0.9, **settings, **more)

    def ask_to_stop(status):
        if status.step == stop:
            os.kill(os.getpid(), signal.SIGINT)

    whole = run("whole")
    with pytest.raises(Interrupted, match=f"after {stop} of 12 steps"):
        run("stopped", watch=ask_to_stop)
    resumed = run("stopped", resume=True)
    assert all(map(torch.equal, whole.model.state_dict().values(), resumed.model.state_dict().values()))
    for name in ("epsilon", "charged", "steps_done", "steps_lost", "model_digest"):
        assert whole.certificate[name] == resumed.certificate[name]
    assert all(check.passed for check in verify_run(RunFolder.open(tmp_path / "stopped")))
