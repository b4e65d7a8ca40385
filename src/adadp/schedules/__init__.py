"""Numbers over the epochs of a run: shapes, their text, and the schedule that follows looks at validation records.

shapes.py a number for every epoch.      text.py text both ways, texts that leave a number open.
validation.py the one that is not known ahead.
"""

from adadp.schedules.registry import SHAPES, OpenSchedule, parse_noise, parse_open, parse_schedule
from adadp.schedules.shapes import (
    ExponentialDecay,
    Piecewise,
    PolynomialDecay,
    Schedule,
    StepDecay,
    TimeDecay,
    Uniform,
    number_text,
    tabulated,
)
from adadp.schedules.validation import ValidationDecay

__all__ = [
    "SHAPES",
    "ExponentialDecay",
    "OpenSchedule",
    "Piecewise",
    "PolynomialDecay",
    "Schedule",
    "StepDecay",
    "TimeDecay",
    "Uniform",
    "ValidationDecay",
    "number_text",
    "parse_noise",
    "parse_open",
    "parse_schedule",
    "tabulated",
]
