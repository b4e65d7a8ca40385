import copy
import json
import math
import pickle
from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    RELATIONS,
    SAME_SIZE_RELATIONS,
    events,
    fixed_sizes,
    gaussians,
    poissons,
    reshuffles,
    sampled,
    searches,
)

from adadp.app.accounting.best_of import BestOf
from adadp.app.accounting.repetitions import PoissonRepetitions, TruncatedNegativeBinomial
from adadp.errors import EventError, InputError
from adadp.events import (
    SCHEMA_VERSION,
    AdaptivelyChosen,
    Composed,
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
    describe,
    flatten,
    from_json,
    is_noiseless,
    is_silent,
    to_json,
)

ADD, REPLACE, ZERO = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT
G = GaussianRelease(4.0)
G_REPLACE = GaussianRelease(4.0, REPLACE)
EXAMPLES = {
    "gaussian": G,
    "zcdp": ZcdpCost(0.5),
    "selection": Selection(0.1),
    "poisson-sampled": PoissonSampled(0.01, G),
    "fixed-size-sampled": FixedSizeSampled(0.01, G_REPLACE),
    "reshuffled-epoch": ReshuffledEpoch((G, ZcdpCost(0.5)), independent_assignment=True),
    "adaptively-chosen": AdaptivelyChosen(G),
    "composed": Composed((G, Selection(0.1))),
    "repeated": Repeated(G, 3),
    "best-of": BestOf((PoissonSampled(0.01, G), G), TruncatedNegativeBinomial(0.0, 0.1)),
}
BAD_NUMBERS = [math.nan, math.inf, -math.inf, -0.5, True, "0.5", None]


def through_text(event):
    return from_json(json.loads(json.dumps(to_json(event), allow_nan=False)))


# --- round trip --------------------------------------------------------------------------------------------------


@given(events())
def test_json_text_reads_back_as_an_equal_event(event):
    again = through_text(event)
    assert again == event
    assert hash(again) == hash(event)
    assert to_json(again) == to_json(event)


@given(st.sampled_from([ADD, REPLACE, ZERO]).flatmap(lambda near: st.tuples(st.just(near), events(near))))
def test_an_event_knows_its_relation(pair):
    near, event = pair
    assert event.neighbours is near
    assert to_json(event)["neighbours"] == near.value


@given(gaussians() | poissons() | fixed_sizes() | reshuffles())
def test_training_events_read_back_too(event):
    assert through_text(event) == event


@given(events(adaptive=False))
def test_the_strategy_can_leave_adaptive_events_out(event):
    assert "adaptively-chosen" not in json.dumps(to_json(event))


@pytest.mark.parametrize(("kind", "event"), EXAMPLES.items())
def test_every_kind_has_its_name_and_the_version(kind, event):
    data = to_json(event)
    assert data["kind"] == kind
    assert data["version"] == SCHEMA_VERSION == 1
    assert from_json(data) == event


def test_the_json_form_is_pinned():
    event = Repeated(PoissonSampled(0.01, Composed((GaussianRelease(4), Selection(0.5)))), 10)
    assert to_json(event) == {
        "version": 1,
        "kind": "repeated",
        "neighbours": "add-remove",
        "count": 10,
        "event": {
            "kind": "poisson-sampled",
            "neighbours": "add-remove",
            "sampling_probability": 0.01,
            "event": {
                "kind": "composed",
                "neighbours": "add-remove",
                "events": [
                    {"kind": "gaussian", "neighbours": "add-remove", "noise_multiplier": 4.0},
                    {"kind": "selection", "neighbours": "add-remove", "epsilon": 0.5, "mechanism": "exponential"},
                ],
            },
        },
    }
    assert to_json(AdaptivelyChosen(ReshuffledEpoch((ZcdpCost(0.5, ZERO),)))) == {
        "version": 1,
        "kind": "adaptively-chosen",
        "neighbours": "zero-out",
        "event": {
            "kind": "reshuffled-epoch",
            "neighbours": "zero-out",
            "independent_assignment": False,
            "batches": [{"kind": "zcdp", "neighbours": "zero-out", "rho": 0.5}],
        },
    }
    assert to_json(FixedSizeSampled(0.25, G_REPLACE)) == {
        "version": 1,
        "kind": "fixed-size-sampled",
        "neighbours": "replace-one",
        "sampling_fraction": 0.25,
        "event": {"kind": "gaussian", "neighbours": "replace-one", "noise_multiplier": 4.0},
    }
    gaussian = {"kind": "gaussian", "neighbours": "add-remove", "noise_multiplier": 4.0}
    assert to_json(BestOf((G, G), TruncatedNegativeBinomial(-0.5, 0.1))) == {
        "version": 1,
        "kind": "best-of",
        "neighbours": "add-remove",
        "candidates": [gaussian, gaussian],
        "repetitions": {"law": "truncated-negative-binomial", "eta": -0.5, "gamma": 0.1},
    }
    assert to_json(BestOf((G,), PoissonRepetitions(3)))["repetitions"] == {"law": "poisson", "mean": 3.0}


