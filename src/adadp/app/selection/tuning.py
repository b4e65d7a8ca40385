"""``tune``: choose a setting and train it, under one guarantee for both. ``planned``: what it will do, without data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any

from adadp import checks
from adadp.accounting import accountant
from adadp.app.accounting.repetitions import PoissonRepetitions, Repetitions
from adadp.app.config import TrainConfig
from adadp.app.inputs import load_inputs
from adadp.app.owndata import is_own
from adadp.app.resolve import delta_of, fitted, public_records, resolve
from adadp.app.runs import RunFolder
from adadp.app.selection.candidates import check_base, for_parts, for_repeat, relation_of
from adadp.app.selection.disjoint import part_size
from adadp.app.selection.publishing import SearchResult, finish, put_in_place, was_replaced
from adadp.app.selection.score import left_over, refuse_uncounted, scoring_for
from adadp.app.selection.search_data import Material
from adadp.app.selection.searching import Searching, begin, check_workers
from adadp.app.selection.settings import checked
from adadp.app.train import refuse_finished
from adadp.app.train.search_spec import PARTS, REPEAT, Search
from adadp.errors import InputError
from adadp.ranks import joined
from adadp.registry import installed_only

DEFAULT_LAW = PoissonRepetitions(10.0)


def planned(
    base: TrainConfig,
    settings: Iterable[Mapping[str, Any]],
    *,
    by: str = REPEAT,
    law: Repetitions | None = None,
    validation: int | None = None,
    validation_public: bool = False,
    validation_data: str | None = None,
    score_noise_multiplier: float | None = None,
    select_epsilon: float | None = None,
    records: int | None = None,
) -> Search:
    """The search that these arguments ask for, with the noise of every candidate. Reads no data.

    ``base.epsilon`` and delta are what the whole search may cost; ``law`` is that of the number of runs (Poisson with a
    mean of 10). ``validation`` training records are kept aside for the scores, private unless ``validation_public``;
    ``validation_data`` is a file of public ones instead. ``records`` is the public number of training records, where
    neither ``base`` nor the catalogue has it. ``by`` = ``parts`` takes only ``select_epsilon``, the epsilon of the
    choice, which by default is all that a record of the last part may cost.

    ==========================================  ======================================================================
    no epsilon; its own noise, no privacy       InputError
    no setting, the same one twice              InputError
    what differs where it must not              InputError
    no records to score on; too many of them    InputError
    options of the other way (``by``)           InputError: an option is never swallowed
    ``score_noise_multiplier``, ``select_epsilon`` for     InputError
    more than the target
    ==========================================  ======================================================================
    """
    check_base(base)
    _refuse_same_file(validation_data, base.test_data)
    chosen = checked(settings)
    public = records or public_records(base)
    if public is None:
        raise InputError(
            f"The number of records in {base.data} is not given.",
            why="Planning reads no data, and the noise follows from the share of the records that is in a batch.",
            fix="Pass `records`, a public number.",
        )
    asked: dict[str, Any] = {
        "validation": validation,
        "validation_data": validation_data,
        "score_noise_multiplier": score_noise_multiplier,
    }
    if by == PARTS:
        _refuse_given("by parts", law=law, **asked)
        search = _by_parts(base, chosen, public, select_epsilon)
    elif by == REPEAT:
        _refuse_given("by repeat", select_epsilon=select_epsilon)
        asked["validation_public"] = validation_public
        search = _by_repeat(base, chosen, public, law or DEFAULT_LAW, **asked)
    else:
        raise InputError(f"Unknown way to search {by!r}.", fix="Use repeat or parts.")
    _refuse_rows_aside(search)
    cost = cost_of(search)
    if cost > search.epsilon:
        raise InputError(
            f"The search costs epsilon {cost:.4g} at delta {search.delta:g}, and {search.epsilon:g} was asked for.",
            fix="Leave `select_epsilon` out, or pass a smaller one.",
        )
    return search


def _refuse_rows_aside(search: Search) -> None:
    """Refuse to divide rows among runs and scores where all rows of a unit are protected together."""
    divided = search.by == PARTS or (search.scoring is not None and search.scoring.size is not None)
    if divided and search.candidates[0].unit is not None:
        raise InputError(
            "A search keeps rows aside, and `unit` protects all rows of a unit together.",
            why="Some rows of a unit would be trained on and others scored, and a unit with many rows would move a "
            "score by more than its noise hides.",
            fix="Pass public records to compare the runs on, as `validation_data`.",
        )


def cost_of(search: Search) -> float:
    """The epsilon of the whole search."""
    return accountant(search.candidates[0].accountant).epsilon(search.event(), search.delta).epsilon


def tune(
    base: TrainConfig,
    settings: Iterable[Mapping[str, Any]],
    *,
    out: str | os.PathLike[str],
    checks_passed: Callable[[], None] | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> SearchResult:
    """Choose one of ``settings`` and train it, in the folder ``out``; ``options`` are those of ``planned``.

    An ``executor`` makes the runs, if its workers see ``out`` and the data under the same paths; what is published and
    charged is the same. Its machines read the records, and whoever watches them sees how many runs there are.
    ``checks_passed`` is called once, when nothing about the arguments can be refused any more and nothing is charged.
    Everything but the chosen run is secret, and gone when this returns; until then the folder must not be shown. It is
    then the folder of a finished run, for ``load_model`` and ``verify_run``.
    """
    _refuse_several()
    settings = checked(settings)
    check_base(base)
    records = options.pop("records", None) or public_records(base)
    if records is None:
        records = load_inputs(base, own=is_own(base.data)).size
    search = planned(base, settings, records=records, **options)
    return _ended(begin(search, Material(search), os.fspath(out), checks_passed, executor))


def _refuse_several() -> None:
    if joined().several:
        raise InputError(
            "A search was started in several processes.",
            why="Each of them would search by itself.",
            fix="Call it before torch.distributed is initialised, or in a program of one process.",
        )


def resume(
    out: str | os.PathLike[str],
    *,
    trust_code: bool = False,
    checks_passed: Callable[[], None] | None = None,
    executor: Executor | None = None,
) -> SearchResult:
    """Resume the search in the folder ``out``; ``checks_passed`` and ``executor`` as for ``tune``.

    Code that the folder names, ``module:Name``, is imported only with ``trust_code``.
    """
    with installed_only(trust_code=trust_code):
        return _resumed(out, checks_passed, executor)


def _resumed(
    out: str | os.PathLike[str], checks_passed: Callable[[], None] | None, executor: Executor | None
) -> SearchResult:
    _refuse_several()
    place = Path(out).absolute()
    if was_replaced(place):
        put_in_place(place)
    folder = RunFolder.open(place)
    found = folder.search()
    if found is None:
        raise InputError(f"There is no search in {folder.path}.", fix="Check the path, or use adadp train --resume.")
    if folder.finished:
        with suppress(PermissionError):  # a copy that somebody else owns
            finish(folder.path)
    refuse_finished(folder)
    search = Search.from_json({**found, "chosen": None, "score": None})
    searching = Searching(folder, search, Material(search), executor)
    if executor is not None:
        check_workers(executor, search, place)
    if checks_passed is not None:
        checks_passed()
    return _ended(searching.run())


def _ended(result: SearchResult) -> SearchResult:
    finish(result.out)
    return result


def _by_repeat(
    base: TrainConfig, settings: tuple[dict[str, Any], ...], total: int, law: Repetitions, **asked: Any
) -> Search:
    """The search on ``total`` records, a public number, that compares its runs as ``asked`` (``scoring_for``)."""
    delta = delta_of(base)
    assert base.epsilon is not None
    assert delta is not None
    scoring = scoring_for(base, law=law, delta=delta, **asked)
    records = left_over(total, scoring)
    counted = _with_fitting_batch(base, settings, records) if records == total else base.replace(records=records)
    candidates = for_repeat(counted, settings, records, law)
    exact = base.records is None
    return Search(REPEAT, settings, candidates, records, base.epsilon, delta, exact, law, scoring)


def _with_fitting_batch(base: TrainConfig, settings: tuple[dict[str, Any], ...], records: int) -> TrainConfig:
    """``base`` with the default batch for so many records of the user's own, whose number is disclosed."""
    batches = {"batch_size", "batch_size_schedule"}
    given = (
        base.batch_size is not None
        or base.batch_size_schedule is not None
        or any(batches & each.keys() for each in settings)
    )
    if given or public_records(base) is not None:
        return base
    asked = base.replace(**settings[0])
    return base.replace(batch_size=fitted(resolve(asked), asked, records).config.batch_size)


def _refuse_same_file(scored: str | None, test: str | None) -> None:
    if (
        scored is not None
        and test is not None
        and len({os.path.realpath(each.partition(":")[2]) for each in (scored, test)}) == 1
    ):
        raise InputError(
            "The same file was given as `validation_data` and as `test_data`.",
            why="A setting chosen by these records looks better on them than it is.",
            fix="Give other public records to test on, or leave `test_data` out.",
        )


def _by_parts(
    base: TrainConfig, settings: tuple[dict[str, Any], ...], public: int, select_epsilon: float | None
) -> Search:
    refuse_uncounted(base, relation_of(base))
    records = part_size(public, len(settings))
    candidates = for_parts(base.replace(records=records), settings, records)
    assert base.epsilon is not None
    delta = candidates[0].delta
    assert delta is not None
    choice = base.epsilon if select_epsilon is None else checks.positive("select_epsilon", select_epsilon)
    exact = base.records is None
    return Search(PARTS, settings, candidates, records, base.epsilon, delta, exact, select_epsilon=choice)


def _refuse_given(way: str, **options: object) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InputError(
            f"`{given[0]}` was given for a search {way}.", why="It would be ignored.", fix=f"Leave `{given[0]}` out."
        )
