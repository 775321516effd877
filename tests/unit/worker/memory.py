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
    # Garbage of earlier tests that is freed within the block would hide the growth.
    gc.collect()
    # Linux sets the peak to the present size. Otherwise a higher peak of an earlier test would hide the growth.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    yield
    grown = _peak() - before
    assert grown < num_bytes, f"{what} took {grown >> 20:,} MiB"


def _peak() -> int:
    """Returns the most bytes of memory that this process has had at a time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
