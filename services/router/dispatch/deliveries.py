"""Wakes the tasks of requests that have new output: immediately under low load, in rounds under high load.

A round wakes all waiting tasks, and each task sends one message to its client. The cost of a message hardly depends on
its size. After a long round, the router therefore pauses for as long as the round took, and meanwhile reads from its
schedulers. All output that a request gets during the pause is then sent in one message. Under low load, rounds are so
short that no pause follows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# Maximum time that one message can take. If a round took longer than this per message, the excess was spent on other
# tasks, so it does not lengthen the pause.
_MESSAGE_SECONDS = 0.0001
# A round shorter than _SHORT_ROUND_SECONDS is followed by no pause. No pause is longer than _LONGEST_REST_SECONDS.
_SHORT_ROUND_SECONDS = 0.0005
_LONGEST_REST_SECONDS = 0.01


class Deliveries:
    """Wakes waiting tasks in rounds, on one event loop, without blocking it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._waiters: list[asyncio.Future[None]] = []
        # Whether a round or the pause after one is running, or the first round is about to start.
        self._is_busy = False

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """Lets the next round wake the task that awaits `waiter`, by setting the future's result."""
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
        # When `_delivered` runs, every woken task has sent its message and is waiting again.
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
