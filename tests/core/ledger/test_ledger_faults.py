"""More tests of ledger: ledger faults."""

from __future__ import annotations

import json
import os
import resource
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from ledger_cases import (
    PCA,
    PICK,
    STEP,
    Recorder,
    path,  # noqa: F401
)

from adadp.errors import LedgerCorrupt, LedgerError
from adadp.events import (
    GaussianRelease,
)
from adadp.ledger import Ledger, read_ledger
from adadp.ledger.chain import Chain, canonical

pytestmark = pytest.mark.slow


def test_a_lock_that_cannot_be_made_is_an_error(path):
    path.with_name(path.name + ".lock").mkdir()
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger.create(path)
    assert not path.exists()


@contextmanager
def room_for(size):
    """A disk on which no file can grow past ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_stops_the_run_wherever_it_strikes_and_nothing_is_lost(path):
    with Ledger.create(path) as ledger:
        ledger.charge(STEP)
        start = path.stat().st_size
        for event in (STEP, PCA):
            ledger.charge(event)
        end = path.stat().st_size
    for room in range(start, end, 5):
        path.unlink()
        released, reason = 0, ""
        with Ledger.create(path) as ledger, room_for(room):
            try:
                for event in (STEP, STEP, PCA):
                    ledger.charge(event)
                    released += 1
            except LedgerError as error:
                reason = error.what
            assert "cannot be written" in reason
            with pytest.raises(LedgerError, match="did not finish"):
                ledger.charge(STEP)
        assert path.stat().st_size == room
        assert released >= 1
        assert sum(read_ledger(path).charges.values()) >= released
        if read_ledger(path).torn:  # there is no room for the closing record either
            with room_for(room), pytest.raises(LedgerError, match="cannot be written"):
                Ledger.open(path)
        with Ledger.open(path) as ledger:
            ledger.charge(STEP)
            assert sum(ledger.charges.values()) >= released + 1
        assert read_ledger(path, expected_head=ledger.head).charges == ledger.charges


def test_a_disk_too_full_for_the_header(path):
    with room_for(10), pytest.raises(LedgerError, match="cannot be written"):
        Ledger.create(path)
    with pytest.raises(LedgerCorrupt, match="stops inside its header"):
        Ledger.open(path)


def test_short_writes_are_continued(path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    with Ledger.create(path) as ledger:
        ledger.charge(STEP)
        ledger.charge(STEP)
    assert read_ledger(path).charges == {STEP: 2}
    assert read_ledger(path).torn == 0


@pytest.mark.parametrize("method", ["admit", "commit"])
def test_an_interrupt_in_the_middle_of_a_charge(path, method):
    class Interrupted(Recorder):
        pass

    def interrupt(self, event, count):
        raise KeyboardInterrupt

    setattr(Interrupted, method, interrupt)
    with Ledger.create(path, budget=Interrupted()) as ledger:
        with pytest.raises(KeyboardInterrupt):
            ledger.charge(STEP)
        if method == "commit":  # the charge stands in the file but the rule does not know: only reopening is safe
            with pytest.raises(LedgerError, match="did not finish"):
                ledger.charge(STEP)
        assert read_ledger(path).charges == ({} if method == "admit" else {STEP: 1})


# Torn lines -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_fsync(monkeypatch):
    """For tests that write thousands of files to be read by this very process."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def story(tmp_path, no_fsync):
    """The bytes of a ledger in which one event is charged with several counts."""
    path = tmp_path / "story"
    with Ledger.create(path, run="r") as ledger:
        for event, count in [(STEP, 1), (STEP, 1), (STEP, 5), (PCA, 1), (STEP, 1), (PICK, 2), (STEP, 5)]:
            ledger.charge(event, count)
    return path.read_bytes()


def begun(data: bytes) -> dict:
    """Totals of the charge lines of which at least one byte stands in the first bytes of a good ledger."""
    events = {0: (STEP, 1), 1: (STEP, 5), 2: (PCA, 1), 3: (PICK, 2)}
    totals = {}
    for line in data.splitlines():
        if json.loads(line)["kind"] == "charge":
            event, count = events[json.loads(line)["id"]]
            totals[event] = totals.get(event, 0) + count
    return totals


def resume_and_verify(path: Path, least: dict) -> None:
    """Read, reopen, charge: the count never falls below ``least`` and every later reader agrees."""
    data = path.read_bytes()
    record = read_ledger(path)
    assert all(record.charges.get(event, 0) >= count for event, count in least.items())
    assert path.read_bytes() == data
    with Ledger.open(path) as ledger:
        assert ledger.charges == record.charges
        ledger.charge(STEP)
    assert path.read_bytes().startswith(data)
    after = read_ledger(path, expected_head=ledger.head)
    assert after.charges == {**record.charges, STEP: record.charges.get(STEP, 0) + 1}
    assert after.torn == record.torn


