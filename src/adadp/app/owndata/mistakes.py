"""Everything that is wrong with a schema or a table, said at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from adadp.errors import InputError


class Mistakes:
    """Collects errors, and raises them as one: a single one as it is, several as a list under ``heading``."""

    def __init__(self, heading: str) -> None:
        self._heading = heading
        self._found: list[InputError] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Go on after an error in the block, and keep it."""
        try:
            yield
        except InputError as error:
            self._found.append(error)

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_any(self) -> None:
        """Raise what was kept, if there is anything."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            lines = [" ".join(part for part in (error.written[0], error.written[2]) if part) for error in self._found]
            why = dict.fromkeys(error.written[1] for error in self._found if error.written[1])
            raise InputError("\n- ".join([f"{self._heading}:", *lines]) + "\n", why=" ".join(why))
