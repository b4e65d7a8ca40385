"""More tests of run folder: run folder records."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from run_folder_cases import (
    CONFIG,
    HEAD,
    bits,
    run,  # noqa: F401
)
from safetensors.torch import load_model, save_file
from torch import nn

from adadp.app.runs import (
    RunFolder,
    certificate_digest,
    flatten_optimizer,
    restore_optimizer,
    tensors,
)
from adadp.errors import AdaDPError, InputError, RunError


@pytest.mark.parametrize(
    "state", [{"a": (1, 2)}, {"a": {1: 2}}, {"a": float("nan")}, {"a": float("inf")}, {"a": {1}}, {"a": torch.ones(1)}]
)
def test_a_state_that_json_would_change_is_refused(run, state):
    with pytest.raises(InputError, match="cannot be kept as JSON"):
        run.save_checkpoint(1, {}, state, ledger_head=HEAD)
    assert run.load_checkpoint() is None


def test_a_state_that_nested_itself_is_refused(run):
    state = {}
    state["self"] = state
    with pytest.raises(InputError, match="cannot be kept as JSON"):
        run.save_checkpoint(1, {}, state, ledger_head=HEAD)


def test_a_header_nobody_could_read_is_not_written(run, monkeypatch):
    monkeypatch.setattr(tensors, "LARGEST_HEADER", 2000)
    run.save_checkpoint(1, {}, {"text": "x" * 1000}, ledger_head=HEAD)
    with pytest.raises(InputError, match="holds 2000"):
        run.save_checkpoint(2, {}, {"text": "x" * 2000}, ledger_head=HEAD)
    assert run.load_checkpoint().step == 1


@pytest.mark.parametrize("ledger_head", [None, 3])
def test_a_head_that_is_not_text_and_a_step_that_is_no_number_are_refused(run, ledger_head):
    with pytest.raises(InputError, match="ledger_head"):
        run.save_checkpoint(1, {}, {}, ledger_head=ledger_head)
    with pytest.raises(InputError, match="step must be at least 0"):
        run.save_checkpoint(-1, {}, {}, ledger_head=HEAD)


def test_any_damage_to_a_checkpoint_is_found(run):
    """A bit of every byte flipped, and every length cut."""
    given_tensors = {"w": torch.arange(5.0), "flag": torch.tensor(True), "tied": torch.ones(2)}
    given_tensors["knot"] = given_tensors["tied"]
    run.save_checkpoint(3, given_tensors, {"epoch": 3}, ledger_head=HEAD)
    whole = run.checkpoint_path.read_bytes()
    for place in range(len(whole)):
        for broken in (whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :], whole[:place]):
            run.checkpoint_path.write_bytes(broken)
            with pytest.raises(RunError, match=r"checkpoint\.safetensors is damaged"):
                run.load_checkpoint()
    run.checkpoint_path.write_bytes(whole + b"\0")
    with pytest.raises(RunError, match="is damaged"):
        run.load_checkpoint()
    run.checkpoint_path.write_bytes(whole)
    assert run.load_checkpoint().step == 3


def test_other_peoples_files_are_no_checkpoints(run):
    save_file({"w": torch.ones(1)}, run.checkpoint_path)
    with pytest.raises(RunError, match="not written by AdaDP: it has no 'sha256'"):
        run.load_checkpoint()
    run.save_model({"w": torch.ones(1)}, {})
    run.model_path.rename(run.checkpoint_path)
    with pytest.raises(RunError, match="it is not a checkpoint"):
        run.load_checkpoint()
    run.checkpoint_path.unlink()
    run.checkpoint_path.mkdir()
    with pytest.raises(RunError, match="is damaged, or was not"):
        run.load_checkpoint()


def test_a_checkpoint_of_another_configuration_is_refused(run):
    run.save_checkpoint(1, {}, {}, ledger_head=HEAD)
    run.config_path.write_text(CONFIG.replace(noise_multiplier=0.3).to_toml())
    with pytest.raises(RunError, match="another configuration"):
        RunFolder.open(run.path).load_checkpoint()
    run.config_path.write_text("# a note\n" + CONFIG.to_toml())
    assert RunFolder.open(run.path).load_checkpoint().step == 1


def test_what_was_loaded_does_not_change_with_the_file(run):
    run.save_checkpoint(1, {"w": torch.ones(3)}, {}, ledger_head=HEAD)
    found = run.load_checkpoint()
    with run.checkpoint_path.open("r+b") as file:
        file.seek(-12, os.SEEK_END)
        file.write(bytes(12))
    assert torch.equal(found.tensors["w"], torch.ones(3))


# Optimizers -------------------------------------------------------------------------------------------------------


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, foreach=False),
    "tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "adagrad": torch.optim.Adagrad,
    "asgd": torch.optim.ASGD,
    "groups": lambda p: torch.optim.AdamW([{"params": p[:1], "lr": 0.5}, {"params": p[1:], "betas": (0.5, 0.5)}]),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=3),
    "infinite": lambda p: torch.optim.SGD([{"params": p, "limit": float("inf"), "note": ("a", None, [True, -0.0])}]),
}


def small_model(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).to(dtype)


def take_step(model, optimizer, number):
    generator = torch.Generator().manual_seed(number)
    features = torch.randn(8, 4, generator=generator).to(model[0].weight.dtype)

    def loss():
        optimizer.zero_grad()
        value = model(features).pow(2).mean()
        value.backward()
        return value

    optimizer.step(loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 2])
def test_a_run_saved_and_resumed_equals_one_that_was_never_stopped(run, kind, dtype, before):
    model = small_model(dtype=dtype)
    optimizer = OPTIMIZERS[kind](list(model.parameters()))
    for number in range(before):
        take_step(model, optimizer, number)
    saved, state = flatten_optimizer(optimizer)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    run.save_checkpoint(before, {**saved, **weights}, {"optimizer": state}, ledger_head=HEAD)

    found = run.load_checkpoint()
    copy = small_model(seed=9, dtype=dtype)
    copy.load_state_dict({name: found.tensors[f"model.{name}"] for name in copy.state_dict()})
    resumed = OPTIMIZERS[kind](list(copy.parameters()))
    restore_optimizer(resumed, found.tensors, found.state["optimizer"])
    assert same(resumed.state_dict(), optimizer.state_dict())
    for number in range(before, before + 3):
        take_step(model, optimizer, number)
        take_step(copy, resumed, number)
    assert same(copy.state_dict(), model.state_dict())
    assert same(resumed.state_dict(), optimizer.state_dict())


def same(one, other):
    """Equal down to types and bits."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and bits(one) == bits(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def test_the_state_of_an_optimizer_survives_json_alone():
    model = small_model()
    optimizer = OPTIMIZERS["infinite"](list(model.parameters()))
    saved, state = flatten_optimizer(optimizer)
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    assert state["optimizer"] == "SGD"
    assert saved == {}


