"""Time limits on peers that a pause of this process does not use up.

A process that was stopped, or whose event loop was busy, has not looked at what its peer sent or took meanwhile. When
it goes on, a timer of asyncio may fire before the sockets are read, and the peer is blamed for the pause. Here the time
is counted in ticks of the event loop. A tick that comes late says that this process was held up, and counts for
nothing.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

NUM_TICKS = 5


class Patience:
    """An asynchronous context manager, as `asyncio.timeout`: raises TimeoutError in the block after so many seconds.

    A loop that is late all the time loses patience as well: after twice as many ticks.
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
