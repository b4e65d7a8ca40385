"""Which figure is said first, and in which words: the one that does not mislead.

    the model                                     the headline
    ============================================  =================================================================
    two classes, about as frequent                accuracy
    two classes, one much rarer                   AUROC, with the recall at the threshold
    more classes, about as frequent               accuracy
    more classes, some much rarer                 balanced accuracy
    numbers                                       MAE and R^2 (of several targets, of each)
    any of these, with noise                      the same with its interval, in place of R^2
    ...that beats no constant answer              that it does not, first

Classes are about as frequent if the largest has at most 1.5 times its share among equal ones: 75 % of two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_EVEN = 1.5
_MOST_NAMED = 3
NAMES = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "log_loss": "Log loss",
    "brier": "Brier score",
    "recall": "Recall",
    "precision": "Precision",
    "false_alarms": "False alarms",
    "called": "Called positive",
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R²",
}
"""Figures by their names in figures.json."""
SHARES = ("accuracy", "balanced_accuracy", "recall", "precision", "false_alarms", "called")
"""Figures that are written in percent."""

Figures = Mapping[str, Any]


def even(figures: Figures) -> bool:
    """Whether the classes are about as frequent as each other."""
    sizes = [each["records"] for each in figures["classes"]]
    return bool(max(sizes) * sum(size > 0 for size in sizes) <= _EVEN * sum(sizes))


def baseline(figures: Figures) -> str | None:
    """That a constant answer does as well, if it does; None where the model is better."""
    if figures["kind"] == "numbers":
        worse = [each["target"] for each in figures["targets"] if not _at_best(figures, each, "r2") > 0]
        if not worse:
            return None
        of = "" if len(figures["targets"]) == 1 else f" of {', '.join(worse[:_MOST_NAMED])}"
        return f"no better than always answering the mean{of}"
    largest = max(figures["classes"], key=lambda each: each["records"])
    if not figures.get("noisy") and sum(each["records"] > 0 for each in figures["classes"]) < 2:
        return f"nothing to tell apart: all records are of class {largest['class']}"
    right = _at_best(figures, figures, "accuracy") * sum(each["records"] for each in figures["classes"])
    low = figures["figures"].get("auroc", {}).get("low")
    if low is not None and low <= 0.5 and not even(figures):
        return "no better than guessing"
    chosen = figures.get("threshold", 0.5) != 0.5  # then to find more is worth some accuracy
    if chosen and (_value(figures, "recall") or 0) > (_value(figures, "false_alarms") or 0):
        return None
    if right < largest["records"] + 0.5:
        return f"no better than always answering {largest['class']}"
    return None


def headline(figures: Figures) -> str:
    """The figure that counts, after what a constant answer does if that is as good; begins with a small letter."""
    if figures.get("noisy") and any(
        _value(each, leading(figures)[0]) is None for each in figures.get("targets", [figures])
    ):
        return "too few records were kept aside for a figure"
    worse = baseline(figures)
    said = _leading(figures)
    if worse is None:
        return said
    # A ranking may be good although its threshold finds nobody: both are said.
    return f"{worse} ({said})"


def lines(figures: Figures) -> tuple[str, ...]:
    """What a terminal says: the headline as a sentence, then what else must be known."""
    records = f"{figures['records']:,} {'held-out' if figures.get('noisy') else 'test'} records"
    said = headline(figures)
    found = [f"On {records}: {said}."]
    if figures["kind"] == "binary":
        positive = figures["classes"][1]
        rate = _percent(positive["records"] / max(figures["records"], 1))
        found.append(
            f"Class {positive['class']} is {rate} of them. At threshold {figures['threshold']:g}, "
            f"{_said_of(figures, 'recall', 'of it is found')}, and {_right_of_called(figures)}."
        )
    if figures["kind"] != "numbers":
        missed = [each for each in figures["classes"] if each["records"] > 0 and not each["recall"]]
        if missed and not figures.get("noisy"):
            named = ", ".join(f"{each['class']} ({each['records']:,})" for each in missed[:_MOST_NAMED])
            more = f" and {len(missed) - _MOST_NAMED} more" if len(missed) > _MOST_NAMED else ""
            found.append(f"Never found, with the number of records: {named}{more}.")
    gap = figures.get("groups", {}).get("gaps", {})
    name = next((each for each in ("recall", "accuracy", "mae") if each in gap), None)
    if name is not None:
        size = _percent(gap[name], points=True) if name in SHARES else f"{gap[name]:.4g}"
        called = NAMES[name] if name == "mae" else NAMES[name].lower()
        found.append(f"The largest gap in {called} between groups by {figures['groups']['by']}: {size}.")
    return tuple(found)


def written(name: str, value: float | None) -> str:
    """The value of a figure as its kind is written."""
    if value is None:
        return "-"
    return _percent(value) if name in SHARES else f"{value:.4g}"


def interval(name: str, figure: Mapping[str, float | None]) -> str:
    """The interval of a figure; empty where it has none."""
    low, high = figure.get("low"), figure.get("high")
    return "" if low is None or high is None else f"{written(name, low)} to {written(name, high)}"


def leading(figures: Figures) -> Sequence[str]:
    """The names of the figures that lead, the first one first."""
    if figures["kind"] == "numbers":
        return ("mae", "r2")
    if even(figures):
        return ("accuracy",)
    return ("auroc", "recall") if figures["kind"] == "binary" else ("balanced_accuracy",)


def _leading(figures: Figures) -> str:
    if figures["kind"] == "numbers":
        parts = []
        for each in figures["targets"][:_MOST_NAMED]:
            of = "" if len(figures["targets"]) == 1 else f" of {each['target']}"
            about = f"R² {written('r2', _value(each, 'r2'))}"
            parts.append(f"MAE{of} {written('mae', _value(each, 'mae'))} ({_bar(figures, each, 'mae') or about})")
        return ", ".join(parts)
    name, *others = leading(figures)
    if name == "accuracy":
        bar = _bar(figures, figures, name)
        set_of = f"held-out records right ({bar})" if bar else "test set right"
        return f"{_percent(_value(figures, name))} of the {set_of}"
    bar = _bar(figures, figures, name)
    said = f"{NAMES[name] if name == 'auroc' else NAMES[name].lower()} {written(name, _value(figures, name))}"
    said += f" ({bar})" if bar else ""
    if others:
        positive = figures["classes"][1]["class"]
        said += f", {_said_of(figures, 'recall', f'of class {positive} found')}"
    return said


def _said_of(figures: Figures, name: str, what: str) -> str:
    """``what`` after the share it is, or that the share is not known."""
    value = _value(figures, name)
    if value is None:
        return f"an unknown share {what}"
    bar = _bar(figures, figures, name)
    return f"{_percent(value)}{f' ({bar})' if bar else ''} {what}"


def _right_of_called(figures: Figures) -> str:
    """How much is right of what is called positive, if anything is."""
    if _value(figures, "precision") is not None:
        return _said_of(figures, "precision", "of what is called so is right")
    return "too little is called so to say how much of it is right" if figures.get("noisy") else "nothing is called so"


def _bar(figures: Figures, holder: Mapping[str, Any], name: str) -> str:
    """The interval of a figure with noise, which is never said without; empty for figures without noise."""
    return interval(name, holder["figures"][name]) if figures.get("noisy") else ""


def _at_best(figures: Figures, holder: Mapping[str, Any], name: str) -> float:
    """A figure as it is; one with noise as the better end of its interval: chance alone does not call a model bad."""
    figure = holder["figures"].get(name, {})
    found = figure.get("high") if figures.get("noisy") else figure.get("value")
    return float("inf") if found is None and figures.get("noisy") else found or 0.0


def _value(holder: Mapping[str, Any], name: str) -> float | None:
    value: float | None = holder["figures"].get(name, {}).get("value")
    return value


def _percent(value: float | None, *, points: bool = False) -> str:
    if value is None:
        return "an unknown share"
    return f"{100 * value:.2f} {'percentage points' if points else '%'}"
