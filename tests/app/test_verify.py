"""``adadp verify`` without torch, with code of a stranger's, and after every single edit of two files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adadp
from adadp.app import zoo
from adadp.app.methods.adadp import AdaDp
from adadp.app.runs import RunFolder, certificate_digest
from adadp.app.runs.tensors import tensors_digest, write_tensors
from adadp.app.specification import specification
from adadp.app.texts.methods import METHODS
from adadp.app.train import fit
from adadp.app.verify import verify_run
from adadp.certificate.digests import read_stored, stored_digest
from adadp.certificate.make import model_metadata
from adadp.certificate.verify import verify
from adadp.clipping import Flat

pytestmark = pytest.mark.slow


DATA = zoo.load("cancer").train
SETTINGS = {"epsilon": 2.0, "delta": 1e-4, "steps": 4, "batch_size": 56, "lr": 0.5}
STRANGERS = """
from dataclasses import dataclass
from adadp.methods import DpSgd

open(MARK, "a").write("imported ")

@dataclass(frozen=True)
class Mine(DpSgd):
    name = "mine"
    strength: float = 0.5
"""
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from adadp.app.cli import main
main(sys.argv[1:])
"""


def trained(out: Path, **settings) -> Path:
    torch.manual_seed(0)
    fit(
        nn.Linear(4 if "features" in settings else 9, 2),
        DATA,
        test=zoo.load("cancer").test,
        out=out,
        **{**SETTINGS, **settings},
    )
    return out


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("original") / "run")


