"""The processes of a run: what they exchange, and that none waits for one that has failed."""

import gc
import os
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from processes import Group

from adadp.errors import BudgetExceeded, InputError, RankError, UnreachableTarget
from adadp.ranks import ONE, Ranks, code_digest, joined, leave, tensors_digest, timeout, together

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 100])
def test_parts_are_all_records_once_and_even(size, count):
    parts = [Ranks(rank, size).part(count) for rank in range(size)]
    assert [record for part in parts for record in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_one_process_exchanges_nothing():
    assert joined() is ONE
    assert ONE.from_first("x", lambda: 5) == 5
    assert ONE.all_of("x", 3) == [3]
    assert ONE.any("x", True) is True
    assert ONE.any("x", False) is False
    ONE.meet("x")
    ONE.check_same({"a": "b"})
    values = torch.ones(3)
    assert ONE.summed("x", values) is values


def exchange(rank: int) -> list[object]:
    ranks = joined()
    found: list[object] = [ranks.rank, ranks.size, ranks.first, joined() is ranks]
    found.append(ranks.from_first("one", lambda: {"from": rank}))
    found.append(ranks.all_of("two", rank * 10))
    found.append((ranks.any("three", rank == 1), ranks.any("four", False)))
    found.append(ranks.summed("five", torch.tensor([1.0, rank])).tolist())
    ranks.meet("six")
    found.append(ranks.scattered_sum(torch.arange(4.0).double() * (rank + 1)).tolist())
    found.append(ranks.gathered(torch.tensor([rank + 0.5])).tolist())
    tensors = [torch.full((2, 2), rank + 1.0), torch.tensor(rank == 0), torch.ones(2, dtype=torch.bfloat16) * rank]
    tensors.append(torch.full((3, 2), float(rank)).T)  # not contiguous
    ranks.copy_first(tensors)
    return [*found, [each.tolist() for each in tensors]]


def group_after_leaving(rank: int) -> tuple[bool, bool]:
    ranks = joined()
    group = ranks._group
    gone = weakref.ref(group)
    leave()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    return gone() is None, joined() is not ranks


def test_nothing_keeps_the_threads_of_a_group_that_was_left(two):
    """Threads of gloo that outlive Python abort the process: "terminate called without an active exception"."""
    assert two.run(group_after_leaving) == [(True, True)] * 2


def test_what_processes_exchange(two):
    for rank, found in enumerate(two.run(exchange)):
        assert found[:4] == [rank, 2, rank == 0, True]
        assert found[4:7] == [{"from": 0}, [0, 10], (True, False)]
        assert found[7] == [2.0, 1.0]
        assert found[8] == [[0.0, 3.0], [6.0, 9.0]][rank]
        assert found[9] == [0.5, 1.5]
        assert found[10] == [[[1.0, 1.0], [1.0, 1.0]], True, [0.0, 0.0], [[0.0] * 3] * 2]


@together
def fails(rank: int, who: int, kind: str) -> None:
    errors = {
        "input": InputError("A thing is wrong.", why="It matters.", fix="Mend `batch_size`."),
        "budget": BudgetExceeded("Spent."),
        "unreachable": UnreachableTarget("No.", reachable=3.0),
        "other": ValueError("the record is 17"),
        "exit": SystemExit(3),
    }
    if rank == who:
        raise errors[kind]
    joined().from_first("something later", lambda: pytest.fail("the others went on"))


@pytest.mark.parametrize(
    ("kind", "raised", "told", "text"),
    [
        ("input", "InputError", "InputError", "A thing is wrong. It matters. Mend batch_size."),
        ("budget", "BudgetExceeded", "BudgetExceeded", "Spent."),
        ("unreachable", "UnreachableTarget", "RankError", "No."),
        ("other", "ValueError", "RankError", "has failed: ValueError"),
        ("exit", "SystemExit", "RankError", "has failed: SystemExit"),
    ],
)
@pytest.mark.parametrize("who", [0, 1])
def test_an_error_in_one_process_is_raised_in_all(two, who, kind, raised, told, text):
    found = two.failures(fails, who, kind)
    assert found[who][0] == raised
    assert found[1 - who][0] == told
    assert text in found[1 - who][1]
    assert "17" not in found[1 - who][1]
    assert (f"process {who}" in found[1 - who][1].lower()) == (who == 1 or kind in ("other", "exit"))
    two.run(exchange)  # and they can go on together


@together
def fails_in_the_first(rank: int, result: object) -> None:
    def make() -> object:
        if isinstance(result, str):
            raise BudgetExceeded(result)
        return lambda: None  # which cannot be sent

    joined().from_first("charging", make)


def test_an_error_in_what_the_first_does_for_all_is_raised_in_all(two):
    assert two.failures(fails_in_the_first, "Spent.") == [("BudgetExceeded", "Spent.")] * 2
    found = two.failures(fails_in_the_first, None)
    assert [each[0] for each in found] == [found[0][0], "RankError"]
    two.run(exchange)


@together
def all_fail(rank: int) -> None:
    raise InputError(f"Wrong in {rank}.")


def test_processes_that_fail_together_stay_together(two):
    assert two.failures(all_fail) == [("InputError", "Wrong in 0."), ("InputError", "Wrong in 1.")]
    two.run(exchange)


def elsewhere(rank: int) -> None:
    joined().meet("here" if rank else "there")


def test_processes_at_different_places_are_told(two):
    found = two.failures(elsewhere)
    assert [each[0] for each in found] == ["RankError", "RankError"]
    assert "different places" in found[0][1]
    assert "'there'" in found[0][1]
    two.run(exchange)


def differ(rank: int, facts: list[dict[str, str]]) -> None:
    joined().check_same(facts[rank])


@pytest.mark.parametrize(
    "facts",
    [
        [{"number of records": "17"}, {"number of records": "18"}],
        [{"number of records": "17"}, {}],
        [{"same": "1", "number of records": ""}, {"same": "1", "number of records": "3"}],
    ],
)
def test_differences_are_named_and_not_shown(two, facts):
    for kind, text in two.failures(differ, facts):
        assert kind == "InputError"
        assert "Process 1 of the run has not the same number of records as process 0." in text
        assert "17" not in text
    two.run(exchange)


def answers_late_or_never(rank: int, how: str) -> float:
    begun = time.monotonic()
    if rank == 1 and how == "dies":
        os._exit(3)
    if rank == 1:
        time.sleep(20)
    with pytest.raises(RankError, match="ADADP_RANK_TIMEOUT"):
        joined().meet("here")
    with pytest.raises(RankError):  # at once: what was lost stays lost
        joined().meet("there")
    return time.monotonic() - begun


@pytest.mark.parametrize(("how", "least", "most"), [("dies", 0, 5), ("sleeps", 3, 15)])
def test_a_process_that_is_gone_or_silent_is_given_up(how, least, most):
    group = Group(2, timeout=4)
    group.run(exchange)
    group.start(answers_late_or_never, how)
    found = group.answers(1)
    group.processes[1].kill()  # it may be asleep
    group.close()
    assert least <= found[0] <= most, found[0]


def test_the_time_to_wait_is_a_number(monkeypatch):
    assert timeout() == 1800
    monkeypatch.setenv("ADADP_RANK_TIMEOUT", "60")
    assert timeout() == 60
    for wrong in ("0", "-1", "1.5", "soon", ""):
        monkeypatch.setenv("ADADP_RANK_TIMEOUT", wrong)
        with pytest.raises(InputError, match="ADADP_RANK_TIMEOUT"):
            timeout()


def test_digests_tell_values_shapes_and_types_apart():
    values = [torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(6), torch.zeros(2, 3).double(), torch.ones(2, 3)]
    assert len({tensors_digest([each]) for each in values}) == len(values)
    assert tensors_digest([torch.ones(3, 2).T]) == tensors_digest([torch.ones(2, 3)])
    assert code_digest() == code_digest()