def test_a_buffer_of_another_precision_than_its_parameter_is_not_rounded():
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    optimizer.state[weight]["momentum_buffer"] = torch.tensor([0.1, 0.2, 0.3])
    optimizer.state[weight]["nothing"] = None
    saved, state = flatten_optimizer(optimizer)
    resumed = torch.optim.SGD([nn.Parameter(torch.ones(3, dtype=torch.bfloat16))], lr=0.5, momentum=0.1)
    restore_optimizer(resumed, saved, state)
    assert same(resumed.state_dict(), optimizer.state_dict())


def test_a_restored_optimizer_does_not_write_into_the_checkpoint():
    model = small_model()
    optimizer = OPTIMIZERS["adam"](list(model.parameters()))
    take_step(model, optimizer, 0)
    saved, state = flatten_optimizer(optimizer)
    kept = {name: tensor.clone() for name, tensor in saved.items()}
    resumed = OPTIMIZERS["adam"](list((copy := small_model()).parameters()))
    restore_optimizer(resumed, kept, state)
    take_step(copy, resumed, 1)
    assert same(kept, saved)


def test_a_state_that_does_not_fit_is_refused_and_nothing_is_changed():
    model = small_model()
    optimizer = OPTIMIZERS["adam"](list(model.parameters()))
    take_step(model, optimizer, 0)
    saved, state = flatten_optimizer(optimizer)
    with pytest.raises(InputError, match="that of the optimizer 'Adam', and this one is AdamW"):
        restore_optimizer(OPTIMIZERS["adamw"](list(model.parameters())), saved, state)
    with pytest.raises(InputError, match="parameters of the shapes"):
        restore_optimizer(OPTIMIZERS["adam"](list(nn.Linear(2, 2).parameters())), saved, state)
    before = optimizer.state_dict()
    with pytest.raises(InputError, match=r"does not fit this optimizer.*exp_avg"):
        restore_optimizer(optimizer, {name: saved[name] for name in saved if "exp_avg" not in name}, state)
    with pytest.raises(InputError, match="the mark 'odd' is unknown"):
        restore_optimizer(optimizer, saved, {**state, "content": {"state": {"odd": 1}}})
    assert same(optimizer.state_dict(), before)


