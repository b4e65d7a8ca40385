"""The figures of a model on a page: those that lead, all of them with their intervals, and the curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from adadp.app.figures.headline import NAMES, baseline, interval, leading, written
from adadp.app.figures.measured import LEVEL
from adadp.app.report.html.formatting import unbroken, whole
from adadp.app.report.html.page import Axis, Chart, Figure, Part, Section, Series, Table, Tone

Figures = Mapping[str, Any]

_MOST_ROWS = 12
"""Of more classes only those found least are listed."""
_WORDS = {
    "accuracy": "share of the records that is right",
    "balanced_accuracy": "mean over the classes of the share that is found",
    "auroc": "chance that a record of the class scores above one that is not",
    "auprc": "mean precision over the records of the class",
    "log_loss": "mean minus log of the probability of what was true (0 is best)",
    "brier": "mean squared error of the probabilities (0 is best)",
    "recall": "share of the class that is found",
    "precision": "share that is right of what is called so",
    "false_alarms": "share of the other class that is called so",
    "mae": "mean distance",
    "rmse": "root of the mean squared distance",
    "r2": "share of the variance explained (0 is as good as always answering the mean)",
}


def key_figures(figures: Figures) -> list[Figure]:
    """The figures that lead, with their intervals."""
    tone: Tone = "plain" if baseline(figures) is None else "warn"
    found = []
    of_targets = figures["targets"] if figures["kind"] == "numbers" else [figures]
    for each in of_targets[:2]:
        of = f" of {each['target']}" if len(of_targets) > 1 else ""
        for name in leading(figures):
            figure = each["figures"][name]
            span = interval(name, figure)
            note = f"{100 * LEVEL:.0f} % interval {span}" if span else _WORDS[name]
            label = f"{NAMES[name]} at threshold {figures['threshold']:g}" if name == "recall" else f"{NAMES[name]}{of}"
            found.append(Figure(label, written(name, figure["value"]), unbroken(note), tone))
    return found


def figures_section(figures: Figures, title: str, text: str, name: str) -> Section:
    """All figures of ``figures``; its charts are called by ``name``."""
    parts: list[Part] = []
    if figures["kind"] == "numbers":
        several = len(figures["targets"]) > 1
        for each in figures["targets"]:
            parts.append(_table(each["figures"], each["target"] if several else "Figure", wide=not several))
    else:
        parts += [_table(figures["figures"], "Figure"), *_by_class(figures)]
    parts += _groups(figures)
    parts += _charts(figures, name)
    return Section(title, tuple(parts), unbroken(text))


def _table(figures: Mapping[str, Mapping[str, float | None]], head: str, *, wide: bool = False) -> Table:
    rows = tuple(
        (NAMES[name], written(name, each["value"]), interval(name, each) or "-") for name, each in figures.items()
    )
    return Table((head, "Value", f"{100 * LEVEL:.0f} % interval"), rows, _legend(figures) if wide else "", wide=wide)


def _legend(figures: Iterable[str]) -> str:
    """What the figures are."""
    return "; ".join(f"{NAMES[name]}: {_WORDS[name]}" for name in figures) + "."


def _by_class(figures: Figures) -> list[Part]:
    classes = [each for each in figures["classes"] if each["records"] > 0]
    caption = _legend(figures["figures"])
    if len(classes) > _MOST_ROWS:
        classes = sorted(classes, key=lambda each: each["recall"] or 0.0)[:_MOST_ROWS]
        caption = f"The {_MOST_ROWS} classes of which the smallest share is found. {caption}"
    rows = tuple(
        (
            f"{each['class']}: {whole(round(each['records']))}",
            written("recall", each["recall"]),
            written("precision", each["precision"]),
        )
        for each in classes
    )
    at = f" at threshold {figures['threshold']:g}" if "threshold" in figures else ""
    return [Table((f"Class and its records{at}", "Recall", "Precision"), rows, caption)]


def _groups(figures: Figures) -> list[Part]:
    groups = figures.get("groups")
    if groups is None:
        return []
    names = [name for name in NAMES if any(name in row for row in groups["rows"])]
    rows = [
        (row["group"], whole(row["records"]), *(written(name, row.get(name)) for name in names))
        for row in groups["rows"]
    ]
    gaps = groups["gaps"]
    rows.append(("Largest gap", "", *(written(name, gaps.get(name)) for name in names)))
    columns = (groups["by"], "Records", *(NAMES[name] for name in names))
    caption = "Of few records a difference may be chance."
    if "called" in names:
        caption += " Called positive is the share that is called so, right or not."
    return [Table(columns, tuple(rows), caption, wide=True)]


def _charts(figures: Figures, name: str) -> list[Part]:
    curves = figures.get("curves")
    if curves is None or not curves["roc"]:
        return []
    positive = figures["classes"][1]
    share = positive["records"] / max(figures["records"], 1)
    axes = {
        "alarms": Axis("false alarms", percent=True, zero=True),
        "recall": Axis("recall", percent=True, zero=True),
        "precision": Axis("precision", percent=True, zero=True),
        "said": Axis("probability said", percent=True, zero=True),
        "happened": Axis("share that was so", percent=True, zero=True),
    }
    constant = Series("guessing", (0.0, 1.0), (0.0, 1.0), dashed=True, style=6)
    at_share = Series("guessing", (0.0, 1.0), (share, share), dashed=True, style=6)
    ideal = Series("calibrated", (0.0, 1.0), (0.0, 1.0), dashed=True, style=6)
    found: list[Part] = [
        Chart(
            f"{name}roc",
            f"Finding {positive['class']}: recall and false alarms",
            "line",
            axes["alarms"],
            axes["recall"],
            (_line("the model", curves["roc"]), constant),
            "One point for each threshold. The area below is the AUROC.",
        ),
        Chart(
            f"{name}precision",
            f"Finding {positive['class']}: precision and recall",
            "line",
            axes["recall"],
            axes["precision"],
            (_line("the model", curves["precision"]), at_share),
            "One point for each threshold. Guessing has the share of the class as its precision.",
        ),
    ]
    if len(curves["calibration"]) < 2:  # all probabilities are alike
        return found
    sizes = ", ".join(f"{whole(round(row[2]))} at {100 * row[0]:.0f} %" for row in curves["calibration"])
    calibrated = Chart(
        f"{name}calibration",
        f"Calibration: what a probability of {positive['class']} means",
        "line",
        axes["said"],
        axes["happened"],
        (_line("the model", [row[:2] for row in curves["calibration"]]), ideal),
        f"Each point stands for records of similar probability: {sizes}.",
        wide=True,
    )
    return [*found, calibrated]


def _line(name: str, points: list[list[float]]) -> Series:
    return Series(name, tuple(point[0] for point in points), tuple(point[1] for point in points))
