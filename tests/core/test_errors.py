import inspect
import re

import pytest

from adadp import errors

TREE = {
    "AdaDPError": "Exception",
    "InputError": "AdaDPError",
    "EventError": "InputError",
    "MixedRecords": "InputError",
    "AccountingError": "AdaDPError",
    "UnsupportedEvent": "AccountingError",
    "AdaptiveEvent": "AccountingError",
    "UnreachableTarget": "AccountingError",
    "BudgetExceeded": "AdaDPError",
    "LedgerError": "AdaDPError",
    "LedgerBusy": "LedgerError",
    "LedgerCorrupt": "LedgerError",
    "RunError": "AdaDPError",
    "RankError": "AdaDPError",
    "Interrupted": "AdaDPError",
}


def error_classes() -> dict[str, type[Exception]]:
    return {name: cls for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, Exception)}


def test_the_tree_is_the_one_promised():
    assert {name: cls.__bases__[0].__name__ for name, cls in error_classes().items()} == TREE


def test_the_docstring_draws_the_tree():
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"^((?:[│ ] {3})*(?:[├└]── )?)([A-Z]\w+)(?: |$)", line)
        if match and match[2] in TREE:
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            drawn[match[2]] = path[depth - 1] if depth else "Exception"
    assert drawn == TREE


def test_parts_are_kept_apart_and_joined():
    error = errors.AdaDPError("It broke.", why="It matters.", fix="Mend it.")
    assert (error.what, error.why, error.fix) == ("It broke.", "It matters.", "Mend it.")
    assert str(error) == "It broke. It matters. Mend it."


@pytest.mark.parametrize(
    ("parts", "text"),
    [({}, "It broke."), ({"why": "It matters."}, "It broke. It matters."), ({"fix": "Mend it."}, "It broke. Mend it.")],
)
def test_absent_parts_leave_no_gap(parts, text):
    assert str(errors.AdaDPError("It broke.", **parts)) == text


def test_wrong_input_is_also_a_value_error():
    with pytest.raises(ValueError, match="It broke"):
        raise errors.EventError("It broke.")


def test_an_unreachable_target_carries_what_can_be_reached():
    error = errors.UnreachableTarget(
        "Epsilon 1 cannot be met.", reachable=1.5, why="Too many steps.", fix="Stop early."
    )
    assert error.reachable == 1.5
    assert str(error) == "Epsilon 1 cannot be met. Too many steps. Stop early."


@pytest.mark.parametrize("cls", error_classes().values())
def test_every_error_is_documented(cls):
    assert cls.__doc__
