"""Scores of two classes that overlap, for the tests of figures."""

from __future__ import annotations

import numpy as np


def scored(size: int, generator: np.random.Generator, share: float = 0.2):
    labels = (generator.random(size) < share).astype(np.int64)
    logits = generator.normal(size=size) * 1.2 + 2.2 * labels - 2.2
    positive = 1 / (1 + np.exp(-logits))
    return np.stack([1 - positive, positive], axis=1), labels
