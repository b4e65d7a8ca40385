"""Scaling by bounds that stand in the source: nothing is computed from the data that is loaded.

Where a bound comes from is said beside it. One chosen by somebody who knew the extremes of a column is a constant too,
but that choice used the data, and no guarantee covers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bounds: TypeAlias = tuple[float, float]
"""The lowest and the highest value a column is declared to have."""


def to_unit_range(columns: NDArray[np.signedinteger[Any]], bounds: Sequence[Bounds]) -> NDArray[np.float32]:
    """Every column from its bounds to [-1, 1]. A value outside of them is moved to the nearer one.

    What becomes of a record depends on that record and on public numbers alone.
    """
    low, high = np.array(bounds, dtype=np.float32).T
    scaled: NDArray[np.float32] = (columns.astype(np.float32) - low) * (2 / (high - low)) - 1
    return scaled.clip(-1, 1)
