"""Laws over every clip rule, the numbers of each by hand, and the noisy quantile on real Gaussian noise."""

import json
import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from clipping_cases import INF, LAYERS, NAMES, NAN, SAMPLES, batch_for, batches, bounds, quantiles
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adadp.app.clipping.fixed import Automatic, PerLayer, PerLayerJoint
from adadp.app.clipping.quantile import QuantileAdaptive
from adadp.app.texts.clip_rules import clip_rule, parse_clip_rule
from adadp.clipping import AdaptiveClipRule, ClipRule, Flat
from adadp.errors import InputError


def rules(sizes=bounds) -> st.SearchStrategy[ClipRule]:
    """Every private rule; those with a bound per layer have three."""
    return st.one_of(
        st.builds(Flat, sizes),
        st.builds(PerLayer, st.one_of(sizes, st.tuples(sizes, sizes, sizes))),
        st.builds(PerLayerJoint, sizes),
        st.builds(Automatic, sizes, sizes),
        quantiles(sizes),
    )


every_rule = pytest.mark.parametrize("rule", SAMPLES, ids=str)


def contributions(rule: ClipRule, square_norms: Tensor) -> Tensor:
    """The norm of what each record contributes, from the float32 weights but computed in float64."""
    weights = rule.weights(square_norms, rule.initial_state()).double()
    parts = weights * square_norms.double().sqrt().nan_to_num(0.0, 0.0)
    return parts.square().sum(dim=1).sqrt()


def bound_of(rule: ClipRule) -> float:
    return rule.l2_bound(len(rule.groups(NAMES)), rule.initial_state())


# laws


@settings(max_examples=200)
@given(rules(), batches)
def test_no_record_contributes_more_than_the_bound(rule, rows):
    batch = batch_for(rule, rows)
    assert (contributions(rule, batch) < bound_of(rule)).all()


@settings(max_examples=200)
@given(rules(), st.lists(st.floats(-2e-5, 2e-5), min_size=LAYERS, max_size=LAYERS))
def test_nor_does_a_record_whose_norm_is_almost_at_the_bound(rule, offsets):
    """Where rounding decides: norms within a few slacks of each group's limit."""
    limits = torch.tensor(limits_of(rule), dtype=torch.float64)
    norms = limits * (1 + torch.tensor(offsets[: len(limits)], dtype=torch.float64))
    assert (contributions(rule, norms.square().float()[None]) < bound_of(rule)).all()


def limits_of(rule: ClipRule) -> list[float]:
    """The bound of each group, worked out apart from the rule."""
    match rule:
        case PerLayer(tuple() as several):
            return list(several)
        case PerLayer(one):
            return [one] * LAYERS
        case PerLayerJoint(bound):
            return [bound / math.sqrt(LAYERS)] * LAYERS
        case QuantileAdaptive():
            return [rule.initial]
        case _:
            return [rule.bound]


@given(rules(), batches, st.sampled_from([torch.float32, torch.float64]))
def test_weights_are_finite_not_negative_and_shaped_as_asked(rule, rows, dtype):
    batch = batch_for(rule, rows, dtype)
    weights = rule.weights(batch, rule.initial_state())
    assert weights.shape == batch.shape
    assert weights.dtype == dtype
    assert weights.isfinite().all()
    assert (weights >= 0).all()


@given(rules(), batches)
def test_a_record_weighs_nothing_exactly_when_a_norm_is_huge_or_not_finite(rule, rows):
    batch = batch_for(rule, rows)
    weights = rule.weights(batch, rule.initial_state())
    counts = ((batch.double() < 0.999e30) & (batch >= 0)).all(dim=1)
    drops = ~((batch.double() < 1.001e30) & (batch >= 0)).all(dim=1)
    assert (weights[drops] == 0).all()
    assert (weights[counts] > 0).all()


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_contribution_falls_smoothly_to_nothing_long_before_a_square_overflows(rule, dtype):
    """From 1e11 to 1e16 in steps of 1e-3: nowhere does what a record contributes, or its count, jump."""
    step = 1e-3
    norms = torch.logspace(11, 16, round(5 * math.log(10) / step), dtype=torch.float64)
    groups = len(rule.groups(NAMES))
    squares = (norms.square() / groups).to(dtype)[:, None].expand(-1, groups)
    sizes = contributions(rule, squares) / bound_of(rule)
    assert sizes[0] == pytest.approx(1, abs=1e-3)
    assert (sizes[norms > 1.001e15 * math.sqrt(groups)] == 0).all()
    assert (sizes[1:] <= sizes[:-1] * (1 + 1e-6)).all()
    assert (sizes[1:] - sizes[:-1]).abs().max() < 0.25 * step
    if isinstance(rule, AdaptiveClipRule):
        counts = torch.stack([rule.count_query(row[None], rule.initial_state()) for row in squares[::10]])
        assert counts[-1] == 0
        assert (counts[1:] - counts[:-1]).abs().max() < 0.25 * 10 * step * rule.count_bound


