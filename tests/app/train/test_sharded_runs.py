"""Whole runs of models that are split over processes: the folder, the certificate, stops and resumes."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adadp
from adadp.app.verify import verify_run
from adadp.errors import RunError

sys.path.append(str(Path(__file__).parents[2] / "core"))
import sharded_cases as cases

pytestmark = pytest.mark.slow

OPTIONS = {"method": "dpsgd", "epsilon": 4.0, "delta": 1e-3, "steps": 6, "seed": 7, "batch_size": 20, "lr": 0.1}


def data() -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    values, labels = cases.values(100)
    return (values[:80], labels[:80]), (values[80:], labels[80:])


def fitted(model: nn.Module, out: str, **given: Any) -> tuple[Any, ...]:
    training, test = data()
    stops = given.pop("stops", None)

    def watch(status: Any) -> None:
        if status.step == stops:
            raise RunError("Stopped by the one who watches.")

    options = {"test": test, "checkpoint_every": 2, "evaluate_every": 1, **OPTIONS, **given}
    result = adadp.fit(model, training, out=out, watch=watch, **options)
    parameters = torch.cat([cases.whole(each).reshape(-1) for each in model.parameters()]).tolist()
    return parameters, result.certificate, result.test_accuracy, result.confusion


def split_run(rank: int, out: str, given: dict[str, Any]) -> tuple[Any, ...]:
    return fitted(cases.split_network("mlp"), out, **given)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_is_that_of_one_process(two, optimizer, tmp_path):
    one = fitted(cases.network("mlp"), str(tmp_path / "one"), optimizer=optimizer)
    found = two.run(split_run, str(tmp_path / "two"), {"optimizer": optimizer})
    for parameters, certificate, accuracy, confusion in found:
        torch.testing.assert_close(torch.tensor(parameters), torch.tensor(one[0]), rtol=1e-3, atol=1e-4)
        assert certificate["charged"] == one[1]["charged"]
        assert [each for each in certificate["notes"] if "Each had a part of the model" in each]
        assert (accuracy, confusion) == one[2:]
    assert [each for each in verify_run(tmp_path / "two") if not each.passed] == []
    files = [sorted(path.name for path in (tmp_path / each).iterdir()) for each in ("one", "two")]
    assert files[0] == files[1]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_is_resumed_by_another_number_of_processes(two, four, optimizer, tmp_path):
    out, given = str(tmp_path / "run"), {"optimizer": optimizer}
    for kind, text in four.failures(split_run, out, {**given, "stops": 3}):
        assert (kind, "Stopped by the one" in text) == ("RunError", True)
    assert len([each for each in (tmp_path / "run").iterdir() if each.name.startswith("shards-")]) == 1
    whole = two.run(split_run, str(tmp_path / "whole"), given)
    found = two.run(split_run, out, {**given, "resume": True})
    for each, other in zip(found, whole, strict=True):
        torch.testing.assert_close(torch.tensor(each[0]), torch.tensor(other[0]), rtol=1e-3, atol=1e-4)
        assert each[1]["charged"] == other[1]["charged"]
        assert [note for note in each[1]["notes"] if "4, then 2 processes" in note]
    assert [each for each in verify_run(tmp_path / "run") if not each.passed] == []
    assert not [each for each in (tmp_path / "run").iterdir() if each.name.startswith("shards-")]


def checked(rank: int, given: dict[str, Any]) -> None:
    fitted(cases.split_network("mlp"), **given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ema": 0.9}, "ema is given, and the model is split"),
        ({"compile": True}, "compile is given, and the model is split"),
        ({"features": "pca:dim=3"}, "features is given, and the model is split"),
        (
            {
                "noise_schedule": "validation:s0=5,k=0.7,every=1",
                "validation": 20,
                "validation_public": True,
                "epochs": 2,
                "steps": None,
            },
            "the model is split",
        ),
        ({"optimizer": "adambc"}, "adambc does not work on a model that is split"),
        ({"arithmetic": "exact"}, "The method dpsgd in exact arithmetic does not work"),
        ({"method": "agd"}, "The method agd in fast arithmetic does not work"),
    ],
)
def test_settings_that_are_not_supported_are_refused_before_a_charge(two, given, text, tmp_path):
    for kind, words in two.failures(checked, {**given, "out": str(tmp_path / "run")}):
        assert (kind, text in words) == ("InputError", True), words
    assert not (tmp_path / "run").exists()


def wrong_resume(rank: int, out: str) -> None:
    fitted(cases.network("mlp"), out, resume=True)


def test_a_plain_model_does_not_resume_a_split_one(two, tmp_path):
    out = str(tmp_path / "run")
    assert two.failures(split_run, out, {"stops": 3})[0][0] == "RunError"
    for kind, text in two.failures(wrong_resume, out):
        assert (kind, "split over processes" in text) == ("InputError", True), text
