"""A clock for the running event loop that stands still until the test moves it.

asyncio's timers (`call_later`, `timeout`) then fire when the test advances the clock, and never because the machine is
slow. Sockets and gRPC calls work as usual.
"""

from __future__ import annotations

import asyncio


class LoopClock:
    """Replaces the clock of the running event loop until the loop ends with the test."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        # In whole microseconds: thousands of fractions of a second would add up to another time on each machine.
        self._start = round(1e6 * loop.time())
        self._passed = 0
        loop.time = self.time  # type: ignore[method-assign]

    def time(self) -> float:
        """Returns seconds, like `time.monotonic`."""
        return (self._start + self._passed) / 1e6

    async def pass_by(self, seconds: float) -> None:
        """Advances the clock, and returns after all timers that are due have fired."""
        self._passed += round(1e6 * seconds)
        for _ in range(5):
            await asyncio.sleep(0)
