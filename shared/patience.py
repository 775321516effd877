"""Timeouts for peers. They do not count the time during which this process itself was paused.

A process that is stopped, or whose event loop is busy, does not notice what its peer sends or reads. When the process
continues, an asyncio timer can fire before the sockets are read. The peer would then be blamed for the pause. This
module counts time in ticks of the event loop instead. A late tick does not count, because it means that this process
was delayed.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

NUM_TICKS = 5


class Patience:
    """An asynchronous context manager like `asyncio.timeout`: raises TimeoutError in the block after `seconds`.

    Divides `seconds` into NUM_TICKS ticks, and times out after this number of ticks that are not late. At most
    NUM_TICKS late ticks are left out of the count, so the block times out after 2 · NUM_TICKS ticks at the latest.
    """

    __slots__ = ("_handle", "_interval", "_loop", "_num_late", "_num_ticks", "_timeout")

    def __init__(self, seconds: float) -> None:
        self._interval = seconds / NUM_TICKS
        self._timeout = asyncio.timeout(None)
        self._num_ticks = 0
        self._num_late = 0

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._timeout.__aenter__()
        self._handle = self._loop.call_later(self._interval, self._tick)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handle.cancel()
        await self._timeout.__aexit__(kind, error, traceback)

    def _tick(self) -> None:
        now = self._loop.time()
        is_late = now - self._handle.when() > self._interval
        if is_late and self._num_late < NUM_TICKS:
            self._num_late += 1
        else:
            self._num_ticks += 1
        if self._num_ticks == NUM_TICKS:
            self._timeout.reschedule(now)
        else:
            self._handle = self._loop.call_later(self._interval, self._tick)
