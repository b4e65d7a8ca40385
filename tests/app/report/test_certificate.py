"""The certificate says what was released, and ``verify_run`` finds whatever does not agree with it."""

from __future__ import annotations

from certificate_cases import certificate_of, failed, original, rehearsal, run, trained  # noqa: F401

from adadp import __version__
from adadp.app.report.wording import plain_words
from adadp.app.runs import certificate_digest
from adadp.app.train import verify_run
from adadp.events import from_json

# What it says -----------------------------------------------------------------------------------------------------


def test_a_certificate_says_everything_a_reader_needs(original):
    certificate = original.certificate()
    event = from_json(certificate["charged"][0]["event"])
    assert certificate["epsilon_low"] <= certificate["epsilon"] == certificate["epsilon_high"] <= 2
    assert certificate["epsilon_low"] > 1.99
    assert certificate["delta"] == 1e-4
    assert certificate["private"] is True
    assert certificate["rehearsal"] is False
    assert "if_unseeded" not in certificate
    assert certificate["neighbours"] == "add-remove" == event.neighbours.value
    assert certificate["sampling"] == "poisson"
    assert certificate["method"] == "adadp"
    assert certificate["randomness"] == "secure (operating-system entropy)"
    assert certificate["charged"][0]["count"] == certificate["steps_done"] == certificate["plan"]["steps"] == 10
    assert certificate["versions"]["adadp"] == __version__
    assert set(certificate["versions"]) == {"adadp", "python", "torch", "numpy"}
    checked = {each["accountant"]: each["epsilon"] for each in certificate["cross_check"]}
    assert {"pld", "rdp", "moments"} <= set(checked)
    assert not {"theorem1", "zcdp-sampled", "strong-published"} & set(checked)
    assert min(checked.values()) == checked["pld"] == certificate["epsilon"]
    disclosed = " ".join(certificate["disclosed"])
    assert "number of training records, 560" in disclosed
    many, person, public = certificate["not_covered"]
    assert many.startswith("What is true of many records alike.")
    assert person.startswith("Several records of one person together.")
    assert public == "Evaluations on the test set, which must be public."
    rounding, apart, time = certificate["caveats"]
    assert "the corner of a ReLU" in rounding
    assert "from that record alone was proved" in apart
    assert "is not covered" in apart
    assert "How long the run took is published, rounded up to one digit" in time
    assert original.model_metadata() == {
        "certificate_digest": certificate_digest(certificate),
        "private": "true",
        "rehearsal": "false",
        "epsilon": repr(certificate["epsilon"]),
        "delta": "0.0001",
        "neighbours": "add-remove",
    }


def test_the_whole_run_verifies_and_nothing_is_written(original):
    before = {path.name: path.read_bytes() for path in original.path.iterdir()}
    checks = verify_run(original)
    assert [check.name for check in checks] == [
        "configuration",
        "ledger",
        "model",
        "plan",
        "charges",
        "epsilon",
        "statements",
        "measurements",
        "page",
    ]
    assert all(check.passed for check in checks), checks
    assert {path.name: path.read_bytes() for path in original.path.iterdir()} == before


def test_secure_searched_and_hidden_are_said(tmp_path):
    folder = trained(tmp_path / "run", seed=None, searched=7, records=600, sampling="poisson")
    certificate = folder.certificate()
    assert certificate["randomness"].startswith("secure")
    assert not any("seed" in line or "exact number" in line for line in certificate["disclosed"])
    assert "The choice among 7 settings that were tried outside of this run." in certificate["not_covered"]
    assert failed(folder) == set()


def test_in_plain_words(original):
    words = plain_words(original.certificate())
    for part in (
        "(2, 0.0001)-differentially private",
        "add-remove",
        "10 of 10 steps of adadp",
        "secure",
        "\nDisclosed\n  Every number",
        "\nNot covered\n  What is true of many records alike",
        "Other accountants with a proof: rdp",
        "One record is: one entry of the training data, as it was given.\n",
    ):
        assert part in words
    protects, record, guarantee, *_ = words.splitlines()
    assert protects == original.certificate()["protects"]
    assert record.startswith("One record is")
    assert guarantee.endswith(": the model is (2, 0.0001)-differentially private, for add-remove neighbours.")
    titles = ("Not covered", "Disclosed", "How the model was made", "Technical caveats")
    parts = [words.index(title) for title in titles]
    assert parts == sorted(parts)
    assert all("ounding" not in line for line in words[: parts[-1]].splitlines())
    wide = {**original.certificate(), "epsilon_low": 1.9, "epsilon_high": 2.0}
    assert "epsilon by pld is between 1.9 and 2, the upper end counts." in plain_words(wide)
    assert "epsilon by pld is 2. Other" in plain_words({**wide, "epsilon_low": 2.0})
    assert "(2, 1e-6)-" in plain_words({**original.certificate(), "delta": 1e-6})
    assert "lost" not in words
    assert "10 of 10 steps of adadp (3 more were charged and lost)" in plain_words(
        {**original.certificate(), "steps_lost": 3}
    )
    assert "Accounting: nothing was released" in plain_words(
        {**original.certificate(), "epsilon": 0, "cross_check": []}
    )
    reason = {"private": False, "rehearsal": False, "reason": "Because."}
    assert plain_words(reason) == "NOT PRIVATE. Because."


def test_a_run_with_a_seed_is_a_rehearsal_and_says_so_first(rehearsal, original):
    certificate = rehearsal.certificate()
    assert certificate["private"] is False
    assert certificate["rehearsal"] is True
    assert certificate["epsilon"] is certificate["epsilon_low"] is certificate["epsilon_high"] is None
    assert certificate["cross_check"] == []
    assert certificate["protects"] == "Nothing."
    assert "the seed 7" in certificate["reason"]
    assert "whoever has the seed can compute the noise again and subtract it" in certificate["reason"]
    real = original.certificate()
    assert certificate["if_unseeded"] == {name: real[name] for name in certificate["if_unseeded"]}
    assert set(certificate["if_unseeded"]) == {"epsilon", "epsilon_low", "epsilon_high", "protects", "cross_check"}
    first, second, *_ = plain_words(certificate).splitlines()
    assert first == f"REHEARSAL, NOT FOR RELEASE. {certificate['reason']}"
    assert second.startswith("Without a seed the same run would be (2, 0.0001)-differentially private")
    metadata = rehearsal.model_metadata()
    assert (metadata["private"], metadata["rehearsal"], metadata["epsilon"]) == ("false", "true", "none")
    assert metadata["epsilon_if_unseeded"] == repr(real["epsilon"])
    assert all("epsilon" not in line for line in rehearsal.metrics())


def test_what_has_no_proof_is_no_rehearsal_of_anything(tmp_path):
    certificate = certificate_of(tmp_path, charged=10, accountant="theorem1", seed=7)
    assert (certificate["private"], certificate["rehearsal"]) == (False, False)
    assert "theorem1" in certificate["reason"]
    folder = trained(tmp_path / "run", epsilon=None, noise_multiplier=0.0, allow_nonprivate=True, seed=7)
    assert plain_words(folder.certificate()) == "NOT PRIVATE. The run added no noise: nothing is protected."
