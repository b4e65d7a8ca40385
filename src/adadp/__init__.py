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
    from adadp.clipping import Automatic, ClipRule, Flat, PerLayer, PerLayerJoint, QuantileAdaptive, parse_clip_rule
    from adadp.config import TrainConfig
    from adadp.events import (
        AdaptivelyChosen,
        BestOf,
        Composed,
        Disjoint,
        FixedSizeSampled,
        GaussianRelease,
        Neighbours,
        PoissonSampled,
        Repeated,
        ReshuffledEpoch,
        Selection,
        ZcdpCost,
    )
    from adadp.gradients import GradientEngine, replace_batchnorm
    from adadp.ledger import Ledger, PlannedBudget, read_ledger
    from adadp.methods import AdaDp, DpSgd, Method, parse_method
    from adadp.plan import Plan
    from adadp.predict import TrainedModel, load_model
    from adadp.schedules import parse_schedule, tabulated
    from adadp.selection import SearchResult, tune
    from adadp.sizing import auto_lot, auto_steps
    from adadp.step import PrivateGradients
    from adadp.train import Evaluation, TrainResult, fit

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
    "adadp.clipping": (
        "Automatic",
        "ClipRule",
        "Flat",
        "PerLayer",
        "PerLayerJoint",
        "QuantileAdaptive",
        "parse_clip_rule",
    ),
    "adadp.config": ("TrainConfig",),
    "adadp.events": (
        "AdaptivelyChosen",
        "BestOf",
        "Composed",
        "Disjoint",
        "FixedSizeSampled",
        "GaussianRelease",
        "Neighbours",
        "PoissonSampled",
        "Repeated",
        "ReshuffledEpoch",
        "Selection",
        "ZcdpCost",
    ),
    "adadp.gradients": ("GradientEngine", "replace_batchnorm"),
    "adadp.ledger": ("Ledger", "PlannedBudget", "read_ledger"),
    "adadp.methods": ("AdaDp", "DpSgd", "Method", "parse_method"),
    "adadp.plan": ("Plan",),
    "adadp.predict": ("TrainedModel", "load_model"),
    "adadp.schedules": ("parse_schedule", "tabulated"),
    "adadp.selection": ("SearchResult", "tune"),
    "adadp.sizing": ("auto_lot", "auto_steps"),
    "adadp.step": ("PrivateGradients",),
    "adadp.train": ("Evaluation", "TrainResult", "fit"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdaDp",
    "AdaptivelyChosen",
    "Answer",
    "Automatic",
    "BestOf",
    "ClipRule",
    "Composed",
    "Disjoint",
    "DpSgd",
    "Evaluation",
    "FixedSizeSampled",
    "Flat",
    "GaussianRelease",
    "GradientEngine",
    "Ledger",
    "Method",
    "Neighbours",
    "PerLayer",
    "PerLayerJoint",
    "Plan",
    "PlannedBudget",
    "PoissonSampled",
    "PrivateGradients",
    "QuantileAdaptive",
    "RdpFilter",
    "Repeated",
    "ReshuffledEpoch",
    "RunShape",
    "SearchResult",
    "Selection",
    "TrainConfig",
    "TrainResult",
    "TrainedModel",
    "ZcdpCost",
    "ZcdpFilter",
    "__version__",
    "accountant",
    "auto_lot",
    "auto_steps",
    "fit",
    "load_model",
    "longest",
    "longest_within_rho",
    "most_repetitions",
    "parse_clip_rule",
    "parse_method",
    "parse_schedule",
    "read_ledger",
    "replace_batchnorm",
    "smallest_noise",
    "tabulated",
    "tune",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'adadp' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
