"""Reads on threads what will be asked for next, within a budget of bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Owns what is read and not yet taken: items of `budget` bytes in all, or a single one that is larger."""

    def __init__(self, sizes: Mapping[str, int], read: Callable[[str], T], num_threads: int, budget: int) -> None:
        """`sizes` in bytes, in the order in which the items will be asked for. `read` is called on any thread, for
        several items at a time."""
        self._waiting = dict(sizes)
        self._reading: dict[str, tuple[Future[T], int]] = {}
        self._read = read
        self._budget = budget
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="weights")

    def take(self, name: str) -> T:
        """Once for each item. Raises what reading raised."""
        reading = self._reading.pop(name, None)
        if reading is None:  # not in the announced order, or the first
            self._waiting.pop(name)
            self._begin_next()
            item = self._read(name)
        else:
            self._begin_next()
            item = reading[0].result()
        if not self._waiting and not self._reading:
            self._pool.shutdown(wait=False)
        return item

    def _begin_next(self) -> None:
        ahead = sum(size for _, size in self._reading.values())
        while self._waiting:
            name = next(iter(self._waiting))
            size = self._waiting[name]
            if self._reading and ahead + size > self._budget:
                return
            self._reading[name] = (self._pool.submit(self._read, name), size)
            del self._waiting[name]
            ahead += size
