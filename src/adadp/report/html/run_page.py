"""The page of one run, from nothing but the public files in its folder.

a finished run                     what it came to, what that protects, and how to check it
a run that is not private          says so first and in red, with the reason; its paper's figure is a claim
a run with a seed                  private as certified, and a warning: who knows the seed can compute the noise
an epsilon that rules out little   private as certified, "weakly", and a warning: any record may be detected
a run that has not finished        says so, and shows what was logged; no guarantee is stated
a run without test records         no accuracy anywhere
no better than always answering    says so below the headline, as it does of classes that are never found
the most frequent class
no confusion.json                  no matrix, no balanced accuracy
a broken confusion.json            ``RunError``
"""

from __future__ import annotations

from collections.abc import Sequence

from adadp import __version__
from adadp.accounting import rounded_up
from adadp.config import TrainConfig
from adadp.report.detection import FALSE_ALARMS, detection, rules_out_little
from adadp.report.html.page import Figure, KeyFigures, Page, Tone
from adadp.report.html.run_charts import Line
from adadp.report.html.run_sections import (
    Certificate,
    again,
    final_accuracy,
    matrix_of,
    mistakes,
    over_the_epochs,
    progress,
    protection,
    settings,
)
from adadp.report.html.words import (
    doubts,
    duration,
    number,
    percent,
    percent_up,
    small,
    unbroken,
    whole,
)
from adadp.runs import ClassCounts, RunFolder


def run_page(folder: RunFolder) -> Page:
    """The page of the run in ``folder``."""
    config, lines, certificate = folder.config, folder.metrics(), folder.certificate()
    accuracy = final_accuracy(lines)
    matrix, counts = matrix_of(folder), folder.class_counts()
    about = () if matrix is None or counts is None else doubts(counts, matrix.labels)
    status, tone, headline = _verdict(config, certificate, accuracy)
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
        lead=_lead(certificate, about, seeded=config.seed is not None),
        figures=KeyFigures(tuple(_figures(lines, certificate, accuracy, counts))),
        sections=tuple(sections),
        made_with=f"Made with AdaDP {__version__ if certificate is None else certificate['versions']['adadp']}.",
    )


def _verdict(config: TrainConfig, certificate: Certificate | None, accuracy: float | None) -> tuple[str, Tone, str]:
    right = "A model" if accuracy is None else f"{percent(accuracy)} of the test set right"
    if certificate is None:
        return "NOT FINISHED", "warn", f"{config.method} on {config.data}: the run has not finished"
    if not certificate["private"]:
        return "NOT PRIVATE", "bad", f"Not private: {right[0].lower() + right[1:]}, and nobody is protected"
    epsilon = rounded_up(certificate["epsilon"])
    delta = small(certificate["delta"]).replace("-", "\u2011")  # a hyphen at which no line is broken
    guarantee = f"(\u03b5\u00a0=\u00a0{epsilon}, \u03b4\u00a0=\u00a0{delta})"
    return *_badge(certificate, seeded=config.seed is not None), f"{right}, with {guarantee} differential privacy"


def _badge(certificate: Certificate, *, seeded: bool) -> tuple[str, Tone]:
    """The verdict on a guarantee in a few words: it is good news only where it rules something out."""
    weak = rules_out_little(certificate["epsilon"], certificate["delta"])
    if seeded:
        return f"PRIVATE, {'WEAKLY, AND' if weak else 'BUT'} ITS SEED IS KNOWN", "warn"
    return ("PRIVATE, WEAKLY", "warn") if weak else ("PRIVATE", "good")


def _lead(certificate: Certificate | None, about: tuple[str, ...], *, seeded: bool) -> tuple[str, ...]:
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
        *(
            ["Who reads the seed of this run can compute its noise: fine to compare with, not to publish."]
            if seeded
            else []
        ),
    )


def _figures(
    lines: Sequence[Line], certificate: Certificate | None, accuracy: float | None, counts: ClassCounts | None
) -> list[Figure]:
    figures = [] if accuracy is None else _accuracies(accuracy, counts)
    if certificate is None:
        steps = max((line["step"] for line in lines), default=0)
        figures.append(Figure("Steps logged", whole(steps)))
    elif certificate["private"]:
        epsilon, delta = certificate["epsilon"], certificate["delta"]
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
    seconds = max((line["seconds"] for line in lines if "seconds" in line), default=None)
    if seconds is not None:
        steps = "" if certificate is None else f"{whole(certificate['steps_done'])} steps"
        figures.append(Figure("Training time", duration(seconds), steps))
    return figures


def _accuracies(accuracy: float, counts: ClassCounts | None) -> list[Figure]:
    """The accuracy beside what it is without a model, and over the classes; a warning where it hides something."""
    if counts is None:
        return [Figure("Test accuracy", percent(accuracy), "on the public test set")]
    constant = unbroken(f"always answering the most frequent class: {percent(counts.largest_share)}")
    return [
        Figure("Test accuracy", percent(accuracy), constant, "plain" if counts.beats_largest else "warn"),
        Figure(
            "Balanced accuracy",
            percent(counts.balanced_accuracy),
            "the mean over the classes of the share that is found",
            "warn" if counts.never_right else "plain",
        ),
    ]
