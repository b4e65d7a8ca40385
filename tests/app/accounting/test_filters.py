"""Filters: budgets that hold although the noise is chosen from what was released before."""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import pytest

from adadp.accounting import Status, accountant
from adadp.accounting.contour import gaussian_delta
from adadp.app.accounting import RdpFilter, ZcdpFilter
from adadp.app.accounting.calibrate import most_repetitions
from adadp.app.accounting.orders import largest_moment
from adadp.app.accounting.renyi import conversion, log_moment
from adadp.app.accounting.zcdp import largest_rho, rho_to_epsilon
from adadp.errors import BudgetExceeded, InputError, LedgerError, UnsupportedEvent
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    Event,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    Selection,
    SelectionMechanism,
    ZcdpCost,
)
from adadp.ledger import Ledger, budget_like, read_ledger

pytestmark = pytest.mark.slow


STEP = PoissonSampled(0.01, GaussianRelease(2.0))
ZERO = Neighbours.ZERO_OUT


def admitted(rule, event: Event, most: int = 100_000) -> int:
    """How many times ``event`` is admitted, one by one in the end."""
    total, chunk = 0, most
    while chunk:
        try:
            rule.admit(event, chunk)
        except BudgetExceeded:
            chunk //= 2
            continue
        rule.commit(event, chunk)
        total += chunk
    return total


# --- zCDP ---


def test_a_zcdp_filter_admits_until_rho_is_spent():
    rule = ZcdpFilter(rho=1.0, delta=1e-5)
    assert rule.used == 0
    assert admitted(rule, GaussianRelease(2.0)) == 8
    assert rule.used == pytest.approx(1.0)
    with pytest.raises(BudgetExceeded, match=r"100\.0% is spent") as refusal:
        rule.admit(GaussianRelease(100.0))
    assert "1 x " in refusal.value.what
    assert refusal.value.fix


def test_sums_of_many_small_costs_do_not_drift():
    """8000 times 1/8000 is the budget exactly; adding up rounded sums would pass or miss it."""
    rule = ZcdpFilter(rho=1.0, delta=1e-5)
    event = ZcdpCost(1 / 8000)
    for _ in range(8000):
        rule.admit(event)
        rule.commit(event)
    with pytest.raises(BudgetExceeded):
        rule.admit(ZcdpCost(1e-12))


def test_a_zcdp_filter_by_epsilon_is_the_largest_that_converts():
    rule = ZcdpFilter(epsilon=2.0, delta=1e-5)
    assert rule.rho == largest_rho(2.0, 1e-5)
    assert (rule.epsilon, rule.delta) == (2.0, 1e-5)
    by_rho = ZcdpFilter(rho=rule.rho, delta=1e-5)
    assert by_rho.epsilon == pytest.approx(2.0, rel=1e-9)
    assert rule.describe() == {"rule": "zcdp-filter", "rho": rule.rho, "epsilon": 2.0, "delta": 1e-5}


@pytest.mark.parametrize("given", [{}, {"rho": 1.0, "epsilon": 1.0}])
def test_a_zcdp_filter_needs_one_of_rho_and_epsilon(given):
    with pytest.raises(InputError, match="exactly one of rho and epsilon"):
        ZcdpFilter(delta=1e-5, **given)


@pytest.mark.parametrize("given", [{"rho": 0.0}, {"epsilon": -1.0}, {"rho": math.nan}])
def test_a_zcdp_filter_needs_a_positive_budget(given):
    with pytest.raises(InputError):
        ZcdpFilter(delta=1e-5, **given)


def test_reshuffled_epochs_and_different_costs_add_up():
    rule = ZcdpFilter(rho=0.5, delta=1e-5)
    epoch = ReshuffledEpoch((GaussianRelease(2.0, ZERO), GaussianRelease(5.0, ZERO)))
    for event, cost in ((epoch, 1 / 8), (ZcdpCost(0.1, ZERO), 0.1), (Selection(1.0, neighbours=ZERO), 1 / 8)):
        before = rule.used
        rule.admit(event)
        rule.commit(event)
        assert rule.used - before == pytest.approx(cost / 0.5)