@pytest.mark.parametrize("holes", [0, 1, 40], ids=["cut", "one zero byte", "a block of zero bytes"])
def test_a_ledger_torn_at_any_byte_counts_whatever_was_begun(path, story, holes):
    """The last six lines are torn at every byte, or hold zero bytes from there on."""
    for cut in range(story.index(b'{"kind":"define","id":2'), len(story) + 1, 3 if holes else 1):
        path.write_bytes(story[:cut] + bytes(holes))
        torn = (story[:cut] + bytes(holes)).split(b"\n")[-1]
        whole_lines = story[: cut + holes - len(torn)]
        least = begun(whole_lines + (story[len(whole_lines) :].split(b"\n")[0] if torn else b""))
        before = read_ledger(path)
        missing_newline = torn and story.startswith(whole_lines + torn + b"\n")
        assert before.torn == (1 if torn and not missing_newline else 0)
        if not torn or missing_newline or b'"seq"' in torn or b'"define"' in torn:
            assert before.charges == least  # the id can be read: exactly that charge, not one of everything
        resume_and_verify(path, least)


def test_holes_inside_the_last_line_are_torn_too(path, story):
    last = story.rfind(b"\n", 0, -1) + 1
    for start in range(last, len(story) - 1):
        for stop in {start + 1, len(story) - 1}:
            path.write_bytes(story[:start] + bytes(stop - start) + story[stop:])
            resume_and_verify(path, begun(story))
            assert read_ledger(path).torn == 1


def test_an_unreadable_charge_counts_as_the_largest_of_every_event(path, story):
    full = begun(story)
    path.write_bytes(story + b"{")
    assert read_ledger(path).charges == {STEP: full[STEP] + 5, PCA: full[PCA] + 1, PICK: full[PICK] + 2}


def test_a_torn_definition_counts_for_nothing(path):
    with Ledger.create(path) as ledger:
        ledger.charge(STEP)
        before = path.stat().st_size
        ledger.charge(PCA)
    path.write_bytes(path.read_bytes()[: before + 30])
    assert read_ledger(path).charges == {STEP: 1}
    assert read_ledger(path).torn == 1


@pytest.mark.parametrize("holes", [0, 30])
@pytest.mark.parametrize("lost", [2, 30, 100, 300])
def test_a_second_crash_while_the_first_is_being_closed(path, story, lost, holes):
    """The record that closes a torn line is torn itself, at any byte, and so is the record that closes that one."""
    path.write_bytes(story[:-lost])
    first = read_ledger(path).charges
    Ledger.open(path).close()
    closed = path.read_bytes()
    for cut in range(len(story) - lost, len(closed), 3):
        path.write_bytes(closed[:cut] + bytes(holes))
        assert read_ledger(path).charges == first
        Ledger.open(path).close()
        twice = path.read_bytes()
        path.write_bytes(twice[: max(cut + holes, len(twice) - cut % 200)])
        assert read_ledger(path).charges == first
        assert read_ledger(path).torn == 1
        resume_and_verify(path, first)


def test_an_event_that_was_defined_but_not_charged_is_not_listed(path):
    with Ledger.create(path) as ledger:
        ledger.charge(STEP)
    path.write_bytes(path.read_bytes()[: path.read_bytes().index(b'{"kind":"charge"')])
    assert read_ledger(path).charges == {}
    resume_and_verify(path, {})


@pytest.mark.parametrize("kept", [20, 100, -1])
def test_a_definition_torn_and_then_ended_by_a_second_crash(path, kept, no_fsync):
    """Of the closing record nothing but its newline arrived."""
    with Ledger.create(path) as ledger:
        ledger.charge(STEP)
        before = path.stat().st_size
        ledger.charge(PICK)
    data = path.read_bytes()
    definition = data[before : data.index(b"\n", before) + 1]
    path.write_bytes(data[:before] + definition[:kept] + b"\n")
    assert read_ledger(path).torn == (0 if kept == -1 else 1)
    assert read_ledger(path).charges == {STEP: 1}
    resume_and_verify(path, {STEP: 1})


def test_many_crashes_add_up(path, no_fsync):
    Ledger.create(path).close()
    for crashes in range(1, 6):
        with Ledger.open(path) as ledger:
            ledger.charge(STEP)
        path.write_bytes(path.read_bytes()[:-9])
        assert read_ledger(path).charges == {STEP: crashes}
        assert read_ledger(path).torn == crashes


