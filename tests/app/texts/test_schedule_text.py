"""schedule_text"""

import math
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from schedule_text_cases import factors, periods, pieces, positives, schedules, training_schedules

from adadp.app.schedules import ExponentialDecay, PolynomialDecay, StepDecay, TimeDecay, tabulated
from adadp.app.texts.schedules import SHAPES, parse_schedule
from adadp.errors import InputError
from adadp.schedules import Piecewise, Schedule, Uniform


@st.composite
def windowed(draw, schedule):
    """``schedule`` with a start, and perhaps a stop."""
    start = draw(st.integers(0, 1000))
    stop = draw(st.none() | st.integers(start + 1, start + 1000))
    return replace(draw(schedule), start=start, stop=stop)


@pytest.mark.parametrize(
    ("text", "epoch", "value"),
    [
        ("uniform:s0=8", 0, 8),
        ("uniform:s0=8", 999, 8),
        ("time:s0=10,k=0.05", 0, 10),
        ("time:s0=10,k=0.05", 20, 5),
        ("time:s0=10,k=0.5,period=10", 9, 10),
        ("time:s0=10,k=0.5,period=10", 29, 5),
        ("exp:s0=10,k=0.01", 0, 10),
        ("exp:s0=10,k=0.01", 100, 10 / math.e),
        ("exp:s0=10,k=0.5,period=3", 2, 10),
        ("exp:s0=10,k=0.5,period=3", 8, 10 / math.e),
        ("step:s0=10,k=0.6,period=10", 9, 10),
        ("step:s0=10,k=0.6,period=10", 10, 6),
        ("step:s0=10,k=0.6,period=10", 29, 3.6),
        ("poly:s0=10,k=3,s_end=2,period=100", 0, 10),
        ("poly:s0=10,k=3,s_end=2,period=100", 50, 3),
        ("poly:s0=10,k=1,s_end=2,period=100", 25, 8),
        ("poly:s0=10,k=3,s_end=2,period=100", 100, 2),
        ("poly:s0=10,k=3,s_end=2,period=100", 500, 2),
        ("poly:s0=2,k=1,s_end=10,period=100", 25, 4),
        ("poly:s0=2,k=1,s_end=10,period=100", 100, 10),
        ("exp:start=20,s0=10,k=0.5", 20, 10),
        ("exp:start=20,s0=10,k=0.5", 22, 10 / math.e),
        ("exp:start=20,stop=22,s0=10,k=0.5", 22, 10 / math.e),
        ("exp:start=20,stop=22,s0=10,k=0.5", 500, 10 / math.e),
        ("exp:stop=2,s0=10,k=0.5", 500, 10 / math.e),
        ("step:start=5,s0=10,k=0.6,period=10", 14, 10),
        ("step:start=5,s0=10,k=0.6,period=10", 15, 6),
        ("piecewise:0=10,20=5,30=8", 0, 10),
        ("piecewise:0=10,20=5,30=8", 19, 10),
        ("piecewise:0=10,20=5,30=8", 20, 5),
        ("piecewise:0=10,20=5,30=8", 29, 5),
        ("piecewise:0=10,20=5,30=8", 30, 8),
        ("piecewise:0=10,20=5,30=8", 10**18, 8),
    ],
)
def test_values_by_hand(text, epoch, value):
    assert parse_schedule(text).value_at(epoch) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    ("text", "epochs"),
    [
        ("uniform:s0=8", 100),
        ("time:s0=10,k=0.05", 38),
        ("step:s0=10,k=0.6,period=10", 31),
        ("exp:s0=10,k=0.01", 71),
        ("poly:s0=10,k=3,s_end=2,period=100", 44),
    ],
)
def test_epochs_within_the_budget_of_yu_et_al_2019_table_2(text, epochs):
    """A reshuffled epoch is 1/(2 sigma^2)-zCDP; the table's total is 0.78125."""
    schedule = parse_schedule(text)
    costs = [1 / (2 * schedule.value_at(epoch) ** 2) for epoch in range(epochs + 1)]
    assert sum(costs[:-1]) <= 0.78125 < sum(costs)


@given(training_schedules, st.integers(0, 100))
def test_no_falling_shape_ever_rises(schedule, epoch):
    try:
        assert schedule.value_at(epoch + 1) <= schedule.value_at(epoch) * (1 + 1e-15)
    except InputError:
        assume(False)


@given(schedules())
def test_epoch_0_is_s0(schedule):
    assert schedule.value_at(0) == pytest.approx(schedule.s0, rel=1e-14)


