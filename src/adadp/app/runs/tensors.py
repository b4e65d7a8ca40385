"""Tensors with text, in one safetensors file, exact to the bit and refused when damaged.

    a tensor that                                  comes back
    =============================================  ==================================================================
    has any dtype safetensors knows, 0-d, empty    with the same bits, dtype and shape, on the CPU
    is not contiguous, is conjugated               with the same values, contiguous
    is the same view as another (tied weights)     as the same tensor under both names; stored once
    overlaps another in a different shape          with its own copy of the values
    requires a gradient                            without
    is sparse, on the meta device, or of a dtype   never: ``InputError`` names it before anything is written
    safetensors does not know

Besides what the caller gave, the file's metadata holds ``ties`` (other names of a tensor, as JSON) and ``sha256``, over
names, dtypes, shapes and bytes of all tensors and over the other metadata. Other readers of safetensors see an ordinary
file in which tied tensors are there once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from adadp.app.runs.atomic import write_atomic
from adadp.certificate.digests import DIGEST, TIES, StoredTensor, damaged, stored_digest
from adadp.errors import InputError
from adadp.files import json_of, regular_size

LARGEST_HEADER = 100_000_000
"""Bytes of names, shapes and metadata beyond which safetensors refuses to read a file (it would write it)."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Replace the file at ``path`` atomically by one with ``tensors`` and ``metadata``."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str) or key in (TIES, DIGEST):
            raise InputError(
                f"The metadata {key!r}: {value!r} cannot be written.",
                why=f"A safetensors file holds text by name, and the names {TIES} and {DIGEST} are taken.",
                fix="Pass text under another name, for example json.dumps of the value.",
            )
    stored, ties = _untie(tensors)
    text = {**metadata, TIES: json.dumps(ties, sort_keys=True)}
    text[DIGEST] = tensors_digest(stored, text)
    try:
        data = save(stored, metadata=text)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"The tensors cannot be written to {path}: {error}.", why="safetensors has no place for one of them."
        ) from error
    header = int.from_bytes(data[:8], "little")
    if header > LARGEST_HEADER:
        raise InputError(
            f"The names and metadata for {path} take {header} bytes; a safetensors file holds {LARGEST_HEADER}.",
            why="A file that is larger can be written but never read.",
            fix="Keep long lists as tensors.",
        )
    write_atomic(path, data)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the caller's metadata in the file at ``path``; a damaged file is refused."""
    try:
        regular_size(path)
        with safe_open(path, framework="pt") as file:
            text = dict(file.metadata() or {})
            mapped = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        expected = text.pop(DIGEST)
        if tensors_digest(mapped, text) != expected:
            raise ValueError("its checksum does not hold")
        stored = {name: tensor.clone() for name, tensor in mapped.items()}  # no longer the memory of the file
        ties = json_of(text.pop(TIES))
        return stored | {alias: stored[name] for alias, name in ties.items()}, text
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise damaged(path, error) from error


def read_metadata(path: Path) -> dict[str, str]:
    """The caller's metadata alone, without a look at the tensors, so that damage to them is not noticed."""
    try:
        regular_size(path)
        with safe_open(path, framework="pt") as file:
            text = dict(file.metadata() or {})
    except (SafetensorError, ValueError, OSError) as error:
        raise damaged(path, error) from error
    return {key: value for key, value in text.items() if key not in (TIES, DIGEST)}


def _untie(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What to store, plain and without shared memory, and the other names of what is stored."""
    stored: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    views: dict[object, str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        _check_storable(name, tensor)
        storage = tensor.untyped_storage().data_ptr()
        view = (
            tensor.device,
            tensor.data_ptr(),
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.is_conj(),
            tensor.is_neg(),
        )
        if tensor.numel() and view in views:
            ties[name] = views[view]
            continue
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        stored[name] = plain.clone() if storage in storages else plain
        views[view] = name
        storages.add(storage)
    return stored, ties


def _check_storable(name: object, tensor: object) -> None:
    if not isinstance(name, str) or not isinstance(tensor, Tensor):
        raise InputError(
            f"{name!r} is {type(tensor).__name__}, not a tensor under a name.",
            why="Only tensors are stored here: nothing that needs pickle.",
            fix="Keep other values in the state (JSON), or turn them into tensors.",
        )
    if name == "__metadata__":
        raise InputError(
            "No tensor can be called __metadata__.", why="safetensors keeps its text there.", fix="Rename it."
        )
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise InputError(
            f"The tensor {name!r} is {'on the meta device' if tensor.is_meta else 'sparse or quantized'}.",
            why="It has no plain bytes to store.",
            fix="Turn it into a dense tensor first.",
        )


def tensors_digest(tensors: Mapping[str, Tensor], text: Mapping[str, str] | None = None) -> str:
    """SHA-256 over ``text`` and over names, dtypes, shapes and bytes of ``tensors``, in the order of their names."""
    return stored_digest({name: _stored(tensor) for name, tensor in tensors.items()}, text)


def _stored(tensor: Tensor) -> StoredTensor:
    plain = tensor.detach().cpu().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,))  # a single number may have any stride, and be contiguous
    data = flat.view(torch.uint8).numpy().data if plain.numel() else b""
    return StoredTensor(_DTYPES.get(plain.dtype, str(plain.dtype)), tuple(plain.shape), data)


_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip
"""What safetensors calls a dtype."""