# --- Renyi ---


def test_an_rdp_filter_with_one_expected_release_admits_what_rdp_certifies():
    """One order loses nothing to the split: as many steps as RDP composition allows (but for the grid of orders)."""
    rule = RdpFilter(epsilon=2.0, delta=1e-5, expected=STEP)
    assert len(rule.orders) == 1
    most = most_repetitions(STEP, epsilon=2.0, delta=1e-5, accountant=accountant("rdp")).value
    count = admitted(rule, STEP)
    assert most * 0.995 <= count <= most
    assert rule.used == pytest.approx(1.0, abs=1e-3)


def test_six_orders_split_delta():
    """Each order has a sixth of delta, and no more."""
    rule = RdpFilter(epsilon=2.0, delta=1e-5)
    assert len(rule.orders) == 6
    count = admitted(rule, STEP)
    moment = log_moment("rdp", {STEP: 1})

    def room(alpha: float, delta: float) -> float:
        theta = alpha - 1
        return (theta * 2.0 + math.log(delta) - conversion(theta)) / moment(theta)

    assert count == math.floor(max(room(alpha, 1e-5 / 6) for alpha in rule.orders) + 1e-9)
    assert count < max(room(alpha, 1e-5) for alpha in rule.orders) - 1


def test_the_split_depends_on_how_many_orders_there_are():
    one = RdpFilter(epsilon=2.0, delta=1e-5, orders=(13.0,))
    two = RdpFilter(epsilon=2.0, delta=1e-5, orders=(13.0, 1.5))
    assert admitted(two, STEP) < admitted(one, STEP)


def test_a_run_may_go_on_while_one_order_has_room():
    """Much noise is cheapest at a high order, little noise at a low one: the run is within the budget of one."""
    rule = RdpFilter(epsilon=5.0, delta=1e-5, orders=(4.0, 60.0))
    rule.commit(GaussianRelease(2.0))  # the high order is overdrawn at once
    rule.admit(GaussianRelease(50.0))
    assert 0 < rule.used < 1


def test_an_rdp_filter_says_what_it_is():
    rule = RdpFilter(epsilon=2.0, delta=1e-5, orders=(3, 9))
    assert rule.describe() == {"rule": "rdp-filter", "epsilon": 2.0, "delta": 1e-5, "orders": [3.0, 9.0]}


@pytest.mark.parametrize("orders", [(), (1.0,), (0.5, 3.0), (-2.0,)])
def test_orders_must_exceed_1(orders):
    with pytest.raises(InputError, match="rder"):
        RdpFilter(epsilon=2.0, delta=1e-5, orders=orders)


def test_orders_that_leave_no_budget_are_refused():
    with pytest.raises(InputError, match="leaves a budget") as refusal:
        RdpFilter(epsilon=0.1, delta=1e-9, orders=(2.0, 3.0))
    assert "higher orders" in refusal.value.fix


def test_an_expected_release_finds_an_order_even_for_a_tight_budget():
    rule = RdpFilter(epsilon=0.1, delta=1e-9, expected=PoissonSampled(1e-3, GaussianRelease(4.0)))
    assert admitted(rule, PoissonSampled(1e-3, GaussianRelease(4.0))) > 100


def test_an_event_without_a_theorem_is_refused_by_the_filters_name():
    with pytest.raises(UnsupportedEvent, match=r"^rdp-filter cannot account for"):
        RdpFilter(epsilon=1.0, delta=1e-5).admit(PoissonSampled(0.1, ZcdpCost(0.1)))


# --- Both ---

RULES = [
    lambda: ZcdpFilter(rho=0.5, delta=1e-5),
    lambda: RdpFilter(epsilon=2.0, delta=1e-5),
    lambda: RdpFilter(epsilon=2.0, delta=1e-5, expected=GaussianRelease(4.0)),
]
BOTH = pytest.mark.parametrize("make", RULES, ids=["zcdp", "rdp", "rdp-expected"])


@BOTH
def test_admitting_has_no_side_effect(make):
    rule = make()
    for _ in range(1000):
        rule.admit(GaussianRelease(4.0))
    assert rule.used == 0


