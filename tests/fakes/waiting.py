"""Waits for a condition, without a time limit that a slow machine could exceed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# A test that waits for this many seconds counts as hung. No working test waits nearly as long, even on a slow machine.
HANG_S = 300.0


async def until(condition: Callable[[], bool]) -> None:
    """Waits until the condition is true. Raises TimeoutError after HANG_S."""
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 - no event announces the condition
            await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], bool], interval: float = 0.005) -> None:
    """Waits without an event loop until the condition is true. Raises TimeoutError after HANG_S.

    `interval`: seconds between two checks.
    """
    deadline = time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition was still false after {HANG_S:g} s")
        time.sleep(interval)