@given(events())
def test_reading_does_not_change_what_it_reads(event):
    data = to_json(event)
    before = copy.deepcopy(data)
    from_json(data)
    assert data == before


@given(events())
def test_events_can_be_copied_and_pickled(event):
    assert copy.deepcopy(event) == event
    assert pickle.loads(pickle.dumps(event)) == event


@pytest.mark.parametrize("event", EXAMPLES.values())
def test_events_are_frozen(event):
    name = fields(event)[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(event, name, getattr(event, name))


def test_a_list_of_events_is_frozen_too():
    parts = [G, ZcdpCost(0.5)]
    composed, epoch = Composed(parts), ReshuffledEpoch(parts, independent_assignment=True)
    parts.clear()
    assert composed.events == epoch.batches == (G, ZcdpCost(0.5))
    assert hash(composed)
    assert hash(epoch)


def test_numbers_are_stored_as_floats_and_ints():
    assert type(GaussianRelease(4).noise_multiplier) is float
    assert type(ZcdpCost(1).rho) is float
    assert type(Selection(1).epsilon) is float
    assert type(PoissonSampled(1, G).sampling_probability) is float
    assert type(FixedSizeSampled(1, G_REPLACE).sampling_fraction) is float
    assert type(Repeated(G, 3.0).count) is int


def test_names_become_members():
    assert GaussianRelease(1, "zero-out").neighbours is ZERO
    assert ZcdpCost(1, "zero-out").neighbours is ZERO
    assert Selection(1, "noisy-max", "zero-out").mechanism is SelectionMechanism.NOISY_MAX
    assert Selection(1, "noisy-max", "zero-out").neighbours is ZERO


# --- refused when read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [None, [], "gaussian", 3])
def test_an_event_is_a_json_object(data):
    with pytest.raises(EventError, match=f"must be a JSON object, got {type(data).__name__}"):
        from_json(data)


@pytest.mark.parametrize("version", [0, 2, "1", None, True, [1]])
def test_another_version_is_refused(version):
    with pytest.raises(EventError, match="schema version") as caught:
        from_json(to_json(G) | {"version": version})
    assert repr(version) in caught.value.what
    assert caught.value.why
    assert caught.value.fix


def test_a_missing_version_is_refused():
    data = to_json(G)
    del data["version"]
    with pytest.raises(EventError, match="schema version None"):
        from_json(data)


@pytest.mark.parametrize("kind", ["laplace", "", None, 3, ["gaussian"]])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(EventError, match="Unknown event kind") as caught:
        from_json(to_json(G) | {"kind": kind})
    assert repr(kind) in caught.value.what
    for known in EXAMPLES:
        assert known in caught.value.fix


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_unknown_field_is_refused(kind):
    with pytest.raises(EventError, match=f"The {kind} event has unknown fields: clip_norm, colour") as caught:
        from_json(to_json(EXAMPLES[kind]) | {"colour": 1, "clip_norm": 2})
    assert caught.value.why


def test_an_unknown_field_need_not_be_text():
    with pytest.raises(EventError, match="unknown fields: 7, clip_norm"):
        from_json(to_json(G) | {"clip_norm": 2, 7: 1})


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_missing_field_is_refused_by_name(kind):
    data = to_json(EXAMPLES[kind])
    for name in data.keys() - {"version", "kind"}:
        with pytest.raises(EventError, match=f"The {kind} event has no field '{name}'"):
            from_json({key: value for key, value in data.items() if key != name})


def test_a_fault_deep_inside_is_found():
    data = to_json(Repeated(PoissonSampled(0.1, Composed((G, ZcdpCost(0.5)))), 3))
    del data["event"]["event"]["events"][1]["rho"]
    with pytest.raises(EventError, match="The zcdp event has no field 'rho'"):
        from_json(data)


def test_only_the_outermost_event_carries_a_version():
    data = to_json(Repeated(G, 3))
    data["event"]["version"] = SCHEMA_VERSION
    with pytest.raises(EventError, match="The gaussian event has unknown fields: version"):
        from_json(data)


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("relation", ["", "Add-Remove", None, 3, []])
def test_an_unknown_relation_is_refused(kind, relation):
    with pytest.raises(EventError, match="Unknown neighbouring relation") as caught:
        from_json(to_json(EXAMPLES[kind]) | {"neighbours": relation})
    assert repr(relation) in caught.value.what
    assert "add-remove, replace-one, zero-out" in caught.value.fix


@pytest.mark.parametrize("kind", sorted(EXAMPLES.keys() - {"gaussian", "zcdp", "selection"}))
def test_a_relation_that_contradicts_the_parts_is_refused(kind):
    event = EXAMPLES[kind]
    for other in set(RELATIONS) - {event.neighbours}:
        with pytest.raises(
            EventError, match=f"The {kind} event says {other.value} but holds events for {event.neighbours.value}"
        ):
            from_json(to_json(event) | {"neighbours": other.value})


@pytest.mark.parametrize(("kind", "name"), [("composed", "events"), ("reshuffled-epoch", "batches")])
@pytest.mark.parametrize("value", [None, {}, "gaussian", 3])
def test_parts_are_a_list(kind, name, value):
    with pytest.raises(EventError, match=f"A list of events was expected, got {type(value).__name__}"):
        from_json(to_json(EXAMPLES[kind]) | {name: value})


@pytest.mark.parametrize(("kind", "name"), [("composed", "events"), ("reshuffled-epoch", "batches")])
def test_an_empty_list_is_refused_when_read(kind, name):
    with pytest.raises(EventError, match="non-empty sequence"):
        from_json(to_json(EXAMPLES[kind]) | {name: []})


def test_only_an_event_is_written():
    with pytest.raises(EventError, match="event must be an event, got 'gaussian'"):
        to_json("gaussian")


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-1", "true", '"4"', "null", "1" + "0" * 400])
def test_a_bad_number_in_json_text_is_refused(token):
    text = json.dumps(to_json(G)).replace("4.0", token)
    with pytest.raises(InputError, match="noise_multiplier must"):
        from_json(json.loads(text))


# --- refused when built ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", BAD_NUMBERS)
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (GaussianRelease, "noise_multiplier"),
        (ZcdpCost, "rho"),
        (Selection, "epsilon"),
        (lambda value: PoissonSampled(value, G), "sampling_probability"),
        (lambda value: FixedSizeSampled(value, G_REPLACE), "sampling_fraction"),
        (lambda value: Repeated(G, value), "count"),
    ],
    ids=["gaussian", "zcdp", "selection", "poisson", "fixed-size", "repeated"],
)
def test_bad_numbers_are_refused_by_name(build, name, value):
    with pytest.raises(InputError, match=f"{name} must"):
        build(value)


