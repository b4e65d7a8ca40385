"""Laws that hold for every accountant and every event, over the whole stated domain.

Where two answers are compared the low end of one bracket is compared with the high end of the other: what is compared
is then exact, and there is no tolerance to hide behind.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from adadp.accounting import ACCOUNTANTS, Accountant, Answer, Status, accountant
from adadp.errors import AccountingError, AdaptiveEvent, InputError, UnsupportedEvent
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    Event,
    FixedSizeSampled,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    Selection,
    SelectionMechanism,
    ZcdpCost,
    compose,
    from_json,
    is_noiseless,
    is_silent,
    to_json,
)

pytestmark = pytest.mark.slow


ADD, REPLACE, ZERO = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT
EVERY = pytest.mark.parametrize("each", ACCOUNTANTS.values(), ids=list(ACCOUNTANTS))
PROVED = [each for each in ACCOUNTANTS.values() if each.status is Status.PROVED]


def lawful(examples: int):
    return settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def log_floats(low: float, high: float) -> st.SearchStrategy[float]:
    """Uniform in the logarithm, ends included."""
    return st.floats(math.log10(low), math.log10(high)).map(lambda x: min(max(10.0**x, low), high))


sigmas = log_floats(0.3, 200.0)
lengths = log_floats(1.0, 1e7).map(round)
deltas = log_floats(1e-12, 0.9)
epsilons = log_floats(1e-4, 1e4)
relations = st.sampled_from([ADD, REPLACE, ZERO])
Maker = Callable[[float, float], Event]


@st.composite
def makers(draw: st.DrawFn, each: Accountant) -> Maker:
    """(q, sigma) -> one step, Poisson or of fixed size; of those the accountant has a theorem for."""
    near = draw(st.sampled_from([ADD, ZERO]) if each.name == "zcdp-sampled" else relations)
    fixed = near is not ADD and each.name != "zcdp-sampled" and draw(st.booleans())
    kind = FixedSizeSampled if fixed else PoissonSampled
    return lambda q, sigma: kind(q, GaussianRelease(sigma, near))


def rates(each: Accountant, sigma: float) -> st.SearchStrategy[float]:
    """The whole range of q, or as much of it as the accountant answers for."""
    if each.name == "theorem1":  # a tenth of a second for every new pair of q and sigma
        return st.sampled_from([1e-6, 0.01, 1.0])
    return log_floats(1e-6, 1 / (16.001 * sigma) if each.name == "zcdp-sampled" else 1.0)


def sigmas_of(each: Accountant) -> st.SearchStrategy[float]:
    return st.sampled_from([0.3, 2.0, 200.0]) if each.name == "theorem1" else sigmas


@st.composite
def steps(draw: st.DrawFn, each: Accountant) -> Event:
    sigma = draw(sigmas_of(each))
    return draw(makers(each))(draw(rates(each, sigma)), sigma)


def answer(each: Accountant, event: Event, delta: float) -> Answer:
    """The answer, checked for what holds of any."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = each.epsilon(event, delta)
    assert 0 <= found.epsilon_low <= found.epsilon_high == found.epsilon < math.inf
    assert found.delta == found.delta_low == found.delta_high == delta
    return found


def delta_answer(each: Accountant, event: Event, epsilon: float) -> Answer:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = each.delta(event, epsilon)
    assert 0 <= found.delta_low <= found.delta_high == found.delta <= 1
    assert found.epsilon == found.epsilon_low == found.epsilon_high == epsilon
    return found


def room(each: Accountant) -> float:
    """How precisely epsilon is computed: the strong ones look for the best split of delta, up to 1e-8 of epsilon."""
    return 1e-8 if each.name.startswith("strong") else 1e-9


@EVERY
@lawful(10)
@given(data=st.data(), length=lengths, delta=deltas)
def test_epsilon_is_finite_and_not_negative(each, data, length, delta):
    answer(each, Repeated(data.draw(steps(each)), length), delta)


