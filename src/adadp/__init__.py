"""AdaDP: train PyTorch models under differential privacy, with a guarantee that is true.

The public names below are loaded when they are first used, so that ``import adadp`` is instant and loads neither numpy
nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adadp.accounting import (
        Answer,
        RdpFilter,
        RunShape,
        ZcdpFilter,
        accountant,
        longest,
        longest_within_rho,
        most_repetitions,
        smallest_noise,
    )
    from adadp.events import (
        AdaptivelyChosen,
        Composed,
        FixedSizeSampled,
        GaussianRelease,
        Neighbours,
        PoissonSampled,
        Repeated,
        ReshuffledEpoch,
        Selection,
        ZcdpCost,
    )
    from adadp.ledger import Ledger, PlannedBudget, read_ledger
    from adadp.schedules import parse_schedule

__version__ = "0.1.0"

_HOMES = {
    "adadp.accounting": (
        "Answer",
        "RdpFilter",
        "RunShape",
        "ZcdpFilter",
        "accountant",
        "longest",
        "longest_within_rho",
        "most_repetitions",
        "smallest_noise",
    ),
    "adadp.events": (
        "AdaptivelyChosen",
        "Composed",
        "FixedSizeSampled",
        "GaussianRelease",
        "Neighbours",
        "PoissonSampled",
        "Repeated",
        "ReshuffledEpoch",
        "Selection",
        "ZcdpCost",
    ),
    "adadp.ledger": ("Ledger", "PlannedBudget", "read_ledger"),
    "adadp.schedules": ("parse_schedule",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdaptivelyChosen",
    "Answer",
    "Composed",
    "FixedSizeSampled",
    "GaussianRelease",
    "Ledger",
    "Neighbours",
    "PlannedBudget",
    "PoissonSampled",
    "RdpFilter",
    "Repeated",
    "ReshuffledEpoch",
    "RunShape",
    "Selection",
    "ZcdpCost",
    "ZcdpFilter",
    "__version__",
    "accountant",
    "longest",
    "longest_within_rho",
    "most_repetitions",
    "parse_schedule",
    "read_ledger",
    "smallest_noise",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'adadp' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
