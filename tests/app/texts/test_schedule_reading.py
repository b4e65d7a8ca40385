"""schedule_text: schedule reading."""

from dataclasses import FrozenInstanceError, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from schedule_text_cases import factors, pieces, positives, schedules, training_schedules

from adadp.app.accounting.run_shape import RunShape
from adadp.app.schedules import ExponentialDecay, PolynomialDecay, StepDecay, TimeDecay, ValidationDecay
from adadp.app.texts.schedules import OpenSchedule, parse_noise, parse_open, parse_schedule
from adadp.errors import InputError
from adadp.schedules import Piecewise, Schedule, Uniform


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
