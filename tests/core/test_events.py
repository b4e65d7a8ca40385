"""events"""

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, fields

import pytest
from events_cases import ADD, BAD_NUMBERS, EXAMPLES, G_REPLACE, REPLACE, WRAPPERS, ZERO, G, through_text
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
    PoissonSampled,
    Repeated,
    ReshuffledEpoch,
    Selection,
    SelectionMechanism,
    ZcdpCost,
    describe,
    from_json,
    to_json,
)

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


@pytest.mark.slow
@given(gaussians() | poissons() | fixed_sizes() | reshuffles())
def test_training_events_read_back_too(event):
    assert through_text(event) == event


@pytest.mark.slow
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


def test_a_release_of_held_out_records_says_so():
    held = GaussianRelease(4.0, held_out=True)
    assert describe(held) == "Gaussian(sigma=4, held-out records)"
    assert held != GaussianRelease(4.0)
    with pytest.raises(EventError, match="held_out must be true or false"):
        GaussianRelease(4.0, held_out=1)
