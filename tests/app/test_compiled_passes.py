"""Compiled passes against the model as written: the same norms and sums, the same random numbers, or not compiled."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from adadp import InputError, PrivateGradients, fit, plan_for
from adadp.app import compiled_passes
from adadp.app.compiled_passes import CompiledPasses
from adadp.app.losses import cross_entropy
from adadp.gradients import GradientEngine

pytestmark = pytest.mark.slow
RECORDS = 6
COMPILED = compiled_passes._COMPILED


class Shared(nn.Module):
    """Words and positions that all records share, a scaled weight and a tied one."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.words, self.places = nn.Embedding(9, 8), nn.Embedding(5, 8)
        self.scale, self.mix, self.dropout = nn.Parameter(torch.zeros(8)), nn.Linear(8, 8), nn.Dropout(dropout)
        self.register_buffer("shift", torch.ones(8))

    def forward(self, tokens):
        found = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        found = self.dropout(torch.tanh(self.mix(found))) * (1 + self.scale) + self.shift
        return found.mean(1) @ self.words.weight.t()


class Peeking(nn.Module):
    """A model that asks its records for a truth value."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x if bool((x > -100).all()) else x.clamp(-1, 1))


def images():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), lambda: torch.randn(RECORDS, 4)),
    "images": (images, lambda: torch.randn(RECORDS, 1, 6, 6)),
    "shared": (Shared, lambda: torch.randint(9, (RECORDS, 5))),
    "dropout": (lambda: Shared(0.5), lambda: torch.randint(9, (RECORDS, 5))),
}


def batch_for(draw):
    return draw(), torch.arange(RECORDS) % 3


def found_by(engine, batch, seed=3):
    """Norms and a weighted sum of a batch of which the last row is none."""
    torch.manual_seed(seed)
    (capture,) = engine.captures(batch, torch.arange(RECORDS) == RECORDS - 1)
    groups = [[name] for name in engine.names]
    norms = capture.square_norms(groups)
    return norms, capture.weighted_sums(torch.rand(RECORDS, len(groups)), groups)


@pytest.mark.parametrize("name", MODELS)
def test_compiled_passes_find_what_the_model_as_written_finds(name):
    torch.manual_seed(0)
    build, draw = MODELS[name]
    model, batch = build(), batch_for(draw)
    plain = GradientEngine(model, cross_entropy, batch)
    compiled = GradientEngine(model, cross_entropy, batch, passes=CompiledPasses)
    assert COMPILED in compiled.notes
    for _ in range(2):
        expected, found = found_by(plain, batch), found_by(compiled, batch)
        assert compiled._passes(batch) is not None
        torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-6)
        with torch.no_grad():  # the next turn must see these parameters and this buffer
            for value in [*model.parameters(), *model.buffers()]:
                value.add_(0.1 * torch.randn_like(value))


def test_masks_of_dropout_are_drawn_anew_for_every_batch():
    build, draw = MODELS["dropout"]
    batch = batch_for(draw)
    engine = GradientEngine(build(), cross_entropy, batch, passes=CompiledPasses)
    one, again, other = (found_by(engine, batch, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_a_model_that_reads_values_runs_as_it_is_written():
    batch = torch.randn(RECORDS, 4), torch.arange(RECORDS) % 3
    model = Peeking()
    engine = GradientEngine(model, cross_entropy, batch, passes=CompiledPasses)
    assert any(note.startswith("Nothing is compiled") for note in engine.notes)
    expected = found_by(GradientEngine(model, cross_entropy, batch), batch)
    assert torch.equal(found_by(engine, batch)[0], expected[0])


def test_a_batch_of_other_shapes_than_the_probes_runs_as_it_is_written():
    build, draw = MODELS["shared"]
    engine = GradientEngine(build(), cross_entropy, batch_for(draw), passes=CompiledPasses)
    short = torch.randint(9, (RECORDS, 4)), torch.arange(RECORDS) % 3
    assert engine._passes(short) is None
    assert found_by(engine, short)[0].isfinite().any()


def test_a_shorter_batch_is_never_compiled():
    """It is there only if a batch is larger than usual, and compiling would tell."""
    build, draw = MODELS["linear"]
    features, labels = batch_for(draw)
    engine = GradientEngine(build(), cross_entropy, (features, labels), passes=CompiledPasses)
    assert engine._passes((features, labels)) is not None
    before = dict(engine._passes._graphs)
    assert engine._passes((features[:4], labels[:4])) is None
    assert engine._passes._graphs == before


@pytest.mark.parametrize("wrong", ["a number", "a failure"])
def test_a_compiler_that_computes_something_else_is_found_on_probe_records(wrong, monkeypatch):
    def compiler(run, **_):
        def other(*args):
            if wrong == "a failure":
                raise RuntimeError("no compiler here")
            *rest, last = run(*args)
            return [*rest, last * 1.01]

        return other

    monkeypatch.setattr(compiled_passes.torch, "compile", compiler)
    build, draw = MODELS["linear"]
    batch = batch_for(draw)
    model = build()
    engine = GradientEngine(model, cross_entropy, batch, passes=CompiledPasses)
    with pytest.warns(UserWarning, match="is not compiled"):
        found = found_by(engine, batch)
    assert torch.equal(found[0], found_by(GradientEngine(model, cross_entropy, batch), batch)[0])


class Steep(nn.Module):
    """A model in which the last bit of a parameter shows in the third digit of a gradient."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.sin(self.layer(x) * 1e4))


