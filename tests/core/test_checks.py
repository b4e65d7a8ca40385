import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadp import checks
from adadp.errors import InputError

REALS = [checks.positive, checks.non_negative, checks.probability]
NOT_NUMBERS = [True, False, None, "1", b"1", [1], 1j, Decimal(1), np.bool_(True)]
NOT_FINITE = [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")]


@pytest.mark.parametrize("check", REALS)
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_only_numbers_are_numbers(check, value):
    with pytest.raises(InputError, match="noise_multiplier must be a number") as caught:
        check("noise_multiplier", value, why="Because.")
    assert repr(value) in caught.value.what
    assert type(value).__name__ in caught.value.what
    assert caught.value.why == "Because."
    assert "noise_multiplier" in caught.value.fix


@pytest.mark.parametrize("check", REALS)
@pytest.mark.parametrize("value", NOT_FINITE)
def test_numbers_are_finite(check, value):
    with pytest.raises(InputError, match="noise_multiplier must be finite") as caught:
        check("noise_multiplier", value, why="Because.")
    assert caught.value.why == "Because."
    assert caught.value.fix


@pytest.mark.parametrize(("value", "shown"), [(10**400, "got inf"), (-(10**400), "got -inf")])
def test_an_int_beyond_the_range_of_a_float_is_refused_like_infinity(value, shown):
    with pytest.raises(InputError, match=f"must be finite, {shown}"):
        checks.positive("noise_multiplier", value)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), Fraction(2)])
@pytest.mark.parametrize("check", REALS[:2])
def test_every_kind_of_real_becomes_a_float(check, value):
    number = check("noise_multiplier", value)
    assert number == 2.0
    assert type(number) is float


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_signs(value):
    for check, legal in [
        (checks.positive, value > 0),
        (checks.non_negative, value >= 0),
        (checks.probability, 0 <= value <= 1),
    ]:
        if legal:
            assert check("x", value) == value
        else:
            with pytest.raises(InputError):
                check("x", value)


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (checks.positive, 0, "noise_multiplier must be greater than 0, got 0. Because. Pass noise_multiplier > 0."),
        (
            checks.positive,
            -1.5,
            "noise_multiplier must be greater than 0, got -1.5. Because. Pass noise_multiplier > 0.",
        ),
        (
            checks.non_negative,
            -1,
            "noise_multiplier must not be negative, got -1. Because. Pass noise_multiplier >= 0.",
        ),
        (
            checks.probability,
            1.5,
            "noise_multiplier must lie in [0, 1], got 1.5. Because. Pass noise_multiplier between 0 and 1.",
        ),
        (
            checks.probability,
            -0.1,
            "noise_multiplier must lie in [0, 1], got -0.1. Because. Pass noise_multiplier between 0 and 1.",
        ),
    ],
)
def test_a_refusal_says_what_why_and_what_to_do(check, value, message):
    with pytest.raises(InputError) as caught:
        check("noise_multiplier", value, why="Because.")
    assert str(caught.value) == message


def test_ends_that_belong_and_ends_that_do_not():
    assert checks.non_negative("x", 0) == 0
    assert [checks.probability("q", end) for end in (0, 1)] == [0, 1]
    for outside in (math.nextafter(0, -1), math.nextafter(1, 2)):
        with pytest.raises(InputError):
            checks.probability("q", outside)


@pytest.mark.parametrize("check", REALS)
def test_why_may_be_left_out(check):
    with pytest.raises(InputError) as caught:
        check("noise_multiplier", -1)
    assert caught.value.why == ""


@pytest.mark.parametrize("value", [0, 1, -1e-9, 1.5])
def test_delta_lies_strictly_between_0_and_1(value):
    with pytest.raises(InputError, match="delta must lie strictly between 0 and 1") as caught:
        checks.delta(value)
    assert caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("value", [1e-300, 1e-5, 0.5, math.nextafter(1, 0)])
def test_legal_deltas(value):
    assert checks.delta(value) == value


@pytest.mark.parametrize("value", ["1e-5", math.nan])
def test_delta_is_a_finite_number(value):
    with pytest.raises(InputError, match="delta must be"):
        checks.delta(value)


@pytest.mark.parametrize("value", [3, 3.0, np.int32(3), np.float64(3), Fraction(6, 2)])
def test_counts_are_whole(value):
    number = checks.count("steps", value)
    assert number == 3
    assert type(number) is int


def test_a_count_keeps_every_digit():
    assert checks.count("steps", 2**60 + 1) == 2**60 + 1
    assert checks.count("steps", 10**400) == 10**400


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_a_count_is_a_number(value):
    with pytest.raises(InputError, match="steps must be a whole number") as caught:
        checks.count("steps", value, why="Because.")
    assert repr(value) in caught.value.what
    assert caught.value.why == "Because."
    assert caught.value.fix == "Pass steps as an int."


@pytest.mark.parametrize("value", [3.5, Fraction(1, 2), np.float64(2.25)])
def test_a_count_is_not_rounded(value):
    with pytest.raises(InputError, match="steps must be a whole number") as caught:
        checks.count("steps", value, why="Because.")
    assert str(value) in caught.value.what
    assert caught.value.why == "Because."
    assert caught.value.fix == "Round steps yourself."


@pytest.mark.parametrize("value", [*NOT_FINITE, Fraction(10**400)])
def test_a_count_is_finite(value):
    with pytest.raises(InputError, match="steps must be finite"):
        checks.count("steps", value)


@pytest.mark.parametrize(("minimum", "lowest"), [(None, 1), (0, 0), (5, 5)])
def test_a_count_has_a_minimum(minimum, lowest):
    options = {} if minimum is None else {"minimum": minimum}
    assert checks.count("steps", lowest, **options) == lowest
    with pytest.raises(InputError) as caught:
        checks.count("steps", lowest - 1, why="Because.", **options)
    assert str(caught.value) == (f"steps must be at least {lowest}, got {lowest - 1}. Because. Pass steps >= {lowest}.")
