"""Events in, privacy out: (epsilon, delta) with a bracket, by several accountants over the same events. No torch.

>>> from adadp.accounting import accountant
>>> from adadp.events import GaussianRelease, PoissonSampled, Repeated
>>> run = Repeated(PoissonSampled(0.01, GaussianRelease(4.0)), 10_000)
>>> round(accountant("pld").epsilon(run, delta=1e-5).epsilon, 3)
0.947
"""

from __future__ import annotations

from adadp import checks
from adadp.accounting.answer import Answer, Status
from adadp.accounting.base import Accountant
from adadp.accounting.calibrate import Calibration, longest, longest_within_rho, most_repetitions, smallest_noise
from adadp.accounting.filters import Filter, RdpFilter, ZcdpFilter, filter_like
from adadp.accounting.gupta import GuptaPlan, most_settings
from adadp.accounting.pld import PldAccountant
from adadp.accounting.renyi import MomentsAccountant, RdpAccountant
from adadp.accounting.runs import RunShape, Sampling
from adadp.accounting.search import noise_for_search
from adadp.accounting.selection import draw_count, repetitions_for
from adadp.accounting.shown import rounded_up
from adadp.accounting.strong import StrongAsPublished, StrongComposition
from adadp.accounting.targets import EpsilonTarget, RhoTarget, Target
from adadp.accounting.theorem1 import Theorem1
from adadp.accounting.zcdp import SampledZcdpEstimate, ZcdpAccountant
from adadp.errors import InputError

ACCOUNTANTS: dict[str, Accountant] = {
    each.name: each
    for each in (
        PldAccountant(),
        RdpAccountant(),
        MomentsAccountant(),
        StrongComposition(),
        ZcdpAccountant(),
        SampledZcdpEstimate(),
        StrongAsPublished(),
        Theorem1(),
    )
}
"""By name, the tight ones first, the ones that certify nothing last. ``pld`` is the default everywhere."""


def accountant(name: str = "pld") -> Accountant:
    """The accountant called ``name``."""
    if name not in ACCOUNTANTS:
        raise InputError(f"Unknown accountant {name!r}.", fix=checks.one_of(name, ACCOUNTANTS))
    return ACCOUNTANTS[name]


__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Answer",
    "Calibration",
    "EpsilonTarget",
    "Filter",
    "GuptaPlan",
    "RdpFilter",
    "RhoTarget",
    "RunShape",
    "Sampling",
    "Status",
    "Target",
    "ZcdpFilter",
    "accountant",
    "draw_count",
    "filter_like",
    "longest",
    "longest_within_rho",
    "most_repetitions",
    "most_settings",
    "noise_for_search",
    "repetitions_for",
    "rounded_up",
    "smallest_noise",
]
