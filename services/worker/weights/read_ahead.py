"""Reads items on threads before they are needed, within a budget of bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class ReadAhead(Generic[K, T]):
    """Reads items ahead and keeps them until they are taken. At any time, it holds at most `budget` bytes, or one item
    that is larger."""

    def __init__(self, sizes: Mapping[K, int], read: Callable[[K], T], num_threads: int, budget: int) -> None:
        """`sizes`: bytes of each item, in the order in which items will be taken. `read` must be thread-safe."""
        self._waiting = dict(sizes)
        self._reading: dict[K, tuple[Future[T], int]] = {}
        self._read = read
        self._budget = budget
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="weights")

    def take(self, name: K) -> T:
        """Returns the item `name`; waits until it is read. Raises what `read` raised for the item. Call it once per
        item."""
        reading = self._reading.pop(name, None)
        if reading is None:  # the first item, or an item that is taken out of order
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
