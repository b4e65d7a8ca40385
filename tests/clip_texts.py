"""Clip rules of plans in tests, written as text."""

from __future__ import annotations

from adadp.app.texts.clip_rules import clip_rule
from adadp.clipping import ClipRule


def rule_of(clip_norm: ClipRule | str | float) -> ClipRule | float:
    return clip_rule(clip_norm) if isinstance(clip_norm, str) else clip_norm
