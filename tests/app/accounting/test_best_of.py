"""The price of publishing the best of several runs: against exact distributions, dp-accounting, and laws."""

from __future__ import annotations

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant as TheirRdp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, ndtr

from adadp.accounting import ACCOUNTANTS, accountant
from adadp.app.accounting import RdpFilter, ZcdpFilter
from adadp.app.accounting.best_of import BestOf, best_of_moment
from adadp.app.accounting.renyi import log_moment
from adadp.app.accounting.repetitions import (
    PoissonRepetitions,
    TruncatedNegativeBinomial,
    draw_count,
    probabilities,
    repetitions_for,
)
from adadp.app.accounting.search_noise import noise_for_search
from adadp.errors import BudgetExceeded, InputError, UnreachableTarget, UnsupportedEvent
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    GaussianRelease,
    Neighbours,
    PoissonSampled,
    Repeated,
    Selection,
    ZcdpCost,
    flatten,
)

pytestmark = pytest.mark.slow


RDP, MOMENTS = accountant("rdp"), accountant("moments")
RUN = Repeated(PoissonSampled(0.01, GaussianRelease(1.5)), 1000)
LAWS = [
    TruncatedNegativeBinomial(-0.9, 1e-3),
    TruncatedNegativeBinomial(-0.5, 0.01),
    TruncatedNegativeBinomial(0.0, 0.05),
    TruncatedNegativeBinomial(1.0, 0.1),
    TruncatedNegativeBinomial(5.0, 0.3),
    PoissonRepetitions(1.0),
    PoissonRepetitions(10.0),
]
every_law = pytest.mark.parametrize("law", LAWS, ids=str)


def lawful(examples: int):
    return settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def moment(event, theta: float) -> float:
    return log_moment("test", flatten(event))(theta)


# --- against exact distributions ---------------------------------------------------------------------------------


def generating(law, x):
    """E[x^K], and its derivative's logarithm."""
    if isinstance(law, PoissonRepetitions):
        return np.exp(law.mean * (x - 1)), math.log(law.mean) + law.mean * (x - 1)
    eta, rest = law.eta, 1 - law.gamma
    if eta == 0:
        value = np.log1p(-rest * x) / math.log(law.gamma)
    else:
        value = ((1 - rest * x) ** -eta - 1) / (law.gamma**-eta - 1)
    return value, math.log(law.mean) + (1 + eta) * (math.log(law.gamma) - np.log1p(-rest * x))


GRID = np.linspace(-14.0, 16.0, 60_001)


def best_gaussian(law, shift: float):
    """The log density of the largest of K draws from N(shift, 1)."""
    return -((GRID - shift) ** 2) / 2 - math.log(2 * math.pi) / 2 + generating(law, ndtr(GRID - shift))[1]


def integral(values) -> float:
    return float(np.sum(values) * (GRID[1] - GRID[0]))


def none(law) -> float:
    """The probability that there is no run at all."""
    return math.exp(-law.mean) if isinstance(law, PoissonRepetitions) else 0.0


@every_law
def test_the_exact_distribution_is_one(law):
    assert integral(np.exp(best_gaussian(law, 0.5))) + none(law) == pytest.approx(1, abs=1e-9)


@every_law
@pytest.mark.parametrize("sigma", [0.8, 3.0])
def test_the_true_divergence_of_the_largest_gaussian_is_below_ours(law, sigma):
    """One run outputs a Gaussian and its score is the output itself, so that the best of K has a known density."""
    ours = log_moment("test", {BestOf((GaussianRelease(sigma),), law): 1})
    mu = 1 / sigma
    above_one_run = False
    for theta in (0.1, 0.5, 1.0, 3.0, 6.0):
        for p, q in ((mu, 0.0), (0.0, mu)):
            log_p, log_q = best_gaussian(law, p), best_gaussian(law, q)
            true = math.log(integral(np.exp((theta + 1) * log_p - theta * log_q)) + none(law))
            assert true <= ours(theta)
            above_one_run |= true > moment(GaussianRelease(sigma), theta) * 1.001
    # Counting the best of several runs as one run is not a bound, and this test sees it.
    assert above_one_run or law.mean < 2


