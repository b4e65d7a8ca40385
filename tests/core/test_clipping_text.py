"""More tests of clipping: clipping text."""

import math

import pytest
import torch
from clipping_cases import INF, NAN, SAMPLES, batch_for, batches, quantiles, squares
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from adadp.app.clipping.fixed import Automatic, PerLayer, PerLayerJoint
from adadp.app.clipping.quantile import QuantileAdaptive
from adadp.app.texts.clip_rules import RULES, clip_rule, parse_clip_rule
from adadp.clipping import AdaptiveClipRule, Flat
from adadp.errors import InputError


@pytest.mark.parametrize("rule", SAMPLES[:-1], ids=str)
def test_a_fixed_rule_releases_and_learns_nothing(rule):
    assert rule.initial_state() == rule.update({}, 3.0) == {}
    assert rule.extra_multipliers() == ()
    assert not isinstance(rule, AdaptiveClipRule)


# the quantile rule


def quantile_rule(quantile=0.5, count_noise=10.0, floor=1e-3, ceiling=1e3, lr=0.2) -> QuantileAdaptive:
    return QuantileAdaptive(
        initial=1.0,
        quantile=quantile,
        learning_rate=lr,
        count_noise_multiplier=count_noise,
        floor=floor,
        ceiling=ceiling,
    )


def test_the_count_by_hand():
    rule = quantile_rule()
    batch = torch.tensor([[0.25], [1.0], [4.0], [NAN], [INF], [-1.0], [0.0]])
    assert rule.count_query(batch, {"bound": 1.0}).item() == 0.5 + 0.0 - 0.5 + 0.5
    assert rule.count_query(batch, {"bound": 1.1}).item() == 0.5 + 0.5 - 0.5 + 0.5
    assert rule.count_query(batch, {"bound": 0.4}).item() == -0.5 - 0.5 - 0.5 + 0.5
    assert rule.count_query(batch, {"bound": 1.025}).item() == pytest.approx(0.5 + 0.025 / 1.025 / 0.1 - 0.5 + 0.5)
    assert rule.count_query(torch.zeros(0, 1), {"bound": 1.0}).item() == 0
    assert rule.extra_multipliers() == (10.0,)


@given(quantiles(), batches, batches, squares)
def test_one_record_moves_the_count_by_at_most_its_bound_and_chunks_add_up(rule, rows, others, square):
    state = rule.initial_state()
    batch, chunk, record = batch_for(rule, rows), batch_for(rule, others), torch.tensor([[square]])
    without, with_record = (rule.count_query(part, state).item() for part in (batch, torch.cat([batch, record])))
    assert abs(with_record - without) <= rule.count_bound + 1e-12
    assert rule.count_bound == 0.5
    both = rule.count_query(torch.cat([batch, chunk]), state).item()
    assert both == pytest.approx(without + rule.count_query(chunk, state).item(), abs=1e-12)


@given(quantiles(), st.floats(0.5, 2.0), st.floats(-1e-4, 1e-4))
def test_the_last_bits_of_a_norm_hardly_move_the_count(rule, ratio, error):
    """They follow from the place of a record in its batch; with a step at the bound they would decide."""
    state = rule.initial_state()
    norms = rule.initial * ratio * torch.tensor([[1.0], [1.0 + error]], dtype=torch.float64)
    one, other = (rule.count_query(each.square()[None], state).item() for each in norms)
    assert abs(one - other) <= rule.count_bound * rule.count_steepness * abs(error) * (1 + 1e-3) + 1e-12


@pytest.mark.parametrize(
    ("released", "bound"),
    [
        (0.0, 1.0),  # half of the norms are below the bound: it is the median
        (0.5, math.exp(-0.1)),  # all are: the bound falls
        (-0.5, math.exp(0.1)),  # none is: it grows
        (1e300, 1e-3),
        (-1e300, 1e3),
        (INF, 1e-3),
        (-INF, 1e3),
        (NAN, 1.0),
    ],
)
def test_an_update_by_hand(released, bound):
    rule, state = quantile_rule(), {"bound": 1.0}
    after = rule.update(state, released)
    assert after == {"bound": pytest.approx(bound, rel=1e-14)}
    assert state == {"bound": 1.0}
    assert type(rule.update(state, torch.tensor(released))["bound"]) is float


