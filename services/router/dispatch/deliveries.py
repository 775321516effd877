"""When requests hear that there is something new for them: at once while that costs little, less often when it is much.

What a message to a client costs hardly depends on how much it holds. So after a round of many messages the router
rests from them for as long as the round took, and reads what its schedulers send meanwhile: what comes for the same
request goes into the same message. A router that is far from busy has nothing to read then, and nothing waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# What a message takes at most; more of a round's time was others' work.
_MESSAGE_SECONDS = 0.0001
# A round that took less is followed by the next at once; none is followed by a longer rest.
_SHORT_ROUND_SECONDS = 0.0005
_LONGEST_REST_SECONDS = 0.01


class Deliveries:
    """Wakes whoever waits for news, in rounds. For one event loop, which it never holds up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._waiters: list[asyncio.Future[None]] = []
        # From the first waiter on until the rest after a round is over.
        self._is_busy = False

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """Sets its result with the next round."""
        self._waiters.append(waiter)
        if not self._is_busy:
            self._is_busy = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        began = self._clock()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        # Runs once every one that was woken has, as far as it gets without waiting: up to its message being sent.
        asyncio.get_running_loop().call_soon(self._delivered, began, len(waiters))

    def _delivered(self, began: float, num_messages: int) -> None:
        took = min(self._clock() - began, num_messages * _MESSAGE_SECONDS)
        if took < _SHORT_ROUND_SECONDS:
            self._rested()
        else:
            asyncio.get_running_loop().call_later(min(took, _LONGEST_REST_SECONDS), self._rested)

    def _rested(self) -> None:
        if self._waiters:
            self._deliver()
        else:
            self._is_busy = False
