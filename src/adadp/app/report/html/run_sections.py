"""The sections of the page of a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from adadp.accounting import rounded_up
from adadp.app.config import TrainConfig
from adadp.app.report.html.formatting import meaning, percent, unbroken, whole
from adadp.app.report.html.page import Chart, Command, Matrix, Part, Section, Table, Tone, Words
from adadp.app.report.html.run_charts import (
    Line,
    accountants_chart,
    looks_chart,
    looks_of,
    schedules,
    spending_chart,
    trade_chart,
)
from adadp.app.report.html.searches import search_command
from adadp.app.report.wording import record_in_words
from adadp.app.runs import ClassCounts, Evaluated, RunFolder, certificate_digest
from adadp.certificate.detection import rules_out_little
from adadp.certificate.wording import guarantee_of
from adadp.errors import RunError

Certificate = Mapping[str, Any]


def final_look(lines: Sequence[Line]) -> float | Evaluated | None:
    """The accuracy, or what an evaluation of the user's own came to, at the last look; None where there was none."""
    looks = looks_of(lines)
    return looks[-1][1] if looks else None


def protection(certificate: Certificate) -> Section:
    """What the certificate states, in the words of who is affected."""
    title = "What this protects, and what it does not"
    proved = guarantee_of(certificate)
    if proved is None:
        why = (certificate.get("reason", ""), certificate.get("claimed_by_paper", {}).get("text", ""))
        parts: list[Part] = [
            Words(tuple(each for each in why if each), "Nothing is protected", "bad"),
            Words(("Do not publish this model if its records must stay private.",), "What follows", "warn"),
        ]
        return Section(title, tuple(parts))
    features = certificate.get("features", {})
    protects = [
        proved["protects"],
        record_in_words(certificate),
        *(f"Released privately before the training, and charged: {each}" for each in features.get("released", ())),
        *(f"Public from the start, so nothing to protect: {each}" for each in features.get("public", ())),
        *([certificate["search"]["text"]] if "search" in certificate else []),
    ]
    limits = [
        *certificate["not_covered"],
        *(f"Disclosed: {each}" for each in certificate["disclosed"]),
    ]
    epsilon, delta = proved["epsilon"], certificate["delta"]
    weak = rules_out_little(epsilon, delta)
    tone: Tone = "warn" if weak else "good"
    heading = "Protected, weakly" if weak else "Protected"
    means = "means"
    shown: list[Part] = []
    if certificate["rehearsal"]:
        shown.append(Words((certificate["reason"],), "Nothing is protected: this is a rehearsal", "bad"))
        heading, tone = f"What the same run without a seed would protect{', weakly' if weak else ''}", "plain"
        means = "would mean without a seed"
    shown += [
        Words(tuple(protects), heading, tone, listed=True),
        Words(tuple(limits), "Not protected either way" if certificate["rehearsal"] else "Not protected", "warn", True),
        Words(meaning(epsilon, delta, certificate["neighbours"]), f"What epsilon {rounded_up(epsilon)} {means}"),
    ]
    notes = (
        f"Randomness: {certificate['randomness']}. Arithmetic: {certificate['arithmetic']}.",
        *certificate["notes"],
    )
    shown.append(Words(notes, "Notes", listed=True))
    shown.append(Words(tuple(certificate["caveats"]), "Technical caveats", listed=True))
    return Section(title, tuple(shown))


def progress(config: TrainConfig, lines: Sequence[Line], certificate: Certificate | None) -> list[Section]:
    """Accuracy (or another evaluation) and privacy during the run, and what every accountant says in the end."""
    proved = None if certificate is None else guarantee_of(certificate)
    looked = looks_chart(lines)
    spending = spending_chart(lines, config.delta, config.accountant)
    curves = [looked, spending, trade_chart(lines, None if proved is None else proved["epsilon"])]
    parts: list[Part] = [chart for chart in curves if chart is not None]
    if looked is None and final_look(lines) is not None:
        searched = certificate is not None and "search" in certificate
        advice = (
            "A search does not evaluate the model during the run."
            if searched
            else "For a curve, train with --evaluate-every 1."
        )
        parts.append(Words((f"The model was evaluated on the test set once, at the end. {advice}",)))
    by_accountant = None if certificate is None else accountants_chart(certificate)
    parts += [] if by_accountant is None else [by_accountant]
    own = isinstance(final_look(lines), Evaluated)
    title = "Evaluation and privacy during the run" if own else "Accuracy and privacy during the run"
    return [Section(title, tuple(parts))] if parts else []