def test_the_target_of_another_quantile_by_hand():
    """0.9 of the norms are below the bound: released is 0.4."""
    assert quantile_rule(quantile=0.9).update({"bound": 2.0}, 0.4)["bound"] == pytest.approx(2.0, rel=1e-15)
    assert quantile_rule(quantile=0.2, lr=1.0).update({"bound": 2.0}, 0.2)["bound"] == pytest.approx(
        2 / math.sqrt(math.e)
    )


@given(quantiles(), st.lists(st.floats(), min_size=1, max_size=10))
@example(quantile_rule(), [1e308, -1e308, 1e308])
def test_no_release_drives_the_bound_out_of_its_range(rule, releases):
    state = rule.initial_state()
    for released in releases:
        state = rule.update(state, released)
        assert rule.floor <= state["bound"] <= rule.ceiling


def follow(rule: QuantileAdaptive, norms: Tensor, *, q: float, expected: float, steps: int) -> list[float]:
    """The bounds of a run over Poisson batches with real noise on the count."""
    generator = torch.Generator().manual_seed(7)
    state, path = rule.initial_state(), []
    for _ in range(steps):
        batch = norms[torch.rand(len(norms), generator=generator) < q]
        noise = torch.randn((), generator=generator) * rule.count_noise_multiplier * rule.count_bound
        released = (rule.count_query(batch.square()[:, None], state) + noise) / expected
        state = rule.update(state, released.item())
        path.append(state["bound"])
    return path


def settled_fraction(rule: QuantileAdaptive, expected: float = 100.0) -> float:
    """The fraction of log-normal norms (median 5) below the bound the rule settles at, for batches of 100 of 1000."""
    norms = 5 * torch.randn(1000, generator=torch.Generator().manual_seed(3)).exp()
    path = follow(rule, norms, q=0.1, expected=expected, steps=500)
    settled = math.exp(sum(map(math.log, path[250:])) / 250)
    return (norms <= settled).float().mean().item()


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
def test_the_bound_finds_the_quantile_through_noise(quantile):
    assert settled_fraction(quantile_rule(quantile)) == pytest.approx(quantile, abs=0.03)


def test_the_bias_of_a_wrong_expected_size_is_as_documented():
    """L = 1.25 q N: the 0.8 quantile is missed by 0.3 * 0.25, the median is not."""
    assert settled_fraction(quantile_rule(0.8), expected=125.0) == pytest.approx(0.875, abs=0.03)
    assert settled_fraction(quantile_rule(0.5), expected=125.0) == pytest.approx(0.5, abs=0.03)


def test_pure_noise_moves_the_bound_only_between_floor_and_ceiling():
    rule = quantile_rule(count_noise=1000.0, floor=0.1, ceiling=10.0)
    path = follow(rule, torch.zeros(0), q=0.1, expected=100.0, steps=2000)
    assert min(path) == 0.1
    assert max(path) == 10.0


def test_gradients_that_vanish_take_the_bound_to_the_floor_and_not_below():
    path = follow(quantile_rule(floor=0.05), torch.zeros(1000), q=0.1, expected=100.0, steps=200)
    assert path[-1] == pytest.approx(0.05, rel=0.1)
    assert min(path) == 0.05


@pytest.mark.parametrize(("follow", "factor"), [(0.0, 4.0), (0.5, 2.0), (1.0, 1.0)])
def test_steps_follow_the_bound_as_far_as_asked(follow, factor):
    rule = parse_clip_rule(f"quantile:initial=2,count_noise=10,floor=0.01,ceiling=100,follow={follow}")
    assert rule.step_factor({"bound": 0.5}) == pytest.approx(factor)
    assert rule.step_factor(rule.initial_state()) == 1
    assert Flat(3.0).step_factor({}) == 1


