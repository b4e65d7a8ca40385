"""Settings that say how an algorithm of a paper is read."""

from __future__ import annotations

from adadp.errors import InputError


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a ``value`` that is none of ``choices``."""
    if value not in choices:
        raise InputError(
            f"{name} must be one of {', '.join(choices)}, got {value!r}.",
            why="Each is another reading of the algorithm.",
            fix=f"Pass {name}={choices[0]}, or leave it out.",
        )
