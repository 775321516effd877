"""The clock that the services read: monotonic seconds. A simulation replaces it with virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_source: Callable[[], float] = time.monotonic


def now() -> float:
    """Returns seconds, like `time.monotonic`. On asyncio's own event loop it is also the time of the loop's timers."""
    return _source()


@contextmanager
def replaced_by(source: Callable[[], float]) -> Iterator[None]:
    """Lets `now` return what `source` returns, until the block ends. For the whole process: only for tests."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before
