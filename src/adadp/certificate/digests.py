"""Digests of JSON and of tensors, and safetensors files read without PyTorch.

Such a file is 8 bytes of length, a JSON header, and the data. AdaDP adds two texts to it: ``ties``, the other names of
a tensor, and ``sha256`` over all that is in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

from adadp.errors import RunError
from adadp.files import LARGEST, json_of, regular_size

TIES, DIGEST = "ties", "sha256"


def json_digest(value: object) -> str:
    """SHA-256 of ``value`` as canonical JSON: compact, ASCII, keys sorted, numbers finite."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode("ascii")).hexdigest()


class StoredTensor(NamedTuple):
    """One tensor as its bytes. ``dtype`` is what safetensors calls it, such as F32."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


def stored_digest(tensors: Mapping[str, StoredTensor], text: Mapping[str, str] | None = None) -> str:
    """SHA-256 over ``text`` and over names, dtypes, shapes and bytes of ``tensors``, in the order of their names."""
    digest = sha256(json.dumps(dict(text or {}), sort_keys=True).encode("ascii"))
    for name in sorted(tensors):
        each = tensors[name]
        digest.update(json.dumps([name, each.dtype, list(each.shape)]).encode("ascii"))
        digest.update(each.data)
    return digest.hexdigest()


def read_stored(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors under all their names, and the writer's own texts; a damaged file is refused (``RunError``)."""
    try:
        regular_size(path)
        with path.open("rb") as file:
            content = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        start = 8 + int.from_bytes(content[:8], "little")
        header = json_of(bytes(content[8 : min(start, LARGEST)]))
        text: dict[str, str] = header.pop("__metadata__", {})
        data = content[start:]
        spans = sorted(tuple(each["data_offsets"]) for each in header.values())
        edges = [(0, 0), *spans, (len(data), len(data))]
        if any(one[1] != two[0] for one, two in pairwise(edges)):
            raise ValueError("its tensors do not fill it")
        stored = {
            name: StoredTensor(each["dtype"], tuple(each["shape"]), data[slice(*each["data_offsets"])])
            for name, each in header.items()
        }
        expected = text.pop(DIGEST)
        if stored_digest(stored, text) != expected:
            raise ValueError("its checksum does not hold")
        ties = json_of(text.pop(TIES))
        return stored | {alias: stored[name] for alias, name in ties.items()}, text
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> RunError:
    """The error for a tensor file that cannot be trusted."""
    reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return RunError(
        f"{path} is damaged, or was not written by AdaDP: {reason}.",
        why="Numbers read from it could be anything.",
        fix="Restore the file from a copy, or remove it and go on without it.",
    )
