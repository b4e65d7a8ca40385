"""Requests to stop, and the random numbers of layers such as dropout."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Set when Ctrl-C or a polite kill arrives: the step at hand is finished first. A second Ctrl-C does not wait."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(*_: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def random_layers(seed: int | None) -> Iterator[Callable[[int], None]]:
    """Seeds torch's own generator before every step; the caller's state of it comes back in the end.

    A seeded run starts every step from (seed, step), so that a resumed one repeats it. A secure run starts it from
    fresh entropy. torch begins every process in the same state; with it the mask of a record would follow from its
    place in the lot, and one record more would move the masks, and with them the gradients, of all after it.
    """

    def start(step: int) -> None:
        fresh = int.from_bytes(os.urandom(7), "little")
        torch.manual_seed(fresh if seed is None else (seed * 1_000_003 + step) % 2**63)

    with torch.random.fork_rng():
        yield start