@every_law
def test_the_true_delta_of_the_largest_gaussian_is_below_ours(law):
    event, mu = BestOf((GaussianRelease(2.0),), law), 0.5
    above_one_run = False
    for epsilon in (0.2, 0.8, 1.5):
        for p, q in ((mu, 0.0), (0.0, mu)):
            gap = np.exp(best_gaussian(law, p)) - math.exp(epsilon) * np.exp(best_gaussian(law, q))
            true = integral(np.maximum(gap, 0.0))
            assert true <= RDP.delta(event, epsilon).delta
            above_one_run |= true > accountant("pld").delta(GaussianRelease(2.0), epsilon).delta * 1.01
    assert above_one_run or law.mean < 2


@st.composite
def outcomes(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Two distributions on the same few outcomes, the best first."""
    size = draw(st.integers(2, 5))
    weights = st.lists(st.floats(-8.0, 0.0).map(math.exp), min_size=size, max_size=size)
    return tuple([w / sum(drawn) for w in drawn] for drawn in (draw(weights), draw(weights)))  # type: ignore[return-value]


def best_outcome(law, masses: list[float]) -> list[float]:
    """The distribution of the best of K draws, with K = 0 as an outcome of its own."""
    below = np.maximum(1 - np.cumsum([0.0, *masses]), 0.0)
    return [*-np.diff(generating(law, below)[0]), none(law)]


def discrete_moment(p: list[float], q: list[float], theta: float) -> float:
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log(q)
    seen = log_p > -np.inf
    log_p, log_q = log_p[seen], log_q[seen]
    return max(float(logsumexp((theta + 1) * x - theta * y)) for x, y in ((log_p, log_q), (log_q, log_p)))


@lawful(60)
@given(
    pair=outcomes(),
    law=st.one_of(
        st.builds(repetitions_for, st.floats(1.1, 50.0), st.sampled_from([-0.5, 0.0, 0.5, 1.0, 4.0])),
        st.builds(PoissonRepetitions, st.floats(1.0, 50.0)),
    ),
    theta=st.floats(0.05, 8.0),
)
def test_any_two_mechanisms_with_few_outcomes_are_covered(pair, law, theta):
    """The moments are handed in; the zCDP cost only stands for a mechanism whose loss distribution is not known."""
    p, q = pair
    ours = best_of_moment("test", law, [{ZcdpCost(1.0): 1}], [lambda t: discrete_moment(p, q, t)])
    best_p, best_q = best_outcome(law, p), best_outcome(law, q)
    if min(*best_p[:-1], *best_q[:-1]) < 1e-10:
        return  # the differences of the distribution function have lost their digits
    assert discrete_moment(best_p, best_q, theta) <= ours(theta) + 1e-6


def test_a_rare_best_outcome_shows_that_every_term_is_needed():
    """With one run in ten thousand at the top, the best of ten finds it ten times as often: log E[K] is really paid."""
    p, q = [2e-4, 1 - 2e-4], [1e-4, 1 - 1e-4]
    law, theta = PoissonRepetitions(10.0), 60.0
    true = discrete_moment(best_outcome(law, p), best_outcome(law, q), theta)
    one = discrete_moment(p, q, theta)
    assert one + 0.98 * math.log(10) < true <= one + math.log(10) + 1e-9


# --- against dp-accounting ---------------------------------------------------------------------------------------


def theirs(event: dp_accounting.DpEvent, law) -> float:
    shape = math.inf if isinstance(law, PoissonRepetitions) else law.eta
    other = TheirRdp()
    other.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(event, law.mean, shape))
    return other.get_epsilon(1e-5)


SAMPLED = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.5)), 1000
)


@pytest.mark.parametrize("law", [law for law in LAWS if getattr(law, "eta", 0) >= 0], ids=str)
@pytest.mark.parametrize(
    ("ours", "other"), [(RUN, SAMPLED), (GaussianRelease(3.0), dp_accounting.GaussianDpEvent(3.0))], ids=["run", "one"]
)
def test_epsilon_is_at_most_that_of_dp_accounting(ours, other, law):
    """The same theorem; ours searches all real orders, and for Poisson takes the exact delta of a run."""
    expected = theirs(other, law)
    found = RDP.epsilon(BestOf((ours,), law), 1e-5).epsilon
    assert found <= expected * (1 + 1e-9)
    if isinstance(law, TruncatedNegativeBinomial):
        assert found >= 0.99 * expected
    else:
        assert found >= 0.6 * expected


@pytest.mark.parametrize("mean", [1.0, 4.0, 20.0])
def test_poisson_with_the_delta_of_the_moments_is_that_of_dp_accounting(mean):
    """A zCDP cost has the moments of a Gaussian but no loss distribution: then both do the same."""
    law = PoissonRepetitions(mean)
    expected = theirs(dp_accounting.GaussianDpEvent(3.0), law)
    found = RDP.epsilon(BestOf((ZcdpCost(1 / 18),), law), 1e-5).epsilon
    assert 0.97 * expected <= found <= expected * 1.01
    assert RDP.epsilon(BestOf((GaussianRelease(3.0),), law), 1e-5).epsilon <= found


# --- the event in the accountants --------------------------------------------------------------------------------


@every_law
def test_it_composes_with_other_events(law):
    search, other = BestOf((RUN,), law), GaussianRelease(5.0)
    whole = Composed((Repeated(search, 2), other))
    assert moment(whole, 3.0) == pytest.approx(2 * moment(search, 3.0) + moment(other, 3.0), rel=1e-12)
    assert RDP.epsilon(whole, 1e-5).epsilon > RDP.epsilon(search, 1e-5).epsilon > RDP.epsilon(RUN, 1e-5).epsilon


@every_law
def test_moments_are_whole_orders_of_the_same(law):
    search = BestOf((RUN,), law)
    asked = log_moment("test", flatten(search))
    assert MOMENTS.epsilon(search, 1e-5).epsilon == min((asked(k) + math.log(1e5)) / k for k in range(1, 33))
    assert MOMENTS.epsilon(search, 1e-5).epsilon >= RDP.epsilon(search, 1e-5).epsilon


@pytest.mark.parametrize("name", sorted(ACCOUNTANTS.keys() - {"rdp", "moments"}))
def test_every_other_accountant_refuses(name):
    for event in (BestOf((RUN,), LAWS[2]), Composed((RUN, BestOf((RUN,), LAWS[-1])))):
        with pytest.raises(UnsupportedEvent, match=r"Best of .* Use rdp\.$"):
            accountant(name).epsilon(event, 1e-5)


def test_filters():
    search = BestOf((RUN,), LAWS[2])
    with pytest.raises(UnsupportedEvent, match="Use rdp"):
        ZcdpFilter(rho=100.0, delta=1e-5).admit(search)
    cost = RDP.epsilon(search, 1e-5).epsilon
    wide = RdpFilter(epsilon=1.05 * cost, delta=1e-5, expected=search)
    wide.admit(AdaptivelyChosen(search))
    wide.commit(AdaptivelyChosen(search))
    assert 0.8 < wide.used < 1
    with pytest.raises(BudgetExceeded):
        RdpFilter(epsilon=0.95 * cost, delta=1e-5, expected=search).admit(search)


@every_law
def test_equal_candidates_are_one_and_different_ones_lie_between(law):
    cheap, dear = GaussianRelease(4.0), GaussianRelease(2.0)
    both = [BestOf(pair, law) for pair in ((cheap, cheap), (cheap, dear), (dear, dear))]
    low, middle, high = (RDP.epsilon(search, 1e-5).epsilon for search in both)
    assert low == pytest.approx(RDP.epsilon(BestOf((cheap,), law), 1e-5).epsilon, rel=1e-9)
    assert low < middle < high


def test_a_drawn_candidate_has_the_mean_of_the_moments():
    """With hardly a second run, what is left is the draw of the candidate."""
    law = TruncatedNegativeBinomial(1.0, 1 - 1e-12)
    parts = [moment(GaussianRelease(sigma), 2.0) for sigma in (1.0, 3.0)]
    expected = math.log(sum(map(math.exp, parts)) / 2)
    assert moment(BestOf((GaussianRelease(1.0), GaussianRelease(3.0)), law), 2.0) == pytest.approx(expected, rel=1e-4)


@every_law
def test_silent_noiseless_and_mixed_candidates(law):
    silent, bare = PoissonSampled(0.0, GaussianRelease(1.0)), GaussianRelease(0.0)
    assert RDP.epsilon(BestOf((silent, silent), law), 1e-5).epsilon == 0
    assert RDP.epsilon(BestOf((silent, bare), law), 1e-5).epsilon == math.inf
    half = RDP.epsilon(BestOf((silent, GaussianRelease(2.0)), law), 1e-5).epsilon
    assert 0 < half < RDP.epsilon(BestOf((GaussianRelease(2.0),), law), 1e-5).epsilon


@pytest.mark.parametrize("law", [LAWS[0], LAWS[3], LAWS[-1]], ids=str)
@pytest.mark.parametrize(
    "candidate",
    [
        GaussianRelease(0.01),
        ZcdpCost(1e6),
        ZcdpCost(1e-12),
        Selection(300.0),
        PoissonSampled(1e-6, GaussianRelease(200.0)),
        Repeated(PoissonSampled(0.5, GaussianRelease(0.3)), 10**6),
        Composed((RUN, Selection(0.1), ZcdpCost(0.01))),
        BestOf((GaussianRelease(3.0),), TruncatedNegativeBinomial(0.0, 0.1)),
        GaussianRelease(2.0, Neighbours.REPLACE_ONE),
    ],
    ids=str,
)
def test_extreme_and_nested_candidates_have_a_finite_answer_above_one_run(law, candidate):
    alone, best = RDP.epsilon(candidate, 1e-5).epsilon, RDP.epsilon(BestOf((candidate,), law), 1e-5).epsilon
    assert alone <= best * (1 + 1e-9)
    assert math.isfinite(best)


def test_an_infinite_moment_at_high_orders_does_no_harm():
    """An inner moment that is infinite from some order on, as of a mechanism with unbounded losses."""
    for law in LAWS:
        inner = [lambda t: t * (t + 1) / 8 if t < 5 else math.inf, lambda t: t * (t + 1) / 8]
        found = best_of_moment("test", law, [{ZcdpCost(1.0): 1}] * 2, inner)
        assert math.isfinite(found(3.0))
        assert found(6.0) == math.inf


# --- laws --------------------------------------------------------------------------------------------------------

laws_by_mean = st.sampled_from([-0.5, 0.0, 1.0, math.inf])


@lawful(12)
@given(eta=laws_by_mean, sigma=st.floats(0.7, 10.0), more=st.floats(1.0, 3.0), q=st.sampled_from([0.01, 0.2, 1.0]))
def test_more_noise_never_costs_more(eta, sigma, more, q):
    law = repetitions_for(5.0, eta)
    found = [
        RDP.epsilon(BestOf((Repeated(PoissonSampled(q, GaussianRelease(s)), 100),), law), 1e-5).epsilon
        for s in (sigma, sigma * more)
    ]
    assert found[1] <= found[0] * (1 + 1e-6)


@lawful(8)
@given(eta=laws_by_mean, mean=st.floats(1.1, 50.0), more=st.floats(1.0, 3.0))
def test_a_larger_mean_never_costs_less(eta, mean, more):
    found = [RDP.epsilon(BestOf((RUN,), repetitions_for(m, eta)), 1e-5).epsilon for m in (mean, mean * more)]
    assert found[0] <= found[1] * (1 + 1e-6)


# --- the number of runs ------------------------------------------------------------------------------------------


@every_law
def test_the_probabilities_are_those_of_the_law(law):
    listed = list(itertools.islice(probabilities(law), 40_000))
    assert math.fsum(p for _, p in listed) == pytest.approx(1, abs=1e-12)
    assert math.fsum(k * p for k, p in listed) == pytest.approx(law.mean, rel=1e-9)
    assert math.fsum(p * 0.7**k for k, p in listed) == pytest.approx(float(generating(law, 0.7)[0]), rel=1e-9)


@every_law
def test_a_count_is_drawn_by_the_inverse_of_the_distribution_function(law):
    below = 0.0
    for k, p in itertools.islice(probabilities(law), 12):
        if p > 1e-9:
            assert draw_count(law, below + 0.5 * p) == k
        below += p
    places = [0.0, *np.linspace(0.001, 0.999, 60).tolist(), 1 - 2**-30, 1 - 2**-53]
    drawn = [draw_count(law, place) for place in places]
    assert drawn == sorted(drawn)
    assert drawn[0] == (0 if isinstance(law, PoissonRepetitions) else 1)


def test_drawn_counts_have_the_mean():
    places = ((np.arange(2000) + 0.5) / 2000).tolist()
    for law in LAWS[1:]:
        assert np.mean([draw_count(law, place) for place in places]) == pytest.approx(law.mean, rel=0.03)


@pytest.mark.parametrize("uniform", [-1e-9, 1.0, math.nan, 1, "0.5", None])
def test_a_bad_uniform_is_refused(uniform):
    with pytest.raises(InputError, match=r"uniform must be a float in \[0, 1\)"):
        draw_count(LAWS[0], uniform)


def test_a_law_without_an_end_in_sight_is_not_drawn_from():
    with pytest.raises(InputError, match="too small to draw from"):
        draw_count(TruncatedNegativeBinomial(-0.9, 1e-9), 0.5)


@pytest.mark.parametrize("eta", [-0.9, -0.5, -1e-12, 0.0, 0.5, 1.0, 30.0, 1e6, math.inf])
@pytest.mark.parametrize("mean", [1.01, 5.0, 300.0])
def test_a_law_is_found_for_a_mean(mean, eta):
    law = repetitions_for(mean, eta)
    assert law.mean == pytest.approx(mean, rel=1e-9)
    assert isinstance(law, PoissonRepetitions) == (eta == math.inf)


@pytest.mark.parametrize(
    ("mean", "eta", "match"),
    [
        (1.0, 0.0, "has a mean of 1 runs"),
        (0.5, 1.0, "has a mean of 0.5 runs"),
        (1e6, -0.999, "has a mean of 1e"),
        (0.9, math.inf, "at least 1"),
        (5.0, -1.0, "eta must"),
        (5.0, math.nan, "eta must"),
        (0.0, 0.0, "mean must"),
    ],
)
def test_means_no_law_has_are_refused(mean, eta, match):
    with pytest.raises(InputError, match=match):
        repetitions_for(mean, eta)


# --- noise for a search ------------------------------------------------------------------------------------------


def steps(q: float, count: int):
    return lambda x: Repeated(PoissonSampled(q, GaussianRelease(x)), count)


@pytest.mark.parametrize("law", [TruncatedNegativeBinomial(0.0, 0.05), PoissonRepetitions(6.0)], ids=str)
def test_noise_is_found_for_every_candidate_and_for_all_together(law):
    makers, beside = [steps(0.01, 500), lambda x: GaussianRelease(3 * x)], GaussianRelease(20.0)
    scales = noise_for_search(makers, law, epsilon=2.0, delta=1e-5, beside=beside)
    runs = tuple(make(x) for make, x in zip(makers, scales, strict=True))
    together = RDP.epsilon(Composed((BestOf(runs, law), beside)), 1e-5).epsilon
    assert 0.995 * 2.0 < together <= 2.0
    alone = [noise_for_search([make], law, epsilon=2.0, delta=1e-5, beside=beside)[0] for make in makers]
    factors = [x / least for x, least in zip(scales, alone, strict=True)]
    assert factors[0] == pytest.approx(factors[1], rel=1e-12)
    assert factors[0] >= 1


def test_one_candidate_is_plain_calibration():
    law = TruncatedNegativeBinomial(1.0, 0.2)
    (scale,) = noise_for_search([GaussianRelease], law, epsilon=1.0, delta=1e-5)
    assert RDP.epsilon(BestOf((GaussianRelease(scale),), law), 1e-5).epsilon == pytest.approx(1.0, rel=1e-6)


def test_a_search_that_cannot_be_afforded_is_refused():
    with pytest.raises(InputError, match="at least one candidate"):
        noise_for_search([], LAWS[0], epsilon=1.0, delta=1e-5)
    with pytest.raises(UnreachableTarget, match="besides costs"):
        noise_for_search([GaussianRelease], LAWS[0], epsilon=1.0, delta=1e-5, beside=GaussianRelease(1.0))
