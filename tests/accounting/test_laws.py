"""Laws that hold for every accountant and every event, over the whole stated domain.

Where two answers are compared the low end of one bracket is compared with the high end of the other: what is compared
is then exact, and there is no tolerance to hide behind.
"""

from __future__ import annotations

import json
import math
import warnings

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import events

from adadp.accounting import ACCOUNTANTS, Accountant, Status, accountant
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
    ZcdpCost,
    from_json,
    is_noiseless,
    is_silent,
    to_json,
)

ADD, REPLACE, ZERO = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT
EVERY = pytest.mark.parametrize("each", ACCOUNTANTS.values(), ids=list(ACCOUNTANTS))
PROVED = [each for each in ACCOUNTANTS.values() if each.status is Status.PROVED]


def lawful(examples: int):
    return settings(max_examples=examples, derandomize=True, deadline=None)


def log_floats(low: float, high: float) -> st.SearchStrategy[float]:
    """Both ends included, and the logarithm uniform between them."""
    return st.one_of(
        st.sampled_from([low, high]),
        st.floats(math.log10(low), math.log10(high)).map(lambda x: min(max(10.0**x, low), high)),
    )


rates = log_floats(1e-6, 1.0)
sigmas = log_floats(0.3, 200.0)
lengths = log_floats(1.0, 1e7).map(round)
deltas = log_floats(1e-12, 0.5)
relations = st.sampled_from([ADD, REPLACE, ZERO])


@st.composite
def steps(draw: st.DrawFn, q: float | None = None, sigma: float | None = None) -> Event:
    """One step, Poisson or of fixed size, from the whole domain."""
    near = draw(relations)
    kinds = [PoissonSampled] if near is ADD else [PoissonSampled, FixedSizeSampled]
    release = GaussianRelease(draw(sigmas) if sigma is None else sigma, near)
    return draw(st.sampled_from(kinds))(draw(rates) if q is None else q, release)


def like(step: Event, *, q: float | None = None, sigma: float | None = None) -> Event:
    """``step`` with another rate or multiplier."""
    old_q = step.sampling_probability if isinstance(step, PoissonSampled) else step.sampling_fraction
    old_sigma = step.event.noise_multiplier
    release = GaussianRelease(old_sigma if sigma is None else sigma, step.neighbours)
    return type(step)(old_q if q is None else q, release)


