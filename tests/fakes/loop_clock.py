"""A clock for the running event loop that stands still until the test moves it.

What asyncio does after so many seconds (`call_later`, `timeout`) is then done when the test says that they have passed,
and never because the machine was slow. Sockets and gRPC's calls go on as ever.
"""

from __future__ import annotations

import asyncio


class LoopClock:
    """From here on the clock of the running loop, which ends with the test."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._now = loop.time()
        loop.time = self.time  # type: ignore[method-assign]

    def time(self) -> float:
        """Seconds, as `time.monotonic` gives them."""
        return self._now

    async def pass_by(self, seconds: float) -> None:
        """When this returns, the timers that are due by then have fired."""
        self._now += seconds
        for _ in range(5):
            await asyncio.sleep(0)
