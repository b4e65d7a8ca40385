"""More tests of tune search: tune faults."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import datetime
from pathlib import Path

import pytest
import torch
from tune_search_cases import BASE, FINAL, LAW, SETTINGS, failed, finished, material, search, seeded, watched  # noqa: F401

from adadp.app.accounting.repetitions import TruncatedNegativeBinomial
from adadp.app.runs import RunFolder
from adadp.app.runs.atomic import cannot_write
from adadp.app.runs.tensors import read_tensors
from adadp.app.selection import planned, publishing, resume, searching, tune
from adadp.app.selection.score import right_answers
from adadp.app.selection.search_state import SecretFolder
from adadp.app.selection.searching import begin
from adadp.errors import InputError, Interrupted, LedgerBusy, LedgerCorrupt, RunError
from adadp.ledger import read_ledger
from adadp.noise import GaussianMechanism

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_secure_search(search, material, tmp_path):
    result = begin(seeded(search, None), material, str(tmp_path / "run"))
    assert failed(result.out) == set()
    assert 0.97 * 3.0 < result.epsilon <= 3.0
    assert result.certificate["randomness"].startswith("secure")
    assert RunFolder.open(result.out).config.seed is None


def test_a_copy_of_a_search_does_not_go_on_beside_it(search, material, tmp_path, monkeypatch):
    """Both would publish, on one charge."""
    whole, refused = searching.publish, []

    def publishes(*given, **more):
        copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
        with pytest.raises(LedgerBusy, match="going on in another folder") as told:
            resume(copy)
        refused.append(told)
        return whole(*given, **more)

    monkeypatch.setattr(searching, "publish", publishes)
    begin(seeded(search, None), material, str(tmp_path / "run"))
    assert len(refused) == 1


# What is found out ------------------------------------------------------------------------------------------------


def edited(finished, tmp_path: Path, **changes) -> Path:
    place = Path(shutil.copytree(finished.out, tmp_path / "run"))
    content = json.loads((place / "search.json").read_text())
    (place / "search.json").write_text(json.dumps(content | changes))
    return place


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"chosen": 0, "score": 0.5}, {"statements", "search"}),
        ({"score": 0.99}, {"statements"}),
        ({"records": 400}, {"search"}),
        ({"epsilon": 2.5}, {"search"}),
        ({"repetitions": {"law": "poisson", "mean": 2.0}}, {"charges", "plan", "statements"}),
        ({"candidates": []}, {"search", "plan"}),
        ({"by": "luck"}, {"search", "plan"}),
    ],
)
def test_another_search_is_noticed(finished, tmp_path, change, found):
    if change.get("chosen") == finished.search.chosen:
        change = {**change, "chosen": 1 - finished.search.chosen}
    assert found <= failed(edited(finished, tmp_path, **change))


def test_no_file_tells_how_long_the_search_took(tmp_path, monkeypatch):
    """That tells how many runs there were. The system's own times (of a change of name, of birth) cannot be set."""
    out, kept, published = tmp_path / "run", {}, publishing.publish

    def publishes(place, *arguments, **more):
        kept["inode"] = place.stat().st_ino
        time.sleep(1.1)
        kept["moment"] = time.time()
        return published(place, *arguments, **more)

    monkeypatch.setattr(searching, "publish", publishes)
    tune(BASE, SETTINGS, out=out, law=LAW, validation=100)
    files = [out, *out.iterdir()]
    began = datetime.fromisoformat(read_ledger(out / "ledger.jsonl").created).timestamp()
    assert began > kept["moment"] - 1, "when the folder was made anew, and not when the search began"
    assert all(abs(path.stat().st_mtime - began) < 1e-3 for path in files)
    assert all(path.stat().st_ctime >= kept["moment"] for path in files)
    assert out.stat().st_ino != kept["inode"], "another folder"
    assert list(tmp_path.iterdir()) == [out]


