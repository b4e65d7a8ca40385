"""What an evaluation of the user's own came to: a number that means nothing without its name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluated:
    """A figure of a model on public data that is not the share of records it gets right.

    ==================================  ======================================
    both ends of the range are known    ``auc 0.83 (from 0 to 1)``
    one of them                         ``loss 1.7 (at least 0)``
    none                                ``bleu 31.2``
    a value that is not a number        ``auc unknown (from 0 to 1)``
    ==================================  ======================================
    """

    name: str
    value: float | None
    """None: not a number."""
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        span = f" ({self.span})" if self.span else ""
        return f"{self.name} {self.digits}{span}"

    @property
    def digits(self) -> str:
        """The value with four digits."""
        return "unknown" if self.value is None else f"{self.value:.4g}"

    @property
    def span(self) -> str:
        """The range in words; empty where it is not known."""
        if self.low is not None and self.high is not None:
            return f"from {self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"at least {self.low:g}"
        return "" if self.high is None else f"at most {self.high:g}"
