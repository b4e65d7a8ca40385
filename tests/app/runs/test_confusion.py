"""What a model takes the test records for: the same look as the final accuracy, kept with the run."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adadp.app import start, zoo
from adadp.app.config import TrainConfig
from adadp.app.losses import binary_cross_entropy, cross_entropy
from adadp.app.runs import ClassCounts, RunFolder
from adadp.app.train import evaluation, fit, verify_run
from adadp.app.train.evaluation import MOST_CLASSES, accuracy_on, share_right
from adadp.errors import InputError, RunError

CANCER = zoo.load("cancer")
FEATURES, LABELS = CANCER.train
TEST = CANCER.test
CPU = torch.device("cpu")
SETTINGS = {"noise_multiplier": 0, "allow_nonprivate": True, "steps": 6, "batch_size": 56, "lr": 0.5, "seed": 0}


class Killed(BaseException):
    """The end of a process: nothing is saved after it."""


def network(classes: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(9, classes)


def run(model=None, data=(FEATURES, LABELS), **settings):
    return fit(network() if model is None else model, data, **{"test": TEST, **SETTINGS, **settings})


def counted(found: list[int], true: list[int], classes: int) -> tuple[tuple[int, ...], ...]:
    """One record after the other."""
    pairs = list(zip(true, found, strict=True))
    return tuple(tuple(pairs.count((row, column)) for column in range(classes)) for row in range(classes))


# The counts -------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40), st.integers(1, 50))
def test_the_counts_are_those_of_one_record_after_the_other(pairs, at_once):
    """The model is the identity: a record is the scores it gets."""
    found, true = (list(each) for each in zip(*pairs, strict=True))
    records = accuracy_on((torch.eye(5)[found], torch.tensor(true)), cross_entropy, 5, CPU, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_AT_ONCE", at_once)
        confusion = records.confusion(nn.Identity())
        assert confusion == counted(found, true, 5)
        assert share_right(confusion) == records(nn.Identity())


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (torch.tensor([0, 1, 1]), ((1, 0), (1, 1))),
        (torch.tensor([0.0, 1.0, 1.0]), ((1, 0), (1, 1))),
        (torch.tensor([[0.0], [1.0], [1.0]]), ((1, 0), (1, 1))),
        (torch.tensor([False, True, True]), ((1, 0), (1, 1))),
        (torch.tensor([0.0, 0.5, 1.0]), None),
    ],
    ids=["numbers", "floats", "a column", "truths", "probabilities"],
)
def test_one_score_per_record_tells_two_classes(labels, expected):
    scores = torch.tensor([[-1.0], [-2.0], [3.0]])
    records = accuracy_on((scores, labels), binary_cross_entropy, 2, CPU, None)
    assert records.confusion(nn.Identity()) == expected
    assert records(nn.Identity()) == 2 / 3


def test_each_of_several_labels_of_a_record_counts():
    scores = torch.eye(3)[torch.tensor([[0, 1], [2, 2]])].permute(0, 2, 1)
    records = accuracy_on((scores, torch.tensor([[0, 2], [2, 1]])), cross_entropy, 3, CPU, None)
    assert records.confusion(nn.Identity()) == ((1, 0, 0), (0, 0, 1), (0, 1, 1))
    assert records(nn.Identity()) == 0.5


def test_a_label_beyond_the_one_class_of_a_model_has_no_place():
    records = accuracy_on((torch.zeros(2, 1), torch.tensor([0.0, 1.0])), cross_entropy, 1, CPU, None)
    assert records.confusion(nn.Identity()) is None


@pytest.mark.parametrize(("classes", "made"), [(MOST_CLASSES, True), (MOST_CLASSES + 1, False)])
def test_very_many_classes_have_none(tmp_path, classes, made):
    result = run(network(classes), out=tmp_path / "run")
    assert (result.confusion is not None) == made
    assert (RunFolder.open(tmp_path / "run").confusion() is not None) == made
    assert result.test_accuracy == RunFolder.open(tmp_path / "run").metrics()[-1]["test_accuracy"]


# Rare classes -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_what_a_matrix_says_of_the_classes_is_what_the_records_say(pairs):
    found, true = (list(each) for each in zip(*pairs, strict=True))
    counts = ClassCounts.of(counted(found, true, 5))
    occurring = sorted(set(true))
    recalls = {each: sum(pair == (each, each) for pair in pairs) / true.count(each) for each in occurring}
    assert counts.balanced_accuracy == pytest.approx(sum(recalls.values()) / len(recalls))
    assert counts.never_right == tuple(each for each in occurring if recalls[each] == 0)
    assert counts.occurring == len(occurring)
    constants = [share_right(counted([each] * len(true), true, 5)) for each in range(5)]
    assert counts.largest_share == max(constants)
    assert counts.largest == constants.index(max(constants))
    assert counts.beats_largest == (share_right(counted(found, true, 5)) > max(constants))


@pytest.mark.slow
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 4))
def test_a_constant_answer_never_looks_better_than_guessing(true, answer):
    """Whatever it answers, its balanced accuracy is at most one over the number of classes that occur."""
    counts = ClassCounts.of(counted([answer] * len(true), true, 5))
    assert counts.balanced_accuracy == pytest.approx((answer in true) / len(set(true)))
    assert not counts.beats_largest


@pytest.mark.parametrize(
    ("matrix", "balanced", "largest", "share", "beats", "never"),
    [
        (((90, 0), (10, 0)), 0.5, 0, 0.9, False, (1,)),
        (((85, 5), (2, 8)), (85 / 90 + 0.8) / 2, 0, 0.9, True, ()),
        (((1, 4), (0, 5)), 0.6, 0, 0.5, True, ()),
        (((3, 0, 0), (0, 0, 0), (1, 0, 2)), (1 + 2 / 3) / 2, 0, 0.5, True, ()),
        (((0, 0), (0, 7)), 1.0, 1, 1.0, False, ()),
    ],
    ids=["a constant", "a model", "two as frequent as each other", "a class without records", "one class only"],
)
def test_the_rare_classes_of_a_matrix(matrix, balanced, largest, share, beats, never):
    counts = ClassCounts.of(matrix)
    assert counts.balanced_accuracy == pytest.approx(balanced)
    assert (counts.largest, counts.largest_share) == (largest, share)
    assert (counts.beats_largest, counts.never_right) == (beats, never)


@pytest.mark.parametrize("matrix", [((0, 0), (0, 0)), (), ((-1, 2), (0, 1)), ((3, -1), (0, 1))])
def test_a_matrix_of_no_records_says_nothing(matrix):
    with pytest.raises(InputError, match="no counts of records"):
        ClassCounts.of(matrix)


@pytest.mark.parametrize("matrix", [((3,), (0, 2)), ((3, 1, 0), (0, 2, 0)), ((3, 1), (0, 2), (0, 0))])
def test_a_matrix_that_is_not_square_is_refused(matrix):
    with pytest.raises(InputError, match="as many columns as rows"):
        ClassCounts.of(matrix)


# In a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ema", [None, 0.9])
def test_it_is_kept_with_the_run_and_agrees_with_the_final_accuracy(tmp_path, ema):
    result = run(out=tmp_path / "run", ema=ema)
    folder = RunFolder.open(tmp_path / "run")
    kept = folder.confusion()
    assert kept["labels"] == ["0", "1"]
    assert tuple(map(tuple, kept["counts"])) == result.confusion
    assert share_right(result.confusion) == result.test_accuracy == folder.metrics()[-1]["test_accuracy"]
    shares = [row[place] / sum(row) for place, row in enumerate(result.confusion)]
    assert result.balanced_accuracy == folder.class_counts().balanced_accuracy == pytest.approx(sum(shares) / 2)
    with torch.no_grad():
        found = result.model(TEST[0]).argmax(1)
    assert result.confusion == counted(found.tolist(), TEST[1].tolist(), 2)
    text = folder.confusion_path.read_text()
    assert text == json.dumps(kept, separators=(",", ":")) + "\n"


def test_the_test_records_are_looked_at_once_in_the_end():
    sizes = []
    model = network()
    model.register_forward_hook(lambda module, inputs, _: None if module.training else sizes.append(len(inputs[0])))
    run(model)
    assert sizes.count(len(TEST[1])) == 1
    assert sorted(sizes)[:-1] == [1] * (len(sizes) - 1)


@pytest.mark.parametrize("test", [{"test": None}, {"test": None, "evaluate": lambda model: 0.5}])
def test_without_test_records_there_is_none(tmp_path, test):
    result, folder = run(out=tmp_path / "run", **test), RunFolder.open(tmp_path / "run")
    assert (result.confusion, result.balanced_accuracy) == (None, None)
    assert (folder.confusion(), folder.class_counts()) == (None, None)


def test_private_validation_records_are_not_told_about(tmp_path):
    looks = {"epsilon": 3.0, "delta": 1e-4, "epochs": 2, "batch_size": 100, "validation": 60, "accountant": "rdp"}
    looks |= {"noise_schedule": "validation:s0=3,k=0.8,m=1,delta=0.5,period=1,look=20"}
    result = fit(network(), (FEATURES, LABELS), out=tmp_path / "run", lr=0.5, **looks)
    assert result.confusion is None
    assert not RunFolder.open(tmp_path / "run").confusion_path.exists()


def test_classes_have_the_names_a_schema_gives_them(tmp_path):
    for name, (records, labels) in {"train": CANCER.train, "test": TEST}.items():
        with (tmp_path / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            rows = zip(records.tolist(), labels.tolist(), strict=True)
            csv.writer(file).writerows(
                [["size", "growth"], *([row[1], ("harmless", "bösartig")[label]] for row, label in rows)]
            )
    (tmp_path / "schema.toml").write_text(
        '[target]\ncolumn = "growth"\nclasses = ["harmless", "bösartig"]\n'
        '[columns.size]\nkind = "number"\nlow = -1\nhigh = 1\n',
        encoding="utf-8",
    )
    own = {"data": f"table:{tmp_path / 'train.csv'}", "schema": str(tmp_path / "schema.toml")}
    config = TrainConfig(
        **own,
        test_data=f"table:{tmp_path / 'test.csv'}",
        noise_multiplier=0,
        allow_nonprivate=True,
        steps=3,
        batch_size=9,
    )
    start.start(config, tmp_path / "run")
    kept = RunFolder.open(tmp_path / "run").confusion()
    assert kept["labels"] == ["harmless", "bösartig"]
    assert [sum(row) for row in kept["counts"]] == [int((TEST[1] == label).sum()) for label in (0, 1)]


# Killed, damaged, missing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["write_confusion", "log", "write_certificate", "save_model"])
def test_a_kill_in_the_end_leaves_it_to_be_made_again(tmp_path, monkeypatch, when):
    def kill(self, *content):
        if when != "log" or "final" in content[0]:
            raise Killed
        return working(self, *content)

    working = getattr(RunFolder, when)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, when, kill)
        with pytest.raises(Killed):
            run(out=tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    assert folder.confusion_path.exists() == (when != "write_confusion")
    assert not folder.model_path.exists()
    result = run(out=tmp_path / "run", resume=True)
    assert tuple(map(tuple, folder.confusion()["counts"])) == result.confusion == run().confusion
    assert [line["test_accuracy"] for line in folder.metrics() if "final" in line] == [share_right(result.confusion)]


def test_a_run_verifies_with_it_and_its_absence_is_found(tmp_path):
    run(out=tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    assert all(check.passed for check in verify_run(folder))
    folder.confusion_path.unlink()
    assert {check.name for check in verify_run(folder) if not check.passed} == {"measurements", "page"}


def test_a_damaged_one_is_refused_and_an_absent_one_is_none(tmp_path):
    folder = RunFolder.create(tmp_path / "run", TrainConfig("cancer", noise_multiplier=1.0))
    assert folder.confusion() is None
    folder.write_confusion(["no", "yes"], [(3, 1), (0, 2)])
    assert folder.confusion() == {"labels": ["no", "yes"], "counts": [[3, 1], [0, 2]]}
    for counts in ([[3], [0, 2]], [[0, 0], [0, 0]], [3, 4], None, [["a", 1], [0, 2]]):
        folder.confusion_path.write_text(json.dumps({"labels": ["no", "yes"], "counts": counts}))
        with pytest.raises(RunError, match="is no confusion matrix"):
            folder.class_counts()
    folder.confusion_path.write_text('{"labels": [')
    with pytest.raises(RunError, match=r"confusion\.json cannot be read"):
        folder.confusion()
