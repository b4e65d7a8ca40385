"""More tests of certificate: certificate checks."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from certificate_cases import DATA, SETTINGS, TEST, certificate_of, failed, original, rehearsal, run, trained  # noqa: F401
from safetensors.torch import load_file, save_file
from torch import nn

from adadp.accounting import accountant, rounded_up
from adadp.app.report.html import write_report
from adadp.app.report.wording import plain_words
from adadp.app.runs import RunFolder
from adadp.app.runs.tensors import tensors_digest
from adadp.app.train import fit, verify_run
from adadp.certificate.detection import detection
from adadp.certificate.make import model_metadata
from adadp.errors import InputError
from adadp.ledger import Ledger
from adadp.plan import Plan

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def other(tmp_path_factory, original) -> RunFolder:
    """A run that differs in nothing but its weights and noise, and in what was measured, which may agree by chance."""
    torch.manual_seed(9)
    while True:
        out = tmp_path_factory.mktemp("other") / "run"
        fit(nn.Linear(9, 2), DATA, test=TEST, out=out, **SETTINGS)
        if RunFolder.open(out).certificate()["measured"] != original.certificate()["measured"]:
            return RunFolder.open(out)


def as_secure(run: RunFolder, real: RunFolder) -> None:
    """Write the folder of a rehearsal as that of a run without a seed, all but its ledger."""

    def pretend(certificate: dict) -> None:
        certificate |= {name: real.certificate()[name] for name in ("private", "rehearsal", "randomness", "protects")}
        certificate |= certificate.pop("if_unseeded")
        del certificate["reason"]

    forged(run, pretend, seed=None)


def test_a_rehearsal_verifies_as_one_and_not_as_anything_else(rehearsal, original, tmp_path):
    assert failed(rehearsal) == set()
    details = {check.name: check.detail for check in verify_run(rehearsal)}
    assert details["epsilon"].startswith("none, this is a rehearsal; ")
    disguised = RunFolder.open(shutil.copytree(rehearsal.path, tmp_path / "disguised"))
    as_secure(disguised, original)
    assert failed(disguised) == {"ledger"}
    half = RunFolder.open(shutil.copytree(rehearsal.path, tmp_path / "half"))
    forged(half, lambda c: c.update(private=True, rehearsal=False, epsilon=1.9))
    assert failed(half) == {"epsilon"}
    ledger = RunFolder.open(shutil.copytree(rehearsal.path, tmp_path / "ledger"))
    edit(ledger.ledger_path, '"seeded":true', '"seeded":false')
    assert "ledger" in failed(ledger)


def test_a_ledger_that_does_not_say_whether_there_was_a_seed_does_not_verify(run):
    lines = run.ledger_path.read_text().replace(',"seeded":false', "").splitlines()
    head = ""
    for place, line in enumerate(lines):
        body = line[: line.index(',"chain"')] + "}"
        head = sha256((head + body).encode()).hexdigest()
        lines[place] = f'{body[:-1]},"chain":"{head}"}}'
    run.ledger_path.write_text("\n".join(lines) + "\n")
    forged(run, lambda c: c["ledger"].update(head=head))
    assert failed(run) == {"ledger"}


def test_a_folder_may_be_called_something_else_and_may_have_no_page(run):
    renamed = RunFolder.open(run.path.rename(run.path.with_name("another name")))
    assert failed(renamed) == set()
    (renamed.path / "report.html").unlink()
    assert failed(renamed) == set()


def test_a_note_that_the_configuration_calls_for_cannot_be_left_out(run):
    assert run.certificate()["notes"]
    forged(run, lambda c: c.update(notes=[]))
    assert failed(run) == {"statements", "measurements"}


def test_a_note_on_a_figure_must_say_what_was_measured(run):
    forged(run, lambda c: c["notes"].append("Measured on 123 public test records, outside of the guarantee: AUROC 1."))
    assert failed(run) == {"measurements"}


LITTLE = (
    "Adding or removing one record of the training data changes the probability of any outcome by at most a factor of "
    "e^{epsilon} (at most {factor}), plus a probability of at most 0.0001."
)


MUCH = (
    "At so large an epsilon the guarantee alone rules out very little: the model may change much by adding or removing "
    "one record of the training data."
)


def test_what_is_protected_is_said_by_what_epsilon_rules_out(original, tmp_path):
    assert original.certificate()["protects"] == LITTLE.format(epsilon="2", factor="7.39")
    weak = trained(tmp_path / "weak", epsilon=1000.0, steps=2)
    certificate = weak.certificate()
    assert certificate["protects"] == MUCH
    assert MUCH in plain_words(certificate)
    assert failed(weak) == set()
    forged(weak, lambda c: c.update(protects=LITTLE))
    assert failed(weak) == {"statements"}


@pytest.mark.parametrize(("charged", "noise", "sentence"), [(0, 0.1, LITTLE), (10, 2.0, LITTLE), (10, 0.3, MUCH)])
def test_the_sentence_follows_from_what_was_charged(tmp_path, charged, noise, sentence):
    certificate = certificate_of(tmp_path, charged=charged, noise=noise)
    epsilon = certificate["epsilon"]
    factor = rounded_up(math.exp(epsilon))
    assert certificate["protects"] == sentence.format(epsilon=rounded_up(epsilon, 3), factor=factor)
    assert (detection(certificate["epsilon"], certificate["delta"]) > 0.99) == (sentence == MUCH)


def test_a_run_without_a_guarantee_protects_nothing(tmp_path):
    assert certificate_of(tmp_path, charged=10, accountant="theorem1")["protects"] == "Nothing."
    folder = trained(tmp_path / "run", epsilon=None, noise_multiplier=0.0, allow_nonprivate=True)
    assert folder.certificate()["protects"] == "Nothing."


def test_what_was_charged_counts_and_not_what_was_planned(tmp_path):
    plan = Plan.of_noise(noise=2.0, records=560, batch_size=56, steps=4)
    assert certificate_of(tmp_path, charged=4)["epsilon"] == plan.epsilon(1e-4).epsilon
    assert (
        plan.epsilon(1e-4).epsilon
        < Plan.of_noise(noise=2.0, records=560, batch_size=56, steps=10).epsilon(1e-4).epsilon
    )


def test_a_run_that_released_nothing_costs_nothing(tmp_path):
    certificate = certificate_of(tmp_path)
    assert (certificate["epsilon"], certificate["epsilon_low"], certificate["epsilon_high"]) == (0, 0, 0)
    assert certificate["cross_check"] == []


@pytest.mark.parametrize("name", ["theorem1", "strong-published"])
def test_a_figure_that_is_no_bound_makes_no_guarantee(name, tmp_path):
    certificate = certificate_of(tmp_path, charged=10, accountant=name)
    assert certificate["private"] is False
    assert certificate["epsilon"] is certificate["epsilon_high"] is None
    plan = Plan.of_noise(noise=2.0, records=560, batch_size=56, steps=10)
    assert certificate["claimed_epsilon"] == accountant(name).epsilon(plan.event(), 1e-4).epsilon
    assert name in certificate["reason"]


def test_a_digest_sees_names_shapes_dtypes_and_every_bit():
    base = {"a": torch.zeros(4), "b": torch.ones(2, 3)}
    others = [
        {"a": torch.zeros(4), "c": torch.ones(2, 3)},
        {"a": torch.zeros(4), "b": torch.ones(3, 2)},
        {"a": torch.zeros(4, dtype=torch.int32), "b": torch.ones(2, 3)},
        {"a": -torch.zeros(4), "b": torch.ones(2, 3)},
        {"a": torch.zeros(4)},
        {},
    ]
    digests = [tensors_digest(each) for each in [base, *others]]
    assert len(set(digests)) == len(digests)
    assert tensors_digest(dict(reversed(base.items()))) == digests[0]
    assert tensors_digest({"a": torch.zeros(4), "b": torch.ones(3, 2).T}) == digests[0]
    assert tensors_digest({"s": torch.tensor(1.0), "e": torch.zeros(0)})


# What is tampered with --------------------------------------------------------------------------------------------


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def certify(run: RunFolder, change: Callable[[dict], None]) -> None:
    certificate = run.certificate()
    change(certificate)
    run.certificate_path.write_text(json.dumps(certificate, indent=2, sort_keys=True))


def without_last_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


TAMPERED: dict[str, tuple[Callable[[RunFolder, RunFolder], object], set[str]]] = {
    "last byte of the model": (lambda run, _: flip(run.model_path, -1), {"model"}),
    "name in the model": (lambda run, _: edit_bytes(run.model_path, b"weight", b"wEight"), {"model"}),
    "model removed": (lambda run, _: run.model_path.unlink(), {"model"}),
    "model of another run": (lambda run, other: shutil.copy(other.model_path, run.path), {"model"}),
    "model saved by others": (lambda run, _: save_file(load_file(run.model_path), run.model_path), {"model"}),
    "epsilon": (
        lambda run, _: certify(run, lambda c: c.update(epsilon=1.0)),
        {"model", "epsilon"},
    ),
    "bracket": (
        lambda run, _: certify(run, lambda c: c.update(epsilon_low=1.0)),
        {"model", "epsilon"},
    ),
    "delta": (lambda run, _: certify(run, lambda c: c.update(delta=1e-9)), {"model", "epsilon"}),
    "neighbours": (
        lambda run, _: certify(run, lambda c: c.update(neighbours="replace-one")),
        {"model", "statements"},
    ),
    "randomness": (
        lambda run, _: certify(run, lambda c: c.update(randomness="secure (really)")),
        {"model", "statements"},
    ),
    "disclosed": (lambda run, _: certify(run, lambda c: c["disclosed"].pop()), {"model", "statements"}),
    "a new statement": (lambda run, _: certify(run, lambda c: c.update(endorsed=True)), {"model", "statements"}),
    "count": (lambda run, _: certify(run, lambda c: c["charged"][0].update(count=5)), {"model", "charges"}),
    "steps": (lambda run, _: certify(run, lambda c: c.update(steps_done=11)), {"model", "charges"}),
    "batch in the plan": (
        lambda run, _: certify(run, lambda c: c["plan"].update(batch_size=28)),
        {"model", "plan", "charges"},
    ),
    "noise in the plan": (
        lambda run, _: certify(run, lambda c: c["plan"].update(noise="uniform:s0=9")),
        {"model", "plan", "charges"},
    ),
    "records in the plan": (
        lambda run, _: certify(run, lambda c: c["plan"].update(records=5600)),
        {"model", "plan", "charges", "statements"},
    ),
    "a part of the certificate": (
        lambda run, _: certify(run, lambda c: c.pop("plan")),
        {"model", "plan", "charges", "epsilon", "statements"},
    ),
    "name of the ledger": (lambda run, _: certify(run, lambda c: c["ledger"].update(run="ab")), {"model", "ledger"}),
    "length of the ledger": (lambda run, _: certify(run, lambda c: c["ledger"].update(length=9)), {"model", "ledger"}),
    "certificate of another run": (
        lambda run, other: shutil.copy(other.certificate_path, run.path),
        {"ledger", "model", "measurements"},
    ),
    "certificate removed": (lambda run, _: run.certificate_path.unlink(), {"certificate"}),
    "certificate that is no JSON": (lambda run, _: run.certificate_path.write_text("epsilon: 1"), {"certificate"}),
    "certificate that is a list": (lambda run, _: run.certificate_path.write_text("[]"), {"certificate"}),
    "last line of the ledger": (
        lambda run, _: without_last_line(run.ledger_path),
        {"ledger", "charges", "epsilon", "statements"},
    ),
    "a number in the ledger": (
        lambda run, _: edit(run.ledger_path, '"seq":3', '"seq":4'),
        {"ledger", "plan", "charges", "epsilon", "statements"},
    ),
    "noise in the ledger": (
        lambda run, _: edit(run.ledger_path, '"noise_multiplier":', '"noise_multiplier":9'),
        {"ledger", "plan", "charges", "epsilon", "statements"},
    ),
    "ledger of another run": (lambda run, other: shutil.copy(other.ledger_path, run.path), {"ledger"}),
    "ledger removed": (
        lambda run, _: run.ledger_path.unlink(),
        {"ledger", "plan", "charges", "epsilon", "statements"},
    ),
    "epsilon in the configuration": (
        lambda run, _: edit(run.config_path, "epsilon = 2.0", "epsilon = 1.0"),
        {"configuration", "plan"},
    ),
    "batch in the configuration": (
        lambda run, _: edit(run.config_path, "batch_size = 56", "batch_size = 55"),
        {"configuration", "plan", "charges"},
    ),
    "steps in the configuration": (
        lambda run, _: edit(run.config_path, "steps = 10", "steps = 9"),
        {"configuration", "plan", "charges", "statements"},
    ),
    "delta in the configuration": (
        lambda run, _: edit(run.config_path, "delta = 0.0001", "delta = 0.001"),
        {"configuration", "plan", "epsilon", "statements"},
    ),
    "a metric": (
        lambda run, _: edit(run.metrics_path, '"test_accuracy": 0.', '"test_accuracy": 0.9'),
        {"measurements", "page"},
    ),
    "metrics removed": (lambda run, _: run.metrics_path.unlink(), {"measurements", "page"}),
    "a count of mistakes": (lambda run, _: edit(run.confusion_path, "[[", "[[9"), {"measurements", "page"}),
    "mistakes removed": (lambda run, _: run.confusion_path.unlink(), {"measurements", "page"}),
    "a word on the page": (lambda run, _: edit(run.path / "report.html", "record", "person"), {"page"}),
    "rate in the configuration": (lambda run, _: edit(run.config_path, "lr = 0.5", "lr = 0.4"), {"configuration"}),
    "seed in the configuration": (
        lambda run, _: edit(run.config_path, "data =", "seed = 0\ndata ="),
        {"configuration", "ledger", "epsilon", "statements"},
    ),
}


def edit_bytes(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize("case", TAMPERED)
def test_every_single_edit_is_found_where_it_was_made(case, run, other):
    tamper, expected = TAMPERED[case]
    tamper(run, other)
    found = failed(run)
    assert found >= expected
    assert found - expected <= {"model", "page"}


def forged(run: RunFolder, change: Callable[[dict], None], **config) -> None:
    """Somebody edits the certificate, and configuration, and mends every checksum about them, and the page."""
    if config:
        run.config_path.write_text(run.config.replace(**config).to_toml())
    certificate = run.certificate()
    certificate["config_digest"] = RunFolder.open(run.path).config.digest()
    change(certificate)
    run.write_certificate(certificate)
    run.save_model(run.load_model_tensors(), model_metadata(certificate))
    with suppress(InputError):  # of figures that no page can be made of
        write_report(run.path)


def nothing(certificate: dict) -> None:
    """Leave the certificate as it is."""


@pytest.mark.parametrize(
    ("change", "config", "expected"),
    [
        (lambda c: c.update(epsilon=1.0, epsilon_low=1.0, epsilon_high=1.0), {}, {"epsilon"}),
        (lambda c: c.update(epsilon=1.0), {"epsilon": 1.0}, {"plan", "epsilon"}),
        (nothing, {"epsilon": 3.0}, {"plan"}),
        (lambda c: c.update(delta=1e-9), {"delta": 1e-9}, {"plan", "epsilon", "statements"}),
        (lambda c: c["plan"].update(noise="uniform:s0=9"), {"noise_multiplier": 9.0}, {"plan", "charges"}),
        (lambda c: c.update(private=False, epsilon=None), {}, {"epsilon"}),
        (lambda c: c.update(accountant="theorem1"), {"accountant": "theorem1"}, {"plan", "epsilon", "statements"}),
        (lambda c: c.update(steps_done=9, steps_lost=2), {}, {"charges"}),
        (lambda c: c.update(steps_done=-1), {}, {"charges", "page"}),
        (nothing, {"lr": 0.4}, set()),
    ],
)
def test_a_figure_is_computed_again_even_if_every_checksum_was_mended(run, change, config, expected):
    forged(run, change, **config)
    assert failed(run) == expected


def test_the_ledger_may_not_go_on_after_the_certificate(run, tmp_path):
    plan = Plan.of_noise(
        noise=float(run.certificate()["plan"]["noise"].split("=")[1]), records=560, batch_size=56, steps=10
    )
    twice = tmp_path / "twice.jsonl"
    with Ledger.create(twice, budget=None) as ledger:
        for _ in range(11):
            ledger.charge(plan.charge_at(0))
    shutil.copy(twice, run.ledger_path)
    assert {"ledger", "plan", "charges", "epsilon"} <= failed(run)
