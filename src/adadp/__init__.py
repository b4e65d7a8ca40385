"""AdaDP: train PyTorch models under differential privacy, with a guarantee that is true.

The public names below are loaded when they are first used, so that ``import adadp`` is instant and loads neither numpy
nor torch. Everything else is imported from the module that defines it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from adadp.errors import AdaDPError, BudgetExceeded, InputError, Interrupted, MixedRecords

if TYPE_CHECKING:
    from adadp.accounting import accountant
    from adadp.app.accounting.groups import GroupAccountant
    from adadp.app.accounting.plans import plan_for
    from adadp.app.batchnorm import replace_batchnorm
    from adadp.app.config import TrainConfig
    from adadp.app.loop import PrivateGradients
    from adadp.app.predict import load_model
    from adadp.app.selection import tune
    from adadp.app.sources import Padded
    from adadp.app.train import Evaluation, TrainResult, fit
    from adadp.app.verify import verify_run as verify
    from adadp.clipping import ClipRule
    from adadp.ledger import Ledger
    from adadp.methods import Method
    from adadp.plan import Plan

__version__ = "0.1.0"

_HOMES = {
    "ClipRule": "adadp.clipping:ClipRule",
    "Evaluation": "adadp.app.train:Evaluation",
    "GroupAccountant": "adadp.app.accounting.groups:GroupAccountant",
    "Ledger": "adadp.ledger:Ledger",
    "Method": "adadp.methods:Method",
    "Padded": "adadp.app.sources:Padded",
    "Plan": "adadp.plan:Plan",
    "PrivateGradients": "adadp.app.loop:PrivateGradients",
    "TrainConfig": "adadp.app.config:TrainConfig",
    "TrainResult": "adadp.app.train:TrainResult",
    "accountant": "adadp.accounting:accountant",
    "fit": "adadp.app.train:fit",
    "load_model": "adadp.app.predict:load_model",
    "plan_for": "adadp.app.accounting.plans:plan_for",
    "replace_batchnorm": "adadp.app.batchnorm:replace_batchnorm",
    "tune": "adadp.app.selection:tune",
    "verify": "adadp.app.verify:verify_run",
}
"""Public name -> where it is defined."""

__all__ = [
    "AdaDPError",
    "BudgetExceeded",
    "ClipRule",
    "Evaluation",
    "GroupAccountant",
    "InputError",
    "Interrupted",
    "Ledger",
    "Method",
    "MixedRecords",
    "Padded",
    "Plan",
    "PrivateGradients",
    "TrainConfig",
    "TrainResult",
    "__version__",
    "accountant",
    "fit",
    "load_model",
    "plan_for",
    "replace_batchnorm",
    "tune",
    "verify",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'adadp' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
