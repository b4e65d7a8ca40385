"""ADADP as published: against a slow transcription of Algorithm 1, why it is not private, and what is certified."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from clip_texts import rule_of
from torch import nn

from adadp import Ledger, Plan, PrivateGradients
from adadp.accounting import accountant
from adadp.app.config import TrainConfig
from adadp.app.losses import cross_entropy
from adadp.app.optimizers.adaptive_rate import AdaptiveRate
from adadp.app.report.certificate import make_certificate
from adadp.app.report.wording import plain_words
from adadp.app.runs.optimizer_state import flatten_optimizer, restore_optimizer
from adadp.app.spec import RunSpec
from adadp.app.texts.methods import METHODS, parse_method
from adadp.errors import InputError
from adadp.lab.methods import clamped
from adadp.lab.methods.published import AdadpPublished, Adal, Adan
from adadp.ledger import PlannedBudget, read_ledger
from adadp.randomness import SeededSource

CLIP, SIGMA, RECORDS, LOT, SEED = 0.3, 0.5, 30, 12, 11
READINGS = [
    dict(zip(("clip", "square", "size", "gate"), reading, strict=True))
    for reading in itertools.product(
        ("example", "batch"), ("mean-of-squares", "square-of-mean"), ("model", "layer"), ("sqrt", "moment")
    )
]


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    """Compiling takes seconds, and has tests of its own."""
    monkeypatch.setattr(clamped, "_compiled_kernel", lambda: None)


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def cnn() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)).double()


def pictures(records: int = RECORDS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(records, 1, 6, 6, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, 3, (records,), generator=generator)


def started(
    tmp_path,
    model,
    data,
    method,
    *,
    rule=f"flat:{CLIP}",
    batch_size=LOT,
    planned=None,
    noise_multiplier=SIGMA,
    **options,
):
    planned = len(data[0]) if planned is None else planned
    plan = Plan.of_noise(
        noise=noise_multiplier, steps=50, records=planned, batch_size=batch_size, clip_norm=rule_of(rule)
    )
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    ledger = Ledger.create(path, budget=PlannedBudget(plan.event()))
    return PrivateGradients(
        model, data, cross_entropy, plan, ledger, method=method, seed=SEED, allow_nonprivate=True, **options
    )


def flat(tensors) -> torch.Tensor:
    return torch.cat([each.detach().double().reshape(-1) for each in tensors])


class Transcription:
    """Algorithm 1 of Xu et al. 2020, one line after another and one record after another.

    The batches are given and the noise is that of the seed. ``opened`` keeps which branch of line 7 every step took.
    """

    beta, keep, gamma, eps0 = 1.2, 0.9, 0.1, 1e-8

    def __init__(self, model, data, reading, rate, threshold):
        self.model, self.data, self.reading, self.rate, self.threshold = model, data, reading, rate, threshold
        named = list(model.named_parameters())
        self.m = sum(value.numel() for _, value in named)
        counts = {}
        for name, value in named:
            counts[name.split(".")[0]] = counts.get(name.split(".")[0], 0) + value.numel()
        sizes = [torch.full((value.numel(),), float(counts[name.split(".")[0]])) for name, value in named]
        self.sizes = torch.cat(sizes).double() if reading["size"] == "layer" else torch.full((self.m,), float(self.m))
        self.e = torch.zeros(self.m, dtype=torch.float64)
        self.e_prime = torch.zeros(self.m, dtype=torch.float64)
        self.opened = []

    def gradient(self, record):
        loss = F.cross_entropy(self.model(self.data[0][record : record + 1]), self.data[1][record : record + 1])
        return flat(torch.autograd.grad(loss, list(self.model.parameters())))

    def step(self, t, batch):
        """The released gradient, and the deviation of its noise in every coordinate."""
        gradients = [self.gradient(record) for record in batch.tolist()]  # lines 4 and 5
        raw = sum(gradients, torch.zeros(self.m, dtype=torch.float64))
        mean = raw / LOT
        judged = self.e_prime.sqrt() if self.reading["gate"] == "sqrt" else self.e_prime
        self.opened.append(bool(((judged - judged.mean()) ** 2).mean() > self.threshold))  # line 7
        if self.opened[-1]:
            s = self.beta * self.e_prime.sqrt()  # line 9
            if self.reading["clip"] == "example":  # line 10
                clipped = sum(torch.minimum(torch.maximum(g, -s), s) for g in gradients)
            else:
                clipped = LOT * torch.minimum(torch.maximum(mean, -s), s)
            deviation = self.beta * SIGMA * (self.sizes * self.e_prime).sqrt()  # line 12
        else:
            if self.reading["clip"] == "example":  # line 16
                clipped = sum(g / max(1.0, float(g.norm()) / CLIP) for g in gradients)
            else:
                clipped = LOT * mean / max(1.0, float(mean.norm()) / CLIP)
            deviation = torch.full((self.m,), CLIP * SIGMA)
        noise = SeededSource(SEED).normal(self.m, purpose="noise", step=t)
        noisy = (clipped + deviation * noise) / LOT  # lines 13 and 18
        self.e = (1 - self.gamma) * self.e + self.gamma * noisy**2  # line 22
        squares = sum(g**2 for g in gradients) / LOT if "mean-of" in self.reading["square"] else (raw / LOT) ** 2
        self.e_prime = self.keep * self.e_prime + (1 - self.keep) * squares  # line 23
        self.move(-self.rate * noisy / (self.e + self.eps0).sqrt())  # lines 25 and 26
        return noisy, deviation / LOT

    @torch.no_grad()
    def move(self, by):
        parameters = list(self.model.parameters())
        for value, part in zip(parameters, by.split([each.numel() for each in parameters]), strict=True):
            value.add_(part.view(value.shape))


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: ",".join(reading.values()))
@pytest.mark.parametrize("build", [mlp, cnn])
def test_every_reading_is_algorithm_1_line_by_line(tmp_path, build, reading):
    """Batches of changing size, in chunks. Each has its own E and E'; every step begins at the same parameters, or the
    rate would enlarge the rounding of the release wherever a gradient is near 0.
    """
    data, model = pictures(), build()
    threshold = 1e-6 if reading["gate"] == "sqrt" else 1e-9
    twin = Transcription(copy.deepcopy(model), data, reading, 0.01, threshold)
    private = started(tmp_path, model, data, AdadpPublished(**reading, threshold=threshold), chunk_size=5)
    optimizer = AdaptiveRate(model.parameters(), 0.01)
    for t in range(6):
        wanted, deviation = twin.step(t, private.batches.batch(t))
        released = flat(private.release().values())
        optimizer.step()
        assert ((released - wanted).abs() <= 2e-4 * (deviation + wanted.abs())).all()
        torch.testing.assert_close(flat(private.query.tensors().values()), twin.e_prime, rtol=1e-9, atol=1e-15)
        torch.testing.assert_close(flat(model.parameters()), flat(twin.model.parameters()), rtol=1e-5, atol=1e-4)
        twin.model.load_state_dict(model.state_dict())
    assert twin.opened[0] is False
    assert twin.opened[-1] is True


@pytest.mark.parametrize("clip", ["example", "batch"])
def test_other_clip_rules_rule_while_the_gate_is_closed(tmp_path, clip):
    """per-layer:0.2: each layer of each gradient, or of the mean, is clipped on its own; the joint bound is noised."""
    data, model = pictures(), mlp()
    twin = Transcription(copy.deepcopy(model), data, READINGS[0], 0.01, 1e9)
    method = AdadpPublished(clip=clip, threshold=1e9)
    private = started(tmp_path, model, data, method, rule="per-layer:0.2", noise_multiplier=1e-6)
    batch = private.batches.batch(0)
    sizes = [36 * 7 + 7, 7 * 3 + 3]

    def clipped(vector):
        return torch.cat([part / max(1.0, float(part.norm()) / 0.2) for part in vector.split(sizes)])

    gradients = [twin.gradient(record) for record in batch.tolist()]
    wanted = sum(clipped(each) for each in gradients) / LOT if clip == "example" else clipped(sum(gradients) / LOT)
    torch.testing.assert_close(flat(private.release().values()), wanted, rtol=1e-3, atol=1e-6)
    assert private.query.l2_bounds() == {"noise": pytest.approx(0.2 * math.sqrt(2))}


@pytest.mark.parametrize("gate", ["sqrt", "moment"])
def test_the_gate_opens_above_the_threshold_and_not_at_it(tmp_path, gate):
    """The variance is that over all coordinates of the model, not an estimate of one and not a deviation."""
    private = started(tmp_path, mlp(), pictures(), AdadpPublished(gate=gate, threshold=1e9))
    private.release()
    squares = flat(private.query.tensors().values())
    variance = float((squares.sqrt() if gate == "sqrt" else squares).var(correction=0))
    opened = {}
    for share in (0.999, 1.001):
        method = AdadpPublished(gate=gate, threshold=share * variance)
        other = started(tmp_path, mlp(), pictures(), method)
        other.release()
        opened[share] = other.query.l2_bounds() != {"noise": CLIP}
    assert opened == {0.999: True, 1.001: False}


# Why it is not private --------------------------------------------------------------------------------------------


def only_one_record_has_it() -> tuple[torch.Tensor, torch.Tensor]:
    """Forty records of nine numbers; the last number is 0 for all of them but the last record."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(40, 9, generator=generator)
    x[:, 8] = 0
    x[-1, 8] = 2
    return x, torch.randint(0, 2, (40,), generator=generator)