@EVERY
@pytest.mark.parametrize("delta", [1e-12, 0.9])
@pytest.mark.parametrize("length", [1, 10**7])
@pytest.mark.parametrize("sigma", [0.3, 200.0])
@pytest.mark.parametrize("q", [1e-6, 1.0])
def test_the_corners_of_the_domain(each, q, sigma, length, delta):
    """Finite, not negative, without a warning, and both questions answered alike."""
    if each.name == "zcdp-sampled":
        q = min(q, 1 / (16.001 * sigma))
    run = Repeated(PoissonSampled(q, GaussianRelease(sigma)), length)
    found = answer(each, run, delta)
    assert delta_answer(each, run, found.epsilon * (1 + room(each))).delta_low <= delta
    assert found.epsilon >= accountant("pld").epsilon(run, delta).epsilon_low or each.status is not Status.PROVED


@EVERY
@lawful(5)
@given(data=st.data(), length=lengths, epsilon=epsilons)
def test_delta_is_a_probability(each, data, length, epsilon):
    delta_answer(each, Repeated(data.draw(steps(each)), length), epsilon)


@EVERY
@lawful(7)
@given(data=st.data(), lengths=st.tuples(lengths, lengths), delta=deltas)
def test_more_steps_never_cost_less(each, data, lengths, delta):
    few, many = sorted(lengths)
    step = data.draw(steps(each))
    shorter, longer = (answer(each, Repeated(step, length), delta) for length in (few, many))
    assert shorter.epsilon_low <= longer.epsilon_high


@EVERY
@lawful(7)
@given(data=st.data(), length=lengths, delta=deltas)
def test_more_noise_never_costs_more(each, data, length, delta):
    less, more = sorted(data.draw(st.tuples(sigmas_of(each), sigmas_of(each))))
    make, q = data.draw(makers(each)), data.draw(rates(each, more))
    with_less, with_more = (answer(each, Repeated(make(q, sigma), length), delta) for sigma in (less, more))
    assert with_more.epsilon_low <= with_less.epsilon_high


@EVERY
@lawful(7)
@given(data=st.data(), length=lengths, delta=deltas)
def test_a_higher_rate_never_costs_less(each, data, length, delta):
    sigma = data.draw(sigmas_of(each))
    low, high = sorted(data.draw(st.tuples(rates(each, sigma), rates(each, sigma))))
    make = data.draw(makers(each))
    # Fixed-size zero-out at q = 1 is the plain release with sensitivity 1; below 1 it is covered by replace-one.
    assume(not (isinstance(make(high, sigma), FixedSizeSampled) and make(high, sigma).neighbours is ZERO and high == 1))
    at_low, at_high = (answer(each, Repeated(make(q, sigma), length), delta) for q in (low, high))
    assert at_low.epsilon_low <= at_high.epsilon_high


@EVERY
@lawful(7)
@given(data=st.data(), length=lengths, deltas=st.tuples(deltas, deltas))
def test_a_smaller_delta_never_costs_less(each, data, length, deltas):
    run = Repeated(data.draw(steps(each)), length)
    at_small, at_large = (answer(each, run, delta) for delta in sorted(deltas))
    assert at_large.epsilon_low <= at_small.epsilon_high


@EVERY
@lawful(4)
@given(data=st.data(), length=lengths, epsilons=st.tuples(epsilons, epsilons))
def test_delta_falls_with_epsilon(each, data, length, epsilons):
    run = Repeated(data.draw(steps(each)), length)
    at_small, at_large = (delta_answer(each, run, epsilon) for epsilon in sorted(epsilons))
    assert at_large.delta_low <= at_small.delta_high


