"""The Renyi divergence of a sampled step by order, against its closed form at whole orders."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from mpmath import mp

from adadp.app.cli import main
from adadp.errors import InputError
from adadp.lab.studies.renyi import study_renyi


def adadp(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


def exact(order: int, q: float, noise_multiplier: float) -> float:
    """The binomial sum of the moments of ((1-q) N(0) + q N(1)) / N(0) (Mironov, Talwar and Zhang 2019)."""
    with mp.workdps(60):
        terms = (
            mp.binomial(order, k)
            * (1 - mp.mpf(q)) ** (order - k)
            * mp.mpf(q) ** k
            * mp.exp(k * (k - 1) / (2 * mp.mpf(noise_multiplier) ** 2))
            for k in range(order + 1)
        )
        return float(mp.log(mp.fsum(terms)) / (order - 1))


@pytest.mark.parametrize(("q", "noise_multiplier"), [(0.01, 4.0), (0.01, 1.0), (0.2, 2.0)])
def test_divergences_are_those_of_the_closed_form(q: float, noise_multiplier: float) -> None:
    found = study_renyi(q, noise_multiplier)
    for place in range(0, len(found.orders), max(1, len(found.orders) // 10)):
        order = found.orders[place]
        assert found.sampled[place] == pytest.approx(exact(order, q, noise_multiplier), rel=1e-6)
        assert found.unsampled[place] == order / (2 * noise_multiplier**2)
        assert found.bound[place] == pytest.approx(order * q**2 / noise_multiplier**2)


def test_the_changing_point_of_figure_1_is_147() -> None:
    found = study_renyi(0.01, 4.0)
    assert found.holds_to == 147
    assert exact(147, 0.01, 4.0) <= 147 * (0.01 / 4) ** 2
    assert exact(148, 0.01, 4.0) > 148 * (0.01 / 4) ** 2
    assert found.conjectured_to == pytest.approx(16 * math.log(25) + 1)


def test_the_changing_point_is_found_between_the_orders_looked_at() -> None:
    found = study_renyi(0.001, 12.0)
    assert found.holds_to is not None
    assert found.holds_to not in found.orders
    below, above = (exact(order, 0.001, 12.0) / order for order in (found.holds_to, found.holds_to + 1))
    assert below <= (0.001 / 12) ** 2 < above


def test_beyond_it_the_two_rise_together() -> None:
    found = study_renyi(0.01, 4.0)
    slope = (found.sampled[-1] - found.sampled[-11]) / (found.unsampled[-1] - found.unsampled[-11])
    assert slope == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("q", "noise_multiplier", "holds_to", "conjectured"),
    [
        (0.01, 0.3, None, True),
        (0.8, 2.0, 10, False),
        (0.01, 1.0, 6, True),
        (0.0625, 1.0, 3, True),
        (0.063, 1.0, 3, False),
    ],
)
def test_table_of_cases(q: float, noise_multiplier: float, holds_to: int | None, conjectured: bool) -> None:
    found = study_renyi(q, noise_multiplier)
    assert found.holds_to == holds_to
    assert (found.conjectured_to is not None) == (found.end_ratio is not None) == conjectured
    if holds_to is not None and holds_to < found.orders[-1]:
        assert exact(holds_to, q, noise_multiplier) <= holds_to * (q / noise_multiplier) ** 2
        assert exact(holds_to + 1, q, noise_multiplier) > (holds_to + 1) * (q / noise_multiplier) ** 2


def test_the_conjecture_is_false_near_sigma_1() -> None:
    """A whole order within its range, by the binomial sum alone; and the same at its last order."""
    q, noise_multiplier, order = 0.03, 1.0, 4
    assert q <= 1 / (16 * noise_multiplier)
    assert order <= noise_multiplier**2 * math.log(1 / (q * noise_multiplier)) + 1
    assert exact(order, q, noise_multiplier) == pytest.approx(0.003665, abs=1e-6)
    assert exact(order, q, noise_multiplier) > order * (q / noise_multiplier) ** 2
    found = study_renyi(q, noise_multiplier)
    assert found.holds_to == 3
    assert found.end_ratio == pytest.approx(1.0801810318, rel=1e-8)


def test_the_conjecture_holds_for_the_settings_of_the_figures() -> None:
    for noise_multiplier in (1.0, 4.0):
        ratio = study_renyi(0.01, noise_multiplier).end_ratio
        assert ratio is not None
        assert ratio < 1


@pytest.mark.parametrize("q", [0.0, 1.0, 1.5])
def test_something_must_be_sampled(q: float) -> None:
    with pytest.raises(InputError, match="q must"):
        study_renyi(q, 4.0)


class TestCommand:
    def test_prints_where_the_bound_ends(self) -> None:
        result = adadp("study renyi")
        assert result.exit_code == 0, result.output
        assert "holds up to order 147, conjectured up to 52.5" in result.stdout
        assert "conjectures nothing" not in result.stdout

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ("--noise-multiplier .3", "passed at order 2 already"),
            ("--q .03 --noise-multiplier 1", "the divergence is 1.08 of that bound: the conjecture is false here"),
            ("--q .01 --noise-multiplier 1", "the divergence is 0.9577 of that bound: as conjectured"),
            ("--q .8 --noise-multiplier 2", "holds at all orders looked at, to 10"),
            ("--q .2 --noise-multiplier 2", "conjectures nothing here: q is above 1/(16 sigma) = 0.03125"),
        ],
    )
    def test_says_so_in_other_cases(self, options: str, says: str) -> None:
        assert says in adadp(f"study renyi {options}").stdout

    def test_json(self) -> None:
        found = json.loads(adadp("study renyi --json").stdout)
        assert (found["holds_to"], found["q"], found["noise_multiplier"]) == (147, 0.01, 4.0)
        assert len(found["orders"]) == len(found["sampled"]) == len(found["bound"])

    def test_draws(self, tmp_path: Path) -> None:
        target = tmp_path / "renyi.svg"
        assert adadp(f"study renyi --out {target}").exit_code == 0
        picture = target.read_text()
        assert "q = 0.01, sigma = 4: alpha q^2/sigma^2 holds up to order 147" in picture
        assert "not sampled" in picture

    def test_refuses(self) -> None:
        assert adadp("study renyi --q 1").exit_code == 2
        assert adadp("study renyi --out renyi.txt").exit_code == 2
