"""What the tests of schedule text share."""

from hypothesis import strategies as st

from adadp.app.schedules import ExponentialDecay, PolynomialDecay, StepDecay, TimeDecay
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