@EVERY
@lawful(5)
@given(data=st.data(), count=st.integers(1, 12), outer=st.integers(1, 1000), delta=deltas)
def test_a_repetition_is_the_composition_of_its_copies(each, data, count, outer, delta):
    step = data.draw(steps(each))
    whole = answer(each, Repeated(step, count * outer), delta)
    assert whole == answer(each, Repeated(Composed((step,) * count), outer), delta)
    assert whole == answer(each, Composed((Repeated(step, outer),) * count), delta)


@EVERY
@lawful(5)
@given(data=st.data(), delta=deltas)
def test_the_order_of_releases_does_not_matter(each, data, delta):
    make = data.draw(makers(each))
    multipliers = data.draw(st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.5, 5.0]), min_size=2, max_size=5, unique=True))
    parts = [Repeated(make(0.01, sigma), 50) for sigma in multipliers]
    mixed = data.draw(st.permutations(parts))
    one, other = answer(each, Composed(tuple(parts)), delta), answer(each, Composed(tuple(mixed)), delta)
    # The sums are taken in another order, so the last digits of two otherwise equal brackets may differ.
    assert one.epsilon_high == pytest.approx(other.epsilon_high, rel=1e-7)
    assert one.epsilon_low == pytest.approx(other.epsilon_low, rel=1e-7)


@EVERY
@lawful(5)
@given(data=st.data(), length=lengths, delta=deltas)
def test_a_serialised_event_costs_the_same(each, data, length, delta):
    step = data.draw(steps(each))
    run = Composed((Repeated(step, length), step))
    again = from_json(json.loads(json.dumps(to_json(run))))
    assert answer(each, run, delta) == answer(each, again, delta)


@EVERY
@lawful(5)
@given(data=st.data(), length=lengths, delta=deltas)
def test_delta_of_epsilon_of_delta_is_on_the_safe_side(each, data, length, delta):
    """Above the epsilon that is certified for delta the true delta is at most that, below the bracket at least."""
    run = Repeated(data.draw(steps(each)), length)
    found = answer(each, run, delta)
    assert delta_answer(each, run, found.epsilon_high * (1 + room(each))).delta_low <= delta
    if found.epsilon_low > 0:
        assert delta_answer(each, run, found.epsilon_low * (1 - room(each))).delta_high >= delta


@lawful(25)
@given(data=st.data(), length=lengths, delta=deltas)
def test_pld_is_at_most_rdp_and_rdp_at_most_moments(data, length, delta):
    run = Repeated(data.draw(steps(accountant("pld"))), length)
    pld, rdp, moments = (answer(accountant(name), run, delta) for name in ("pld", "rdp", "moments"))
    assert pld.epsilon_low <= rdp.epsilon <= moments.epsilon


@lawful(25)
@given(data=st.data(), length=lengths, delta=deltas)
def test_every_proved_accountant_is_above_the_truth(data, length, delta):
    run = Repeated(data.draw(steps(accountant("pld"))), length)
    truth = answer(accountant("pld"), run, delta).epsilon_low
    for each in PROVED:
        assert each.epsilon(run, delta).epsilon >= truth, each.name


@lawful(25)
@given(sigma=sigmas, length=lengths, near=relations, delta=deltas)
def test_pld_is_at_most_rdp_and_rdp_at_most_zcdp_without_sampling(sigma, length, near, delta):
    run = Repeated(GaussianRelease(sigma, near), length)
    pld, rdp, zcdp = (answer(accountant(name), run, delta) for name in ("pld", "rdp", "zcdp"))
    assert pld.epsilon_low <= rdp.epsilon <= zcdp.epsilon


@lawful(12)
@given(q=log_floats(1e-6, 1.0), sigma=sigmas, length=lengths, delta=deltas)
def test_zero_out_costs_like_add_remove_and_at_most_like_replace_one(q, sigma, length, delta):
    for each in PROVED:
        zero, add, replace = (
            each.epsilon(Repeated(PoissonSampled(q, GaussianRelease(sigma, near)), length), delta)
            for near in (ZERO, ADD, REPLACE)
        )
        assert zero.epsilon == add.epsilon
        assert add.epsilon_low <= replace.epsilon_high, each.name


