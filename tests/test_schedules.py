import math
from dataclasses import FrozenInstanceError, dataclass, fields

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adadp.errors import InputError
from adadp.schedules import (
    SHAPES,
    ExponentialDecay,
    PolynomialDecay,
    Schedule,
    StepDecay,
    TimeDecay,
    Uniform,
    parse_schedule,
)

positives = st.floats(0, exclude_min=True, allow_infinity=False)
periods = st.integers(1, 10**18)


@st.composite
def polynomials(draw, sizes=positives, rates=positives):
    s_end, s0 = sorted(draw(st.lists(sizes, min_size=2, max_size=2, unique=True)))
    return PolynomialDecay(s0, draw(rates), s_end, draw(periods))


def schedules(sizes=positives, rates=positives) -> st.SearchStrategy[Schedule]:
    return st.one_of(
        st.builds(Uniform, sizes),
        st.builds(TimeDecay, sizes, rates, periods),
        st.builds(ExponentialDecay, sizes, rates, periods),
        st.builds(StepDecay, sizes, st.floats(0, 1, exclude_min=True, exclude_max=True), periods),
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
def test_no_shape_ever_rises(schedule, epoch):
    try:
        assert schedule.value_at(epoch + 1) <= schedule.value_at(epoch) * (1 + 1e-15)
    except InputError:
        assume(False)


@given(schedules())
def test_epoch_0_is_s0(schedule):
    assert schedule.value_at(0) == pytest.approx(schedule.s0, rel=1e-14)


@given(schedules())
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
    ],
)
def test_text_is_short_and_plain(schedule, text):
    assert str(schedule) == text
    assert parse_schedule(text) == schedule


def test_spaces_and_order_do_not_matter():
    assert parse_schedule(" exp : k = 0.01 , s0 = 1e1 ") == ExponentialDecay(10, 0.01)


@given(training_schedules, st.floats(0.01, 100), st.integers(0, 100))
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


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf, True, "2"])
def test_a_scale_is_positive(factor):
    with pytest.raises(InputError, match="factor must be"):
        Uniform(1).scaled(factor)


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


@pytest.mark.parametrize("kind", SHAPES.values())
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "1", None])
def test_every_parameter_is_checked(kind, value):
    good = {"s0": 10, "k": 0.5, "s_end": 2, "period": 10}
    for field in fields(kind):
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


@pytest.mark.parametrize("s_end", [10, 11])
def test_a_polynomial_ends_below_its_start(s_end):
    with pytest.raises(InputError, match=f"s_end must be below s0, got s_end={s_end} and s0=10") as caught:
        PolynomialDecay(10, 3, s_end, 100)
    assert caught.value.why
    assert caught.value.fix


def test_a_period_is_whole():
    with pytest.raises(InputError, match="period must be a whole number"):
        parse_schedule("exp:s0=1,k=1,period=1.5")
    assert parse_schedule("exp:s0=1,k=1,period=2.0") == ExponentialDecay(1, 1, 2)


def test_an_unknown_shape_lists_the_known_ones():
    with pytest.raises(InputError, match="Unknown schedule shape 'cosine'") as caught:
        parse_schedule("cosine:s0=1")
    for shape in ("uniform", "time", "exp", "step", "poly"):
        assert shape in caught.value.fix


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
    assert "It takes s0, k, [period]" in caught.value.fix


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


@given(st.text(max_size=30) | st.from_regex(r"(uniform|exp|poly):[a-z0-9=,. ]*", fullmatch=True))
def test_any_text_is_a_schedule_or_an_input_error(text):
    try:
        schedule = parse_schedule(text)
    except InputError:
        return
    assert parse_schedule(str(schedule)) == schedule


def test_schedules_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Uniform(1).s0 = 2
    assert len({Uniform(1), Uniform(1.0), Uniform(2), TimeDecay(1, 1)}) == 3


def test_a_schedule_without_a_formula_cannot_be_made():
    with pytest.raises(TypeError):
        Schedule()