@BOTH
def test_marks_of_adaptive_choice_are_opened(make):
    plain, marked = make(), make()
    inner = Composed((GaussianRelease(5.0), Repeated(GaussianRelease(7.0), 2)))
    plain.commit(Repeated(inner, 3))
    marked.commit(AdaptivelyChosen(Composed((AdaptivelyChosen(inner), inner, inner))))
    assert marked.used == pytest.approx(plain.used, rel=1e-12)
    assert marked.used > 0


@BOTH
def test_what_releases_nothing_costs_nothing(make):
    rule = make()
    rule.admit(PoissonSampled(0.0, GaussianRelease(1.0)))
    rule.commit(PoissonSampled(0.0, GaussianRelease(1.0)), 1000)
    assert rule.used == pytest.approx(0, abs=1e-9)  # log moments are rounded up


@BOTH
def test_a_release_without_noise_never_passes(make):
    with pytest.raises(BudgetExceeded):
        make().admit(AdaptivelyChosen(GaussianRelease(0.0)))


@BOTH
def test_what_is_certified_is_the_budget_at_any_time(make):
    rule = make()
    before = rule.answer()
    assert before.neighbours is None
    rule.commit(GaussianRelease(10.0))
    after = rule.answer()
    assert (after.epsilon, after.delta) == (before.epsilon, before.delta) == (rule.epsilon, rule.delta)
    assert after.epsilon_low == after.epsilon_high == rule.epsilon
    assert after.status is Status.PROVED
    assert after.neighbours is Neighbours.ADD_REMOVE
    assert after.accountant == rule.name


@BOTH
def test_what_was_overdrawn_from_outside_shows_and_nothing_more_is_admitted(make):
    rule = make()
    rule.commit(GaussianRelease(0.5))
    assert rule.used > 1
    with pytest.raises(BudgetExceeded, match=r"100\.0% is spent"):
        rule.admit(GaussianRelease(1000.0))


# --- An adversary who picks sigma from the releases, and the hockey stick of what comes out ---


class HalfTheNoise(ZcdpFilter):
    """A broken twin: the noise is half of what it takes it for, so it charges a quarter."""

    def _costs(self, counts):
        return {rho / 4: count for rho, count in super()._costs(counts).items()}


class HalfCharging(RdpFilter):
    """A broken twin: it charges half of every release."""

    def _costs(self, counts):
        return [cost / 2 for cost in super()._costs(counts)]


def adversary(rule, random: np.random.Generator) -> float:
    """One adaptive run on the data set with the record: the privacy loss of everything released.

    Each release is N(1, sigma^2) against N(0, sigma^2). Whenever the releases so far look incriminating the adversary
    buys a precise release, otherwise a cheap one, and goes on until nothing more is admitted.
    """
    loss = 0.0
    while True:
        for sigma in (1.0, 2.0, 4.0) if loss > 0.5 else (4.0,):
            event = AdaptivelyChosen(GaussianRelease(sigma))
            try:
                rule.admit(event)
            except BudgetExceeded:
                continue
            rule.commit(event)
            loss += random.normal(0.5 / sigma**2, 1 / sigma)
            break
        else:
            return loss


def realised_delta(make, epsilon: float, runs: int = 2000) -> tuple[float, float]:
    """E[(1 - e^(epsilon - L))+] of the whole adaptive run, and its standard error."""
    random, fresh = np.random.default_rng(7), make()  # copies of one: making it solves for its budget
    values = np.array([max(0.0, -math.expm1(epsilon - adversary(deepcopy(fresh), random))) for _ in range(runs)])
    return float(values.mean()), float(values.std() / math.sqrt(runs))


DELTA = 0.02


@pytest.mark.parametrize(
    "make",
    [lambda: ZcdpFilter(epsilon=1.5, delta=DELTA), lambda: RdpFilter(epsilon=1.5, delta=DELTA, orders=(4.0,))],
    ids=["zcdp", "rdp"],
)
def test_an_adaptive_adversary_stays_within_the_budget(make):
    mean, error = realised_delta(make, 1.5)
    assert mean + 4 * error <= DELTA


