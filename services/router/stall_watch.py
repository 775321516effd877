"""Gives up clients that take nothing of their answer.

One timer looks after all writes that are under way, so that a write, of which there is one per token and stream, pays
for no timer of its own.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable


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

    async def over(self, write: Awaitable[None]) -> None:
        """Awaits it. Raises ClientStalledError where it takes longer than the limit."""
        task = asyncio.current_task()
        assert task is not None
        self._writing[task] = time.monotonic()
        if not self._is_watching:
            self._is_watching = True
            asyncio.get_running_loop().call_later(self._limit, self._look)
        try:
            await write
        except asyncio.CancelledError:
            if task in self._stalled and not task.uncancel():
                raise ClientStalledError from None
            raise
        finally:
            del self._writing[task]

    def _look(self) -> None:
        now = time.monotonic()
        for task, began in self._writing.items():
            if began + self._limit > now:
                asyncio.get_running_loop().call_later(began + self._limit - now, self._look)
                return
            if task not in self._stalled:
                self._stalled.add(task)
                task.cancel()
        self._is_watching = False
