"""``adadp epsilon --sampling all``: the same run by every way of making batches, its warnings and its figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from adadp.accounting import ACCOUNTANTS, accountant
from adadp.app.accounting.run_shape import RunShape
from adadp.app.cli import main
from adadp.app.report.plots import Curve, plot_against, plot_epsilon, plot_renyi

KEYS = {"epsilon", "epsilon_low", "epsilon_high", "delta", "accountant", "status", "neighbours", "sampling"}
FIGURE_2 = "epsilon --q .01 --noise-multiplier 6 --epochs 400 --delta 1e-5 --sampling all"
SHORT = "epsilon --q .01 --noise-multiplier 6 --epochs 3 --delta 1e-5 --sampling all"
SHUFFLES = "A data loader that shuffles does reshuffle"
TWICE = "a clipped sum by 2C"
NO_BOUNDS = "No bounds, whatever they say"


def adadp(line: str) -> Result:
    result = CliRunner().invoke(main, line.split())
    assert "Traceback" not in result.output
    return result


def said(line: str) -> str:
    """What the command prints, without its line breaks."""
    result = adadp(line)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def answered(line: str) -> dict[tuple[str, str], dict]:
    """The rows by sampling and accountant."""
    result = adadp(line + " --json")
    assert result.exit_code == 0, result.output
    return {(row["sampling"], row["accountant"]): row for row in json.loads(result.stdout)}


def refusal(line: str) -> str:
    result = adadp(line)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return " ".join(result.stderr.split())


class TestRows:
    def test_figure_2_of_yu_2019(self) -> None:
        rows = answered(f"{FIGURE_2} --accountant all")
        found = {place: row["epsilon"] for place, row in rows.items()}
        assert found["reshuffle", "zcdp"] == pytest.approx(21.55, abs=5e-3)
        assert found["reshuffle", "pld"] == pytest.approx(19.13, abs=5e-3)
        assert found["poisson", "strong"] == pytest.approx(29.04, abs=5e-3)
        assert found["poisson", "zcdp-sampled"] == pytest.approx(2.373, abs=5e-4)
        assert found["poisson", "moments"] == pytest.approx(1.670, abs=5e-4)
        assert found["poisson", "pld"] == pytest.approx(1.283, abs=5e-4)

    def test_every_sampling_with_every_accountant_and_the_usual_keys(self) -> None:
        rows = answered(f"{SHORT} --accountant all")
        assert list(rows) == [
            (sampling, name) for sampling in ("poisson", "fixed", "reshuffle") for name in ACCOUNTANTS
        ]
        assert all(set(row) >= KEYS for row in rows.values())
        assert rows["reshuffle", "theorem1"]["epsilon"] is None
        assert "equation 7" in rows["reshuffle", "theorem1"]["reason"]

    def test_each_row_is_what_that_sampling_alone_gives(self) -> None:
        for (sampling, _), row in answered(SHORT).items():
            alone = adadp(f"{SHORT.replace('--sampling all', f'--sampling {sampling}')} --json")
            assert json.loads(alone.stdout) == row

    def test_each_sampling_has_its_usual_neighbours_unless_given(self) -> None:
        usual = [row["neighbours"] for row in answered(SHORT).values()]
        assert usual == ["add-remove", "replace-one", "zero-out"]
        assert {row["neighbours"] for row in answered(f"{SHORT} --neighbours zero-out").values()} == {"zero-out"}

    def test_neighbours_a_sampling_has_no_theorem_for(self) -> None:
        rows = answered(f"{SHORT} --neighbours add-remove")
        assert rows["poisson", "pld"]["epsilon"] > 0
        assert rows["fixed", "pld"]["epsilon"] is rows["reshuffle", "pld"]["epsilon"] is None
        assert "every other record's chance" in rows["fixed", "pld"]["reason"]

    @pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (100, 1), (101, 2), (250, 3)])
    def test_steps_are_whole_epochs_where_they_are_reshuffled(self, steps: int, epochs: int) -> None:
        rows = answered(
            f"epsilon --q .01 --noise-multiplier 6 --delta 1e-5 --sampling all --accountant rdp --steps {steps}"
        )
        by_epochs = accountant("rdp").epsilon(RunShape("reshuffle").run(6.0, epochs=epochs), 1e-5)
        by_steps = accountant("rdp").epsilon(RunShape("poisson", q=0.01).run(6.0, steps=steps), 1e-5)
        assert rows["reshuffle", "rdp"]["epsilon"] == by_epochs.epsilon
        assert rows["poisson", "rdp"]["epsilon"] == by_steps.epsilon

    def test_schedule(self) -> None:
        line = "epsilon --q .1 --schedule exp:s0=4,k=0.1 --epochs 3 --delta 1e-5 --sampling all --accountant zcdp"
        rho = sum(np.exp(0.2 * epoch) / 32 for epoch in range(3))
        assert answered(line)["reshuffle", "zcdp"]["epsilon"] == pytest.approx(
            rho + 2 * np.sqrt(rho * np.log(1e5)), rel=1e-9
        )


class TestTable:
    def test_one_accountant_is_a_row_each(self) -> None:
        table = adadp(SHORT).stdout
        for words in (("poisson", "add-remove"), ("fixed", "replace-one"), ("reshuffle", "zero-out")):
            assert any(set(words) <= set(line.split()) for line in table.splitlines())
        assert "different guarantees" in table

    def test_all_accountants_have_a_column_for_each_sampling(self) -> None:
        lines = adadp(f"{FIGURE_2} --accountant all").stdout.splitlines()
        head = next(place for place, line in enumerate(lines) if "poisson" in line)
        assert lines[head].split("┃")[2:5] == [" poisson    ", " fixed       ", " reshuffle "]
        assert {"add-remove", "replace-one", "zero-out"} <= set(lines[head + 1].split())
        pld = next(line for line in lines if "│ pld" in line)
        assert pld.replace("│", " ").split() == ["pld", "1.28285", "3.23673", "19.1308", "proved"]
        theorem1 = next(line for line in lines if "│ theorem1" in line)
        assert theorem1.replace("│", " ").split()[-2:] == ["-", "as-published"]
        assert all(len(line) <= 80 for line in lines if "│" in line)

    def test_given_neighbours_are_one_guarantee(self) -> None:
        assert "different guarantees" not in said(f"{SHORT} --neighbours replace-one")

    def test_the_same_reason_is_printed_once(self) -> None:
        text = said(f"{SHORT} --neighbours add-remove --accountant all")
        assert text.count("every other record's chance") == 1

    def test_who_cannot_answer_is_named(self) -> None:
        line = "epsilon --q .5 --noise-multiplier .001 --steps 1000000 --delta 1e-12 --sampling all --accountant"
        assert "reshuffle, strong, strong-published: epsilon is infinite" in said(f"{line} all")
        assert "reshuffle: epsilon is infinite" in said(f"{line} strong")

    def test_says_how_steps_are_counted(self) -> None:
        counted = "150 steps are counted in whole epochs, 2 of them"
        assert counted in said("epsilon --q .01 --noise-multiplier 6 --steps 150 --delta 1e-5 --sampling all")
        assert "whole epochs" not in said(SHORT)


class TestWarnings:
    def test_reshuffled_costs_more_than_poisson(self) -> None:
        assert f"{SHUFFLES}: epsilon 19.13 (pld) can be proved for it, not 1.283 (pld)." in said(FIGURE_2)
        assert "epsilon 22.42 (moments) can be proved for it, not 1.67 (moments)" in said(
            f"{FIGURE_2} --accountant moments"
        )

    def test_the_least_proved_figures_are_compared(self) -> None:
        assert "epsilon 19.13 (pld) can be proved for it, not 1.283 (pld)." in said(f"{FIGURE_2} --accountant all")

    @pytest.mark.parametrize(
        "line",
        [
            f"{FIGURE_2} --accountant zcdp",  # blind to sampling: the Poisson figure is the larger one
            "epsilon --q .5 --noise-multiplier .5 --epochs 1 --delta 1e-9 --sampling all",  # a record is drawn twice
            "epsilon --q 1 --noise-multiplier 4 --epochs 5 --delta 1e-5 --sampling all",  # the same run
            f"{FIGURE_2} --accountant strong-published",  # proves nothing for either
            f"{SHORT} --neighbours add-remove",  # no theorem for reshuffling
            SHORT.replace("--sampling all", "--sampling poisson"),
        ],
    )
    def test_no_word_of_shuffling_where_it_does_not_cost_more(self, line: str) -> None:
        assert SHUFFLES not in said(line)

    def test_fixed_size_batches_move_by_two_c(self) -> None:
        text = said(FIGURE_2)
        at_c = accountant("pld").epsilon(RunShape("fixed", q=0.01).run(12.0, epochs=400), 1e-5).epsilon
        assert "fixed, replace-one: a record moves a clipped sum by 2C, not C." in text
        assert f"Epsilon 3.237 (pld) counts that; at C it would read {at_c:.4g}." in text
        assert text.count(TWICE) == 1

    def test_with_a_schedule_too(self) -> None:
        line = "epsilon --q .1 --schedule exp:s0=4,k=0.1 --epochs 3 --delta 1e-5 --sampling all --accountant rdp"
        doubled = line.replace("s0=4", "s0=8")
        assert f"would read {answered(doubled)['fixed', 'rdp']['epsilon']:.4g}." in said(line)

    def test_so_does_every_sampling_with_replace_one(self) -> None:
        assert said(f"{SHORT} --neighbours replace-one").count(TWICE) == 3

    def test_blanking_out_a_record_of_a_fixed_size_batch_moves_another_one(self) -> None:
        assert "fixed, zero-out: a record moves a clipped sum by 2C" in said(f"{SHORT} --neighbours zero-out")

    @pytest.mark.parametrize(
        "line",
        [
            f"{SHORT} --neighbours add-remove",
            "epsilon --q 1 --noise-multiplier 4 --epochs 5 --delta 1e-5 --sampling all --neighbours zero-out",
            f"{SHORT} --accountant theorem1",
            SHORT.replace("--sampling all", "--sampling fixed"),
        ],
    )
    def test_no_word_of_two_c_where_it_does_not_apply(self, line: str) -> None:
        assert TWICE not in said(line)

    def test_figures_that_are_no_bounds(self) -> None:
        assert f"{NO_BOUNDS}: strong-published, theorem1, zcdp-sampled." in said(f"{SHORT} --accountant all")
        assert f"{NO_BOUNDS}: theorem1." in said(f"{SHORT} --accountant theorem1")
        assert NO_BOUNDS not in said(SHORT)

    def test_only_of_those_that_answered(self) -> None:
        line = "epsilon --q .05 --noise-multiplier 6 --epochs 3 --delta 1e-5 --sampling all --accountant zcdp-sampled"
        assert NO_BOUNDS not in said(line)

    def test_json_has_them_on_the_other_stream(self) -> None:
        result = adadp(f"{SHORT} --json")
        assert len(json.loads(result.stdout)) == 3
        assert SHUFFLES in result.stderr
        assert TWICE in result.stderr


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("epsilon --noise-multiplier 6 --epochs 3 --delta 1e-5 --sampling all", "needs --q"),
        ("epsilon --q .1 --noise-multiplier 6 --steps 0 --delta 1e-5 --sampling all", "steps must be at least 1"),
        (
            "epsilon --q .1 --noise-multiplier 6 --steps 9 --epochs 3 --delta 1e-5 --sampling all",
            "exactly one of --steps and --epochs",
        ),
        ("epsilon --q .1 --noise-multiplier 6 --delta 1e-5 --sampling all", "length of the run"),
        (f"{SHORT} --accountant gdp", "Unknown accountant 'gdp'"),
        ("delta --q .1 --noise-multiplier 6 --steps 9 --epsilon 1 --sampling all", "'all' is not one of"),
        (f"{SHORT} --against q", "drawn, not printed"),
        (f"{SHORT} --range 1,2", "range of --against"),
        (f"{SHORT} --against q --range 1 --plot a.png", "two numbers"),
        (f"{SHORT} --against q --range .1,.1 --plot a.png", "0 < LOW < HIGH <= 1"),
        (f"{SHORT} --against q --range .1,2 --plot a.png", "0 < LOW < HIGH <= 1"),
        (f"{SHORT} --against noise-multiplier --range 0,2 --plot a.png", "0 < LOW < HIGH."),
        (f"{SHORT} --against noise-multiplier --range nan,2 --plot a.png", "0 < LOW < HIGH."),
        ("epsilon --q .1 --noise-multiplier 6 --steps 9 --delta 1e-5 --against q --plot a.png", "needs --epochs"),
        (
            "epsilon --q .1 --schedule exp:s0=4,k=0.1 --epochs 3 --delta 1e-5 --against noise-multiplier --plot a.png",
            "--against noise-multiplier needs --noise-multiplier",
        ),
        (
            "epsilon --sampling reshuffle --noise-multiplier 6 --epochs 3 --delta 1e-5 --against q --plot a.png",
            "needs a range",
        ),
    ],
)
def test_bad_input_is_refused_with_a_message(line: str, says: str) -> None:
    assert says in refusal(line)


def drawn(path: Path) -> bool:
    """Whether ``path`` is a picture with something on it."""
    with Image.open(path) as image:
        return image.width > 500 and image.height > 300 and np.asarray(image.convert("L")).std() > 5


class TestPlots:
    @pytest.mark.slow
    def test_a_line_for_every_sampling_and_accountant(self, tmp_path: Path) -> None:
        target = tmp_path / "epochs.svg"
        assert adadp(f"{SHORT} --accountant all --plot {target}").exit_code == 0
        picture = target.read_text()
        for (sampling, name), row in answered(f"{SHORT} --accountant all").items():
            if row["status"] == "proved":
                assert f"{sampling}, {name}: {row['epsilon']:.4g}" in picture
        assert "reshuffle, theorem1" not in picture
        assert "poisson (add-remove), fixed (replace-one), reshuffle (zero-out)" in picture

    def test_only_samplings_with_a_theorem(self, tmp_path: Path) -> None:
        target = tmp_path / "epochs.svg"
        assert adadp(f"{SHORT} --accountant rdp --neighbours add-remove --plot {target}").exit_code == 0
        assert "poisson" in target.read_text()
        assert "fixed" not in target.read_text()

    @pytest.mark.parametrize("against", ["q", "noise-multiplier --range 5,14"])
    def test_against(self, tmp_path: Path, against: str) -> None:
        target = tmp_path / "against.png"
        result = adadp(f"{SHORT} --accountant zcdp --against {against} --plot {target}")
        assert result.exit_code == 0, result.output
        assert drawn(target)

    def test_steps_stay_for_sigma(self, tmp_path: Path) -> None:
        target = tmp_path / "against.svg"
        asked = "epsilon --q .1 --noise-multiplier 4 --steps 25 --delta 1e-5 --accountant rdp"
        line = f"{asked} --against noise-multiplier --plot {target}"
        assert adadp(line).exit_code == 0
        assert "q = 0.1, 25 steps" in target.read_text()


class TestCurves:
    """What is drawn, without the drawing."""

    @pytest.fixture
    def curves(self, monkeypatch: pytest.MonkeyPatch) -> list[Curve]:
        kept: list[Curve] = []

        def keep(target: Path, curves: list[Curve], **_: str) -> Path:
            kept.extend(curves)
            return target

        monkeypatch.setattr("adadp.app.report.plots._draw", keep)
        return kept

    def test_reshuffling_is_flat_in_q_and_poisson_rises(self, curves: list[Curve]) -> None:
        ways = [(RunShape("reshuffle"), None, 200), (RunShape("poisson", q=0.01), None, 200)]
        asked = [accountant("zcdp"), accountant("rdp")]
        plot_against("a.png", ways, 6.0, against="q", between=(0.005, 0.05), delta=1e-5, accountants=asked)
        by_label = {curve.label: curve for curve in curves}
        flat, rising = by_label["reshuffle, zcdp"], by_label["poisson, rdp"]
        assert set(flat.y) == {flat.y[0]}
        assert flat.y[0] == pytest.approx(200 / 72 + 2 * np.sqrt(200 / 72 * np.log(1e5)))
        assert (rising.x[0], rising.x[-1]) == (0.005, 0.05)
        assert rising.y[-1] == accountant("rdp").epsilon(RunShape("poisson", q=0.05).run(6.0, epochs=200), 1e-5).epsilon
        assert rising.y[0] < rising.y[-1]

    def test_sigma_is_what_changes(self, curves: list[Curve]) -> None:
        ways = [(RunShape("reshuffle"), None, 200)]
        plot_against(
            "a.png",
            ways,
            6.0,
            against="noise_multiplier",
            between=(5, 14),
            delta=1e-5,
            accountants=[accountant("zcdp")],
        )
        rho = [200 / (2 * noise_multiplier**2) for noise_multiplier in (5, 14)]
        ends = [each + 2 * np.sqrt(each * np.log(1e5)) for each in rho]
        assert [curves[0].y[0], curves[0].y[-1]] == pytest.approx(ends)

    def test_a_gap_where_the_accountant_has_no_answer(self, curves: list[Curve]) -> None:
        ways = [(RunShape("poisson", q=0.01), None, 20)]
        asked = [accountant("zcdp-sampled")]
        plot_against("a.png", ways, 6.0, against="q", between=(0.005, 0.05), delta=1e-5, accountants=asked)
        known = np.isfinite(curves[0].y)
        assert np.array_equal(known, np.asarray(curves[0].x) <= 1 / 96)
        assert known.any()
        assert not known.all()

    def test_lengths_in_steps_and_in_epochs_share_the_axis(self, curves: list[Curve]) -> None:
        ways = [(RunShape("poisson", q=0.01), 250, None), (RunShape("reshuffle"), None, 3)]
        plot_epsilon("a.png", ways, 6.0, delta=1e-5, accountants=[accountant("zcdp")])
        assert [curve.x[-1] for curve in curves] == [2.5, 3]


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    line = "epsilon --q .05 --noise-multiplier 6 --epochs 3 --delta 1e-5 --sampling all --accountant zcdp-sampled"
    result = adadp(f"{line} --plot {tmp_path / 'a.png'}")
    assert result.exit_code == 2
    assert "nothing to draw" in result.stderr
    assert not (tmp_path / "a.png").exists()


def test_lines_are_listed_in_the_order_in_which_they_end(tmp_path: Path) -> None:
    curves = [Curve("low", [1, 2], [5.0, 1.0]), Curve("high", [1, 2], [2.0, 3.0]), Curve("gone", [1, 2], [np.nan] * 2)]
    picture = plot_renyi(tmp_path / "a.svg", curves, title="three").read_text()
    assert picture.index("<!-- high -->") < picture.index("<!-- low -->")
    assert "<!-- gone -->" not in picture