def linear() -> nn.Module:
    torch.manual_seed(7)
    return nn.Linear(9, 2)


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: ",".join(reading.values()))
def test_one_look_at_a_release_tells_whether_a_record_is_there(tmp_path, reading):
    """The counter-example: a coordinate is released as exactly 0 without the record, and with noise with it."""
    data = only_one_record_has_it()
    seen = {}
    for name, neighbour in (("with", data), ("without", tuple(each[:-1] for each in data))):
        # Every record is in every batch: what differs is the record alone.
        private = started(tmp_path, linear(), neighbour, AdadpPublished(**reading), batch_size=39, planned=39)
        seen[name] = [private.release()["weight"] for _ in range(3)]
    for with_it, without in zip(seen["with"][1:], seen["without"][1:], strict=True):
        assert (without[:, 8] == 0).all()
        assert (with_it[:, 8] != 0).all()
        assert (without[:, :8] != 0).all()


@pytest.mark.parametrize("method", ["dpsgd", "adal", "adan:source=released", "adadp"])
def test_private_methods_pass_the_same_look(tmp_path, method):
    data = tuple(each[:-1] for each in only_one_record_has_it())
    private = started(tmp_path, linear(), data, parse_method(method), batch_size=39)
    assert all((private.release()["weight"][:, 8] != 0).all() for _ in range(3))


