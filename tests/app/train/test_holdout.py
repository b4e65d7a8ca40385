"""Records that are kept aside: never trained on, released once, charged as a part of their own, checked by verify."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from adadp.accounting import accountant
from adadp.app.runs import RunFolder
from adadp.app.train import fit, verify_run
from adadp.app.train.evaluation import LabelledRecords
from adadp.app.train.holdout import Holdout
from adadp.errors import InputError, RunError
from adadp.events import GaussianRelease, Neighbours, PoissonSampled, Repeated, compose, from_json, to_json
from adadp.ledger import read_ledger

pytestmark = pytest.mark.slow

SETTINGS = {"noise_multiplier": 3.0, "delta": 1e-4, "steps": 8, "batch_size": 100, "lr": 0.5, "holdout_noise": 2.0}
STEPS = Repeated(PoissonSampled(0.05, GaussianRelease(1.0)), 200)


def records(size: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(size, 4, generator=generator)
    return values, (values[:, 0] + 0.3 * torch.randn(size, generator=generator) > 0.8).long()


def run(out: Path | None = None, data=None, outputs: int = 2, **changes):
    torch.manual_seed(0)
    settings = {"holdout": "20%", "seed": 4, **SETTINGS, **changes}
    return fit(nn.Linear(4, outputs), records() if data is None else data, out=out, **settings)


def failed(folder: Path) -> list[str]:
    return [check.name for check in verify_run(folder) if not check.passed]


class TestAccounting:
    @pytest.mark.parametrize("name", ["pld", "rdp", "zcdp"])
    def test_the_worse_part_counts_and_not_their_sum(self, name):
        asked = accountant(name)
        steps = STEPS if name != "zcdp" else GaussianRelease(3.0)
        for noise in (1.0, 50.0):
            held = GaussianRelease(noise, held_out=True)
            each = [asked.epsilon(part, 1e-5).epsilon for part in (steps, held)]
            assert asked.epsilon(compose(steps, held), 1e-5).epsilon == max(each)
            assert asked.epsilon(compose(steps, GaussianRelease(noise)), 1e-5).epsilon > max(each)

    def test_several_releases_of_the_part_add_up(self):
        pld, once = accountant("pld"), GaussianRelease(2.0, held_out=True)
        twice = pld.epsilon(compose(GaussianRelease(9.0), Repeated(once, 2)), 1e-5).epsilon
        assert twice == pld.epsilon(Repeated(GaussianRelease(2.0), 2), 1e-5).epsilon

    def test_the_mark_survives_json_and_is_not_written_where_it_says_nothing(self):
        marked = GaussianRelease(2.0, Neighbours.REPLACE_ONE, held_out=True)
        assert from_json(to_json(marked)) == marked
        assert "held_out" not in to_json(GaussianRelease(2.0))

    def test_a_target_leaves_the_noise_of_the_training_what_it_would_be_without(self):
        target = {"noise_multiplier": None, "epsilon": 1.0, "holdout_noise": None}
        with_figures = run(**target, seed=None)
        alone = run(data=tuple(part[:800] for part in records()), **target, seed=None, holdout=None)
        assert with_figures.plan.records == 800
        assert with_figures.plan.noise_multiplier_at(0) == pytest.approx(alone.plan.noise_multiplier_at(0), rel=1e-6)
        assert 0.999 < with_figures.epsilon <= 1.0
        (charge,) = with_figures.plan.charges_after()
        assert 0.99 < accountant("pld").epsilon(charge, 1e-4).epsilon <= 1.0

    def test_too_little_noise_for_the_target_is_refused(self):
        with pytest.raises(InputError, match="cost more than epsilon 1 at"):
            run(noise_multiplier=None, epsilon=1.0, holdout_noise=0.5)


class TestSeparation:
    def test_records_kept_aside_never_reach_the_model(self, tmp_path, monkeypatch):
        kept = []
        release = Holdout.release
        monkeypatch.setattr(Holdout, "release", lambda self, *rest: kept.append(self.held) or release(self, *rest))
        first = run()
        values, labels = records()
        values[kept[0]], labels[kept[0]] = 100.0, 1 - labels[kept[0]]
        second = run(data=(values, labels))
        assert torch.equal(first.network.weight, second.network.weight)
        assert first.holdout != second.holdout
        assert 150 < int(kept[0].sum()) < 250

    def test_records_trained_on_never_reach_the_sums(self, monkeypatch):
        """But for the model, which here stays as it is."""
        sums = []
        found = Holdout.sums
        monkeypatch.setattr(Holdout, "sums", lambda self, model: sums.append(found(self, model)) or sums[-1])
        held = []
        release = Holdout.release
        monkeypatch.setattr(Holdout, "release", lambda self, *rest: held.append(self.held) or release(self, *rest))
        run(lr=1e-9)
        values, labels = records()
        values[~held[0]] = 9.0
        run(data=(values, labels), lr=1e-9)
        assert torch.equal(sums[1], sums[3])  # 0 and 2 are of the one record that each model was tried on

    def test_one_record_more_moves_the_sums_by_at_most_their_bound(self, monkeypatch):
        seen = []
        check = Holdout.check
        monkeypatch.setattr(Holdout, "check", lambda self: seen.append(self) or check(self))
        run()
        holdout, model = seen[0], nn.Linear(4, 2)
        whole = holdout.sums(model)
        assert isinstance(holdout.records, LabelledRecords)
        values, labels = holdout.records.features, holdout.records.labels
        for out in range(0, len(labels), 20):
            kept = torch.arange(len(labels)) != out
            fewer = LabelledRecords(values[kept], labels[kept], *list(vars(holdout.records).values())[2:])
            without = Holdout(fewer, holdout.like, holdout.size, holdout.held).sums(model)
            assert (whole - without).norm() == holdout.l2_bound == 1.0


class TestFolder:
    def test_it_verifies_and_says_what_it_found(self, tmp_path):
        result = run(tmp_path / "run", seed=None, threshold=0.3)
        folder = RunFolder.open(tmp_path / "run")
        released = folder.holdout()
        assert failed(folder.path) == []
        assert released["figures"] == result.holdout
        assert released["records"] == result.holdout["records"] == 200
        assert any(note.startswith("Measured with noise on about 200 private") for note in result.certificate["notes"])
        assert GaussianRelease(2.0, held_out=True) in read_ledger(folder.ledger_path).charges
        assert "kept aside and not trained on" in " ".join(result.certificate["disclosed"])
        assert "On records that were kept aside" in (folder.path / "report.html").read_text(encoding="utf-8")

    @pytest.mark.parametrize("forged", ["sums", "figures", "note"])
    def test_changed_figures_do_not_verify(self, tmp_path, forged):
        """Also where every digest was written anew, as only who computes the figures again can tell."""
        run(tmp_path / "run", seed=None)
        folder = RunFolder.open(tmp_path / "run")
        released, certificate = folder.holdout(), folder.certificate()
        if forged == "sums":
            released["sums"][0] += 50
        elif forged == "figures":
            released["figures"]["figures"]["auroc"]["value"] = 0.999
        else:
            certificate["notes"] = [re.sub(r"(?<=charged: ).*", "AUROC 1.", each) for each in certificate["notes"]]
        folder.write_holdout(released)
        certificate["measured"] = folder.measured_digests()
        folder.write_certificate(certificate)
        assert "measurements" in failed(folder.path)

    def test_figures_that_nobody_charged_do_not_verify(self, tmp_path):
        run(tmp_path / "with", seed=None)
        run(tmp_path / "without", seed=None, holdout=None, holdout_noise=None)
        shutil.copy(tmp_path / "with" / "holdout.json", tmp_path / "without")
        assert "measurements" in failed(tmp_path / "without")


class TestKills:
    """The process ends between the charge and the file."""

    def killed(self, out: Path, seed: int | None) -> None:
        number = os.fork()
        if not number:
            RunFolder.write_holdout = lambda *_: os._exit(9)  # type: ignore[method-assign,assignment]
            torch.set_num_threads(1)
            run(out, seed=seed, checkpoint_every=4)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 9

    def test_a_seeded_run_releases_the_same_again_without_a_charge(self, tmp_path):
        whole = run(tmp_path / "whole")
        self.killed(tmp_path / "run", 4)
        result = run(tmp_path / "run", resume=True, checkpoint_every=4)
        assert result.holdout == whole.holdout
        assert read_ledger(tmp_path / "run" / "ledger.jsonl").charges[GaussianRelease(2.0, held_out=True)] == 1
        assert failed(tmp_path / "run") == []

    def test_a_secure_run_has_lost_them_and_says_so(self, tmp_path):
        self.killed(tmp_path / "run", None)
        result = run(tmp_path / "run", seed=None, resume=True, checkpoint_every=4)
        assert result.holdout is None
        assert result.certificate["steps_lost"] == 0
        assert any("lost when the process was killed" in note for note in result.certificate["notes"])
        assert json.loads((tmp_path / "run" / "holdout.json").read_text())["sums"] is None
        assert failed(tmp_path / "run") == []


class TestNumbers:
    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        values, _ = records()
        return values, (values[:, 0] * 2 + 5).clamp(0, 10)

    def test_errors_of_numbers_within_their_range(self, tmp_path):
        result = run(tmp_path / "run", self.data(), 1, loss="mse", target_range="0,10", seed=None, holdout_noise=1.0)
        figures = result.holdout["targets"][0]["figures"]
        assert figures["mae"]["low"] < figures["mae"]["value"] < figures["mae"]["high"]
        assert result.headline.startswith(("MAE ", "no better"))
        assert failed(tmp_path / "run") == []

    def test_without_a_range_nothing_is_charged(self, tmp_path):
        with pytest.raises(InputError, match="range of the target is not declared"):
            run(tmp_path / "run", self.data(), 1, loss="mse")
        assert not (tmp_path / "run").exists()


class TestUnits:
    """All rows of a person are trained on, or kept aside and measured as one record."""

    ids = torch.arange(1000) % 300 * (torch.arange(1000) < 600)
    """Two rows for each of 300 people; one has 400 more."""

    def seen(self, monkeypatch, **changes):
        found = []
        check = Holdout.check
        monkeypatch.setattr(Holdout, "check", lambda self: found.append(self) or check(self))
        result = run(units=self.ids, **{"holdout": "40%", **changes})
        return found[0], result

    def test_no_unit_is_on_both_sides(self, monkeypatch, tmp_path):
        values, labels = records()
        values[:, 3] = self.ids.float()
        holdout, result = self.seen(monkeypatch, data=(values, labels), out=tmp_path / "run")
        aside = holdout.records.features[:, 3].long()
        assert set(aside.tolist()) == set(holdout.held.nonzero().flatten().tolist())
        assert int(self.ids[holdout.held[self.ids]].bincount().max()) == 402  # the one with many rows is among them
        assert int(aside.bincount().max()) == 16
        assert holdout.weights.sum() == pytest.approx(int(holdout.held.sum()))
        assert result.certificate["plan"]["records"] == 180
        assert result.holdout["records"] == holdout.size == 120
        assert failed(tmp_path / "run") == []

    @pytest.mark.parametrize("numbers", [False, True])
    def test_all_rows_of_a_unit_move_the_sums_by_at_most_the_bound_of_one_record(self, monkeypatch, numbers):
        changes = {"data": TestNumbers().data(), "outputs": 1, "loss": "mse", "target_range": "0,10"} if numbers else {}
        holdout, _ = self.seen(monkeypatch, **changes)
        model = nn.Linear(4, 1 if numbers else 2)
        whole, owner = holdout.sums(model), torch.unique(holdout.weights, return_inverse=True)[1]
        large = owner == owner[holdout.weights.argmin()]  # the 16 used rows of the one with many
        assert int(large.sum()) == 16
        fewer = replace(
            holdout.records, features=holdout.records.features[~large], labels=holdout.records.labels[~large]
        )
        without = replace(holdout, records=fewer, weights=holdout.weights[~large]).sums(model)
        assert 0 < (whole - without).norm() <= holdout.l2_bound
        assert ((whole - without) * 2**28 % 1 == 0).all()  # exact: no other unit's rounding moves with it

    def test_a_run_that_goes_on_keeps_the_same_units_aside(self, tmp_path):
        whole = run(tmp_path / "whole", units=self.ids, checkpoint_every=4)

        def stop(status):
            if status.step == 5:
                raise RunError("stopped")

        with pytest.raises(RunError, match="stopped"):
            run(tmp_path / "run", units=self.ids, checkpoint_every=4, watch=stop)
        again = run(tmp_path / "run", units=self.ids, checkpoint_every=4, resume=True)
        assert torch.equal(whole.network.weight, again.network.weight)
        assert whole.holdout == again.holdout


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"holdout": "0%"}, "between 0 and 1"),
        ({"holdout": 1}, "between 0 and 1"),
        ({"holdout": "ten"}, "between 0 and 1"),
        ({"holdout": None}, "`holdout_noise` is given|holdout_noise is given"),
        ({"noise_multiplier": 0, "allow_nonprivate": True}, "Nothing of such a run is private"),
        ({"holdout_noise": None}, "noise of the figures"),
        ({"loss": lambda model, x, y: nn.functional.cross_entropy(model(x), y, reduction="none")}, "none are known"),
        ({"noise_multiplier": None, "epsilon": 1.0, "noise_schedule": "validation:s0=9,k=0.7"}, "no place for the"),
        ({"method": "agd", "noise_multiplier": None, "epsilon": 1.0}, "chooses its noise"),
    ],
)
def test_what_is_refused_before_anything_is_charged(tmp_path, changes, said):
    with pytest.raises(InputError, match=said):
        run(tmp_path / "run", **changes)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_a_share_has_one_spelling():
    spellings = [run(holdout=each, steps=1).plan for each in ("10%", 0.1, "0.1", " 10 %")]
    assert len(set(spellings)) == 1
    assert spellings[0].records == 900


class _Overflowing(nn.Module):
    """Says no number of one test record."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, outputs)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.linear(values) + torch.where(values[:, :1] > 50, torch.nan, 0.0)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_model_that_says_no_number_of_a_test_record_ends_all_the_same(tmp_path, outputs):
    values, labels = records()
    test = (
        torch.cat([values[:50] + 0.5, torch.full((1, 4), 99.0)]),
        labels[:51].float() if outputs == 1 else labels[:51],
    )
    loss = "mse" if outputs == 1 else "cross-entropy"
    data = (values, labels.float()) if outputs == 1 else (values, labels)
    settings = {**SETTINGS, "holdout_noise": None, "seed": 1}
    result = fit(_Overflowing(outputs), data, test=test, loss=loss, out=tmp_path / "run", **settings)
    assert result.figures is None
    assert failed(tmp_path / "run") == []
