import math
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adadp.app.accounting.run_shape import RunShape
from adadp.app.schedules import ExponentialDecay, PolynomialDecay, StepDecay, TimeDecay, ValidationDecay, tabulated
from adadp.app.texts.schedules import SHAPES, OpenSchedule, parse_noise, parse_open, parse_schedule
from adadp.errors import InputError
from adadp.schedules import Piecewise, Schedule, Uniform

positives = st.floats(0, exclude_min=True, allow_infinity=False)
periods = st.integers(1, 10**18)
factors = st.floats(0, 1, exclude_min=True, exclude_max=True)


@st.composite
def polynomials(draw, sizes=positives, rates=positives):
    """Falling ones."""
    s_end, s0 = sorted(draw(st.lists(sizes, min_size=2, max_size=2, unique=True)))
    return PolynomialDecay(s0, draw(rates), s_end, draw(periods))


@st.composite
def windowed(draw, schedule):
    """``schedule`` with a start, and perhaps a stop."""
    start = draw(st.integers(0, 1000))
    stop = draw(st.none() | st.integers(start + 1, start + 1000))
    return replace(draw(schedule), start=start, stop=stop)


@st.composite
def pieces(draw, sizes=positives):
    epochs = draw(st.lists(st.integers(1, 10**18), unique=True, max_size=5))
    return Piecewise(tuple((epoch, draw(sizes)) for epoch in (0, *sorted(epochs))))


def schedules(sizes=positives, rates=positives) -> st.SearchStrategy[Schedule]:
    """Falling ones of every shape that has parameters."""
    return st.one_of(
        st.builds(Uniform, sizes),
        st.builds(TimeDecay, sizes, rates, periods),
        st.builds(ExponentialDecay, sizes, rates, periods),
        st.builds(StepDecay, sizes, factors, periods),
        polynomials(sizes, rates),
    )


training_schedules = schedules(sizes=st.floats(0.1, 100), rates=st.floats(0.001, 0.5))
"""Schedules that stay far from the ends of the floats for 100 epochs, unless a step factor is tiny."""


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