def matrix_of(folder: RunFolder) -> Matrix | None:
    """The confusion matrix of the folder, if it has one."""
    found = folder.confusion()
    if found is None:
        return None
    try:
        return Matrix(
            tuple(str(each) for each in found["labels"]),
            tuple(tuple(int(each) for each in row) for row in found["counts"]),
            "Rows: the true class, columns: what the model says. The last column is the share of a class that was "
            "found (recall).",
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{folder.confusion_path} is no matrix of mistakes: {error}.", fix="Put the run's own file back."
        ) from error


def mistakes(matrix: Matrix | None, counts: ClassCounts | None) -> list[Section]:
    """Which classes are confused, and what the accuracy would be without a model."""
    if matrix is None or counts is None:
        return []
    text = (
        f"Counts on the test set. Balanced accuracy, the mean of the last column: "
        f"{percent(counts.balanced_accuracy)}. Always answering {matrix.labels[counts.largest]}, the most frequent "
        f"class: {percent(counts.largest_share)}."
    )
    return [Section("Which classes are confused", (matrix,), unbroken(text))]


def over_the_epochs(config: TrainConfig, certificate: Certificate) -> list[Section]:
    """What followed a schedule, and what did not."""
    charts, constants = schedules(config, certificate)
    parts: list[Chart | Table] = [*charts]
    if constants:
        parts.append(Table(("The same in every epoch", ""), tuple(constants)))
    text = "Noise is measured in multiples of what one record can contribute."
    return [Section("What changed over the epochs", tuple(parts), text)] if parts else []


def settings(config: TrainConfig, certificate: Certificate | None) -> Section:
    """Every setting, everything that was charged, and the software."""
    rows = tuple((name, _plain(value)) for name, value in config.as_dict().items())
    parts: list[Part] = [Table(("Setting", "Value"), rows, left=2)]
    if certificate is not None:
        charged = tuple((each["text"], whole(each["count"])) for each in certificate["charged"])
        versions = tuple((name, str(value)) for name, value in certificate["versions"].items())
        parts += [
            Table(("Charged to the ledger", "Times"), charged),
            Table(("Software", "Version"), versions, left=2),
        ]
    return Section("Settings", tuple(parts))


def again(folder: RunFolder, certificate: Certificate | None) -> Section:
    """How to check the run, and how to make it again."""
    return Section("Check it, run it again", (*_rerun(folder, certificate), *_checks(certificate)))


def _rerun(folder: RunFolder, certificate: Certificate | None) -> tuple[Part, ...]:
    """How to make the run again. One that a search chose is what no training makes: it would not be charged as that."""
    config, search = folder.config, folder.search()
    if config.data == "python":
        return (Words(("The data was handed over in Python (adadp.fit), so no command runs this again.",)),)
    if certificate is None:
        way, what = ("train", "run") if search is None else ("tune", "search")
        said = (
            f"Resume the {what}, in the folder where it was started, with the path of this folder as seen from there:"
        )
        return (Command(f"adadp {way} --resume {shlex.quote(folder.path.name)}", said),)
    own = "encoder_digest" in certificate  # then file names are those that were given, relative ones too
    where = ", in the folder where this run was started" if own else ""
    if search is None:
        cost = ". A second run on the same records spends epsilon a second time" if own else ""
        said = f"Run it again, with every setting written out{where}{cost}:"
        return (Command(f"{config.as_command()} --out again", said),)
    why = Words(
        (
            "A search chose this run, so no adadp train command repeats it: with the same settings that would be "
            "another run, whose epsilon would leave out what choosing them told about the records.",
        )
    )
    command = search_command(search, "again")
    if command is None:
        return (why,)
    said = f"Search again, among the same settings{where}, which costs the same epsilon once more:"
    return (why, Command(command, said))


def _checks(certificate: Certificate | None) -> tuple[Part, ...]:
    if certificate is None:
        return ()
    digests = [
        ("certificate", certificate_digest(certificate)),
        ("model", certificate["model_digest"]),
        ("configuration", certificate["config_digest"]),
        ("head of the ledger", certificate["ledger"]["head"]),
    ]
    caption = "Keep a copy of the first digest elsewhere: whoever can write to the folder can replace all of it."
    verify = "Compute the guarantee again from the ledger, and check the model and this page. Run this in the folder:"
    return (
        Command("adadp verify .", verify),
        Table(("SHA-256 of", "Digest"), tuple(digests), caption, left=2, wide=True),
    )


def _plain(value: object) -> str:
    """A setting as it is: who makes the run again types what is read here."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)