@pytest.mark.parametrize(("error", "accepted"), [(0.0, True), (0.03, False)])
def test_rounding_of_a_model_excuses_the_compiler_and_an_error_of_its_own_does_not(error, accepted, monkeypatch):
    """This compiler rounds parameters otherwise, which is far from 1e-4 of the gradients; then it errs by 3 % too."""

    def compiler(run, **_):
        def other(state, leaves):
            moved = {key: value * (1 + 2.0**-23) for key, value in state.items()}
            return [value * (1 + error) if value is not None and value.is_floating_point() else value
                    for value in run(moved, leaves)]  # fmt: skip

        return other

    monkeypatch.setattr(compiled_passes.torch, "compile", compiler)
    torch.manual_seed(0)
    model, batch = Steep(), (torch.randn(RECORDS, 4), torch.arange(RECORDS) % 3)
    engine = GradientEngine(model, cross_entropy, batch)

    def passes():
        return CompiledPasses(model, cross_entropy, replace(engine._blueprint, rounding=0.0), engine._probes)

    assert (passes()(batch) is not None) is accepted
    monkeypatch.setattr(compiled_passes, "_FAR", 0.0)  # without the excuse
    assert passes()(batch) is None


DATA = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
SETTINGS = {"noise_multiplier": 1.0, "delta": 1e-3, "steps": 3, "batch_size": 40, "seed": 3, "method": "dpsgd"}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_compiled_run_ends_where_the_run_as_written_does(precision):
    def ends(**settings):
        torch.manual_seed(0)
        result = fit(MODELS["linear"][0](), DATA, **SETTINGS, precision=precision, **settings)
        return result, nn.utils.parameters_to_vector(result.network.parameters())

    (_, plain), (result, compiled) = ends(), ends(compile=True)
    assert COMPILED in result.certificate["notes"]
    torch.testing.assert_close(compiled, plain, rtol=1e-5 if precision == "float32" else 1e-2, atol=1e-3)


def test_exact_arithmetic_refuses_compiled_passes(tmp_path):
    with pytest.raises(InputError, match="exact arithmetic"):
        fit(MODELS["linear"][0](), DATA, **SETTINGS, arithmetic="exact", compile=True)
    plan = plan_for(epsilon=2, delta=1e-3, records=200, batch_size=40, steps=2)
    with pytest.raises(InputError, match="exact arithmetic"):
        PrivateGradients(
            MODELS["linear"][0](), DATA, cross_entropy, plan, tmp_path / "ledger", arithmetic="exact", compile=True
        )
    assert not (tmp_path / "ledger").exists()