@given(schedules(), st.integers(1, 50), st.integers(0, 500))
def test_with_a_tick_steps_are_counted(schedule, tick, step):
    ticking = replace(schedule, tick=tick)
    assert parse_schedule(str(ticking)) == ticking
    assert ticking.scaled(1.0).tick == tick
    try:
        expected = schedule.value_at(step // tick)
    except InputError:
        with pytest.raises(InputError):
            ticking.value_of(step, 3)
    else:
        assert ticking.value_of(step, 3) == expected


def test_without_one_epochs_are():
    schedule = parse_schedule("piecewise:0=10,3=5")
    assert schedule.value_of(1000, 2) == 10
    assert parse_schedule("piecewise:0=10,3=5,tick=100").value_of(299, 99) == 10
    assert parse_schedule("piecewise:0=10,3=5,tick=100").value_of(300, 0) == 5


def test_pieces_know_no_other_word():
    with pytest.raises(InputError, match="'tack' in the schedule"):
        parse_schedule("piecewise:0=10,tack=100")


def test_accounting_by_epochs_refuses_a_tick():
    with pytest.raises(InputError, match=r"counts steps \(tick\)"):
        RunShape(q=0.01).run(parse_schedule("exp:s0=10,k=0.1,tick=20"), epochs=3)


def test_a_period_is_whole():
    with pytest.raises(InputError, match="period must be a whole number"):
        parse_schedule("exp:s0=1,k=1,period=1.5")
    assert parse_schedule("exp:s0=1,k=1,period=2.0") == ExponentialDecay(1, 1, 2)


def test_an_unknown_shape_lists_the_known_ones():
    with pytest.raises(InputError, match="Unknown schedule shape 'cosine'") as caught:
        parse_schedule("cosine:s0=1")
    for shape in ("uniform", "time", "exp", "step", "poly", "piecewise"):
        assert shape in caught.value.fix
    assert "validation" not in caught.value.fix
    with pytest.raises(InputError, match="Unknown schedule shape 'cosine'") as caught:
        parse_noise("cosine:s0=1")
    assert "validation" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exp:s0=1,k=2,s_end=3", "The exp schedule has no parameter 's_end'"),
        ("exp:s0=1,k=2,=3", "The exp schedule has no parameter ''"),
        ("exp:s0=1,k=2,k=2", "gives k twice"),
        ("exp:s0=1,k", "'k' in the schedule 'exp:s0=1,k' is not name=number"),
        ("exp:s0=1,k=2,", "'' in the schedule 'exp:s0=1,k=2,' is not name=number"),
        ("exp:s0=1", "The exp schedule 'exp:s0=1' lacks k"),
        ("exp", "The exp schedule 'exp' lacks s0, k"),
        ("exp:", "The exp schedule 'exp:' lacks s0, k"),
    ],
)
def test_wrong_parameters_are_named_beside_the_right_ones(text, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_schedule(text)
    assert "s0, k, [period], [start], [stop]" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("piecewise:s0=1", "'s0' in the schedule 'piecewise:s0=1' is not an epoch"),
        ("piecewise:0=1,-1=2", "'-1' in the schedule"),
        ("piecewise:0=1,1.5=2", "'1.5' in the schedule"),
        ("piecewise:0=1,0=2", "gives 0 twice"),
        ("piecewise:0", "is not name=number"),
    ],
)
def test_wrong_pieces_are_named(text, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_schedule(text)
    assert "like piecewise:0=10,20=5" in caught.value.fix


@pytest.mark.parametrize("number", ["", "ten", "0x10", "1e", "1.5.2"])
def test_a_parameter_is_a_number(number):
    with pytest.raises(InputError, match=f"s0 must be a number, got '{number}'") as caught:
        parse_schedule(f"uniform:s0={number}")
    assert caught.value.fix


@pytest.mark.parametrize(
    "number", ["nan", "inf", "1e400", "1" + "0" * 400, "1" * 5000], ids=lambda text: text[:5] + f"-{len(text)}"
)
def test_a_parameter_is_finite(number):
    with pytest.raises(InputError, match="s0 must be finite"):
        parse_schedule(f"uniform:s0={number}")


@pytest.mark.parametrize("text", [None, 8, Uniform(8)])
def test_only_text_is_parsed(text):
    with pytest.raises(InputError, match="A schedule must be text") as caught:
        parse_schedule(text)
    assert type(text).__name__ in caught.value.what
    assert caught.value.fix


@given(st.text(max_size=30) | st.from_regex(r"(uniform|exp|poly|piecewise|validation):[a-z0-9=,. ]*", fullmatch=True))
def test_any_text_is_a_schedule_or_an_input_error(text):
    for parse in (parse_schedule, parse_open, parse_noise):
        try:
            schedule = parse(text)
        except InputError:
            continue
        assert parse(str(schedule)) == schedule


def test_schedules_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Uniform(1).s0 = 2
    assert len({Uniform(1), Uniform(1.0), Uniform(2), TimeDecay(1, 1)}) == 3


def test_a_schedule_without_a_formula_cannot_be_made():
    with pytest.raises(TypeError):
        Schedule()


# Texts that leave a number open -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "closed"),
    [
        ("uniform:", 3.0, Uniform(3)),
        ("uniform", 3.0, Uniform(3)),
        ("exp:k=0.1", 3.0, ExponentialDecay(3, 0.1)),
        ("exp:s0=4", 0.2, ExponentialDecay(4, 0.2)),
        ("step:s0=4,period=10", 0.2, StepDecay(4, 0.2, 10)),
        ("time:start=2,k=0.1", 3.0, TimeDecay(3, 0.1, start=2)),
        ("poly:k=1,s_end=0.5,period=10", 3.0, PolynomialDecay(3, 1, 1.5, 10)),
        ("poly:k=1,s_end=2,period=10", 3.0, PolynomialDecay(3, 1, 6, 10)),
        ("poly:s0=4,s_end=2,period=10", 3.0, PolynomialDecay(4, 3, 2, 10)),
        ("piecewise:0=10,5=20", 3.0, Piecewise(((0, 30), (5, 60)))),
        ("exp:s0=4,k=0.1", 3.0, ExponentialDecay(4, 0.1)),
    ],
)
def test_an_open_number_is_filled_in(text, value, closed):
    assert parse_open(text).closed(value) == closed
    assert parse_noise(text) == parse_open(text)


@given(training_schedules | pieces(st.floats(0.1, 100)), st.floats(0.1, 10), st.integers(0, 50))
def test_where_s0_is_open_every_epoch_is_in_proportion_to_it(schedule, value, epoch):
    known = str(schedule.scaled(1 / schedule.s0) if not isinstance(schedule, Piecewise) else schedule)
    text = known.replace("s0=1,", "").replace("s0=1", "")
    assume("s0=" not in text)
    found = parse_open(text)
    assert found.relative
    try:
        one, scaled = found.closed(1.0).value_at(epoch), found.closed(value).value_at(epoch)
    except InputError:
        assume(False)
    assume(one > 1e-290)
    assert scaled == pytest.approx(value * one, rel=1e-12)
    if not isinstance(schedule, Piecewise):
        assert found.closed(value).value_at(0) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "unknown", "relative"),
    [
        ("exp:k=0.1", "s0", True),
        ("exp:s0=1", "k", False),
        ("exp:s0=1,k=0.1", None, False),
        ("uniform:", "s0", True),
        ("piecewise:0=1", None, True),
    ],
)
def test_what_is_open_is_said(text, unknown, relative):
    found = parse_open(text)
    assert (found.unknown, found.relative) == (unknown, relative)
    if unknown is None:
        assert found.known() == parse_schedule(text)
    else:
        with pytest.raises(InputError, match=f"leaves {unknown} open"):
            found.known()


