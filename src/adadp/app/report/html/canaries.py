"""What canaries showed of a run, for its page: a lower bound beside the epsilon, and how well they were told apart.

a run without canaries             nothing
a bound above the epsilon          in red: something is wrong with the run
canaries.json that is broken       ``RunError``
alarms at no false or true one     left out of the chart, whose axes are logarithmic
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adadp.app.one_run import fallen, rates
from adadp.app.report.html.formatting import number, whole
from adadp.app.report.html.page import Axis, Chart, Figure, Section, Series, Words
from adadp.app.runs import RunFolder
from adadp.certificate.detection import detection
from adadp.certificate.wording import guarantee_of
from adadp.errors import InputError, RunError

_POINTS = 60


def audit_figures(certificate: Mapping[str, Any] | None) -> list[Figure]:
    """The lower bound, to stand beside the certified epsilon."""
    found = None if certificate is None else certificate.get("audit")
    if certificate is None or found is None:
        return []
    claimed = guarantee_of(certificate)
    refuted = claimed is not None and found["epsilon_low"] > claimed["epsilon"]
    text = f"by {whole(found['canaries'])} canaries, confidence {found['confidence']:.0%}; no guarantee"
    return [
        Figure(
            "Epsilon shown by an attack", f"\u2265 {number(found['epsilon_low'])}", text, "bad" if refuted else "plain"
        )
    ]


def audit_section(folder: RunFolder, certificate: Mapping[str, Any] | None) -> list[Section]:
    """How well the losses of canaries told which of them were trained on, with logarithmic axes."""
    if certificate is None or "audit" not in certificate:
        return []
    content = folder.canaries()
    try:
        assert content is not None
        false, true = rates(fallen(content), content["included"])
        fewest = 1 / len(content["included"])
        title = "How well canaries were told apart"
        return [Section(title, (_chart(certificate, false, true, fewest), Words((certificate["audit"]["text"],))))]
    except (AssertionError, KeyError, TypeError, ValueError, InputError) as error:  # no file, or another one
        raise RunError(
            f"{folder.canaries_path} does not hold the canaries of this run: {type(error).__name__} {error}.",
            fix="Put the run's own file back.",
        ) from error


def _chart(certificate: Mapping[str, Any], false: Any, true: Any, fewest: float) -> Chart:
    shown = (false > 0) & (true > 0)
    grid = [float(f"{each:.6g}") for each in np.geomspace(fewest, 1.0, _POINTS)]
    series = [
        Series("this attack", tuple(false[shown].tolist()), tuple(true[shown].tolist())),
        Series("guessing", tuple(grid), tuple(grid), dashed=True),
    ]
    claimed = guarantee_of(certificate)
    if claimed is not None:
        most = tuple(detection(claimed["epsilon"], certificate["delta"], each) for each in grid)
        series.append(Series("the most that epsilon allows", tuple(grid), most, dashed=True))
    return Chart(
        "canaries",
        "Membership of canaries: right and false alarms",
        "line",
        Axis("false alarms", "log"),
        Axis("canaries that were trained on and found", "log"),
        tuple(series),
        "At every threshold of the score, which is how much the loss of a canary fell.",
    )
