"""Shapes of schedules beside the core's tables, and the schedule that follows scores of validation records."""

from adadp.app.schedules.shapes import ExponentialDecay, PolynomialDecay, StepDecay, TimeDecay, tabulated
from adadp.app.schedules.validation import ValidationDecay

__all__ = ["ExponentialDecay", "PolynomialDecay", "StepDecay", "TimeDecay", "ValidationDecay", "tabulated"]