def test_a_state_that_is_no_json_is_refused_by_name():
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "rule": {1, 2}}], lr=0.1)
    with pytest.raises(InputError, match=r"param_groups\[0\]\['rule'\] of the optimizer is set"):
        flatten_optimizer(optimizer)


# Metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_are_lines_and_nothing_but_json(run):
    run.log({"step": 0, "accuracy": 0.5, "text": "é\n"})
    run.log({"step": 10, "loss": float("nan"), "deep": {"list": [float("inf"), (1, -float("inf"))]}})
    lines = run.metrics_path.read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[1], parse_constant=pytest.fail) == {
        "step": 10,
        "loss": None,
        "deep": {"list": [None, [1, None]]},
    }
    assert run.metrics()[0] == {"step": 0, "accuracy": 0.5, "text": "é\n"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"loss": 1}, "has no step"),
        ({"step": -1}, "at least 0"),
        ({"step": "1"}, "whole"),
        ({"step": 1, "a": {2}}, "not JSON"),
    ],
)
def test_a_record_that_cannot_be_placed_or_written_is_refused(run, record, message):
    with pytest.raises(InputError, match=message):
        run.log(record)
    assert run.metrics() == []


def test_a_resumed_run_drops_what_came_after_its_checkpoint(run):
    run.rewind_metrics(5)
    assert not run.metrics_path.exists()
    for step in (1, 5, 5, 9, 3):
        run.log({"step": step})
    run.rewind_metrics(5)
    assert [record["step"] for record in run.metrics()] == [1, 5, 5, 3]
    before = run.metrics_path.stat().st_ino
    run.rewind_metrics(5)
    assert run.metrics_path.stat().st_ino == before
    run.rewind_metrics(0)
    assert run.metrics() == []


def test_a_torn_line_is_dropped_wherever_it_was_torn(run):
    run.log({"step": 1, "text": "x" * 5000})
    first = run.metrics_path.read_bytes()
    run.log({"step": 2, "text": "y" * 5000})
    whole = run.metrics_path.read_bytes()
    for cut in (len(first), len(first) + 1, len(first) + 4500, len(whole) - 1):
        run.metrics_path.write_bytes(whole[:cut])
        assert [record["step"] for record in run.metrics()] == [1]
        run.log({"step": 3})
        assert [record["step"] for record in run.metrics()] == [1, 3]
        run.metrics_path.write_bytes(whole[:cut])
        run.rewind_metrics(7)
        assert run.metrics_path.read_bytes() == first
    run.metrics_path.write_bytes(b'{"step"')
    run.log({"step": 4})
    assert run.metrics() == [{"step": 4}]


@pytest.mark.parametrize("line", [b"{}", b"[1]", b"3", b'{"step": "x"}', b"\xff", b""])
def test_a_broken_line_before_the_last_is_named(run, line):
    run.metrics_path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(RunError, match=r"Line 2 of .*metrics\.jsonl"):
        run.metrics()


def test_metrics_that_cannot_be_read_or_written_are_named(run):
    run.metrics_path.mkdir()
    with pytest.raises(RunError, match=r"metrics\.jsonl cannot be read"):
        run.metrics()
    with pytest.raises(RunError, match=r"metrics\.jsonl cannot be written"):
        run.log({"step": 1})