def answer(each: Accountant, event: Event, delta: float):
    """The answer, checked for what holds of any; the example is left out if the accountant has no theorem for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = each.epsilon(event, delta)
        except UnsupportedEvent:
            assume(False)
            raise
    assert 0 <= found.epsilon_low <= found.epsilon_high == found.epsilon < math.inf
    assert found.delta == found.delta_low == found.delta_high == delta
    return found


def attempt(each: Accountant, event: Event, delta: float):
    """The answer, or None and what the refusal says."""
    try:
        return each.epsilon(event, delta), ""
    except UnsupportedEvent as error:
        return None, error.what


@EVERY
@lawful(30)
@given(step=steps(), length=lengths, delta=deltas)
def test_epsilon_is_finite_and_not_negative(each, step, length, delta):
    answer(each, Repeated(step, length), delta)


@EVERY
@lawful(30)
@given(step=steps(), length=lengths, epsilon=log_floats(1e-6, 1e6))
def test_delta_is_a_probability(each, step, length, epsilon):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = each.delta(Repeated(step, length), epsilon)
        except UnsupportedEvent:
            assume(False)
            raise
    assert 0 <= found.delta_low <= found.delta_high == found.delta <= 1
    assert found.epsilon == found.epsilon_low == found.epsilon_high == epsilon


@EVERY
@lawful(20)
@given(step=steps(), lengths=st.tuples(lengths, lengths), delta=deltas)
def test_more_steps_never_cost_less(each, step, lengths, delta):
    few, many = sorted(lengths)
    assert (
        answer(each, Repeated(step, few), delta).epsilon_low <= answer(each, Repeated(step, many), delta).epsilon_high
    )


@EVERY
@lawful(20)
@given(step=steps(), sigmas=st.tuples(sigmas, sigmas), length=lengths, delta=deltas)
def test_more_noise_never_costs_more(each, step, sigmas, length, delta):
    less, more = sorted(sigmas)
    with_more = answer(each, Repeated(like(step, sigma=more), length), delta)
    with_less = answer(each, Repeated(like(step, sigma=less), length), delta)
    assert with_more.epsilon_low <= with_less.epsilon_high


@EVERY
@lawful(20)
@given(step=steps(), rates=st.tuples(rates, rates), length=lengths, delta=deltas)
def test_a_higher_rate_never_costs_less(each, step, rates, length, delta):
    low, high = sorted(rates)
    # Fixed-size zero-out at q = 1 is the plain release with sensitivity 1; below 1 it is covered by replace-one.
    assume(not (isinstance(step, FixedSizeSampled) and step.neighbours is ZERO and high == 1))
    at_low = answer(each, Repeated(like(step, q=low), length), delta)
    at_high = answer(each, Repeated(like(step, q=high), length), delta)
    assert at_low.epsilon_low <= at_high.epsilon_high


@EVERY
@lawful(20)
@given(step=steps(), length=lengths, deltas=st.tuples(deltas, deltas))
def test_a_smaller_delta_never_costs_less(each, step, length, deltas):
    small, large = sorted(deltas)
    run = Repeated(step, length)
    assert answer(each, run, large).epsilon_low <= answer(each, run, small).epsilon_high


@EVERY
@lawful(20)
@given(step=steps(), length=lengths, epsilons=st.tuples(log_floats(1e-3, 1e3), log_floats(1e-3, 1e3)))
def test_delta_falls_with_epsilon(each, step, length, epsilons):
    small, large = sorted(epsilons)
    run = Repeated(step, length)
    try:
        assert each.delta(run, large).delta_low <= each.delta(run, small).delta_high
    except UnsupportedEvent:
        assume(False)


@EVERY
@lawful(20)
@given(step=steps(), count=st.integers(1, 12), outer=st.integers(1, 1000), delta=deltas)
def test_a_repetition_is_the_composition_of_its_copies(each, step, count, outer, delta):
    whole = answer(each, Repeated(step, count * outer), delta)
    assert whole == answer(each, Repeated(Composed((step,) * count), outer), delta)
    assert whole == answer(each, Composed((Repeated(step, outer),) * count), delta)


@EVERY
@lawful(15)
@given(data=st.data(), near=relations, delta=deltas)
def test_the_order_of_releases_does_not_matter(each, data, near, delta):
    q = data.draw(st.sampled_from([1e-3, 0.01]))
    multipliers = data.draw(st.lists(st.floats(1.0, 6.0), min_size=2, max_size=5, unique=True))
    parts = [Repeated(PoissonSampled(q, GaussianRelease(sigma, near)), 50) for sigma in multipliers]
    if data.draw(st.booleans()):
        parts.append(GaussianRelease(20.0, near))
    mixed = data.draw(st.permutations(parts))
    one, other = answer(each, Composed(tuple(parts)), delta), answer(each, Composed(tuple(mixed)), delta)
    # The sums are taken in another order, so the last digits of two otherwise equal brackets may differ.
    assert one.epsilon_high == pytest.approx(other.epsilon_high, rel=1e-9)
    assert one.epsilon_low == pytest.approx(other.epsilon_low, rel=1e-9)


@EVERY
@lawful(15)
@given(step=steps(), length=lengths, delta=deltas)
def test_a_serialised_event_costs_the_same(each, step, length, delta):
    run = Composed((Repeated(step, length), step))
    again = from_json(json.loads(json.dumps(to_json(run))))
    assert answer(each, run, delta) == answer(each, again, delta)


@EVERY
@lawful(20)
@given(step=steps(), length=lengths, delta=deltas)
def test_delta_of_epsilon_of_delta_is_on_the_safe_side(each, step, length, delta):
    """At the epsilon that is certified for delta the true delta is at most that: no lower bound may lie above it."""
    run = Repeated(step, length)
    found = answer(each, run, delta)
    assert each.delta(run, found.epsilon_high).delta_low <= delta * (1 + 1e-9)
    if found.epsilon_low > 0:
        assert each.delta(run, found.epsilon_low).delta_high >= delta * (1 - 1e-6)


@lawful(60)
@given(step=steps(), length=lengths, delta=deltas)
def test_pld_is_at_most_rdp_and_rdp_at_most_moments(step, length, delta):
    run = Repeated(step, length)
    pld, rdp, moments = (answer(accountant(name), run, delta) for name in ("pld", "rdp", "moments"))
    assert pld.epsilon_low <= rdp.epsilon <= moments.epsilon


@lawful(40)
@given(step=steps(), length=lengths, delta=deltas)
def test_every_proved_accountant_is_above_the_truth(step, length, delta):
    run = Repeated(step, length)
    truth = answer(accountant("pld"), run, delta).epsilon_low
    for each in PROVED:
        assert each.epsilon(run, delta).epsilon >= truth, each.name


@lawful(40)
@given(sigma=sigmas, length=lengths, near=relations, delta=deltas)
def test_rdp_is_at_most_zcdp_without_sampling(sigma, length, near, delta):
    run = Repeated(GaussianRelease(sigma, near), length)
    assert answer(accountant("rdp"), run, delta).epsilon <= answer(accountant("zcdp"), run, delta).epsilon


@lawful(30)
@given(q=rates, sigma=sigmas, length=lengths, delta=deltas)
def test_zero_out_costs_like_add_remove_and_at_most_like_replace_one(q, sigma, length, delta):
    def run(near: Neighbours) -> Event:
        return Repeated(PoissonSampled(q, GaussianRelease(sigma, near)), length)

    for each in PROVED:
        zero, add, replace = (each.epsilon(run(near), delta) for near in (ZERO, ADD, REPLACE))
        assert zero.epsilon == add.epsilon
        assert add.epsilon_low <= replace.epsilon_high, each.name


@lawful(30)
@given(sigma=sigmas, length=lengths, delta=deltas)
def test_replace_one_of_a_plain_release_costs_like_half_the_noise(sigma, length, delta):
    for each in PROVED:
        replaced = each.epsilon(Repeated(GaussianRelease(sigma, REPLACE), length), delta)
        halved = each.epsilon(Repeated(GaussianRelease(sigma / 2, ADD), length), delta)
        assert replaced.epsilon == pytest.approx(halved.epsilon, rel=1e-9), each.name


@lawful(40)
@given(event=events(adaptive=False), delta=deltas)
def test_any_event_is_answered_or_refused(event, delta):
    """However odd the event: a number, infinity exactly when there is no noise, or a refusal that names the event."""
    for each in ACCOUNTANTS.values():
        found, refusal = attempt(each, event, delta)
        if found is None:
            assert each.name in refusal
            continue
        assert 0 <= found.epsilon_low <= found.epsilon_high == found.epsilon
        if is_silent(event):
            assert found.epsilon == 0
        elif is_noiseless(event):
            assert found.epsilon == math.inf


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
@pytest.mark.parametrize("sampler", [lambda e: PoissonSampled(0.01, e), lambda e: FixedSizeSampled(0.01, e), lambda e: ReshuffledEpoch((e,))])  # fmt: skip
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
        ("pld", FixedSizeSampled(0.1, PICK_R), "only Gaussian releases on a fixed-size lot"),
        ("pld", ReshuffledEpoch((GAUSS_Z, PICK_Z)), "only Gaussian releases are known to cost their worst batch"),
        ("pld", PoissonSampled(0.1, Repeated(PICK, 300)), "joint outcomes of its selections are too many"),
        ("pld", Composed(tuple(Repeated(Selection(0.1 + i / 100), 10**4) for i in range(3))), "joint outcomes"),
        ("rdp", PoissonSampled(0.1, COST), "has no amplification theorem"),
        ("moments", FixedSizeSampled(0.1, PICK_Z), "only Gaussian releases on a fixed-size lot"),
        ("strong", COST, "a zCDP cost is not an (epsilon, delta) pair"),
        ("strong", PoissonSampled(0.1, PICK), "only Gaussian releases are turned into (epsilon, delta) pairs"),
        ("strong", ReshuffledEpoch((PICK_Z,)), "only Gaussian releases are turned into (epsilon, delta) pairs"),
        ("strong-published", COST, "a zCDP cost is not an (epsilon, delta) pair"),
        ("zcdp", FixedSizeSampled(0.1, COST_Z), "only Gaussian releases on a fixed-size lot have a known worst case"),
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
