"""Per-example gradients: captured as pairs of activations, reduced to norms and sums."""

from __future__ import annotations

from adadp.gradients.capture import Capture, Groups
from adadp.gradients.engine import GradientEngine, engine_for
from adadp.gradients.oracle import loop_gradients

__all__ = ["Capture", "GradientEngine", "Groups", "engine_for", "loop_gradients"]
