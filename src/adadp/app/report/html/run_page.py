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
a broken confusion.json            ``RunError``
a certificate of another format    ``InputError``
"""

from __future__ import annotations

from collections.abc import Sequence

from adadp import __version__
from adadp.accounting import rounded_up
from adadp.app.config import TrainConfig
from adadp.app.report.html.formatting import (
    doubts,
    duration,
    number,
    percent,
    percent_up,
    unbroken,
    whole,
)
from adadp.app.report.html.page import Figure, KeyFigures, Page, Tone
from adadp.app.report.html.run_charts import Line
from adadp.app.report.html.run_sections import (
    Certificate,
    again,
    final_look,
    matrix_of,
    mistakes,
    over_the_epochs,
    progress,
    protection,
    settings,
)
from adadp.app.runs import ClassCounts, Evaluated, RunFolder
from adadp.certificate.detection import FALSE_ALARMS, detection, rules_out_little
from adadp.certificate.make import FORMAT
from adadp.certificate.wording import guarantee_of, small
from adadp.errors import InputError


def run_page(folder: RunFolder) -> Page:
    """The page of the run in ``folder``."""
    config, lines, certificate = folder.config, folder.metrics(), folder.certificate()
    if certificate is not None and certificate.get("format") != FORMAT:
        raise InputError(
            f"The certificate in {folder.path} was written by another AdaDP.",
            why=f"Its format is not {FORMAT}.",
            fix="Use the release that wrote it.",
        )
    look = final_look(lines)
    matrix, counts = matrix_of(folder), folder.class_counts()
    about = () if matrix is None or counts is None else doubts(counts, matrix.labels)
    status, tone, headline = _verdict(config, certificate, look)
    sections = [
        *([] if certificate is None else [protection(certificate)]),
        *progress(config, lines, certificate),
        *mistakes(matrix, counts),
        *([] if certificate is None else over_the_epochs(config, certificate)),
        settings(config, certificate),
        again(folder, certificate),
    ]
    return Page(
        title=f"{config.method} on {config.data}",
        kicker=f"Training run: {config.method} on {config.data}",
        headline=headline,
        status=status,
        tone=tone,
        lead=_lead(certificate, about),
        figures=KeyFigures(tuple(_figures(lines, certificate, look, counts))),
        sections=tuple(sections),
        made_with=f"Made with AdaDP {__version__ if certificate is None else certificate['versions']['adadp']}.",
    )


def _verdict(
    config: TrainConfig, certificate: Certificate | None, look: float | Evaluated | None
) -> tuple[str, Tone, str]:
    if certificate is None:
        return "NOT FINISHED", "warn", f"{config.method} on {config.data}: the run has not finished"
    if certificate["rehearsal"]:
        return (
            "REHEARSAL, NOT FOR RELEASE",
            "warn",
            f"Rehearsal: {_came_to(look)}, and with its seed nobody is protected",
        )
    if not certificate["private"]:
        return "NOT PRIVATE", "bad", f"Not private: {_came_to(look)}, and nobody is protected"
    epsilon = rounded_up(certificate["epsilon"])
    delta = small(certificate["delta"]).replace("-", "\u2011")  # a hyphen at which no line is broken
    guarantee = f"(\u03b5\u00a0=\u00a0{epsilon}, \u03b4\u00a0=\u00a0{delta})"
    found = _came_to(look)
    headline = f"{found[0].upper()}{found[1:]}, with {guarantee} differential privacy"
    if rules_out_little(certificate["epsilon"], certificate["delta"]):  # good news only if it rules something out
        return "PRIVATE, WEAKLY", "warn", headline
    return "PRIVATE", "good", headline


def _came_to(look: float | Evaluated | None) -> str:
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


def _figures(
    lines: Sequence[Line],
    certificate: Certificate | None,
    look: float | Evaluated | None,
    counts: ClassCounts | None,
) -> list[Figure]:
    figures = [] if look is None else _looked(look, counts)
    proved = None if certificate is None else guarantee_of(certificate)
    if certificate is None:
        steps = max((line["step"] for line in lines), default=0)
        figures.append(Figure("Steps logged", whole(steps)))
    elif certificate["rehearsal"] and proved is not None:
        without = f"{rounded_up(proved['epsilon'])} at delta = {small(certificate['delta'])} without a seed"
        figures.append(Figure("Epsilon", "none", f"nothing is protected; {without}", "bad"))
    elif proved is not None:
        epsilon, delta = proved["epsilon"], certificate["delta"]
        figures += [
            Figure(
                "Epsilon", rounded_up(epsilon), f"at delta = {small(delta)}, certified by {certificate['accountant']}"
            ),
            Figure(
                "Chance to detect a record",
                f"\u2264 {percent_up(detection(epsilon, delta))}",
                f"by any test with {100 * FALSE_ALARMS:.0f} % false alarms",
                "warn" if rules_out_little(epsilon, delta) else "plain",
            ),
        ]
    else:
        claimed = certificate.get("claimed_by_paper", {}).get("epsilon", certificate.get("claimed_epsilon"))
        figures.append(Figure("Epsilon", "none", "nothing is protected", "bad"))
        if claimed is not None:
            figures.append(Figure("Claimed epsilon", number(claimed), "not proved, no guarantee", "warn"))
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