def test_the_reasons_are_said():
    assert "never released" in AdadpPublished().not_private
    assert "batch_size" not in AdadpPublished().not_private
    assert "factor of the batch size" in AdadpPublished(clip="batch").not_private
    assert "sqrt(K)" in AdadpPublished(size="layer").not_private
    assert Adan().not_private == AdadpPublished().not_private
    assert [parse_method(text).not_private for text in ("adal", "adan:source=released")] == [None, None]


# ADAL and ADAN ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [("adal", "dpsgd"), ("adan:source=released", "adadp"), ("adan", "adadp-published")],
)
def test_the_halves_release_what_their_whole_releases(tmp_path, one, other):
    data = pictures()
    released = []
    for text in (one, other):
        model = mlp()
        private = started(tmp_path, model, data, parse_method(text))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(25):
            released.append(flat(private.release().values()))
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(released[:25], released[25:], strict=True))


def test_defaults_are_those_of_the_paper():
    kinds = (AdadpPublished, Adal, Adan)
    found = [(kind.defaults.optimizer, kind.defaults.lr, kind.defaults.clip_norm) for kind in kinds]
    assert found == [("rms", 0.002, 4.0), ("rms", 0.001, 4.0), ("sgd", 0.1, 4.0)]
    assert (METHODS["dpsgd"].defaults.optimizer, METHODS["dpsgd"].defaults.lr) == (None, None)