@lawful(12)
@given(sigma=sigmas, length=lengths, delta=deltas)
def test_replace_one_of_a_plain_release_costs_like_half_the_noise(sigma, length, delta):
    for each in PROVED:
        replaced = each.epsilon(Repeated(GaussianRelease(sigma, REPLACE), length), delta)
        halved = each.epsilon(Repeated(GaussianRelease(sigma / 2, ADD), length), delta)
        assert replaced.epsilon == pytest.approx(halved.epsilon, rel=1e-9), each.name


@st.composite
def odd_events(draw: st.DrawFn) -> Event:
    """Nests of every kind of event, with values far outside of training runs."""
    near = draw(relations)

    def leaf() -> Event:
        kind = draw(st.integers(0, 3))
        if kind == 0:
            return ZcdpCost(draw(st.sampled_from([0.0, 1e-9, 0.1, 1e6])), near)
        if kind == 1:
            mechanism = draw(st.sampled_from(SelectionMechanism))
            return Selection(draw(st.sampled_from([0.0, 1e-6, 0.5, 100.0])), mechanism, near)
        return GaussianRelease(draw(st.sampled_from([0.0, 0.3, 7.0, 1e6])), near)

    def held() -> Event:
        return compose(*(Repeated(leaf(), draw(st.integers(1, 3))) for _ in range(draw(st.integers(1, 2)))))

    def part() -> Event:
        kind, q = draw(st.integers(0, 3)), draw(st.sampled_from([0.0, 1e-6, 0.3, 1.0]))
        if kind == 0:
            return held()
        if kind == 1:
            return ReshuffledEpoch((held(), held()), independent_assignment=True)
        return PoissonSampled(q, held()) if near is ADD or kind == 2 else FixedSizeSampled(q, held())

    return compose(*(Repeated(part(), draw(st.sampled_from([0, 1, 1000]))) for _ in range(draw(st.integers(1, 3)))))


def attempt(each: Accountant, event: Event, delta: float) -> tuple[Answer | None, str]:
    """The answer, or None and what the refusal says."""
    try:
        return each.epsilon(event, delta), ""
    except UnsupportedEvent as error:
        return None, error.what


@EVERY
@lawful(40)
@given(event=odd_events(), delta=st.sampled_from([1e-12, 1e-5, 0.9]))
def test_any_event_is_answered_or_refused(each, event, delta):
    """However odd the event: a number, infinity exactly when there is no noise, or a refusal that names the event."""
    found, refusal = attempt(each, event, delta)
    if found is None:
        assert refusal.startswith(f"{each.name} cannot account for")
        return
    assert 0 <= found.epsilon_low <= found.epsilon_high == found.epsilon
    assert (found.epsilon == math.inf) == (is_noiseless(event) and not is_silent(event))
    if is_silent(event):
        assert found.epsilon == 0


SILENT = [
    None,
    Repeated(GaussianRelease(1.0), 0),
    Repeated(GaussianRelease(0.0), 0),
    PoissonSampled(0.0, GaussianRelease(1.0)),
    PoissonSampled(0.0, GaussianRelease(0.0)),
    FixedSizeSampled(0.0, GaussianRelease(1.0, REPLACE)),
    ZcdpCost(0.0),
    Selection(0.0),
    ReshuffledEpoch((Selection(0.0, neighbours=ZERO),)),
    Composed((PoissonSampled(0.0, GaussianRelease(1.0)), Repeated(Selection(1.0), 0))),
]


@EVERY
@pytest.mark.parametrize("event", SILENT, ids=str)
def test_what_releases_nothing_costs_nothing(each, event):
    assert each.epsilon(event, 1e-5).epsilon == 0
    assert each.delta(event, 0.0).delta == 0
    assert each.epsilon(event, 1e-5).note == "nothing was released"
    assert each.epsilon(event, 1e-5).neighbours is (None if event is None else event.neighbours)


