"""Numbers at the edge of floating point end in an answer or in a clear refusal, never in a bare Python error."""

from __future__ import annotations

import pytest

from adadp.accounting import ACCOUNTANTS, accountant
from adadp.app.accounting import RdpFilter, ZcdpFilter
from adadp.errors import AccountingError, BudgetExceeded
from adadp.events import Composed, GaussianRelease, PoissonSampled, Selection

EDGE = [
    GaussianRelease(5e-324),
    GaussianRelease(1.3e154),
    PoissonSampled(0.5, GaussianRelease(6e161)),
    PoissonSampled(0.1, GaussianRelease(5.5e-163)),
    PoissonSampled(1e-6, Selection(1000.0)),
    Selection(5e153),
]


@pytest.mark.parametrize("name", ACCOUNTANTS)
@pytest.mark.parametrize("event", EDGE, ids=str)
def test_an_answer_or_a_refusal(event, name):
    refusal = None
    try:
        found = accountant(name).epsilon(event, 1e-5)
    except AccountingError as error:
        refusal = str(error)
    assert refusal.startswith(name) if refusal else 0 <= found.epsilon_low <= found.epsilon_high


def test_out_of_range_is_said_so():
    with pytest.raises(AccountingError, match=r"range of floating point.*between 1e-6 and 1e6"):
        accountant("rdp").epsilon(PoissonSampled(0.1, GaussianRelease(5.5e-163)), 1e-5)


@pytest.mark.parametrize("mechanism", ["noisy-max", "exponential"])
def test_huge_selections_on_a_batch_count_as_unsampled(mechanism):
    together = Composed((GaussianRelease(4.0), Selection(300.0, mechanism)))
    sampled = accountant("pld").epsilon(PoissonSampled(0.01, together), 1e-5)
    plain = accountant("pld").epsilon(together, 1e-5)
    assert sampled.epsilon == pytest.approx(plain.epsilon, rel=1e-6)
    assert sampled.epsilon_low == 0


@pytest.mark.parametrize("rule", [ZcdpFilter(delta=1e-5, rho=1.0), RdpFilter(epsilon=2.0, delta=1e-5)], ids=["z", "r"])
def test_a_filter_that_saw_a_release_without_noise_admits_nothing_more(rule):
    rule.admit(GaussianRelease(100.0))
    rule.commit(GaussianRelease(0.0))
    with pytest.raises(BudgetExceeded):
        rule.admit(GaussianRelease(100.0))
