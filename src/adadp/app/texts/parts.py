"""A part and its options in one text: ``name:options``, ``package.module:Name:options``, ``file.py:Name:options``."""

from __future__ import annotations

from typing import TypeVar

from adadp.registry import Registry

T = TypeVar("T")


def find(registry: Registry[T], text: str) -> tuple[T, str | None]:
    """The part that ``text`` names, by name or by place, and its options: what stands behind the next colon, if any."""
    name, *rest = (part.strip() for part in text.split(":", 1))
    if rest and name not in registry and rest[0].partition(":")[0].isidentifier():
        attribute, *rest = rest[0].split(":", 1)
        name = f"{name}:{attribute}"
    return registry.find(name), rest[0] if rest else None
