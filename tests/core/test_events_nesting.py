"""events: events nesting."""

import math

import pytest
from events_cases import ADD, BAD_NUMBERS, EXAMPLES, G_REPLACE, REPLACE, WRAPPERS, ZERO, G, through_text
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    events,
    sampled,
    searches,
)

from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import PoissonRepetitions, TruncatedNegativeBinomial
from adadp.errors import EventError, InputError
from adadp.events import (
    AdaptivelyChosen,
    Composed,
    FixedSizeSampled,
    GaussianRelease,
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    Selection,
    ZcdpCost,
    compose,
    describe,
    flatten,
    from_json,
    is_noiseless,
    is_silent,
    to_json,
)


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_sampler_holds_any_nest_of_unsampled_events(wrap):
    for inner in (wrap(G), wrap(ZcdpCost(0.5)), wrap(Selection(0.1))):
        assert PoissonSampled(0.1, inner).event == inner
        assert ReshuffledEpoch((inner,), independent_assignment=True).batches == (inner,)


def test_mixed_relations_are_refused_and_named():
    parts = (G, G_REPLACE, GaussianRelease(4, ZERO))
    for build in (Composed, ReshuffledEpoch, lambda parts: compose(*parts)):
        with pytest.raises(
            EventError, match=r"mixes neighbouring relations: add-remove, replace-one, zero-out\."
        ) as caught:
            build(parts)
        assert caught.value.why
        assert caught.value.fix


def test_relations_hidden_in_a_nest_are_found():
    with pytest.raises(EventError, match="mixes neighbouring relations"):
        Composed((PoissonSampled(0.1, Repeated(G, 2)), AdaptivelyChosen(FixedSizeSampled(0.1, G_REPLACE))))


@pytest.mark.parametrize("values", [(), [], None, "ab", G, {G}, iter([G])])
def test_a_composition_is_a_non_empty_sequence(values):
    with pytest.raises(EventError, match=r"Composed\.events must be a non-empty sequence"):
        Composed(values)
    with pytest.raises(EventError, match=r"ReshuffledEpoch\.batches must be a non-empty sequence"):
        ReshuffledEpoch(values)


@pytest.mark.parametrize("value", [None, 4.0, "gaussian", {"kind": "gaussian"}, GaussianRelease])
def test_only_events_are_held(value):
    for build, where in [
        (lambda: PoissonSampled(0.1, value), r"PoissonSampled\.event"),
        (lambda: FixedSizeSampled(0.1, value), r"FixedSizeSampled\.event"),
        (lambda: ReshuffledEpoch((value,)), r"ReshuffledEpoch\.batches"),
        (lambda: AdaptivelyChosen(value), r"AdaptivelyChosen\.event"),
        (lambda: Composed((G, value)), r"Composed\.events"),
        (lambda: Repeated(value, 2), r"Repeated\.event"),
    ]:
        with pytest.raises(EventError, match=f"{where} must be an event") as caught:
            build()
        assert caught.value.fix


@pytest.mark.parametrize("value", ["laplace", "", None, 3])
def test_an_unknown_selection_mechanism_is_refused(value):
    with pytest.raises(EventError, match="Unknown selection mechanism") as caught:
        Selection(1, value)
    assert "exponential, noisy-max" in caught.value.fix


@pytest.mark.parametrize("build", [GaussianRelease, ZcdpCost, Selection])
def test_an_unknown_relation_is_refused_when_built(build):
    with pytest.raises(EventError, match="Unknown neighbouring relation 'swap'") as caught:
        build(1, neighbours="swap")
    assert caught.value.why
    assert "add-remove, replace-one, zero-out" in caught.value.fix


# --- searches ----------------------------------------------------------------------------------------------------

LAW = TruncatedNegativeBinomial(0.0, 0.1)


@given(searches(ZERO))
def test_searches_stay_whole(event):
    assert flatten(Repeated(event, 3)) == {event: 3}


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_search_is_not_run_on_a_sample(wrap):
    inner = wrap(BestOf((GaussianRelease(4, ZERO),), LAW))
    for outer in (
        lambda: PoissonSampled(0.1, inner),
        lambda: FixedSizeSampled(0.1, inner),
        lambda: ReshuffledEpoch((inner,)),
    ):
        with pytest.raises(EventError, match="holds BestOf, which is not sampled as a whole") as caught:
            outer()
        assert caught.value.why
        assert "inside of what it holds" in caught.value.fix


@pytest.mark.parametrize(
    "candidate",
    [
        AdaptivelyChosen(G),
        Repeated(AdaptivelyChosen(PoissonSampled(0.1, G)), 3),
        Composed((G, PoissonSampled(0.1, Composed((G, AdaptivelyChosen(G)))))),
        ReshuffledEpoch((G, AdaptivelyChosen(G)), independent_assignment=True),
    ],
)
def test_a_search_over_adaptive_runs_is_refused_however_deep(candidate):
    with pytest.raises(EventError, match="noise is chosen from its own releases") as caught:
        BestOf((G, candidate), LAW)
    assert caught.value.why
    assert caught.value.fix