@pytest.mark.parametrize("rate", [1.0000001, 2])
def test_a_rate_above_1_is_refused(rate):
    with pytest.raises(InputError, match="sampling_probability must lie in"):
        PoissonSampled(rate, G)
    with pytest.raises(InputError, match="sampling_fraction must lie in"):
        FixedSizeSampled(rate, G_REPLACE)


def test_the_ends_are_legal():
    assert GaussianRelease(0).noise_multiplier == 0
    assert Repeated(G, 0).count == 0
    assert [PoissonSampled(rate, G).sampling_probability for rate in (0, 1)] == [0, 1]
    assert [FixedSizeSampled(rate, G_REPLACE).sampling_fraction for rate in (0, 1)] == [0, 1]


def test_a_count_is_whole():
    with pytest.raises(InputError, match="count must be a whole number"):
        Repeated(G, 2.5)


def test_fixed_size_sampling_needs_data_of_one_size():
    with pytest.raises(EventError, match="Fixed-size sampling was declared with add-remove neighbours") as caught:
        FixedSizeSampled(0.1, G)
    assert caught.value.why
    assert caught.value.fix
    for near in SAME_SIZE_RELATIONS:
        assert FixedSizeSampled(0.1, GaussianRelease(4, near)).neighbours is near


def test_reshuffling_needs_data_of_one_size_or_independent_assignment():
    with pytest.raises(EventError, match="A reshuffled epoch was declared with add-remove neighbours") as caught:
        ReshuffledEpoch((G,))
    assert caught.value.why
    assert "independent_assignment=True" in caught.value.fix
    assert ReshuffledEpoch((G,), independent_assignment=True).neighbours is ADD
    for near in SAME_SIZE_RELATIONS:
        assert ReshuffledEpoch((GaussianRelease(4, near),)).neighbours is near


@pytest.mark.parametrize("value", [1, 0, "yes", None])
def test_independent_assignment_is_a_bool(value):
    with pytest.raises(EventError, match="independent_assignment must be true or false"):
        ReshuffledEpoch((GaussianRelease(4, ZERO),), independent_assignment=value)


WRAPPERS = [
    lambda event: event,
    lambda event: Repeated(event, 2),
    lambda event: Composed((event,)),
    AdaptivelyChosen,
    lambda event: AdaptivelyChosen(Composed((Repeated(event, 2),))),
    lambda event: Repeated(AdaptivelyChosen(AdaptivelyChosen(event)), 2),
]


@pytest.mark.parametrize("wrap", WRAPPERS)
@given(event=sampled(ZERO))
def test_a_sample_of_a_sample_is_refused_however_it_is_wrapped(wrap, event):
    inner = wrap(event)
    for outer, name in [
        (lambda: PoissonSampled(0.1, inner), "PoissonSampled"),
        (lambda: FixedSizeSampled(0.1, inner), "FixedSizeSampled"),
        (lambda: ReshuffledEpoch((GaussianRelease(4, ZERO), inner)), "ReshuffledEpoch"),
    ]:
        with pytest.raises(EventError, match=f"{name} holds {type(event).__name__}: a sample of a sample"):
            outer()


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
