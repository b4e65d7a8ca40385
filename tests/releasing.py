"""What a released feature stage learns, through the real mechanism and a seed."""

from __future__ import annotations

from torch import Tensor

from adadp.app.features import ReleasedStage
from adadp.noise import GaussianMechanism
from adadp.randomness import SeededSource


def released(stage: ReleasedStage, records: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """The query of ``stage`` with its noise."""
    return GaussianMechanism().release(
        stage.query(records),
        l2_bound=stage.l2_bound,
        noise_multiplier=stage.noise_multiplier,
        source=SeededSource(seed),
        step=0,
        purpose="features/0",
    )


def learned(stage: ReleasedStage, records: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """What follows from it."""
    return stage.learned(released(stage, records, seed), tuple(records.shape[1:]))
