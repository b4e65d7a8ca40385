"""``adadp sign`` and ``adadp verify --key``: an Ed25519 signature over every file of a finished run.

Nothing in a folder tells a run from a forgery that agrees with itself. A signature says who vouches for it: whoever
holds the key states that these very files are the run. It is an in-toto statement (in-toto Attestation Framework,
Statement v1) with the SHA-256 of each file, in a DSSE envelope (Dead Simple Signing Envelope v1), so other tools can
read it: the file ``signature.dsse.json`` in the folder. Keys are those of OpenSSH (``ssh-keygen -t ed25519``) or PEM.
"""

# cryptography is an extra, and signatures are checked where torch is not installed.
# ruff: noqa: PLC0415

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adadp.certificate.verify import Check
from adadp.errors import InputError, RunError
from adadp.ledger import read_ledger

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = "signature.dsse.json"
_PAYLOAD = "application/vnd.in-toto+json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "urn:adadp:run:v1"
_STATED = ("private", "rehearsal", "epsilon", "delta", "neighbours", "record", "sampling", "accountant", "ledger")
"""What of the certificate stands in the statement itself, for readers that have the statement alone."""
_LARGEST = 1 << 24
"""Bytes of a signature that are read at most: a statement of a run has a few thousand."""
_UNSIGNED = (SIGNATURE, "ledger.jsonl.lock")
_AGREE = (
    *("certificate.json", "config.toml", "features.safetensors", "ledger.jsonl", "model.safetensors", "report.html"),
    "search.json",
)
_TOLD = ("canaries.json", "confusion.json", "encoder.json", "figures.json", "holdout.json", "metrics.jsonl")
"""What a run that verifies shows of its files: they follow from one another, or are those the certificate names."""
_MOST = 100
"""Signatures in an envelope: each is tried with each key."""
_LIMITS = (b"cert-authority", b"valid-after", b"valid-before", b"@revoked", b"@cert-authority")
"""What limits or revokes a key in a file of keys, and is not followed here."""


@dataclass(frozen=True)
class Signer:
    """Who may have signed: a public key, and the name that the file of keys gives it."""

    key: Ed25519PublicKey
    name: str

    @property
    def fingerprint(self) -> str:
        """As ``ssh-keygen -l`` shows it."""
        return fingerprint(self.key)


def sign(folder: str | os.PathLike[str], key: str | os.PathLike[str], ask: Callable[[], str]) -> Path:
    """Sign the finished run in ``folder`` with the private ``key``; ``ask`` gives the passphrase, if it has one.

    Returns the file with the signature. An earlier one is replaced. Whether the run verifies is the caller's to check.
    """
    from adadp.app.runs import RunFolder

    path = Path(folder)
    run = RunFolder.open(path)
    if not run.finished:
        raise InputError(
            f"The run in {path} has not finished.",
            why="Its files will change, and the signature would not hold.",
            fix=f"Finish it with adadp train --resume {path}, then sign it.",
        )
    private = _private_key(Path(key), ask)
    certificate = run.certificate() or {}
    statement = {
        "_type": _STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in _digests(path).items()],
        "predicateType": _PREDICATE,
        "predicate": {name: certificate[name] for name in _STATED if name in certificate},
    }
    payload = json.dumps(statement, sort_keys=True, ensure_ascii=True, allow_nan=False).encode("ascii")
    envelope = {
        "payloadType": _PAYLOAD,
        "payload": base64.b64encode(payload).decode("ascii"),
        "signatures": [
            {
                "keyid": fingerprint(private.public_key()),
                "sig": base64.b64encode(private.sign(_signed(payload))).decode("ascii"),
            }
        ],
    }
    place = path / SIGNATURE
    run.write_signature(place.name, envelope)
    run.give_one_time(read_ledger(run.ledger_path).began)
    return place


def signature_check(folder: str | os.PathLike[str], keys: str | os.PathLike[str]) -> Check:
    """Whether one of ``keys`` has signed the files that are in ``folder``: all of them, and no others."""
    signers = public_keys(Path(keys))
    try:
        return Check("signature", True, _checked(Path(folder), signers))
    except RunError as error:
        return Check("signature", False, str(error))


