"""How long a scheduler has sent nothing."""

from __future__ import annotations

import asyncio

from shared.pulse import Pulse

# Most seconds between two looks.
_TICK_SECONDS = 0.2


class SilenceWatch:
    """Waits until a scheduler has sent nothing for as long as its Pulse allows.

    The time is added up from short sleeps. A sleep that took much longer than it should does not count, because the
    router itself stood still: the scheduler's messages may be waiting to be read.
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
        """Returns once the scheduler has been silent for too long; for how many seconds."""
        now = asyncio.get_running_loop().time
        tick = min(_TICK_SECONDS, self._least_seconds / 5)
        silent, stood_still = 0.0, False
        while silent < (limit := self._pulse.limit_s(self._least_seconds)):
            self._heard, began = None, now()
            # After a pause of the router itself, there must be time to read.
            sleep = tick if stood_still else min(tick, limit - silent)
            await asyncio.sleep(sleep)
            stood_still = now() - began > sleep + tick
            if self._heard is not None:
                first, last = self._heard
                self._pulse.heard(silent + min(first - began, sleep))
                silent = min(now() - last, sleep)
            elif not stood_still:
                silent += sleep
        self._pulse.gave_up()
        return limit
