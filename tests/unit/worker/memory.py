"""Limits the memory that a test takes."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def growth_below(num_bytes: int, what: object = "it") -> Iterator[None]:
    """Raises AssertionError if this process grows by `num_bytes` within the block, be it for a moment. `what`: the
    subject of the message."""
    with _no_garbage_collection():
        # Linux sets the peak to the present size. Otherwise a higher peak of an earlier test would hide the growth.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        before = _peak()
        yield
        grown = _peak() - before
    assert grown < num_bytes, f"{what} took {grown >> 20:,} MiB"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Garbage of earlier tests that is freed meanwhile would hide growth. To collect it first would take a second or
    two in a process that has imported much, for each of thousands of calls."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _peak() -> int:
    """Returns the most bytes of memory that this process has had at a time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