@pytest.mark.parametrize("follow", [-0.1, 1.1, NAN])
def test_steps_follow_the_bound_by_a_share(follow):
    with pytest.raises(InputError, match="follow"):
        QuantileAdaptive(initial=1, count_noise_multiplier=10, floor=0.01, ceiling=100, follow=follow)


@pytest.mark.parametrize("state", [{}, {"bound": NAN}, {"bound": 0.0}, {"bound": 1e4}, {"bound": 1e-4}, {"bound": "1"}])
def test_a_state_of_another_rule_is_refused(state):
    rule = quantile_rule()
    for refused in (
        lambda: rule.l2_bound(1, state),
        lambda: rule.weights(torch.ones(1, 1), state),
        lambda: rule.count_query(torch.ones(1, 1), state),
        lambda: rule.update(state, 0.0),
        lambda: rule.step_factor(state),
    ):
        with pytest.raises(InputError, match="in the state"):
            refused()


# text


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("flat:1", Flat(1.0)),
        ("per-layer:4", PerLayer(4.0)),
        ("per-layer:3,6", PerLayer((3.0, 6.0))),
        ("per-layer-joint:4", PerLayerJoint(4.0)),
        ("automatic:1,gamma=0.01", Automatic(1.0)),
        ("automatic:0.5,gamma=0.1", Automatic(0.5, 0.1)),
        ("flat:0.3333333333333333", Flat(1 / 3)),
        (
            "quantile:initial=1,quantile=0.5,lr=0.2,count_noise=10,floor=0.01,ceiling=100,follow=0",
            QuantileAdaptive(initial=1, count_noise_multiplier=10, floor=0.01, ceiling=100),
        ),
    ],
)
def test_text_is_short_and_plain(text, rule):
    assert str(rule) == text
    assert parse_clip_rule(text) == clip_rule(text) == rule


def test_spaces_order_and_spelling_do_not_matter():
    assert parse_clip_rule(" automatic : gamma = 1e-2 , 1.0 ") == Automatic(1.0)
    assert parse_clip_rule("automatic:1") == Automatic(1.0)
    assert parse_clip_rule("quantile:floor=0.1,ceiling=9,count_noise=5,initial=2") == QuantileAdaptive(
        initial=2, count_noise_multiplier=5, floor=0.1, ceiling=9
    )


@pytest.mark.parametrize("kind", RULES.values())
def test_every_rule_has_an_example_that_reads(kind):
    rule = parse_clip_rule(kind.example)
    assert type(rule) is kind
    assert str(rule) == kind.example
    assert rule.describe()


def test_every_bound_is_named_to_people():
    assert "3, 6, 0.1" in PerLayer((3.0, 6.0, 0.1)).describe()
    assert "noise multiplier 7" in quantile_rule(count_noise=7).describe()


def test_one_bound_is_one_bound():
    assert PerLayer((4.0,)) == PerLayer(4) == parse_clip_rule("per-layer:4")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("round:1", r"Unknown clip rule 'round'.*flat, per-layer, per-layer-joint, automatic"),
        ("", "Unknown clip rule ''"),
        (3, "must be text"),
        ("flat", "lacks its bound"),
        ("flat:", "lacks its bound"),
        ("flat:1,2", "too many numbers"),
        ("flat:1,", "'' in a clip rule is not a number"),
        ("flat:one", "'one' in a clip rule is not a number"),
        ("flat:1,gamma=2", "The flat rule has no option 'gamma'. It has no options. Write it like flat:1."),
        ("automatic:1,delta=2", "The automatic rule has no option 'delta'. Its options are gamma."),
        ("automatic:gamma=2", "lacks its bound"),
        ("automatic:1,gamma=2,gamma=2", "gives gamma twice"),
        ("automatic:1,gamma=x", "'x' in a clip rule is not a number"),
        ("quantile:initial=1", "lacks count_noise, floor, ceiling"),
        ("quantile:1,initial=1,count_noise=9,floor=0.1,ceiling=9", "too many numbers"),
        ("quantile:initial=1,rate=1", "Its options are initial, quantile, lr, count_noise, floor, ceiling, follow"),
        ("per-layer:", "lacks its bound"),
    ],
)
def test_text_that_is_no_rule(text, what):
    with pytest.raises(InputError, match=what):
        parse_clip_rule(text)


