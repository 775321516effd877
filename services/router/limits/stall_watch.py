"""Gives up clients that take nothing of their answer.

One timer looks after all writes that are under way, so that a write, of which there is one per token and stream, pays
for no timer of its own.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable

from shared.patience import NUM_TICKS


class ClientStalledError(Exception):
    """The client reads nothing of its answer."""


class StallWatch:
    """For one event loop."""

    def __init__(self, limit: float) -> None:
        """`limit`: seconds that one write may take."""
        self._limit = limit
        # When each began, the oldest first; seconds, monotonic. A task writes one thing at a time.
        self._writing: dict[asyncio.Task[object], float] = {}
        # Told to stop. Nothing more is written in a task that has been.
        self._stalled: weakref.WeakSet[asyncio.Task[object]] = weakref.WeakSet()
        self._is_watching = False
        # When the next look is due; seconds, monotonic.
        self._due = 0.0

    async def over(self, write: Awaitable[None]) -> None:
        """Awaits it. Raises ClientStalledError where it takes longer than the limit."""
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
            # The router was held up itself, and has yet to look at what its clients took meanwhile.
            self._writing = {task: min(began + late + tick, now) for task, began in self._writing.items()}
        for task, began in self._writing.items():
            if began + self._limit > now:
                self._look_after(began + self._limit - now)
                return
            if task not in self._stalled:
                self._stalled.add(task)
                task.cancel()
        self._is_watching = False