@pytest.mark.parametrize(
    "make",
    [
        lambda: HalfTheNoise(epsilon=1.5, delta=DELTA),
        lambda: HalfCharging(epsilon=1.5, delta=DELTA, orders=(4.0,)),
    ],
    ids=["zcdp", "rdp"],
)
def test_the_same_check_catches_a_broken_filter(make):
    mean, error = realised_delta(make, 1.5)
    assert mean - 4 * error > DELTA


# --- Every adaptive strategy there is, by backward induction ---

MENU = (2, 5, 9)
"""Randomised responses of epsilon 0.2, 0.5 and 0.9: losses are whole tenths."""


def coin(tenths: int) -> Event:
    return AdaptivelyChosen(Selection(tenths / 10, SelectionMechanism.NOISY_MAX))


def best_strategy(make, epsilon: float) -> float:
    """The largest delta(epsilon) that a choice of coins from the outcomes so far can reach under the filter: exact."""
    rule = make()
    known: dict[tuple[tuple[int, ...], int], float] = {}

    def admitted_after(counts: tuple[int, ...], tenths: int) -> bool:
        fresh = deepcopy(rule)
        for each, count in zip(MENU, counts, strict=True):
            if count:
                fresh.commit(coin(each), count)
        try:
            fresh.admit(coin(tenths))
        except BudgetExceeded:
            return False
        return True

    rooms: dict[tuple[int, ...], list[int]] = {}

    def value(counts: tuple[int, ...], loss: int) -> float:
        key = (counts, loss)
        if key not in known:
            if counts not in rooms:
                rooms[counts] = [each for each in range(len(MENU)) if admitted_after(counts, MENU[each])]
            best = max(0.0, -math.expm1(epsilon - loss / 10))
            for each in rooms[counts]:
                after = tuple(count + (k == each) for k, count in enumerate(counts))
                up = 1 / (1 + math.exp(-MENU[each] / 10))
                best = max(best, up * value(after, loss + MENU[each]) + (1 - up) * value(after, loss - MENU[each]))
            known[key] = best
        return known[key]

    assert rule.used == 0
    return value((0,) * len(MENU), 0)


@pytest.mark.parametrize(
    ("honest", "broken"),
    [(ZcdpFilter, HalfTheNoise), (lambda **given: RdpFilter(**given, orders=(4.0,)), None)],
    ids=["zcdp", "rdp"],
)
@pytest.mark.parametrize(("epsilon", "delta"), [(1.5, 0.02), (1.0, 0.05)])
def test_no_adaptive_strategy_passes_the_budget(honest, broken, epsilon, delta):
    reached = best_strategy(lambda: honest(epsilon=epsilon, delta=delta), epsilon)
    assert 0.1 * delta < reached <= delta
    if broken is not None:
        assert best_strategy(lambda: broken(epsilon=epsilon, delta=delta), epsilon) > delta


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 8.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-5, 1e-9])
def test_adaptive_gaussian_releases_come_within_a_tenth_of_the_budget(epsilon, delta):
    """Gaussian releases whose multipliers are chosen on the way reach the delta of one with all of rho, and no more.

    (They are pieces of one Brownian motion.) The classic conversion, 0.03 to 3 % here, would leave ten times as much.
    """
    rho = ZcdpFilter(epsilon=epsilon, delta=delta).rho
    assert 0.1 * delta < gaussian_delta(math.sqrt(2 * rho), epsilon) <= delta
    classic = (math.sqrt(math.log(1 / delta) + epsilon) - math.sqrt(math.log(1 / delta))) ** 2
    assert rho > 1.1 * classic


def test_one_order_has_the_largest_budget_that_is_proved_and_several_share_delta():
    assert RdpFilter(epsilon=1.5, delta=0.02, orders=(4.0,))._budget == [largest_moment(3.0, 1.5, 0.02)]
    shared = RdpFilter(epsilon=1.5, delta=0.02, orders=(4.0, 6.0))._budget[0]
    assert shared == pytest.approx(3 * 1.5 + math.log(0.01) - conversion(3.0))


