"""Signatures over runs: every file and no other, keys of OpenSSH and PEM, and files of strangers."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from torch import nn

from adadp.app import zoo
from adadp.app.cli import main
from adadp.app.signing import SIGNATURE, public_keys, sign, signature_check
from adadp.app.train import fit
from adadp.errors import InputError

pytestmark = pytest.mark.slow

PLAIN = NoEncryption()


@pytest.fixture(scope="module")
def signed(tmp_path_factory) -> tuple[Path, Path]:
    """A signed run, and the folder of keys."""
    place = tmp_path_factory.mktemp("signed")
    data = zoo.load("cancer")
    torch.manual_seed(0)
    settings = {"epsilon": 3, "delta": 1e-4, "steps": 6, "batch_size": 50, "lr": 0.1}
    fit(nn.Linear(9, 2), data.train, test=data.test, out=place / "run", **settings)
    keys = place / "keys"
    keys.mkdir()
    for name in ("owner", "other"):
        write_pair(keys / name)
    sign(place / "run", keys / "owner", no_passphrase)
    return place / "run", keys


@pytest.fixture
def run(signed, tmp_path) -> Path:
    return Path(shutil.copytree(signed[0], tmp_path / "run"))


@pytest.fixture
def keys(signed) -> Path:
    return signed[1]


def write_pair(path, encryption=PLAIN, form=PrivateFormat.OpenSSH):
    key = ed25519.Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, form, encryption))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    Path(f"{path}.pub").write_bytes(public + b" somebody@example.org\n")
    return key


def no_passphrase() -> str:
    raise AssertionError("asked for a passphrase")


def cli(*arguments: object, **more):
    return CliRunner().invoke(main, [str(each) for each in arguments], **more)


def test_a_signed_run_verifies_by_its_key_and_by_no_other(run, keys):
    good = cli("verify", run, "--key", keys / "owner.pub")
    assert good.exit_code == 0, good.output
    assert "signed by somebody@example.org (SHA256:" in good.output
    assert "not signed" not in good.output
    bad = cli("verify", run, "--key", keys / "other.pub", "--json")
    assert bad.exit_code == 1
    assert json.loads(bad.output)["signed"] is False
    assert "by none of the given keys" in bad.output


def test_without_a_key_it_says_what_is_only_claimed(run):
    found = cli("verify", run)
    assert found.exit_code == 0
    assert "which was not checked: pass --key" in found.output
    (run / SIGNATURE).unlink()
    found = cli("verify", run)
    assert "The folder is not signed." in found.output
    assert "Evidence: certificate.json, config.toml, ledger.jsonl, model.safetensors, report.html agree" in found.output
    assert (
        "what confusion.json says, what figures.json says, what metrics.jsonl says, and what the cert" in found.output
    )
    assert "Not looked at" not in found.output
    (run / "conclusions.txt").write_text("It works.")
    assert "Not looked at: conclusions.txt." in cli("verify", run).output
    assert cli("verify", run, "--key", __file__).exit_code == 2


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "confusion.json", "report.html", "model.safetensors", "certificate.json", "config.toml"]
)
def test_a_change_of_any_file_is_found(run, keys, name):
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    found = signature_check(run, keys / "owner.pub")
    assert not found.passed
    assert f"changed since: {name}" in found.detail


def test_files_that_are_gone_or_new_are_found(run, keys):
    (run / "confusion.json").unlink()
    (run / "more").mkdir()
    (run / "more" / "notes.txt").write_text("")
    found = signature_check(run, keys / "owner.pub")
    assert not found.passed
    assert "missing: confusion.json" in found.detail
    assert "not signed: more/notes.txt" in found.detail


def test_links_are_no_files_of_a_run(run, keys, tmp_path):
    (tmp_path / "elsewhere").write_bytes((run / "report.html").read_bytes())
    (run / "report.html").unlink()
    (run / "report.html").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in signature_check(run, keys / "owner.pub").detail


def test_files_that_changed_places_are_found(run, keys):
    one, other = run / "metrics.jsonl", run / "confusion.json"
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    assert "changed since: confusion.json, metrics.jsonl" in signature_check(run, keys / "owner.pub").detail


def test_what_is_neither_file_nor_folder_is_found_and_an_empty_folder_says_nothing(run, keys):
    (run / "empty").mkdir()
    assert signature_check(run, keys / "owner.pub").passed
    os.mkfifo(run / "pipe")
    assert "pipe is neither file nor folder" in signature_check(run, keys / "owner.pub").detail
    (run / "pipe").unlink()
    (run / SIGNATURE).unlink()
    os.mkfifo(run / SIGNATURE)  # reading it would wait for ever
    assert "is not signed" in signature_check(run, keys / "owner.pub").detail


@pytest.mark.parametrize("name", [b"clear\x1b[2Jed", b"\xff\xfe", b"two\nok    signature: all is well"])
def test_names_that_a_terminal_would_obey_are_shown_as_text(run, keys, name):
    (run / os.fsdecode(name)).write_text("")
    found = cli("verify", run, "--key", keys / "owner.pub")
    assert found.exit_code == 1
    assert "not signed: '" in found.output
    assert not any(line.startswith("ok    signature") for line in found.output.splitlines())
    assert "\x1b" not in found.output
    found.output.encode("ascii")


def test_more_signatures_than_anybody_has_are_not_all_tried(run, keys):
    envelope = json.loads((run / SIGNATURE).read_bytes())
    envelope["signatures"] *= 101
    (run / SIGNATURE).write_text(json.dumps(envelope))
    assert "too many" in signature_check(run, keys / "owner.pub").detail


def test_a_good_signature_under_another_type_of_payload_does_not_hold(run, keys):
    envelope = json.loads((run / SIGNATURE).read_bytes())
    (run / SIGNATURE).write_text(json.dumps({**envelope, "payloadType": "application/json"}))
    assert not signature_check(run, keys / "owner.pub").passed


def test_a_signature_of_another_run_does_not_hold(run, keys, tmp_path):
    data = zoo.load("cancer")
    fit(nn.Linear(9, 2), data.train, out=tmp_path / "b", epsilon=3, delta=1e-4, steps=2, batch_size=50, lr=0.1)
    sign(tmp_path / "b", keys / "owner", no_passphrase)
    shutil.copy(tmp_path / "b" / SIGNATURE, run / SIGNATURE)
    assert "changed since" in signature_check(run, keys / "owner.pub").detail


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"payloadType": "application/vnd.in-toto+json", "payload": 5, "signatures": []}',
        b'{"payloadType": "application/vnd.in-toto+json", "payload": "!!", "signatures": [{"sig": ""}]}',
        b'{"payloadType": "text/plain", "payload": "", "signatures": []}',
        b'{"payloadType": "application/vnd.in-toto+json", "payload": "", "signatures": 5}',
        b'{"payloadType": "application/vnd.in-toto+json", "payload": "", "signatures": [5]}',
        b"\xff\xfe",
        b"9" * 10_000,
    ],
    ids=lambda content: content[:12].decode("latin1") + str(len(content)),
)
def test_what_is_no_signature_is_told(run, keys, content):
    (run / SIGNATURE).write_bytes(content)
    found = signature_check(run, keys / "owner.pub")
    assert not found.passed


@pytest.mark.parametrize("payload", [b"[" * 10_000, b"{}", b'{"_type": 3}', b"\xff"])
def test_what_is_signed_must_be_a_statement_about_a_run(run, keys, payload):
    from adadp.app.signing import _private_key, _signed

    key = _private_key(keys / "owner", no_passphrase)
    envelope = {
        "payloadType": "application/vnd.in-toto+json",
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"sig": base64.b64encode(key.sign(_signed(payload))).decode()}],
    }
    (run / SIGNATURE).write_text(json.dumps(envelope))
    assert "no statement about a run" in signature_check(run, keys / "owner.pub").detail


def test_the_statement_is_in_toto_in_a_dsse_envelope(signed):
    envelope = json.loads((signed[0] / SIGNATURE).read_bytes())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert {"config.toml", "ledger.jsonl", "model.safetensors"} <= {each["name"] for each in statement["subject"]}
    assert statement["predicate"]["epsilon"] <= 3
    key = public_keys(signed[1] / "owner.pub")[0].key
    body = base64.b64decode(envelope["payload"])
    encoded = b"DSSEv1 28 application/vnd.in-toto+json " + str(len(body)).encode() + b" " + body
    key.verify(base64.b64decode(envelope["signatures"][0]["sig"]), encoded)


@pytest.mark.parametrize("form", [PrivateFormat.OpenSSH, PrivateFormat.PKCS8], ids=["openssh", "pem"])
def test_keys_with_a_passphrase(run, tmp_path, form):
    key = write_pair(tmp_path / "key", BestAvailableEncryption(b"correct horse"), form)
    assert cli("sign", run, "--key", tmp_path / "key", input="wrong\n").exit_code == 2
    good = cli("sign", run, "--key", tmp_path / "key", input="correct horse\n")
    assert good.exit_code == 0, good.output
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pem").write_bytes(pem)
    assert signature_check(run, tmp_path / "key.pem").passed


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not here")
def test_keys_that_ssh_keygen_made(run, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True)
    assert cli("sign", run, "--key", tmp_path / "id").exit_code == 0
    found = signature_check(run, tmp_path / "id.pub")
    shown = subprocess.run(["ssh-keygen", "-l", "-f", tmp_path / "id.pub"], check=True, capture_output=True, text=True)
    assert found.passed
    assert shown.stdout.split()[1] in found.detail


def test_files_of_several_keys(run, keys, tmp_path):
    both = (keys / "other.pub").read_text() + "# of the office\n" + (keys / "owner.pub").read_text()
    (tmp_path / "authorized_keys").write_text(both)
    assert signature_check(run, tmp_path / "authorized_keys").passed
    kind, key, _ = (keys / "owner.pub").read_text().split()
    (tmp_path / "allowed_signers").write_text(f'office@example.org namespaces="adadp" {kind} {key}\n')
    found = signature_check(run, tmp_path / "allowed_signers")
    assert found.passed
    assert "office@example.org" in found.detail


@pytest.mark.parametrize(
    "before",
    [
        "@revoked *",
        "cert-authority",
        'me@example.org valid-before="20200101"',
        'me namespaces="git,file"',
        "@cert-authority *",
    ],
)
def test_keys_that_are_revoked_or_limited_are_not_trusted(run, keys, tmp_path, before):
    kind, key, _ = (keys / "owner.pub").read_text().split()
    (tmp_path / "signers").write_text(f"{before} {kind} {key}\n")
    with pytest.raises(InputError, match="limits the key, or revokes it"):
        signature_check(run, tmp_path / "signers")


def test_keys_that_cannot_be_used_are_refused(run, keys, tmp_path):
    large = rsa.generate_private_key(65537, 2048)
    (tmp_path / "rsa").write_bytes(large.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, PLAIN))
    (tmp_path / "rsa.pub").write_bytes(large.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    curve = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "ec").write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, PLAIN))
    (tmp_path / "ec.pub").write_bytes(curve.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    (tmp_path / "broken").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n")
    (tmp_path / "cut.pub").write_text("ssh-ed25519 AAAAC3Nz\n")
    for path, what in (("rsa", "but RSA"), ("ec", "but E"), ("broken", "cannot be read"), ("none", "cannot be read")):
        with pytest.raises(InputError, match=what):
            sign(run, tmp_path / path, no_passphrase)
    (tmp_path / "token.pub").write_text("sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29t me\n")
    kinds = (("rsa.pub", "but ssh-rsa"), ("ec.pub", "but ecdsa-sha2-nistp256"), ("token.pub", "but sk-ssh-ed25519@"))
    for path, what in (*kinds, ("cut.pub", "cannot be read"), ("none", "cannot be read")):
        with pytest.raises(InputError, match=what):
            signature_check(run, tmp_path / path)
    with pytest.raises(InputError, match="is a private key"):
        signature_check(run, keys / "owner")


def test_what_does_not_verify_or_has_not_finished_is_not_signed(run, keys):
    (run / "metrics.jsonl").write_text("")
    found = cli("sign", run, "--key", keys / "owner")
    assert found.exit_code == 2
    assert "does not verify" in found.output
    (run / "model.safetensors").unlink()
    with pytest.raises(InputError, match="not finished"):
        sign(run, keys / "owner", no_passphrase)


def test_a_signature_is_checked_without_torch(run, keys):
    blocked = "import sys; sys.modules['torch'] = None; from adadp.app.cli import main; main()"
    command = [sys.executable, "-c", blocked, "verify", str(run), "--key", str(keys / "owner.pub")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "files are those signed by" in found.stdout
