"""Every broken twin is caught by an attack that does not refute what it is a twin of."""

from __future__ import annotations

import pytest
from broken_twins import TWINS

from adadp.accounting import accountant

pytestmark = pytest.mark.slow

DEAR = ("double release", "scales from raw sums")
"""Whose honest runs take long, and are those of others."""


def claimed(twin, found):
    return accountant("pld").epsilon(found.charged, twin.delta).epsilon


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_it_is_refuted(twin):
    found = twin.run()
    assert twin.bound(found) > claimed(twin, found)


@pytest.mark.parametrize("twin", [each for each in TWINS if each.name not in DEAR], ids=lambda twin: twin.name)
def test_what_is_right_is_not(twin):
    found = twin.run(broken=False)
    assert twin.bound(found) <= claimed(twin, found)