@given(training_schedules, st.integers(0, 50), st.none() | st.integers(1, 50), st.integers(0, 150))
def test_a_window_moves_the_shape_and_holds_its_ends(schedule, start, length, epoch):
    window = replace(schedule, start=start, stop=None if length is None else start + length)
    inside = max(epoch - start, 0) if length is None else min(max(epoch - start, 0), length)
    try:
        expected = schedule.value_at(inside)
    except InputError:
        with pytest.raises(InputError, match=f"gives 0 at epoch {epoch}"):
            window.value_at(epoch)
    else:
        assert window.value_at(epoch) == expected


def test_before_the_start_and_from_the_stop_on_nothing_changes():
    window = parse_schedule("exp:start=3,stop=6,s0=10,k=0.5")
    values = window.values(12)
    assert len(set(values[:4])) == 1
    assert sorted(set(values[3:7]), reverse=True) == values[3:7]
    assert len(set(values[6:])) == 1


@given(pieces(), st.integers(0, 10**18))
def test_pieces_are_looked_up(schedule, epoch):
    assert schedule.value_at(epoch) == dict(schedule.points)[max(each for each, _ in schedule.points if each <= epoch)]


@given(st.lists(positives, min_size=1, max_size=20))
def test_a_function_of_the_epoch_becomes_its_values(values):
    table = tabulated(lambda epoch: values[epoch], len(values))
    assert table == Piecewise.of(values)
    assert table.values(len(values)) == values
    assert table.value_at(len(values) + 7) == values[-1]
    neighbours = pairwise(table.points)
    assert all(one[1] != other[1] for one, other in neighbours)  # no piece is written twice
    assert parse_schedule(str(table)) == table


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, None, "1"])
def test_a_function_must_give_numbers_above_0(value):
    with pytest.raises(InputError, match="the value at epoch 2 must be"):
        tabulated(lambda epoch: value if epoch == 2 else 1.0, 3)


@pytest.mark.parametrize("epochs", [0, -1, 2.5])
def test_a_function_is_tabulated_for_at_least_one_epoch(epochs):
    with pytest.raises(InputError, match="epochs must be"):
        tabulated(lambda _: 1.0, epochs)


@given(
    st.one_of(
        schedules(),
        windowed(schedules()),
        pieces(),
        st.builds(PolynomialDecay, factors, factors, st.floats(1, 9), periods),
    )
)
def test_text_reads_back_exactly(schedule):
    again = parse_schedule(str(schedule))
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert type(again) is type(schedule)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (Uniform(8), "uniform:s0=8"),
        (TimeDecay(10, 0.05), "time:s0=10,k=0.05"),
        (ExponentialDecay(10, 0.01, 5), "exp:s0=10,k=0.01,period=5"),
        (StepDecay(10, 0.6, 10), "step:s0=10,k=0.6,period=10"),
        (PolynomialDecay(10, 3, 2, 100), "poly:s0=10,k=3,s_end=2,period=100"),
        (Uniform(1 / 3), "uniform:s0=0.3333333333333333"),
        (TimeDecay(10, 1, 2**60 + 1), "time:s0=10,k=1,period=1152921504606846977"),
        (ExponentialDecay(10, 0.01, start=20, stop=60), "exp:s0=10,k=0.01,start=20,stop=60"),
        (Piecewise(((0, 10), (20, 5.5))), "piecewise:0=10,20=5.5"),
    ],
)
def test_text_is_short_and_plain(schedule, text):
    assert str(schedule) == text
    assert parse_schedule(text) == schedule


def test_spaces_and_order_do_not_matter():
    assert parse_schedule(" exp : k = 0.01 , s0 = 1e1 ") == ExponentialDecay(10, 0.01)


@given(
    st.one_of(training_schedules, windowed(training_schedules), pieces(st.floats(0.1, 100))),
    st.floats(0.01, 100),
    st.integers(0, 100),
)
def test_scaling_multiplies_every_epoch(schedule, factor, epoch):
    try:
        value, scaled = schedule.value_at(epoch), schedule.scaled(factor).value_at(epoch)
    except InputError:
        assume(False)
    assume(value > 1e-290)
    assert scaled == pytest.approx(factor * value, rel=1e-12)


def test_scaling_keeps_shape_and_leaves_the_original():
    schedule = PolynomialDecay(10, 3, 2, 100)
    assert schedule.scaled(0.5) == PolynomialDecay(5, 3, 1, 100)
    assert schedule == PolynomialDecay(10, 3, 2, 100)
    assert ExponentialDecay(10, 3, 2, start=4, stop=9).scaled(2) == ExponentialDecay(20, 3, 2, start=4, stop=9)
    assert Piecewise(((0, 4.0), (9, 1.0))).scaled(0.5) == Piecewise(((0, 2.0), (9, 0.5)))


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf, True, "2"])
def test_a_scale_is_positive(factor):
    with pytest.raises(InputError, match="factor must be"):
        Uniform(1).scaled(factor)
    with pytest.raises(InputError, match="factor must be"):
        Piecewise(((0, 1.0),)).scaled(factor)