# Checkpoints, options and edges -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["adadp-published", "adadp-published:clip=batch,square=square-of-mean", "adan", "adal"]
)
def test_a_run_goes_on_bit_for_bit(tmp_path, text):
    data, model = pictures(), mlp()
    private = started(tmp_path, model, data, parse_method(text))
    optimizer = AdaptiveRate(model.parameters(), 0.01)

    def steps(count):
        for _ in range(count):
            private.release()
            optimizer.step()

    steps(3)
    state, parameters = copy.deepcopy(private.state()), copy.deepcopy(model.state_dict())
    tensors, json = flatten_optimizer(optimizer)
    tensors = {name: value.clone() for name, value in tensors.items()}
    steps(3)
    wanted, kept = flat(model.parameters()), flat(private.state()["method"].values()) if "adal" not in text else None

    model = mlp()
    model.load_state_dict(parameters)
    private = started(tmp_path, model, data, parse_method(text))
    private.restore(state)
    optimizer = AdaptiveRate(model.parameters(), 0.01)
    restore_optimizer(optimizer, tensors, json)
    steps(3)
    assert torch.equal(flat(model.parameters()), wanted)
    assert kept is None or torch.equal(flat(private.state()["method"].values()), kept)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adadp-published:clip=record", "clip must be one of example, batch, got 'record'"),
        ("adadp-published:square=", "square must be one of mean-of-squares, square-of-mean, got ''"),
        ("adadp-published:size=network", "size must be one of model, layer"),
        ("adadp-published:gate=Sqrt", "gate must be one of sqrt, moment"),
        ("adadp-published:beta=0", "beta must be greater than 0"),
        ("adadp-published:beta=inf", "beta must be finite"),
        ("adadp-published:threshold=-1", "threshold must not be negative"),
        ("adadp-published:keep=1", "keep must be below 1"),
        ("adadp-published:keep=-0.1", "keep must not be negative"),
        ("adadp-published:gamma=0.1", "no option 'gamma'"),
        ("adan:source=noisy", "source must be one of raw, released"),
        ("adal:rate=1", "It has no options"),
    ],
)
def test_wrong_options_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_method(text)


def test_text_goes_both_ways():
    texts = [
        "adadp-published",
        "adadp-published:clip=batch,gate=moment,beta=1.5",
        "adal",
        "adan",
        "adan:source=released",
    ]
    assert [str(parse_method(text)) for text in texts] == texts
    for reading in READINGS:
        assert parse_method(str(AdadpPublished(**reading))) == AdadpPublished(**reading)


@pytest.mark.parametrize("clip", ["example", "batch"])
def test_an_empty_batch_releases_noise_alone(tmp_path, clip):
    """The gate closed: sigma C / L everywhere. Open: sigma_i / L, nothing where E' is 0, and E' falls by ``keep``."""
    data = tuple(each[:2] for each in pictures())
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 300)).double()
    private = started(tmp_path, model, data, AdadpPublished(clip=clip), planned=10**9, batch_size=1)
    assert len(private.batches.batch(0)) == 0
    closed = flat(private.release().values())
    assert closed.std().item() == pytest.approx(SIGMA * CLIP, rel=0.03)
    assert not any(value.any() for value in private.query.tensors().values())
    moments = {name: torch.zeros_like(value) for name, value in private.query.tensors().items()}
    moments["1.weight"][:150] = 0.04
    private.restore(private.state() | {"method": copy.deepcopy(moments)})
    weight = private.release()["1.weight"]
    coordinates = 36 * 300 + 300
    assert weight[:150].std().item() == pytest.approx(1.2 * SIGMA * math.sqrt(coordinates * 0.04), rel=0.03)
    assert not weight[150:].any()
    torch.testing.assert_close(private.query.tensors()["1.weight"], 0.9 * moments["1.weight"])


