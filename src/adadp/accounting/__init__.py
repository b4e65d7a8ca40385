"""Events in, privacy out: (epsilon, delta) with a bracket, by several accountants over the same events. No torch.

>>> from adadp.accounting import accountant
>>> from adadp.events import GaussianRelease, PoissonSampled, Repeated
>>> run = Repeated(PoissonSampled(0.01, GaussianRelease(4.0)), 10_000)
>>> round(accountant("pld").epsilon(run, delta=1e-5).epsilon, 3)
0.947
"""

from __future__ import annotations

from adadp.accounting.answer import Answer, Status, rounded_up
from adadp.accounting.base import Accountant
from adadp.accounting.pld import ACCOUNTANTS, accountant

__all__ = ["ACCOUNTANTS", "Accountant", "Answer", "Status", "accountant", "rounded_up"]