@pytest.mark.parametrize(("s0", "factor"), [(1e300, 1e300), (1e-300, 1e-300)])
def test_scaling_out_of_range_is_an_error(s0, factor):
    with pytest.raises(InputError, match="s0 must be"):
        Uniform(s0).scaled(factor)


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("exp:s0=10,k=1", 1000),
        ("step:s0=10,k=0.1,period=1", 1000),
        ("time:s0=1,k=1e+308", 10**300),
        ("time:s0=1e-300,k=1", 10**30),
        ("step:s0=1,k=0.5,period=1", 10**400),
        ("exp:s0=1,k=1", 10**400),
    ],
    ids=lambda value: value if isinstance(value, str) else f"epoch-{math.log10(value):g}-digits",
)
def test_noise_that_vanishes_is_an_error_not_a_zero(text, epoch):
    with pytest.raises(InputError, match="gives 0 at epoch") as caught:
        parse_schedule(text).value_at(epoch)
    assert text in caught.value.what
    assert "without noise" in caught.value.why
    assert caught.value.fix


def test_shapes_that_do_not_vanish_live_for_ever():
    assert Uniform(8).value_at(10**400) == 8
    assert PolynomialDecay(10, 3, 2, 100).value_at(10**400) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_no_shape_can_give_a_value_that_is_not_positive_and_finite(value):
    @dataclass(frozen=True)
    class Broken(Schedule):
        shape = "broken"
        s0: float

        def _formula(self, epoch):
            return self.s0

    with pytest.raises(InputError, match=f"broken:s0=.* gives {value:g} at epoch 7"):
        Broken(value).value_at(7)


@pytest.mark.parametrize("epoch", [-1, 0.5, math.nan, "0", True, None])
def test_epochs_are_counted_from_0(epoch):
    with pytest.raises(InputError, match="epoch must be"):
        Uniform(1).value_at(epoch)


@pytest.mark.parametrize("kind", [kind for kind in SHAPES.values() if kind is not Piecewise])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "1", None])
def test_every_parameter_is_checked(kind, value):
    good = {"s0": 10, "k": 0.5, "s_end": 2, "period": 10, "start": 3, "stop": 9, "tick": 20}
    for field in fields(kind):
        if (field.name, value) in {("start", 0), ("stop", None), ("tick", None)}:
            continue
        arguments = {other.name: good[other.name] for other in fields(kind)}
        kind(**arguments)
        with pytest.raises(InputError, match=f"^{field.name} must be"):
            kind(**(arguments | {field.name: value}))


@pytest.mark.parametrize("k", [1, 1.5])
def test_a_step_factor_is_below_1(k):
    with pytest.raises(InputError, match="k of a step schedule must be below 1") as caught:
        StepDecay(10, k, 10)
    assert f"got {k:g}" in caught.value.what
    assert caught.value.why
    assert caught.value.fix


def test_a_polynomial_ends_elsewhere_than_it_starts():
    with pytest.raises(InputError, match="s_end must differ from s0, got 10 for both") as caught:
        PolynomialDecay(10, 3, 10, 100)
    assert caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("stop", [0, 3, 2.5])
def test_a_window_stops_after_its_start(stop):
    with pytest.raises(InputError, match="stop must be"):
        Uniform(1, start=3, stop=stop)


@pytest.mark.parametrize("points", [(), ((1, 2.0),), ((0, 1.0), (0, 2.0)), ((0, 1.0), (5, 2.0), (3, 1.0))])
def test_pieces_begin_with_epoch_0_and_rise(points):
    with pytest.raises(InputError, match="must begin with 0 and rise") as caught:
        Piecewise(points)
    assert "piecewise:0=10,20=5" in caught.value.fix


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (((0, 0.0),), "value must be greater than 0"),
        (((0, math.nan),), "value must be finite"),
        (((-1, 1.0),), "epoch must be at least 0"),
        (((0.5, 1.0),), "epoch must be a whole number"),
    ],
)
def test_pieces_are_checked_one_by_one(points, message):
    with pytest.raises(InputError, match=message):
        Piecewise(points)


def test_pieces_have_no_window():
    for window in ({"start": 1}, {"stop": 4}):
        with pytest.raises(InputError, match="has no start and stop"):
            Piecewise(((0, 1.0),), **window)