@pytest.mark.parametrize(
    ("loose", "strict"),
    [
        ("exp: period=3.0, k=1e-1", "exp:k=0.1,period=3"),
        ("exp:k=0.1,period=1,start=0", "exp:k=0.1"),
        ("poly:period=10,s_end=0.5,k=1", "poly:k=1,s_end=0.5,period=10"),
        ("exp:k=0.1,s0=4", "exp:s0=4,k=0.1"),
        ("validation: k=0.7, s0=10.0, m=5", "validation:s0=10,k=0.7"),
    ],
)
def test_equal_texts_have_one_spelling(loose, strict):
    assert str(parse_noise(loose)) == strict
    assert parse_noise(loose) == parse_noise(strict)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exp:", "lacks s0, k"),
        ("step:k=0.5", "lacks s0, period"),
        ("step:k=1.5,period=2", "k of a step schedule must be below 1"),
        ("step:s0=0,period=2", "s0 must be greater than 0"),
        ("poly:k=1,s_end=1,period=9", "s_end must differ from s0"),
        ("exp:k=-1", "k must be greater than 0"),
        ("piecewise:1=1", "must begin with 0"),
        ("exp:k=0.1,stop=0", "stop must be at least 1"),
    ],
)
def test_what_is_wrong_is_found_before_the_open_number_is_known(text, message):
    with pytest.raises(InputError, match=message):
        parse_open(text)


def test_an_open_schedule_is_not_a_schedule():
    with pytest.raises(InputError, match="lacks k"):
        parse_schedule("exp:s0=1")
    assert isinstance(parse_noise("exp:s0=1"), OpenSchedule)


# The schedule that follows looks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("looks", "noise_multiplier"),
    [
        ([], 10),
        ([0.5] * 3, 10),
        ([0.1, 0.1, 0.5, 0.5], 10),  # 0.5 against 0: progress
        ([0.1, 0.1, 0.5, 0.5, 0.9, 0.9, 0.5, 0.5], 7),  # the last m looks count, the first ones do not
        ([0.5] * 4 + [0.5, 0.5, 0.6, 0.6], 10),
        ([0.5] * 4 + [0.5, 0.5, 0.55, 0.55], 10),
        ([0.5] * 4 + [0.5, 0.5, 0.51, 0.51], 7),  # rose by less than delta
        ([0.5] * 4 + [0.2] * 4, 7),
        ([0.5] * 4 + [0.2] * 4 + [0.3] * 4, 7),  # against the check before, not against the best
        ([0.5] * 12, 4.9),
        ([0.5] * 15, 4.9),
        ([0.0] * 4, 7),  # the first check is against 0
    ],
)
def test_the_noise_falls_when_a_check_finds_no_progress(looks, noise_multiplier):
    assert ValidationDecay(10, 0.7, m=2, delta=0.02, period=4).sigma_after(looks) == pytest.approx(
        noise_multiplier, rel=1e-11
    )


def test_a_rise_by_exactly_delta_is_not_enough():
    decay = ValidationDecay(10, 0.5, m=1, delta=0.25, period=1)
    assert decay.sigma_after([0.5, 0.75]) == 5
    assert decay.sigma_after([0.5, 0.76]) == 10


@given(st.lists(st.floats(-1, 2), max_size=40), st.integers(1, 5), st.integers(0, 5))
def test_the_noise_never_rises_and_changes_at_checks_only(looks, m, more):
    decay = ValidationDecay(10, 0.7, m=m, delta=0.01, period=m + more)
    sigmas = [decay.sigma_after(looks[:count]) for count in range(len(looks) + 1)]
    for count, (before, after) in enumerate(pairwise(sigmas), start=1):
        assert after == before or (count % decay.period == 0 and after == pytest.approx(0.7 * before, rel=1e-11))


@given(
    st.builds(
        ValidationDecay,
        positives,
        factors,
        m=st.integers(1, 9),
        delta=st.floats(0, 1),
        period=st.integers(9, 99),
        every=st.integers(1, 9),
        look=st.none() | positives,
    )
)
def test_the_text_of_a_validation_schedule_reads_back_exactly(decay):
    assert parse_noise(str(decay)) == decay


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"s0": 0}, "s0 must be greater"),
        ({"k": 1}, "k of a validation schedule must be below 1"),
        ({"k": 0}, "k must be greater"),
        ({"m": 0}, "m must be at least 1"),
        ({"period": 4}, "period must be at least 5"),
        ({"every": 0}, "every must be at least 1"),
        ({"delta": -0.1}, "delta must not be negative"),
        ({"look": 0}, "look must be greater than 0.*private records is free"),
    ],
)
def test_a_validation_schedule_is_checked(change, message):
    with pytest.raises(InputError, match=message):
        ValidationDecay(**{"s0": 10, "k": 0.7, "m": 5, **change})


def test_a_validation_schedule_is_for_noise_alone():
    for parse in (parse_schedule, parse_open):
        with pytest.raises(InputError, match="Unknown schedule shape 'validation'"):
            parse("validation:s0=10,k=0.7")
    with pytest.raises(InputError, match="lacks k"):
        parse_noise("validation:s0=10")
    with pytest.raises(InputError, match=r"no parameter 'start'"):
        parse_noise("validation:s0=10,k=0.7,start=3")