def test_fixed_size_batches_of_an_adaptive_run_are_found_too():
    with pytest.raises(EventError, match="noise is chosen"):
        BestOf((FixedSizeSampled(0.1, AdaptivelyChosen(G_REPLACE)),), LAW)


def test_a_whole_search_may_be_chosen_adaptively_and_hold_a_search():
    search = BestOf((BestOf((G,), LAW), G), PoissonRepetitions(2))
    assert through_text(AdaptivelyChosen(search)).event == search


def test_the_candidates_of_a_search_share_a_relation():
    with pytest.raises(EventError, match=r"BestOf\.inner mixes neighbouring relations"):
        BestOf((G, G_REPLACE), LAW)
    with pytest.raises(EventError, match=r"BestOf\.inner must be a non-empty sequence"):
        BestOf((), LAW)


@pytest.mark.parametrize("law", [None, 3, "poisson", {"law": "poisson", "mean": 3.0}])
def test_a_search_needs_a_law(law):
    with pytest.raises(EventError, match=r"BestOf\.repetitions must be the law") as caught:
        BestOf((G,), law)
    assert "PoissonRepetitions" in caught.value.fix


@pytest.mark.parametrize(
    "law",
    [
        None,
        [],
        {"law": "geometric", "gamma": 0.1},
        {"law": "poisson"},
        {"law": "poisson", "mean": 3.0, "eta": 1.0},
        {"law": "truncated-negative-binomial", "eta": 1.0},
        {"mean": 3.0},
    ],
)
def test_an_unknown_law_is_refused_when_read(law):
    with pytest.raises(EventError, match="no law this AdaDP reads"):
        from_json(to_json(EXAMPLES["best-of"]) | {"repetitions": law})


@pytest.mark.parametrize("eta", [-1, -1.5, math.nan, math.inf, -math.inf, True, False, "0", None])
def test_a_bad_eta_is_refused(eta):
    with pytest.raises(InputError, match="eta must"):
        TruncatedNegativeBinomial(eta, 0.1)


@pytest.mark.parametrize("gamma", [*BAD_NUMBERS, 0, 1, 1.5])
def test_a_bad_gamma_is_refused(gamma):
    with pytest.raises(InputError, match="gamma must"):
        TruncatedNegativeBinomial(0.0, gamma)


def test_a_gamma_without_a_finite_mean_is_refused():
    with pytest.raises(InputError, match="mean number of runs infinite"):
        TruncatedNegativeBinomial(1.0, 1e-310)


@pytest.mark.parametrize("mean", [*BAD_NUMBERS, 0, 0.999])
def test_a_bad_poisson_mean_is_refused(mean):
    with pytest.raises(InputError, match=r"mean .*must"):
        PoissonRepetitions(mean)


def test_the_means_of_the_named_laws():
    assert PoissonRepetitions(1).mean == 1.0
    assert TruncatedNegativeBinomial(1, 0.1).mean == pytest.approx(10, rel=1e-14)
    assert TruncatedNegativeBinomial(0, 0.1).mean == pytest.approx(9 / math.log(10), rel=1e-14)
    assert TruncatedNegativeBinomial(-0.5, 0.01).mean == pytest.approx(0.5 * 0.99 / (0.01 * 9), rel=1e-13)
    for eta in (-1e-9, 1e-9):
        assert TruncatedNegativeBinomial(eta, 0.1).mean == pytest.approx(9 / math.log(10), rel=1e-8)


# --- laws --------------------------------------------------------------------------------------------------------


@given(events(), st.integers(1, 5))
def test_repeating_is_composing_with_itself(event, count):
    assert flatten(Repeated(event, count)) == flatten(Composed((event,) * count))


@pytest.mark.slow
@given(events(ADD), events(ADD), events(ADD))
def test_composition_does_not_care_about_order_or_brackets(a, b, c):
    assert flatten(Composed((a, b, c))) == flatten(Composed((c, a, b))) == flatten(Composed((a, Composed((b, c)))))


@given(events(), st.integers(0, 10**6), st.integers(0, 10**6))
def test_counts_multiply(event, first, second):
    assert flatten(Repeated(Repeated(event, first), second)) == flatten(Repeated(event, first * second))


@given(events())
def test_nothing_is_counted_when_nothing_is_released(event):
    assert flatten(Repeated(event, 0)) == {}
    assert flatten(Composed((Repeated(event, 0), event))) == flatten(event)


@given(events())
def test_what_flatten_returns_is_indivisible_and_counted(event):
    counts = flatten(event)
    for part, count in counts.items():
        assert not isinstance(part, (Composed, Repeated))
        assert count > 0
        assert flatten(part) == {part: 1}


@given(sampled(ZERO))
def test_sampled_events_stay_whole(event):
    assert flatten(Repeated(event, 3)) == {event: 3}


