"""How large a batch and how long a run: ``--batch-size auto`` and ``--steps auto``, from (epsilon, delta, N) alone.

**Batches.** For a given length, what reaches the model is a sum with noise of deviation sigma(L) C over L records:
noise per record sigma(L) / L. A larger batch always has less of it, down to that of the whole data set in every step,
and costs proportionally more time. Most of the gain comes early: the rule takes the smallest batch at which the noise
per record is at most ``ENOUGH`` times that of the whole data set, never more than ``EPOCHS`` passes over the data, and
no batch so small that drawing it is a noise of its own: a fiftieth of the data, or 64 records.

**Steps.** A run needs some hundred steps of an adaptive optimizer to converge, and every further step takes a share of
the budget from the others. ``STEPS`` is what the measurements in docs/methods/adadp.md suggest; where epsilon is small
the noise allows fewer: the number falls with the root of epsilon below ``FULL_LENGTH``, not under ``FEWEST``.

**Tables.** A linear model on features of length 1 needs about 300 steps of Adam. A tenth of the records in a batch and
32 epochs are 320 steps. Noise matters less the more records there are and time more, so from ``MANY`` records on the
batch grows with the root of their number only, and there are fewer epochs, so many that the steps stay near 320, but 8
at least, because the rate falls from epoch to epoch.

Nothing here looks at data. N is public: the size of a public data set, or the number the user gives.
"""

from __future__ import annotations

import functools
import math

from adadp.app.accounting.plans import plan_for

ENOUGH = 1.1
EPOCHS = 100
STEPS, FEWEST, FULL_LENGTH = 800, 200, 0.5
SHARE, MANY, TABLE_EPOCHS, FEWEST_EPOCHS = 10, 100_000, 32, 8
"""Of a batch of a table; see above."""


def auto_steps(epsilon: float) -> int:
    """The number of steps for a target epsilon."""
    return max(FEWEST, round(STEPS * min(1.0, math.sqrt(epsilon / FULL_LENGTH)) / 10) * 10)


def table_size(records: int) -> tuple[int, int]:
    """The batch, to two digits, and the epochs for a table."""
    batch_size = _two_digits(records / SHARE if records <= MANY else math.sqrt(records * MANY) / SHARE)
    epochs = round(TABLE_EPOCHS * SHARE * batch_size / records)
    return batch_size, min(TABLE_EPOCHS, max(FEWEST_EPOCHS, epochs))


@functools.cache
def auto_batch_size(
    *, epsilon: float, delta: float, records: int, steps: int, before: tuple[float, ...] = (), accountant: str = "pld"
) -> int:
    """The smallest batch, to two digits, with nearly as little noise per record as the whole data set in every step."""

    def noise_per_record(batch_size: int) -> float:
        plan = plan_for(
            epsilon=epsilon,
            delta=delta,
            records=records,
            batch_size=batch_size,
            steps=steps,
            before=before,
            accountant_name=accountant,
        )
        return plan.noise_multiplier_at(0) / batch_size

    largest = max(1, min(records, EPOCHS * records // steps))
    smallest = min(largest, max(records // 50, 64))
    sizes = sorted({max(smallest, _two_digits(largest / 1.25**power)) for power in range(40)} | {largest})
    wanted = ENOUGH * noise_per_record(records)
    low, high = 0, len(sizes) - 1
    while low < high:  # noise per record falls with the batch
        middle = (low + high) // 2
        if noise_per_record(sizes[middle]) <= wanted:
            high = middle
        else:
            low = middle + 1
    return sizes[low]


def _two_digits(value: float) -> int:
    return max(1, int(float(f"{value:.2g}")))