# Certificate and model --------------------------------------------------------------------------------------------


def test_a_certificate_has_one_layout_and_one_digest(run):
    one, other = {"epsilon": 2.0, "a": {"y": None, "x": "é"}}, {"a": {"x": "é", "y": None}, "epsilon": 2.0}
    run.write_certificate(one)
    text = run.certificate_path.read_text(encoding="utf-8")
    assert text == '{\n  "a": {\n    "x": "é",\n    "y": null\n  },\n  "epsilon": 2.0\n}\n'
    run.write_certificate(other)
    assert run.certificate_path.read_text(encoding="utf-8") == text
    assert run.certificate() == one
    assert certificate_digest(one) == certificate_digest(other) == certificate_digest(run.certificate())
    assert certificate_digest(one) != certificate_digest({**one, "epsilon": 2.1})


def test_a_damaged_certificate_says_what_can_be_done(run):
    run.certificate_path.write_text("{")
    with pytest.raises(RunError, match=r"Put the run's own file back.*adadp train --resume") as caught:
        run.certificate()
    assert str(run.path) in caught.value.fix


@pytest.mark.parametrize("wrong", [{"epsilon": float("inf")}, {"steps": (1, 2)}, {1: 2}])
def test_a_certificate_that_json_would_change_is_refused(run, wrong):
    run.write_certificate({"epsilon": None})
    with pytest.raises(InputError, match="cannot be kept as JSON"):
        run.write_certificate(wrong)
    with pytest.raises(InputError, match="cannot be kept as JSON"):
        certificate_digest(wrong)
    assert run.certificate() == {"epsilon": None}


def test_a_damaged_certificate_is_named(run):
    run.certificate_path.write_text('{"epsilon": ')
    with pytest.raises(RunError, match=r"certificate\.json cannot be read"):
        run.certificate()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("count", torch.tensor(3))


def test_a_model_comes_back_with_its_ties_and_metadata(run):
    model = Tied()
    metadata = {"certificate": certificate_digest({"epsilon": 2.0}), "note": "é"}
    run.save_model(model.state_dict(), metadata)
    assert run.model_metadata() == metadata
    found = run.load_model_tensors()
    copy = Tied()
    copy.load_state_dict(found)
    assert same(dict(copy.state_dict()), dict(model.state_dict()))
    assert found["embed.weight"] is found["head.weight"]
    others = Tied()
    load_model(others, run.model_path)  # what anybody else would use
    assert same(dict(others.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("metadata", [{"epsilon": 2.0}, {2: "a"}, {"sha256": "a"}, {"ties": "a"}])
def test_metadata_that_has_no_place_is_refused(run, metadata):
    with pytest.raises(InputError, match="cannot be written"):
        run.save_model({"w": torch.ones(1)}, metadata)
    assert not run.model_path.exists()


def test_a_damaged_model_is_refused(run):
    run.save_model({"w": torch.ones(4)}, {"epsilon": "2"})
    data = bytearray(run.model_path.read_bytes())
    data[-1] ^= 1
    run.model_path.write_bytes(data)
    with pytest.raises(RunError, match="checksum does not hold"):
        run.load_model_tensors()
    run.model_path.write_bytes(b"nonsense")
    with pytest.raises(RunError, match="is damaged"):
        run.model_metadata()


def test_metadata_cannot_be_changed_unnoticed(run):
    run.save_model({"w": torch.ones(4)}, {"epsilon": "2"})
    data = run.model_path.read_bytes()
    run.model_path.write_bytes(data.replace(b'"epsilon":"2"', b'"epsilon":"1"'))
    assert run.model_metadata() == {"epsilon": "1"}
    with pytest.raises(RunError, match="checksum does not hold"):
        run.load_model_tensors()


def test_no_module_of_the_room_can_read_pickle():
    import adadp.app.runs

    for source in Path(adadp.app.runs.__file__).parent.glob("*.py"):
        text = source.read_text(encoding="utf-8")
        assert "import pickle" not in text
        assert "torch.load" not in text
        assert "torch.save" not in text


def test_errors_belong_to_the_tree():
    assert issubclass(RunError, AdaDPError)