@every_rule
@pytest.mark.parametrize("factor", [1e-6, 0.5, 1.0, 2.0, 1e9])
def test_a_factor_multiplies_the_bound_and_not_the_range_of_squares(rule, factor):
    groups, state = len(rule.groups(NAMES)), rule.initial_state()
    norms = torch.logspace(-3, 16, 5000, dtype=torch.float64)
    batch = (norms.square() / groups)[:, None].expand(-1, groups)
    weights = rule.weights_at(batch, factor, state)
    sizes = (weights * batch.sqrt()).square().sum(1).sqrt()
    assert (sizes < factor * bound_of(rule)).all()
    assert (sizes[norms > 1.001e15 * math.sqrt(groups)] == 0).all()
    if factor == 1:
        assert torch.equal(weights, rule.weights(batch, state))


@every_rule
def test_a_norm_up_to_the_largest_bound_does_not_fade(rule):
    groups = len(rule.groups(NAMES))
    batch = torch.full((1, groups), 1e24, dtype=torch.float64)
    assert contributions(rule, batch).item() == pytest.approx(bound_of(rule), rel=1e-4)


@given(rules(), batches)
def test_a_record_does_not_depend_on_the_others(rule, rows):
    batch, state = batch_for(rule, rows), rule.initial_state()
    together = rule.weights(batch, state)
    for index in range(len(batch)):
        assert torch.equal(rule.weights(batch[index : index + 1], state), together[index : index + 1])


@given(rules(), st.lists(st.floats(0, 2.0**79, width=32), min_size=2, max_size=20))
def test_a_longer_gradient_contributes_no_less_and_weighs_no_more(rule, values):
    """Up to squares of 6e23; from 1e24 on weights fade."""
    column = torch.tensor(sorted(values))[:, None]
    batch = column.expand(-1, len(rule.groups(NAMES)))
    moved = contributions(rule, batch)
    assert (moved[1:] >= moved[:-1] * (1 - 1e-6)).all()
    weights = rule.weights(batch, rule.initial_state())
    assert (weights[1:] <= weights[:-1] * (1 + 1e-6)).all()


@given(rules(st.floats(1e-3, 1e3)))
def test_the_bound_is_attained(rule):
    """A record far beyond every limit comes within 1e-4 of the bound: the noise is not larger than it has to be."""
    batch = torch.full((1, len(rule.groups(NAMES))), 1e23)
    assert contributions(rule, batch).item() == pytest.approx(bound_of(rule), rel=1e-4)


@settings(max_examples=50)
@given(rules(st.floats(1e-3, 1e3)), st.integers(0, 2**32), st.floats(-6, 6))
def test_a_real_float32_gradient_stays_within_the_bound(rule, seed, magnitude):
    """Norms, product and sum in float32, as a training step does them."""
    generator = torch.Generator().manual_seed(seed)
    groups = len(rule.groups(NAMES))
    gradient = torch.randn(groups, 5000, generator=generator) * 10**magnitude
    weights = rule.weights(gradient.square().sum(dim=1)[None], rule.initial_state())
    assert (weights[0, :, None] * gradient).double().norm() < bound_of(rule)


@given(rules())
def test_text_reads_back_exactly(rule):
    again = parse_clip_rule(str(rule))
    assert type(again) is type(rule)
    assert again == rule
    assert hash(again) == hash(rule)


@given(rules(), st.lists(st.floats(), max_size=5))
def test_a_state_survives_json(rule, releases):
    state = rule.initial_state()
    for released in releases:
        state = rule.update(state, released)
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    groups = len(rule.groups(NAMES))
    assert 0 < rule.l2_bound(groups, state) < INF


# the table of edge cases


@every_rule
def test_an_empty_batch_has_no_weights(rule):
    groups = len(rule.groups(NAMES))
    assert rule.weights(torch.zeros(0, groups), rule.initial_state()).shape == (0, groups)


@every_rule
def test_a_zero_gradient_has_a_finite_weight(rule):
    weights = rule.weights(torch.zeros(1, len(rule.groups(NAMES))), rule.initial_state())
    assert weights.isfinite().all()
    assert (weights >= 1).all()


@every_rule
@pytest.mark.parametrize("bad", [INF, -INF, NAN, -1e-7])
@pytest.mark.parametrize("position", [0, -1])
def test_one_bad_group_silences_the_whole_record_and_only_it(rule, bad, position):
    batch = torch.ones(3, len(rule.groups(NAMES)))
    batch[1, position] = bad
    silent = rule.weights(batch, rule.initial_state()) == 0
    assert silent.all(dim=1).tolist() == silent.any(dim=1).tolist() == [False, True, False]


@every_rule
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_coarse_types_are_refused(rule, dtype):
    with pytest.raises(InputError, match="must be float32 or float64"):
        rule.weights(torch.ones(2, len(rule.groups(NAMES)), dtype=dtype), rule.initial_state())


@pytest.mark.parametrize("rule", [SAMPLES[0], *SAMPLES[4:], Flat(INF)], ids=str)
def test_rules_of_the_whole_gradient_take_one_column(rule):
    state = rule.initial_state()
    with pytest.raises(InputError, match=r"records x 1, got the shape \(2, 3\)"):
        rule.weights(torch.ones(2, 3), state)
    with pytest.raises(InputError, match="got 3 groups"):
        rule.l2_bound(3, state)