@pytest.mark.parametrize("cut", [0, 1, 10, 26, 60, -2])
@pytest.mark.parametrize("use", [read_ledger, Ledger.open])
@pytest.mark.parametrize("holes", [0, 5])
def test_a_torn_header_says_that_nothing_was_charged(path, use, cut, holes):
    Ledger.create(path).close()
    path.write_bytes(path.read_bytes()[:cut] + bytes(holes) + b"\n" * bool(holes))
    with pytest.raises(LedgerCorrupt, match=r"header.*Nothing was charged.*delete it and create it again"):
        use(path)


def test_a_header_that_lacks_only_its_newline_is_one(path):
    Ledger.create(path).close()
    path.write_bytes(path.read_bytes()[:-1])
    resume_and_verify(path, {})


@pytest.mark.parametrize("use", [read_ledger, Ledger.open])
@pytest.mark.parametrize("content", ["secret", "several\nlines\n", '{"kind":"charge","id":0}\n'])
def test_another_file_is_not_taken_for_a_torn_ledger(path, use, content):
    path.write_text(content)
    with pytest.raises(LedgerCorrupt, match=r"Line 1 of .* is not the header") as caught:
        use(path)
    assert "delete" not in str(caught.value)
    assert path.read_text() == content


# Tampering --------------------------------------------------------------------------------------------------------


@pytest.fixture
def scarred(tmp_path, story):
    """The lines of a ledger with a closed torn line in its middle."""
    path = tmp_path / "scarred"
    path.write_bytes(story[:-30])
    with Ledger.open(path) as ledger:
        for event in (STEP, PCA, STEP):
            ledger.charge(event)
    return path.read_bytes().splitlines(keepends=True)


def test_the_scarred_ledger_is_good(path, scarred):
    path.write_bytes(b"".join(scarred))
    assert read_ledger(path).torn == 1


@pytest.mark.parametrize("change", [lambda byte: byte ^ 1, lambda byte: 0], ids=["flipped", "zeroed"])
def test_any_changed_byte_is_noticed_and_its_line_named(path, scarred, change):
    # Zero bytes in the last line are what a crash leaves: there they are torn, and counted.
    for number, line in enumerate(scarred if change(0) else scarred[:-1], start=1):
        for place in range(len(line)):
            changed = [*scarred]
            changed[number - 1] = line[:place] + bytes([change(line[place])]) + line[place + 1 :]
            path.write_bytes(b"".join(changed))
            with pytest.raises(LedgerCorrupt) as caught:
                read_ledger(path)
            closes_a_torn_line = line.startswith(b'{"kind":"torn"')
            assert f"Line {number - 1 if closes_a_torn_line else number} of " in caught.value.what


def test_a_changed_record_does_not_hide_the_charges_after_it(path, scarred):
    data = b"".join(scarred)
    path.write_bytes(data.replace(b'"counted":[1]', b'"counted":[0]')[:-30])
    assert path.read_bytes() != data[:-30]
    with pytest.raises(LedgerCorrupt, match="no record closes it"):
        read_ledger(path)


def test_a_definition_that_swallowed_a_charge_is_not_taken_for_a_torn_one(path):
    path.write_bytes(forged(HEADER, DEFINE, CHARGE).replace(b'}\n{"kind":"charge"', b'}\0{"kind":"charge"'))
    with pytest.raises(LedgerCorrupt, match="Line 2 of"):
        read_ledger(path)


def test_a_dropped_doubled_or_moved_line_is_noticed(path, scarred):
    for place in range(len(scarred)):
        before, line, after = scarred[:place], scarred[place], scarred[place + 1 :]
        changes = [[*before, line, line, *after]]
        if after:  # the last line cut off leaves a chain that holds: see the next test
            changes += [[*before, *after], [*before, after[0], line, *after[1:]], [*before, b"\n", line, *after]]
        for changed in changes:
            path.write_bytes(b"".join(changed))
            with pytest.raises(LedgerCorrupt, match=r"Line \d+ of"):
                read_ledger(path)
            with pytest.raises(LedgerCorrupt):
                Ledger.open(path)
            assert path.read_bytes() == b"".join(changed)


def test_a_line_before_a_last_definition_is_missed_too(path, no_fsync):
    """A definition charges nothing, so it must not pass for a torn one when what is gone is the charge before it."""
    with Ledger.create(path) as ledger:
        ledger.charge(STEP)
        ledger.charge(STEP)
        ledger.charge(PCA)
    header, step, first, _, pca, _ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + step + first + pca)
    with pytest.raises(LedgerCorrupt, match=r"Line 4 of .*no crash can have left it"):
        read_ledger(path)