@pytest.mark.parametrize("square", ["mean-of-squares", "square-of-mean"])
@pytest.mark.usefixtures("raw_records")
def test_a_record_that_is_not_finite_contributes_nothing(tmp_path, square):
    data = only_one_record_has_it()
    data[0][-1] = math.nan
    found = []
    for each in (data, tuple(part[:-1] for part in data)):
        private = started(tmp_path, linear(), each, AdadpPublished(square=square), batch_size=39, planned=39)
        released = [flat(private.release().values()) for _ in range(3)]
        found.append(torch.cat([*released, flat(private.query.tensors().values())]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)
    assert found[0].isfinite().all()


@pytest.mark.usefixtures("raw_records")
def test_squares_beyond_the_largest_number_stay_finite(tmp_path):
    """Each record's squared norm fits a float32, and the sum of their squares does not."""
    x = torch.full((80, 9), 4e18)
    private = started(tmp_path, linear(), (x, torch.arange(80) % 2), AdadpPublished(), batch_size=80)
    for _ in range(3):
        assert all(value.isfinite().all() for value in private.release().values())
    assert max(float(value.max()) for value in private.query.tensors().values()) == torch.finfo(torch.float32).max


def test_a_bound_that_is_learnt_is_refused(tmp_path):
    rule = "quantile:initial=0.5,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100"
    with pytest.raises(InputError, match="adadp-published does not go with a clip bound that is learnt"):
        started(tmp_path, mlp(), pictures(), AdadpPublished(), rule=rule)
    started(tmp_path, mlp(), pictures(), Adal(), rule=rule).release()


def test_without_noise_it_is_the_same_algorithm(tmp_path):
    """A noise of 0 goes through the same coordinates and back."""
    private = started(
        tmp_path, linear(), only_one_record_has_it(), AdadpPublished(), batch_size=40, noise_multiplier=0.0
    )
    almost = started(
        tmp_path, linear(), only_one_record_has_it(), AdadpPublished(), batch_size=40, noise_multiplier=1e-9
    )
    for _ in range(3):
        torch.testing.assert_close(
            flat(private.release().values()), flat(almost.release().values()), rtol=1e-3, atol=1e-5
        )


# Certificate ------------------------------------------------------------------------------------------------------


def certificate_of(tmp_path, method, *, charged=10, before=(), sampling="poisson", noise_multiplier=2.0) -> dict:
    plan = Plan.of_noise(noise=noise_multiplier, records=560, batch_size=56, steps=10, before=before, sampling=sampling)
    with Ledger.create(tmp_path / "ledger.jsonl", budget=PlannedBudget(plan.event())) as ledger:
        charges = [*plan.charges_before(), *(plan.charge_at(step) for step in range(10))] if charged else []
        for charge in charges:
            if charge is not None:
                ledger.charge(charge)
    config = TrainConfig(
        "python", method=method, noise_multiplier=noise_multiplier, delta=1e-4, clip_norm=1.0, allow_nonprivate=True
    )
    record = read_ledger(tmp_path / "ledger.jsonl")
    return make_certificate(
        spec=RunSpec.of(config), plan=plan, ledger=record, randomness="secure", model={}, steps_done=charged
    )


STEPS = Plan.of_noise(noise=2.0, records=560, batch_size=56, steps=10)


def test_no_epsilon_is_certified_and_the_paper_s_claim_stands_apart(tmp_path):
    certificate = certificate_of(tmp_path, "adadp-published:clip=batch")
    assert certificate["private"] is False
    assert [certificate[name] for name in ("epsilon", "epsilon_low", "epsilon_high")] == [None] * 3
    assert certificate["cross_check"] == []
    assert certificate["reason"] == AdadpPublished(clip="batch").not_private
    assert certificate["protects"] == "Nothing."
    claimed = certificate["claimed_by_paper"]
    assert claimed["accountant"] == "theorem1"
    assert claimed["epsilon"] == accountant("theorem1").epsilon(STEPS.event(), 1e-4).epsilon
    assert f"{claimed['epsilon']:.4g} at delta 0.0001 for what was charged" in claimed["text"]
    words = plain_words(certificate)
    assert words.startswith("NOT PRIVATE. Line 23")
    assert "Xu et al. 2020 would claim epsilon" in words
    assert "No guarantee" in words


PAPERS = {
    "adadp-published": "Xu et al. 2020",
    "adadp-published:clip=batch": "Xu et al. 2020",
    "adan": "Xu et al. 2020",
    "dpopt:source=raw": "Xiang et al. 2019",
}


def test_every_method_that_is_not_private_cites_its_own_paper(tmp_path):
    kinds = [METHODS[name] for name in METHODS]
    raw = [kind(source="raw") if "source" in {each.name for each in fields(kind)} else kind() for kind in kinds]
    assert {each.name for each in raw if each.not_private} == {name.partition(":")[0] for name in PAPERS}
    for method, paper in PAPERS.items():
        certificate = certificate_of(tmp_path, method)
        (tmp_path / "ledger.jsonl").unlink()
        claimed = certificate["claimed_by_paper"]
        assert claimed["paper"] == parse_method(method).paper == paper
        assert (f"published by {paper};" in claimed["text"]) == (paper != "Xu et al. 2020")
        assert certificate["reason"] == parse_method(method).not_private


def test_the_claim_names_who_published_the_method(tmp_path):
    own = certificate_of(tmp_path, "adan")["claimed_by_paper"]["text"]
    assert own.startswith("Xu et al. 2020 would claim epsilon")
    assert "published by" not in own
    (tmp_path / "ledger.jsonl").unlink()
    other = certificate_of(tmp_path, "dpopt:source=raw")["claimed_by_paper"]["text"]
    assert "The method was published by Xiang et al. 2019; what that paper would claim was not computed." in other


@pytest.mark.parametrize(
    ("settings", "epsilon", "words"),
    [
        ({"before": (16.0,)}, accountant("theorem1").epsilon(STEPS.event(), 1e-4).epsilon, "the steps alone"),
        ({"sampling": "reshuffle"}, None, "would claim nothing"),
        ({"charged": 0}, 0.0, "epsilon 0 at delta 0.0001"),
    ],
)
def test_what_theorem_1_has_no_words_for(tmp_path, settings, epsilon, words):
    claimed = certificate_of(tmp_path, "adadp-published", **settings)["claimed_by_paper"]
    assert claimed["epsilon"] == epsilon
    assert words in claimed["text"]


def test_a_run_without_noise_says_that(tmp_path):
    certificate = certificate_of(tmp_path, "adadp-published", charged=0, noise_multiplier=0.0)
    assert "no noise" in certificate["reason"]
    assert "claimed_by_paper" not in certificate


@pytest.mark.parametrize("method", ["adal", "adan:source=released", "adadp", "dpsgd"])
def test_private_methods_get_ordinary_certificates(tmp_path, method):
    certificate = certificate_of(tmp_path, method)
    assert certificate["private"] is True
    assert certificate["epsilon"] == STEPS.epsilon(1e-4).epsilon
    assert "claimed_by_paper" not in certificate