def test_a_folder_that_could_not_be_made_anew_is_refused_before_anything_is_charged(search, material, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with pytest.raises(InputError, match="cannot be replaced"):
        begin(search, material, "somewhere")
    assert not Path("somewhere").exists()


def test_less_noise_is_noticed(finished, tmp_path):
    place = Path(shutil.copytree(finished.out, tmp_path / "run"))
    content = json.loads((place / "search.json").read_text())
    for candidate in content["candidates"]:
        candidate["noise_multiplier"] *= 2
    (place / "search.json").write_text(json.dumps(content))
    assert {"plan", "charges", "search"} <= failed(place)


def test_a_search_without_its_record_or_charge_is_noticed(finished, tmp_path):
    place = Path(shutil.copytree(finished.out, tmp_path / "run"))
    (place / "search.json").unlink()
    assert {"plan", "statements"} <= failed(place)
    other = Path(shutil.copytree(finished.out, tmp_path / "other"))
    lines = (other / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (other / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    assert "ledger" in failed(other)


# How it goes on ---------------------------------------------------------------------------------------------------


def dies(work, owner, name: str, call: int, *, last=None) -> None:
    """``work`` in a process that is gone, without a word, before the ``call``-th call of ``owner.name``.

    ``last``: what is done of that call all the same.
    """
    number = os.fork()
    if not number:
        original, left = getattr(owner, name), [call]

        def deadly(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                if last is not None:
                    last(*arguments, **options)
                os._exit(9)
            return original(*arguments, **options)

        torch.set_num_threads(1)
        setattr(owner, name, deadly)
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 9


KILLS = [
    (SecretFolder, "write", 1),  # charged, and nothing drawn that is kept
    (GaussianMechanism, "release", 2),  # in the first run
    (SecretFolder, "write", 2),  # it is scored, and the score not kept
    (searching, "score_of", 2),  # the second run is over, and has no score
    (RunFolder, "write_certificate", 2),  # the third is over, and the chosen one about to be certified
    (RunFolder, "save_model", 1),  # certified, and not there yet
    (Path, "rename", 1),  # all is there to be published, and so are the secrets
]


@pytest.mark.parametrize("seed", [16, None])
def test_a_killed_search_goes_on(search, material, finished, tmp_path, seed):
    out, mine = tmp_path / "run", seeded(search, seed)
    if seed is None:  # its number of runs is drawn anew each time: by this law at least one, which can be killed
        mine = seeded(planned(BASE, SETTINGS, law=TruncatedNegativeBinomial(1.0, 0.5), validation=100), None)
    kills = KILLS if seed is not None else KILLS[:2]
    for number, (owner, name, call) in enumerate(kills):
        if number:
            dies(lambda: resume(out), owner, name, call)
        else:
            dies(lambda: begin(mine, material, str(out)), owner, name, call)
        assert sum(read_ledger(out / "ledger.jsonl").charges.values()) == 1
    result = resume(out)
    assert failed(out) == set()
    assert {path.name for path in out.rglob("*")} == FINAL
    if seed is not None:
        for name in ("search.json", "config.toml", "metrics.jsonl"):
            assert (out / name).read_bytes() == (finished.out / name).read_bytes()
        ours, theirs = (read_tensors(place / "model.safetensors")[0] for place in (out, finished.out))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        assert result.search == finished.search


def dates(folder: Path) -> set[float]:
    return {path.stat().st_mtime for path in (folder, *folder.iterdir())}


def half_removed(parent: Path) -> None:
    """The beginning of removing the folder of the search."""
    (parent / ".run.searched" / "secret" / "state.json").unlink()


@pytest.mark.parametrize(
    ("owner", "name", "call", "last"),
    [
        (Path, "rename", 2, None),  # the folder of the search is away, and nothing in its place
        (publishing, "force_folder", 1, half_removed),  # the new one is in its place
    ],
    ids=["between the renames", "while the other is removed"],
)
def test_a_search_killed_while_its_folder_is_replaced_is_not_made_again(
    search, material, tmp_path, owner, name, call, last
):
    """Without its state it looks like one that has not begun: it would draw, train and publish once more."""
    out = tmp_path / "run"
    dies(lambda: begin(seeded(search, None), material, str(out)), owner, name, call, last=last)
    (model,) = (path.read_bytes() for path in tmp_path.glob("*/model.safetensors"))
    with pytest.raises(InputError, match="has finished"):
        resume(out)
    assert {path.name for path in out.rglob("*")} <= FINAL
    assert (out / "model.safetensors").read_bytes() == model
    assert len(dates(out)) == 1
    assert list(tmp_path.iterdir()) == [out]


def test_a_search_killed_before_its_times_are_hidden_hides_them_when_asked_again(finished, tmp_path):
    out = Path(shutil.copytree(finished.out, tmp_path / "run"))
    began = dates(out)
    os.utime(out / "model.safetensors", (1e9, 1e9))
    for _ in range(2):
        with pytest.raises(InputError, match="has finished"):
            resume(out)
        assert dates(out) == began


@pytest.fixture(scope="module")
def killed_in_a_run(search, material, tmp_path_factory) -> Path:
    """A search that was killed in its first run, after two of three steps."""
    out = tmp_path_factory.mktemp("killed") / "run"
    dies(lambda: begin(search, material, str(out)), GaussianMechanism, "release", 3)
    return out


def run_in(search_folder: Path) -> Path:
    (run,) = (search_folder / "secret" / "runs").iterdir()
    return run


BROKEN = {
    "no checkpoint": lambda run: (run / "checkpoint.safetensors").unlink(),
    "no configuration": lambda run: (run / "config.toml").unlink(),
    "no ledger": lambda run: (run / "ledger.jsonl").unlink(),
    "a damaged checkpoint": lambda run: (run / "checkpoint.safetensors").write_bytes(b"x" * 99),
    "a damaged ledger": lambda run: (run / "ledger.jsonl").write_bytes(b"x\n" * 99),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_run_that_cannot_go_on_begins_anew(how, killed_in_a_run, finished, tmp_path):
    out = Path(shutil.copytree(killed_in_a_run, tmp_path / "run"))
    BROKEN[how](run_in(out))
    assert resume(out).search == finished.search
    assert failed(out) == set()
    ours, theirs = (read_tensors(place / "model.safetensors")[0] for place in (out, finished.out))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def full_disk(*_, **__):
    error = OSError(28, "No space left on device")
    raise cannot_write(Path("checkpoint.safetensors"), error) from error


def no_device(*_, **__):
    raise InputError("The device cuda cannot be used.")


@pytest.mark.parametrize(
    ("owner", "name", "trouble", "error"),
    [(RunFolder, "save_checkpoint", full_disk, RunError), (searching.start, "run_on", no_device, InputError)],
    ids=["a full disk", "a device that is gone"],
)
def test_a_run_that_can_go_on_later_is_not_thrown_away(owner, name, trouble, error, killed_in_a_run, tmp_path):
    out = Path(shutil.copytree(killed_in_a_run, tmp_path / "run"))
    kept = ("checkpoint.safetensors", "ledger.jsonl")
    before = [(run_in(out) / name).read_bytes() for name in kept]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, trouble)
        with pytest.raises(error):
            resume(out)
    assert [(run_in(out) / name).read_bytes() for name in kept] == before
    assert resume(out)
    assert failed(out) == set()


def test_a_search_that_is_stopped_tells_nothing(search, material, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise Interrupted("Stopped after 2 of 3 steps.", fix="Go on with the run in secret/runs/7.")

    monkeypatch.setattr(searching.start, "run_on", stop)
    with pytest.raises(Interrupted, match="The search was stopped") as caught:
        begin(search, material, str(tmp_path / "run"))
    assert "of 3 steps" not in str(caught.value)
    assert "secret/runs" not in str(caught.value)
    assert (tmp_path / "run" / "secret").stat().st_mode & 0o077 == 0
    (tmp_path / "run" / "ledger.jsonl").unlink()
    with pytest.raises(LedgerCorrupt, match="is missing"):
        resume(tmp_path / "run")


def test_there_must_be_a_search_to_go_on_with(tmp_path):
    RunFolder.create(tmp_path / "run", BASE)
    with pytest.raises(InputError, match="no search in"):
        resume(tmp_path / "run")


def test_right_answers_are_counted():
    model = torch.nn.Linear(2, 2, bias=False)
    model.weight.data = torch.eye(2)
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    assert right_answers(model, values, torch.tensor([0, 1, 0]), "cpu") == 2
    assert right_answers(model, values[:0], torch.tensor([], dtype=torch.long), "cpu") == 0
