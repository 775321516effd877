"""Ends requests of clients that do not read their response.

One timer watches all writes in progress. There is one write per token and stream, so a timer for each would be costly.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable

from shared.patience import NUM_TICKS


class ClientStalledError(Exception):
    """Raised if the client does not read its response."""


class StallWatch:
    """Watches the writes of one event loop."""

    def __init__(self, limit: float) -> None:
        """`limit`: maximum duration of one write, in seconds."""
        self._limit = limit
        # Start time of each write, oldest first; monotonic seconds. A task has at most one write at a time.
        self._writing: dict[asyncio.Task[object], float] = {}
        # Tasks that were cancelled because their write stalled. They do not write again.
        self._stalled: weakref.WeakSet[asyncio.Task[object]] = weakref.WeakSet()
        self._is_watching = False
        # Time of the next check; monotonic seconds.
        self._due = 0.0

    async def over(self, write: Awaitable[None]) -> None:
        """Awaits `write`. Raises ClientStalledError if it takes longer than the limit."""
        task = asyncio.current_task()
        assert task is not None
        self._writing[task] = time.monotonic()
        if not self._is_watching:
            self._is_watching = True
            self._look_after(self._limit)
        try:
            await write
        except asyncio.CancelledError:
            if task in self._stalled and not task.uncancel():
                raise ClientStalledError from None
            raise
        finally:
            del self._writing[task]

    def _look_after(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds
        asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        late, tick = now - self._due, self._limit / NUM_TICKS
        if late > tick:
            # The event loop was delayed, so the router does not know yet what its clients have read meanwhile. All
            # writes get additional time for the delay.
            self._writing = {task: min(began + late + tick, now) for task, began in self._writing.items()}
        for task, began in self._writing.items():
            if began + self._limit > now:
                self._look_after(began + self._limit - now)
                return
            if task not in self._stalled:
                self._stalled.add(task)
                task.cancel()
        self._is_watching = False
