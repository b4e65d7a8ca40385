"""What is compared, from flags and from files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadp.errors import InputError
from adadp.lab.compare import Case, Comparison, crossed, seeds_of, split_methods

BASE = {"data": "cancer", "delta": 1e-4, "steps": 5, "batch_size": 100}
TWO = (Case("dpsgd", {"method": "dpsgd"}), Case("adadp", {"method": "adadp"}))


def spec(**changes) -> Comparison:
    return Comparison(**{"title": "t", "base": BASE, "cases": TWO, "seeds": (0, 1), "epsilons": (1.0, 2.0), **changes})


options = st.lists(st.sampled_from(["power=0.4", "start=50", "source=released"]), unique=True)
methods = st.tuples(st.sampled_from(["adadp", "dpsgd", "dpopt", "adadp-published"]), options)


@given(st.lists(methods, min_size=1))
def test_options_stay_with_their_method(written):
    texts = [name + (":" + ",".join(given) if given else "") for name, given in written]
    assert split_methods(",".join(texts)) == texts


def test_spaces_do_not_count_and_empty_places_do():
    assert split_methods(" adadp , dpopt:source=released, steps=50 ,agd") == [
        "adadp",
        "dpopt:source=released,steps=50",
        "agd",
    ]
    for text in ("", "adadp,", ",adadp", "adadp,,agd"):
        with pytest.raises(InputError, match="empty place"):
            split_methods(text)


def test_an_unknown_method_with_options_is_no_option_of_the_one_before():
    assert split_methods("adadp,other:x=1") == ["adadp", "other:x=1"]


def test_schedules_are_crossed_with_methods():
    assert crossed(["a"], ["exp:k=0.1"]) == (Case("a", {"method": "a", "noise_schedule": "exp:k=0.1"}),)
    found = crossed(["a", "b"], ["uniform:", "exp:k=0.1"])
    assert [case.name for case in found] == ["a, uniform:", "a, exp:k=0.1", "b, uniform:", "b, exp:k=0.1"]
    with pytest.raises(InputError):
        crossed(["a"], ["nonsense:k=1"])


def test_a_number_of_seeds_or_a_list():
    assert list(seeds_of(3)) == [0, 1, 2]
    assert list(seeds_of([4, 7])) == [4, 7]


names = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1)
settings = st.dictionaries(st.sampled_from(["method", "clip_norm", "batch_size"]), st.sampled_from([1, 2.5, "x"]))


@given(
    st.lists(st.builds(Case, names, settings), min_size=1, unique_by=lambda case: case.name),
    st.lists(st.integers(0, 2**63 - 1), min_size=1, unique=True),
    st.lists(st.floats(1e-3, 1e3), min_size=2, unique=True),
    st.lists(st.floats(0, 1), min_size=1, unique=True),
    st.integers(0, 5),
)
def test_toml_and_back(cases, seeds, epsilons, marks, refine):
    made = Comparison("t", BASE, tuple(cases), tuple(seeds), tuple(epsilons), tuple(marks), refine)
    assert Comparison.from_toml(made.to_toml()) == made


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cases": ()}, "no cases"),
        ({"cases": (TWO[0], TWO[0])}, "dpsgd twice"),
        ({"seeds": ()}, "no seeds"),
        ({"seeds": (1, 1)}, "1 twice"),
        ({"seeds": (-1,)}, "at least 0"),
        ({"epsilons": (1.0, 1)}, "twice"),
        ({"epsilons": (0.0,)}, "greater than 0"),
        ({"epsilons": (float("nan"),)}, "finite"),
        ({"marks": (92.0,)}, r"\[0, 1\]"),
        ({"refine": 1}, "refine is given without"),
        ({"refine": 1, "marks": (0.9,), "epsilons": (1.0,)}, "refine is given without"),
        ({"base": {**BASE, "seed": 1}}, "A seed is set"),
    ],
)
def test_what_means_nothing_is_refused(changes, says):
    with pytest.raises(InputError, match=says):
        spec(**changes)


def test_a_seed_or_no_name_in_a_case():
    with pytest.raises(InputError, match="A seed is set in the case a"):
        Case("a", {"seed": 3})
    with pytest.raises(InputError, match="name of a case"):
        Case(" ", {})


def test_a_case_with_a_budget_of_its_own_keeps_it():
    own = Case("no noise", {"noise_multiplier": 0.0, "allow_nonprivate": True})
    made = spec(cases=(*TWO, own), base={**BASE, "epsilon": 3.0})
    assert made.epsilons_of(TWO[0]) == (1.0, 2.0)
    assert made.epsilons_of(own) == (None,)
    assert made.config(own, None).noise_multiplier == 0
    assert made.config(own, None).epsilon is None
    assert made.config(TWO[0], 1.0).epsilon == 1.0
    assert spec(epsilons=(), base={**BASE, "epsilon": 3.0}).epsilons_of(TWO[0]) == (None,)


def test_an_error_in_a_case_names_it():
    with pytest.raises(InputError, match=r"^odd: Unknown setting 'lotsize'"):
        spec().config(Case("odd", {"lotsize": 3}), 1.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seeds = [", "not TOML"),
        ("epsilon = 2", "Unknown key 'epsilon'"),
        ("[[case]]\nset = {}", "no name"),
        ('[[case]]\nname = "a"\nsets = {}', "Unknown key 'sets'"),
        ("case = 3", "is no comparison"),
        ('epsilons = 2\n[[case]]\nname = "a"', "must be a list"),
        ("seeds = 3", "no cases"),
    ],
)
def test_files_that_cannot_be_read(text, says):
    with pytest.raises(InputError, match=says):
        Comparison.from_toml(text)
    with pytest.raises(InputError, match="cannot be read"):
        Comparison.from_toml(Path("there is none.toml"))


@pytest.mark.parametrize("name", ["mnist", "mnist-printed", "blocks", "adult-zcdp"])
def test_the_files_of_experiments_are_comparisons(name):
    found = Comparison.from_toml(Path(__file__).parents[3] / "experiments" / "methods" / f"{name}.toml")
    assert found.seeds == (0, 1, 2)
    assert all(found.config(case, None) for case in found.cases)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"base": {"data": "cancer", "noise_multiplier": 2.0}, "epsilons": (1.0,)},
            "Epsilons were given together with noise_multiplier",
        ),
        ({"base": {"data": "cancer", "rho": 2.0}, "epsilons": (1.0,)}, "Epsilons were given together with rho"),
        (
            {"base": {"data": "cancer", "noise_multiplier": 2.0}, "marks": (0.9,)},
            "Accuracies to reach were given, and no epsilons",
        ),
    ],
)
def test_one_budget_for_all_cases(changes, says):
    with pytest.raises(InputError, match=says):
        Comparison("t", cases=(Case("dpsgd", {"method": "dpsgd"}),), seeds=(0,), **changes)