# --- From a description, as in the header of a ledger ---


@pytest.mark.parametrize(
    "rule",
    [
        ZcdpFilter(epsilon=2.0, delta=1e-5),
        ZcdpFilter(rho=0.3, delta=1e-5),
        RdpFilter(epsilon=2.0, delta=1e-5),
        RdpFilter(epsilon=2.0, delta=1e-5, expected=STEP),
    ],
)
def test_a_filter_is_made_again_from_its_description(rule):
    again = budget_like(rule.describe())
    assert again.describe() == rule.describe()
    assert again.answer() == rule.answer()
    assert again.within(rule)


def test_a_description_of_the_classic_conversion_is_certified_as_it_was():
    old = budget_like({"rule": "zcdp-filter", "rho": 0.25, "delta": 1e-4})
    assert old.epsilon == rho_to_epsilon(0.25, 1e-4)
    assert old.within(ZcdpFilter(rho=0.25, delta=1e-4))
    assert not old.within(ZcdpFilter(rho=0.24, delta=1e-4))


@pytest.mark.parametrize(
    "description",
    [
        None,
        {},
        {"rule": "planned", "events": []},
        {"rule": ["rdp-filter"]},
        {"rule": "adadp.app.accounting.filters:RdpFilter", "epsilon": 1.0, "delta": 1e-5, "orders": [8.0]},
        {"rule": "zcdp-filter", "delta": 1e-5},
        {"rule": "rdp-filter", "epsilon": 1.0, "delta": 1e-5, "orders": None},
        {"rule": "zcdp-filter", "rho": 0.3, "epsilon": 1.0, "delta": 1e-5},
    ],
)
def test_what_describes_no_filter_or_promises_too_much_is_refused(description):
    with pytest.raises(InputError, match=r"filter|does not give"):
        budget_like(description)


# --- As the rule of a ledger ---


@BOTH
def test_a_refused_charge_leaves_the_ledger_as_it_was(make, tmp_path):
    path = tmp_path / "run.ledger"
    with Ledger.create(path, budget=make()) as ledger:
        ledger.charge(AdaptivelyChosen(GaussianRelease(4.0)))
        content, charges = path.read_bytes(), dict(ledger.charges)
        with pytest.raises(BudgetExceeded):
            ledger.charge(AdaptivelyChosen(GaussianRelease(0.1)))
        assert path.read_bytes() == content
        assert dict(ledger.charges) == charges
        ledger.charge(AdaptivelyChosen(GaussianRelease(8.0)))


@BOTH
def test_reopening_restores_what_was_spent(make, tmp_path):
    path = tmp_path / "run.ledger"
    first, second = make(), make()
    with Ledger.create(path, budget=first) as ledger:
        ledger.charge(AdaptivelyChosen(GaussianRelease(4.0)), 2)
        ledger.charge(AdaptivelyChosen(GaussianRelease(5.0)))
    with Ledger.open(path, budget=second) as ledger:
        assert second.used == pytest.approx(first.used, rel=1e-12)
        left = admitted(make_spent(make, first), GaussianRelease(4.0))
        for _ in range(left):
            ledger.charge(GaussianRelease(4.0))
        with pytest.raises(BudgetExceeded):
            ledger.charge(GaussianRelease(4.0))
    assert sum(read_ledger(path).charges.values()) == 3 + left


def make_spent(make, spent):
    """A fresh filter that has spent what ``spent`` has."""
    rule = make()
    rule.commit(GaussianRelease(4.0), 2)
    rule.commit(GaussianRelease(5.0))
    assert rule.used == pytest.approx(spent.used, rel=1e-12)
    return rule


def test_another_budget_cannot_be_swapped_in(tmp_path):
    path = tmp_path / "run.ledger"
    Ledger.create(path, budget=ZcdpFilter(rho=0.5, delta=1e-5)).close()
    with pytest.raises(LedgerError, match="was created with the budget"):
        Ledger.open(path, budget=ZcdpFilter(rho=0.6, delta=1e-5))