def test_a_blank_line_at_the_end_is_no_torn_line(path, story):
    path.write_bytes(story + b"\n")
    with pytest.raises(LedgerCorrupt, match=f"Line {story.count(bytes([10])) + 1} of"):
        read_ledger(path)


def test_only_a_pinned_head_notices_lines_cut_off_the_end(path, story):
    path.write_bytes(story)
    head = read_ledger(path).head
    assert read_ledger(path, expected_head=f" {head.upper()}\n").head == head
    path.write_bytes(b"".join(story.splitlines(keepends=True)[:-1]))
    assert read_ledger(path).length == story.count(b"\n") - 1
    with pytest.raises(LedgerCorrupt, match=f"does not hold the expected head {head}"):
        read_ledger(path, expected_head=head)


def test_a_ledger_that_grew_since_its_head_was_pinned_is_told_apart(path):
    with Ledger.create(path) as ledger:
        head = ledger.head
        ledger.charge(STEP)
    with pytest.raises(LedgerError, match="goes on after the expected head") as caught:
        read_ledger(path, expected_head=head)
    assert not isinstance(caught.value, LedgerCorrupt)


def test_a_cut_that_no_crash_can_have_made_is_not_taken_for_one(path, story):
    lines = story.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-1][:-30])  # a line removed, the next one cut
    with pytest.raises(LedgerCorrupt, match=f"Line {len(lines) - 1} of .*no crash can have left it"):
        read_ledger(path)


HEADER = {"kind": "header", "format": 1, "run": "r", "created": "2026-01-01T00:00:00+00:00", "budget": None}


DEFINE = {"kind": "define", "id": 0, "count": 1, "event": {"version": 1, "kind": "gaussian"}}
DEFINE["event"] |= {"neighbours": "add-remove", "noise_multiplier": 1.0}


CHARGE = {"kind": "charge", "id": 0, "seq": 1}


REPLACED = {**DEFINE["event"], "neighbours": "replace-one"}


def forged(*bodies: object) -> bytes:
    """A file with valid checksums that says whatever ``bodies`` say."""
    head, data = "", b""
    for body in bodies:
        text = body if isinstance(body, bytes) else canonical(body)
        head = sha256(head.encode() + text).hexdigest()
        data += text[:-1] + f',"chain":"{head}"}}\n'.encode()
    return data


def test_the_forger_can_forge_a_good_ledger(path):
    path.write_bytes(forged(HEADER, DEFINE, CHARGE))
    assert read_ledger(path).charges == {GaussianRelease(1.0): 1}


@pytest.mark.parametrize(
    "bodies",
    [
        [DEFINE],
        [[1]],
        [{"kind": "header", "format": 1}],
        [HEADER, HEADER],
        [HEADER, {"kind": "refund", "id": 0}],
        [HEADER, b"{nonsense}"],
        [HEADER, CHARGE],
        [HEADER, DEFINE | {"id": 1}],
        [HEADER, DEFINE | {"count": -1}],
        [HEADER, DEFINE | {"event": {"kind": "gaussian"}}],
        [HEADER, DEFINE, DEFINE | {"id": 1, "event": REPLACED}],
        [HEADER, DEFINE, CHARGE | {"seq": 2}],
        [HEADER, DEFINE, CHARGE, CHARGE],
        [HEADER, DEFINE, CHARGE | {"id": -1}],
        [HEADER, DEFINE, CHARGE | {"id": "0"}],
        [HEADER, DEFINE, CHARGE | {"id": 0.0}],
        [HEADER, DEFINE, {"kind": "torn", "counted": [], "digest": ""}],
    ],
)
def test_lines_no_writer_writes_are_refused_whatever_their_checksum(path, bodies):
    path.write_bytes(forged(*bodies))
    with pytest.raises(LedgerCorrupt, match=f"Line {len(bodies)} of"):
        read_ledger(path)


def test_a_ledger_of_a_later_format_is_not_called_broken(path):
    path.write_bytes(forged(HEADER | {"format": 2}))
    with pytest.raises(LedgerError, match="format 2") as caught:
        read_ledger(path)
    assert not isinstance(caught.value, LedgerCorrupt)


def test_a_chain_does_not_take_a_line_of_another_place(path, story):
    chain = Chain()
    lines = story.splitlines()
    assert chain.accept(lines[0])
    assert not chain.accept(lines[2])
    assert chain.accept(lines[1])
    assert chain.length == 2
