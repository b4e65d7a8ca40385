"""More tests of adadp: adadp runs."""

from __future__ import annotations

import copy
import os
import signal

import pytest
import torch
from adadp_cases import METHOD, MODELS, QUANTILE, flat, inverse_of, made, started, steps_of

from adadp.app.audit import neighbour_replay
from adadp.app.methods.adadp import AdaDp
from adadp.app.runs import RunFolder
from adadp.app.train import fit, verify_run
from adadp.app.zoo import load
from adadp.errors import BudgetExceeded, Interrupted
from adadp.gradients import Capture
from adadp.noise import GaussianMechanism

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*no closed form")]


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