def test_flatten_keeps_the_order_of_first_appearance():
    a, b, c = GaussianRelease(3), ZcdpCost(0.5), AdaptivelyChosen(GaussianRelease(1))
    counts = flatten(Composed((b, Repeated(Composed((a, b)), 2), c)))
    assert list(counts.items()) == [(b, 3), (a, 2), (c, 1)]


def test_compose_leaves_a_single_event_alone():
    assert compose(G) is G
    assert compose(G, ZcdpCost(0.5)) == Composed((G, ZcdpCost(0.5)))
    with pytest.raises(EventError, match="non-empty"):
        compose()


BARE = GaussianRelease(0)


BARE_REPLACE = GaussianRelease(0, REPLACE)


@pytest.mark.parametrize(
    ("event", "noiseless"),
    [
        (BARE, True),
        (G, False),
        (ZcdpCost(0), False),
        (Selection(0), False),
        (PoissonSampled(0.1, BARE), True),
        (PoissonSampled(0, BARE), False),
        (PoissonSampled(0.1, G), False),
        (FixedSizeSampled(0.1, BARE_REPLACE), True),
        (FixedSizeSampled(0, BARE_REPLACE), False),
        (FixedSizeSampled(0.1, G_REPLACE), False),
        (ReshuffledEpoch((G_REPLACE, BARE_REPLACE)), True),
        (ReshuffledEpoch((G_REPLACE,)), False),
        (AdaptivelyChosen(BARE), True),
        (AdaptivelyChosen(G), False),
        (Composed((G, BARE)), True),
        (Composed((G, G)), False),
        (Repeated(BARE, 1), True),
        (Repeated(BARE, 0), False),
        (Repeated(G, 5), False),
        (BestOf((G, BARE), PoissonRepetitions(2)), True),
        (BestOf((G, PoissonSampled(0, BARE)), PoissonRepetitions(2)), False),
    ],
)
def test_noiseless(event, noiseless):
    assert is_noiseless(event) is noiseless


@pytest.mark.parametrize(
    ("event", "silent"),
    [
        (G, False),
        (BARE, False),
        (ZcdpCost(0), True),
        (ZcdpCost(0.1), False),
        (Selection(0), True),
        (Selection(0.1), False),
        (PoissonSampled(0, G), True),
        (PoissonSampled(0.1, G), False),
        (PoissonSampled(0.1, Selection(0)), True),
        (FixedSizeSampled(0, G_REPLACE), True),
        (FixedSizeSampled(0.1, G_REPLACE), False),
        (ReshuffledEpoch((G_REPLACE,)), False),
        (ReshuffledEpoch((ZcdpCost(0, "replace-one"),)), True),
        (AdaptivelyChosen(Selection(0)), True),
        (AdaptivelyChosen(G), False),
        (Composed((ZcdpCost(0), Selection(0))), True),
        (Composed((ZcdpCost(0), G)), False),
        (Repeated(G, 0), True),
        (Repeated(G, 1), False),
        (Repeated(Selection(0), 3), True),
        (BestOf((Selection(0), PoissonSampled(0, G)), PoissonRepetitions(2)), True),
        (BestOf((Selection(0), G), PoissonRepetitions(2)), False),
    ],
)
def test_silent(event, silent):
    assert is_silent(event) is silent


@given(events())
def test_an_event_is_noiseless_when_one_of_its_parts_is(event):
    assert is_noiseless(event) == any(is_noiseless(part) for part in flatten(event))


# --- for people --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Repeated(PoissonSampled(0.01, G), 10000), "10000 x Poisson(q=0.01) of Gaussian(sigma=4)"),
        (FixedSizeSampled(0.5, ZcdpCost(0.25, ZERO)), "Fixed-size(q=0.5) of zCDP(rho=0.25)"),
        (
            ReshuffledEpoch((G_REPLACE, GaussianRelease(2, REPLACE))),
            "Reshuffled epoch of Gaussian(sigma=4) | Gaussian(sigma=2)",
        ),
        (AdaptivelyChosen(Selection(0.1)), "Adaptively chosen Selection(epsilon=0.1, exponential)"),
        (Repeated(Composed((G, ZcdpCost(1))), 2), "2 x (Gaussian(sigma=4) + zCDP(rho=1))"),
        (
            BestOf((Repeated(PoissonSampled(0.5, G), 3), G), TruncatedNegativeBinomial(1, 0.1)),
            "Best of TNB(eta=1, gamma=0.1, mean=10) runs of [3 x Poisson(q=0.5) of Gaussian(sigma=4) | "
            "Gaussian(sigma=4)]",
        ),
        (BestOf((G,), PoissonRepetitions(2.5)), "Best of Poisson(mean=2.5) runs of [Gaussian(sigma=4)]"),
    ],
)
def test_descriptions(event, text):
    assert describe(event) == text


@given(events())
def test_every_description_is_one_line(event):
    assert describe(event)
    assert "\n" not in describe(event)