def test_a_name_and_a_bound():
    assert clip_rule("flat", 2) == Flat(2.0)
    assert clip_rule("flat", INF) == Flat(INF)
    assert clip_rule("per-layer", 2) == PerLayer(2.0)
    assert clip_rule("per-layer-joint", 2) == PerLayerJoint(2.0)
    assert clip_rule("automatic", 2) == Automatic(2.0)
    assert clip_rule("quantile", 2) == QuantileAdaptive(
        initial=2, quantile=0.5, learning_rate=0.2, count_noise_multiplier=10, floor=0.02, ceiling=200
    )


@pytest.mark.parametrize(("batch_size", "noise"), [(None, 10), (40, 10), (100, 10), (2000, 200)])
def test_the_count_of_a_large_batch_needs_to_be_less_exact(batch_size, noise):
    assert clip_rule("quantile", 2, batch_size=batch_size).extra_multipliers() == (noise,)
    assert clip_rule(
        "quantile:initial=1,count_noise=7,floor=0.1,ceiling=9", batch_size=batch_size
    ).extra_multipliers() == (7,)


@pytest.mark.parametrize(
    ("name", "bound", "what"),
    [
        ("flat", None, "has no bound"),
        ("flat:1", 2.0, "were both given"),
        ("round", 1.0, "Unknown clip rule 'round'"),
        (None, 1.0, "must be text"),
        ("quantile", 0.0, "bound must be greater than 0"),
        ("automatic", INF, "bound must be finite"),
    ],
)
def test_a_name_and_a_bound_that_make_no_rule(name, bound, what):
    with pytest.raises(InputError, match=what):
        clip_rule(name, bound)


@pytest.mark.parametrize("bound", [0, -1, NAN, -INF, True, "1", None, 1e-13, 1e13])
@pytest.mark.parametrize("kind", [Flat, PerLayer, PerLayerJoint, Automatic])
def test_a_bound_is_a_number_within_range(kind, bound):
    with pytest.raises(InputError, match=r"bound.* must "):
        kind(bound)


@pytest.mark.parametrize(
    "build", [lambda: PerLayer(INF), lambda: PerLayer((1.0, INF)), lambda: PerLayerJoint(INF), lambda: Automatic(INF)]
)
def test_only_the_flat_rule_can_be_without_a_bound(build):
    with pytest.raises(InputError, match="must be finite"):
        build()


def test_bounds_are_some():
    with pytest.raises(InputError, match="There is no bound"):
        PerLayer(())


@pytest.mark.parametrize("gamma", [0, -1, NAN, INF])
def test_gamma_keeps_weights_finite(gamma):
    with pytest.raises(InputError, match="gamma must be"):
        Automatic(1.0, gamma)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"quantile": 0}, "strictly between 0 and 1"),
        ({"quantile": 1}, "strictly between 0 and 1"),
        ({"quantile": 1.5}, "quantile must lie in"),
        ({"learning_rate": 0}, "learning_rate must be greater than 0"),
        ({"count_noise_multiplier": 0}, "count_noise_multiplier must be greater than 0"),
        ({"floor": 0}, "floor must be greater than 0"),
        ({"floor": 2}, "not in this order"),
        ({"ceiling": 0.5}, "not in this order"),
        ({"ceiling": INF}, "ceiling must be finite"),
        ({"floor": 1, "ceiling": 1}, "not in this order"),
    ],
)
def test_a_quantile_rule_that_cannot_be(changed, what):
    usual = {"initial": 1.0, "count_noise_multiplier": 10, "floor": 0.01, "ceiling": 100}
    with pytest.raises(InputError, match=what):
        QuantileAdaptive(**{**usual, **changed})