NOISELESS = [
    GaussianRelease(0.0),
    PoissonSampled(1e-6, GaussianRelease(0.0)),
    FixedSizeSampled(1e-6, GaussianRelease(0.0, REPLACE)),
    ReshuffledEpoch((GaussianRelease(1.0, ZERO), GaussianRelease(0.0, ZERO))),
    Composed((GaussianRelease(1.0), GaussianRelease(0.0))),
]


@EVERY
@pytest.mark.parametrize("event", NOISELESS, ids=str)
def test_without_noise_epsilon_is_infinite(each, event):
    found = each.epsilon(event, 1e-5)
    assert found.epsilon == found.epsilon_low == math.inf
    assert "without noise" in found.note
    assert each.delta(event, 100.0).delta == 1


@EVERY
def test_silent_parts_are_left_out(each):
    """A part that no record can be in is no obstacle to an accountant that has no theorem for its kind."""
    step = PoissonSampled(0.005, GaussianRelease(4.0))
    silent = (ZcdpCost(0.0), Selection(0.0), PoissonSampled(0.0, Selection(1.0)))
    assert each.epsilon(Composed((step, *silent)), 1e-5).epsilon == each.epsilon(step, 1e-5).epsilon


ADAPTIVE = [
    AdaptivelyChosen(GaussianRelease(1.0)),
    AdaptivelyChosen(PoissonSampled(0.01, GaussianRelease(1.0))),
    Repeated(AdaptivelyChosen(PoissonSampled(0.01, GaussianRelease(1.0))), 3),
    Composed((PoissonSampled(0.01, GaussianRelease(4.0)), AdaptivelyChosen(GaussianRelease(1.0)))),
]


@EVERY
@pytest.mark.parametrize("event", ADAPTIVE, ids=str)
def test_adaptively_chosen_multipliers_are_refused(each, event):
    for ask in (lambda: each.epsilon(event, 1e-5), lambda: each.delta(event, 1.0)):
        with pytest.raises(AdaptiveEvent, match=f"^{each.name} cannot certify") as refusal:
            ask()
        assert "chosen from earlier releases" in refusal.value.why
        assert "Filter" in refusal.value.fix