def what_is_claimed(folder: str | os.PathLike[str]) -> str:
    """What a reader without a key may take from a run that verifies."""
    path = Path(folder)
    names = sorted(_digests(path))
    others = [name for name in names if name not in (*_AGREE, *_TOLD)]
    told = "".join(f"what {name} says, " for name in names if name in _TOLD)
    signed = (
        "The folder has a signature, which was not checked: pass --key with the keys you trust."
        if (path / SIGNATURE).exists()
        else "The folder is not signed."
    )
    agree = ", ".join(name for name in names if name in _AGREE)
    return (
        f"{signed}\nEvidence: {agree} agree with one another, and epsilon was computed again from the ledger.\n"
        f"Only claims of whoever wrote the folder: that the run took place, {told}"
        "and what the certificate says of records, notes and versions."
        + (f"\nNot looked at: {_listed(others)}." if others else "")
    )


def fingerprint(key: Ed25519PublicKey) -> str:
    """The name of a key, as ``ssh-keygen -l`` shows it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")


def public_keys(path: Path) -> list[Signer]:
    """The keys in a ``.pub`` file of OpenSSH, an ``authorized_keys`` or ``allowed_signers`` file, or a PEM file."""
    _require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

    content = _read(path)
    if b"PRIVATE KEY" in content:
        raise InputError(
            f"{path} is a private key.",
            why="A signature is checked with the public one; keep the private one to yourself.",
            fix=f"Pass {path}.pub, or a file of public keys.",
        )
    found: list[Signer] = []
    try:
        if content.startswith(b"-----BEGIN"):
            key = load_pem_public_key(content)
            if isinstance(key, Ed25519PublicKey):
                found.append(Signer(key, path.name))
        for line in content.splitlines():
            words = line.split()
            if line.startswith(b"#") or b"ssh-ed25519" not in words:
                continue
            at = words.index(b"ssh-ed25519")
            before = b" ".join(words[:at])
            if any(each in before for each in _LIMITS) or (b"namespaces=" in before and b"adadp" not in before):
                raise ValueError("a line of it limits the key, or revokes it, in a way that is not followed here")
            key = load_ssh_public_key(b" ".join(words[at : at + 2]))
            name = words[0] if at else b" ".join(words[2:])
            assert isinstance(key, Ed25519PublicKey)
            found.append(Signer(key, name.decode("utf-8", "replace") or path.name))
    except (ValueError, IndexError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"{path} holds a key that cannot be read: {error}", fix="Pass the file as it was made."
        ) from error
    if not found:
        raise InputError(
            f"{path} holds no Ed25519 public key{_kinds(content)}.",
            why="Keys of other kinds are not used: Ed25519 has one size and no settings to get wrong.",
            fix="Make a pair with ssh-keygen -t ed25519, and pass its .pub file.",
        )
    return found


def _kinds(content: bytes) -> str:
    """What it holds instead, by the names that OpenSSH gives to kinds of keys."""
    found = re.findall(rb"\b(?:sk-)?(?:ssh|ecdsa)-[a-z0-9-]+(?:@openssh\.com)?(?= AAAA)", content)
    return f", but {', '.join(sorted({each.decode('ascii') for each in found}))}" if found else ""


def _private_key(path: Path, ask: Callable[[], str]) -> Ed25519PrivateKey:
    _require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    content = _read(path)
    load: Callable[[bytes, bytes | None], Any] = (
        load_ssh_private_key if b"OPENSSH PRIVATE KEY" in content else load_pem_private_key
    )
    try:
        try:
            key = load(content, None)
        except TypeError:  # it has a passphrase
            key = load(content, ask().encode("utf-8"))
        except ValueError as error:
            if "password" not in str(error).lower():
                raise
            key = load(content, ask().encode("utf-8"))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"The private key {path} cannot be read: {error}",
            fix="Pass an Ed25519 key of OpenSSH (ssh-keygen -t ed25519) or PEM, and its passphrase if it has one.",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            f"{path} is not an Ed25519 key, but {type(key).__name__.strip('_')}.",
            fix="Make one with ssh-keygen -t ed25519, which takes a second.",
        )
    return key


def _checked(path: Path, signers: list[Signer]) -> str:
    """What a good signature says; ``RunError`` says what is wrong."""
    from cryptography.exceptions import InvalidSignature

    payload, signatures = _envelope(path / SIGNATURE)
    by = None
    for signer in signers:
        for signature in signatures:
            try:
                signer.key.verify(signature, _signed(payload))
                by = signer
            except InvalidSignature:
                continue
    if by is None:
        known = ", ".join(f"{each.name} ({each.fingerprint})" for each in signers)
        raise RunError("The signature is by none of the given keys.", why=f"They are {known}.")
    signed = _subjects(payload)
    there = _digests(path)
    wrong = {
        "changed since": [name for name in signed if name in there and there[name] != signed[name]],
        "missing": [name for name in signed if name not in there],
        "not signed": [name for name in there if name not in signed],
    }
    if any(wrong.values()):
        said = "; ".join(f"{what}: {_listed(names)}" for what, names in wrong.items() if names)
        raise RunError(f"The files are not those that {by.name} signed. {said}.")
    return f"{len(signed)} files are those signed by {by.name} ({by.fingerprint})."


def _envelope(path: Path) -> tuple[bytes, list[bytes]]:
    """The signed bytes and the signatures in a DSSE envelope."""
    try:
        if not path.is_file():
            raise FileNotFoundError
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ValueError("it is too large")
        envelope = json.loads(content)
        if envelope["payloadType"] != _PAYLOAD:
            raise ValueError(f"its payload is not {_PAYLOAD}")
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(each["sig"], validate=True) for each in envelope["signatures"]]
        if len(signatures) > _MOST:
            raise ValueError("it has too many signatures")
    except FileNotFoundError:
        raise RunError("The folder is not signed.", why=f"It has no {SIGNATURE}.") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise RunError(f"{SIGNATURE} is not a signature: {type(error).__name__} {error}.") from error
    return payload, signatures


def _subjects(payload: bytes) -> dict[str, str]:
    """Name and SHA-256 of every signed file. What is read here has a good signature."""
    try:
        statement = json.loads(payload)
        if statement["_type"] != _STATEMENT or statement["predicateType"] != _PREDICATE:
            raise ValueError("it is a statement of another kind")
        return {str(each["name"]): str(each["digest"]["sha256"]) for each in statement["subject"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"What was signed is no statement about a run: {type(error).__name__} {error}.") from error


def _digests(path: Path) -> dict[str, str]:
    """SHA-256 of every file of a run by its name in the folder, but of the signature and of a lock."""
    found = {}
    for each in sorted(path.rglob("*")):
        name = each.relative_to(path).as_posix()
        if each.is_symlink():
            raise RunError(
                f"{_listed([name])} is a link.", why="What it points to is not a file of the run.", fix="Remove it."
            )
        if not each.is_dir() and not each.is_file():
            raise RunError(f"{_listed([name])} is neither file nor folder.", why="It has no content.", fix="Remove it.")
        if each.is_file() and name not in _UNSIGNED:
            with each.open("rb") as file:
                digest = hashlib.sha256()
                while block := file.read(1 << 20):
                    digest.update(block)
            found[name] = digest.hexdigest()
    return found


def _listed(names: list[str]) -> str:
    """Names that a stranger chose, with nothing in them that a terminal would obey or cannot show."""
    return ", ".join(name if name.isprintable() else ascii(name) for name in names)


def _signed(payload: bytes) -> bytes:
    """What DSSE signs: its pre-authentication encoding of type and payload."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD), _PAYLOAD.encode("ascii"), len(payload), payload)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(1 << 20)
    except OSError as error:
        raise InputError(f"The key {path} cannot be read: {error.strerror}.", fix="Check the path.") from error


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise InputError(
            "Signatures need the package cryptography, which is not installed.", fix="pip install adadp[sign]"
        ) from error