@every_rule
@pytest.mark.parametrize("shape", [(3,), (3, 0), (1, 3, 1), ()])
def test_anything_but_records_by_groups_is_refused(rule, shape):
    with pytest.raises(InputError, match="Square norms must be records x"):
        rule.weights(torch.ones(shape), rule.initial_state())


@every_rule
@pytest.mark.parametrize("groups", [0, -1, 1.5])
def test_there_is_a_whole_number_of_groups(rule, groups):
    with pytest.raises(InputError, match="groups_count must be"):
        rule.l2_bound(groups, rule.initial_state())


def test_as_many_bounds_as_layers():
    rule = PerLayer((3, 6))
    for refused in (
        lambda: rule.groups(NAMES),
        lambda: rule.l2_bound(3, {}),
        lambda: rule.weights(torch.ones(1, 3), {}),
    ):
        with pytest.raises(InputError, match="2 bounds for 3 layers"):
            refused()


@every_rule
def test_values_are_never_looked_at_from_python(rule):
    """A meta tensor has no values: any branch on one would fail here."""
    state = rule.initial_state()
    batch = torch.empty(4, len(rule.groups(NAMES)), device="meta")
    assert rule.weights(batch, state).device.type == "meta"
    if isinstance(rule, AdaptiveClipRule):
        assert rule.count_query(batch, state).shape == ()


# groups


def test_flat_rules_have_one_group():
    for rule in (Flat(1.0), Automatic(1.0), clip_rule("quantile", 1.0)):
        assert rule.groups(NAMES) == (NAMES,)


@pytest.mark.parametrize("rule", [PerLayer(1.0), PerLayerJoint(1.0)], ids=str)
def test_parameters_are_grouped_by_the_layer_that_owns_them(rule):
    assert rule.groups(NAMES) == (NAMES[0:2], NAMES[2:4], NAMES[4:])
    assert rule.groups(["a.weight", "a.b.weight", "a.bias", "scale", "shift"]) == (
        ("a.weight", "a.bias"),
        ("a.b.weight",),
        ("scale", "shift"),
    )


@every_rule
@pytest.mark.parametrize(("names", "what"), [([], "no parameter"), (["a.weight", "a.weight"], "named twice")])
def test_groups_are_a_partition(rule, names, what):
    with pytest.raises(InputError, match=what):
        rule.groups(names)


# numbers by hand


@pytest.mark.parametrize(
    ("rule", "norms", "weights"),
    [
        (Flat(2.0), [[1.0], [2.0], [4.0]], [[1], [1], [0.5]]),
        (PerLayer(4.0), [[1.0, 8.0], [16.0, 40.0]], [[1, 0.5], [0.25, 0.1]]),
        (PerLayer((3.0, 6.0)), [[6.0, 3.0], [1.0, 60.0]], [[0.5, 1], [1, 0.1]]),
        (PerLayerJoint(4.0), [[2.0, 2.0, 4.0, 8.0]], [[1, 1, 0.5, 0.25]]),
        (Automatic(1.0), [[0.0], [0.09], [0.99]], [[100], [10], [1]]),
        (Automatic(3.0, gamma=1.0), [[0.0], [2.0]], [[3], [1]]),
        (clip_rule("quantile", 2.0), [[1.0], [4.0]], [[1], [0.5]]),
    ],
    ids=str,
)
def test_weights_by_hand(rule, norms, weights):
    found = rule.weights(torch.tensor(norms).square(), rule.initial_state())
    torch.testing.assert_close(found, torch.tensor(weights, dtype=torch.float32), rtol=2e-5, atol=0)


@pytest.mark.parametrize(
    ("rule", "groups", "bound"),
    [
        (Flat(2.0), 1, 2.0),
        (Flat(INF), 1, INF),
        (PerLayer(4.0), 1, 4.0),
        (PerLayer(4.0), 9, 12.0),
        (PerLayer((3.0, 4.0)), 2, 5.0),
        (PerLayerJoint(4.0), 9, 4.0),
        (Automatic(2.0), 1, 2.0),
        (clip_rule("quantile", 3.0), 1, 3.0),
    ],
)
def test_bounds_by_hand(rule, groups, bound):
    assert rule.l2_bound(groups, rule.initial_state()) == pytest.approx(bound, rel=1e-15)


def test_without_a_bound_nothing_is_looked_at():
    rule = Flat(INF)
    assert not rule.needs_norms
    assert rule.weights(torch.tensor([[0.0], [1e38], [NAN], [INF]]), {}).tolist() == [[1], [1], [1], [1]]
    assert rule.weights(torch.zeros(0, 1), {}).shape == (0, 1)
    assert str(rule) == "flat:inf"
    assert parse_clip_rule("flat:inf") == rule
    assert "not private" in rule.describe()


@every_rule
def test_every_private_rule_needs_norms_and_is_frozen(rule):
    assert rule.needs_norms
    with pytest.raises(FrozenInstanceError):
        rule.name = "other"
