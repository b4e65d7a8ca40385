"""The best noise for a given privacy: the closed form is the solution, and projected gradient descent finds it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadp.errors import InputError
from adadp.lab.methods.dpopt_problem import STEPS, closed_form, projected_gradient

SOLVERS = {"closed": closed_form, "projected": projected_gradient}


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def problems(decades: float = 4.0):
    """s, w and n of up to 30 coordinates, s and w each over so many powers of ten."""
    sizes = st.floats(-decades / 2, decades / 2).map(lambda power: 10**power)
    rows = st.lists(st.tuples(sizes, sizes, st.integers(1, 1000)), min_size=1, max_size=30)
    return rows.map(lambda found: tuple(numbers(*column) for column in zip(*found, strict=True)))


def objective(deviations, w, counts) -> float:
    return float((counts * (w * deviations).square()).sum())


def used(deviations, s, counts, noise_multiplier) -> float:
    """The left side of the constraint over the right one."""
    return float((counts * (s / deviations).square()).sum()) * noise_multiplier**2


@given(problems(), st.floats(0.01, 100))
@settings(max_examples=50, deadline=None)
def test_the_closed_form_uses_the_whole_budget_and_is_what_its_formula_says(problem, noise_multiplier):
    s, w, counts = problem
    found = closed_form(s, w, noise_multiplier, counts)
    assert used(found, s, counts, noise_multiplier) == pytest.approx(1, rel=1e-12)
    whole = math.fsum((counts * s * w).tolist())
    for i, deviation in enumerate(found.tolist()):
        assert deviation**2 == pytest.approx(noise_multiplier**2 * float(s[i] / w[i]) * whole, rel=1e-12)


@given(problems(6.0), st.floats(0.01, 100))
@settings(max_examples=50, deadline=None)
def test_projected_gradient_descent_ends_at_the_closed_form(problem, noise_multiplier):
    """Over six powers of ten each: to rounding, after the 50 steps of the paper."""
    s, w, counts = problem
    torch.testing.assert_close(
        projected_gradient(s, w, noise_multiplier, counts),
        closed_form(s, w, noise_multiplier, counts),
        rtol=1e-12,
        atol=0,
    )


@given(problems(), st.integers(0, STEPS))
@settings(max_examples=50, deadline=None)
def test_projected_gradient_descent_keeps_the_constraint_after_any_number_of_steps(problem, steps):
    s, w, counts = problem
    found = projected_gradient(s, w, 2.0, counts, steps)
    assert used(found, s, counts, 2.0) == pytest.approx(1, rel=1e-12)
    assert objective(found, w, counts) >= objective(closed_form(s, w, 2.0, counts), w, counts) * (1 - 1e-12)


def test_it_begins_at_equal_noise_and_comes_nearer_with_every_step():
    s, w, counts = numbers(1, 2, 30), numbers(5, 0.1, 1), numbers(3, 100, 7)
    begin = projected_gradient(s, w, 1.0, counts, 0)
    torch.testing.assert_close(begin, torch.full_like(begin, float((counts * s.square()).sum()) ** 0.5))
    costs = [objective(projected_gradient(s, w, 1.0, counts, steps), w, counts) for steps in range(8)]
    assert all(later < earlier for earlier, later in itertools.pairwise(costs))
    assert costs[7] < costs[0] / 2


@given(problems(2.0), st.integers(0, 10**6), st.floats(1e-3, 1))
@settings(max_examples=50, deadline=None)
def test_nothing_else_under_the_constraint_is_better(problem, seed, size):
    """Any other direction in which the constraint is kept costs more: the closed form is the minimum."""
    s, w, counts = problem
    best = closed_form(s, w, 1.0, counts)
    other = best * torch.exp(size * torch.randn(len(s), generator=torch.Generator().manual_seed(seed)).double())
    other = other * math.sqrt(used(other, s, counts, 1.0))
    assert used(other, s, counts, 1.0) == pytest.approx(1, rel=1e-12)
    assert objective(other, w, counts) >= objective(best, w, counts) * (1 - 1e-12)


@pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)
def test_counts_are_repeated_coordinates(solve):
    s, w, counts = numbers(1, 2), numbers(3, 0.5), numbers(2, 3)
    repeated = solve(numbers(1, 1, 2, 2, 2), numbers(3, 3, 0.5, 0.5, 0.5), 1.5)
    torch.testing.assert_close(solve(s, w, 1.5, counts)[[0, 0, 1, 1, 1]], repeated)


@pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)
def test_a_loss_that_follows_the_bounds_wants_equal_noise(solve):
    """w ~ s: sigma times the length of the corner, in every coordinate, which is DP-SGD with that bound."""
    s = numbers(3, 4, 12)
    torch.testing.assert_close(solve(s, 0.2 * s, 2.0), numbers(26, 26, 26))


@pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)
def test_edges(solve):
    s, w = numbers(0, 2, 0), numbers(0, 3, 5)
    torch.testing.assert_close(solve(s, w, 1.0), numbers(0, 2, 0))
    assert not solve(numbers(0, 0), w[:2], 1.0).any()
    assert not solve(numbers(1, 2), numbers(3, 4), 0.0).any()
    assert solve(numbers(), numbers(), 1.0).shape == (0,)
    assert solve(s.float(), w.float(), 1.0).dtype == torch.float64


@pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ((numbers(1, 1), numbers(1, 0), 1.0), "w = 0 and s > 0"),
        ((numbers(1, -1), numbers(1, 1), 1.0), "finite and not negative"),
        ((numbers(1, 1), numbers(1, math.nan), 1.0), "finite and not negative"),
        ((numbers(math.inf, 1), numbers(1, 1), 1.0), "finite and not negative"),
        ((numbers(1), numbers(1), 1.0, numbers(0)), "counts positive"),
        ((numbers(1, 1), numbers(1), 1.0), "lists of one length"),
        ((numbers(1, 1).view(1, 2), numbers(1, 1).view(1, 2), 1.0), "lists of one length"),
        ((numbers(1), numbers(1), -1.0), "sigma must not be negative"),
        ((numbers(1), numbers(1), math.nan), "sigma must be finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_problem_is_refused(solve, given_, message):
    with pytest.raises(InputError, match=message):
        solve(*given_)


def test_a_negative_number_of_steps_is_refused():
    with pytest.raises(InputError, match="steps must be at least 0"):
        projected_gradient(numbers(1), numbers(1), 1.0, steps=-1)