@EVERY
@pytest.mark.parametrize(
    "held",
    [
        AdaptivelyChosen(GaussianRelease(1.0, ZERO)),
        Composed((Selection(1.0, neighbours=ZERO), AdaptivelyChosen(GaussianRelease(1.0, ZERO)))),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "sampler",
    [lambda e: PoissonSampled(0.01, e), lambda e: FixedSizeSampled(0.01, e), lambda e: ReshuffledEpoch((e,))],
)
def test_an_adaptive_choice_inside_a_sample_is_never_certified(each, held, sampler):
    with pytest.raises(AccountingError, match=f"^{each.name} cannot"):
        each.epsilon(sampler(held), 1e-5)


GAUSS, PICK, COST = GaussianRelease(1.0), Selection(1.0), ZcdpCost(0.1)
GAUSS_R, PICK_R = GaussianRelease(1.0, REPLACE), Selection(1.0, neighbours=REPLACE)
GAUSS_Z, PICK_Z, COST_Z = GaussianRelease(1.0, ZERO), Selection(1.0, neighbours=ZERO), ZcdpCost(0.1, ZERO)
STEP = PoissonSampled(0.01, GAUSS)


@pytest.mark.parametrize(
    ("name", "event", "reason"),
    [
        ("pld", COST, "a zCDP cost says nothing about the distribution"),
        ("pld", PoissonSampled(0.1, COST), "has no amplification theorem"),
        ("pld", PoissonSampled(0.1, Composed((GAUSS_R, PICK_R))), "for replace-one neighbours only Gaussian releases"),
        ("pld", FixedSizeSampled(0.1, PICK_R), "only Gaussian releases on a fixed-size batch"),
        ("pld", ReshuffledEpoch((GAUSS_Z, PICK_Z)), "only Gaussian releases are known to cost their worst batch"),
        ("pld", PoissonSampled(0.1, Repeated(Selection(0.1), 300)), "joint outcomes of its selections are too many"),
        ("pld", Composed(tuple(Repeated(Selection(0.1 + i / 100), 10**4) for i in range(3))), "joint outcomes"),
        ("rdp", PoissonSampled(0.1, COST), "has no amplification theorem"),
        ("moments", FixedSizeSampled(0.1, PICK_Z), "only Gaussian releases on a fixed-size batch"),
        ("strong", COST, "a zCDP cost is not an (epsilon, delta) pair"),
        ("strong", PoissonSampled(0.1, PICK), "only Gaussian releases are turned into (epsilon, delta) pairs"),
        ("strong", ReshuffledEpoch((PICK_Z,)), "only Gaussian releases are turned into (epsilon, delta) pairs"),
        ("strong-published", COST, "a zCDP cost is not an (epsilon, delta) pair"),
        ("zcdp", FixedSizeSampled(0.1, COST_Z), "only Gaussian releases on a fixed-size batch have a known worst case"),
        ("zcdp-sampled", GAUSS, "the estimate is for Poisson-sampled Gaussian releases"),
        ("zcdp-sampled", PoissonSampled(0.01, PICK), "the estimate is for Poisson-sampled Gaussian releases"),
        ("zcdp-sampled", PoissonSampled(0.01, GAUSS_R), "add-remove or zero-out neighbours only"),
        ("zcdp-sampled", PoissonSampled(0.07, GAUSS), "q <= 1/(16 sigma) only, here at most 0.0625"),
        ("theorem1", GAUSS, "equation 7 is for sampled Gaussian releases"),
        ("theorem1", PoissonSampled(0.01, PICK), "equation 7 is for sampled Gaussian releases"),
    ],
    ids=str,
)
def test_what_has_no_theorem_is_refused_by_name_with_the_reason(name, event, reason):
    for ask in (lambda each: each.epsilon(event, 1e-5), lambda each: each.delta(event, 1.0)):
        with pytest.raises(UnsupportedEvent) as refusal:
            ask(accountant(name))
        assert refusal.value.what.startswith(f"{name} cannot account for")
        assert reason in refusal.value.what


@EVERY
def test_one_bad_part_refuses_the_whole(each):
    bad = PoissonSampled(0.01, ZcdpCost(0.1)) if each.name != "zcdp" else AdaptivelyChosen(STEP)
    with pytest.raises(AccountingError):
        each.epsilon(Composed((STEP, bad)), 1e-5)


@EVERY
@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, math.inf, "1e-5"])
def test_a_delta_that_is_none_is_refused(each, delta):
    with pytest.raises(InputError, match="delta"):
        each.epsilon(STEP, delta)


@EVERY
@pytest.mark.parametrize("epsilon", [-1.0, math.nan, math.inf])
def test_an_epsilon_that_is_none_is_refused(each, epsilon):
    with pytest.raises(InputError, match="epsilon"):
        each.delta(STEP, epsilon)


def test_an_unknown_accountant_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="Unknown accountant 'prv'") as refusal:
        accountant("prv")
    assert all(name in refusal.value.fix for name in ACCOUNTANTS)


@EVERY
def test_the_answer_says_who_answered_for_which_neighbours(each):
    found = each.epsilon(PoissonSampled(0.01, GaussianRelease(4.0, ZERO)), 1e-5)
    assert (found.accountant, found.status, found.neighbours) == (each.name, each.status, ZERO)
    assert accountant().name == "pld"


def test_only_the_proved_ones_say_so():
    proved = {name for name, each in ACCOUNTANTS.items() if each.status is Status.PROVED}
    assert proved == {"pld", "rdp", "moments", "strong", "zcdp"}
