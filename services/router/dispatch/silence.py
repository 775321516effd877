"""How long a scheduler has sent nothing."""

from __future__ import annotations

import asyncio

from shared.pulse import Pulse

# Seconds between two looks. A pause of the router itself counts as no more than this.
_TICK_SECONDS = 0.2


class SilenceWatch:
    """Notices within milliseconds that the limit of a scheduler's pulse is over.

    The time is added up from sleeps, with each counted as long as it was meant to be. If the router itself stands still
    for longer, the scheduler's messages are waiting to be read, and a clock would take the router's pause for the
    scheduler's.
    """

    def __init__(self, pulse: Pulse, least_seconds: float) -> None:
        """`least_seconds`: least time without a message after which the scheduler counts as hung; see Pulse."""
        self._pulse = pulse
        self._least_seconds = least_seconds
        # When the first and the last message of this sleep came, if any came.
        self._heard: tuple[float, float] | None = None

    def heard(self) -> None:
        """Takes note of a message."""
        now = asyncio.get_running_loop().time()
        self._heard = (now if self._heard is None else self._heard[0], now)

    async def run(self) -> float:
        """Returns the limit once it is over."""
        now = asyncio.get_running_loop().time
        tick = min(_TICK_SECONDS, self._least_seconds / 5)
        silent = 0.0
        while silent < (limit := self._pulse.limit_s(self._least_seconds)):
            self._heard, began = None, now()
            sleep = min(tick, limit - silent)
            await asyncio.sleep(sleep)
            if self._heard is None:
                silent += sleep
            else:
                first, last = self._heard
                self._pulse.heard(silent + min(first - began, sleep))
                silent = min(now() - last, sleep)
        self._pulse.gave_up()
        return limit
