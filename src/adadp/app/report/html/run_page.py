"""The page of one run, from nothing but the public files in its folder.

a finished run                     what it came to, what that protects, and how to check it
a run that is not private          says so first and in red, with the reason; its paper's figure is a claim
a run with a seed                  a rehearsal: says so first; its epsilon is what it would be without a seed
an epsilon that rules out little   private as certified, "weakly", and a warning: any record may be detected
a run that has not finished        says so, and shows what was logged; no guarantee is stated
a run without test records         no accuracy anywhere
an evaluation of the user's own    its name, value and range, never a share that is right
no better than always answering    says so below the headline, as it does of classes that are never found
the most frequent class
no confusion.json                  no matrix, no balanced accuracy
no figures.json                    the accuracy, or the evaluation, alone
a class that is rare               AUROC and recall lead, and not the accuracy
a broken confusion.json, or        ``RunError``
figures.json, or holdout.json
a certificate of another format    ``InputError``
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from adadp import __version__
from adadp.accounting import rounded_up
from adadp.app.accounting.tradeoff import TradeOff
from adadp.app.config import OWN_LOOP, TrainConfig
from adadp.app.figures.headline import headline as headline_of
from adadp.app.figures.headline import leading
from adadp.app.figures.measured import DRAWS
from adadp.app.report.attacks import attacks_on
from adadp.app.report.html import run_charts as charts
from adadp.app.report.html.canaries import audit_figures, audit_section
from adadp.app.report.html.figure_parts import figures_section, key_figures
from adadp.app.report.html.formatting import doubts, duration, number, percent, percent_up, unbroken, whole
from adadp.app.report.html.page import Command, Figure, KeyFigures, Matrix, Page, Part, Section, Table, Tone, Words
from adadp.app.report.html.protection import protection
from adadp.app.report.html.run_charts import Line
from adadp.app.report.html.searches import search_command
from adadp.app.report.wording import status
from adadp.app.runs import ClassCounts, Evaluated, RunFolder, certificate_digest
from adadp.certificate.detection import FALSE_ALARMS, rules_out_little
from adadp.certificate.make import FORMAT
from adadp.certificate.wording import guarantee_of, small
from adadp.errors import AdaDPError, InputError, RunError

Certificate = Mapping[str, Any]
Figures = Mapping[str, Any]


def run_page(folder: RunFolder) -> Page:
    """The page of the run in ``folder``."""
    try:
        return _page(folder)
    except AdaDPError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RunError(
            f"The files in {folder.path} do not hold what a run writes: {type(error).__name__} {error}.",
            fix=f"Put the run's own files back; adadp verify {folder.path} says which differ.",
        ) from error


def _page(folder: RunFolder) -> Page:
    config, lines, certificate = folder.config, folder.metrics(), folder.certificate()
    if certificate is not None and certificate.get("format") != FORMAT:
        raise InputError(
            f"The certificate in {folder.path} was written by another AdaDP.",
            why=f"Its format is not {FORMAT}.",
            fix="Use the release that wrote it.",
        )
    look = _final_look(lines)
    matrix, counts = _matrix_of(folder), folder.class_counts()
    about = () if matrix is None or counts is None else doubts(counts, matrix.labels)
    figures, released = _readable(folder)
    attacks = None if certificate is None else attacks_on(certificate)
    verdict, tone, headline = _verdict(config, certificate, _came_to(look, figures, released))
    sections = [
        *([] if certificate is None else protection(certificate, attacks)),
        *_quality(figures, released),
        *_progress(config, lines, certificate),
        *_mistakes(matrix, counts),
        *audit_section(folder, certificate),
        *([] if certificate is None else _over_the_epochs(config, certificate)),
        settings(config, certificate),
        Section("Check it, run it again", (*_rerun(folder, certificate), *_checks(certificate))),
    ]
    return Page(
        title=f"{config.method} on {config.data}",
        kicker=f"Training run: {config.method} on {config.data}",
        headline=headline,
        status=verdict,
        tone=tone,
        lead=_lead(certificate, about),
        figures=KeyFigures(tuple(_figures(lines, certificate, attacks, _leading(look, counts, figures, released)))),
        sections=tuple(sections),
        made_with=f"Made with AdaDP {__version__ if certificate is None else certificate['versions']['adadp']}.",
    )


def _verdict(config: TrainConfig, certificate: Certificate | None, found: str) -> tuple[str, Tone, str]:
    if certificate is None:
        return "NOT FINISHED", "warn", f"{config.method} on {config.data}: the run has not finished"
    if certificate["rehearsal"]:
        headline = f"Rehearsal: {found}, and with its seed nobody is protected"
        return status(certificate), "warn", headline
    if not certificate["private"]:
        return status(certificate), "bad", f"Not private: {found}, and nobody is protected"
    epsilon = rounded_up(certificate["epsilon"])
    delta = small(certificate["delta"]).replace("-", "\u2011")  # a hyphen at which no line is broken
    guarantee = f"(\u03b5\u00a0=\u00a0{epsilon}, \u03b4\u00a0=\u00a0{delta})"
    headline = f"{found[0].upper()}{found[1:]}, with {guarantee} differential privacy"
    weak = rules_out_little(certificate["epsilon"], certificate["delta"])  # good news only if it rules something out
    return status(certificate), "warn" if weak else "good", headline


def _came_to(look: float | Evaluated | None, figures: Figures | None, released: Figures | None) -> str:
    """What is said first about the model: of public test records, or else of those that were kept aside."""
    if figures is None and look is None and released is not None:
        figures = released.get("figures")
    if figures is not None:
        return headline_of(figures)
    if look is None:
        return "a model"
    return str(look) if isinstance(look, Evaluated) else f"{percent(look)} of the test set right"


def _lead(certificate: Certificate | None, about: tuple[str, ...]) -> tuple[str, ...]:
    if certificate is None:
        return ("There is no certificate yet, so nothing is promised. Below is what was logged so far.",)
    if not certificate["private"]:
        claimed = certificate.get("claimed_by_paper", {}).get("text", "")
        return (*(each for each in (certificate.get("reason", ""), claimed) if each), *about)
    plan = certificate["plan"]
    return (
        *about,
        f"{certificate['protects']} Neighbours: {certificate['neighbours']}. Method {certificate['method']}, "
        f"{whole(certificate['steps_done'])} steps over {whole(plan['records'])} records.",
    )


def _leading(
    look: float | Evaluated | None, counts: ClassCounts | None, figures: Figures | None, released: Figures | None
) -> list[Figure]:
    """The figures that lead: those of public test records, or else of those that were kept aside."""
    if look is None:
        kept = None if released is None else released.get("figures")
        return [] if kept is None else key_figures(kept)
    if figures is None or leading(figures) == ("accuracy",):
        return _looked(look, counts)
    return key_figures(figures)


def _readable(folder: RunFolder) -> tuple[Figures | None, Figures | None]:
    """The figures in the folder, if all of them can be shown."""
    figures, released = folder.figures(), folder.holdout()
    try:
        _quality(figures, released)
        for each in (figures, None if released is None else released["figures"]):
            if each is not None:
                headline_of(each), key_figures(each)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, InputError) as error:
        raise RunError(
            f"{folder.figures_path} or {folder.holdout_path} does not hold figures: {type(error).__name__} {error}.",
            fix="Put the run's own file back.",
        ) from error
    return figures, released


def _quality(figures: Figures | None, released: Figures | None) -> list[Section]:
    """How good the model is, on public records and on those that were kept aside."""
    sections = []
    if figures is not None:
        text = (
            f"On {whole(figures['records'])} public test records. Intervals are those of {DRAWS} test sets drawn with "
            "replacement from this one: what depends on which records are in it."
        )
        sections.append(figures_section(figures, "How good the model is", text, ""))
    if released is not None and released.get("figures") is not None:
        sections.append(
            figures_section(released["figures"], "On records that were kept aside", released["text"], "held-")
        )
    return sections


def _figures(
    lines: Sequence[Line], certificate: Certificate | None, attacks: TradeOff | None, looked: list[Figure]
) -> list[Figure]:
    figures = looked
    proved = None if certificate is None else guarantee_of(certificate)
    if certificate is None:
        steps = max((line["step"] for line in lines), default=0)
        figures.append(Figure("Steps logged", whole(steps)))
    elif certificate["rehearsal"] and proved is not None:
        without = f"{rounded_up(proved['epsilon'])} at delta = {small(certificate['delta'])} without a seed"
        figures.append(Figure("Epsilon", "none", f"nothing is protected; {without}", "bad"))
    elif proved is not None and attacks is not None:
        epsilon, delta = proved["epsilon"], certificate["delta"]
        figures += [
            Figure(
                "Epsilon",
                rounded_up(epsilon),
                f"at delta = {small(delta)}, certified by {certificate['accountant']}; as Gaussian DP "
                f"\u03bc\u00a0=\u00a0{rounded_up(attacks.mu)}",
            ),
            Figure(
                "Chance to detect a record",
                f"\u2264 {percent_up(attacks.detected(FALSE_ALARMS))}",
                f"by any test with {100 * FALSE_ALARMS:.0f} % false alarms",
                "warn" if rules_out_little(epsilon, delta) else "plain",
            ),
        ]
    else:
        claimed = certificate.get("claimed_by_paper", {}).get("epsilon", certificate.get("claimed_epsilon"))
        figures.append(Figure("Epsilon", "none", "nothing is protected", "bad"))
        if claimed is not None:
            figures.append(Figure("Claimed epsilon", number(claimed), "not proved, no guarantee", "warn"))
    figures += audit_figures(certificate)
    seconds = [line["seconds"] for line in lines if "seconds" in line]
    if seconds:
        steps = "" if certificate is None else f"{whole(certificate['steps_done'])} steps"
        figures.append(Figure("Training time", f"\u2264 {duration(seconds[-1])}", steps))
    return figures


def _looked(look: float | Evaluated, counts: ClassCounts | None) -> list[Figure]:
    """The accuracy beside what it is without a model, and over the classes; a warning where it hides something."""
    if isinstance(look, Evaluated):
        return [Figure(look.name, look.digits, look.span)]
    if counts is None:
        return [Figure("Test accuracy", percent(look), "on the test set")]
    constant = unbroken(f"always answering the most frequent class: {percent(counts.largest_share)}")
    return [
        Figure("Test accuracy", percent(look), constant, "plain" if counts.beats_largest else "warn"),
        Figure(
            "Balanced accuracy",
            percent(counts.balanced_accuracy),
            "the mean over the classes of the share that is found",
            "warn" if counts.never_right else "plain",
        ),
    ]


def _final_look(lines: Sequence[Line]) -> float | Evaluated | None:
    """The accuracy, or what an evaluation of the user's own came to, at the last look; None where there was none."""
    looks = charts.looks_of(lines)
    return looks[-1][1] if looks else None


