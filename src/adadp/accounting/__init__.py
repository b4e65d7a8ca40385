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
from adadp.accounting.filters import Filter, RdpFilter, ZcdpFilter, filter_like
from adadp.accounting.pld import PldAccountant
from adadp.accounting.renyi import RdpAccountant
from adadp.accounting.zcdp import ZcdpAccountant
from adadp.registry import Registry


def _accept(found: object) -> Accountant | None:
    made = found() if isinstance(found, type) and issubclass(found, Accountant) else found
    return made if isinstance(made, Accountant) else None


ACCOUNTANTS: Registry[Accountant] = Registry(
    "accountant",
    {each.name: each for each in (PldAccountant(), RdpAccountant(), ZcdpAccountant())},
    _accept,
)
"""By name, the tight ones first. ``pld`` is the default everywhere."""


def accountant(name: str = "pld") -> Accountant:
    """The accountant called ``name``, or the one at ``module:Name``."""
    return ACCOUNTANTS.find(name)


__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Answer",
    "Filter",
    "RdpFilter",
    "Status",
    "ZcdpFilter",
    "accountant",
    "filter_like",
    "rounded_up",
]
