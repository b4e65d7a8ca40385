"""How well one record can be detected at most: what a guarantee is explained by, and worded by."""

from __future__ import annotations

import math

from adadp import checks

FALSE_ALARMS = 0.05
"""The rate of false alarms that a guarantee is explained with."""

_LITTLE = 0.99
"""Where a record may be detected more often than this, the guarantee alone rules out very little."""


def detection(epsilon: float, delta: float, false_alarms: float = FALSE_ALARMS) -> float:
    """How often, at most, a test that raises ``false_alarms`` finds the record it looks for.

    A test tells two neighbouring data sets apart by the model. (epsilon, delta)-differential privacy holds for the set
    of outcomes where it raises an alarm, and for the set where it does not, with the data sets in either order. With a
    rate a of false alarms and a rate t of true ones that is t <= e^epsilon a + delta, and, from the outcomes without an
    alarm, 1 - a <= e^epsilon (1 - t) + delta (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015).

        epsilon = 0                          t <= a + delta: as good as guessing
        epsilon infinite, or so large that   1 or next to it: the guarantee rules nothing out
        e^epsilon overflows
    """
    if epsilon == math.inf:
        return 1.0
    epsilon, delta = checks.non_negative("epsilon", epsilon), checks.probability("delta", delta)
    alarms = checks.probability("false_alarms", false_alarms)
    by_alarms = math.exp(min(epsilon, 700.0)) * alarms + delta
    by_silence = 1 - math.exp(-epsilon) * max(0.0, 1 - alarms - delta)
    return max(alarms, min(1.0, by_alarms, by_silence))


def rules_out_little(epsilon: float, delta: float) -> bool:
    """Whether a guarantee is so weak that nobody should be told that the model hardly depends on one record."""
    return detection(epsilon, delta) > _LITTLE