def _progress(config: TrainConfig, lines: Sequence[Line], certificate: Certificate | None) -> list[Section]:
    """Accuracy (or another evaluation) and privacy during the run, and what every accountant says in the end."""
    proved = None if certificate is None else guarantee_of(certificate)
    looked = charts.looks_chart(lines)
    spending = charts.spending_chart(lines, config.delta, config.accountant)
    curves = [looked, spending, charts.trade_chart(lines, None if proved is None else proved["epsilon"])]
    parts: list[Part] = [chart for chart in curves if chart is not None]
    if looked is None and _final_look(lines) is not None:
        advice = "For a curve, train with --evaluate-every 1."
        if certificate is not None and "search" in certificate:
            advice = "A search does not evaluate the model during the run."
        parts.append(Words((f"The model was evaluated on the test set once, at the end. {advice}",)))
    by_accountant = None if certificate is None else charts.accountants_chart(certificate)
    parts += [] if by_accountant is None else [by_accountant]
    own = isinstance(_final_look(lines), Evaluated)
    title = "Evaluation and privacy during the run" if own else "Accuracy and privacy during the run"
    return [Section(title, tuple(parts))] if parts else []


def _matrix_of(folder: RunFolder) -> Matrix | None:
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


def _mistakes(matrix: Matrix | None, counts: ClassCounts | None) -> list[Section]:
    """Which classes are confused, and what the accuracy would be without a model."""
    if matrix is None or counts is None:
        return []
    text = (
        f"Counts on the test set. Balanced accuracy, the mean of the last column: "
        f"{percent(counts.balanced_accuracy)}. Always answering {matrix.labels[counts.largest]}, the most frequent "
        f"class: {percent(counts.largest_share)}."
    )
    return [Section("Which classes are confused", (matrix,), unbroken(text))]


def _over_the_epochs(config: TrainConfig, certificate: Certificate) -> list[Section]:
    changing, constants = charts.schedules(config, certificate)
    parts: list[Part] = [*changing]
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


def _rerun(folder: RunFolder, certificate: Certificate | None) -> tuple[Part, ...]:
    """How to make the run again. One that a search chose is what no training makes: it would not be charged as that."""
    config, search = folder.config, folder.search()
    if config.data == OWN_LOOP:
        return (Words(("A training loop of the user's own made this run, so no command runs it again.",)),)
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
