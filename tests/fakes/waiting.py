"""Waits for what a test needs, however long the machine takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# Seconds after which a test that waits has hung. No working test comes near them, however slow the machine.
HANG_S = 300.0


async def until(condition: Callable[[], bool]) -> None:
    """Raises TimeoutError after HANG_S."""
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 - what it looks at belongs to other tasks, which know of no event
            await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], bool], interval: float = 0.005) -> None:
    """The same for a test without an event loop. `interval`: seconds between two looks."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"this did not come about within {HANG_S:g} s")
        time.sleep(interval)