def without_torch(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# Without torch ----------------------------------------------------------------------------------------------------

RUNS = {
    "planned": {},
    "rehearsal": {"seed": 7},
    "without noise": {"epsilon": None, "noise_multiplier": 0.0, "allow_nonprivate": True},
    "not private": {"method": "dpopt:source=raw", "allow_nonprivate": True},
    "features": {"features": "pca:dim=4,noise_multiplier=5"},
    "reshuffled": {"sampling": "reshuffle", "epsilon": None, "rho": 0.5},
    "schedules": {"noise_schedule": "exp:k=0.1", "batch_size": "piecewise:0=100,1=200", "steps": None, "epochs": 2},
    "quantile": {"clip_norm": "quantile:initial=1,count_noise=10,floor=0.01,ceiling=100"},
    "chosen noise": {"method": "agd", "clip_norm": 1.0},
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_verifies_without_torch(tmp_path, kind):
    run = trained(tmp_path / "run", **RUNS[kind])
    assert [check for check in adadp.verify(run) if not check.passed] == []
    done = without_torch("verify", run, "--json")
    answer = json.loads(done.stdout or "{}")
    assert (done.returncode, answer.get("verified")) == (0, True), done.stdout + done.stderr
    assert answer["checks"][-1]["detail"].startswith("not checked: ")
    assert "torch, which cannot be imported here" in answer["checks"][-1]["detail"]


def test_without_torch_the_words_are_the_same_and_an_edit_is_found(original, tmp_path):
    done = without_torch("verify", original)
    assert "the model is (2, 0.0001)-differentially private" in done.stdout
    assert done.stderr == ""
    run = Path(shutil.copytree(original, tmp_path / "run"))
    content = (run / "certificate.json").read_text().replace('"steps_done": 4', '"steps_done": 5')
    (run / "certificate.json").write_text(content)
    done = without_torch("verify", run)
    assert done.returncode == 1
    assert "FAIL  charges" in done.stdout
    assert "does NOT verify" in done.stdout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_the_digest_of_a_file_is_that_of_its_tensors(tmp_path, dtype):
    tied = torch.ones(3, 2).to(dtype)
    tensors = {"b": tied, "a": torch.zeros(0, dtype=dtype), "c": tied, "d": torch.ones(2, 3).to(dtype).T}
    write_tensors(tmp_path / "file", tensors, {"about": "é"})
    stored, text = read_stored(tmp_path / "file")
    assert text == {"about": "é"}
    assert stored_digest(stored) == tensors_digest(tensors)


# Code of a stranger's ---------------------------------------------------------------------------------------------


def test_a_method_of_a_strangers_is_not_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mark, code = tmp_path / "mark", tmp_path / "strangers_method.py"
    code.write_text(STRANGERS.replace("MARK", repr(str(mark))))
    run = trained(tmp_path / "run", method="strangers_method.py:Mine:strength=0.25")
    part = json.loads((run / "certificate.json").read_text())["parts"]["method"]
    assert (part["name"], part["import_path"]) == ("mine", "strangers_method:Mine")
    assert (part["version"], part["settings"]) == (None, {"strength": 0.25})
    mark.unlink()
    code.unlink()
    checks = adadp.verify(run)
    assert [check for check in checks if not check.passed] == []
    assert not mark.exists()
    assert checks[-1].detail.startswith("not checked: ")
    assert "strangers_method:Mine:strength=0.25, which is the user's own code" in checks[-1].detail
    (run / "ledger.jsonl").write_bytes((run / "ledger.jsonl").read_bytes().replace(b'"seq":2', b'"seq":3'))
    assert not all(check.passed for check in adadp.verify(run))


def test_a_method_that_is_not_installed_here_is_not_needed(tmp_path, monkeypatch):
    run = trained(tmp_path / "run", method="adal")
    assert "application" not in {check.name for check in adadp.verify(run)}
    monkeypatch.setattr(METHODS, "_offered", {})
    monkeypatch.setattr(METHODS, "_known", {"adadp": AdaDp})
    checks = adadp.verify(run)
    assert all(check.passed for check in checks)
    assert checks[-1].detail.endswith("It needs the method adal, which is not installed here.")


def test_a_specification_of_any_object():
    method, rule = specification(AdaDp()), specification(Flat(2.0))
    assert method["name"] == "adadp"
    assert method["import_path"] == "adadp.app.methods.adadp:AdaDp"
    assert method["version"] == adadp.__version__
    assert len(method["source_digest"]) == 64
    assert 2.0 in rule["settings"].values()
    made = type("Made", (), {"__module__": "nowhere"})()
    assert specification(made) == {
        "name": "Made",
        "import_path": "nowhere:Made",
        "version": None,
        "settings": {},
        "source_digest": None,
    }


# Every single edit ------------------------------------------------------------------------------------------------

ONLY_THE_RUN_KNEW = {"record", "notes", "versions", "parts"}
"""What a certificate states of the run itself: an edit is found by the digest in the model file alone."""
OF_THE_APPLICATION = {"disclosed", "not_covered", "caveats"}


def fields(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The way to every value in nested JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items or not value:
        yield path
    for key, each in items:
        yield from fields(each, (*path, key))


def edited(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return value * 1.5 + 1
    return f"{value}x" if isinstance(value, str) else ["x"]


def test_every_edit_of_a_field_of_the_certificate_is_found(original, tmp_path):
    run = Path(shutil.copytree(original, tmp_path / "run"))
    certificate = json.loads((run / "certificate.json").read_text())
    assert all(check.passed for check in verify(run))
    everywhere = list(fields(certificate))
    assert len(everywhere) > 60
    folder = RunFolder.open(run)
    tensors = folder.load_model_tensors()
    for *way, last in everywhere:
        other = json.loads(json.dumps(certificate))
        place = other
        for key in way:
            place = place[key]
        place[last] = edited(place[last])
        folder.write_certificate(other)
        folder.save_model(tensors, model_metadata(certificate))
        assert "model" in {check.name for check in verify(run) if not check.passed}, (way, last)
        if (*way, last)[0] in ONLY_THE_RUN_KNEW | OF_THE_APPLICATION or (*way, last) == ("plan", "clip_norm"):
            continue
        # the same by somebody who mends the digest in the model file
        with suppress(KeyError):  # a rehearsal without what one states has no model file
            folder.save_model(tensors, model_metadata(other))
        assert not all(check.passed for check in verify(run)), (way, last)
    folder.write_certificate(certificate)
    folder.save_model(tensors, {**model_metadata(certificate), "certificate_digest": certificate_digest(certificate)})
    assert all(check.passed for check in verify(run))


def test_every_edit_of_a_line_of_the_ledger_is_found(original, tmp_path):
    run = Path(shutil.copytree(original, tmp_path / "run"))
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 6
    others = [[*lines[:place], *lines[place + 1 :]] for place in range(len(lines))]  # removed
    others += [[*lines[:place], lines[place], *lines[place:]] for place in range(len(lines))]  # doubled
    for place, line in enumerate(lines):
        for where in range(0, len(line) - 1, 7):
            changed = line[:where] + bytes([line[where] ^ 1]) + line[where + 1 :]
            others.append([*lines[:place], changed, *lines[place + 1 :]])
    for other in others:
        (run / "ledger.jsonl").write_bytes(b"".join(other))
        assert "ledger" in {check.name for check in verify(run) if not check.passed}


@pytest.mark.parametrize("place", ["stranger.py:Low", "stranger.py: Low", "stranger:Élow", "stranger.py:Low:1"])
@pytest.mark.parametrize("setting", ["accountant", "clip_rule", "features", "method"])
def test_no_setting_of_a_folder_makes_verify_import_code(tmp_path, monkeypatch, setting, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    mark = tmp_path / "mark"
    (tmp_path / "stranger.py").write_text(f"open({str(mark)!r}, 'w').close()", encoding="utf-8")
    run = trained(tmp_path / "run")
    config = run / "config.toml"
    kept = [line for line in config.read_text(encoding="utf-8").splitlines() if not line.startswith(f"{setting} =")]
    config.write_text("\n".join([*kept, f"{setting} = {json.dumps(place, ensure_ascii=False)}"]), encoding="utf-8")
    assert not all(check.passed for check in adadp.verify(run))
    assert not mark.exists()
    assert "stranger" not in sys.modules


def test_where_only_installed_parts_count_no_place_is_imported(tmp_path, monkeypatch):
    from adadp.app.texts.clip_rules import parse_clip_rule
    from adadp.errors import InputError
    from adadp.registry import installed_only

    monkeypatch.chdir(tmp_path)
    (tmp_path / "stranger.py").write_text("raise SystemExit", encoding="utf-8")
    with installed_only(), pytest.raises(InputError, match=r"named by where it is defined.*entry point"):
        parse_clip_rule("stranger.py:Low:1")


def test_an_option_that_is_a_name_is_not_taken_for_code(tmp_path):
    """synthetic:leaves reads as package:Name does."""
    images, network = torch.rand(60, 3, 32, 32), nn.Sequential(nn.Flatten(), nn.Linear(3072, 2))
    fit(
        network,
        (images, torch.arange(60) % 2),
        out=tmp_path,
        features="synthetic:leaves",
        **SETTINGS | {"batch_size": 20},
    )
    checks = verify_run(tmp_path)
    assert [each for each in checks if not each.passed or "not checked" in each.detail] == []
