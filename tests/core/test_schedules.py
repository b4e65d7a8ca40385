"""Schedules as tables: what a certificate states of any shape, and reads back to the last bit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadp.app.schedules import ExponentialDecay, TimeDecay
from adadp.errors import InputError
from adadp.schedules import Piecewise, Uniform, read_table

VALUES = st.floats(1e-9, 1e9)


@given(st.lists(VALUES, min_size=1, max_size=8), st.none() | st.integers(1, 100))
def test_a_table_reads_back_as_itself(values, tick):
    table = Piecewise.of(values, tick)
    assert read_table(str(table)) == table


@given(VALUES, st.integers(0, 5), st.none() | st.integers(6, 9), st.none() | st.integers(1, 100))
def test_a_uniform_schedule_reads_back_as_itself(value, start, stop, tick):
    schedule = Uniform(value, start=start, stop=stop, tick=tick)
    assert read_table(str(schedule)) == schedule


@pytest.mark.parametrize("tick", [None, 3])
@pytest.mark.parametrize("shape", [ExponentialDecay, TimeDecay])
def test_a_table_has_the_values_of_the_run(shape, tick):
    schedule = shape(4.0, 0.3, 2, start=1, stop=7, tick=tick)
    table = schedule.table(steps=50, epochs=10)
    assert table == read_table(str(table))
    for step in range(50):
        assert table.value_of(step, step // 5) == schedule.value_of(step, step // 5)


@pytest.mark.parametrize(
    "text",
    [
        "exp:s0=1,k=0.1",
        "uniform:",
        "uniform:s0=1,s0=2,k=1",
        "uniform:s0=x",
        "uniform:s0=1,k=2",
        "piecewise:",
        "piecewise:1=2",
        "piecewise:0=1,tick=0",
        "piecewise:a=1",
        "piecewise:0",
        "",
    ],
)
def test_what_is_no_table_is_refused(text):
    with pytest.raises(InputError):
        read_table(text)
